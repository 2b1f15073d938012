"""grad: gradients of a model without training it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import compiler
from ..nn import Parameter
from ..options.options import Options
from ..runtime.gradient_model import GradientModel
from ..runtime.host import Progress
from ..runtime.net_source import NetSource
from ..runtime.onnx_source import OnnxSource
from ..system.errors import DataError, OptionError
from .models import Modelish, chosen_options, chosen_progress, given_arrays, shared_source_of

Wrt = str | Parameter | Sequence[str | Parameter] | None


def grad(model: Modelish, inputs: Any, wrt: Wrt = None, output: str | int | None = None, *, upstream: Any = None,
         loss: str | compiler.Loss | None = None, labels: Any = None, options: Options | None = None, progress: Progress | bool | None = None,
         **changes: Any) -> dict[str, np.ndarray]:
    """Gradients of a model's output by its inputs or parameters; nothing is trained or changed.

        tileflow.grad("model.onnx", x)                                               # of the sum of the output, by every floating input
        tileflow.grad(net, x, wrt=["x", "conv1.*"], loss="cross_entropy", labels=y)  # of the loss, by an input and parameters
        tileflow.grad("model.onnx", x, output="features", upstream=g)                # g times the Jacobian of an output

    Rows of a batch are differentiated at once: the gradient by an input has its shape. The model is in its form for inference (batch normalisation by
    its running statistics, no dropout). Each call compiles the graph; for many calls keep a `tileflow.gradient_model`.

    Args:
        model: an ONNX file, a loaded one, or a network of layers; weights are those that its training and inference models have.
        inputs: an array, or several as a tuple, list or dict by name.
        wrt: names or name patterns (* and ?) of inputs and parameters, or parameters of the network; None: all floating inputs.
        output: name or place of the output; may be left out where there is one, or where a loss is given.
        upstream: the gradient of the output, of its shape; by default ones: that of the sum of its elements.
        loss: name or function, as `training_model` takes it, in place of the sum. labels: what it compares with.
        changes: single options by keyword, such as precision="64".

    Returns:
        gradients by the names of inputs and parameters, each of the shape and type of what it is by.

    Raises:
        UnsupportedError: an operator on the way has no gradient, or the output does not depend on what was named; the sentence names the nodes.
        DataError: names that the model does not have, shapes that do not fit.
    """
    if upstream is not None and loss is not None:
        raise OptionError("grad takes a loss or an upstream gradient of an output, not both.")
    if labels is not None and loss is None:
        raise OptionError("grad takes labels for a loss; say which, for example loss='cross_entropy'.")
    made = gradient_model(model, wrt, output, loss=loss, upstream=upstream is not None, options=options, progress=progress, **changes)
    source = made.source
    names = [p.name for p in source.model.inputs] if isinstance(source, OnnxSource) else source.input_names if isinstance(source, NetSource) else []
    return made(*given_arrays(names, inputs), *(np.asarray(a) for a in (labels, upstream) if a is not None))


def gradient_model(model: Modelish, wrt: Wrt = None, output: str | int | None = None, *, loss: str | compiler.Loss | None = None,
                   upstream: bool = False, options: Options | None = None, progress: Progress | bool | None = None,
                   **changes: Any) -> GradientModel:
    """A model whose calls give gradients by name, compiled once for each shape; see `grad`.

        explain = tileflow.gradient_model("model.onnx", loss="cross_entropy")
        for x, y in batches:
            saliency = explain(x, y)["x"]

    Args:
        upstream: each call takes, after the inputs, the gradient of the output.
    """
    chosen = chosen_options("inference_model", options, changes).for_inference()
    if chosen.gradient_accumulation != 1 or chosen.device_iterations != 1:
        raise OptionError("Gradients are those of one micro-batch: leave gradient_accumulation and device_iterations at 1.")
    if output is not None and loss is not None:
        raise OptionError("A loss takes the model's outputs as it is; name an output or a loss, not both.")
    source = shared_source_of(model, chosen)
    return GradientModel(source, chosen, _names(source, wrt), output, loss, upstream, chosen_progress(progress))


def _names(source: Any, wrt: Wrt) -> list[str] | None:
    if wrt is None:
        return None
    known = source.parameter_names()
    names = []
    for one in wrt if isinstance(wrt, (list, tuple)) else [wrt]:
        if not isinstance(one, (str, Parameter)):
            raise OptionError(f"wrt takes names of inputs and parameters, or parameters of the network, not {type(one).__name__}.")
        if isinstance(one, Parameter) and id(one) not in known:
            raise DataError(f"wrt: {one!r} is no parameter of the network.")
        names.append(known[id(one)] if isinstance(one, Parameter) else one)
    return names
