"""Activations as layers. `inplace` changes no result: where a result lies is the engine's plan."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import functional as F
from ..module import Module
from ..parameter import Parameter
from ..tensor import Tensor


class PReLU(Module):
    """x, or weight * x below 0; the trained weight is one number, or one for each channel of [N, C, ...]."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.weight = Parameter(np.full(num_parameters, init, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)


@dataclass(eq=False)
class ReLU(Module):
    """max(x, 0)."""

    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


@dataclass(eq=False)
class ReLU6(Module):
    """min(max(x, 0), 6)."""

    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x)


@dataclass(eq=False)
class Hardtanh(Module):
    """x between two bounds."""

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)


@dataclass(eq=False)
class LeakyReLU(Module):
    """x, or negative_slope * x below 0."""

    negative_slope: float = 0.01
    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)


@dataclass(eq=False)
class ELU(Module):
    """x, or alpha (e^x - 1) below 0."""

    alpha: float = 1.0
    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)


@dataclass(eq=False)
class SELU(Module):
    """Scaled ELU with the constants of Klambauer et al., arXiv:1706.02515."""

    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.selu(x)


@dataclass(eq=False)
class CELU(Module):
    """max(x, 0) + min(0, alpha (e^(x / alpha) - 1))."""

    alpha: float = 1.0
    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.celu(x, self.alpha)


@dataclass(eq=False)
class GELU(Module):
    """x Phi(x) with the normal distribution's Phi; approximate="tanh": the formula with tanh."""

    approximate: str = "none"

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)


@dataclass(eq=False)
class SiLU(Module):
    """x sigmoid(x)."""

    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


@dataclass(eq=False)
class Mish(Module):
    """x tanh(log(1 + e^x))."""

    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(x)


@dataclass(eq=False)
class Softplus(Module):
    """log(1 + e^(beta x)) / beta without overflow; x itself where beta x exceeds the threshold."""

    beta: float = 1.0
    threshold: float = 20.0

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softsign(x)


@dataclass(eq=False)
class Hardswish(Module):
    """x min(max(x + 3, 0), 6) / 6."""

    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(x)


@dataclass(eq=False)
class Hardsigmoid(Module):
    """min(max(x + 3, 0), 6) / 6."""

    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(x)


class Sigmoid(Module):
    """1 / (1 + e^-x)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.sigmoid(x)


class LogSigmoid(Module):
    """log(1 / (1 + e^-x)) without overflow."""

    def forward(self, x: Tensor) -> Tensor:
        return F.logsigmoid(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return F.tanh(x)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.tanhshrink(x)


@dataclass(eq=False)
class Hardshrink(Module):
    """x, or 0 between -lambd and lambd."""

    lambd: float = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return F.hardshrink(x, self.lambd)


@dataclass(eq=False)
class Softshrink(Module):
    """x moved towards 0 by lambd, and 0 where it would pass it."""

    lambd: float = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return F.softshrink(x, self.lambd)


@dataclass(eq=False)
class Threshold(Module):
    """x above the threshold, else the value."""

    threshold: float
    value: float
    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.threshold(x, self.threshold, self.value)


@dataclass(eq=False)
class Softmax(Module):
    """e^x / sum(e^x) along an axis."""

    dim: int = -1

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, self.dim)


@dataclass(eq=False)
class Softmin(Module):
    """The softmax of -x along an axis."""

    dim: int = -1

    def forward(self, x: Tensor) -> Tensor:
        return F.softmin(x, self.dim)


@dataclass(eq=False)
class LogSoftmax(Module):
    """log(softmax(x)) along an axis without overflow."""

    dim: int = -1

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, self.dim)


@dataclass(eq=False)
class GLU(Module):
    """a sigmoid(b) of the halves a, b along an axis (Dauphin et al., arXiv:1612.08083)."""

    dim: int = -1

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(x, self.dim)


class Softmax2d(Module):
    """Softmax over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, dim=-3)
