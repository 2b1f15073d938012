"""Users' operators in modules of PyTorch: PyTorch itself computes them by their references, exporters write them as
nodes of their domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..graph import OPS, Builder, Graph, Op, TensorType, Value, type_of
from ..graph.backward import backward
from ..graph.composite import declares
from ..graph.op import qualified
from ..graph.region import computed, evaluated
from ..system.errors import OptionError, UnsupportedError
from .annotations import exporting
from .calls import array_of, tensor_of


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    version: int = 1,
    attributes: Mapping[str, Any] | None = None,
) -> list[torch.Tensor]:
    """An operator that `tileflow.operator(domain, name)` has declared, in the `forward` of a module: of tensors, one
    for each output. PyTorch itself
    computes it, and its gradient, by what the declaration says in NumPy.

    Raises:
        UnsupportedError: it is not declared, or given what it does not take. OptionError: an attribute is of another
        kind.
    """
    called = qualified(domain, name)
    declared: Any = OPS.get(called)
    if declared is None:
        raise UnsupportedError(
            f"The operator {called} is not declared; @tileflow.operator({domain!r}, {name!r}) on a class with "
            f"forward() declares it "
            "(docs/custom-operators.md)."
        )
    try:
        op = declared(**dict(attributes or {}))
    except TypeError as error:
        raise OptionError(f"{called}: its attributes do not suffice ({error}).") from None
    types = op.infer(*[TensorType(_name(t.dtype), tuple(int(n) for n in t.shape)) for t in inputs])
    export = exporting()
    if export is None:
        return list(_Computed.apply(op, *inputs))  # type: ignore[no-untyped-call]
    dtypes = [_dtype(t) for t in types]
    if export.by == "TorchScript":
        return list(_Written.apply(called, op, dtypes, [t.shape for t in types], *inputs))  # type: ignore[no-untyped-call]
    given: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in op.attributes().items() if v != ()}
    return list(
        torch.onnx.ops.symbolic_multi_out(
            called, tuple(inputs), given, dtypes=dtypes, shapes=[t.shape for t in types], version=version
        )
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(t: TensorType) -> torch.dtype:
    return tensor_of(np.zeros(0, t.numpy)).dtype


def _outputs(op: Op, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    graph = Graph(op.name)
    b = Builder(graph)
    graph.outputs = list(b.emit(op, *[b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]))
    return computed(graph.nodes[0], arrays)


class _Computed(torch.autograd.Function):
    """What PyTorch computes where nothing is exported."""

    @staticmethod
    def forward(ctx: Any, op: Op, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = _outputs(op, [np.ascontiguousarray(array_of(t)).reshape(t.shape) for t in tensors])
        made = tuple(tensor_of(a) for a in found)
        ctx.op = op
        ctx.save_for_backward(*tensors, *made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        saved = [np.ascontiguousarray(array_of(t)).reshape(t.shape) for t in ctx.saved_tensors]
        count = len(saved) - len(grads)
        graph = Graph(f"gradient of {ctx.op.name}")
        b = Builder(graph)
        inputs: list[Value | None] = [b.input(f"x{i}", type_of(a)) for i, a in enumerate(saved[:count])]
        outputs = [b.input(f"y{i}", type_of(a)) for i, a in enumerate(saved[count:])]
        given = [None if g is None else np.ascontiguousarray(array_of(g)).reshape(g.shape) for g in grads]
        upper = [None if g is None else b.input(f"g{i}", type_of(g)) for i, g in enumerate(given)]
        made = _gradients(ctx.op, b, upper, inputs, outputs)
        graph.outputs = [v for v in made if v is not None]
        found = iter(evaluated(graph, [*saved, *(g for g in given if g is not None)]))
        return (None, *(None if v is None else tensor_of(next(found)) for v in made))


def _gradients(
    op: Op, b: Builder, grads: list[Value | None], inputs: list[Value | None], outputs: list[Value]
) -> Sequence[Value | None]:
    """The gradients of the inputs, by the operator's own rule or by that of its parts."""
    if declares(op, "vjp"):
        return op.vjp(b, grads, inputs, outputs)
    made = op.expand(b, inputs)
    if made is None:
        return [None] * len(inputs)
    present = [v for v in inputs if v is not None]
    seeds = {v: g for v, g in zip(made, grads, strict=True) if g is not None}
    _, found = backward(b.graph, list(seeds), present, lambda _: seeds)
    return [None if v is None else found.get(v) for v in inputs]


class _Written(torch.autograd.Function):
    """How TorchScript meets one."""

    @staticmethod
    def forward(
        ctx: Any, called: str, op: Op, dtypes: Any, shapes: Any, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True))

    @staticmethod
    def symbolic(g: Any, called: str, op: Op, dtypes: Any, shapes: Any, *tensors: Any) -> Any:
        def letter(value: Any) -> str:
            one = value[0] if isinstance(value, tuple) else value
            return {int: "i", float: "f", str: "s"}[type(one)]

        given = {
            f"{k}_{letter(v)}": list(v) if isinstance(v, tuple) else v for k, v in op.attributes().items() if v != ()
        }
        return g.op(called, *tensors, outputs=len(shapes), **given)
