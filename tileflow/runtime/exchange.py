"""What processes that train together exchange while they compute: contributions of each turn, then results of calls."""
from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..collective import Communicator, current
from ..kernels.isa import cpu
from ..kernels.machine.host import GivenUp, Moment
from ..options.options import Options
from ..program.dealing import Share
from ..state import Session
from ..system.errors import OptionError, see
from ..system.version import VERSION
from .image_key import program_digest

if TYPE_CHECKING:
    from ..program.program import Program

UPDATE = "the contributions of an update"
SIDES = ("program (other files, options or versions)", "set of weights (other seeds or files)", "version of tileflow", "kind of processor")


def share_of(group: Communicator | None, replicas: int) -> Share | None:
    """Which of a training's replicas are this process's; None: all, for it is alone, or there are fewer than processes."""
    share = None if group is None else Share(group.rank, group.size)
    return share if share is not None and share.deals(replicas) else None


def check_replicas(options: Options) -> None:
    """OptionError where there are fewer replicas than processes."""
    group = current()
    if group is not None and options.replication_factor < group.size:
        raise OptionError(f"{group.size} processes train together, and replication_factor={options.replication_factor} has no replica for each: set "
                          f"replication_factor to {group.size} or more (the weights are those of one process with as many).{see('distributed')}")


class Exchanging:
    """The HOST rows of one process's program.

    Where processes have memory in common, contributions lie there and nothing is copied; else each gets those of the others.
    """

    def __init__(self, group: Communicator, share: Share, replicas: int) -> None:
        self.group, self._replicas = group, replicas
        owned = [share.of(replicas, rank) for rank in range(share.size)]
        self._owned = [slice(own.start, own.stop) for own in owned]

    def gather(self, moment: Moment, *stashes: np.ndarray) -> None:
        """All replicas' contributions of a turn, each stash uint8 [replicas * slot]; GivenUp in every process where somebody asked one of them to
        end."""
        if self.group.any(moment.asked(), UPDATE):
            raise GivenUp
        if self.group.on_one_host:
            return
        _spread(self.group, [stash.reshape(self._replicas, -1) for stash in stashes], self._owned, UPDATE)

    def release(self, moment: Moment) -> None:
        """All have folded a turn's contributions."""
        if self.group.on_one_host:
            self.group.barrier(UPDATE)

    def agree(self, program: Program, session: Session, arithmetic: str) -> None:
        """OptionError, in every process, where they do not have the same program, the same weights and kernels of the same bits."""
        from ..program.writing import digest_of_all  # which loads the graph; what is read from an Image is not dealt
        weights = digest_of_all(session.lasting())
        program_is = program_digest(program) or hashlib.sha256(program.to_text().encode()).hexdigest()
        processor = hashlib.sha256((cpu.PORTABLE if arithmetic == cpu.PORTABLE else repr(cpu.current())).encode()).hexdigest()
        same(self.group, dict(zip(SIDES, (program_is, weights, VERSION, processor), strict=True)))


def same(group: Communicator, sides: dict[str, str]) -> None:
    """OptionError, in every process, where one of these digests (of at most 64 bytes) is not everywhere the same."""
    send = np.zeros((len(sides), 64), np.uint8)
    for row, digest in zip(send, sides.values(), strict=True):
        row[:len(digest)] = np.frombuffer(digest.encode(), np.uint8)[:64]
    found = group.allgather(send, "what they train")
    for rank in range(group.size):
        for side, own, first in zip(sides, found[rank], found[0], strict=True):
            if (own != first).any():
                raise OptionError(f"Process {rank} (on {group.hosts[rank]}) has another {side} than process 0 (on {group.hosts[0]}): all must train "
                                  f"the same.{see('distributed')}")


@contextlib.contextmanager
def compiling(group: Communicator | None) -> Iterator[None]:
    """The first process of a group compiles kernels; the others find them in the cache."""
    if group is not None and not group.is_first:
        group.barrier("kernels")
    yield
    if group is not None and group.is_first:
        group.barrier("kernels")


def joined(group: Communicator, share: Share, replicas: int, results: Sequence[np.ndarray]) -> None:
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
