"""Other runtimes of ONNX files, for comparisons: each takes a model and arrays by name and gives outputs by name."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from onnx import ModelProto

from ..system.errors import OptionError, TileflowError
from ..system.text import one_line

Runner = Callable[[ModelProto, Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def _onnxruntime(model: ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    runtime = _package("onnxruntime")
    quiet = runtime.SessionOptions()
    quiet.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
    names = [v.name for v in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(arrays)), strict=True))


def _openvino(model: ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    core = _package("openvino").Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU")
    found = compiled(dict(arrays))
    return {name: np.array(found[port]) for port in compiled.outputs for name in port.names}


def _reference(model: ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    evaluator = _package("onnx.reference").ReferenceEvaluator(model)
    return dict(zip(evaluator.output_names, evaluator.run(None, dict(arrays)), strict=True))


PEERS: dict[str, Runner] = {"onnxruntime": _onnxruntime, "openvino": _openvino, "onnx": _reference}
"""By name; `onnx` is the slow evaluator that comes with the format."""


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise OptionError(f"A comparison with {name} needs its package: pip install {name}.") from None


def run(peer: str, model: ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A peer's outputs.

    Raises:
        OptionError: there is no such peer, or its package is missing.
        TileflowError: it cannot run the model; what it says.
    """
    if peer not in PEERS:
        raise OptionError(f"A model is compared with {', '.join(PEERS)}, not {one_line(peer)!r}.")
    try:
        return PEERS[peer](model, arrays)
    except TileflowError:
        raise
    except Exception as error:
        raise TileflowError(f"{peer} cannot run the model: {one_line(error, 300)}") from None
