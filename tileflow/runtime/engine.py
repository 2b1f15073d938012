"""The engine: a bound Plan that runs whole calls in the native driver. Whoever calls it has the session's turn."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..graph import TensorType, Value
from ..kernels.finite import NAN
from ..kernels.machine.job import run
from ..kernels.machine.status import NOT_FINITE
from ..kernels.machine.table import Failure
from ..lower.anomaly import Judge
from ..lower.plan import Plan
from ..lower.row import Place
from ..memory.alignment import room
from ..program.schedule import atomic
from ..state import Session
from ..system.errors import TrainingError
from . import update_steps
from .arenas import Arenas
from .binding import STREAMS
from .failure import anomaly, bad_gradient, failed_leaf, lost, overflow
from .ports import Ports
from .tables import Owner, Tables

MICRO, UPDATE, DONE, DUE = Tables.MICRO, Tables.UPDATE, Tables.DONE, Tables.DUE
SLICE_NS = 20_000_000
"""The driver gives Python the word about this often: the reaction time to Ctrl-C and the grain of progress."""


class Engine:
    """Runs one Plan on one Session.

    A call consumes `batching.rows` rows of every input. Weights change only in whole updates: when a call is interrupted
    (an exception between two slices) or fails, the session stands as after the last whole update, and `session.updates`
    says how many were done.
    """

    def __init__(self, plan: Plan, session: Session, final_only: frozenset[str] = frozenset(), seed: int = 0, watched: bool = False) -> None:
        """`final_only` names the outputs of which only the call's last micro-batch is wanted; `seed` is that of random streams; `watched` says that
        the plan is one that detects anomalies."""
        self._watched = watched
        self.plan, self.session, self.program, self.seed = plan, session, plan.program, seed
        self.batching = plan.program.batching
        self.outputs = plan.program.outputs
        self._final = final_only
        self._ports = Ports(self.program.inputs, self.batching.micro_batches, [(v, self.slots(v)) for v in self.outputs])
        self.arenas = Arenas(plan, session, {v.name: self.batching.micro_batches for v in self.program.inputs}
                             | {v.name: self.slots(v) for v in self.outputs})
        self.tables = Tables(plan, self.arenas, seed)
        self._words, self._names = self.tables.words.data, self.tables.names
        self.completed = self._first_update = 0
        self.repeats = 0
        """How often a loop has run this program in the model's call at hand: random streams count it."""
        self.not_finite: tuple[int, str] | None = None
        """The micro-batch of the last call at which a loss was not finite, and what messages call it."""
        self._seen_version: int | None = None
        self._workers = plan.workers
        self._scalars = {role: i for i, role in enumerate(self.arenas.scalars.values())}
        self._point(self._ports.fixed())

    def run(self, inputs: Mapping[str, np.ndarray], *, scalars: Callable[[int], Mapping[str, float]] | None = None,
            first_update: int = 0, stop: Callable[[], bool] | None = None) -> dict[str, np.ndarray]:
        """`call` with inputs and outputs by name."""
        found = self.call([inputs[v.name] for v in self.program.inputs], scalars=scalars, first_update=first_update, stop=stop)
        return {v.name: a for v, a in zip(self.outputs, found, strict=True)}

    def call(self, arrays: Sequence[np.ndarray], *, scalars: Callable[[int], Mapping[str, float]] | None = None, first_update: int = 0,
             stop: Callable[[], bool] | None = None) -> list[np.ndarray]:
        """Run a call. `completed` then says how many of its updates are done.

        Args:
            arrays: in the order of `program.inputs`, each of the graph's element type, [rows, ...], C-contiguous.
            scalars: the optimizer's variable hyper-parameters at an update index (session.updates counts).
            first_update: skip the updates of this call that were done before (resuming in the middle of a call).
            stop: asked about every 20 ms and at the end; once true the call ends early, after its last whole update.

        Returns:
            in the order of `outputs`: [micro-batches of the call, *micro-batch shape], or for a `final_only` output one per lane slot. What
            a call that ended early did not compute is zero.

        Raises:
            TrainingError: a loss that is not finite or a label out of range; weights stand as after the last whole update.
            WeightsLostError: a weight that an update wrote is not finite.
        """
        words, session = self._words, self.session
        moved = self._ports.take(arrays)
        results = self._ports.open(moved, clear=stop is not None or first_update > 0)
        self._point(moved)
        self._first_update = first_update
        first_micro = first_update * self.batching.per_update
        words[self._names[STREAMS]] = session.micro_batches - first_micro + self.repeats
        words[MICRO], words[UPDATE], words[DONE] = first_micro, first_update, first_update
        if scalars is not None:
            for i in range(first_update, self.batching.device_iterations):
                self.set_scalars(i, scalars(session.updates + i - first_update))
        words[DUE] = self._seen_version != session.version
        self._seen_version, self.not_finite, whole = None, None, False
        try:
            whole = self.drive(stop)
        finally:
            if not whole:
                self.tables.reset()
            self._count(first_update, whole)
        if whole:
            self._seen_version = session.version
        return self._ports.give(results)

    def _point(self, addresses: Mapping[str, int]) -> None:
        """Where arrays of a call lie; others stay where they were."""
        for name, address in addresses.items():
            self._words[self._names[name]] = address

    def slots(self, value: Value) -> int:
        """The micro-batches that a call keeps of an output."""
        return self.plan.lanes if value.name in self._final else self.batching.micro_batches

    def set_scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """The optimizer's variable hyper-parameters, by name, for one update of a call."""
        for name, column in self._scalars.items():
            self.arenas.hyper[iteration, column] = values[name]

    def used(self, state: str) -> np.ndarray:
        """What a hyper-parameter, by the name of its state, was in each update of the last call; NaN where it is none of those that are read."""
        names = list(self.arenas.scalars)
        return self.arenas.hyper[:, names.index(state)].copy() if state in names else np.full(self.batching.device_iterations, np.nan)

    def _count(self, first_update: int, whole: bool) -> None:
        """What was done counts; what a call that trains nothing has written, if it came to its end."""
        if self.program.training:
            self.completed = self._words[UPDATE]
            done = self.completed - first_update
            self.session.updates += done
            self.session.micro_batches += done * self.batching.per_update
            if done:
                self.session.version += 1
        elif whole and self.arenas.pending:
            self.session.version += 1

    def drive(self, stop: Callable[[], bool] | None = None) -> bool:
        """Run the table with the addresses of the last `call`, in slices; between two slices Python handles signals. Whether it came to its
        end.

        Raises:
            TrainingError: a row failed.
        """
        ended = run(self.tables.table, self._workers, slice_ns=SLICE_NS, stop=stop)
        if isinstance(ended, Failure):
            raise self._failure(ended.status, ended.owner)
        return ended

    # ---- failures

    def _failure(self, status: int, owner: Owner) -> TrainingError:
        """The sentence for a leaf's status."""
        update = self.session.updates + self._words[UPDATE] - self._first_update
        if owner.stage == "gradients":
            return bad_gradient(self._bad_gradients(), update, self._watched)
        if owner.stage == "check":
            return overflow(self._refused(), update)
        if owner.stage == "update":
            return lost(self._lost(), update)
        micro = self._words[MICRO] + owner.ahead
        update = self.session.updates + micro // self.batching.per_update - self._first_update
        where = f"micro-batch {micro} of the call (update {update})" if self.program.training else f"micro-batch {micro} of the call"
        if owner.node is not None and isinstance(owner.node.op, Judge):
            made = self._word_of(owner, owner.node.operands[0])
            return anomaly(owner.node.op.node, owner.node.op.output, "NaN" if made[NAN] else "an infinity", where, self.program.training)
        self.not_finite = (micro, where) if status == NOT_FINITE else None
        return failed_leaf(status, owner.node, where, self._watched)

    def _word_of(self, owner: Owner, value: Value) -> np.ndarray:
        """What a part that failed has in its arena for a value."""
        place = self.plan.parts[owner.part].places[value]
        kind, name = place.region
        if kind == "stash":
            slot = (self._words[MICRO] + owner.ahead) % self.plan.stashes[name]
            return self.arenas.stashes[name][slot * room(name.type):][:value.type.nbytes].view(value.type.numpy)
        arenas = self.arenas.of[name]
        return arenas[owner.ahead if len(arenas) > 1 else 0][place.offset:place.offset + value.type.nbytes].view(value.type.numpy)

    def array(self, t: TensorType, place: Place) -> np.ndarray:
        """What lies at a place of a state or of an arena."""
        kind, name = place.region
        if kind == "state":
            return self.session[name]
        if kind == "stash":                                  # the last micro-batch of an update is the only one
            return self.arenas.stashes[name][place.offset:place.offset + t.nbytes].view(t.numpy)
        return self.arenas.of[name][0][place.offset:place.offset + t.nbytes].view(t.numpy)

    def _bad_gradients(self) -> list[str]:
        """Weights whose gradient is not finite."""
        parts = atomic(self.program.schedule)
        return [name for name, t, place in update_steps.gradients(self.plan, parts) if not np.isfinite(self.array(t, place)).all()]

    def _refused(self) -> list[str]:
        """Weights that the checks of an update refuse: their rows once more, one by one and to the end."""
        names = []
        for row, table in self.tables.checks():
            if isinstance(run(table, slice_ns=SLICE_NS), Failure) and row.node is not None:
                names.append(str(row.node.origin))
        return names

    def _lost(self) -> list[str]:
        """Weights that are not finite."""
        self.session.version += 1
        return [n for n in self.session.names("parameter", "replica") if not np.isfinite(self.session[n]).all()]
