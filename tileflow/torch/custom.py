"""Users' operators in modules of PyTorch: PyTorch itself computes them by their references, exporters write them as
nodes of their domain."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..graph import OPS, Builder, Graph, Op, TensorType, Value, type_of
from ..graph.backward import backward
from ..graph.composite import declares
from ..graph.op import qualified
from ..graph.region import computed, evaluated
from ..importers.onnx.domains.marks import CALL, DOMAIN, PRINT
from ..ops.ctc import CTCBeamSearchDecoder, CTCLoss
from ..ops.hosted import FUNCTIONS, HostFunction, listed
from ..ops.printing import PrintTensor
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
    for each output. PyTorch itself computes it, and its gradient, by what the declaration says in NumPy.

    Raises:
        UnsupportedError: it is not declared, or given what it does not take.
        OptionError: an attribute is of another kind.
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
    types = op.infer(*[_type(t) for t in inputs])
    if exporting() is None:
        return list(_Computed.apply(op, *inputs))  # type: ignore[no-untyped-call]
    return _written(called, op.attributes(), inputs, types, version)


def _written(
    called: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[torch.Tensor],
    types: Sequence[TensorType],
    version: int = 1,
) -> list[torch.Tensor]:
    """A node of that name in what is exported."""
    export, dtypes, shapes = exporting(), [_dtype(t) for t in types], [t.shape for t in types]
    assert export is not None
    given: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items() if v != ()}
    if export.by == "TorchScript":
        return list(_Written.apply(called, given, dtypes, shapes, *inputs))  # type: ignore[no-untyped-call]
    return list(
        torch.onnx.ops.symbolic_multi_out(called, tuple(inputs), given, dtypes=dtypes, shapes=shapes, version=version)
    )


def print_tensor(tensor: torch.Tensor, title: str = "", **form: Any) -> torch.Tensor:
    """Print a tensor, and its gradient, whenever a model that was exported computes it, in the order of the
    micro-batches; PyTorch itself prints nothing. `form`: as of `tileflow.nn.print_tensor`. Returns the tensor, to be
    used in its place.

    Raises:
        OptionError: there is no such form.
    """
    try:
        op = PrintTensor(title=title, **form)
    except TypeError as error:
        raise OptionError(f"print_tensor: {error}.") from None
    t = _type(tensor)
    op.infer(t)
    return tensor if exporting() is None else _written(f"{DOMAIN}::{PRINT}", op.attributes(), [tensor], [t])[0]


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor | None:
    """PyTorch's CTC loss in what is exported; None where its targets are not [N, S], or there is no batch."""
    if log_probs.dim() != 3 or targets.dim() != 2:
        return None
    lengths = torch.as_tensor(target_lengths).long()
    op, t = CTCLoss(blank=blank, zero_infinity=int(zero_infinity)), _type(log_probs)
    given = [log_probs, targets.long(), torch.as_tensor(input_lengths).long(), lengths]
    each = _written(f"{DOMAIN}::{op.name}", op.attributes(), given, [t.with_shape(t.shape[1:2])])[0]
    if reduction == "mean":
        return (each / lengths.clamp(min=1).to(each.dtype)).mean()
    return each if reduction == "none" else each.sum()


def ctc_beam_search_decoder(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> tuple[torch.Tensor, ...]:
    """The likeliest labellings of log-probabilities [T, N, C]: as `tileflow.nn.functional.ctc_beam_search_decoder`.
    PyTorch itself finds them by its reference, slowly."""
    op = CTCBeamSearchDecoder(blank=blank, beam_width=beam_width, top_paths=top_paths)
    given = [probs, lengths.long()]
    types = op.infer(*[_type(t) for t in given])
    if exporting() is None:
        return tuple(tensor_of(a) for a in op.reference(*[np.array(array_of(t)) for t in given]))
    return tuple(_written(f"{DOMAIN}::{op.name}", op.attributes(), given, types))


class HostModule:
    """A module, or any function of tensors, that PyTorch itself computes in the midst of a model: in program order,
    without gradients. Its tensors' shapes are those that it gives while it is exported."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._kept: list[HostFunction] = []
        self._within = False

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call it, or while something is exported write that it is called.

        Raises:
            UnsupportedError: it is called within itself.
        """
        if self._within:
            raise UnsupportedError("Trying to enter CPU from another CPU op! CPU ops must not overlap.")
        self._within = True
        try:
            made = self.function(*tensors)
        finally:
            self._within = False
        if exporting() is None:
            return made
        several = isinstance(made, tuple | list)
        types = tuple(_type(t) for t in listed(made))
        op, token = HostFunction(self._computed, types), secrets.token_hex(16)
        self._kept.append(op)
        FUNCTIONS[token] = op
        found = _written(f"{DOMAIN}::{CALL}", {"token": token}, tensors, types)
        return type(made)(found) if several else found[0]

    def _computed(self, *arrays: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            made = self.function(*(tensor_of(np.array(a)) for a in arrays))
        return [array_of(t) for t in listed(made)]


def _type(tensor: torch.Tensor) -> TensorType:
    return TensorType(_name(tensor.dtype), tuple(int(n) for n in tensor.shape))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(t: TensorType) -> torch.dtype:
    return tensor_of(np.zeros(0, t.numpy)).dtype


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's elements, C-contiguous."""
    return np.ascontiguousarray(array_of(tensor)).reshape(tensor.shape)


def _outputs(op: Op, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    graph = Graph(op.name)
    b = Builder(graph)
    graph.outputs = list(b.emit(op, *[b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]))
    return computed(graph.nodes[0], arrays)


class _Computed(torch.autograd.Function):
    """What PyTorch computes where nothing is exported."""

    @staticmethod
    def forward(ctx: Any, op: Op, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = _outputs(op, [_array(t) for t in tensors])
        made = tuple(tensor_of(a) for a in found)
        ctx.op = op
        ctx.save_for_backward(*tensors, *made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        saved = [_array(t) for t in ctx.saved_tensors]
        count = len(saved) - len(grads)
        graph = Graph(f"gradient of {ctx.op.name}")
        b = Builder(graph)
        inputs: list[Value | None] = [b.input(f"x{i}", type_of(a)) for i, a in enumerate(saved[:count])]
        outputs = [b.input(f"y{i}", type_of(a)) for i, a in enumerate(saved[count:])]
        given = [None if g is None else _array(g) for g in grads]
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
    """How TorchScript meets a node."""

    @staticmethod
    def forward(ctx: Any, called: str, given: Any, dtypes: Any, shapes: Any, *tensors: torch.Tensor) -> Any:
        return tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True))

    @staticmethod
    def symbolic(g: Any, called: str, given: Any, dtypes: Any, shapes: Any, *tensors: Any) -> Any:
        def letter(value: Any) -> str:
            return {int: "i", float: "f", str: "s"}[type(value[0] if isinstance(value, list) else value)]

        made = g.op(called, *tensors, outputs=len(shapes), **{f"{k}_{letter(v)}": v for k, v in given.items()})
        several = made if len(shapes) > 1 else (made,)
        for value, dtype, shape in zip(several, dtypes, shapes, strict=True):
            value.setType(tensors[0].type().with_dtype(dtype).with_sizes(list(shape)))
        return made
