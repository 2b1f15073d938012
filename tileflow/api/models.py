"""Models to call, and what all verbs share: where a model comes from, the options that hold."""
from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union
from weakref import WeakValueDictionary

import numpy as np

from ..optim import Optimizer
from ..optim.choose import CLASSES
from ..options.options import Options, declarations, renamed, with_defaults
from ..options.uses import check_layers, check_use
from ..runtime.exchange import check_replicas
from ..runtime.host import Progress
from ..runtime.inference_model import InferenceModel
from ..runtime.model import Model
from ..runtime.model_file import ModelFile, is_executable
from ..runtime.onnx_source import OnnxSource
from ..runtime.source import Source
from ..runtime.training_model import TrainingModel
from ..state import Session
from ..system.errors import DataError, ModelError, OptionError
from ..system.packaged import model_path
from ..system.text import one_line

if TYPE_CHECKING:
    from .. import compiler
    from ..importers.onnx import OnnxModel
    from ..nn import Module
    from ..runtime.executable_file import Opened

Modelish = Union["Module", "OnnxModel", str, os.PathLike[str]]
Made = Union[Modelish, "Opened", Model, ModelFile]
"""What a source is of: also an executable that was opened, a model, with which another one has its weights in common,
and a file that was."""


def load(path: str | os.PathLike[str], *, num_classes: int | None = None, seed: int = 0) -> OnnxModel:
    """Read and check an ONNX file, or a model that comes with tileflow by its name.

    Args:
        num_classes: replace the last layer by one with so many outputs: the last Gemm, MatMul or Conv before the first output, under its own names,
            with PyTorch's initial weights, drawn by `seed`.

    Raises:
        ModelError: it cannot be read or is not valid, or its last layer cannot be replaced.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"A model is the path of an ONNX file, what tileflow.load returns, or a network of layers, not {_what(path)}.")
    refuse_executable(path)
    from ..importers.onnx import load_model, with_classes
    loaded = load_model(model_path(path))
    return loaded if num_classes is None else with_classes(loaded, num_classes, seed)


def refuse_executable(path: Any) -> None:
    """ModelError where a path is that of an executable: a model that is compiled already."""
    if is_executable(path):
        raise ModelError(f"{path} is an executable, compiled already: tileflow.load_executable gives its model; train "
                         "and infer take it as it is.")


def _what(thing: object) -> str:
    """How messages call something of a wrong type; a class instead of an object of it is a mistake of its own."""
    return f"the class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__


def chosen_options(verb: str, options: Options | None, changes: Mapping[str, Any], training: bool = True) -> Options:
    """A copy of the options with keyword changes, and what nobody gave as the environment's file of options says.

    Raises:
        OptionError: a name is unknown, a value is wrong, or a keyword would have no effect on the verb.
    """
    if options is not None and not isinstance(options, Options):
        raise OptionError(f"options must be a tileflow.Options, got {type(options).__name__}; data are given as data=..., single options by keyword.")
    result = options.clone() if options is not None else Options()
    changes = renamed(changes)
    for name, value in changes.items():
        setattr(result, name, value)
    result = with_defaults(result)
    check_use(verb, changes, result, training=training)
    return result


def by_name(optimizer: Optimizer | str | None) -> dict[str, Any]:
    """The name of an optimizer as the option that it is, beside which those of its settings count."""
    return {"optimizer": optimizer} if isinstance(optimizer, str) else {}


def chosen_optimizer(optimizer: Optimizer | str | None, options: Options) -> Optimizer | None:
    """The optimizer given beside the options, whose place it takes; a name is the option optimizer.

    Raises:
        OptionError: it is neither, or options say how to update as well.
    """
    if optimizer is None:
        return None
    if isinstance(optimizer, str):
        return None                             # `by_name` has put it among the options
    if not isinstance(optimizer, Optimizer):
        raise OptionError(f"optimizer must be a name ({', '.join(CLASSES)}) or an optimizer such as tileflow.optim.SGD(lr=0.1), "
                          f"not {_what(optimizer)}.")
    told = [d.name for d in declarations().values() if d.group == "optimizer" and d.name != "loss_scaling" and options.given(d.name, files=False)]
    if told:
        kind = type(optimizer).__name__
        raise OptionError(f"The optimizer {kind}(...) and the option {told[0]}={getattr(options, told[0])!r} contradict each other, for {kind} "
                          f"has settings of its own; give {kind} what it should use, or leave one of them out.")
    return optimizer


def chosen_progress(progress: Progress | bool | None) -> Progress | None:
    """What is called while kernels are compiled: a function, or the bar that the command shows for True (OptionError for anything else)."""
    if isinstance(progress, bool):
        from ..runtime.progress import CompileBar
        return CompileBar(True) if progress else None
    if progress is not None and not callable(progress):
        raise OptionError(f"progress must be true, false or a function (kernel, done, total), not {_what(progress)}.")
    return progress


def source_of(model: Made, options: Options) -> Source:
    """The source of a model; one session per OnnxModel object, so that its models share weights. A path is read anew."""
    if isinstance(model, Model):
        return model.source.with_options(options)
    from ..runtime.executable_file import Opened
    if isinstance(model, Opened):
        from ..runtime import executable_source
        return executable_source.source_of(model, options)
    if isinstance(model, str | os.PathLike):
        refuse_executable(model)
        model = ModelFile(model_path(model))
    if isinstance(model, ModelFile) and options.num_classes is None:
        source = OnnxSource(model, options)
        source.session.owner = model
        return source
    from ..importers.onnx import OnnxModel, with_classes
    from ..nn import Module
    if isinstance(model, Module):
        from ..runtime.net_source import NetSource
        check_layers(options)
        return NetSource(model, options)
    loaded = model.model if isinstance(model, ModelFile) else model if isinstance(model, OnnxModel) else load(model)
    if options.num_classes is not None:
        loaded = with_classes(loaded, options.num_classes, options.seed)
    with _opening:
        source = OnnxSource(loaded, options, _sessions.get(id(loaded.proto)))
        source.session.owner = loaded
        _sessions[id(loaded.proto)] = source.session
    return source


def shared_source_of(model: Modelish | Model, options: Options) -> Source:
    """As `source_of`, but a path stands for one model for as long as a model of it is in use and the file stays as it
    is."""
    if not isinstance(model, (str, os.PathLike)):
        return source_of(model, options)
    refuse_executable(model)
    with _opening:
        file = ModelFile(model_path(model))
        session = _of_files.get(file.identity)
        held: Any = file if session is None else session.owner
        if isinstance(held, ModelFile) and options.num_classes is None:
            source: Source = OnnxSource(held, options, session)
            source.session.owner = held
        else:
            source = source_of(held.model if isinstance(held, ModelFile) else held, options)
        _of_files[file.identity] = source.session
    return source


_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()
"""Sessions in use by the identity of the ONNX model, which each keeps alive."""
_of_files: WeakValueDictionary[tuple[Any, ...], Session] = WeakValueDictionary()
"""Sessions in use by the identity of the file."""
_opening = threading.RLock()


def given_arrays(names: Sequence[str], inputs: Any) -> list[np.ndarray]:
    """Arrays from one, several in order, or several by name (DataError where these are not the names)."""
    if isinstance(inputs, Mapping):
        if not set(inputs) <= set(names) or list(inputs) == []:
            raise DataError(f"The model's inputs are {one_line(', '.join(names))}; got {one_line(', '.join(map(str, inputs)))}.")
        missing = next((n for n in names[:max(names.index(k) for k in inputs) + 1] if n not in inputs), None)
        if missing is not None:
            raise DataError(f"The model's input {one_line(missing)} is missing among {one_line(', '.join(map(str, inputs)))}.")
        return [np.asarray(inputs[name]) for name in names if name in inputs]
    return [np.asarray(a) for a in (inputs if isinstance(inputs, (tuple, list)) else (inputs,))]


def given_loss(options: Options) -> str:
    """The option loss without data to look at."""
    return "cross_entropy" if options.loss == "auto" else options.loss


def model_name(model: Modelish) -> str:
    if isinstance(model, (str, os.PathLike)):
        return Path(model).name
    from ..importers.onnx import OnnxModel
    return model.proto.graph.name if isinstance(model, OnnxModel) else type(model).__name__


def training_model(model: Modelish | Model, options: Options | None = None, *, optimizer: Optimizer | str | None = None,
                   loss: str | compiler.Loss | None = None, progress: Progress | bool | None = None, **changes: Any) -> TrainingModel:
    """A model to train: call it on `micro_batch * gradient_accumulation * device_iterations` rows of inputs and labels.

        net = tileflow.nn.Sequential(tileflow.nn.Linear(4, 3))
        model = tileflow.training_model(net, optimizer=tileflow.optim.SGD(lr=0.1), gradient_accumulation=2)
        prediction, loss = model(x, labels)

    Args:
        loss: cross_entropy, nll, mse, l1, bce, bce_with_logits, identity, or a function (builder, outputs) -> loss value; by default
            the option loss, where auto means cross_entropy.
        changes: single options by keyword.

    Weights are those of every other training or inference model of `model`: of one network, of one object from
    `tileflow.load`, of a model (such as `tileflow.load_executable` gives), or of one path while a model of it is in use
    and the file stays as it is. (`train` and `infer` begin from what is in the file.)

    Threads may share the model: its calls, and those of all other models of `model`, take turns.
    """
    chosen = chosen_options("training_model", options, by_name(optimizer) | changes)
    check_replicas(chosen)
    optimizer = chosen_optimizer(optimizer, chosen)
    source = shared_source_of(model, chosen)
    if isinstance(model, (str, os.PathLike)) and source.session.updates:
        warnings.warn(f"{one_line(model)} was trained for {source.session.updates:,} updates by another model in use, and this one goes on from "
                      "its weights; for weights of its own give it tileflow.load(...).", stacklevel=2)
    made = TrainingModel(source, chosen, optimizer, given_loss(chosen) if loss is None else loss, chosen_progress(progress))
    made.anchors.names = chosen.anchored_tensors
    if options is not None:
        options.freeze()                          # what is changed now would have no effect on this model
    return made


def inference_model(model: Modelish | Model, options: Options | None = None, *, progress: Progress | bool | None = None,
                    **changes: Any) -> InferenceModel:
    """A model to run: call it on `micro_batch * device_iterations` rows of inputs. Weights are those of every other model of `model`,
    as `training_model` says.

    Threads may share the model: its calls, and those of all other models of `model`, take turns, and each call is computed by
    all workers. While a training model of the same network is called elsewhere, a call sees the weights after a whole call of it.

    Arrays are taken as they are: scaling and columns that a trained file knows are applied by `infer` and by `evaluate` of a run only.
    """
    chosen = chosen_options("inference_model", options, changes).for_inference()
    made = InferenceModel(shared_source_of(model, chosen), chosen, chosen_progress(progress))
    made.anchors.names = chosen.anchored_tensors
    if options is not None:
        options.freeze()                          # what is changed now would have no effect on this model
    return made
