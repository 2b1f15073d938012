"""The verbs: train, infer, compile, tune_available_memory, explore, training_model, inference_model, load, grad, gradient_model,
save_onnx, save_state, load_state."""
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exploration import explore
    from .exporting import save_onnx
    from .gradients import grad, gradient_model
    from .inference import infer
    from .measure import agreement, measure
    from .models import inference_model, load, training_model
    from .simulation import compile, tune_available_memory
    from .states import load_state, save_state
    from .training import TrainResult, train

__all__ = [
    "TrainResult", "agreement", "compile", "explore", "grad", "gradient_model", "infer", "inference_model", "load", "load_state", "measure",
    "save_onnx", "save_state", "train", "training_model", "tune_available_memory",
]
_PLACES = {
    "exploration": ("explore",), "exporting": ("save_onnx",), "gradients": ("grad", "gradient_model"),
    "inference": ("infer",), "measure": ("agreement", "measure"),
    "models": ("inference_model", "load", "training_model"), "simulation": ("compile", "tune_available_memory"),
    "states": ("load_state", "save_state"), "training": ("TrainResult", "train"),
}
"""Files and their verbs; loaded at first use, so that the command line can ask `packaged` and be quick."""


def __getattr__(name: str) -> Any:
    place = next((file for file, verbs in _PLACES.items() if name in verbs), None)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{place}")
    globals().update({verb: getattr(module, verb) for verb in _PLACES[place]})          # `measure` is a file as well
    return globals()[name]
