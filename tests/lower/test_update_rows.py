"""Rows of updates: as many as there are kinds of work, however many weights there are, with the bits that weights have alone."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from images import rows_of

from tileflow.graph import Builder, Graph, Origin, State, TensorType, Value
from tileflow.kernels.machine.guard import copy
from tileflow.lower import batched_updates as ordering
from tileflow.lower import passes
from tileflow.lower.row import ArrayOperand, Place, Row
from tileflow.optim.rounding import stochastic
from tileflow.passes.cse import cse
from tileflow.passes.fold import fold
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.program.schedule import Atomic, Repeat, Run
from tileflow.runtime import assemble
from tileflow.runtime.binding import BoundRow
from tileflow.runtime.executable import make_engine
from tileflow.runtime.grouped_rows import gather
from tileflow.runtime.host import Host
from tileflow.state import Session
from tileflow.system.errors import TileflowError

SHAPES = [(5,), (40, 30), (), (64,), (3, 50), (70, 70), (129,), (1000,)]


class Weights:
    """An update graph under construction: weights with gradients and one moment each, and scalars."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], moments: str = "float32") -> None:
        self.graph = Graph("update")
        self.b = Builder(self.graph)
        self.initial: dict[str, np.ndarray] = {}
        self.weights = [self.state(f"w{i}", "parameter", t, s, "parameter") for i, (s, t) in enumerate(zip(shapes, dtypes, strict=True))]
        self.gradients = [self.state(f"w{i}.grad", "accumulator", w.input.dtype, w.input.shape, "grad") for i, w in enumerate(self.weights)]
        self.moments = [self.state(f"w{i}.m", "optimizer", moments, w.input.shape, "m", w.name) for i, w in enumerate(self.weights)]

    def state(self, name: str, kind: Any, dtype: str, shape: tuple[int, ...], group: str, owner: str = "") -> State:
        made = State(name, kind, Value(self.b.name(name), TensorType(dtype, shape)), group=group, owner=owner, role=group)
        self.graph.states.append(made)
        draw = np.random.default_rng([len(self.initial), 7])
        self.initial[name] = (draw.standard_normal(shape) * 0.1).astype(made.input.type.numpy)
        return made

    def wide(self, x: Value) -> Value:
        return self.b.Cast(x, to="float32") if x.dtype != "float32" else x

    def run(self, updates: int = 2, atomic: bool = True) -> tuple[int, dict[str, np.ndarray]]:
        """Rows of the update, and all states after some updates."""
        update = Atomic((Run("update"),)) if atomic else Run("update")               # an atomic one refuses gradients that are not finite
        program = Program.of(Graph("micro"), Batching(1)).with_parts({"update": cse(fold(self.graph))}, schedule=(Repeat(1, (update,), "update"),))
        engine = make_engine(program, Session(), self.initial, Host(2))
        for _ in range(updates):
            engine.run({}, scalars=lambda _: {})
        return rows_of(engine, "update"), engine.session.snapshot()


