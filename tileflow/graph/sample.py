"""Samples: the examples that an operator declares of itself, and from which its tests are made."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..memory.types import FLOATS, TensorType, type_of

SMOOTH = 0.1, 0.9
"""Where floats are drawn from unless a sample says otherwise: no logarithm, root or quotient is far from ordinary there."""
Given = Any
"""An operand of `sample`: a shape, (element type, shape), (element type, shape, low, high), an array, or None."""


@dataclass(frozen=True)
class SampledOperand:
    """An operand: its type, and the half-open range that its elements are drawn from, or the elements themselves."""

    type: TensorType
    low: float = 0
    high: float = 0
    array: np.ndarray | None = None


@dataclass(frozen=True)
class Sample:
    """Attributes and operands (None: absent) that an operator takes."""

    attributes: Mapping[str, Any]
    operands: tuple[SampledOperand | None, ...]

    @property
    def types(self) -> list[TensorType | None]:
        """The operands' types."""
        return [None if o is None else o.type for o in self.operands]


def sample(*operands: Given, **attributes: Any) -> Sample:
    """A sample in short: a shape is float32, whole numbers are 0 or 1, floats between 0.1 and 0.9, unless a range is given.

        sample((3, 4), ("int64", (2, 2), -4, 4), axis=1)
    """
    return Sample(attributes, tuple(_operand(given) for given in operands))


def _operand(given: Given) -> SampledOperand | None:
    if given is None:
        return None
    if isinstance(given, np.ndarray):
        return SampledOperand(type_of(given), array=given)
    if not given or not isinstance(given[0], str):
        given = ("float32", given)
    dtype, shape, *range_ = given
    low, high = range_ or (SMOOTH if dtype in FLOATS else (0, 2))
    return SampledOperand(TensorType(dtype, shape), low, high)
