"""Where the taps of a convolution meet the image, for any rank: the numbers of a channels-last problem and its tables of addresses.

Along an axis, output q * `out_step` + r of phase r meets, with tap k, the input q * `in_step` + (r + `base` + k * `tap_step`) / `out_step`
where that division leaves no rest. A convolution has out_step 1; its input gradient has the stride there, and one phase for each rest.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..machine.call import Call, Work
from ..machine.inner import register_jitable
from ..machine.leaf import leaf
from ..machine.places import within


@dataclass(frozen=True)
class Axis:
    """One spatial axis: input and output elements, taps, and the steps explained above."""

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


@dataclass(frozen=True)
class Sites:
    """A convolution of `n` images [*axes, groups * c] to [*axes, groups * oc]; always three axes, the first ones of size 1 if need be."""

    n: int
    groups: int
    c: int
    oc: int
    axes: tuple[Axis, Axis, Axis]

    @property
    def gradient(self) -> Sites:
        """The input gradient of this convolution: from dy, its c, to dx."""
        axes = [Axis(a.out, a.size, a.taps, a.out_step, a.in_step, -a.base, -a.tap_step) for a in self.axes]
        return Sites(self.n, self.groups, self.oc, self.c, (axes[0], axes[1], axes[2]))

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
    def phases(self) -> int:
        return math.prod(a.out_step for a in self.axes)

    @property
    def taps_of_phases(self) -> list[int]:
        """How many taps the outputs of each phase meet."""
        numbers = [number for axis in self.axes for number in axis.numbers]
        return [int(phase_taps(numbers, phase)) for phase in range(self.phases)]

    @property
    def phase_pixels(self) -> int:
        """Output pixels of the largest phase over all images."""
        return self.n * math.prod(-(-a.out // a.out_step) for a in self.axes)

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

    @property
    def flops(self) -> float:
        """Of all products, those with padding too."""
        return 2.0 * self.n * self.groups * self.c * self.oc * self.taps * self.pixels_out / self.phases


AXIS = 7
"""Numbers of an axis."""


@leaf("i8[:]" + ", i8" * (3 * AXIS) + ", lo, hi")
def conv_sites(table, a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6, c0, c1, c2, c3, c4, c5, c6, lo, hi):         # type: ignore
    """The numbers of three axes as an array; the range is 0..1."""
    for _ in range(lo, hi):
        for i, number in enumerate((a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6, c0, c1, c2, c3, c4, c5, c6)):
            table[i] = number


def sites_work(name: str = "sites") -> Work:
    return Work(name, (3 * AXIS,), "i8")


def sites_call(s: Sites, name: str = "sites") -> Call:
    """Writes `sites_work(name)`, which leaves read as `sites`."""
    return Call(conv_sites, (sites_work(name), *(number for axis in s.axes for number in axis.numbers)), 1, 1, 20.0)


@register_jitable
def tap_offset(sites: Any, axis: int, phase: int, tap: int) -> tuple[bool, int]:
    """Whether outputs of `phase` meet `tap` along an axis, and at which offset from q * in_step."""
    step = sites[axis * AXIS + 4]
    at = phase + sites[axis * AXIS + 5] + tap * sites[axis * AXIS + 6]
    return at % step == 0, at // step


@register_jitable
def phase_taps(sites: Any, phase: int) -> int:
    """Taps that outputs of a phase meet."""
    total = 1
    for axis in (2, 1, 0):
        step, count = sites[axis * AXIS + 4], 0
        for tap in range(sites[axis * AXIS + 2]):
            count += tap_offset(sites, axis, phase % step, tap)[0]
        total *= count
        phase //= step
    return total


@register_jitable
def taps_before(sites: Any, phase: int) -> int:
    """Taps of all phases before `phase`."""
    total = 0
    for before in range(phase):
        total += phase_taps(sites, before)
    return total


@register_jitable
def tap_order(sites: Any, order: Any) -> None:
    """order[i] = the tap that comes i-th where they are sorted by phase."""
    k0, k1, k2 = sites[2], sites[AXIS + 2], sites[2 * AXIS + 2]
    s0, s1, s2 = sites[4], sites[AXIS + 4], sites[2 * AXIS + 4]
    i = 0
    for phase in range(s0 * s1 * s2):
        for tap in range(k0 * k1 * k2):
            met0 = tap_offset(sites, 0, phase // (s2 * s1), tap // (k2 * k1))[0]
            met1 = tap_offset(sites, 1, phase // s2 % s1, tap // k2 % k1)[0]
            if met0 and met1 and tap_offset(sites, 2, phase % s2, tap % k2)[0]:
                order[i] = tap
                i += 1


@register_jitable
def phase_pixels(sites: Any, phase: int) -> int:
    """Output pixels of one image that are in a phase."""
    total = 1
    for axis in (2, 1, 0):
        step = sites[axis * AXIS + 4]
        total *= (sites[axis * AXIS + 1] - phase % step + step - 1) // step
        phase //= step
    return total


@register_jitable
def _fill(table: Any, at: int, count: int, first: int, step: int) -> None:
    row = table[at:at + count]
    for i in range(count):
        row[i] = first + i * step


@register_jitable
def fill_table(sites: Any, phase: int, first: int, count: int, x: int, x_row: int, y: int, y_row: int, zero: int, dump: int, table: Any,
               pitch: int) -> None:
    """Addresses for `pitch` pixels, of which `count` are outputs from `first` on (counted through the images) of a phase.

    table[i] is where output i lies, table[(1 + t) * pitch + i] where it meets the phase's tap t; `x` and `y` are the addresses of the
    images, whose pixels are `x_row` and `y_row` bytes apart. Padding is at `zero`; outputs beyond `count` lie at `dump` and meet `zero`.
    """
    n0, o0, k0, i0, s0 = sites[0], sites[1], sites[2], sites[3], sites[4]
    n1, o1, k1, i1, s1 = sites[AXIS], sites[AXIS + 1], sites[AXIS + 2], sites[AXIS + 3], sites[AXIS + 4]
    n2, o2, k2, i2, s2 = sites[2 * AXIS], sites[2 * AXIS + 1], sites[2 * AXIS + 2], sites[2 * AXIS + 3], sites[2 * AXIS + 4]
    r2, r1, r0 = phase % s2, phase // s2 % s1, phase // (s2 * s1)
    q0, q1, q2 = (o0 - r0 + s0 - 1) // s0, (o1 - r1 + s1 - 1) // s1, (o2 - r2 + s2 - 1) // s2
    done, t = 0, 0
    while done < count:
        at = first + done
        c2, c1, c0, image = at % q2, at // q2 % q1, at // (q2 * q1) % q0, at // (q2 * q1 * q0)
        run = min(q2 - c2, count - done)
        pixel = ((image * o0 + c0 * s0 + r0) * o1 + c1 * s1 + r1) * o2 + c2 * s2 + r2
        _fill(table, done, run, y + pixel * y_row, s2 * y_row)
        t = 0
        for tap0 in range(k0):
            met0, d0 = tap_offset(sites, 0, r0, tap0)
            for tap1 in range(k1):
                met1, d1 = tap_offset(sites, 1, r1, tap1)
                if not (met0 and met1):
                    continue
                at0, at1 = c0 * i0 + d0, c1 * i1 + d1
                line = x + ((image * n0 + at0) * n1 + at1) * n2 * x_row
                inside = at0 >= 0 and at0 < n0 and at1 >= 0 and at1 < n1
                for tap2 in range(k2):
                    met2, d2 = tap_offset(sites, 2, r2, tap2)
                    if met2:
                        t += 1
                        to = t * pitch + done
                        from_, until = within(c2 * i2 + d2, run, i2, n2) if inside else (0, 0)
                        _fill(table, to, from_, zero, 0)
                        _fill(table, to + from_, until - from_, line + (c2 * i2 + d2 + from_ * i2) * x_row, i2 * x_row)
                        _fill(table, to + until, run - until, zero, 0)
        done += run
    _fill(table, count, pitch - count, dump, 0)
    for tap in range(t):
        _fill(table, (1 + tap) * pitch + count, pitch - count, zero, 0)
