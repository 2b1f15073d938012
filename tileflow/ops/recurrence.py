"""The steps of recurrent layers, without the product of their inputs, and their gradients: what RNN, GRU and LSTM are made of."""
from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.op import OPS, Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Operand, Stepwise, Window, Work
from ..kernels.dtypes import ELEMENTS
from ..kernels.elementwise.expr import Var, evaluate
from ..kernels.isa.half import stored, summed
from ..kernels.machine.call import Call, Const, In, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.recurrent.forward import forward_leaf, scratch_elements
from ..kernels.recurrent.panels import PanelLayout, padded, panel_width, panels_leaf
from ..kernels.recurrent.rows import RowPass
from ..kernels.recurrent.shared import LEAST, MOST_STEPS, state_elements, step_elements, step_leaf
from ..kernels.recurrent.steps import Steps, most_rows, row_blocks
from ..memory.types import TensorType
from ..system.errors import DataError, ShapeError, TypeMismatchError, UnsupportedError
from .cells import GATES, Activation, Cell, activations
from .functions import applications, functions
from .shape import present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

DIRECTIONS = ("forward", "reverse", "bidirectional")


@dataclass(frozen=True)
class RecurrenceSizes:
    """Sizes of a recurrence and what is there of its optional operands."""

    directions: int
    steps: int
    batch: int
    hidden: int


