"""Control flow: a branch that a value chooses, and loops, over regions (`graph/region.py`)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..graph import Branches, Builder, Graph, Op, Region, TensorType, Turns, Value, op
from ..graph.copy import copied
from ..graph.op import Types
from ..graph.region import Array, Evaluate, closed
from ..graph.sample import Sample, sample
from ..system.errors import ShapeError, TypeMismatchError
from .region_gradients import branch_backward, turn_backward, zeros

INDEX = TensorType("int64", ())
"""The type of a turn's number."""


@op("If", onnx=False)
class If(Branches):
    """(condition, captures...) -> the outputs of the region `then` over the captures where the condition is true, else those of `other`."""

    then: Region
    other: Region
    wanted: tuple[bool, ...] = ()

    @classmethod
    def samples(cls) -> list[Sample]:
        def branch(name: str) -> Region:
            b, (x, y) = _started(TensorType("float64", (2, 3)), TensorType("float64", (3,)))
            return closed(b, [getattr(b, name)(x, y)])
        either = {"then": branch("Mul"), "other": branch("Div")}
        return [sample(np.array(word), ("float64", (2, 3)), ("float64", (3,)), **either) for word in (True, False)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        condition(types[0], "If")
        self.check("branch of an If", self.then, types[1:])
        self.check("branch of an If", self.other, types[1:])
        found = [tuple(v.type for v in region.graph.outputs) for region in self.regions]
        if found[0] != found[1]:
            shown = ["(" + ", ".join(map(str, t)) + ")" for t in found]
            raise ShapeError(f"the branches of an If give {shown[0]} and {shown[1]}, which must be alike")
        return found[0]

    def interpret(self, evaluate: Evaluate, inputs: Sequence[Array | None]) -> list[Array]:
        word, *captures = inputs
        assert word is not None
        return evaluate((self.then if word.reshape(-1)[0] else self.other).graph, [a for a in captures if a is not None])

    def differentiable(self, inputs: Types, needed: Sequence[bool]) -> Op:
        return replace(self, wanted=tuple(needed[1:]))

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """A branch between the backward passes of both regions, which compute anew what they read of the forward pass."""
        captures = [v for v in inputs[1:] if v is not None]
        wanted = [v.type.is_float and (not self.wanted or self.wanted[i]) for i, v in enumerate(captures)]
        given = {i: g for i, g in enumerate(grads) if g is not None}
        if not any(wanted):
            return [None] * len(inputs)
        then, other = (branch_backward(region, list(given), wanted) for region in (self.then, self.other))
        found = iter(b.emit(If(then, other), inputs[0], *captures, *given.values()))
        return [None, *(next(found) if w else None for w in wanted)]


@op("Loop", onnx=False)
class Loop(Turns):
    """(turns, condition, carried..., scanned..., captures...) -> (carried..., scans...): ONNX's Loop and Scan; see `graph.region.Turns`."""

    body: Region
    carried: int
    scanned: int = 0
    count: int = -1
    conditional: bool = False
    reverse: bool = False
    wanted: tuple[bool, ...] = ()
    kept: int = 0

    no_gradient = "the number of its turns has no bound that is known before it runs, so there is no place for what turns leave to their gradients"

    @classmethod
    def samples(cls) -> list[Sample]:
        b, (_, h, x, w) = _started(INDEX, TensorType("float64", (3,)), TensorType("float64", (3,)), TensorType("float64", (3,)))
        new = b.Tanh(b.Add(b.Mul(h, w), x))
        scan = closed(b, [new, b.Mul(new, w)])
        b, (turn, v) = _started(INDEX, TensorType("float64", (2,)))
        new = b.Mul(v, b.scalar(1.5, v))
        grown = closed(b, [b.Less(turn, b.constant(np.array(2))), new])
        row, rows, none, pair = (("float64", shape) for shape in ((3,), (4, 3), (0, 3), (2,)))
        return [sample(None, None, row, rows, row, body=scan, carried=1, scanned=1, count=4),
                sample(None, None, row, rows, row, body=scan, carried=1, scanned=1, count=4, reverse=True),
                sample(None, None, row, none, row, body=scan, carried=1, scanned=1, count=0),
                sample(("int64", (), 2, 6), np.array(True), pair, body=grown, carried=1, count=8, conditional=True),
                sample(("int64", (1,), 2, 6), None, pair, body=grown, carried=1, conditional=True),
                sample(None, np.array(False), pair, body=grown, carried=1, count=5, conditional=True)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        turns, word, *rest = types
        if turns is not None and (turns.dtype != "int64" or turns.size != 1):
            raise TypeMismatchError(f"a Loop's number of turns must be one int64, not {turns}")
        if word is not None:
            condition(word, "Loop")
        present = [t for t in rest if t is not None]
        if min(self.carried, self.scanned, self.count + 1) < 0 or self.carried + self.scanned > len(present):
            raise ShapeError(f"a Loop of {self.count} turns carries {self.carried} and scans {self.scanned} values, "
                             f"and is given {len(present)}")
        carried, scanned = present[:self.carried], present[self.carried:self.carried + self.scanned]
        if any(t.shape[:1] != (self.count,) for t in scanned):
            raise ShapeError(f"a Loop of {self.count} turns scans ({', '.join(map(str, scanned))}), whose first axes must be as long")
        captures = present[len(carried) + len(scanned):]
        self.check("body of a Loop", self.body, [INDEX, *carried, *(t.with_shape(t.shape[1:]) for t in scanned), *captures])
        made = [v.type for v in self.body.graph.outputs]
        if self.conditional:
            condition(made.pop(0), "Loop")
        kept, slices = made[:self.carried], made[self.carried:]
        if not 0 <= self.kept <= len(slices) or len(kept) < self.carried:
            raise ShapeError(f"the body of a Loop that carries {self.carried} gives {len(made)} values")
        for given, new in zip(carried, kept, strict=True):
            if given != new:
                raise ShapeError(f"the body of a Loop takes {given} and gives {new} for the next turn, which must be alike")
        if slices and self.count < 0:
            raise ShapeError("a Loop that gives a slice a turn must have a number of turns that is known before it runs")
        return (*carried, *(t.with_shape((self.count, *t.shape)) for t in slices))

    def interpret(self, evaluate: Evaluate, inputs: Sequence[Array | None]) -> list[Array]:
        limit, word, *given = inputs
        rest = [a for a in given if a is not None]
        carried, scanned, captures = rest[:self.carried], rest[self.carried:self.carried + self.scanned], rest[self.carried + self.scanned:]
        turns = self.count if limit is None else max(0, int(limit.reshape(-1)[0]))
        turns = min(turns, self.count) if self.count >= 0 else turns
        going = word is None or bool(word.reshape(-1)[0])
        outputs = self.body.graph.outputs[self.carried + self.conditional:]
        scans = [np.zeros((self.count, *v.shape), v.type.numpy) for v in outputs]
        for done in range(turns):
            if not going:
                break
            turn = turns - 1 - done if self.reverse else done
            made = evaluate(self.body.graph, [np.array(turn), *carried, *(a[turn] for a in scanned), *captures])
            going = not self.conditional or bool(made.pop(0).reshape(-1)[0])
            carried = made[:self.carried]
            for scan, new in zip(scans, made[self.carried:], strict=True):
                scan[turn] = new
        return [np.array(a) for a in carried] + scans

    def differentiable(self, inputs: Types, needed: Sequence[bool]) -> Op | None:
        """The loop that also keeps, of each turn, the carried values that it begins with; and ones, where turns must be counted."""
        if self.count < 0:
            return None
        graph = copied(self.body.graph)
        b = Builder(graph)
        kept = list(graph.inputs[1:1 + self.carried])
        if self.conditional or inputs[0] is not None or inputs[1] is not None:
            kept.append(b.constant(np.array(1)))
        present = [n for t, n in zip(inputs[2:], needed[2:], strict=True) if t is not None]
        return replace(self, body=closed(b, [*graph.outputs, *kept]), wanted=tuple(present), kept=len(kept))

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """A loop over the same turns in reverse. Each computes the forward body anew from the carried values that were kept, then its backward
        pass; gradients of carried values are handed on, those of captures summed."""
        own = len(outputs) - self.kept
        given = {i: g for i, g in enumerate(grads[:own]) if g is not None}
        back = None if self.count < 0 or not self.wanted else turn_backward(self, [i - self.carried for i in given if i >= self.carried])
        if back is None:
            return [None] * len(inputs)
        rest = [v for v in inputs[2:] if v is not None]
        captures = rest[self.carried + self.scanned:]
        ends = [given.get(i) or zeros(b, rest[i].type) for i in back.carried]
        sums = [zeros(b, captures[i].type) for i in back.summed]
        kept = outputs[own:own + self.carried]
        turns = b.ReduceSum(outputs[-1], keepdims=0) if self.kept > self.carried else None
        slices = [*kept, *rest[self.carried:self.carried + self.scanned], *(g for i, g in given.items() if i >= self.carried)]
        loop = Loop(back.region, len(ends) + len(sums), len(slices), self.count, reverse=not self.reverse)
        made = b.emit(loop, turns, None, *ends, *sums, *slices, *captures)
        places = [*back.carried, *(self.carried + self.scanned + i for i in back.summed), *(self.carried + i for i in back.scanned)]
        found = dict(zip(places, made, strict=True))
        wanted = [found.get(i) or (zeros(b, v.type) if w and v.type.is_float else None)
                  for i, (v, w) in enumerate(zip(rest, self.wanted, strict=True))]
        return [None, None, *wanted]


def condition(t: TensorType | None, whose: str) -> None:
    """Raise TypeMismatchError where a value is no condition."""
    if t is None or t.dtype != "bool" or t.size != 1:
        raise TypeMismatchError(f"the condition of a{'n' if whose[0] in 'AEIO' else ''} {whose} must be one bool, not {t}")


def _started(*types: TensorType) -> tuple[Builder, list[Value]]:
    """A builder of a region with inputs of these types."""
    b = Builder(Graph("region"))
    return b, [b.input(f"x{i}", t) for i, t in enumerate(types)]
