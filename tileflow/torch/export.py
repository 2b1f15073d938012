"""A module to an ONNX model: by torch.export, or by TorchScript where that cannot; names are the module's, and what it
writes becomes outputs."""
from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from onnx import ModelProto, NodeProto

from ..graph import Hints
from ..importers.onnx import OnnxModel, wrap_model
from ..importers.onnx.domains.marks import DOMAIN, MARK
from ..system.errors import UnsupportedError
from ..system.nested import Form, Results
from ..system.text import one_line
from .annotations import KEY, SCOPE, Asked, Export, Exporter, exporting, under_export
from .calls import array_of
from .observed import Observed, returned_by
from .tracing import put_back, quietly

OPSET = 20
"""The last one that TorchScript writes."""
LONGEST = 300
"""Characters of an exporter's reason."""
CALLED = re.compile(r"%(\w+) :")
"""The node of torch.export's graph in what ONNX's nodes say of it."""
_NUMBER = torch.ops.aten.scalar_tensor.default
_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_PLAIN_NORM = torch.ops.aten._native_batch_norm_legit.no_stats


@dataclass(frozen=True)
class Exported:
    """A module as an ONNX model for one form of calls and shapes.

    names: by the model's names of stored tensors, the module's. results: how outputs are nested; the first `own`
    outputs are these. losses: places of outputs that are losses. written: by the name of a state, the output that
    replaces it after each micro-batch; statistics are those of them that batch normalisation keeps. hints: what is
    asked, by node. marks: what is asked of single tensors, by their name.
    trains: losses are wanted. reason: why torch.export did not do it; "" where it did. program: what torch.export made.
    """

    model: OnnxModel
    by: Exporter
    names: Mapping[str, str]
    results: Results
    own: int
    losses: tuple[int, ...]
    written: Mapping[str, str]
    statistics: frozenset[str]
    hints: Mapping[str, Hints]
    marks: Mapping[str, Asked]
    trains: bool
    reason: str = ""
    program: torch.export.ExportedProgram | None = None


class _Wrapped(torch.nn.Module):
    """A module that takes tensors and returns tensors: its results, losses that it does not return, what it makes of
    buffers that it writes."""

    def __init__(self, module: torch.nn.Module, form: Form, written: Sequence[str], training: bool) -> None:
        super().__init__()
        self.module, self.training = module, module.training
        self._form, self._written, self.trains, self.names = form, tuple(written), training, form.names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self._form.nested(tensors)
        export = exporting()
        assert export is not None
        results, returned, own, losses = returned_by(lambda: self.module(*args, **kwargs), self.trains)
        export.told = results, own, losses
        export.begun.close()
        returned += [loss for loss in export.losses if not any(loss is t for t in returned)] if self.trains else []
        buffers = dict(self.module.named_buffers())
        returned = [
            t.clone() if any(t is b for b in buffers.values()) else t for t in returned
        ]  # an output, and not the state itself
        return (*returned, *(buffers[name] for name in self._written))


@dataclass
class _File:
    """What an exporter made, as it is put in order."""

    proto: ModelProto
    export: Export
    wrapped: _Wrapped
    program: torch.export.ExportedProgram | None = None
    hints: dict[str, Hints] = field(default_factory=dict)
    marks: dict[str, Asked] = field(default_factory=dict)


def exported(module: torch.nn.Module, form: Form, tensors: Sequence[torch.Tensor], seen: Observed, training: bool,
             canonical: Mapping[str, str], states: frozenset[str], by: Exporter | None = None) -> Exported:
    """Export a module for tensors of these shapes.

    Args:
        seen: what the module does with them. canonical: what the states are called of its parameters and buffers, by
            all their names.
        states: names of buffers that are states whether it writes them or not.
        by: that exporter only; by default torch.export, and TorchScript where it cannot.

    Raises:
        UnsupportedError: neither exporter can; the sentence has both reasons.
    """
    statistics = _statistics(module)
    written = [name for name in seen.written if name not in statistics]
    reasons: list[str] = []
    for exporter, make in ((_by_torch_export, "torch.export"), (_by_torchscript, "TorchScript")):
        if by not in (None, make):
            continue
        wrapped = _Wrapped(module, form, written, training)
        try:
            with put_back(module), quietly(), torch.enable_grad():
                file = exporter(wrapped, tuple(tensors))
        except Exception as error:                          # exporters raise whatever a tracer or a translation meets
            if isinstance(error, UnsupportedError):
                raise
            reasons.append(f"{make}: {_said(error)}")
            continue
        return _ordered(file, module, written, statistics, canonical, states, "; ".join(reasons))
    raise UnsupportedError(f"{type(module).__name__} cannot be exported: {'; '.join(reasons)}.")