@dataclass(frozen=True, repr=False)
class Recurrent(Op):
    """Base of the steps and their gradient. The attributes are those of ONNX's operators.

    kind: "RNN", "GRU" or "LSTM".
    layout: 0: steps, then batch; 1: batch, then steps.
    record: the forward pass also writes what the backward pass reads.
    """

    kind: str = "LSTM"
    direction: str = "forward"
    activations: tuple[str, ...] | None = None
    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    clip: float | None = None
    input_forget: int = 0
    linear_before_reset: int = 0
    layout: int = 0
    record: bool = True

    @property
    def directions(self) -> int:
        """1, or 2 where both are run."""
        if self.direction not in DIRECTIONS:
            raise UnsupportedError(f"the direction {self.direction!r}; it must be one of {', '.join(DIRECTIONS)}.")
        return 2 if self.direction == "bidirectional" else 1

    @property
    def is_lstm(self) -> bool:
        return self.kind == "LSTM"

    def cells(self) -> list[Cell]:
        """The cell of each direction."""
        if self.clip is not None and not self.clip > 0:
            raise ShapeError(f"clip is {self.clip}; it must be positive.")
        reset_after = self.kind == "GRU" and self.linear_before_reset != 0
        functions = activations(self.kind, self.directions, self.activations, self.activation_alpha, self.activation_beta, self.clip)
        return [Cell(self.kind, f, self.is_lstm and self.input_forget != 0, reset_after) for f in functions]

    def of(self, d: int, steps: int) -> bool:
        """Whether direction d goes from the last step to the first."""
        return self.direction == "reverse" or d == 1

    def sizes(self, x: TensorType) -> RecurrenceSizes:
        """The sizes, by those of the inputs' share of the gates."""
        d, first, second, wide = x.shape
        steps, batch = (second, first) if self.layout else (first, second)
        return RecurrenceSizes(d, steps, batch, wide // GATES[self.kind])

    def along(self, s: RecurrenceSizes, *last: int) -> tuple[int, ...]:
        """The shape of an array with a row for each direction, step and row of the batch."""
        return (s.directions, *((s.batch, s.steps) if self.layout else (s.steps, s.batch)), *last)

    def output(self, s: RecurrenceSizes) -> tuple[int, ...]:
        """The shape of the states of all steps."""
        return (s.batch, s.steps, s.directions, s.hidden) if self.layout else (s.steps, s.directions, s.batch, s.hidden)

    def state(self, s: RecurrenceSizes) -> tuple[int, ...]:
        """The shape of a state."""
        return (s.batch, s.directions, s.hidden) if self.layout else (s.directions, s.batch, s.hidden)

    def numbers(self, s: RecurrenceSizes, width: int, types: Types, **given: int) -> Steps:
        """What the leaves read; `types` are those of the forward pass's operands."""
        there = dict(zip(("biased", "lengths", "has_h", "has_c", "peepholes"), (int(t is not None) for t in types[2:]), strict=True))
        t, b, d = s.steps, s.batch, s.directions
        rows, blocks = row_blocks(b)
        cell = self.cells()[0]
        lies = dict(x_t=1, x_b=t, x_d=t * b, y_t=d, y_b=t * d, y_d=1, s_b=d, s_d=1) if self.layout else \
            dict(x_t=b, x_b=1, x_d=t * b, y_t=d * b, y_b=1, y_d=b, s_b=1, s_d=b)
        reverse = sum(self.of(i, t) << i for i in range(d))
        return Steps(steps=t, batch=b, n=s.hidden, gates=cell.gates, recorded=cell.recorded, width=width, rows=rows, blocks=blocks, first=0,
                     reverse=reverse, reset_after=int(cell.reset_after), cell=int(self.is_lstm), **lies, **there, **given)

    def cost(self, s: RecurrenceSizes, directions: int, flops: float, cpu: Cpu) -> float:
        """Nanoseconds of the steps in float32: products, at the speed of few rows, and `flops` operations for each hidden unit."""
        units = directions * s.steps * s.hidden
        product = 2.0 * GATES[self.kind] * s.hidden * max(s.batch / cpu.rates.products, 1 / 16.0)
        return units * (product + s.batch * 0.28 * flops / cpu.lanes(4)) + 100.0 * s.steps

    def described(self, inputs: Types, read: str, outputs: Sequence[TensorType], made: str, x: TensorType, passes: Sequence[RowPass],
                  added: bool = False) -> Work:
        """Rows of the batch, directions and units are shared out. `read` and `made` tell how operands lie: vectors of units along the steps (x), as
        outputs (y), as states (s), a number for each row (l), weights of states (r), or vectors of units (v)."""
        s, cell = self.sizes(x), self.cells()[0]
        vectors: dict[int, str] = {cell.gates: "g"}

        def units(count: int) -> Window:
            return Window(vectors.setdefault(count, f"g{count}"), "n", s.hidden)

        def operand(t: TensorType, how: str) -> Operand:
            if how == "x":
                return Operand(("d", *("bt" if self.layout else "tb"), units(t.shape[3] // s.hidden)), t.dtype)
            if how in "vr":
                return Operand(("d", units(t.shape[1] // s.hidden), *(["k"] if how == "r" else [])), t.dtype)
            lies = {"l": ("b",), "y": ("b", "t", "d", "n") if self.layout else ("t", "d", "b", "n"),
                    "s": ("b", "d", "n") if self.layout else ("d", "b", "n")}
            return Operand(lies[how], t.dtype)
        ins = tuple(None if t is None else operand(t, how) for t, how in zip(inputs, read, strict=False))
        outs = tuple(operand(t, how) for t, how in zip(outputs, made, strict=True))
        axes = (Axis("d", s.directions), Axis("b", s.batch), Axis("n", s.hidden), Axis("t", s.steps, "whole"), Axis("k", s.hidden, "whole"),
                *(Axis(name, count, "whole") for count, name in vectors.items()))
        counts = functions(*(e for done in passes for e in done.exprs))
        products = (cell.gates,) if cell.phases == 1 else (1, 2) if added else (2, 1)
        return Stepwise(axes, ins, outs, functions=counts, products=products, added=added, elementwise=applications(counts))

    def groups(self) -> list[tuple[int, int, Cell]]:
        """Directions with the same cell, which are done side by side: the first, how many, the cell."""
        cells = self.cells()
        return [(0, len(cells), cells[0])] if len(set(cells)) == 1 else [(d, 1, cell) for d, cell in enumerate(cells)]

    def order(self, d: int, steps: int) -> range:
        """The steps in the order in which direction d does them."""
        return range(steps - 1, -1, -1) if self.of(d, steps) else range(steps)

    def rows(self, a: np.ndarray, d: int, t: int) -> np.ndarray:
        """The rows [batch, ...] of a direction and step, as a view of an array as `along` has it."""
        return a[d, :, t] if self.layout else a[d, t]

    def output_rows(self, a: np.ndarray, d: int, t: int) -> np.ndarray:
        """Likewise of the outputs."""
        return a[:, t, d] if self.layout else a[t, d]

    def states(self, a: np.ndarray | None, d: int, s: RecurrenceSizes, like: np.ndarray) -> np.ndarray:
        """A copy of a direction's state [batch, hidden]; zeros where there is none."""
        if a is None:
            return np.zeros((s.batch, s.hidden), like.dtype)
        return (a[:, d] if self.layout else a[d]).copy()


def apply(f: Activation, x: np.ndarray) -> np.ndarray:
    """An activation function by its expression."""
    return evaluate(f.value(Var(0, x.dtype.name)), [x])


def result_of(f: Activation, kept: np.ndarray) -> np.ndarray:
    """An activation function's result by what was kept of it."""
    return evaluate(f.result(Var(0, kept.dtype.name)), [kept])


def slope(f: Activation, kept: np.ndarray, g: np.ndarray) -> np.ndarray:
    """g times an activation function's slope, by what was kept of it."""
    return evaluate(f.pulled(Var(0, g.dtype.name), Var(1, g.dtype.name)), [kept, g])


def panel_calls(weights: In, packed: Scratch | Out, dtype: str, matrices: int, layout: PanelLayout,
                cpu: Cpu) -> list[Call]:
    """The calls that lay out the recurrent weights."""
    units = matrices * -(-layout.n // layout.width)
    size = matrices * layout.n * layout.k
    leaf = panels_leaf(dtype, layout.width, cpu)
    return [Call(leaf, (replace(weights, shape=(size,)), packed, layout), units, cost=0.4 * size)]


@op("Recurrence", onnx=False)
class Recurrence(Recurrent):
    """The steps of RNN, GRU or LSTM, given the products of their inputs.

    Inputs: these products x [directions, steps, batch, gates * hidden]; R, B, sequence_lens, initial_h, initial_c and P as ONNX's operators have
    them, all but R optional. With layout 1 x is [directions, batch, steps, gates * hidden].
    Outputs: Y, Y_h, for LSTM Y_c, and with `record` what the backward pass reads of each step: the gates (their arguments, where the functions'
    slopes do not follow from their results) and for LSTM the cell, for GRU with linear_before_reset the state's share of the new state.
    """

    @classmethod
    def samples(cls) -> list[Sample]:
        lengths = ("int32", (2,), 0, 4)
        return [sample((1, 3, 2, 16), (1, 16, 4), (1, 32), None, (1, 2, 4), (1, 2, 4), (1, 12)),
                sample((2, 3, 2, 12), (2, 12, 4), (2, 24), lengths, (2, 2, 4), kind="GRU", direction="bidirectional"),
                sample((1, 2, 3, 12), (1, 12, 4), (1, 24), lengths, kind="GRU", direction="reverse", linear_before_reset=1, layout=1),
                sample((1, 3, 2, 5), (1, 5, 5), kind="RNN", activations=("Softsign",), clip=0.7)]

    def operands(self, types: Types) -> list[TensorType | None]:
        """The operands, those that are missing as None."""
        return [*types, *[None] * (7 - len(types))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, r, b, lengths, h, c, p = self.operands(types)
        x, r = present(x), present(r)
        gates = GATES[self.kind]
        if x.rank != 4 or x.shape[0] != self.directions or x.shape[3] % gates or not x.shape[3]:
            raise ShapeError(f"the products of the inputs are {x}; they must be [{self.directions}, steps, batch, {gates} * hidden].")
        s, cell = self.sizes(x), self.cells()[0]
        wanted = {"R": (r, (s.directions, gates * s.hidden, s.hidden)), "B": (b, (s.directions, 2 * gates * s.hidden)),
                  "initial_h": (h, self.state(s)), "initial_c": (c, self.state(s)), "P": (p, (s.directions, 3 * s.hidden))}
        for name, (t, shape) in wanted.items():
            if t is not None and t.shape != shape:
                raise ShapeError(f"{name} is {t}; beside products of {s.hidden} hidden units, {s.batch} rows and {s.directions} directions it must "
                                 f"be {list(shape)}.")
            if t is not None and (t.dtype != x.dtype or not t.is_float):
                raise TypeMismatchError(f"{name} is {t} and the products of the inputs are {x}; they must have one float type.")
            if t is not None and name in ("initial_c", "P") and not self.is_lstm:
                raise ShapeError(f"{self.kind} takes no {name}.")
        if lengths is not None and (lengths.dtype != "int32" or lengths.shape != (s.batch,)):
            raise ShapeError(f"sequence_lens is {lengths}; it must be int32[{s.batch}], a length for each row of the batch.")
        states = (x.with_shape(self.state(s)),) * (2 if self.is_lstm else 1)
        record = (x.with_shape(self.along(s, cell.recorded * s.hidden)),) if self.record else ()
        return (x.with_shape(self.output(s)), *states, *record)

    def trimmed(self, read: Sequence[bool]) -> Op | None:
        return replace(self, record=False) if self.record and not read[-1] else None

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        lengths, steps = (*inputs, *[None] * 4)[3], present(inputs[0]).shape[2 if self.layout else 1]
        if lengths is not None and (np.any(lengths < 0) or np.any(lengths > steps)):
            raise DataError(f"sequence_lens has lengths outside of 0..{steps}, the steps of the input.")
        return alone(self.turns(0, inputs))

    def turns(self, first: int, inputs: Sequence[np.ndarray | None]) -> Turns:
        """The steps of some directions (from the `first` on), rows and units, which are all that the inputs have but R's columns: those of all
        units. Yields what its units give to all others, the states that R multiplies, and gets those of all units; then returns the outputs."""
        x, r, b, lengths, h0, c0, p = (*inputs, *[None] * (7 - len(inputs)))
        x, r = present(x), present(r)
        s = self.sizes(TensorType(x.dtype.name, x.shape))
        cells, n = self.cells()[first:], s.hidden
        y = np.zeros(self.output(s), x.dtype)
        last = [np.zeros(self.state(s), x.dtype) for _ in range(2)]
        record = np.zeros(self.along(s, cells[0].recorded * n), x.dtype)
        for d, cell in enumerate(cells[:s.directions]):
            h, c = self.states(h0, d, s, x), self.states(c0, d, s, x)
            own, shared = (np.zeros((2, cell.gates * n), x.dtype) if b is None else b[d].reshape(2, -1))
            for t in self.order(first + d, s.steps):
                on = slice(None) if lengths is None else lengths > t
                new, kept = yield from STEPS[self.kind](cell, self.rows(x, d, t)[on], r[d], own, shared, h[on], c[on],
                                                        None if p is None else p[d].reshape(3, n))
                h[on], c[on] = new
                self.output_rows(y, d, t)[on] = new[0]
                self.rows(record, d, t)[on] = np.concatenate(kept, -1)
            for target, found in zip(last, (h, c), strict=True):
                (target[:, d] if self.layout else target[d])[...] = found
        return (y, *last[:2 if self.is_lstm else 1], *([record] if self.record else []))

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, r, bias, lengths, h, c, p = (*inputs, *[None] * (7 - len(inputs)))
        assert x is not None
        assert self.record, "what nobody wanted a gradient of when it was trimmed"
        s, cell = self.sizes(x.type), self.cells()[0]
        d, n, count = s.directions, s.hidden, s.steps * s.batch
        if grads[-1] is not None:
            raise UnsupportedError("The record of a recurrence has no gradient; only its outputs and last states have.")
        found = list(b.emit(OPS["RecurrenceGrad"](**self.attributes()), grads[0], grads[1], grads[2] if self.is_lstm else None, r, lengths, h, c, p,
                            outputs[0], outputs[-1]))
        dx, before, dh = found[:3]
        dc = found[3] if self.is_lstm else None
        dq = found[-1] if cell.reset_after else dx

        def flat(v: Value, size: int) -> Value:
            return b.Reshape(v, shape=(d, count, size), allowzero=1)

        gates, shares, states = flat(dx, cell.gates * n), flat(dq, cell.gates * n), flat(before, n)
        if cell.phases == 2:
            extra = flat(found[-1], n)
            first, last = (b.Slice(shares, starts=(at,), ends=(end,), axes=(2,)) for at, end in ((0, 2 * n), (2 * n, 3 * n)))
            dr = b.Concat(b.FusedMatMul(first, states, transA=1), b.FusedMatMul(last, extra, transA=1), axis=1)
        else:
            dr = b.FusedMatMul(shares, states, transA=1)
        db = None if bias is None else b.Concat(*(b.ReduceSum(g, axes=(1,), keepdims=0) for g in (gates, shares)), axis=1)
        dp = None
        if p is not None:
            cells = b.Slice(flat(outputs[-1], cell.recorded * n), starts=(4 * n,), ends=(5 * n,), axes=(2,))
            parts = [b.Slice(gates, starts=(k * n,), ends=((k + 1) * n,), axes=(2,)) for k in range(3)]
            read = flat(found[-1], n), cells, flat(found[-1], n)
            dp = b.Concat(*(b.ReduceSum(b.Mul(g, v), axes=(1,), keepdims=0) for g, v in zip(parts, read, strict=True)), axis=1)
        return [dx, dr, db, None, h and dh, c and dc, dp][:len(inputs)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, types = present(inputs[0]), self.operands(inputs)
        passes = self.cells()[0].forward(x.dtype, types[2] is not None, types[6] is not None, self.record)
        return self.described(inputs, "xrvlssv", outputs, "y" + "s" * (1 + self.is_lstm) + "x", x, passes) if self.record else \
            self.described(inputs, "xrvlssv", outputs, "y" + "s" * (1 + self.is_lstm), x, passes)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        size = self.packed_elements(inputs, cpu)
        packed = Scratch("panels", (size,), stored(present(inputs[0]).code))
        return [*self.packing(In(1, ()), packed, inputs, cpu), *self.calls(inputs, outputs, packed, cpu)] if size else []

    weights: ClassVar[int] = 1
    """Which input R is."""

    def packed_elements(self, inputs: Types, cpu: Cpu) -> int:
        """Of the recurrent weights in panels; 0: there is nothing to do."""
        x = present(inputs[0])
        s = self.sizes(x)
        return s.directions * GATES[self.kind] * s.hidden * padded(s.hidden, panel_width(most_rows(s.batch), x.code, cpu)) if s.batch else 0

    def packing(self, weights: In, packed: Scratch | Out, inputs: Types, cpu: Cpu) -> list[Call]:
        """The calls that lay R out as `calls` wants it."""
        x = present(inputs[0])
        s = self.sizes(x)
        width = panel_width(most_rows(s.batch), x.code, cpu)
        return panel_calls(weights, packed, x.code, s.directions * GATES[self.kind],
                           PanelLayout(s.hidden, s.hidden, 1, width), cpu)

    def shared(self, s: RecurrenceSizes, types: Types, cost: float, cpu: Cpu) -> bool:
        """Whether the units of a step are shared out: of one row and direction, whose steps take long enough, and are
        not too many rows of a table."""
        x = present(types[0])
        alone = s.batch == s.directions == self.cells()[0].phases == 1 and types[3] is None and not x.is_half
        return (alone and 0 < s.steps <= MOST_STEPS and cost >= s.steps * LEAST
                and s.hidden > panel_width(1, x.code, cpu))

    def calls(self, inputs: Types, outputs: Sequence[TensorType], packed: In | Scratch, cpu: Cpu) -> list[Call]:
        """The steps, by R in panels."""
        types = self.operands(inputs)
        x = present(types[0])
        s, dtype = self.sizes(x), x.code
        rows = most_rows(s.batch)
        width = panel_width(rows, dtype, cpu)
        lengths = Const.of([0], "i4") if types[3] is None else In(3, (s.batch,))
        given = [In(0, (x.size,)) if t is None else In(i, (t.size,)) for i, t in enumerate(types)]
        made = [Out(i, (t.size,)) for i, t in enumerate(outputs)]
        results = (made[0], made[1], made[2] if self.is_lstm else made[1], made[-1])
        numbers = self.numbers(s, width, types, record=int(self.record))
        found = []
        for first, count, cell in self.groups():
            passes = cell.forward(ELEMENTS[summed(dtype)].name, types[2] is not None, types[6] is not None, self.record,
                                  x.dtype if x.is_half else "")
            cost = self.cost(s, count, sum(p.flops for p in passes), cpu) * x.itemsize / 4
            if self.shared(s, types, cost, cpu):
                state = Scratch("states", (state_elements(s.hidden, cell.gates),), dtype)
                own = Scratch("rows", (step_elements(s.hidden, cell.gates, width),), dtype)
                one, = passes
                read = (given[0], packed, given[2], *given[4:7])
                found += [Call(step_leaf(dtype, one), (*read, *results, state, own, numbers, k, *one.coefficients),
                               -(-s.hidden // width), cost=cost / s.steps) for k in range(s.steps)]
                continue
            scratch = Scratch("rows", (scratch_elements(rows, s.hidden, cell.gates, width, dtype),), summed(dtype))
            args = (given[0], packed, given[2], lengths, *given[4:7], *results, scratch, replace(numbers, first=first),
                    *(c for p in passes for c in p.coefficients))
            found.append(Call(forward_leaf(dtype, passes), args, count * numbers.blocks, cost=cost))
        return found


Turns = Generator[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]
"""Steps that yield what other units need of these and get what these need of all, and return the outputs."""


def alone(turns: Turns) -> tuple[np.ndarray, ...]:
    """The outputs where the units are all there are."""
    try:
        given = next(turns)
        while True:
            given = turns.send(given)
    except StopIteration as end:
        found: tuple[np.ndarray, ...] = end.value
        return found


Step = Generator[np.ndarray, np.ndarray, tuple[tuple[np.ndarray, np.ndarray], list[np.ndarray]]]
"""The new states, and the record."""


def _rnn(cell: Cell, x: np.ndarray, r: np.ndarray, own: np.ndarray, shared: np.ndarray, h: np.ndarray, c: np.ndarray, p: np.ndarray | None) -> Step:
    f = cell.functions[0]
    at = x + own + shared + (yield h) @ r.T
    new = apply(f, at)
    return (new, c), [new if f.by_result else at]


def _lstm(cell: Cell, x: np.ndarray, r: np.ndarray, own: np.ndarray, shared: np.ndarray, h: np.ndarray, c: np.ndarray, p: np.ndarray | None) -> Step:
    f, g, last = cell.functions
    at_i, at_o, at_f, at_g = np.split(x + own + shared + (yield h) @ r.T, 4, -1)
    if p is not None:
        at_i, at_f = at_i + p[0] * c, at_f + p[2] * c
    i, new = apply(f, at_i), apply(g, at_g)
    forget = 1 - i if cell.coupled else apply(f, at_f)
    state = forget * c + i * new
    if p is not None:
        at_o = at_o + p[1] * state
    o = apply(f, at_o)
    kept = [y if a.by_result else at for a, at, y in ((f, at_i, i), (f, at_o, o), (f, at_f, forget), (g, at_g, new))]
    return (o * apply(last.unlimited, state), state), [*kept, state]


def _gru(cell: Cell, x: np.ndarray, r: np.ndarray, own: np.ndarray, shared: np.ndarray, h: np.ndarray, c: np.ndarray, p: np.ndarray | None) -> Step:
    f, g = cell.functions
    n = h.shape[1]
    every = yield h
    at = (x + own + shared)[:, :2 * n] + every @ r[:2 * n].T
    gates = apply(f, at)
    z, reset = np.split(gates, 2, -1)
    own, shared = own[2 * n:], shared[2 * n:]
    share = (every if cell.reset_after else (yield reset * h)) @ r[2 * n:].T + shared
    at_n = x[:, 2 * n:] + own + (reset * share if cell.reset_after else share)
    new = apply(g, at_n)
    kept = [gates if f.by_result else at, new if g.by_result else at_n]
    return ((1 - z) * new + z * h, c), [*kept, *([share] if cell.reset_after else [])]


STEPS: dict[str, Callable[..., Step]] = {"RNN": _rnn, "LSTM": _lstm, "GRU": _gru}
