"""The engine: a bound Plan that runs whole calls in the native driver. Whoever calls it has the session's turn."""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import TrainingError
from ..graph import Node, TensorType, Value
from ..kernels.machine import driver
from ..kernels.machine.driver import ADVANCE, HOLD, LOOP, PATCH, WAVE
from ..lower.memory import room
from ..lower.plan import Plan, user_outputs
from ..lower.rows import Place, Row
from . import upkeep
from .binding import Blocks, Bound, Moving, Patches, bind, call_row
from .failure import bad_gradient, failed_leaf, lost, overflow
from .ports import Ports
from .session import Session, aligned

SLICE_NS = 20_000_000
"""The driver gives Python the word about this often: the reaction time to Ctrl-C and the grain of progress."""
HYPER = "\0hyper-parameters"
"""What the hyper-parameters' memory is called among the inputs and outputs: a name that no tensor has."""


@dataclass
class Lane:
    """One micro-batch's own memory, blocks and table."""

    arena: np.ndarray
    blocks: Blocks
    bound: list[Bound]
    table: np.ndarray
    patches: Patches


class Engine:
    """Runs one Plan on one Session.

    A call consumes `batching.rows` rows of every input. Weights change only in whole updates: when a call is interrupted
    (an exception between two slices) or fails, the session stands as after the last whole update, and `session.updates`
    says how many were done.
    """

    def __init__(self, plan: Plan, session: Session, final_only: frozenset[str] = frozenset(), seed: int = 0) -> None:
        """`final_only` names the outputs of which only the call's last micro-batch is wanted; `seed` is that of random streams."""
        self.plan, self.session, self.program, self.seed = plan, session, plan.program, seed
        self.batching = plan.program.batching
        self.micro = plan.program.micro
        self.outputs = self.micro.outputs[:user_outputs(plan.program)]
        self._final = final_only
        self._seen_version = -1
        self._scalars = [s for s in plan.program.update.states if s.kind == "scalar"]
        self._scalar_memory = np.zeros((self.batching.device_iterations, max(1, len(self._scalars))), np.float64)
        self._constants = {v: self._constant(a) for g in plan.program.graphs for v, a in g.constants.items()}
        self._pending = {s.name: aligned(room(s.input.type)) for s in upkeep.statistics(plan.program)}
        self._arenas = {"packed": aligned(plan.prologue.arena_bytes), "fold": aligned(plan.fold.arena_bytes),
                        "check": aligned(plan.check.arena_bytes), "update": aligned(plan.update.arena_bytes)}
        self._lanes = [self._make_lane() for _ in range(plan.lanes)]
        self._control_memory = np.zeros(driver.CONTROL_WORDS, np.int64)
        self._control, self._control_address = self._control_memory.data, int(self._control_memory.ctypes.data)
        self._ports = Ports(self.program.inputs, self.batching.micro_batches, [(v, self.slots(v)) for v in self.outputs])
        self.completed = self._first_update = 0
        self._workers = plan.workers
        self._assemble()
        self._set_bases({**self._ports.fixed(), HYPER: self.scalars_address}, 0)

    # ---- memory

    def _constant(self, array: np.ndarray) -> np.ndarray:
        memory = aligned(array.nbytes)
        memory[:array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return memory

    def resolve(self, lane: np.ndarray | None) -> Callable[[Place], int | Moving]:
        """What gives a place its address; `lane` is the arena of the micro-batch that it belongs to."""
        types = {v.name: v for v in [*self.program.inputs, *self.outputs]}

        def resolve(place: Place) -> int | Moving:
            kind, name = place.region
            if kind == "constant":
                return int(self._constants[name].ctypes.data) + place.offset
            if kind == "pending":
                return int(self._pending[name].ctypes.data) + place.offset
            if kind == "state":
                for i, s in enumerate(self._scalars):
                    if s.name == name:
                        return Moving(HYPER, 8 * self._scalar_memory.shape[1], self.batching.device_iterations, 8 * i)
                return int(self.session[name].ctypes.data) + place.offset
            if kind == "io":
                value = types[name]
                ring = self.plan.lanes if name in self._final else self.batching.micro_batches
                return Moving(name, value.type.nbytes, ring, place.offset)
            assert kind == "arena", kind
            if name == "micro":
                assert lane is not None
                return int(lane.ctypes.data) + place.offset
            return int(self._arenas[name].ctypes.data) + place.offset
        return resolve

    def _make_lane(self) -> Lane:
        arena = aligned(self.plan.micro.arena_bytes)
        blocks = Blocks(seed=self.seed)
        bound = bind(self.plan.micro.rows, self.resolve(arena), _nowhere)
        starts = [blocks.add(b) for b in bound]
        blocks.seal()
        table = np.array([call_row(b, blocks.address(s), self.plan.lanes == 1) for b, s in zip(bound, starts, strict=True)],
                         np.int64).reshape(-1, driver.ROW_WORDS)
        return Lane(arena, blocks, bound, table, Patches(blocks, blocks.moving))

    # ---- the table

    def _assemble(self) -> None:
        """Lay out the driver's table of a whole call."""
        self._blocks = Blocks(seed=self.seed)
        self._rows: list[list[int]] = []
        self._owners: list[tuple[Node | None, int]] = []  # whose row it is, micro-batches ahead of the counter
        self._pieces: list[tuple[int, int]] = []          # (row, word index): block addresses to fill once sealed
        self._gradient_rows = self._check_rows = self._update_rows = range(0)
        self._counters = np.ones(4, np.int64)
        self._descriptors = np.zeros((max(1, len(self._lanes)), driver.LANE_WORDS), np.int64)
        for d, lane in zip(self._descriptors, self._lanes, strict=True):
            d[:5] = lane.table.ctypes.data, len(lane.table), 0, lane.patches.address, lane.patches.count
        start = len(self._rows)
        iteration_patch = len(self._rows)
        self._control_row(PATCH, n=0, grain=driver.ITERATION)
        training = self.program.training
        if training:
            self._calls(upkeep.begin(self.plan))
        self._micro_steps()
        if training:
            self._gradient_rows = self._calls(upkeep.gradient_checks(self.plan))
            self._check_rows = self._calls(self.plan.check.rows)
            self._control_row(HOLD, n=1)
            self._update_rows = self._calls(self.plan.update.rows)
            self._calls(upkeep.commit(self.plan))
            self._calls(self.plan.prologue.rows)
        self._control_row(ADVANCE, n=1, grain=driver.ITERATION)
        if training:
            self._control_row(HOLD, n=0)
            self._control_row(LOOP, n=self.batching.device_iterations, block=self._counter(0), target=start)
        prologue_from = len(self._rows)
        if self.plan.prologue.rows:
            self._calls(self.plan.prologue.rows)
        self._blocks.seal()
        for row, word in self._pieces:
            self._rows[row][2] = self._blocks.address(word)
        self._iteration_patches = Patches(self._blocks, self._blocks.moving)
        self._rows[iteration_patch][2], self._rows[iteration_patch][3] = self._iteration_patches.address, self._iteration_patches.count
        table = np.array(self._rows, np.int64).reshape(-1, driver.ROW_WORDS)
        self.table, self.prologue_table = table[:prologue_from].copy(), table[prologue_from:].copy()
        """The rows of a call, and of what depends on weights only; `drive` runs them with the addresses of the last `run`."""
        self._address, self._length = int(self.table.ctypes.data), len(self.table)
        self._loops = [row[3] for row in self._rows if row[0] == LOOP and row[2] == self._counter(1)]

    def _counter(self, index: int) -> int:
        return int(self._counters.ctypes.data + 8 * index)

    def _control_row(self, kind: int, n: int = 0, grain: int = 0, block: int = 0, target: int = 0) -> None:
        self._rows.append([kind, 0, block, n, grain, target, 0, 0])
        self._owners.append((None, 0))

    def bind(self, rows: list[Row], lane: np.ndarray) -> list[Bound]:
        """Rows of everything but the micro-step, with addresses; equal updates of neighbours are one. `lane`: as for `resolve`."""
        return bind(rows, self.resolve(lane), self._settled)

    def _settled(self, place: Place) -> bool:
        """States, and what micro-steps leave for the update, have memory of their own; the padding between them is always zero."""
        kind, name = place.region
        return kind in ("state", "pending") or (kind == "arena" and name == "micro" and place.offset < self.plan.micro.kept_bytes)

    def _calls(self, rows: list[Row], lane: int = 0) -> range:
        """Rows that run once for all lanes, or for what one lane's micro-batch left; returns where they are in the table."""
        first = len(self._rows)
        for bound in self.bind(rows, self._lanes[lane].arena):
            self._pieces.append((len(self._rows), self._blocks.add(bound)))
            self._rows.append(call_row(bound, 0, self.plan.workers > 1))
            self._owners.append((bound.row.node, lane))
        return range(first, len(self._rows))

    def _micro_steps(self) -> None:
        """One update's micro-batches: waves of lanes, or one at a time with its calls split over the workers."""
        count = self.batching.gradient_accumulation if self.program.training else self.batching.micro_batches
        if self.plan.lanes == 1:
            again = len(self._rows)
            lane = self._lanes[0]
            self._control_row(PATCH, n=lane.patches.count, grain=driver.MICRO, block=lane.patches.address)
            for row, bound in zip(lane.table.tolist(), lane.bound, strict=True):
                self._rows.append(row)
                self._owners.append((bound.row.node, 0))
            self._fold(0)
            self._control_row(ADVANCE, n=1, grain=driver.MICRO)
            if count > 1:
                self._control_row(LOOP, n=count, block=self._counter(1), target=again)
                self._counters[1] = count
            return
        full, rest = divmod(count, self.plan.lanes)
        if full:
            again = len(self._rows)
            self._wave(self.plan.lanes)
            if full > 1:
                self._control_row(LOOP, n=full, block=self._counter(1), target=again)
                self._counters[1] = full
        if rest:
            self._wave(rest)

    def _wave(self, lanes: int) -> None:
        self._control_row(WAVE, n=lanes, block=int(self._descriptors.ctypes.data))
        for lane in range(lanes):
            self._fold(lane)
        self._control_row(ADVANCE, n=lanes, grain=driver.MICRO)

    def _fold(self, lane: int) -> None:
        """After a micro-batch, in global order: refuse a loss that is not finite, add its contributions."""
        if not self.program.training:
            return
        self._calls([upkeep.loss_check(self.plan)], lane)
        self._calls(self.plan.fold.rows, lane)

    # ---- running

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
            stop: asked about every 20 ms; once true the call ends early, after its last whole update.

        Returns:
            in the order of `outputs`: [micro-batches of the call, *micro-batch shape], or for a `final_only` output one per lane slot. What
            a call that ended early did not compute is zero.

        Raises:
            TrainingError: a loss that is not finite or a label out of range; weights stand as after the last whole update.
            WeightsLostError: a weight that an update wrote is not finite.
        """
        self._workers = driver.workers(self.plan.workers)
        moved = self._ports.take(arrays)
        results = self._ports.open(moved, clear=stop is not None or first_update > 0)
        self._first_update = first_update
        first_micro = first_update * self.batching.gradient_accumulation
        self._set_bases(moved, self.session.micro_batches - first_micro)
        if scalars is not None:
            for i in range(first_update, self.batching.device_iterations):
                self.set_scalars(i, scalars(self.session.updates + i - first_update))
        if self._seen_version != self.session.version and len(self.prologue_table):
            self.drive(self.prologue_table, first=len(self.table))
        self._control[driver.MICRO], self._control[driver.ITERATION] = first_micro, first_update
        self._counters[0] = self.batching.device_iterations - first_update
        try:
            self.drive(self.table, stop)
        finally:
            self._finish(first_update)
        return self._ports.give(results)

    def _set_bases(self, addresses: Mapping[str, int], micro: int) -> None:
        for lane in self._lanes:
            lane.patches.set_bases(addresses, micro)
        self._iteration_patches.set_bases(addresses, 0)

    @property
    def scalars_address(self) -> int:
        """Where the optimizer's variable hyper-parameters lie: the base of what moves by `HYPER`."""
        return int(self._scalar_memory.ctypes.data)

    def set_scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """The optimizer's variable hyper-parameters, by name, for one update of a call."""
        for k, s in enumerate(self._scalars):
            self._scalar_memory[iteration, k] = values[s.name.removeprefix("optimizer.")]

    def slots(self, value: Value) -> int:
        """The micro-batches that a call keeps of an output."""
        return self.plan.lanes if value.name in self._final else self.batching.micro_batches

    def _finish(self, first_update: int) -> None:
        """Count what was done; forget what was half done."""
        self.completed = self._control[driver.ITERATION]
        if self.program.training:
            done = self.completed - first_update
            self.session.updates += done
            self.session.micro_batches += done * self.batching.gradient_accumulation
            if done:
                self.session.version += 1
        self._seen_version = self.session.version
        self._descriptors[:, 2] = 0
        for count in self._loops:
            self._counters[1] = count
        self._control[driver.HELD] = 0

    def drive(self, table: np.ndarray, stop: Callable[[], bool] | None = None, first: int = 0) -> None:
        """Run a table, whose rows are those of the whole call from `first` on, in slices; between two slices Python handles signals.

        Raises:
            TrainingError: a row failed.
        """
        control, run, workers, pc = self._control, driver.drive(), self._workers, 0
        address, length = (self._address, self._length) if table is self.table else (int(table.ctypes.data), len(table))
        control[driver.STATUS] = 0
        while pc >= 0:
            control[driver.DEADLINE] = time.monotonic_ns() + SLICE_NS
            pc = run(address, length, pc, workers, self._control_address)
            if control[driver.STATUS]:
                raise self._failure(control[driver.STATUS], first + pc)
            if stop is not None and stop():
                return

    def _failure(self, status: int, pc: int) -> TrainingError:
        """The sentence for a leaf's status."""
        update = self.session.updates + self._control[driver.ITERATION] - self._first_update
        if pc in self._gradient_rows:
            return bad_gradient(self._bad_gradients(), update)
        if pc in self._check_rows:
            return overflow(self._refused(), update)
        if pc in self._update_rows:
            return lost(self._lost(), update)
        node, ahead = self._owners[pc]
        micro = self._control[driver.MICRO] + ahead
        if self._rows[pc][0] == WAVE:
            i = int(np.flatnonzero(self._descriptors[:, 5])[0])
            node, micro = self._lanes[i].bound[int(self._descriptors[i, 2])].row.node, micro + i
            status = int(self._descriptors[i, 5])
            self._descriptors[:, 5] = 0
        update = self.session.updates + micro // self.batching.gradient_accumulation - self._first_update
        where = f"micro-batch {micro} of the call (update {update})" if self.program.training else f"micro-batch {micro} of the call"
        return failed_leaf(status, node, where)

    def _bad_gradients(self) -> list[str]:
        """Weights whose gradient is not finite."""
        def found(t: TensorType, place: Place) -> np.ndarray:
            if place.region[0] == "state":
                return self.session[place.region[1]]
            return self._lanes[0].arena[place.offset:place.offset + t.nbytes].view(t.numpy)
        return [name.removesuffix(".grad") for name, t, place in upkeep.gradients(self.plan) if not np.isfinite(found(t, place)).all()]

    def _refused(self) -> list[str]:
        """Weights that the check of an update refuses: its rows once more, one by one and to the end."""
        blocks, names = Blocks(seed=self.seed), []
        bound = [self.bind([row], self._lanes[0].arena)[0] for row in self.plan.check.rows]
        starts = [blocks.add(b) for b in bound]
        blocks.seal()
        patches = Patches(blocks, blocks.moving)
        patches.set_bases({HYPER: self.scalars_address}, 0)
        for b, start in zip(bound, starts, strict=True):
            table = np.array([[PATCH, 0, patches.address, patches.count, driver.ITERATION, 0, 0, 0], call_row(b, blocks.address(start), False)])
            self._control[driver.STATUS] = 0
            driver.drive()(table.ctypes.data, len(table), 0, 1, self._control_address)
            if self._control[driver.STATUS] and b.row.node is not None:
                names.append(str(b.row.node.origin))
        return names

    def _lost(self) -> list[str]:
        """Weights that are not finite."""
        self.session.version += 1
        return [n for n in self.session.names("parameter") if not np.isfinite(self.session[n]).all()]


def _nowhere(_place: Place) -> bool:
    return False
