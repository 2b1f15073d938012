"""save_onnx: a network of layers as an ONNX file."""
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..importers.onnx import FileForm
from ..nn import Module
from ..options.options import Options
from ..runtime.net_source import NetSource
from ..runtime.trained_file import write_network
from ..system.errors import ModelError
from .models import Modelish, chosen_options, chosen_progress, given_arrays, shared_source_of


def save_onnx(net: Modelish, path: str | os.PathLike[str], inputs: Any, options: Options | None = None, *, opset: int | None = None,
              batch: str | None = "batch", input_names: Sequence[str] | None = None, output_names: Sequence[str] | None = None,
              progress: Any = None, **changes: Any) -> Path:
    """Write a network of layers as an ONNX file, in the form for inference: batch normalisation by its running statistics, no dropout.

        tileflow.save_onnx(net, "net.onnx", x)
        tileflow.train("net.onnx", data=(x, labels))              # the same parameters, by the names of state_dict()

    Parameters and buffers are initializers, called as in `state_dict()`. The file is checked by onnx, read again and compared with the engine on
    `inputs` before it takes the place of an older one.

    Args:
        inputs: an array, or several as a tuple, list or dict (by the names of `forward`'s arguments): their sizes and types are those of the file.
        opset: by default 18, or the oldest later one that has all of the network's operators; what an older one lacks is written as what it is
            made of, where there is such a form.
        batch: what the first dimension of inputs and outputs is called, whose size stays open; None: it is that of `inputs`.
        input_names, output_names: by default the names of `forward`'s arguments, and "output" or "output_0", "output_1" ...
        progress: as `inference_model` takes it.
        changes: single options by keyword, such as precision.

    Raises:
        UnsupportedError: ONNX has no words for a layer, or the batch cannot stay open; the sentence names the layer.
        ModelError: `net` is no network, or the file read again computes something else.
        CheckpointError: the file cannot be written; one that stood there is as it was.
    """
    if not isinstance(net, Module):
        raise ModelError("save_onnx writes networks of layers; for an ONNX file take that of a model or of a run: model.save_onnx(path).")
    form = FileForm(opset, batch, input_names, output_names)
    chosen = chosen_options("inference_model", options, changes)
    source = shared_source_of(net, chosen)
    assert isinstance(source, NetSource)
    write_network(source, source.state_dict(False), Path(path), chosen, given_arrays(source.input_names, inputs), form,
                  progress=chosen_progress(progress))
    return Path(path)
