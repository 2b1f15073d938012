"""Layouts: which nodes of a graph compute on channels-last tensors [N, *spatial, C], and where tensors are turned.

Each node that has such a form (`host.form.channels_last`) takes it or not. Taking it saves its gain; a value whose maker and readers do
not agree costs a transposition, one for all readers. The cheapest choice is a minimum cut, found exactly, for the whole graph at
once. Inputs, outputs, states, constants and kept values stay in the logical order [N, C, *spatial].
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from ..graph import Graph, Node, Op, Origin, TensorType, Value
from ..graph.op import Types
from ..host.channels_last import to_channels_first, to_channels_last
from ..host.form import ChannelsLast, HostOp, axis_order, channels_last
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.move import MoveAxis, move
from .cut import SINK, SOURCE, MinimumCut

TURN = 0.15
"""Nanoseconds a byte to turn a tensor: it is read and written with one side in strides."""


class TurnChannels(HostOp):
    """A tensor with its channels last or, `back`, after the batch again. Made by `arrange` only."""

    name: ClassVar[str] = "TurnChannels"

    def __init__(self, back: bool) -> None:
        self.back = back

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, = types
        assert x is not None
        return (x.with_shape(to_channels_first(x.shape) if self.back else to_channels_last(x.shape)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, = inputs
        assert x is not None
        return (np.ascontiguousarray(np.moveaxis(x, -1, 1) if self.back else np.moveaxis(x, 1, -1)),)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = inputs[0]
        assert x is not None
        n, channels = x.shape[0], x.shape[-1 if self.back else 1]
        points = x.size // max(1, n * channels)
        rows, columns = (points, channels) if self.back else (channels, points)
        axes = [MoveAxis(n, rows * columns, rows * columns), MoveAxis(columns, 1, rows), MoveAxis(rows, columns, 1)]
        return move(In(0, (x.size,)), Out(0, (x.size,)), axes, x.itemsize)

    def __str__(self) -> str:
        return "TurnChannels(back)" if self.back else "TurnChannels"


@axis_order.register(TurnChannels)
def _(op: TurnChannels, x: TensorType) -> tuple[int, ...] | None:
    inner = tuple(range(1, x.rank - 1))
    return (0, x.rank - 1, *inner) if op.back else (0, *(i + 1 for i in inner), 1)


class Reshaped(HostOp):
    """The same elements in another shape. Made by `arrange` only."""

    name: ClassVar[str] = "Reshaped"
    alias: ClassVar[int | None] = 0

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        assert types[0] is not None
        assert types[0].size == math.prod(self.shape), f"{types[0]} as {self.shape}"
        return (types[0].with_shape(self.shape),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        assert inputs[0] is not None
        return (inputs[0].reshape(self.shape),)


def arrange(graph: Graph, cpu: Cpu, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph in which nodes compute on channels-last tensors where that saves time; values in the logical order keep
    their identity.

    `keep` names values that are wanted besides the graph's results.
    """
    forms = {node: form for node in graph.nodes if (form := _form(node, cpu)) is not None}
    if not any(form.gain > 0 for form in forms.values()):
        return graph
    chosen = _choose(graph, forms, {*graph.results(), *keep})
    return _Rebuilt(graph, {node: forms[node] for node in chosen}, {*graph.results(), *keep}).run()


def _form(node: Node, cpu: Cpu) -> ChannelsLast | None:
    return channels_last(node.op, [None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs], cpu)


def _is_view(shape: tuple[int, ...]) -> bool:
    """Both orders are the same memory."""
    return shape[1] == 1 or math.prod(shape[2:]) == 1


