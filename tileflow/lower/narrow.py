"""16-bit memory of operators that compute in float32: casts at their borders go, and the kernel converts as it reads and writes.

`widen` puts casts around operators that have no 16-bit kernels, and mixed precision asks for others. Where the kernel can widen what it reads, or
round what it writes, a few rows at a time, the cast is a part of it: the same bits, without a float32 copy of the tensor in memory.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..graph import CODES, Graph, Index, Node, TensorType, Value, needed_for
from ..graph.op import Op, Types
from ..host.form import AsItStands, Blockwise, Finish, HostOp, blockwise
from ..kernels.elementwise.expr import Var, cast
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..kernels.streamed import streamed


class Narrowed(HostOp):
    """An operator whose inputs and outputs of these indices, float32 to itself, lie in 16-bit memory of these types. Made by `narrow` only."""

    name: ClassVar[str] = "Narrowed"

    def __init__(self, op: Op, inputs: Mapping[int, str], outputs: Mapping[int, str]) -> None:
        self.op, self.inputs, self.outputs = op, dict(inputs), dict(outputs)
        self.random = op.random                                                           # type: ignore[misc]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return tuple(t.with_dtype(self.outputs.get(i, t.dtype)) for i, t in enumerate(self.op.infer(*self.wide(types))))

    def wide(self, types: Sequence[TensorType | None]) -> list[TensorType | None]:
        """The types of the inputs as the operator takes them."""
        return [t.with_dtype("float32") if t is not None and i in self.inputs else t for i, t in enumerate(types)]

    def reference(self, *inputs: np.ndarray | None, **streams: Any) -> tuple[np.ndarray, ...]:
        wide = [a.astype(np.float32) if a is not None and i in self.inputs else a for i, a in enumerate(inputs)]
        found = self.op.reference(*wide, **streams)
        return tuple(a.astype(self.outputs.get(i, a.dtype)) for i, a in enumerate(found))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        wide = [t.with_dtype("float32") if i in self.outputs else t for i, t in enumerate(outputs)]
        return self.over(self.op.kernel(self.wide(inputs), wide, cpu))

    def over(self, calls: Sequence[Call]) -> list[Call]:
        """The operator's calls over 16-bit memory."""
        found = _streamed(calls, self.inputs, self.outputs)
        assert found is not None, f"{self.op} was asked before"
        return found

    def __str__(self) -> str:
        ports = [*(f"input {i} {dtype}" for i, dtype in self.inputs.items()), *(f"output {i} {dtype}" for i, dtype in self.outputs.items())]
        return f"{self.op} with {', '.join(ports)}"


def _streamed(calls: Sequence[Call], narrow_in: Mapping[int, str], narrow_out: Mapping[int, str]) -> list[Call] | None:
    """A kernel's calls over 16-bit memory; None where they have no such form."""
    return streamed(calls, *({i: CODES[dtype] for i, dtype in side.items()} for side in (narrow_in, narrow_out)))


class NarrowedBlocks(AsItStands):
    """A Narrowed whose operator takes an epilogue; what that reads is float32 still."""

    name: ClassVar[str] = "NarrowedBlocks"
    op: Narrowed

    def __init__(self, op: Narrowed, inner: Blockwise) -> None:
        self.op, self.inner = op, inner
        self.epilogue = inner.epilogue                                                     # type: ignore[misc]

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish) -> list[Call]:
        return self.op.over(self.inner.calls(self.op.wide(inputs), outputs, cpu, finish))


@blockwise.register(Narrowed)
def _(op: Narrowed) -> Blockwise | None:
    inner = None if 0 in op.outputs else blockwise(op.op)
    return None if inner is None else NarrowedBlocks(op, inner)


def narrow(graph: Graph, cpu: Cpu, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph in which kernels read and write 16-bit memory in place of casts; values that remain keep their identity.

    `keep` names values that are wanted besides the graph's results. A result is rounded by its kernel where only the cast reads it.
    """
    if not any(v.type.is_half for node in graph.walk() for v in [*node.operands, *node.outputs]):
        return graph
    index = Index(graph, keep)
    nodes: list[Node | None] = list(graph.nodes)
    for position, node in enumerate(graph.nodes):
        made = _narrowed(index, node, cpu)
        if made is not None:
            nodes[position] = made[0]
            for cast_node in made[1]:
                nodes[index.position[cast_node]] = None
    kept, _ = needed_for(index.wanted, [n for n in nodes if n is not None])
    return graph.with_nodes(kept)


def _narrowed(index: Index, node: Node, cpu: Cpu) -> tuple[Node, list[Node]] | None:
    """The node over 16-bit memory and the casts of its results, which it makes itself; None where there is nothing to gain."""
    inputs: Types = [None if v is None else v.type for v in node.inputs]
    types = [v.type for v in node.outputs]
    if node.op.regions or node.op.alias is not None or node.op.expression(inputs, types) is not None:
        return None
    sources = {i: made for i, v in enumerate(node.inputs) if v is not None and (made := _cast(index.maker(v), True)) is not None}
    casts = {i: made for i, v in enumerate(node.outputs) if (made := _cast(index.only_reader(v), False)) is not None}
    if not (sources or casts):
        return None
    calls = node.op.kernel(inputs, types, cpu)

    def fits(into: Mapping[int, str], out: Mapping[int, str]) -> bool:
        return _streamed(calls, into, out) is not None

    into = {i: made.operands[0].dtype for i, made in sources.items() if fits({i: made.operands[0].dtype}, {})}
    out = {i: made.outputs[0].dtype for i, made in casts.items() if fits({}, {i: made.outputs[0].dtype})}
    if not (into or out) or not fits(into, out):
        return None
    operands = [sources[i].operands[0] if i in into else v for i, v in enumerate(node.inputs)]
    results = [casts[i].outputs[0] if i in out else v for i, v in enumerate(node.outputs)]
    return Node(Narrowed(node.op, into, out), operands, results, node.origin), [casts[i] for i in out]


def _cast(node: Node | None, widens: bool) -> Node | None:
    """The node if it is a cast of a 16-bit value to float32, or (`widens` is false) the other way."""
    if node is None or len(node.inputs) != 1 or len(node.outputs) != 1 or node.inputs[0] is None:
        return None
    x, y = node.inputs[0].type, node.outputs[0].type
    low, wide = (x, y) if widens else (y, x)
    return node if low.is_half and wide.dtype == "float32" and node.op.expression([x], [y]) is cast(Var(0, x.dtype), y.dtype) else None
