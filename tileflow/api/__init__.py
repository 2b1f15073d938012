"""The verbs: train, infer, compile, tune_available_memory, training_model, inference_model, load."""
from .inference import infer
from .measure import measure
from .models import inference_model, load, training_model
from .simulation import compile, tune_available_memory
from .training import TrainResult, train

__all__ = ["TrainResult", "compile", "infer", "inference_model", "load", "measure", "train", "training_model", "tune_available_memory"]