def _rank(node: Node) -> int:
    """Axes of the tensors a node works on; operands with fewer have ones in front of theirs."""
    return max(v.type.rank for v in [*node.operands, *node.outputs])


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _choose(graph: Graph, forms: dict[Node, ChannelsLast], wanted: set[Value]) -> list[Node]:
    """The nodes that take their channels-last form."""
    cut = MinimumCut()
    readers: dict[Value, list[Node | str]] = {}
    sizes: dict[Value, int] = {}
    for node in graph.nodes:
        form = forms.get(node)
        for i, v in enumerate(node.inputs):
            if v is not None:
                turned = form is not None and form.inputs[i]
                readers.setdefault(v, []).append(node if turned else SINK)
                if turned and not _is_view(_padded(v.shape, _rank(node))):
                    sizes[v] = v.type.nbytes
        for k, v in enumerate(node.outputs):
            if form is not None and form.outputs[k] and not _is_view(v.shape):
                sizes[v] = v.type.nbytes
        if form is not None:
            cut.edge(SOURCE, node, form.gain)
            cut.edge(node, SINK, -form.gain)
    makers: dict[Value, Node] = {}
    for node, form in forms.items():
        makers |= {v: node for v, turned in zip(node.outputs, form.outputs, strict=True) if turned}
    for v, size in sizes.items():
        cut.agree(v, makers.get(v, SINK), [*readers.get(v, []), *([SINK] if v in wanted else [])], TURN * size)
    side = cut.side()
    return [node for node in graph.nodes if node in side]


class _Rebuilt:
    """A graph with the chosen forms; each value exists in the orders that somebody reads."""

    def __init__(self, graph: Graph, chosen: dict[Node, ChannelsLast], wanted: set[Value]) -> None:
        self.given, self.chosen, self.wanted = graph, chosen, wanted
        self.nodes: list[Node] = []
        self.turned: dict[tuple[Value, int], Value] = {}
        self.absent: dict[Value, Value] = {}          # values that exist with channels last only, as these

    def run(self) -> Graph:
        for node in self.given.nodes:
            form = self.chosen.get(node)
            if form is None:
                inputs = [v and self._logical(v, node.origin) for v in node.inputs]
                assert inputs == node.inputs
                self.nodes.append(node)
                continue
            inputs = [v and (self._as_channels_last(v, _rank(node), node.origin) if turned else self._logical(v, node.origin))
                      for v, turned in zip(node.inputs, form.inputs, strict=False)]         # a node may leave out its last ones
            outputs = [self._made(v) if turned else v for v, turned in zip(node.outputs, form.outputs, strict=True)]
            self.nodes.append(Node(form.op, inputs, outputs, node.origin))
            for v in node.outputs:
                if v in self.wanted:
                    self._logical(v, node.origin)
        return self.given.with_nodes(self.nodes)

    def _made(self, value: Value) -> Value:
        """A node's channels-last result that stands for `value`."""
        result = Value(f"{value.name}.channels_last", value.type.with_shape(to_channels_last(value.shape)))
        self.turned[value, value.type.rank] = self.absent[value] = result
        return result

    def _logical(self, value: Value, origin: Origin) -> Value:
        """The value itself, made from its channels-last form if that is all there is."""
        if value in self.absent:
            source = self.absent.pop(value)
            op: Op = Reshaped(value.shape) if _is_view(value.shape) else TurnChannels(back=True)
            self.nodes.append(Node(op, [source], [value], origin))
        return value

    def _as_channels_last(self, value: Value, rank: int, origin: Origin) -> Value:
        """The value with channels last, seen with `rank` axes."""
        if (value, rank) not in self.turned:
            shape = _padded(value.shape, rank)
            source = self._logical(value, origin)
            if not _is_view(shape) and shape != value.shape:
                source = self._emit(Reshaped(shape), source, origin)
            op = Reshaped(to_channels_last(shape)) if _is_view(shape) else TurnChannels(back=False)
            self.turned[value, rank] = self._emit(op, source, origin)
        return self.turned[value, rank]

    def _emit(self, op: Op, source: Value, origin: Origin) -> Value:
        kind, = op.infer(source.type)
        result = Value(f"{source.name}.{op.name.lower()}", kind)
        self.nodes.append(Node(op, [source], [result], origin))
        return result
