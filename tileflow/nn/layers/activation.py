"""Activations as layers: each computes the function that it names, and takes from there its formula. `inplace` changes
no result: where a result lies is the engine's plan."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import functional as F
from ..module import Module
from ..parameter import Parameter
from ..tensor import Tensor


class Activation(Module):
    """A layer that computes a function of `functional`; the layer's attributes are the function's arguments, by name.

    of: the function; a layer without a docstring has the function's.
    """

    _function: ClassVar[Callable[..., Tensor]]
    _arguments: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, of: Callable[..., Tensor] | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if of is not None:                                     # none: somebody's own class made from a layer
            cls._function, cls._arguments = of, tuple(inspect.signature(of).parameters)[1:]
            cls.__doc__ = cls.__doc__ or of.__doc__

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._function(x, *(getattr(self, name) for name in self._arguments))


@dataclass(eq=False)
class _InPlace(Activation):
    inplace: bool = False


@dataclass(eq=False)
class _AlongAxis(Activation):
    dim: int = -1


class ReLU(_InPlace, of=F.relu): ...
class ReLU6(_InPlace, of=F.relu6): ...
class SELU(_InPlace, of=F.selu): ...
class SiLU(_InPlace, of=F.silu): ...
class Mish(_InPlace, of=F.mish): ...
class Hardswish(_InPlace, of=F.hardswish): ...
class Hardsigmoid(_InPlace, of=F.hardsigmoid): ...
class Softsign(Activation, of=F.softsign): ...
class Sigmoid(Activation, of=F.sigmoid): ...
class LogSigmoid(Activation, of=F.logsigmoid): ...
class Tanh(Activation, of=F.tanh): ...
class Tanhshrink(Activation, of=F.tanhshrink): ...
class Softmax(_AlongAxis, of=F.softmax): ...
class Softmin(_AlongAxis, of=F.softmin): ...
class LogSoftmax(_AlongAxis, of=F.log_softmax): ...
class GLU(_AlongAxis, of=F.glu): ...


@dataclass(eq=False)
class Hardtanh(Activation, of=F.hardtanh):
    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


@dataclass(eq=False)
class LeakyReLU(Activation, of=F.leaky_relu):
    negative_slope: float = 0.01
    inplace: bool = False


@dataclass(eq=False)
class ELU(Activation, of=F.elu):
    alpha: float = 1.0
    inplace: bool = False


@dataclass(eq=False)
class CELU(Activation, of=F.celu):
    alpha: float = 1.0
    inplace: bool = False


@dataclass(eq=False)
class GELU(Activation, of=F.gelu):
    approximate: str = "none"


@dataclass(eq=False)
class Softplus(Activation, of=F.softplus):
    beta: float = 1.0
    threshold: float = 20.0


@dataclass(eq=False)
class Hardshrink(Activation, of=F.hardshrink):
    lambd: float = 0.5


@dataclass(eq=False)
class Softshrink(Activation, of=F.softshrink):
    lambd: float = 0.5


@dataclass(eq=False)
class Threshold(Activation, of=F.threshold):
    threshold: float
    value: float
    inplace: bool = False


class PReLU(Activation, of=F.prelu):
    """x, or weight * x below 0; the trained weight is one number, or one for each channel of [N, C, ...]."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.weight = Parameter(np.full(num_parameters, init, np.float32))


class Softmax2d(Module):
    """Softmax over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, dim=-3)
