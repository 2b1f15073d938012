"""The verbs: train, infer, compare, compile, tune_available_memory, explore, training_model, inference_model, load,
load_executable, grad, gradient_model, save_onnx, save_state, load_state."""
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparing import compare
    from .executables import load_executable
    from .exploration import explore
    from .exporting import save_onnx
    from .gradients import grad, gradient_model
    from .inference import infer
    from .measuring import agreement, measure
    from .models import inference_model, load, training_model
    from .result import TrainResult
    from .simulation import compile, tune_available_memory
    from .states import load_state, save_state
    from .training import train

_LAZY = {
    "TrainResult": "result", "agreement": "measuring", "compare": "comparing", "compile": "simulation",
    "explore": "exploration",
    "grad": "gradients", "gradient_model": "gradients", "infer": "inference", "inference_model": "models",
    "load": "models", "load_executable": "executables",
    "load_state": "states", "measure": "measuring", "save_onnx": "exporting", "save_state": "states",
    "train": "training", "training_model": "models", "tune_available_memory": "simulation",
}
"""Where each verb lives: a model that an earlier start has compiled is called without what the others stand on."""
__all__ = [
    "TrainResult", "agreement", "compare", "compile", "explore", "grad", "gradient_model", "infer",
    "inference_model", "load", "load_executable", "load_state", "measure", "save_onnx", "save_state", "train",
    "training_model", "tune_available_memory",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = found
    return found
