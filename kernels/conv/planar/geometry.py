"""What a convolution is in numbers: its sizes, the layout of its unfolding, its cost."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ...isa import cpu

FIRST = 32 * 1024         # bytes of a first-level cache
CACHE = 320 * 1024        # bytes of an unfolded block: stays in a level-2 cache next to what is multiplied with it
UNITS = 8                 # units of range wanted at least, for the workers to share


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
        return g.h, g.w, g.ow, g.kw, g.sh, g.dh, g.dw, g.top, g.left, g.phases, self.depth, self.pitch, int(g.column)


def cost(g: Geometry, size: int, path: cpu.Cpu) -> float:
    """Estimated nanoseconds of a convolution or one of its gradients on one core."""
    unfolded = 0.0 if g.in_place else float(g.n * g.groups * g.c * g.kw * g.h * g.ow)
    return g.flops / (path.rates.convolutions * 4 / size) + unfolded * 0.15
