"""Where the taps of a convolution meet the image, for any rank: tables of addresses, from the numbers of a problem's three axes.

Along an axis, output q * `out_step` + r of phase r meets, with tap k, the input q * `in_step` + (r + `base` + k * `tap_step`) / `out_step`
where that division leaves no rest. A convolution has out_step 1; its input gradient has the stride there, and one phase for each rest.
"""
from __future__ import annotations

from typing import Any

from ..machine.places import within

SIZE, OUT, TAPS, IN_STEP, OUT_STEP, BASE, TAP_STEP = range(7)
AXIS = 7
"""The numbers of an axis (`problem.ConvAxis`); those of axis a begin at a * AXIS."""


def tap_offset(numbers: Any, axis: int, phase: int, tap: int) -> tuple[bool, int]:
    """Whether outputs of `phase` meet `tap` along an axis, and at which offset from q * in_step."""
    step = numbers[axis * AXIS + OUT_STEP]
    at = phase + numbers[axis * AXIS + BASE] + tap * numbers[axis * AXIS + TAP_STEP]
    return (True, at) if step == 1 else (at % step == 0, at // step)


def phase_taps(numbers: Any, phase: int) -> int:
    """Taps that outputs of a phase meet."""
    total = 1
    for back in range(3):
        axis = 2 - back
        step, count = numbers[axis * AXIS + OUT_STEP], 0
        for tap in range(numbers[axis * AXIS + TAPS]):
            count += tap_offset(numbers, axis, phase % step, tap)[0]
        total *= count
        phase //= step
    return total


def taps_before(numbers: Any, phase: int) -> int:
    """Taps of all phases before `phase`."""
    total = 0
    for before in range(phase):
        total += phase_taps(numbers, before)
    return total


def phase_pixels(numbers: Any, phase: int) -> int:
    """Output pixels of one image that are in a phase."""
    total = 1
    for back in range(3):
        axis = 2 - back
        step = numbers[axis * AXIS + OUT_STEP]
        total *= (numbers[axis * AXIS + OUT] - phase % step + step - 1) // step
        phase //= step
    return total


def _window(numbers: Any, axis: int) -> tuple[int, int, int, int, int]:
    at = axis * AXIS
    return numbers[at + SIZE], numbers[at + OUT], numbers[at + TAPS], numbers[at + IN_STEP], numbers[at + OUT_STEP]


def _fill(table: Any, at: int, count: int, first: int, step: int) -> None:
    row = table[at:at + count]
    for i in range(count):
        row[i] = first + i * step


def fill_table(numbers: Any, phase: int, first: int, count: int, x: int, x_row: int, y: int, y_row: int, zero: int, dump: int, table: Any,
               pitch: int) -> None:
    """Addresses for `pitch` pixels, of which `count` are outputs from `first` on (counted through the images) of a phase.

    table[i] is where output i lies, table[(1 + t) * pitch + i] where it meets the phase's tap t; `x` and `y` are the addresses of the
    images, whose pixels are `x_row` and `y_row` bytes apart. Padding is at `zero`; outputs beyond `count` lie at `dump` and meet `zero`.
    """
    n0, o0, k0, i0, s0 = _window(numbers, 0)
    n1, o1, k1, i1, s1 = _window(numbers, 1)
    n2, o2, k2, i2, s2 = _window(numbers, 2)
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
            met0, d0 = tap_offset(numbers, 0, r0, tap0)
            for tap1 in range(k1):
                met1, d1 = tap_offset(numbers, 1, r1, tap1)
                if not (met0 and met1):
                    continue
                at0, at1 = c0 * i0 + d0, c1 * i1 + d1
                line = x + ((image * n0 + at0) * n1 + at1) * n2 * x_row
                inside = at0 >= 0 and at0 < n0 and at1 >= 0 and at1 < n1
                for tap2 in range(k2):
                    met2, d2 = tap_offset(numbers, 2, r2, tap2)
                    if met2:
                        t += 1
                        to = t * pitch + done
                        from_, until = within(c2 * i2 + d2, run, i2, n2) if inside else (0, 0)
                        if until - from_ > 0:       # in whole vectors, then its ends
                            _fill(table, to, run, line + (c2 * i2 + d2) * x_row, i2 * x_row)
                            for i in range(from_):
                                table[to + i] = zero
                            for i in range(until, run):
                                table[to + i] = zero
                        else:
                            _fill(table, to, run, zero, 0)
        done += run
    _fill(table, count, pitch - count, dump, 0)
    for tap in range(t):
        _fill(table, (1 + tap) * pitch + count, pitch - count, zero, 0)
