"""What processes that train together exchange while they compute: contributions of each turn, then results of calls."""
from __future__ import annotations

import contextlib
import hashlib
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..collective import Communicator, current
from ..collective.messages import filled_text
from ..kernels.isa import cpu
from ..kernels.machine.host import GivenUp, Moment, UpdateFailed
from ..options.options import Options
from ..program.arrays import digest_of_all
from ..program.dealing import ReplicaShare
from ..state import Session
from ..system.errors import OptionError, see
from ..system.version import VERSION
from .image_key import program_digest

if TYPE_CHECKING:
    from ..program.program import Program

UPDATE = "the contributions of an update"
SIDES = ("program (other files, options or versions)", "set of weights (other seeds or files)", "version of tileflow",
         "kind of processor")


def share_of(group: Communicator | None, replicas: int) -> ReplicaShare | None:
    """Which of a training's replicas are this process's; None: all, for it is alone, or there are fewer than
    processes."""
    share = None if group is None else ReplicaShare(group.rank, group.size, apart=not group.on_one_host)
    return share if share is not None and share.deals(replicas) else None


def owner_of(group: Communicator | None, options: Options) -> ReplicaShare | None:
    """Whose slices of optimizer states this process keeps; None: it has all of them whole."""
    if group is None or not options.optimizer_sharded:
        return None
    return ReplicaShare(group.rank, group.size, apart=not group.on_one_host)


def check_replicas(options: Options) -> None:
    """OptionError where there are fewer replicas than processes."""
    group = current()
    if group is not None and options.replication_factor < group.size:
        raise OptionError(f"{group.size} processes train together, and replication_factor={options.replication_factor} "
                          f"has no replica for each: set replication_factor to {group.size} or more (the weights are "
                          f"those of one process with as many).{see('distributed')}")


class Exchanging:
    """The HOST rows of one process's program.

    Where processes have memory in common, contributions and sums lie there and nothing is copied; else each gets those
    of the others: of what it folds a slice of, that slice.
    """

    def __init__(self, group: Communicator, share: ReplicaShare, replicas: int) -> None:
        self.group, self._replicas = group, replicas
        owned = [share.of(replicas, rank) for rank in range(share.size)]
        self._owned = [slice(own.start, own.stop) for own in owned]
        self._common = np.zeros(0, np.uint8)
        """Of processes on one host: where slices are handed to the others."""
        self._signals: set[Any] | None = None
        """Those that were held back before an update is written; None: it is not being written."""

    def gather(self, cuts: Sequence[tuple[slice, ...] | None], moment: Moment, *stashes: np.ndarray) -> None:
        """All replicas' contributions of a turn, each stash uint8 [replicas * slot]; GivenUp in every process where
        somebody asked one of them to end. cuts: of each stash by rank the bytes of a slot that a process folds; None:
        each folds all."""
        if self.group.any(moment.asked(), UPDATE):
            raise GivenUp
        if self.group.on_one_host:
            return
        slots = [stash.reshape(self._replicas, -1) for stash in stashes]
        if whole := [slot for slot, cut in zip(slots, cuts, strict=True) if cut is None]:
            _spread(self.group, whole, self._owned, UPDATE)
        if parts := [(slot, cut) for slot, cut in zip(slots, cuts, strict=True) if cut is not None]:
            self._hand_over(parts)

    def _hand_over(self, parts: Sequence[tuple[np.ndarray, tuple[slice, ...]]]) -> None:
        """Let every process have its slice of all replicas' slots, uint8 [replicas, slot] each."""
        rank, own = self.group.rank, self._owned[self.group.rank]
        send = [_in_a_row([slot[own, cut[other]] for slot, cut in parts if other != rank])
                for other in range(self.group.size)]
        wide = sum(cut[rank].stop - cut[rank].start for _, cut in parts)
        counts = [0 if theirs == own else theirs.stop - theirs.start for theirs in self._owned]
        found = self.group.alltoall(send, [count * wide for count in counts], UPDATE)
        for theirs, count, got in zip(self._owned, counts, found, strict=True):
            at = 0
            for slot, cut in parts if count else ():
                n = cut[rank].stop - cut[rank].start
                slot[theirs, cut[rank]] = got[at:at + count * n].reshape(count, n)
                at += count * n

    def join(self, cuts: Sequence[tuple[slice, ...]], moment: Moment, *sums: np.ndarray) -> None:
        """Let every process have all of sums, uint8 [n] each, of which each has folded its slices."""
        rank = self.group.rank
        sizes = [sum(cut[r].stop - cut[r].start for cut in cuts) for r in range(self.group.size)]
        found = self.group.allgatherv(_in_a_row([total[cut[rank]] for total, cut in zip(sums, cuts, strict=True)]),
                                      sizes, UPDATE)
        for r in range(self.group.size):
            at = 0
            for total, cut in zip(sums, cuts, strict=True) if r != rank else ():
                n = cut[r].stop - cut[r].start
                total[cut[r]] = found[r][at:at + n]
                at += n

    def release(self, moment: Moment) -> None:
        """All have folded a turn's contributions, or read the sums of an update."""
        if self.group.on_one_host:
            self.group.barrier(UPDATE)

    # ---- updates of which each process does its slices

    def settle(self, moment: Moment) -> None:
        """Before an update is written: GivenUp in every process where somebody asked one to end, UpdateFailed where one
        refuses it. Else it is not interrupted until its slices are handed over."""
        if self._said(moment.asked()):
            raise GivenUp
        self._signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def hand_over(self, cuts: Sequence[tuple[slice, ...]], written: bool, last: bool, moment: Moment,
                  *arrays: np.ndarray) -> None:
        """Let every process have all of arrays, uint8 [n] each, of which each has its slices; UpdateFailed where one
        failed before.

        Args:
            written: the update is being written. last: it has been, and counts as done.
        """
        try:
            self._said(written=written, counted=last)
            if self.group.on_one_host:
                self._through_common(cuts, arrays)
            else:
                self.join(cuts, moment, *arrays)
        except BaseException:
            self._go_on()
            raise
        if last:
            self._go_on()

    def _through_common(self, cuts: Sequence[tuple[slice, ...]], arrays: Sequence[np.ndarray]) -> None:
        total = sum(cut[-1].stop for cut in cuts)
        if total > self._common.size:
            found = self.group.common(total)
            assert found is not None, "they are on one host"
            self._common = found
        rank, at = self.group.rank, 0
        pieces = []
        for cut in cuts:
            pieces.append(self._common[at:at + cut[-1].stop])
            at += cut[-1].stop
        for piece, array, cut in zip(pieces, arrays, cuts, strict=True):
            piece[cut[rank]] = array[cut[rank]]
        self.group.barrier(UPDATE)
        for piece, array, cut in zip(pieces, arrays, cuts, strict=True):
            for own in (slice(0, cut[rank].start), slice(cut[rank].stop, cut[-1].stop)):
                array[own] = piece[own]

    def failed(self, names: Sequence[str], tell: bool) -> list[str]:
        """The weights, by name, for which an update fails in any process. tell: it failed here, and the others are
        about to ask."""
        if tell:
            with contextlib.suppress(UpdateFailed):
                self._said(failed=True)
            self._go_on()
        found = self.group.gathered([(np.array([*names], object),)], "the weights of an update that failed")
        return list(dict.fromkeys(str(name) for parts in found if parts for name in parts[0][0]))

    def _said(self, asked: bool = False, failed: bool = False, written: bool = False, counted: bool = False) -> bool:
        """Whether a process was asked to end; UpdateFailed where one has failed."""
        found = self.group.allgather(np.array([asked, failed], np.uint8), UPDATE)
        if found[:, 1].any():
            raise UpdateFailed(written, counted)
        return bool(found[:, 0].any())

    def _go_on(self) -> None:
        """Interrupts are heard again."""
        if self._signals is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._signals)
            self._signals = None

    def agree(self, program: Program, session: Session, arithmetic: str) -> None:
        """OptionError, in every process, where they do not have the same program, the same weights and kernels of the
        same bits."""
        weights = digest_of_all({name: a for name, a in session.lasting().items() if name not in session.parts})
        program_is = program_digest(program) or hashlib.sha256(program.to_text().encode()).hexdigest()
        processor = hashlib.sha256((cpu.PORTABLE
                                    if arithmetic == cpu.PORTABLE else repr(cpu.current())).encode()).hexdigest()
        same(self.group, dict(zip(SIDES, (program_is, weights, VERSION, processor), strict=True)))


