"""Turns of a Loop one after the other in one program, where a tensor that each of them reads grows: every turn has
shapes of its own, so it cannot be a region that is run many times."""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from onnx import GraphProto

from tileflow.graph import Node, TensorType, Turns, Value
from tileflow.graph.op import Types
from tileflow.graph.region import draws
from tileflow.system.errors import ModelError, UnsupportedError

from .declared import declare
from .domains.marks import DOMAIN
from .functions import renamed_graph
from .inner import Control, Results, Walker
from .site import DynamicOperandError, Site
from .unfold import every_node
from .versions import form

ROW_OF_TURNS = "RowOfTurns"
"""A Loop in a model that runs in pieces: some of its turns, whether it ends among them or not. (how many at most,
carried...) -> what the body carries on and gives, a row a turn; of the last `growing` carried values the last only."""
MOST, MOST_NODES, MOST_WORK, ROOM = 1 << 4, 1 << 10, 1 << 23, 1 << 22
"""Turns of a program; the nodes of the file that they may come to, their FLOPs, and the bytes of what they give. Turns
after the end are for nothing, so all together must not take longer than a few calls."""
declare(DOMAIN, ROW_OF_TURNS, "turns:L, carried*:V -> found*:V", body=GraphProto, growing=int)


@form(ROW_OF_TURNS, domain=DOMAIN)
def row_of_turns(site: Site) -> Control:
    return partial(_row_of_turns, site)


def _row_of_turns(site: Site, importer: Walker) -> Results:
    """The turns in place of the node. Nothing asks whether one of them shall be: where the loop ends is for who reads
    the rows, so a turn must come to an end whatever it is given, and leave nothing but what it gives."""
    return _Row(site, importer).results()


class _Row:
    """The turns of one node.

    carried: the names of what stands for the carried values before the next turn. grown: the places of those that grow.
    rows: what each turn so far gives. added: by what each turn lengthens what grows.
    """

    def __init__(self, site: Site, importer: Walker) -> None:
        self.site, self.importer, self.graph = site, importer, site.attrs["body"]
        self.carried, growing = site.inputs[1:], site.attrs["growing"]
        count, gives = len(self.carried), len(self.graph.output)
        if len(self.graph.input) != count or gives <= count or not 0 < growing <= count:
            raise ModelError(f"{site.title}: its body has {len(self.graph.input)} inputs and {gives} outputs for "
                             f"{count} carried values, {growing} of which grow; export the model again")
        self.grown = range(count - growing, count)
        self.rows: list[list[Value]] = []
        self.added: list[tuple[int, ...]] = []

    def results(self) -> Results:
        most = _power(min(MOST, MOST_NODES // max(1, sum(1 for _ in every_node(self.graph.node)))))
        before, going = self.site.scope.type(self.carried[self.grown[0]]).shape, self._turn()
        most = min(most, self._affordable())
        if most == 1:
            raise UnsupportedError("a turn is work enough for a program of its own")
        limit = min(int(self.site.scalar(0)), most - _turns_before(before, self.added[0]) % most)
        while going and len(self.rows) < limit:
            going = self._turn()
        self._check()
        found: dict[int, Value] = {i: self.site.scope.value(self.carried[i]) for i in self.grown}
        wanted = [i for i in range(len(self.site.outputs)) if self.site.wants(i) and i not in found]
        found.update(zip(wanted, map(self._stacked, zip(*self.rows, strict=True)), strict=True))
        return [found.get(i) for i in range(len(self.site.outputs))]

    def _turn(self) -> bool:
        """One more turn; false where it is known to be the loop's last."""
        site, graph, scope = self.site, self.graph, self.site.scope
        names = dict(zip((v.name for v in graph.input), self.carried, strict=True))
        made = renamed_graph(graph, names, f"{site.outputs[-1]}/{len(self.rows)}/")
        before = self._sizes()
        try:
            self.importer.walk(made, site.opsets)
        except DynamicOperandError as error:
            if error.names.isdisjoint(site.inputs):
                raise
            raise UnsupportedError(str(error)) from None                      # what turns change is not compiled in
        given = [v.name for v in made.output]
        self.carried = given[:len(self.carried)]
        added = [tuple(b - a for a, b in zip(*sizes, strict=True)) for sizes in zip(before, self._sizes(), strict=True)]
        row = [scope.value(name) for i, name in enumerate(given) if site.wants(i) and i not in self.grown]
        if self.rows and (added != self.added or any(a.type != b.type for a, b in zip(row, self.rows[0], strict=True))):
            raise UnsupportedError("what it gives in one turn has another shape than in the next")
        self.rows, self.added = [*self.rows, row], added
        known = scope.known(given[-1])
        return known is None or bool(known.all())

    def _sizes(self) -> list[tuple[int, ...]]:
        """The shapes of what grows."""
        return [self.site.scope.type(self.carried[i]).shape for i in self.grown]

    def _affordable(self) -> int:
        """How many turns a program may have, by the first of them."""
        work = sum(_work(node) for node in self.site.builder.graph.walk())
        room = sum(v.type.nbytes for v in self.rows[0])
        return _power(min(ROOM // max(1, room), int(MOST_WORK / max(1.0, work))))

    def _check(self) -> None:
        """Raise UnsupportedError where a turn may do more than to give its row."""
        for node in self.site.builder.graph.walk():
            if draws(node.op):
                raise UnsupportedError(f"its body draws random numbers ({node.op.name})")
            if isinstance(node.op, Turns):
                raise UnsupportedError("a loop in its body may go on for long")
            if node.op.code is not None or node.op.host(*_types(node)) is not None:
                raise UnsupportedError(f"its body calls a function of Python's or the user's ({node.op.name})")

    def _stacked(self, parts: Sequence[Value]) -> Value:
        """The values along a new first axis."""
        rows = [self.site.emit("Unsqueeze", part, axes=(0,)) for part in parts]
        return rows[0] if len(rows) == 1 else self.site.emit("Concat", *rows, axis=0)


def _power(most: int) -> int:
    """The highest power of two that is no more: programs for other sizes then end where these do, and the next are the
    same."""
    return 1 << max(most, 1).bit_length() - 1


def _turns_before(sizes: Sequence[int], added: Sequence[int]) -> int:
    """How many turns have grown a tensor to these sizes, if all added as much."""
    return next((n // more for n, more in zip(sizes, added, strict=True) if more > 0), 0)


def _types(node: Node) -> tuple[Types, Sequence[TensorType]]:
    """Those of the inputs and of the outputs."""
    return [None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs]


def _work(node: Node) -> float:
    """FLOPs of an operator, or how many elements it reads and makes, where these are more."""
    inputs, outputs = _types(node)
    elements = sum(t.size for t in (*inputs, *outputs) if t is not None)
    try:
        return max(elements, node.op.work(inputs, outputs).flops)
    except NotImplementedError:                                                # its parts have it
        return elements
