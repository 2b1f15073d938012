"""What a network asks of the tile machine: memory per operator, convolutions planned together. Results do not depend on it, but for the type of
partial sums."""
from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

from ..graph import Graph, Hints, Node, Value
from ..graph import MultiConv as Group
from ..graph.composite import works
from ..graph.work import Contraction, Gather, Scatter
from ..system.errors import OptionError, ShapeError
from .module import Module
from .tensor import Tensor
from .trace import Trace, current_trace

Planned = TypeVar("Planned", Module, Tensor)
STEPS_BACK = 3
"""How far `set_available_memory` looks behind a tensor for its operator: a Linear may end in a reshape and an addition."""


def _proportion(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise OptionError(f"{what} must be a number from 0 to 1, got {value!r}.")
    return float(value)


def set_available_memory(target: Planned, proportion: float) -> Planned:
    """Bound the temporary memory of a convolution, matmul, embedding lookup or indexing on the tile machine; returns `target`.

        self.conv = tileflow.nn.set_available_memory(tileflow.nn.Conv2d(3, 64, 7), 0.2)
        y = tileflow.nn.set_available_memory(a @ b, 0.1)

    Args:
        target: a layer (all such operators in it, unless an inner layer has its own bound), or a tensor that one of them made.
        proportion: share of a tile's memory, 0 to 1. It goes before the option available_memory_proportion.

    Raises:
        OptionError: the proportion is out of range, or no such operator made the tensor.
    """
    proportion = _proportion(proportion, "The proportion of set_available_memory")
    return _asked(target, Hints(proportion), "set_available_memory: no convolution, matmul, lookup or indexing")


def recomputation_checkpoint(*tensors: Tensor) -> Any:
    """Keep tensors for the backward pass where the layers around them are computed again for it; returns them, one as itself.

        x = tileflow.nn.recomputation_checkpoint(self.layer1(x))

    It counts where something is computed again: blocks that the option gradient_checkpointing names, stages of a pipeline, and on the tile machine
    `recompute`, which then keeps these tensors and no others. Results do not depend on it. Inputs and weights are always there.

    Raises:
        OptionError: something else than tensors is given, or nothing.
    """
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise OptionError(f"recomputation_checkpoint takes tensors that layers or functions made, not {', '.join(map(repr, tensors)) or 'nothing'}.")
    for tensor in tensors:
        node = tensor.value.producer
        if node is not None:
            node.ask(Hints(kept=True))
    return tensors[0] if len(tensors) == 1 else tensors


def set_partials(target: Planned, dtype: str) -> Planned:
    """Let float16 products and convolutions add up in float16, rounded after every 16 products, or in float32; returns `target`.

    Unlike the other hints this one is computed with, by the host as well.

        self.conv = tileflow.nn.set_partials(tileflow.nn.Conv2d(3, 64, 7), "float16")

    Args:
        target: a layer (all such operators in it, unless an inner layer says otherwise), or a tensor that one of them made.
        dtype: "float16" or "float32". It goes before the option partials.

    Raises:
        OptionError: it is another type, or no product or convolution made the tensor.
    """
    if dtype not in ("float16", "float32"):
        raise OptionError(f"Partial sums are float16 or float32, not {dtype!r}.")
    return _asked(target, Hints(partials=dtype), "set_partials: no convolution or matmul")


def _asked(target: Planned, hints: Hints, nothing: str) -> Planned:
    """Ask hints of a layer, or of the operator that made a tensor; OptionError, which begins with `nothing`, where none
    did."""
    if isinstance(target, Module):
        target._hints = hints.over(target._hints)
        return target
    node = _planned(target.value)
    if node is None:
        raise OptionError(f"{nothing} made {target!r}; call it on the result of one.")
    node.ask(hints)
    return target


def _planned(value: Value) -> Node | None:
    """The operator behind a value that the planner bounds."""
    node = value.producer
    for _ in range(STEPS_BACK):
        if node is None:
            return None
        if any(isinstance(work, (Contraction, Gather, Scatter)) for work in works(node)):
            return node
        node = next((v.producer for v in node.operands if v.producer is not None), None)
    return None


class MultiConv:
    """Convolutions recorded in the block are planned together on the tile machine; none may need another's result.

        with tileflow.nn.MultiConv(plan_type="parallel", available_memory_proportions=[0.1, 0.3]):
            a, b = self.left(x), self.right(y)

    Their gradients make groups of their own. The host computes each as always.

    Args:
        available_memory_proportions: one for all, or one per convolution, each from 0 to below 1.
        partials_types: "float32" or "float16", one for all, or one per convolution.
        plan_type: "parallel" (side by side on parts of the tiles) or "serial" (one after the other on all).
        per_conv_reserved_tiles: tiles kept for each other convolution while the largest is planned.
        cycle_back_off: share of cycles that the largest may take more than at its best, to leave tiles to the others.

    Raises:
        OptionError: a value out of range, nested blocks, no convolution in the block, lists of another length, or a convolution
            that depends on another one of the block.
    """

    def __init__(self, available_memory_proportions: float | Sequence[float] | None = None,
                 partials_types: str | Sequence[str] | None = None, plan_type: str = "parallel",
                 per_conv_reserved_tiles: int = 50, cycle_back_off: float = 0.1) -> None:
        self._proportions = _each(available_memory_proportions)
        for share in self._proportions or ():
            if _proportion(share, "available_memory_proportions of MultiConv") >= 1:
                raise OptionError(f"available_memory_proportions of MultiConv must be below 1, got {share!r}.")
        self._partials = _each(partials_types)
        if not set(self._partials or ()) <= {"float32", "float16"}:
            raise OptionError(f"Invalid partials types {partials_types!r} of MultiConv; expecting float32 or float16.")
        if plan_type not in ("parallel", "serial"):
            raise OptionError(f"Invalid plan type {plan_type!r} of MultiConv; it must be parallel or serial.")
        if isinstance(per_conv_reserved_tiles, bool) or not isinstance(per_conv_reserved_tiles, int) or per_conv_reserved_tiles < 1:
            raise OptionError(f"per_conv_reserved_tiles of MultiConv must be a whole number of at least 1, got {per_conv_reserved_tiles!r}.")
        if isinstance(cycle_back_off, bool) or not isinstance(cycle_back_off, (int, float)) or not 0 <= cycle_back_off < math.inf:
            raise OptionError(f"cycle_back_off of MultiConv must be a number of at least 0, got {cycle_back_off!r}.")
        self._plan, self._reserved, self._back_off = plan_type, per_conv_reserved_tiles, float(cycle_back_off)
        self._trace: Trace | None = None
        self._first = 0

    def __enter__(self) -> MultiConv:
        trace = current_trace("MultiConv")
        if trace.multi_conv:
            raise OptionError("Nested MultiConv is not supported; end one block before the next begins.")
        trace.multi_conv, self._trace, self._first = True, trace, len(trace.graph.nodes)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        trace = self._trace
        assert trace is not None
        trace.multi_conv = False
        if kind is None:
            self._group(trace)

    def _group(self, trace: Trace) -> None:
        convolutions = [n for n in trace.graph.nodes[self._first:] if n.op.name == "Conv"]
        if not convolutions:
            raise OptionError("Unexpected end of MultiConv: no convolution was recorded in the block.")
        _check_independent(trace.graph, convolutions)
        count = len(convolutions)
        proportions = _spread(self._proportions, count, "available_memory_proportions")
        partials = _spread(self._partials, count, "partials_types")
        trace.groups += 1
        group = Group(f"multi_conv{trace.groups}", self._plan, self._reserved, self._back_off)
        for node, share, dtype in zip(convolutions, proportions, partials, strict=True):
            node.ask(Hints(share, dtype, group))


def _each(values: Any) -> list[Any] | None:
    if values is None:
        return None
    return [values] if isinstance(values, (str, int, float)) else list(values)


def _spread(values: list[Any] | None, count: int, what: str) -> list[Any]:
    """One value per convolution."""
    if values is None:
        return [None] * count
    if len(values) == 1:
        return values * count
    if len(values) != count:
        raise OptionError(f"{what} of MultiConv has {len(values)} values for {count} convolutions; give one, or one for each.")
    return values


def _check_independent(graph: Graph, convolutions: list[Node]) -> None:
    """Raises OptionError where one of the convolutions needs a result of another."""
    behind: dict[Value, Node] = {}
    for node in graph.nodes:
        source = next((behind[v] for v in node.operands if v in behind), None)
        grouped = any(node is c for c in convolutions)
        if grouped and source is not None:
            raise OptionError(f"MultiConv: the convolution {node.origin} needs the result of {source.origin}; convolutions of one block "
                              "must not depend on each other.")
        if grouped or source is not None:
            behind.update(dict.fromkeys(node.outputs, node if grouped else source))          # type: ignore[arg-type]


def serialized_matmul(lhs: Tensor, rhs: Any, mode: str, factor: int = 0, keep_precision: bool = False) -> Tensor:
    """lhs @ rhs in `factor` pieces one after the other, so that temporaries are smaller; gradients are done in pieces, too.

    Args:
        lhs, rhs: [m, k] and [k, n], or [groups, m, k] and [groups, k, n].
        mode: "input_channels" cuts m, "reducing_dim" k (partial products are added), "output_channels" n; "none" is lhs @ rhs.
        factor: number of pieces; it must divide the dimension that is cut.
        keep_precision: add the pieces in float32 where the operands are float16.

    Raises:
        OptionError: an unknown mode. ShapeError: ranks that do not fit, or a factor that does not divide.
    """
    other = lhs.lift(rhs)
    if mode == "none":
        return lhs @ other
    for side, tensor in (("LHS", lhs), ("RHS", other)):
        if len(tensor.shape) not in (2, 3):
            raise ShapeError(f"{side} input {tensor.value.name} must have rank 2 or 3 for matmul serialization, not {len(tensor.shape)}. "
                             "Please squeeze or reshape for serialization.")
    if len(lhs.shape) != len(other.shape):
        raise ShapeError(f"LHS (rank {len(lhs.shape)}) and RHS (rank {len(other.shape)}) matmuls must have equal rank for matmul serialization.")
    made: Tensor = lhs.apply("SerializedMatMul", other, mode=mode, factor=factor, keep_precision=keep_precision)
    return made