def _in_a_row(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """Pieces of bytes one after the other, uint8 [n]; a single one where it lies, if it does so in a row itself."""
    pieces = [piece.reshape(-1) for piece in pieces if piece.size]
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.uint8), *pieces])


def same(group: Communicator, sides: dict[str, str]) -> None:
    """OptionError, in every process, where one of these digests (of at most 64 bytes) is not everywhere the same."""
    send = np.stack([filled_text(digest, 64) for digest in sides.values()])
    found = group.allgather(send, "what they train")
    for rank in range(group.size):
        for side, own, first in zip(sides, found[rank], found[0], strict=True):
            if (own != first).any():
                raise OptionError(f"Process {rank} (on {group.hosts[rank]}) has another {side} than process 0 (on "
                                  f"{group.hosts[0]}): all must train the same.{see('distributed')}")


@contextlib.contextmanager
def compiling(group: Communicator | None) -> Iterator[None]:
    """The first process of a group compiles kernels; the others find them in the cache."""
    if group is not None and not group.is_first:
        group.barrier("kernels")
    yield
    if group is not None and group.is_first:
        group.barrier("kernels")


def joined(group: Communicator, share: ReplicaShare, replicas: int, results: Sequence[np.ndarray]) -> None:
    """Every micro-batch of a call's outputs, [micro-batches, *micro-batch shape] each, in all processes."""
    for array in results:
        owned = [share.micro_batches(replicas, len(array), rank) for rank in range(group.size)]
        if array.size:
            rows = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
            _spread(group, [rows], owned, "the outputs of a call")


def _spread(group: Communicator, tables: Sequence[np.ndarray], owned: Sequence[slice | list[int]], what: str) -> None:
    """Let every process have all rows of tables of bytes [n, ...], of which each has its own (`owned`: by rank)."""
    counts = [len(np.arange(len(tables[0]))[own]) for own in owned]
    send = np.zeros((max(counts), sum(table.shape[1] for table in tables)), np.uint8)
    np.concatenate([table[owned[group.rank]] for table in tables], axis=1, out=send[:counts[group.rank]])
    found = group.allgather(send, what)
    for rank, own in enumerate(owned):
        at = 0
        for table in tables if rank != group.rank else ():
            table[own] = found[rank, :counts[rank], at:at + table.shape[1]]
            at += table.shape[1]
