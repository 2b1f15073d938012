"""The gradients of the steps of recurrent layers."""
from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.op import Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Work
from ..kernels.dtypes import ELEMENTS
from ..kernels.elementwise.expr import Var, evaluate
from ..kernels.isa.half import stored, summed
from ..kernels.machine.call import Call, Const, In, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.recurrent.backward import backward_leaf, backward_scratch_elements
from ..kernels.recurrent.panels import PanelLayout, padded, panel_width
from ..kernels.recurrent.steps import most_rows
from ..memory.types import TensorType
from ..system.errors import TypeMismatchError
from .cells import GATES, Cell
from .recurrence import RecurrenceSizes, Recurrent, Turns, alone, apply, panel_calls, result_of, slope
from .shape import check_float, present

if TYPE_CHECKING:
    from ..kernels.isa.cpu import Cpu

GY, GH, GC, R, LENGTHS, H0, C0, P, Y, RECORD = range(10)


@op("RecurrenceGrad", onnx=False)
class RecurrenceGrad(Recurrent):
    """The gradients of Recurrence's steps by those of its outputs.

    Inputs: the gradients of Y, Y_h and Y_c (each may be missing), R, sequence_lens, initial_h, initial_c, P (may be missing), Y, the record.
    Outputs: the gradient of the inputs' products, the state before each step (what R's gradient multiplies it with), the gradient of
    initial_h; for LSTM that of initial_c, with P the cell before each step; for GRU with linear_before_reset the gradient of the state's products,
    without the reset state before each step.
    """

    no_gradient = "it is a gradient itself, and second ones are not had through recurrent layers"

    @classmethod
    def samples(cls) -> list[Sample]:
        lengths = ("int32", (2,), 0, 4)
        return [sample((3, 1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 16, 4), None, (1, 2, 4), (1, 2, 4), (1, 12), (3, 1, 2, 4), (1, 3, 2, 20)),
                sample((3, 2, 2, 4), None, None, (2, 12, 4), lengths, (2, 2, 4), None, None, (3, 2, 2, 4), (2, 3, 2, 12), kind="GRU",
                       direction="bidirectional"),
                sample((2, 3, 1, 4), (2, 1, 4), None, (1, 12, 4), lengths, None, None, None, (2, 3, 1, 4), (1, 2, 3, 16), kind="GRU",
                       direction="reverse", linear_before_reset=1, layout=1),
                sample(None, (1, 2, 5), None, (1, 5, 5), None, None, None, None, (3, 1, 2, 5), (1, 3, 2, 5), kind="RNN",
                       activations=("Softsign",), clip=0.7)]

    def sizes_of(self, types: Types) -> RecurrenceSizes:
        """The sizes by Y."""
        y = present(types[Y])
        if self.layout:
            batch, steps, d, n = y.shape
        else:
            steps, d, batch, n = y.shape
        return RecurrenceSizes(d, steps, batch, n)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        s, y, cell = self.sizes_of(types), present(types[Y]), self.cells()[0]
        check_float(y)
        for t in (*types[:LENGTHS], *types[H0:]):
            if t is not None and t.dtype != y.dtype:
                raise TypeMismatchError(f"the states are {y.dtype} and another input {t.dtype}; they must have one "
                                        "float type.")
        assert s.directions == self.directions, f"{y} beside {self.directions} directions"
        assert present(types[RECORD]).shape == self.along(s, cell.recorded * s.hidden), f"{types[RECORD]} beside {y}"
        assert present(types[R]).shape == (s.directions, cell.gates * s.hidden, s.hidden), f"{types[R]} beside {y}"
        assert all(t is None or t.shape == self.state(s) for t in (*types[GH:R], *types[H0:P])), types
        gates, states = (y.with_shape(self.along(s, size)) for size in (cell.gates * s.hidden, s.hidden))
        start = y.with_shape(self.state(s))
        more = [start] * self.is_lstm + [states] * self.extra(types) + [gates] * cell.reset_after
        return (gates, states, start, *more)

    def extra(self, types: Types) -> bool:
        """Whether one more state before each step is told: a GRU's after its reset, or an LSTM's cell for its peepholes."""
        return self.cells()[0].phases == 2 or types[P] is not None

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        s, cell = self.sizes_of(inputs), self.cells()[0]
        x = present(inputs[Y]).with_shape(self.along(s, cell.gates * s.hidden))
        made = "xxs" + "s" * self.is_lstm + "x" * self.extra(inputs) + "x" * cell.reset_after
        passes = cell.backward(x.dtype, inputs[P] is not None, inputs[GY] is not None)
        return self.described(inputs, "yssrlssvyx", outputs, made, x, passes, added=True)

    # ---- the reference

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return alone(self.turns(0, inputs))

    def turns(self, first: int, inputs: Sequence[np.ndarray | None]) -> Turns:
        """The steps of some directions (from the `first` on), rows and units, which are all that the inputs have but R's columns: those of all
        units. Yields its partial sums for all units, and gets the sums of its own; then returns the outputs."""
        gy, gh, gc, r, lengths, h0, c0, p, y, record = inputs
        y, r, record = present(y), present(r), present(record)
        s = self.sizes_of([None if a is None else TensorType(a.dtype.name, a.shape) for a in inputs])
        cells, n = self.cells()[first:], s.hidden
        dx, dq = (np.zeros(self.along(s, cells[0].gates * n), y.dtype) for _ in range(2))
        before, extra = (np.zeros(self.along(s, n), y.dtype) for _ in range(2))
        starts = [np.zeros(self.state(s), y.dtype) for _ in range(2)]
        for d, cell in enumerate(cells[:s.directions]):
            dh, dc = self.states(gh, d, s, y), self.states(gc, d, s, y)
            order, back = list(self.order(first + d, s.steps)), self.of(first + d, s.steps)
            for t in reversed(order):
                on = np.ones(s.batch, bool) if lengths is None else lengths > t
                edge = np.full(s.batch, t == order[0]) if lengths is None or not back else lengths == t + 1
                other = min(max(t + 1 if back else t - 1, 0), s.steps - 1)
                hp = np.where(edge[:, None], self.states(h0, d, s, y), self.output_rows(y, d, other))[on]
                cp = np.where(edge[:, None], self.states(c0, d, s, y), self.rows(record, d, other)[:, -n:])[on]
                g = dh[on] if gy is None else dh[on] + self.output_rows(gy, d, t)[on]
                kept = np.split(self.rows(record, d, t)[on], cell.recorded, -1)
                new = yield from PULLS[self.kind](cell, g, dc[on], kept, r[d], hp, cp, None if p is None else p[d].reshape(3, n))
                dh[on], dc[on], gates, shares, also = new
                for target, found in zip((dx, dq, before, extra), (gates, shares, hp, also), strict=True):
                    self.rows(target, d, t)[on] = found
            for target, found in zip(starts, (dh, dc), strict=True):
                (target[:, d] if self.layout else target[d])[...] = found
        return (dx, before, starts[0], *starts[1:1 + self.is_lstm], *([extra] if cells[0].phases == 2 or p is not None else []),
                *([dq] if cells[0].reset_after else []))

    # ---- the kernel

    weights: ClassVar[int] = R
    """Which input R is."""

    def packed_elements(self, inputs: Types, cpu: Cpu) -> int:
        """Of the recurrent weights in panels; 0: there is nothing to do."""
        y, s = present(inputs[Y]), self.sizes_of(inputs)
        return s.directions * GATES[self.kind] * s.hidden * padded(s.hidden, panel_width(most_rows(s.batch), y.code, cpu)) if s.batch else 0

    def packing(self, weights: In, packed: Scratch | Out, inputs: Types, cpu: Cpu) -> list[Call]:
        """The calls that lay R out as `calls` wants it."""
        y, s = present(inputs[Y]), self.sizes_of(inputs)
        width = panel_width(most_rows(s.batch), y.code, cpu)
        return panel_calls(weights, packed, y.code, s.directions,
                           PanelLayout(s.hidden, GATES[self.kind] * s.hidden, 0, width), cpu)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        size = self.packed_elements(inputs, cpu)
        packed = Scratch("panels", (size,), stored(present(inputs[Y]).code))
        return [*self.packing(In(R, ()), packed, inputs, cpu), *self.calls(inputs, outputs, packed, cpu)] if size else []

    def calls(self, inputs: Types, outputs: Sequence[TensorType], packed: In | Scratch, cpu: Cpu) -> list[Call]:
        """The steps, by R in panels."""
        y, s = present(inputs[Y]), self.sizes_of(inputs)
        dtype, rows = y.code, most_rows(s.batch)
        width = panel_width(rows, dtype, cpu)
        given = [In(Y, (y.size,)) if t is None else In(i, (t.size,)) for i, t in enumerate(inputs)]
        lengths = Const.of([0], "i4") if inputs[LENGTHS] is None else In(LENGTHS, (s.batch,))
        made = [Out(i, (t.size,)) for i, t in enumerate(outputs)]
        reset_after = self.cells()[0].reset_after
        extra = made[3 + self.is_lstm] if self.extra(inputs) else made[0]
        results = (*made[:3], made[3] if self.is_lstm else made[2], extra, made[-1] if reset_after else made[0])
        types = [None, None, None, inputs[LENGTHS], inputs[H0], inputs[C0], inputs[P]]
        numbers = self.numbers(s, width, types, record=1, **{name: int(inputs[i] is not None) for name, i in
                                                             (("gradient", GY), ("gradient_h", GH), ("gradient_c", GC))})
        found = []
        for first, count, cell in self.groups():
            passes = cell.backward(ELEMENTS[summed(dtype)].name, inputs[P] is not None, inputs[GY] is not None,
                                   y.dtype if y.is_half else "")
            scratch = Scratch("rows", (backward_scratch_elements(rows, s.hidden, width, dtype),), summed(dtype))
            cost = self.cost(s, count, sum(p.flops for p in passes), cpu) * y.itemsize / 4
            args = (*given[GY:R], packed, lengths, *given[H0:RECORD + 1], *results, scratch,
                    replace(numbers, first=first), *(c for p in passes for c in p.coefficients))
            found.append(Call(backward_leaf(dtype, passes), args, count * numbers.blocks, cost=cost))
        return found


