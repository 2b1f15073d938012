"""Symbolic tensors: what a module's `forward` computes with while its graph is recorded."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import ops  # noqa: F401  (fills the registry)
from ..errors import TileflowError, TypeMismatchError
from ..graph import Builder, Graph, State, Value
from .parameter import Buffer, Parameter


@dataclass
class Trace:
    """One recording of a network: the graph so far and the states its parameters became."""

    graph: Graph
    training: bool
    dtype: str
    builder: Builder = field(init=False)
    states: dict[int, State] = field(default_factory=dict)
    streams: int = 0
    multi_conv: bool = False
    """A MultiConv block is open."""
    groups: int = 0
    """MultiConv blocks so far."""

    def __post_init__(self) -> None:
        self.builder = Builder(self.graph)

    def state(self, parameter: Parameter | Buffer) -> State:
        """The state of a parameter or buffer; made at its first use."""
        if id(parameter) not in self.states:
            raise TileflowError("forward() used a Parameter that is not an attribute of any module of the network; assign it to one.")
        return self.states[id(parameter)]

    def stream(self) -> int:
        """The next random stream's number: fixed by position in the network."""
        self.streams += 1
        return self.streams


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextmanager
def recording(trace: Trace) -> Iterator[None]:
    """Within the block `current_trace()` is `trace`."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


def current_trace(what: str) -> Trace:
    """The recording under way; `what` needs one.

    Raises:
        TileflowError: no network is being recorded.
    """
    trace = _current.get()
    if trace is None:
        raise TileflowError(f"{what} belongs into a module's forward(), which runs while the network is recorded.")
    return trace


class Tensor:
    """A value of the graph under construction. Python operators and the methods below record ONNX operators."""

    __slots__ = ("trace", "value")
    __array_priority__ = 100

    def __init__(self, trace: Trace, value: Value) -> None:
        self.trace, self.value = trace, value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def __repr__(self) -> str:
        return f"Tensor({self.value!r})"

    def __bool__(self) -> bool:
        raise TypeMismatchError("A tensor has no value while the network is recorded, so it cannot steer an if or while; "
                                "use nn.where(condition, a, b).")

    def apply(self, operator: str, *others: Any, **attributes: Any) -> Any:
        """Apply an operator of the registry to this tensor and others (tensors, parameters, arrays or numbers)."""
        operands = [self.value, *(None if o is None else self.lift(o).value for o in others)]
        result = getattr(self.trace.builder, operator)(*operands, **attributes)
        return tuple(Tensor(self.trace, v) for v in result) if isinstance(result, tuple) else Tensor(self.trace, result)

    def lift(self, other: Any) -> Tensor:
        """A tensor from a tensor, a parameter, an array or a number (in this tensor's element type)."""
        if isinstance(other, Tensor):
            return other
        if isinstance(other, (Parameter, Buffer)):
            return Tensor(self.trace, self.trace.state(other).input)
        if isinstance(other, (bool, int, float)):
            return Tensor(self.trace, self.trace.builder.scalar(other, self.value))
        array = np.asarray(other)
        if array.dtype.kind == "f":
            array = array.astype(self.trace.dtype)
        return Tensor(self.trace, self.trace.builder.constant(array))

    def __add__(self, other: Any) -> Tensor:
        return self.apply("Add", other)

    def __radd__(self, other: Any) -> Tensor:
        return self.lift(other).apply("Add", self)

    def __sub__(self, other: Any) -> Tensor:
        return self.apply("Sub", other)

    def __rsub__(self, other: Any) -> Tensor:
        return self.lift(other).apply("Sub", self)

    def __mul__(self, other: Any) -> Tensor:
        return self.apply("Mul", other)

    def __rmul__(self, other: Any) -> Tensor:
        return self.lift(other).apply("Mul", self)

    def __truediv__(self, other: Any) -> Tensor:
        return self.apply("Div", other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self.lift(other).apply("Div", self)

    def __pow__(self, other: Any) -> Tensor:
        return self.apply("Pow", other)

    def __neg__(self) -> Tensor:
        return self.apply("Neg")

    def __matmul__(self, other: Any) -> Tensor:
        return self.apply("MatMul", other)

    def __lt__(self, other: Any) -> Tensor:
        return self.apply("Less", other)

    def __le__(self, other: Any) -> Tensor:
        return self.apply("LessOrEqual", other)

    def __gt__(self, other: Any) -> Tensor:
        return self.apply("Greater", other)

    def __ge__(self, other: Any) -> Tensor:
        return self.apply("GreaterOrEqual", other)

    def __eq__(self, other: Any) -> Tensor:          # type: ignore[override]
        return self.apply("Equal", other)

    def __ne__(self, other: Any) -> Tensor:          # type: ignore[override]
        return (self == other).apply("Not")

    __hash__ = object.__hash__

    def reshape(self, *shape: int) -> Tensor:
        """The same elements in another shape; one size may be -1."""
        return self.apply("Reshape", shape=tuple(shape))

    def flatten(self, axis: int = 1) -> Tensor:
        """Two dimensions: those before `axis`, and the rest."""
        return self.apply("Flatten", axis=axis)

    def transpose(self, *perm: int) -> Tensor:
        """Axes in another order."""
        return self.apply("Transpose", perm=tuple(perm))

    def sum(self, *axes: int, keepdims: bool = False) -> Tensor:
        """Sum over axes (all of them by default)."""
        return self.apply("ReduceSum", axes=axes or tuple(range(len(self.shape))), keepdims=keepdims)

    def mean(self, *axes: int, keepdims: bool = False) -> Tensor:
        """Mean over axes (all of them by default)."""
        return self.apply("ReduceMean", axes=axes or tuple(range(len(self.shape))), keepdims=keepdims)

    def relu(self) -> Tensor:
        return self.apply("Relu")

    def sigmoid(self) -> Tensor:
        return self.apply("Sigmoid")

    def tanh(self) -> Tensor:
        return self.apply("Tanh")

    def exp(self) -> Tensor:
        return self.apply("Exp")

    def log(self) -> Tensor:
        return self.apply("Log")

    def sqrt(self) -> Tensor:
        return self.apply("Sqrt")


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    """`a` where the condition holds and `b` elsewhere: tensors, parameters, arrays or numbers.

    Raises:
        TypeMismatchError: both are numbers, which leaves the element type open.
    """
    typed = [x for x in (a, b) if not isinstance(x, (bool, int, float))]
    if not typed:
        raise TypeMismatchError(f"where() has the numbers {a} and {b} and no element type; make one of them an array.")
    like = condition.lift(typed[0])
    return condition.apply("Where", like.lift(a), like.lift(b))