def _said(error: Exception) -> str:
    """The last sentence of an exporter's exception."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    found = next((line for line in lines if "Error" in line or "nsupported" in line), lines[0] if lines else "")
    cause = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    said = f"{type(cause).__name__}: {cause}" if cause is not None and str(cause) else found
    return one_line(said or type(error).__name__, LONGEST).rstrip(".")


def _by_torch_export(wrapped: _Wrapped, tensors: tuple[torch.Tensor, ...]) -> _File:
    with under_export("torch.export") as export:
        program = torch.export.export(wrapped, tensors, strict=False)
    made = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False)
    assert made is not None
    assert made.exported_program is not None
    file = _File(made.model_proto, export, wrapped, made.exported_program)
    nodes = {node.name: node for node in made.exported_program.graph.nodes}
    for node in file.proto.graph.node:
        said = next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.fx_node"), "")
        found = CALLED.match(said)
        origin = nodes.get(found[1]) if found is not None else None
        if origin is None:
            continue
        number = origin.meta.get("custom", {}).get(KEY)
        if number is not None:
            file.hints[node.name] = export.scopes[number]
        if node.op_type == "BatchNormalization" and (
            (origin.target is _NORM and origin.args[5] and origin.args[3] is not None)
            or (origin.target is _PLAIN_NORM and origin.args[3])
        ):
            node.attribute.append(
                onnx.helper.make_attribute("training_mode", 1)
            )  # torch.onnx writes the form for inference
        if origin.target is _NUMBER and node.output[0] == origin.name and isinstance(origin.args[0], float):
            _let_be(node, origin.args[0], origin.meta["val"].dtype)
    return file


def _let_be(node: NodeProto, number: float, dtype: torch.dtype) -> None:
    """A number of forward() as Python has it, which torch.onnx writes in float32."""
    if dtype != torch.float64:
        return
    node.op_type = "Constant"
    del node.input[:], node.attribute[:]
    node.attribute.append(
        onnx.helper.make_attribute("value", onnx.helper.make_tensor("value", onnx.TensorProto.DOUBLE, (), [number]))
    )


def _by_torchscript(wrapped: _Wrapped, tensors: tuple[torch.Tensor, ...]) -> _File:
    buffer: Any = io.BytesIO()
    with under_export("TorchScript") as export:
        torch.onnx.export(
            wrapped,
            tensors,
            buffer,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=OPSET,
            input_names=(names := [f"tensors.{i}" for i in range(len(tensors))]),
        )
    file = _File(onnx.load_from_string(buffer.getvalue()), export, wrapped)
    left = {v.name: v for v in file.proto.graph.input}        # TorchScript drops what nothing reads
    types = [(onnx.helper.np_dtype_to_tensor_dtype(array_of(t).dtype), t.shape) for t in tensors]
    every = [left.get(name) or onnx.helper.make_tensor_value_info(name, *t)
             for name, t in zip(names, types, strict=True)]
    del file.proto.graph.input[:]
    file.proto.graph.input.extend(every)
    for node in file.proto.graph.node:
        numbers = SCOPE.findall(node.name)
        if numbers:
            file.hints[node.name] = export.scopes[int(numbers[-1])]
    return file


def _statistics(module: torch.nn.Module) -> dict[str, str]:
    """Running means and variances of batch normalisations, which the importer lets follow, by name: "mean" or "var"."""
    found: dict[str, str] = {}
    for path, inner in module.named_modules():
        if isinstance(inner, torch.nn.modules.batchnorm._BatchNorm) and inner.momentum is not None:
            found |= {f"{path}.running_{what}".lstrip("."): what for what in ("mean", "var")}
    return found


def _ordered(
    file: _File,
    module: torch.nn.Module,
    written: Sequence[str],
    statistics: Mapping[str, str],
    canonical: Mapping[str, str],
    states: frozenset[str],
    reason: str,
) -> Exported:
    """The exporter's file with names of the module's, marks taken out, and an output for all that it writes."""
    graph = file.proto.graph
    results, own, losses = file.export.told
    _rename(file.proto, {f"module.{name}": own for name, own in canonical.items()}, file.wrapped.names)
    outputs = [v.name for v in graph.output]
    count = len(outputs) - len(written)
    kept = {canonical[name]: outputs[count + i] for i, name in enumerate(written)}
    normal: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute):
            normal |= _with_statistics(file.proto, node)
    kept |= normal
    file.marks = {node.output[0]: file.export.marks[next(a.i for a in node.attribute if a.name == "number")]
                  for node in graph.node if (node.domain, node.op_type) == (DOMAIN, MARK)}
    kinds = _kinds(
        file.proto, module, canonical, states | kept.keys() | {canonical[n] for n in statistics if n in canonical}
    )
    del file.proto.metadata_props[:]
    entry = file.proto.metadata_props.add()
    entry.key, entry.value = "tileflow.states", json.dumps(kinds)
    return Exported(
        wrap_model(file.proto),
        file.export.by,
        canonical,
        results,
        own,
        losses,
        kept,
        frozenset(normal),
        file.hints,
        file.marks,
        file.wrapped.trains,
        reason,
        file.program,
    )


def _rename(proto: ModelProto, names: Mapping[str, str], inputs: Sequence[str]) -> None:
    """Stored tensors under other names; those that get one name are one. Inputs by what `forward` calls them, as far as
    these are free."""
    graph = proto.graph
    present = {t.name for t in graph.initializer}
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | {
        v.name for v in (*graph.input, *graph.output)
    }
    new = {old: own for old, own in names.items() if old in present}
    clashes = {name: f"{name}.value" for name in taken - present if name in new.values()}
    free = {own for own in inputs if inputs.count(own) == 1} - taken - {*names.values()}
    change = new | clashes | {v.name: own for v, own in zip(graph.input, inputs, strict=True) if own in free}
    seen: set[str] = set()
    tensors = []
    for tensor in graph.initializer:
        tensor.name = change.get(tensor.name, tensor.name)
        if tensor.name not in seen:
            tensors.append(tensor)
        seen.add(tensor.name)
    if len(tensors) < len(graph.initializer):
        kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in tensors]
        del graph.initializer[:]
        graph.initializer.extend(kept)
    for node in graph.node:
        for names_of in (node.input, node.output):
            for i, name in enumerate(names_of):
                names_of[i] = change.get(name, name)
    for value in (*graph.input, *graph.output):
        value.name = change.get(value.name, value.name)
    kept_info = [v for v in graph.value_info if v.name not in change]
    del graph.value_info[:]
    graph.value_info.extend(kept_info)


def _with_statistics(proto: ModelProto, node: NodeProto) -> dict[str, str]:
    """A normalisation by the batch's own statistics with outputs for the running ones: by the names of these."""
    types = {t.name: t.data_type for t in proto.graph.initializer}
    dims = {t.name: list(t.dims) for t in proto.graph.initializer}
    found: dict[str, str] = {}
    for i, name in enumerate(node.input[3:5], 1):
        if name not in types:
            continue
        while len(node.output) <= i:
            node.output.append("")
        output = node.output[i] or f"{node.output[0]}.running.{i}"
        node.output[i] = output
        proto.graph.output.append(onnx.helper.make_tensor_value_info(output, types[name], dims[name]))
        found[name] = output
    return found


def _kinds(
    proto: ModelProto, module: torch.nn.Module, canonical: Mapping[str, str], states: frozenset[str] | set[str]
) -> dict[str, list[str]]:
    """Which stored tensors are parameters and which buffers; others are constants."""
    present = {t.name for t in proto.graph.initializer}
    parameters = {canonical[name] for name, _ in module.named_parameters(remove_duplicate=False)}
    floating = {
        canonical[name] for name, b in module.named_buffers(remove_duplicate=False) if b.is_floating_point() and b.dim()
    }
    return {"parameters": sorted(parameters & present), "buffers": sorted((floating | states) & present - parameters)}
