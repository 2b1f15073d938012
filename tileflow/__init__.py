"""tileflow: train and run the ONNX file you already have, on a plain CPU."""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import TileflowError
from .version import VERSION

if TYPE_CHECKING:
    from . import nn, optim
    from .api import TrainResult, compile, infer, inference_model, load, train, training_model, tune_available_memory
    from .options import Options
    from .runtime.data import DataLoader, Dataset
    from .simulate import TileCompilation, TuneResult

__version__ = VERSION
_LAZY = {
    "train": "api", "infer": "api", "compile": "api", "training_model": "api", "inference_model": "api", "load": "api",
    "tune_available_memory": "api", "TuneResult": "simulate", "TileCompilation": "simulate",
    "TrainResult": "api", "Options": "options", "DataLoader": "runtime.data", "Dataset": "runtime.data", "nn": "nn", "optim": "optim",
}
"""Public names and where they live; loaded at first use, so that `import tileflow` and `tileflow --help` are quick."""
__all__ = ["DataLoader", "Dataset", "Options", "TileCompilation", "TileflowError", "TrainResult", "TuneResult", "compile", "infer",
           "inference_model", "load", "nn", "optim", "train", "training_model", "tune_available_memory"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tileflow' has no attribute {name!r}")
    module = import_module(f"{__name__}.{_LAZY[name]}")
    found = module if _LAZY[name] == name else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
