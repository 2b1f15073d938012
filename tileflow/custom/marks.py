"""How a user says in which form `forward` and `gradient` are written: a decorator on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from ..system.errors import OptionError

Kind = Literal["expression", "composition", "compiled", "python"]


@dataclass(frozen=True)
class UserFunction:
    """A function of a user's with the form it is in.

    rows: of a compiled one, the parameters that arrive cut to some rows. cost: nanoseconds for one element of the first
    output.
    flops: operations for one element, for the simulated machine.
    """

    kind: Kind
    function: Callable[..., Any]
    rows: tuple[str, ...] = ()
    cost: float = 1.0
    flops: float = 1.0


def expression(function: Callable[..., Any]) -> Any:
    """The function says what one element is: it takes scalar expressions and gives one, or a tuple of one for each
    output.

        @expression
        def forward(self, x):
            return where(x < 0, self.alpha * x, x)

    Operands broadcast. The kernel is fused with its neighbours and planned on tiles; its gradient follows from it.
    """
    return UserFunction("expression", function)


def composition(function: Callable[..., Any]) -> Any:
    """The function puts the outputs together of other operators, by a builder that knows them by their ONNX names.

        @composition
        def forward(self, b, x, w):
            return b.Relu(b.MatMul(x, w))

    Attributes are keywords (`b.ReduceSum(x, axes=(1,), keepdims=0)`), numbers are `b.scalar(2.0, x)`, arrays
    `b.constant(array)`, an operator of one's own is `b.emit(Cube(), x)[0]`. The gradient is that of the parts.
    """
    return UserFunction("composition", function)


@overload
def compiled(function: Callable[..., Any]) -> Any: ...
@overload
def compiled(*, rows: Sequence[str] = (), cost: float = 1.0, flops: float = 1.0) -> Any: ...


def compiled(
    function: Callable[..., Any] | None = None, *, rows: Sequence[str] = (), cost: float = 1.0, flops: float = 1.0
) -> Any:
    """The function is compiled by Numba and called in the native loop. It takes arrays, those of the outputs too, which
    it fills, and then attributes by their names; it is plain, or decorated with `numba.njit`, and has no `self`.

        @compiled(rows=("x", "y"))
        def forward(x, y, alpha):
            for i in range(x.shape[0]):
                for j in range(x.shape[1]):
                    y[i, j] = x[i, j] if x[i, j] > 0 else alpha * x[i, j]

    Arrays are C-contiguous and of the operands' types; a single number is an array of one element, 16-bit floats arrive
    as float32. Attributes are an int, a float, an array (int64, float64), a text or a tuple of texts. The operator
    declares `infer`. An exception within ends the call.

    Args:
        rows: parameters, all outputs among them, that arrive cut to some rows of their first axis, which is as long for
        each: threads then share the rows out.
        cost: nanoseconds for an element of the first output, about, by which it is decided whether they do.
        flops: operations for such an element, as the simulated machine counts them.
    """
    if isinstance(rows, str):
        raise OptionError(f"rows of compiled() are the names of parameters, such as rows=({rows!r},).")

    def mark(function: Callable[..., Any]) -> UserFunction:
        return UserFunction("compiled", function, tuple(rows), cost, flops)

    return mark if function is None else mark(function)


@overload
def python(function: Callable[..., Any]) -> Any: ...
@overload
def python(*, flops: float = 1.0) -> Any: ...


def python(function: Callable[..., Any] | None = None, *, flops: float = 1.0) -> Any:
    """The function is called by Python, between two rows of the native loop, in program order: arrays in (not to be
    written; they are gone when it returns), an array or a tuple of them out.

        @python
        def forward(self, x):
            return np.sort(x, axis=-1)

    The result must follow from the arrays alone: what is computed of the same ones may be computed once. The operator
    declares `infer`. What the function raises ends the call, as itself; so does Ctrl-C.

    Args:
        flops: operations for an element of the first output, as the simulated machine counts them.
    """

    def mark(function: Callable[..., Any]) -> UserFunction:
        return UserFunction("python", function, flops=flops)

    return mark if function is None else mark(function)
