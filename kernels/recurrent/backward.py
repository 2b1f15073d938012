"""The gradients of a recurrent layer's steps, from the last one to the first, by what the forward pass recorded.

What comes out are the gradients of each step's gates, and what the gradients of the recurrent weights multiply them with: one product over all
steps is left to the caller.
"""
from __future__ import annotations

import functools

from ..isa import cpu
from ..isa.half import summed
from ..isa.vector import itemsize
from ..machine.leaf import Leaf
from ..machine.places import address_of
from .panels import padded, product
from .rows import RowPass, row_functions, tail
from .steps import SKEW, Steps, active, between, taken

ARRAYS = ("g", "u", "r", "cp", "hp", "k", "p", "s", "d", "w", "f", "e")
"""What the cell's expressions may name (see `ops/cells.py`)."""


def backward_scratch_elements(rows: int, n: int, width: int, dtype: str) -> int:
    """Of one worker: gradients of h, of c and of the reset state, a state of zeros."""
    return rows * (3 * (padded(n, width) + SKEW // itemsize(summed(dtype)))) + n


def backward_leaf(dtype: str, passes: tuple[RowPass, ...]) -> Leaf:
    """The leaf of a cell given by the passes before its products, one or two; dtype as for `forward_leaf`."""
    return _leaf(dtype, tuple(p.form for p in passes), cpu.current())


@functools.cache
def _leaf(dtype: str, forms: tuple[RowPass, ...], path: cpu.Cpu) -> Leaf:
    multiply, size, held = product(dtype, path), itemsize(summed(dtype)), itemsize(dtype)
    functions = row_functions(forms, ARRAYS, "", dtype, path)
    first, last, two = functions[0], functions[-1], len(forms) > 1
    gap = SKEW // size
    load, store = between(dtype)

    def recurrent_gradient(gy, gh, gc, panels, lengths, h0, c0, p, y, record, dx, before, dh0, dc0, extra, dq, scratch,  # type: ignore[no-untyped-def]
                           s, lo, hi, rest):
        n, batch, gates, reset_after = s.n, s.batch, s.gates, s.reset_after
        count = (n + s.width - 1) // s.width
        wide = count * s.width + gap
        row, apart = wide * size, gates * n * s.width * held
        adds = gates == 3
        unit = lo
        while unit < hi:
            d, b0, b1, unit = taken(unit, hi, s.rows, s.blocks, batch)
            d += s.first
            rows = b1 - b0
            at_g, at_k, at_s, at_0 = 0, rows * wide, 2 * rows * wide, 3 * rows * wide
            base = address_of(scratch)
            for j in range(n):
                scratch[at_0 + j] = 0
            for i in range(rows):
                state = ((b0 + i) * s.s_b + d * s.s_d) * n
                if s.gradient_h:
                    load(1, n, address_of(gh) + state * held, 0, base + at_g * size + i * row, 0)
                else:
                    scratch[at_g + i * wide:at_g + i * wide + n] = 0
                if s.gradient_c:
                    load(1, n, address_of(gc) + state * held, 0, base + at_k * size + i * row, 0)
                else:
                    scratch[at_k + i * wide:at_k + i * wide + n] = 0
            weights = address_of(panels) + d * count * apart
            back = s.reverse >> d & 1
            for k in range(s.steps):
                t = k if back else s.steps - 1 - k
                ended = b0
                r0, r1 = active(lengths, s.lengths, t, b0, b1)
                while ended < b1:
                    for i in range(ended, r0):
                        at = d * s.x_d + t * s.x_t + i * s.x_b
                        dx[at * gates * n:(at + 1) * gates * n] = 0
                        before[at * n:(at + 1) * n] = 0
                        if two or s.peepholes:
                            extra[at * n:(at + 1) * n] = 0
                        if reset_after:
                            dq[at * gates * n:(at + 1) * gates * n] = 0
                    ended = r1
                    if r0 < r1:
                        at_run = d * s.x_d + t * s.x_t + r0 * s.x_b
                        through = address_of(dq) if reset_after else address_of(dx)
                        through += at_run * gates * n * held
                        step, g = s.x_b * gates * n * held, base + (r0 - b0) * row
                        for phase in range(1 + two):
                            if phase:
                                multiply(r1 - r0, n, s.width, through + (gates - 1) * n * held, step,
                                         weights + (gates - 1) * n * s.width * held,
                                         apart, count, g + at_s * size, row, 0)
                            for i in range(r0, r1):
                                at = d * s.x_d + t * s.x_t + i * s.x_b
                                at_y = d * s.y_d + t * s.y_t + i * s.y_b
                                state = (i * s.s_b + d * s.s_d) * n * held
                                edge = t == s.steps - 1 if back else t == 0
                                if back and s.lengths:
                                    edge = t == lengths[i] - 1
                                if edge:
                                    hp = address_of(h0) + state if s.has_h else base + at_0 * size
                                    cp = address_of(c0) + state if s.has_c else base + at_0 * size
                                else:
                                    other = 1 if back else -1
                                    hp = address_of(y) + (at_y + other * s.y_t) * n * held
                                    cp = (address_of(record)
                                          + ((at + other * s.x_t) * s.recorded + gates) * n * held * s.cell)
                                own = base + (i - b0) * row
                                values = (own, address_of(gy) + at_y * n * held * s.gradient,
                                          address_of(record) + at * s.recorded * n * held, cp, hp,
                                          own + at_k * size, address_of(p) + d * 3 * n * held * s.peepholes,
                                          own + at_s * size,
                                          address_of(dx) + at * gates * n * held,
                                          address_of(dq) + at * gates * n * held * reset_after,
                                          address_of(before) + at * n * held,
                                          address_of(extra) + at * n * held * (two or s.peepholes))
                                if phase:
                                    last(n, n, 0, rest, *values)
                                else:
                                    first(n, n, 0, rest, *values)
                        multiply(r1 - r0, (gates - two) * n, s.width, through, step, weights, apart, count, g, row, adds)
                        r0, r1 = active(lengths, s.lengths, t, r1, b1)
            for i in range(rows):
                state = ((b0 + i) * s.s_b + d * s.s_d) * n
                store(1, n, base + at_g * size + i * row, 0, address_of(dh0) + state * held, 0)
                if s.cell:
                    store(1, n, base + at_k * size + i * row, 0, address_of(dc0) + state * held, 0)

    signature = ", ".join(["T[:]"] * 4 + ["i4[:]"] + ["T[:]"] * 11) + ", S[w,:], numbers, lo, hi"
    signature = signature.replace("T", dtype).replace("S", summed(dtype)) + tail(forms)
    key = f"{path.name} {' '.join(f.key for f in forms)}"
    return Leaf(recurrent_gradient, signature, key=key, numbers=Steps)
