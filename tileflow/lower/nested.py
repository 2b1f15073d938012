"""Rows of branches and loops: regions lowered on their own, then placed where their node's operands, results and scratch memory lie."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..graph import Branches, Graph, Node, Region, Turns, Value
from ..kernels.elementwise.expr import Const, Expr, Var, cast, maximum, minimum, variables, where
from ..kernels.elementwise.loops import elementwise_call
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import In, Out
from ..kernels.machine.guard import clear
from ..memory.alignment import padded_nbytes
from .row import Advance, ArrayOperand, Count, Cycle, Either, Item, Lowered, Place, Row, copy_row, moved

LowerRegion = Callable[[Graph, str, Callable[[Value], "Place | None"], "dict[Value, Place]"], Lowered]
WORDS = ("counter", "limit", "done", "index", "most", "going")
"""The int64 words that control a loop while it runs, in this order in its scratch memory: `counter`, in which the
driver counts turns; `limit`, after how many it stops (0 once the condition is false); `done`, turns so far; `index`,
the number of the turn that its region is given (`done`, or downwards in a reversed loop); `most`, the limit as long as
the condition is true; `going`, the condition that the last turn gave."""
_keys = itertools.count()


class NestedRows:
    """A node with regions (If, Loop, Scan), of which the rows are made in two steps: `__init__` lowers the regions for
    themselves, `items` places them when the memory of their node is known.

    scratch: bytes of scratch memory that the node needs, by name: the regions' arena, the values that a loop carries,
        its control words. All that a region captures is an operand of the node, so it lives until the node has run.
    """

    def __init__(self, node: Node, name: str, lower_region: LowerRegion, cpu: Cpu) -> None:
        self.node, self.name, self.cpu = node, name, cpu
        self.regions = [self._lowered(i, region, lower_region) for i, region in enumerate(node.op.regions) if isinstance(region, Region)]
        self.scratch = {"words": 8 * len(WORDS), "arena": max(r.arena_bytes for r in self.regions)}
        if isinstance(node.op, Turns):
            carried = enumerate(node.outputs[:node.op.carried])
            self.scratch |= {f"carried {i}": 2 * padded_nbytes(v.type) for i, v in carried}

    def _lowered(self, i: int, region: Region, lower_region: LowerRegion) -> Lowered:
        """A region, lowered with placeholders for its inputs and outputs: places that `placed` replaces."""
        which, graph = f"{self.name}.{i}", region.graph
        numbers = {v: Place(("operand", (which, k))) for k, v in enumerate(graph.inputs)}
        outside = {**{v: Place(("constant", v)) for v in graph.constants}, **numbers}
        return lower_region(graph, which, outside.get, {v: Place(("result", (which, k))) for k, v in enumerate(graph.outputs)})

    def items(self, operands: Sequence[Place | None], results: Sequence[Place], scratch: Mapping[str, Place]) -> list[Item]:
        """The rows, given where the node's operands, results and scratch memory lie."""
        if isinstance(self.node.op, Branches):
            return self._choice(operands, results, scratch)
        assert isinstance(self.node.op, Turns), self.node
        return _Loop(self, self.node.op, operands, results, scratch).items()

    def placed(self, i: int, operands: Sequence[Place], results: Sequence[Place], arena: Place) -> list[Item]:
        """The rows of region i with its placeholders replaced by the places of its inputs and outputs, and its
        arena."""
        which = f"{self.name}.{i}"
        homes = {("arena", which): arena, **{("operand", (which, k)): p for k, p in enumerate(operands)},
                 **{("result", (which, k)): p for k, p in enumerate(results)}}

        def to(place: Place) -> Place:
            own = tuple(Advance(Count(m.count.key, to(m.count.word)), m.stride, m.ring, m.ahead) for m in place.moves)
            home = homes.get(place.region)
            return Place(place.region, place.offset, own) if home is None else Place(home.region, home.offset + place.offset, home.moves + own)
        return moved(self.regions[i].rows, to)

    def row(self, exprs: Sequence[Expr], operands: Sequence[Place], results: Sequence[Place]) -> Row:
        """A row that computes scalar expressions: one element of each operand in, one of each result out."""
        call = elementwise_call(exprs, [In(i, (1,)) for i in range(len(operands))], [Out(i, (1,)) for i in range(len(results))])
        sizes = {i: 1 if v.dtype == "bool" else 8 for i, v in variables(*exprs).items()}

        def placed(arg: Any) -> Any:
            if isinstance(arg, In):
                return ArrayOperand(operands[arg.index], arg.shape, sizes[arg.index], False)
            return ArrayOperand(results[arg.index], arg.shape, 8) if isinstance(arg, Out) else arg
        return Row(call.leaf, [placed(a) for a in call.args], call.n, call.grain, call.cost, False, self.node)

    def _choice(self, operands: Sequence[Place | None], results: Sequence[Place], scratch: Mapping[str, Place]) -> list[Item]:
        condition, *captures = [p for p in operands if p is not None]
        word = scratch["words"]
        first, second = (self.placed(i, captures, results, scratch["arena"]) for i in range(2))
        asked = self.row([cast(Var(0, "bool"), "int64")], [condition], [word])
        return [asked, Either(word, (first, second), self.node)]


