"""The engine: an Image that runs whole calls in the native driver. Whoever calls it has the session's turn."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..kernels.machine.boards import ROW_WORDS
from ..kernels.machine.host import GivenUp, UpdateFailed
from ..kernels.machine.job import run
from ..kernels.machine.status import NAN, NOT_FINITE
from ..kernels.machine.table import Failure, Table
from ..state import Session
from ..system.errors import TrainingError
from ..system.spans import shows_rows
from . import timeline
from .failure import anomaly, bad_gradient, failed_leaf, lost, overflow
from .hosts import HostedRow, Sayings, bound
from .image import DONE, DUE, LAST, MICRO, STREAMS, UPDATE, Image, Owner, RowTable, Span
from .memory import EngineMemory, lies_in
from .ports import Ports

SLICE_NS = 20_000_000
"""The driver gives Python the word about this often: the reaction time to Ctrl-C and the grain of progress."""


class Engine:
    """Runs one Image on one Session.

    A call consumes a whole call's rows of every input. Weights change only in whole updates: when a call is interrupted
    (an exception between two slices) or fails, the session stands as after the last whole update, and `session.updates`
    says how many were done.
    """

    def __init__(self, image: Image, session: Session, kernels: Sequence[int], seed: int = 0,
                 watched: bool = False, hosts: Sequence[HostedRow] = (),
                 common: Callable[[int], np.ndarray | None] | None = None,
                 failed: Callable[[Sequence[str], bool], list[str]] | None = None) -> None:
        """Args:
            session: has the Image's states, which lie as the Image has them.
            kernels: the addresses of `image.kernels`.
            seed: that of random streams.
            watched: the Image is of a program that detects anomalies.
            hosts: what Python does in it.
            common: of one of several processes: gives bytes that all have in common, or None. A call then ends early
                where its HOST rows agree to.
            failed: of one that does its slices of an update only: takes the weights for which it failed here, and
                whether to tell the others that it has; gives those for which it failed in any.
        """
        assert lies_in(image, session), "the states lie as they did when rows were merged"
        self.image, self.session, self.kernels, self.seed = image, session, kernels, seed
        self._watched = watched
        self.outputs = image.outputs
        self._ports = Ports(image.inputs, image.micro_batches, zip(image.outputs, image.kept, strict=True))
        self.memory = EngineMemory(image, session, kernels, seed, common)
        self._together, self._failed = common is not None, failed
        self._stop: Callable[[], bool] | None = None
        self.table = Table.of(self._rows(task) for task in image.tasks)
        self._words, self._names = self.memory.words.data, image.names
        self._sayings = Sayings()
        self.table.hosts += [bound(row, self._words.__getitem__, self._moment, self._sayings, self._asked)
                             for row in hosts]
        self.completed = self._first_update = 0
        self.repeats = 0
        """How often a loop has run this program in the model's call at hand: random streams count it."""
        self.not_finite: tuple[int, str] | None = None
        """The micro-batch of the last call at which a loss was not finite, and what messages call it."""
        self.alike = False
        """What ended the last call ended it in every process of a group: it follows from what all of them have."""
        self._seen_version: int | None = None
        self._writes = any(s.kind == "pending" for s in image.segments)
        self._scalars = {role: i for i, role in enumerate(image.scalars.values())}
        self._point(self._ports.fixed())

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        return self.memory.nbytes

    def _moment(self, ahead: int) -> tuple[int, int]:
        """The update under way, and the micro-batch of the call that is so many ahead of the counter."""
        micro = self._words[MICRO] + ahead
        updates = micro // self.image.per_update - self._first_update if self.image.training else 0
        return self.session.updates + updates, micro

    def _asked(self) -> bool:
        """Somebody has asked the call at hand to end early."""
        return self._stop is not None and self._stop()

    def _rows(self, rows: RowTable) -> tuple[np.ndarray, list[Owner | None]]:
        """A table's rows and their owners."""
        words = self.memory.words[rows.first:rows.first + ROW_WORDS * rows.count]
        return words.reshape(-1, ROW_WORDS), [None if i < 0 else self.image.owners[i] for i in rows.owners]

    def run(self, inputs: Mapping[str, np.ndarray], *, scalars: Callable[[int], Mapping[str, float]] | None = None,
            first_update: int = 0, last_update: int | None = None,
            stop: Callable[[], bool] | None = None) -> dict[str, np.ndarray]:
        """`call` with inputs and outputs by name."""
        arrays = [inputs[v.name] for v in self.image.inputs]
        found = self.call(arrays, scalars=scalars, first_update=first_update, last_update=last_update, stop=stop)
        return {v.name: a for v, a in zip(self.outputs, found, strict=True)}

    def call(self, arrays: Sequence[np.ndarray], *, scalars: Callable[[int], Mapping[str, float]] | None = None,
             first_update: int = 0,
             last_update: int | None = None, stop: Callable[[], bool] | None = None) -> list[np.ndarray]:
        """Run a call. `completed` then says how many of its updates are done.

        Args:
            arrays: in the order of `image.inputs`, each of its element type, [rows, ...], C-contiguous.
            scalars: the optimizer's variable hyper-parameters at an update index (session.updates counts).
            first_update: skip the updates of this call that were done before (resuming in the middle of a call).
            last_update: end after so many updates of this call, those skipped included; None: all.
            stop: asked about every 20 ms and at the end; once true the call ends early, after its last whole update.

        Returns:
            in the order of `outputs`: [`image.kept` micro-batches, *micro-batch shape] each. What a call that ended
            early did not compute is zero.

        Raises:
            TrainingError: a loss that is not finite or a label out of range; weights stand as after the last whole
                update.
            WeightsLostError: a weight that an update wrote is not finite.
        """
        words, session = self._words, self.session
        moved = self._ports.take(arrays)
        last = self.image.iterations if last_update is None else last_update
        results = self._ports.open(moved, clear=stop is not None or first_update > 0 or last < self.image.iterations)
        self._point(moved)
        self._first_update = first_update
        first_micro = first_update * self.image.per_update
        words[self._names[STREAMS]] = session.micro_batches - first_micro + self.repeats
        words[MICRO], words[UPDATE], words[DONE], words[LAST] = first_micro, first_update, first_update, last
        if scalars is not None:
            for i in range(first_update, last):
                self.set_scalars(i, scalars(session.updates + i - first_update))
        words[DUE] = self._seen_version != session.version
        self._seen_version, self.not_finite, self.alike, whole = None, None, False, False
        self._stop = stop
        try:
            whole = self.drive(None if self._together else stop)
        finally:
            if self.table.hosts:
                self._sayings.tell()
            if not whole:
                self._forget()
            self._count(first_update, whole)
        self.alike = True
        if whole:
            self._seen_version = session.version
        return self._ports.give(results)

    def _point(self, addresses: Mapping[str, int]) -> None:
        """Where arrays of a call lie; others stay where they were."""
        for name, address in addresses.items():
            self._words[self._names[name]] = address

    def _forget(self) -> None:
        """Forget what a call that ended early left half done."""
        for word in self.image.loops:
            self._words[word] = 0

    def set_scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """The optimizer's variable hyper-parameters, by name, for one update of a call."""
        for name, column in self._scalars.items():
            self.memory.hyper[iteration, column] = values[name]

    def used(self, state: str) -> np.ndarray:
        """What a hyper-parameter, by the name of its state, was in each update of the last call; NaN where it is none
        of those that are read."""
        names = list(self.image.scalars)
        if state not in names:
            return np.full(self.image.iterations, np.nan)
        return self.memory.hyper[:, names.index(state)].copy()

    def _count(self, first_update: int, whole: bool) -> None:
        """What was done counts; what a call that trains nothing has written, if it came to its end."""
        if self.image.training:
            self.completed = self._words[UPDATE]
            done = self.completed - first_update
            self.session.updates += done
            self.session.micro_batches += done * self.image.per_update
            if done:
                self.session.version += 1
                self.session.cleared.clear()
        elif whole and self._writes:
            self.session.version += 1

    def drive(self, stop: Callable[[], bool] | None = None) -> bool:
        """Run the table with the addresses of the last `call`, in slices; between two slices Python handles signals.
        Whether it came to its end.

        Raises:
            TrainingError: a row failed.
        """
        seen = timeline.Timeline(self.table) if shows_rows() else None
        try:
            ended = run(self.table, self.image.workers, slice_ns=timeline.SLICE_NS if seen else SLICE_NS, stop=stop,
                        seen=seen)
        except GivenUp:
            return False
        except UpdateFailed as error:
            self._words[UPDATE] -= error.counted
            raise self._update_failed(error.written, False) from None
        if isinstance(ended, Failure):
            raise self._failure(ended.status, ended.owner)
        return ended

    # ---- failures

    def _failure(self, status: int, owner: Owner) -> TrainingError:
        """The sentence for a leaf's status."""
        self.alike = owner.stage != "step" or (status == NOT_FINITE and not owner.part)       # losses are everybody's
        update = self.session.updates + self._words[UPDATE] - self._first_update
        if owner.stage == "gradients":
            return bad_gradient(self._bad_gradients(), update, self._watched)
        if owner.stage in ("check", "update"):
            return self._update_failed(owner.stage == "update", True)
        micro = self._words[MICRO] + owner.ahead
        update = self.session.updates + micro // self.image.per_update - self._first_update
        where = f"micro-batch {micro} of the call" + (f" (update {update})" if self.image.training else "")
        if owner.judged is not None:
            made = self.memory.bytes_at(owner.judged.seen, micro).view(np.int64)
            return anomaly(owner.judged, "NaN" if made[NAN] else "an infinity", where, self.image.training)
        self.not_finite = (micro, where) if status == NOT_FINITE else None
        return failed_leaf(status, owner, where, self._watched)

    def _update_failed(self, written: bool, here: bool) -> TrainingError:
        """The sentence for an update that would leave weights that are not finite, or has left them; `here`: in this
        process."""
        self.alike = True
        update = self.session.updates + self._words[UPDATE] - self._first_update
        names = self._lost() if written else self._refused()
        if self._failed is not None:
            names = self._failed(names, here)
        return lost(names, update) if written else overflow(names, update)

    def gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """What the last update read of each weight, by name: the live memory."""
        for tensor, state, at in self.image.gradients:
            if state:
                yield tensor.name, self.session[state]
            else:
                found = self.memory.bytes_at(Span(at, tensor.nbytes))
                yield tensor.name, found.view(tensor.numpy).reshape(tensor.shape)

    def _bad_gradients(self) -> list[str]:
        """Weights whose gradient is not finite."""
        return [name for name, array in self.gradients() if not np.isfinite(array).all()]

    def _refused(self) -> list[str]:
        """Weights that the checks of an update refuse: their rows once more, one by one and to the end."""
        names = []
        for rows in self.image.checks:
            found = run(Table.of([self._rows(rows)]), slice_ns=SLICE_NS)
            if isinstance(found, Failure) and found.owner.origin:
                names.append(found.owner.origin)
        return names

    def _lost(self) -> list[str]:
        """Weights that are not finite."""
        self.session.version += 1
        return [n for n in self.session.names("parameter", "replica") if not np.isfinite(self.session[n]).all()]
