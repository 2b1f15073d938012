"""Comparisons of nested results under the reference's name."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def allclose(ref: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Whether two structures of tensors and values are alike, tensors within tolerances (`torch.allclose`)."""
    if type(ref) is not type(other):
        return False
    if isinstance(ref, torch.Tensor):
        return ref.shape == other.shape and torch.allclose(ref, other, rtol, atol)
    if isinstance(ref, Mapping):
        return ref.keys() == other.keys() and all(allclose(ref[name], other[name], rtol, atol) for name in ref)
    if isinstance(ref, (list, tuple)):
        return len(ref) == len(other) and all(allclose(a, b, rtol, atol) for a, b in zip(ref, other, strict=True))
    return bool(ref == other)
