"""Symbolic tensors: what a module's `forward` computes with while its graph is recorded."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..graph import Op, Value
from ..memory.tensor import kind_of
from ..system.errors import OptionError, TypeMismatchError
from .casts import Casts
from .moves import Dim, Moves
from .picks import Picks
from .trace import Trace, current_trace


class Tensor(Moves["Tensor"], Casts["Tensor"], Picks["Tensor"]):
    """A value of the graph under construction. Python operators and the methods below record ONNX operators.

    Names, arguments and results are those of torch.Tensor, but nothing is changed in place and shapes are known while recording.
    """

    __slots__ = ("_trace", "_value")
    __array_ufunc__ = None                     # array + tensor is ours

    def __init__(self, trace: Trace, value: Value) -> None:
        self._trace, self._value = trace, value

    @property
    def trace(self) -> Trace:
        return self._trace

    @property
    def value(self) -> Value:
        return self._value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def __repr__(self) -> str:
        return f"Tensor({self.value!r})"

    def _no_value(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeMismatchError("A tensor has no value while the network is recorded, so it cannot steer an if or while, or become a number or "
                                "an array; use nn.where(condition, a, b).")

    __bool__ = __float__ = __int__ = __array__ = item = numpy = tolist = _no_value

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeMismatchError("A tensor is not changed in place; make a new one with nn.where, masked_fill or nn.cat.")

    # ---- recording

    def apply(self, operator: str, *others: Any, **attributes: Any) -> Any:
        """Apply an operator of the registry to this tensor and others (tensors, parameters, arrays or numbers)."""
        operands = [self.value, *(None if o is None else self.lift(o).value for o in others)]
        result = getattr(self.trace.builder, operator)(*operands, **attributes)
        return tuple(Tensor(self.trace, v) for v in result) if isinstance(result, tuple) else Tensor(self.trace, result)

    def applied(self, op: Op, inputs: Sequence[Any]) -> Any:
        """What an operator that is made already gives of tensors, parameters, arrays or numbers (None: absent)."""
        operands = [None if x is None else self.lift(x).value for x in inputs]
        made = tuple(Tensor(self.trace, v) for v in self.trace.builder.emit(op, *operands))
        return made[0] if len(made) == 1 else made

    def lift(self, other: Any) -> Tensor:
        """A tensor from a tensor, an array or a number; numbers and floats of arrays get this tensor's element type if it is a float."""
        if isinstance(other, Tensor):
            return other
        if isinstance(other, (bool, int, float)):
            return Tensor(self.trace, self.trace.builder.scalar(other, self.value))
        array = np.asarray(other)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype if self.value.type.is_float else self.trace.dtype)
        return Tensor(self.trace, self.trace.builder.constant(array))

    def _both(self, other: Any) -> tuple[Tensor, Tensor]:
        """Two operands of one kind: booleans become whole numbers beside those, and both floats beside floats."""
        kinds = "biuf"
        if isinstance(other, (bool, int, float)):
            kind = "b" if isinstance(other, bool) else "i" if isinstance(other, int) else "f"
            a = self._of_kind(kind) if kinds.index(kind) > kinds.index(self._kind) and (kind != "i" or self._kind != "u") else self
            return a, a.lift(other)
        b = self.lift(other)
        a, b = self._of_kind(b._kind, b.dtype), b._of_kind(self._kind, self.dtype)
        if a._kind in "iu" and a.dtype != b.dtype:
            wide = np.promote_types(a.dtype, b.dtype).name
            return a.to(wide), b.to(wide)
        return a, b

    @property
    def _kind(self) -> str:
        return kind_of(self.value.type.numpy)

    def _of_kind(self, kind: str, dtype: str | None = None) -> Tensor:
        """This tensor, as a `dtype` (by default int64 or the recording's float) if its own kind gives way to `kind`."""
        if kind == "f" and self._kind != "f":
            return self.to(dtype or self.trace.dtype)
        return self.to(dtype or "int64") if kind in "iu" and self._kind == "b" else self

    def _two(self, operator: str, other: Any) -> Tensor:
        a, b = self._both(other)
        return a.apply(operator, b)

    def _reversed(self, operator: str, other: Any) -> Tensor:
        a, b = self._both(other)
        return b.apply(operator, a)

    def _float(self) -> Tensor:
        return self._of_kind("f")

    # ---- arithmetic

    def __add__(self, other: Any) -> Tensor: return self._two("Add", other)
    def __radd__(self, other: Any) -> Tensor: return self._reversed("Add", other)
    def __sub__(self, other: Any) -> Tensor: return self._two("Sub", other)
    def __rsub__(self, other: Any) -> Tensor: return self._reversed("Sub", other)
    def __mul__(self, other: Any) -> Tensor: return self._two("Mul", other)
    def __rmul__(self, other: Any) -> Tensor: return self._reversed("Mul", other)
    def __pow__(self, other: Any) -> Tensor: return self._two("Pow", other)
    def __rpow__(self, other: Any) -> Tensor: return self._reversed("Pow", other)
    def __matmul__(self, other: Any) -> Tensor: return self._two("MatMul", other)
    def __rmatmul__(self, other: Any) -> Tensor: return self._reversed("MatMul", other)
    def __mod__(self, other: Any) -> Tensor: return self._two("Mod", other)
    def __neg__(self) -> Tensor: return self.apply("Neg")
    def __abs__(self) -> Tensor: return self.apply("Abs")
    def __lt__(self, other: Any) -> Tensor: return self._two("Less", other)
    def __le__(self, other: Any) -> Tensor: return self._two("LessOrEqual", other)
    def __gt__(self, other: Any) -> Tensor: return self._two("Greater", other)
    def __ge__(self, other: Any) -> Tensor: return self._two("GreaterOrEqual", other)
    def __eq__(self, other: Any) -> Tensor: return self._two("Equal", other)                # type: ignore[override]
    def __ne__(self, other: Any) -> Tensor: return self._two("Equal", other).apply("Not")   # type: ignore[override]
    def __and__(self, other: Any) -> Tensor: return self._two("And" if self._kind == "b" else "BitwiseAnd", other)
    def __or__(self, other: Any) -> Tensor: return self._two("Or" if self._kind == "b" else "BitwiseOr", other)
    def __xor__(self, other: Any) -> Tensor: return self._two("Xor" if self._kind == "b" else "BitwiseXor", other)
    def __invert__(self) -> Tensor: return self.apply("Not" if self._kind == "b" else "BitwiseNot")

    __hash__ = object.__hash__

    def __truediv__(self, other: Any) -> Tensor:
        a, b = self._both(other)
        return a._float().apply("Div", b._float())

    def __rtruediv__(self, other: Any) -> Tensor:
        a, b = self._both(other)
        return b._float().apply("Div", a._float())

    def __floordiv__(self, other: Any) -> Tensor:
        """Rounded down."""
        a, b = self._both(other)
        return a.apply("Div", b).floor() if a._kind == "f" else (a - a.apply("Mod", b)).apply("Div", b)

    def __rfloordiv__(self, other: Any) -> Tensor:
        a, b = self._both(other)
        return b // a

    def __rmod__(self, other: Any) -> Tensor: return self._reversed("Mod", other)

    def abs(self) -> Tensor: return self.apply("Abs")
    def ceil(self) -> Tensor: return self.apply("Ceil")
    def cos(self) -> Tensor: return self._float().apply("Cos")
    def erf(self) -> Tensor: return self._float().apply("Erf")
    def exp(self) -> Tensor: return self._float().apply("Exp")
    def floor(self) -> Tensor: return self.apply("Floor")
    def isinf(self) -> Tensor: return self.apply("IsInf")
    def isnan(self) -> Tensor: return self.apply("IsNaN")
    def log(self) -> Tensor: return self._float().apply("Log")
    def log_softmax(self, dim: int) -> Tensor: return self._float().apply("LogSoftmax", axis=self._axis(dim))
    def matmul(self, other: Any) -> Tensor: return self @ other
    def pow(self, exponent: Any) -> Tensor: return self ** exponent
    def reciprocal(self) -> Tensor: return self._float().apply("Reciprocal")
    def relu(self) -> Tensor: return self.apply("Relu")
    def round(self) -> Tensor: return self.apply("Round")
    def rsqrt(self) -> Tensor: return self.sqrt().reciprocal()
    def sigmoid(self) -> Tensor: return self._float().apply("Sigmoid")
    def sign(self) -> Tensor: return self.apply("Sign")
    def sin(self) -> Tensor: return self._float().apply("Sin")
    def softmax(self, dim: int) -> Tensor: return self._float().apply("Softmax", axis=self._axis(dim))
    def sqrt(self) -> Tensor: return self._float().apply("Sqrt")
    def square(self) -> Tensor: return self * self
    def tanh(self) -> Tensor: return self._float().apply("Tanh")

    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        """Between two bounds: numbers, tensors, or None where there is none."""
        if min is None and max is None:
            raise OptionError("clamp needs min, max or both.")
        if all(bound is None or isinstance(bound, (int, float)) for bound in (min, max)):
            return self.apply("Clip", min=min, max=max)
        low = self if min is None else self._two("Max", min)
        return low if max is None else low._two("Min", max)

    def masked_fill(self, mask: Tensor | np.ndarray, value: Any) -> Tensor:
        """`value` where the mask of booleans holds, else this."""
        return where(self.lift(mask), value, self)

    def where(self, condition: Tensor, other: Any) -> Tensor:
        """This where the condition holds, else the other."""
        return where(condition, self, other)

    # ---- over axes

    def sum(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Over axes (all by default); whole numbers and booleans give int64."""
        axes = self._axes(dim, keepdim)
        if self._kind != "f":
            return self.to("float64").sum(dim, keepdim).to("int64")          # exact up to 2^53
        return self.apply("ReduceSum", axes=axes, keepdims=keepdim)

    def mean(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Over axes (all by default)."""
        return self.apply("ReduceMean", axes=self._axes(dim, keepdim), keepdims=keepdim)

    def prod(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Over axes (all by default)."""
        return self.apply("ReduceProd", axes=self._axes(dim, keepdim), keepdims=keepdim)

    def var(self, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None) -> Tensor:
        """The variance over axes (all by default), divided by n - 1, or n where not `unbiased`, or n - `correction`."""
        count = math.prod(self.shape[a] for a in self._axes(dim, keepdim)) - (int(unbiased) if correction is None else correction)
        centred = self - self.mean(dim, True)
        return (centred * centred).sum(dim, keepdim) / float(max(count, 0))

    def std(self, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None) -> Tensor:
        """The root of the variance; its gradient at 0 is 0."""
        return self.var(dim, unbiased, keepdim, correction=correction)._root()

    def norm(self, p: float = 2, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """sum(|x|^p)^(1/p) over axes (all by default), or with p = inf the largest |x|; its gradient at 0 is 0."""
        if p == 2:
            return (self * self).sum(dim, keepdim)._root()
        if p == math.inf:
            return self.abs().amax(dim, keepdim)
        return self.abs().sum(dim, keepdim) if p == 1 else (self.abs() ** p).sum(dim, keepdim) ** (1 / p)

    def _root(self) -> Tensor:
        """The square root, with the gradient 0 at 0."""
        zero = self == 0
        return where(zero, 0, where(zero, 1, self).sqrt())

    def logsumexp(self, dim: Dim, keepdim: bool = False) -> Tensor:
        """log(sum(exp(x))) over axes without overflow."""
        top = self.amax(dim, True)
        top = where(top.isinf(), 0, top).detach()
        total = (self - top).exp().sum(dim, True).log() + top
        return total if keepdim else total.squeeze(self._axes(dim))

    def amax(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The largest over axes (all by default); ties share the gradient."""
        return self.apply("ReduceMax", axes=self._axes(dim, keepdim), keepdims=keepdim)

    def amin(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The smallest over axes (all by default); ties share the gradient."""
        return self.apply("ReduceMin", axes=self._axes(dim, keepdim), keepdims=keepdim)

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The largest of all; along one axis: (values, indices); or, given a tensor, the larger of each two."""
        return self._best("Max", dim, keepdim)

    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The smallest of all; along one axis: (values, indices); or, given a tensor, the smaller of each two."""
        return self._best("Min", dim, keepdim)

    def _best(self, which: str, dim: Any, keepdim: bool) -> Any:
        if isinstance(dim, (Tensor, np.ndarray)):
            return self._two(which, dim)
        axes = self._axes(dim, keepdim)
        values = self.apply(f"Reduce{which}", axes=axes, keepdims=keepdim)
        return values if dim is None else Best(values, self.apply(f"Arg{which}", axis=self._axis(dim), keepdims=keepdim))

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The place of the largest along an axis, the first of equals; by default among all elements in order."""
        return self.reshape(-1).argmax(0) if dim is None else self.apply("ArgMax", axis=self._axis(dim), keepdims=keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The place of the smallest along an axis, the first of equals; by default among all elements in order."""
        return self.reshape(-1).argmin(0) if dim is None else self.apply("ArgMin", axis=self._axis(dim), keepdims=keepdim)

    def any(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Whether one holds, over axes (all by default)."""
        return self.bool().to("int32").amax(dim, keepdim).bool()

    def all(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Whether each holds, over axes (all by default)."""
        return self.bool().to("int32").amin(dim, keepdim).bool()

    def detach(self) -> Tensor:
        """The same numbers, through which no gradient flows."""
        return self.apply("Detach")


class Best(NamedTuple):
    """What `max` and `min` along an axis give."""

    values: Tensor
    indices: Tensor


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    """`a` where the condition holds and `b` elsewhere: tensors, parameters, arrays or numbers.

    Raises:
        TypeMismatchError: both are numbers, which leaves the element type open.
    """
    typed = [x for x in (a, b) if not isinstance(x, (bool, int, float))]
    if not typed:
        raise TypeMismatchError(f"where() has the numbers {a} and {b} and no element type; make one of them an array.")
    like = condition.lift(typed[0])
    if like is typed[0]:
        first, second = like._both(b if like is a else a)
        a, b = (first, second) if like is a else (second, first)
    return condition.apply("Where", like.lift(a), like.lift(b))


def tensor(data: Any, dtype: Any = None) -> Tensor:
    """Known numbers as a tensor, in `forward`; floats get the recording's element type unless `dtype` says another."""
    trace = current_trace("tensor()")
    array = np.asarray(data)
    if dtype is None and array.dtype.kind == "f":
        array = array.astype(trace.dtype)
    made = Tensor(trace, trace.builder.constant(array))
    return made if dtype is None else made.to(dtype)


def cat(tensors: Sequence[Any], dim: int = 0) -> Tensor:
    """Tensors one after another along an axis."""
    first = _first(tensors, "cat")
    return first.lift(tensors[0]).apply("Concat", *tensors[1:], axis=first._axis(dim))


def stack(tensors: Sequence[Any], dim: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    first = _first(tensors, "stack")
    return cat([first.lift(t).unsqueeze(dim) for t in tensors], first._axis(dim, 1))


def _first(tensors: Sequence[Any], what: str) -> Tensor:
    for x in tensors:
        if isinstance(x, Tensor):
            return x
    raise TypeMismatchError(f"{what}() takes a list with at least one tensor.")
