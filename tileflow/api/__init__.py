"""The verbs: train, infer, compare, compile, tune_available_memory, explore, training_model, inference_model, load, grad, gradient_model,
save_onnx, save_state, load_state."""
from .comparing import compare
from .exploration import explore
from .exporting import save_onnx
from .gradients import grad, gradient_model
from .inference import infer
from .measure import agreement, measure
from .models import inference_model, load, training_model
from .result import TrainResult
from .simulation import compile, tune_available_memory
from .states import load_state, save_state
from .training import train

__all__ = [
    "TrainResult", "agreement", "compare", "compile", "explore", "grad", "gradient_model", "infer",
    "inference_model", "load", "load_state", "measure", "save_onnx", "save_state", "train", "training_model",
    "tune_available_memory",
]
