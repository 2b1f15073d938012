"""tileflow: train and run the ONNX file you already have, on a plain CPU."""
from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .system import errors
from .system.errors import TileflowError, TileflowWarning
from .system.version import VERSION

if TYPE_CHECKING:
    from . import callbacks, collective, custom, machine, nn, optim, testing
    from .api import (
        TrainResult,
        compare,
        compile,
        explore,
        grad,
        gradient_model,
        infer,
        inference_model,
        load,
        load_executable,
        load_state,
        save_onnx,
        save_state,
        train,
        training_model,
        tune_available_memory,
    )
    from .custom import operator
    from .exploration import Exploration
    from .exploration.simulate import TileCompilation, TuneResult
    from .nn import autocast
    from .options.options import Options
    from .precision.policy import Policy
    from .runtime.data import AsynchronousDataAccessor, DataLoader, Dataset
    from .system.spans import trace

__version__ = VERSION
sys.modules[f"{__name__}.errors"] = errors         # also a public name: `from tileflow.errors import OptionError`
_LAZY = {
    "train": "api", "infer": "api", "compile": "api", "compare": "api", "training_model": "api",
    "inference_model": "api", "load": "api", "load_executable": "api",
    "load_state": "api", "save_state": "api", "save_onnx": "api", "grad": "api", "gradient_model": "api",
    "tune_available_memory": "api", "explore": "api", "Exploration": "exploration",
    "TuneResult": "exploration.simulate", "TileCompilation": "exploration.simulate",
    "TrainResult": "api", "Options": "options.options", "DataLoader": "runtime.data",
    "AsynchronousDataAccessor": "runtime.data", "Dataset": "runtime.data", "nn": "nn", "optim": "optim",
    "callbacks": "callbacks", "machine": "machine",
    "autocast": "nn", "Policy": "precision.policy", "trace": "system.spans", "torch": "torch",
    "poptorch": "poptorch", "custom": "custom", "collective": "collective", "operator": "custom", "testing": "testing",
}
"""Public names and where they live; loaded at first use, so that `import tileflow` and `tileflow --help` are quick."""
__all__ = [
    "AsynchronousDataAccessor", "DataLoader", "Dataset", "Exploration", "Options", "Policy", "TileCompilation",
    "TileflowError", "TileflowWarning", "TrainResult", "TuneResult", "autocast", "callbacks", "collective", "compare",
    "compile",
    "custom", "explore", "grad", "gradient_model", "infer", "inference_model", "load", "load_executable", "load_state",
    "machine", "nn",
    "operator", "optim", "save_onnx", "save_state", "testing", "trace", "train", "training_model",
    "tune_available_memory",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tileflow' has no attribute {name!r}")
    module = import_module(f"{__name__}.{_LAZY[name]}")
    found = module if _LAZY[name].rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


if any(os.environ.get(name) for name in ("TILEFLOW_LOG_LEVEL", "TILEFLOW_TRACE", "TILEFLOW_AUTO_REPORT")):
    import_module(f"{__name__}.api.surroundings").heed()
