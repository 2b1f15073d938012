"""What a convolution is in numbers: its sizes, where its taps meet the image, how its weights are ordered.

A convolution and its input gradient are the same problem: the gradient of an image is a convolution of dy, whose axes are turned and whose
weights lie with channels and filters exchanged.
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from ..isa import cpu
from ..isa.vector import itemsize
from ..machine.call import Const
from .indirection import phase_taps

UNITS = 8
"""Units of range that are wanted at least, for the workers to share."""


FAR = 4 << 20
"""Bytes of images and results together from which they are asked for ahead: they are beyond the second-level cache."""


def speed(dtype: str, path: cpu.Cpu) -> float:
    """Operations per ns of one core, roughly, on numbers of this type: what the rates of the algorithms are parts of."""
    return path.rates.convolutions * 4 / itemsize(dtype)


@dataclass(frozen=True)
class ConvAxis:
    """One spatial axis: input and output elements, taps, and the steps that indirection.py explains."""

    size: int
    out: int
    taps: int
    in_step: int = 1
    out_step: int = 1
    base: int = 0
    tap_step: int = 1

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.size, self.out, self.taps, self.in_step, self.out_step, self.base, self.tap_step

    @property
    def turned(self) -> ConvAxis:
        """The axis of the other one of a convolution and its input gradient."""
        return ConvAxis(self.out, self.size, self.taps, self.out_step, self.in_step, -self.base, -self.tap_step)


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of `n` images [*axes, groups * c] to [*axes, groups * oc]; always three axes, the first ones of size 1 if need be.

    `rank` of them are the operator's own. Weights are [groups * oc, c, *taps]; those of a `turned` problem, the input gradient of a
    convolution, are that one's: [groups * c, oc, *taps].
    """

    n: int
    groups: int
    c: int
    oc: int
    axes: tuple[ConvAxis, ConvAxis, ConvAxis]
    rank: int = 2
    turned: bool = False

    @property
    def turn(self) -> ConvProblem:
        """The input gradient of a convolution, from dy, its c, to dx; and back."""
        a, b, c = self.axes
        return replace(self, c=self.oc, oc=self.c, axes=(a.turned, b.turned, c.turned), turned=not self.turned)

    @property
    def order(self) -> tuple[int, int]:
        """Elements from a filter's weights to the next one's, and from a channel's to the next one's, within a group."""
        return (self.taps, self.oc * self.taps) if self.turned else (self.c * self.taps, self.taps)

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.groups * self.oc * self.c * self.taps

    @property
    def depthwise(self) -> bool:
        """One channel and one filter to a group."""
        return self.c == self.oc == 1 and self.groups > 1

    @property
    def taps(self) -> int:
        return math.prod(a.taps for a in self.axes)

    @property
    def pixels_in(self) -> int:
        return math.prod(a.size for a in self.axes)

    @property
    def pixels_out(self) -> int:
        return math.prod(a.out for a in self.axes)

    @property
    def elements_in(self) -> int:
        """Elements of the images."""
        return self.n * self.pixels_in * self.groups * self.c

    @property
    def elements_out(self) -> int:
        """Elements of the results."""
        return self.n * self.pixels_out * self.groups * self.oc

    @property
    def phases(self) -> int:
        return math.prod(a.out_step for a in self.axes)

    @property
    def taps_of_phases(self) -> list[int]:
        """How many taps the outputs of each phase meet."""
        return [int(phase_taps(self.numbers, phase)) for phase in range(self.phases)]

    @property
    def phase_pixels(self) -> int:
        """Output pixels of the largest phase over all images."""
        return self.n * math.prod(-(-a.out // a.out_step) for a in self.axes)

    @property
    def numbers(self) -> list[int]:
        """Those of the three axes, as the functions of indirection.py read them."""
        return [number for axis in self.axes for number in axis.numbers]

    @property
    def indirection(self) -> Const:
        """`numbers` as an argument of a call."""
        return Const.of(self.numbers)

    @property
    def tap_order(self) -> Const:
        """All taps, phase by phase."""
        return _tap_order(self.axes)

    def reach(self, pixels: int) -> int:
        """Input pixels, in memory's order, from the first to the last that `pixels` outputs of a phase in a row meet, at most."""
        planes, lines, columns = self.axes
        deep, high, wide = (max(1, a.out // a.out_step) for a in self.axes)          # outputs of the smallest phase
        halo = [-(-(a.taps - 1) * abs(a.tap_step) // a.out_step) + (a.out_step > 1) for a in self.axes]
        down = (pixels + wide - 2) // wide                                           # steps from line to line, some of them to the next plane
        over = (down + high - 1) // high if self.n * planes.out > 1 else 0
        next_plane = max(planes.in_step, abs(planes.size - (deep - 1) * planes.in_step)) * lines.size
        step = max(next_plane, (high + 1) * lines.in_step)
        reached = down * lines.in_step + over * step + halo[1] + halo[0] * lines.size + 1
        return min(reached, self.n * planes.size * lines.size) * columns.size

    def far(self, dtype: str) -> bool:
        """Whether images and results are too large to be near."""
        return (self.elements_in + self.elements_out) * itemsize(dtype) >= FAR

    @property
    def flops(self) -> float:
        """Of all products, those with padding too."""
        return 2.0 * self.n * self.groups * self.c * self.oc * self.taps * self.pixels_out / self.phases


@functools.lru_cache(4096)
def _tap_order(axes: tuple[ConvAxis, ConvAxis, ConvAxis]) -> Const:
    """See `ConvProblem.tap_order`."""
    def met(axis: ConvAxis, phase: int, tap: int) -> bool:
        return (phase + axis.base + tap * axis.tap_step) % axis.out_step == 0

    a, b, c = axes
    phases = [(i, j, k) for i in range(a.out_step) for j in range(b.out_step) for k in range(c.out_step)]
    taps = [(i, j, k) for i in range(a.taps) for j in range(b.taps) for k in range(c.taps)]
    return Const.of([number for phase in phases for number, tap in enumerate(taps)
                     if all(met(*of) for of in zip(axes, phase, tap, strict=True))])