Pull = Generator[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
"""Gradients of the states before, of the gates by the input and by the state, and what else the weights' gradients read."""


def _rnn(cell: Cell, dh: np.ndarray, dc: np.ndarray, kept: list[np.ndarray], r: np.ndarray, hp: np.ndarray, cp: np.ndarray,
         p: np.ndarray | None) -> Pull:
    d = slope(cell.functions[0], kept[0], dh)
    return (yield d @ r), dc, d, d, hp


def _lstm(cell: Cell, dh: np.ndarray, dc: np.ndarray, kept: list[np.ndarray], r: np.ndarray, hp: np.ndarray, cp: np.ndarray,
          p: np.ndarray | None) -> Pull:
    f, g, last = cell.functions
    i, o, new, c = result_of(f, kept[0]), result_of(f, kept[1]), result_of(g, kept[3]), kept[4]
    forget = 1 - i if cell.coupled else result_of(f, kept[2])
    through = apply(last.unlimited, c)
    do = slope(f, kept[1], dh * through)
    dc = dc + evaluate(last.unlimited.slope_times(*(Var(k, c.dtype.name) for k in range(3))), [c, through, dh * o])
    if p is not None:
        dc = dc + do * p[1]
    di = slope(f, kept[0], dc * (new - cp) if cell.coupled else dc * new)
    df = np.zeros_like(di) if cell.coupled else slope(f, kept[2], dc * cp)
    gates = np.concatenate([di, do, df, slope(g, kept[3], dc * i)], -1)
    dc = dc * forget
    if p is not None:
        dc = dc + di * p[0] + df * p[2]
    return (yield gates @ r), dc, gates, gates, cp


def _gru(cell: Cell, dh: np.ndarray, dc: np.ndarray, kept: list[np.ndarray], r: np.ndarray, hp: np.ndarray, cp: np.ndarray,
         p: np.ndarray | None) -> Pull:
    f, g = cell.functions
    n = hp.shape[1]
    z, reset, new = result_of(f, kept[0]), result_of(f, kept[1]), result_of(g, kept[2])
    dz, dn = slope(f, kept[0], dh * (hp - new)), slope(g, kept[2], dh * (1 - z))
    if cell.reset_after:
        dr = slope(f, kept[1], dn * kept[3])
        shares = np.concatenate([dz, dr, dn * reset], -1)
        return dh * z + (yield shares @ r), dc, np.concatenate([dz, dr, dn], -1), shares, hp
    share = yield dn @ r[2 * n:]
    gates = np.concatenate([dz, slope(f, kept[1], share * hp), dn], -1)
    return dh * z + share * reset + (yield gates[:, :2 * n] @ r[:2 * n]), dc, gates, gates, reset * hp


PULLS: dict[str, Callable[..., Pull]] = {"RNN": _rnn, "LSTM": _lstm, "GRU": _gru}
