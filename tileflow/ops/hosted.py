"""What Python computes in the native loop: a function over arrays as an operator, and what such operators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from ..graph import Builder, Op, TensorType, Value
from ..graph.op import Types
from ..graph.work import Axis, Map, Operand, Work
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.host import HostCall, Moment
from ..system.errors import ShapeError, TypeMismatchError
from .shape import zeros

Array = np.ndarray
Compute = Callable[..., Sequence[Array]]
FUNCTIONS: WeakValueDictionary[str, HostFunction] = WeakValueDictionary()
"""Functions that files made in this process call, by tokens that nobody else can know."""


def host_call(compute: Compute, inputs: Types, outputs: Sequence[TensorType]) -> HostCall:
    """A HOST row that computes outputs from inputs (None: absent), which it does not write."""
    args: list[In | Out] = [In(i, t.shape) for i, t in enumerate(inputs) if t is not None]
    count, absent = len(args), [t is None for t in inputs]

    def run(moment: Moment, *arrays: Array) -> None:
        for array in arrays[:count]:
            array.flags.writeable = False
        given = iter(arrays[:count])
        found = compute(*(None if gone else next(given) for gone in absent))
        for out, array in zip(arrays[count:], found, strict=True):
            out[...] = array

    return HostCall(run, [*args, *(Out(k, t.shape) for k, t in enumerate(outputs))])


def listed(made: Any) -> list[Any]:
    """What a function gave, one or several."""
    return list(made) if isinstance(made, tuple | list) else [made]


def fitting(found: Sequence[Any], types: Sequence[TensorType], name: str) -> tuple[Array, ...]:
    """What a function gave as what it is to give (ShapeError, TypeMismatchError)."""
    if len(found) != len(types):
        raise ShapeError(f"{name} gave {len(found)} arrays where {len(types)} are wanted.")
    made = []
    for array, t in zip(map(np.asarray, found), types, strict=True):
        if array.shape != t.shape:
            raise ShapeError(f"{name} gave an array of shape {list(array.shape)} where {t} is wanted.")
        rounded = array.dtype.kind == "f" and t.is_float
        if array.dtype != t.numpy and not rounded and not np.can_cast(array.dtype, t.numpy, "same_kind"):
            raise TypeMismatchError(f"{name} gave {array.dtype} where {t} is wanted.")
        made.append(array.astype(t.numpy, copy=False))
    return tuple(made)


def counted_whole(
    inputs: Types, outputs: Sequence[TensorType], flops: float, rows: frozenset[int] = frozenset()
) -> Work:
    """The work of what nobody looks into: `flops` for each element of the first output, on one tile; or with the first
    axis shared out, along which the operands of these numbers (inputs, then outputs) are cut."""
    first = outputs[0]
    cut = len(inputs) in rows
    axes = tuple(Axis(f"d{i}", max(1, n), "parallel" if cut and i == 0 else "whole") for i, n in enumerate(first.shape))

    def operand(i: int, t: TensorType) -> Operand:
        own = [f"d{k}" if t.shape == first.shape else None for k in range(t.rank)]
        return Operand(("d0" if i in rows else None, *own[1:]) if t.rank else (), t.dtype)

    return Map(
        axes,
        tuple(None if t is None else operand(i, t) for i, t in enumerate(inputs)),
        tuple(operand(len(inputs) + i, t) for i, t in enumerate(outputs)),
        flops,
    )


@dataclass(frozen=True)
class HostFunction(Op):
    """What a function of Python's makes of arrays: of operands of these types, results of those.

    gradient: of inputs, outputs and gradients of the outputs, gives one gradient (or None) for each input.
    """

    name: ClassVar[str] = "HostFunction"
    onnx: ClassVar[bool] = False
    no_gradient: ClassVar[str] = "no gradient is given for the function that Python runs"
    no_file: ClassVar[str] = ("is a function of Python's, which is no data; a file names an operator that "
                              "tileflow.operator declares, whose forward may be custom.python")

    function: Callable[..., Any]
    results: tuple[TensorType, ...]
    gradient: Callable[..., Any] | None = None

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.results

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return fitting(listed(self.function(*inputs)), self.results, getattr(self.function, "__name__", "the function"))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        """Nothing that is compiled."""
        return []

    def host(self, inputs: Types, outputs: Sequence[TensorType]) -> HostCall:
        return host_call(self.reference, inputs, outputs)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        return counted_whole(inputs, outputs, 1.0)

    def vjp(
        self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None], outputs: Sequence[Value]
    ) -> Sequence[Value | None]:
        gradient, wanted = self.gradient, [v is not None and v.type.is_float for v in inputs]
        if gradient is None or not any(wanted):
            return [None] * len(inputs)

        def chosen(*arrays: Array | None) -> list[Any]:
            found = listed(gradient(*arrays))
            return [
                np.zeros_like(a) if g is None else g
                for g, w, a in zip(found, wanted, arrays[: len(wanted)], strict=True)
                if w
            ]

        chosen.__name__ = getattr(gradient, "__name__", "the gradient")
        upper = [zeros(b, v) if g is None and v.type.is_float else g for g, v in zip(grads, outputs, strict=True)]
        types = tuple(v.type for v, w in zip(inputs, wanted, strict=True) if v is not None and w)
        made = iter(b.emit(HostFunction(chosen, types), *inputs, *outputs, *upper))
        return [next(made) if w else None for w in wanted]

    def __str__(self) -> str:
        return f"{self.name}({getattr(self.function, '__name__', '')})"
