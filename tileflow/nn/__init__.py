"""The layer API: modules that record graphs. See `tileflow.training_model` and `tileflow.inference_model` to run them."""
from .init import manual_seed, skip_init
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
from .planning import MultiConv, serialized_matmul, set_available_memory
from .tensor import Tensor
from .transformer import GELU, Embedding, LayerNorm, MultiheadAttention

__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "Buffer",
    "Conv1d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "Module",
    "MultiConv",
    "MultiheadAttention",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "Tensor",
    "manual_seed",
    "record",
    "serialized_matmul",
    "set_available_memory",
    "skip_init",
]
