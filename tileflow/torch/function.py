"""The other way: an ONNX file as a part of a network of PyTorch's, through which gradients flow to its inputs and to
its weights."""
from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from glob import escape
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from ..graph import TensorType, type_of
from ..importers.onnx import load_model
from ..options.options import Options, with_defaults
from ..passes.autograd import reached
from ..runtime.executable import Recent
from ..runtime.gradient_model import GradientModel
from ..runtime.inference_model import InferenceModel
from ..runtime.onnx_source import OnnxSource
from ..system.errors import DataError, OptionError, UnsupportedError
from ..system.packaged import model_path
from .annotations import exporting
from .calls import array_of, result_of, tensor_of


class Function(torch.nn.Module):
    """A module whose `forward` is an ONNX model in its form for inference, run and differentiated here; its trained
    tensors are parameters.

        backbone = tileflow.torch.Function("backbone.onnx")
        net = torch.nn.Sequential(backbone, torch.nn.Linear(512, 10))
        torch.optim.AdamW(net.parameters(), lr=1e-4)

    Called with tensors in the order of the file's inputs it returns the file's only output, or a tuple. Parameters and
    buffers are views of the memory that the engine computes with, under the file's names. Each combination of shapes is
    compiled once.

    Args:
        path: an ONNX file, or a model that comes with tileflow by its name.
        options: as for `tileflow.inference_model`; one call is one micro-batch.

    Raises:
        ModelError: the file cannot be read.
        OptionError: options ask for several micro-batches.
    """

    def __init__(self, path: str | os.PathLike[str], options: Options | None = None) -> None:
        super().__init__()
        chosen = with_defaults(Options() if options is None else options.clone())
        if chosen.device_iterations != 1 or chosen.replication_factor != 1:
            raise OptionError(
                "A Function is called on one micro-batch: leave device_iterations and replication_factor at 1."
            )
        chosen.gradient_accumulation = 1
        chosen.on_new_shape = "compile"
        self.path, self._options = str(path), chosen
        self._source = OnnxSource(load_model(model_path(path)), chosen)
        self._source.state_dict(False)                    # the session has memory now
        self._model = InferenceModel(self._source, chosen)
        self._gradients: Recent[tuple[Any, ...], GradientModel | None] = Recent(32)
        self._names: list[str] = []
        """Of the parameters."""
        self._buffer_names: list[str] = []
        self._seen: dict[str, tuple[int, int]] = {}
        session = self._source.session
        for name in session.names("parameter", "buffer"):
            self._enter(name, tensor_of(session[name]), name in session.names("parameter"))

    def _enter(self, name: str, view: torch.Tensor, is_parameter: bool) -> None:
        """A state under its own name: dots are modules within each other, as in PyTorch."""
        holder: torch.nn.Module = self
        *path, last = name.split(".")
        for part in path:
            inner = holder._modules.get(part)
            if inner is None:
                inner = torch.nn.Module()
                holder._modules[part] = inner
            holder = inner
        if is_parameter and view.is_floating_point():
            holder._parameters[last] = torch.nn.Parameter(view)
            self._names.append(name)
        else:
            holder._buffers[last] = view
            self._buffer_names.append(name)

    def _of(self, name: str) -> torch.Tensor:
        holder: torch.nn.Module = self
        *path, last = name.split(".")
        for part in path:
            holder = holder._modules[part]                # type: ignore[assignment]
        found = holder._parameters.get(last, holder._buffers.get(last))
        if found is None:
            raise UnsupportedError(f"The {name!r} of {self.path} is gone; make the Function anew.")
        return found

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The file's outputs: of floating ones gradients reach floating inputs and parameters.

        Raises:
            DataError: the number of inputs is another.
            UnsupportedError: a parameter or buffer is of another type or shape than the file's.
        """
        if exporting() is not None:
            raise UnsupportedError(f"{self.path} is a Function, which no exporter can write into another model; call "
                                   "it before that, or train its network by PyTorch.")
        ports = self._source.model.inputs
        if len(inputs) != len(ports):
            raise DataError(
                f"{self.path} has {len(ports)} inputs ({', '.join(p.name for p in ports)}) and got {len(inputs)}."
            )
        parameters = [self._of(name) for name in self._names]
        self._look()
        outputs: tuple[torch.Tensor, ...] = _Run.apply(self, len(inputs), *inputs, *parameters)
        return outputs[0] if len(outputs) == 1 else outputs

    def _look(self) -> None:
        """Take over what an optimizer, or a user, did to parameters and buffers since the last call."""
        session, edits = self._source.session, {}
        for name in (*self._names, *self._buffer_names):
            t = self._of(name)
            now = t.data_ptr(), t._version
            if self._seen.get(name) == now:
                continue
            array, own = array_of(t), session[name]
            if (array.dtype, array.shape) != (own.dtype, own.shape):
                raise UnsupportedError(f"The {name!r} of {self.path} is {array.dtype}{list(array.shape)}, and the "
                                       f"file's is {own.dtype}{list(own.shape)}: a Function computes in the types of "
                                       "its file; "
                                       "convert its inputs and outputs.")
            if name in self._seen or now[0] != own.ctypes.data:
                edits[name] = array
            self._seen[name] = now
        if edits:
            session.put(edits)
            with torch.inference_mode(False):
                for name in edits:
                    t = self._of(name)
                    if t.data_ptr() != session[name].ctypes.data:
                        t.data = tensor_of(session[name])
                    self._seen[name] = t.data_ptr(), t._version

    def _run(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        found = self._model(*[array_of(t) for t in inputs])
        return tuple(result_of(a) for a in (found if isinstance(found, tuple) else (found,)))

    def _gradient(self, types: tuple[TensorType, ...], place: int, wanted: tuple[str, ...]) -> GradientModel | None:
        """What differentiates an output by these inputs and parameters, as far as it depends on them; None: on none."""
        graph, _ = self._source.graph(types, False)
        known = {v.name: v for v in graph.inputs} | {s.name: s.input for s in graph.parameters}
        by = [name for name in wanted if name in known]
        found = [
            name
            for name, yes in zip(by, reached(graph, graph.outputs[place], [known[n] for n in by]), strict=True)
            if yes
        ]
        return (
            GradientModel(self._source, self._options, [escape(n) for n in found], place, upstream=True)
            if found
            else None
        )

    def _pulled(
        self, inputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None], wanted: tuple[str, ...]
    ) -> dict[str, np.ndarray]:
        """Gradients by name, over all outputs that have one."""
        arrays, total = [array_of(t) for t in inputs], dict[str, np.ndarray]()
        types = tuple(type_of(a).with_dtype(self._source.input_dtype(i, a)) for i, a in enumerate(arrays))
        for place, g in enumerate(grads):
            if g is None or not g.is_floating_point():
                continue
            key = types, place, wanted
            model = self._gradients.get(key, partial(self._gradient, types, place, wanted))
            for name, found in (model(*arrays, array_of(g.contiguous())) if model is not None else {}).items():
                total[name] = total[name] + found if name in total else found
        return total


class _Run(torch.autograd.Function):
    """One call of a Function in PyTorch's graph."""

    @staticmethod
    def forward(ctx: Any, owner: Function, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = owner._run(tensors[:count])
        ctx.owner, ctx.count = owner, count
        ctx.save_for_backward(*tensors[:count])
        ctx.mark_non_differentiable(*[t for t in outputs if not t.is_floating_point()])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        owner, inputs = ctx.owner, ctx.saved_tensors
        names = [p.name for p in owner._source.model.inputs] + owner._names
        wanted = tuple(n for n, needed in zip(names, ctx.needs_input_grad[2:], strict=True) if needed)
        found = owner._pulled(inputs, grads, wanted)
        tensors = [*inputs, *(owner._of(n) for n in owner._names)]
        return (
            None,
            None,
            *(
                result_of(found[n]).to(t.dtype) if n in found and n in wanted else None
                for n, t in zip(names, tensors, strict=True)
            ),
        )