def lamb(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> Weights:
    """Each weight by itself: moment, direction, both norms, their ratio, the step."""
    u = Weights(shapes, dtypes)
    b = u.b
    for w, g, m in zip(u.weights, u.gradients, u.moments, strict=True):
        x, old = u.wide(w.input), m.input
        new = m.output = b.Add(b.Mul(old, b.scalar(0.9, old)), b.Mul(u.wide(g.input), b.scalar(0.1, old)))
        step = b.Add(b.Div(new, b.Add(b.Sqrt(b.Abs(new)), b.scalar(1e-6, new))), b.Mul(x, b.scalar(0.01, x)))
        ratio = b.Sqrt(b.Div(b.SquareSum(x), b.SquareSum(step)))
        moved = b.Sub(x, b.Mul(b.Cast(b.Mul(ratio, b.scalar(1e-2, ratio)), to="float32"), step))
        w.output = moved if w.input.dtype == "float32" else b.Cast(moved, to=w.input.dtype)
    return u


def grouped(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> Weights:
    """A rate that is a scalar of the weight's group: the last three weights are the second."""
    u = Weights(shapes, dtypes)
    b = u.b
    rates = [u.state(f"rate{i}", "optimizer", "float64", (), "rate") for i in range(2)]
    for i, (w, g) in enumerate(zip(u.weights, u.gradients, strict=True)):
        x, rate = u.wide(w.input), rates[i >= len(shapes) - 3].input
        with b.at(Origin((w.name,), "update")):
            moved = b.Sub(x, b.Mul(b.Cast(rate, to="float32"), u.wide(g.input)))
            w.output = moved if w.input.dtype == "float32" else b.Cast(moved, to=w.input.dtype)
    return u


def clipped(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> Weights:
    """One norm over all gradients of a type."""
    u = Weights(shapes, dtypes)
    b = u.b
    sums = [b.SquareSum(*(g.input for g in u.gradients if g.input.dtype == t)) for t in dict.fromkeys(dtypes)]
    norm = b.Sqrt(sums[0] if len(sums) == 1 else b.Sum(*sums))
    factor = b.Cast(b.Min(b.scalar(1.0, norm), b.Div(b.scalar(0.5, norm), norm)), to="float32")
    for w, g in zip(u.weights, u.gradients, strict=True):
        x = u.wide(w.input)
        moved = b.Sub(x, b.Mul(factor, u.wide(g.input)))
        w.output = moved if w.input.dtype == "float32" else b.Cast(moved, to=w.input.dtype)
    return u


def skipped(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> Weights:
    """16-bit states are rounded at random, and nothing changes where a gradient is not finite."""
    u = Weights(shapes, dtypes, moments="bfloat16")
    b = u.b
    sums = [b.SquareSum(*(g.input for g in u.gradients if g.input.dtype == t)) for t in dict.fromkeys(dtypes)]
    total = sums[0] if len(sums) == 1 else b.Sum(*sums)
    finite = b.Less(total, b.scalar(np.inf, total))
    for w, g, m in zip(u.weights, u.gradients, u.moments, strict=True):
        x, old = u.wide(w.input), u.wide(m.input)
        new = b.Add(b.Mul(old, b.scalar(0.9, old)), u.wide(g.input))
        moved = b.Sub(x, b.Mul(new, b.scalar(1e-3, x)))
        for state, value in ((w, moved), (m, new)):
            state.output = b.Where(finite, value if state.input.dtype == "float32" else b.Cast(value, to=state.input.dtype), state.input)
    stochastic(u.graph)
    return u


def decayed(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> Weights:
    """Each weight shrinks below 0 by a number of its own, of three."""
    u = Weights(shapes, dtypes)
    for i, w in enumerate(u.weights):
        w.output = u.b.LeakyRelu(w.input, alpha=FACTORS[i % 3])
    return u


FACTORS = [0.75, 0.375, 0.875]
MIXED = ["float32", "float16"] * 4
ONE = ["float32"] * 8


CASES = [(lamb, ONE, 6), (lamb, MIXED, 12), (grouped, ONE, 3), (grouped, MIXED, 4), (clipped, ONE, 4),
         (clipped, MIXED, 8), (skipped, ONE, 5), (skipped, MIXED, 9),
         (decayed, ONE, 2), (decayed, MIXED, 3)]


@pytest.mark.parametrize(("make", "dtypes", "most"), CASES)
def test_rows_do_not_grow_with_the_weights_and_keep_their_bits(monkeypatch: pytest.MonkeyPatch, make: Any, dtypes: list[str], most: int) -> None:
    rows, together = make(SHAPES, dtypes).run()
    assert rows <= most
    counts = [make((*SHAPES, *(SHAPES[0],) * k), (*dtypes, *dtypes[:1] * k)).run()[0] for k in (4, 40)]
    assert counts == [rows, rows]
    monkeypatch.setattr(assemble, "gather", list)
    monkeypatch.setattr(passes, "batch_updates", lambda graph, cpu: graph)
    more, apart = make(SHAPES, dtypes).run()
    assert more > rows
    assert {n: a.tobytes() for n, a in together.items()} == {n: a.tobytes() for n, a in apart.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_that_abut_keep_their_own_numbers(dtype: str) -> None:
    """They are one row only as members of it."""
    u = decayed([(64,)] * 4, [dtype] * 4)
    _, found = u.run(updates=1)
    for i in range(4):
        w = u.initial[f"w{i}"]
        np.testing.assert_array_equal(found[f"w{i}"], np.where(w < 0, w * np.array(FACTORS[i % 3], dtype), w))


def test_weights_that_are_gone_over_twice_are_done_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bits; what is gone over once stays one row."""
    monkeypatch.setattr(ordering, "PART", 4096)
    shapes = [(1000,)] * 40
    rows, parts = lamb(shapes, ["float32"] * 40).run()
    assert 10 * 5 <= rows <= 10 * 5 + 2, "ten parts of four weights"
    assert grouped(shapes, ["float32"] * 40).run()[0] <= 3
    monkeypatch.undo()
    rows, whole = lamb(shapes, ["float32"] * 40).run()
    assert rows <= 5
    assert {n: a.tobytes() for n, a in parts.items()} == {n: a.tobytes() for n, a in whole.items()}


def test_a_skip_leaves_every_bit() -> None:
    u = skipped(SHAPES, MIXED)
    u.initial["w5.grad"] = u.initial["w5.grad"].copy()
    u.initial["w5.grad"][3, 3] = np.nan
    _, found = u.run(atomic=False)
    for name, array in u.initial.items():
        if name in found:
            assert found[name].tobytes() == array.tobytes(), name


def test_an_update_that_overflows_16_bits_is_refused_whichever_weight_it_is() -> None:
    u = grouped(SHAPES, MIXED)
    u.initial["rate1"] = np.array(1e30)
    with pytest.raises(TileflowError, match="would make w5, w7 infinite or NaN"):
        u.run()


# ---- which rows come together

def bound(*arrays: tuple[int, int, bool], leaf: Any = copy["u4"], grain: int = 4) -> BoundRow:
    """(address, elements, written) each, of 4 bytes."""
    n = max(count for _, count, _ in arrays)
    operands: list[Any] = [ArrayOperand(Place(("state", "x")), (count,), 4, written) for _, count, written in arrays]
    return BoundRow(Row(leaf, operands, n, grain, 8.0, True), [(at, (count,), 4) for at, count, _ in arrays], n, False)


def test_rows_that_share_only_what_they_read_come_together() -> None:
    row, = gather([bound((0, 6, False), (1000, 6, True)), bound((0, 6, False), (5000, 6, True)), bound((64, 3, False), (64, 3, True))])
    assert [m.n for m in row.members] == [6, 6, 3]
    assert row.n == 8 + 8 + 3, "each begins at a whole grain"
    assert row.row.cost == 24


@pytest.mark.parametrize("other", [bound((5000, 6, False), (1020, 6, True)), bound((1020, 6, False), (5000, 6, True)),
                                   bound((3000, 6, False), (5000, 6, True), leaf=copy["u8"]), bound((3000, 6, False), (5000, 6, True), grain=2)])
def test_rows_that_depend_on_each_other_or_differ_stay_apart(other: BoundRow) -> None:
    assert len(gather([bound((0, 6, False), (1000, 6, True)), other])) == 2


def test_a_chain_within_a_run_cuts_it() -> None:
    free = [bound((10_000 + 100 * i, 6, False), (20_000 + 100 * i, 6, True)) for i in range(4)]
    found = gather([*free[:2], bound((20_000, 6, False), (20_000, 6, True)), free[3]])
    assert [len(b.members) or 1 for b in found] == [2, 2]
