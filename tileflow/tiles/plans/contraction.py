"""The canonical form of a Contraction: which axes are groups, rows, channels and sums, and what a part of it touches."""
from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.work import Axis, Contraction, Operand, Window
from ..hardware.chip import device_dtype


@dataclass(frozen=True)
class Canonical:
    """A contraction with its axes sorted by role; equal canonical forms have equal plans.

    axes: those of the Work, in order. roles: axis name -> "group" (in both operands and the result), "m" (first operand
    and result), "n" (second operand and result), "k" (summed). first, second, result: dimensions of the tensors, element
    types as on the tiles. extra_in, extra_out: axes of further inputs (bias) and outputs (its gradient).
    """

    axes: tuple[Axis, ...]
    roles: tuple[tuple[str, str], ...]
    first: Operand
    second: Operand
    result: Operand
    extra_in: tuple[tuple[str, ...], ...] = ()
    extra_out: tuple[tuple[str, ...], ...] = ()
    flops_per_point: float = 2.0

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        return {a.name: a.size for a in self.axes}

    @functools.cached_property
    def _by_role(self) -> dict[str, tuple[str, ...]]:
        return {role: tuple(name for name, r in self.roles if r == role) for role in ("group", "m", "n", "k")}

    def role(self, role: str) -> tuple[str, ...]:
        """Names of the axes with a role, in order."""
        return self._by_role[role]

    @functools.cached_property
    def macs(self) -> int:
        return math.prod(a.size for a in self.axes)

    def _windows(self) -> list[Window]:
        sizes = self.sizes
        return [d for t in (self.first, self.second, self.result) for d in t.dims if isinstance(d, Window) and slides(d, sizes)]

    @functools.cached_property
    def windowed(self) -> bool:
        """Whether a window slides over a tensor (also with one tap and a stride)."""
        return bool(self._windows())

    @functools.cached_property
    def taps(self) -> tuple[str, ...]:
        """Summed axes of more than one element that are the taps of a sliding window."""
        sizes = self.sizes
        taps = {d.tap for d in self._windows()}
        return tuple(name for name in self.role("k") if name in taps and sizes[name] > 1)

    @functools.cached_property
    def channels(self) -> tuple[str, ...]:
        """The other summed axes."""
        taps = self.taps
        return tuple(name for name in self.role("k") if name not in taps)

    @property
    def key(self) -> tuple[Any, ...]:
        """All that decides a plan."""
        return self.axes, self.roles, self.first, self.second, self.result, self.extra_in, self.extra_out, self.flops_per_point


def slides(window: Window, sizes: Mapping[str, int]) -> bool:
    """False where two axes only lie side by side in one dimension (groups of channels, patches): no overlap, no gap."""
    return window.dilation != 1 or window.stride != sizes[window.tap] or window.pad != 0


def names_of(operand: Operand) -> set[str]:
    """Axes that index an operand."""
    found: set[str] = set()
    for d in operand.dims:
        found |= {d.out, d.tap} if isinstance(d, Window) else {d} if d else set()
    return found


def canonical(work: Contraction, precision: str = "32.32") -> Canonical:
    """Sort a contraction's axes by role, element types as on the tiles with `precision`."""
    a_given, b_given = work.inputs[:2]
    assert a_given is not None, "a contraction has a first operand"
    assert b_given is not None, "a contraction has a second operand"
    first, second, result = (Operand(t.dims, device_dtype(t.dtype, precision)) for t in (a_given, b_given, work.outputs[0]))
    in_a, in_b = names_of(first), names_of(second)
    roles = []
    for axis in work.axes:
        a, b = axis.name in in_a, axis.name in in_b
        if axis.kind == "reduce":
            role = "k"
        elif a and b:
            role = "group"
        elif b:
            role = "n"
        else:
            role = "m"
        roles.append((axis.name, role))
    extra_in, extra_out = (tuple(tuple(sorted(names_of(t))) for t in more if t is not None) for more in (work.inputs[2:], work.outputs[1:]))
    return Canonical(work.axes, tuple(roles), first, second, result, extra_in, extra_out, work.flops_per_point)


def extent(dim: str | Window | None, parts: Mapping[str, Any]) -> Any:
    """Indices of a dimension that a part touches, `parts` being its extents per axis.

    A window touches (out - 1) * stride + (tap - 1) * dilation + 1 of them, or out * tap where taps do not meet.
    """
    if dim is None:
        return 1.0
    if isinstance(dim, str):
        return parts[dim]
    out, tap = parts[dim.out], parts[dim.tap]
    return np.minimum(out * tap, (out - 1) * dim.stride + (tap - 1) * dim.dilation + 1)


def elements(operand: Operand, parts: Mapping[str, Any]) -> Any:
    """Elements of a tensor that a part touches."""
    count: Any = 1.0
    for dim in operand.dims:
        count = count * extent(dim, parts)
    return count


def ceil_div(a: int, b: int) -> int:
    """Whole parts of size `b` that hold `a`."""
    return -(-a // b)


def step(size: int, parts: int, grain: int = 1) -> int:
    """Extent of the largest part of an axis (see the tile-numbering rule in plan.py)."""
    return grain * ceil_div(ceil_div(size, grain), parts)


def intervals(size: int, parts: int, grain: int = 1, start: int = 0) -> Iterator[tuple[int, int]]:
    """The parts [lo, hi) of an axis in order; they cover it once. Parts past the end are empty."""
    width = step(size, parts, grain)
    for i in range(parts):
        yield start + min(size, i * width), start + min(size, (i + 1) * width)
