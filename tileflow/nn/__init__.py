"""The layer API: modules that record graphs. See `tileflow.training_model` and `tileflow.inference_model` to run them."""
from .init import manual_seed
from .layers import (
    AvgPool2d,
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    LeakyReLU,
    Linear,
    LogSoftmax,
    MaxPool1d,
    MaxPool2d,
    ReLU,
    Sequential,
    Sigmoid,
    Softmax,
    Tanh,
)
from .module import Module, record
from .parameter import Buffer, Parameter
from .tensor import Tensor

__all__ = ["AvgPool2d", "BatchNorm", "BatchNorm1d", "BatchNorm2d", "Buffer", "Conv1d", "Conv2d", "Dropout", "Flatten",
           "GlobalAvgPool", "LeakyReLU", "Linear", "LogSoftmax", "MaxPool1d", "MaxPool2d", "Module", "Parameter", "ReLU",
           "Sequential", "Sigmoid", "Softmax", "Tanh", "Tensor", "manual_seed", "record"]
