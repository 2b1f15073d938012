"""Pooling over planes [h, w] of NCHW tensors: windows, and calls over planes, each a unit of range."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..machine.call import Call
from ..machine.leaf import Leaf, Numbers


@dataclass(frozen=True)
class PoolWindow(Numbers):
    """The windows of one pooling of planes [h, w] to [oh, ow]: kernel, strides, dilations, padding before each axis."""

    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    top: int
    left: int

    @property
    def halves(self) -> bool:
        """2 x 2 blocks side by side, none of them cut."""
        return self.words()[4:12] == [2, 2, 2, 2, 1, 1, 0, 0] and 2 * self.oh <= self.h and 2 * self.ow <= self.w

    @property
    def whole(self) -> bool:
        """One window, of the whole plane."""
        return self.words()[:12] == [self.h, self.w, 1, 1, self.h, self.w, self.sh, self.sw, 1, 1, 0, 0]


@dataclass(frozen=True)
class AverageWindow(PoolWindow):
    """The same with the rows and columns (low and high each) in which a tap counts for the average."""

    row_low: int
    row_high: int
    column_low: int
    column_high: int


def run(leaf: Leaf, args: tuple[Any, ...], planes: int, ns_per_plane: float) -> list[Call]:
    """Planes in pieces of about 5 us, so that a piece outweighs what it costs to hand out."""
    return [Call(leaf, args, planes, max(1, int(5000 / (ns_per_plane + 1))), planes * ns_per_plane)]
