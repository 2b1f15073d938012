"""Activations, element by element or along an axis."""
from __future__ import annotations

from typing import Any

from ...system.errors import OptionError, ShapeError
from ..tensor import Tensor, where


def relu(input: Tensor) -> Tensor:
    """max(x, 0)."""
    return input.relu()


def relu6(input: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x between two bounds."""
    return input.clamp(min_val, max_val)


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x, or negative_slope * x below 0."""
    return input.apply("LeakyRelu", alpha=negative_slope)


def prelu(input: Tensor, weight: Any) -> Tensor:
    """x, or weight * x below 0; the weight is one number or one for each channel of [N, C, ...]."""
    slope = input.lift(weight)
    if slope.numel() > 1:
        if len(input.shape) < 2 or slope.shape != input.shape[1:2]:
            raise ShapeError(f"prelu: the weight {list(slope.shape)} must have one number, or one for each channel of {list(input.shape)}.")
        slope = slope.reshape(-1, *[1] * (len(input.shape) - 2))
    return input.apply("PRelu", slope)


def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """x, or alpha (e^x - 1) below 0."""
    return input.apply("Elu", alpha=alpha)


def selu(input: Tensor) -> Tensor:
    """Scaled ELU with the constants of Klambauer et al., arXiv:1706.02515."""
    return input.apply("Selu", alpha=1.6732632423543772, gamma=1.0507009873554805)


def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + min(0, alpha (e^(x / alpha) - 1)) (Barron, arXiv:1704.07483)."""
    return input.apply("Celu", alpha=alpha)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x) with the normal distribution's Phi; approximate="tanh": the formula with tanh."""
    return input.apply("Gelu", approximate=approximate)


def silu(input: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return input.apply("Swish")


def mish(input: Tensor) -> Tensor:
    """x tanh(log(1 + e^x))."""
    return input.apply("Mish")


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + e^(beta x)) / beta without overflow; x itself where beta x exceeds the threshold."""
    if not beta:
        raise OptionError("softplus: beta must not be 0.")
    scaled = input * beta
    return where(scaled > threshold, input, scaled.apply("Softplus") / beta)


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return input.apply("Softsign")


def hardswish(input: Tensor) -> Tensor:
    """x min(max(x + 3, 0), 6) / 6."""
    return input.apply("HardSwish")


def hardsigmoid(input: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6."""
    return input.apply("HardSigmoid", alpha=1 / 6, beta=0.5)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return input.sigmoid()


def logsigmoid(input: Tensor) -> Tensor:
    """log(1 / (1 + e^-x)) without overflow."""
    return -(-input).apply("Softplus")


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return input.tanh()


def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - input.tanh()


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x, or 0 between -lambd and lambd."""
    return where(input.abs() > lambd, input, 0)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 where it would pass it."""
    return input.apply("Shrink", lambd=lambd, bias=lambd)


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """x above the threshold, else the value."""
    return where(input > threshold, input, value)


def softmax(input: Tensor, dim: int) -> Tensor:
    """e^x / sum(e^x) along an axis."""
    return input.softmax(dim)


def softmin(input: Tensor, dim: int) -> Tensor:
    """The softmax of -x along an axis."""
    return (-input).softmax(dim)


def log_softmax(input: Tensor, dim: int) -> Tensor:
    """log(softmax(x)) along an axis without overflow."""
    return input.log_softmax(dim)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a sigmoid(b) of the halves a, b along an axis (Dauphin et al., arXiv:1612.08083)."""
    if input.size(dim) % 2:
        raise ShapeError(f"glu: axis {dim} of {list(input.shape)} has no two halves.")
    a, b = input.chunk(2, dim)
    return a * b.sigmoid()