class _Loop:
    """The rows of one loop."""

    def __init__(self, nested: NestedRows, op: Turns, operands: Sequence[Place | None], results: Sequence[Place],
                 scratch: Mapping[str, Place]) -> None:
        self.nested, self.op, self.node = nested, op, nested.node
        self.turns, self.condition, *rest = operands
        self.operands = [p for p in rest if p is not None]
        self.results, self.scratch = results, scratch
        self.word = {name: scratch["words"].at(8 * i) for i, name in enumerate(WORDS)}
        self.done = Count(next(_keys), self.word["done"])
        self.number = Count(next(_keys), self.word["index"]) if op.reverse else self.done
        self.kept = [v.type for v in self.node.outputs[:op.carried]]

    def items(self) -> list[Item]:
        op, word = self.op, self.word
        counts = [(self.done, 1), *([(self.number, -1)] if op.reverse else [])]
        start = [(word["counter"], 0), (word["done"], 0), (word["limit"], max(0, op.count)), (word["most"], max(0, op.count)),
                 (word["index"], op.count - 1)]
        return [Cycle(word["counter"], word["limit"], start, counts, self._before(), self._body(), self._after(), self.node)]

    def _slot(self, i: int, ahead: int) -> Place:
        """The place of carried value i at the beginning of a turn; with ahead=1 at that of the next turn. The two slots
        of a value alternate."""
        at = self.scratch[f"carried {i}"]
        return Place(at.region, at.offset, (*at.moves, Advance(self.done, padded_nbytes(self.kept[i]), 2, ahead)))

    def _slice(self, whole: Place, nbytes: int) -> Place:
        """The slice of an array along its first axis, `nbytes` long, that belongs to the current turn."""
        return Place(whole.region, whole.offset, (*whole.moves, Advance(self.number, nbytes)))

    def _before(self) -> list[Item]:
        """Rows before the first turn: copy initial values into the slots, compute the limit of turns, clear stacked
        results of which an early end may leave slices unwritten."""
        op, word = self.op, self.word
        carried = zip(self.operands, self.node.outputs[:op.carried], strict=False)
        rows: list[Item] = [copy_row(p, self.scratch[f"carried {i}"], v) for i, (p, v) in enumerate(carried) if v.type.size]
        if self.turns is not None:
            most = maximum(Var(0, "int64"), 0)
            most = minimum(most, op.count) if op.count >= 0 else most
            rows.append(self.nested.row([most, most, most - 1], [self.turns], [word["limit"], word["most"], word["index"]]))
        if self.condition is not None:
            rows.append(self._while(self.condition))
        if op.conditional or self.turns is not None or self.condition is not None:
            for place, v in zip(self.results[op.carried:], self.node.outputs[op.carried:], strict=True):
                n, size = v.type.size, v.type.itemsize
                rows += [Row(clear[f"u{size}"], [ArrayOperand(place, (n,), size)], n, 4096, 0.025 * n * size, False,
                             self.node)] if n else []
        return rows

    def _while(self, condition: Place) -> Row:
        """A row that sets the limit of turns to 0 where the condition is false."""
        going = where(Var(0, "bool"), Var(1, "int64"), Const(0, "int64"))
        return self.nested.row([going], [condition, self.word["most"]], [self.word["limit"]])

    def _body(self) -> list[Item]:
        op = self.op
        graph = op.body.graph
        scanned = [self._slice(p, v.type.nbytes) for p, v in zip(self.operands[op.carried:], graph.inputs[1 + op.carried:1 + op.carried + op.scanned],
                                                                 strict=False)]
        taken = [self.number.word, *(self._slot(i, 0) for i in range(op.carried)), *scanned, *self.operands[op.carried + op.scanned:]]
        scans = [self._slice(p, math.prod(v.shape[1:]) * v.type.itemsize)
                 for p, v in zip(self.results[op.carried:], self.node.outputs[op.carried:], strict=True)]
        given = [*(self._slot(i, 1) for i in range(op.carried)), *scans]
        going = [self.word["going"]] if op.conditional else []
        rows = self.nested.placed(0, taken, [*going, *given], self.scratch["arena"])
        return [*rows, *(self._while(p) for p in going)]

    def _after(self) -> list[Item]:
        """Rows after the last turn: copy the carried values from the slots written last to the results."""
        kept = enumerate(zip(self.node.outputs[:self.op.carried], self.results, strict=False))
        return [copy_row(self._slot(i, 0), place, v) for i, (v, place) in kept if v.type.size]
