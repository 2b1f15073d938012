"""A convolution over planes in numbers: its sizes, the layout of its unfolding, its cost."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ...isa import cpu
from ...isa.vector import itemsize
from ..problem import ConvProblem, speed

FIRST = 32 * 1024         # bytes of a first-level cache
CACHE = 320 * 1024        # bytes of an unfolded block: stays in a level-2 cache next to what is multiplied with it

@dataclass(frozen=True)
class Geometry:
    """The sizes of one convolution; `c` and `oc` count the channels of one of `groups` groups."""

    n: int
    groups: int
    c: int
    h: int
    w: int
    oc: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int = 1
    sw: int = 1
    dh: int = 1
    dw: int = 1
    top: int = 0
    left: int = 0

    @property
    def k(self) -> int:
        """Products per output element."""
        return self.c * self.kh * self.kw

    @property
    def flops(self) -> float:
        return 2.0 * self.n * self.groups * self.oc * self.oh * self.ow * self.k

    @property
    def in_place(self) -> bool:
        """The image already is its own unfolding."""
        return (self.kw, self.sw, self.sh, self.top, self.left) == (1, 1, 1, 0, 0) and self.ow == self.w \
            and self.oh + (self.kh - 1) * self.dh == self.h

    @property
    def column(self) -> bool:
        """An image of one column: it is unfolded as one row along its height."""
        return (self.w, self.kw, self.ow, self.left) == (1, 1, 1, 0)

    @property
    def step(self) -> int:
        """Elements between neighbours that unfolding brings together."""
        return self.sh if self.column else self.sw

    @property
    def phases(self) -> int:
        """Input rows with different remainders modulo the stride that the taps meet."""
        return min(self.kh, self.sh // math.gcd(self.sh, self.dh))


def geometry(p: ConvProblem) -> Geometry:
    """The sizes of the convolution `p`, or of the one whose input gradient it is; one spatial axis runs along the height."""
    f = p.turn if p.turned else p
    down, across = (f.axes[2], f.axes[0]) if f.rank == 1 else f.axes[1:]
    return Geometry(f.n, f.groups, f.c, down.size, across.size, f.oc, down.out, across.out, down.taps, across.taps,
                    down.in_step, across.in_step, down.tap_step, across.tap_step, -down.base, -across.base)


def planes(p: ConvProblem, dtype: str) -> bool:
    """Whether there are kernels over planes: of float32 and float64, up to two axes."""
    return p.rank < 3 and dtype in ("f4", "f8")


RATE = {False: 0.8, True: 0.85}
"""Speed as a part of a path's rate, of a convolution and of an input gradient: ResNet's shapes on one AVX2 core."""
POINTWISE = 1.2
"""Likewise of a 1x1 kernel without strides, where rows of pixels fill whole vectors."""


DEPTHWISE, STRIDED, FOLDED = 0.45, 0.25, 0.05
"""Likewise of depthwise convolutions without strides, with them, and of what cannot be done by their own kernels."""


def rate(p: ConvProblem, dtype: str, path: cpu.Cpu, plain: float, pointwise: float = POINTWISE) -> float:
    """The speed of a product over planes, `plain` where it unfolds them."""
    if p.depthwise:
        if p.axes[0].taps > 1 or any(a.out_step > 1 for a in p.axes):
            return FOLDED
        return STRIDED if any(a.in_step > 1 for a in p.axes) else DEPTHWISE
    if p.taps == p.groups == 1 and p.pixels_in == p.pixels_out:
        wide = path.tile.vectors * path.lanes(itemsize(dtype))
        return max(0.5, pointwise * p.pixels_out / (-(-p.pixels_out // wide) * wide))
    return plain


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds of a convolution or an input gradient on one core, from measured rates, to be compared with other kernels'."""
    return p.flops / (speed(dtype, path) * rate(p, dtype, path, RATE[p.turned]))


@dataclass(frozen=True)
class Unfolding:
    """U of `rows` output rows: `depth` input rows per phase; `pitch` elements from one (channel, kernel column) to the next."""

    g: Geometry
    rows: int

    @property
    def depth(self) -> int:
        return (self.g.kh - 1) * self.g.dh // self.g.sh + self.rows

    @property
    def pitch(self) -> int:
        if self.g.in_place:
            return self.g.h * self.g.w
        size = -(-self.g.phases * self.depth * self.g.ow // 16) * 16
        return size + 16 if size % 256 == 0 else size          # rows a power of two apart would share cache sets

    def elements(self, channels: int) -> int:
        """Elements of U of `channels` channels."""
        return channels * self.g.kw * self.pitch

    @property
    def numbers(self) -> tuple[int, ...]:
        """The head of the table that `unfold` and `fold_planes` read."""
        g = self.g
        return (g.h, g.w, g.ow, g.kw, g.sh, g.dh, g.dw, g.top, g.left, g.phases, self.depth, self.pitch,
                int(g.column), g.step)


def time(g: Geometry, size: int, path: cpu.Cpu) -> float:
    """Estimated nanoseconds of a convolution or one of its gradients on one core, unfolding included: what a call says it takes."""
    unfolded = 0.0 if g.in_place else float(g.n * g.groups * g.c * g.kw * g.h * g.ow)
    return g.flops / (path.rates.convolutions * 4 / size) + unfolded * 0.15
