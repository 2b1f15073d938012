"""The gradients of a recurrent layer's steps, from the last one to the first, by what the forward pass recorded.

What comes out are the gradients of each step's gates, and what the gradients of the recurrent weights multiply them with: one product over all
steps is left to the caller.
"""
from __future__ import annotations

import functools

from ..isa import cpu
from ..isa.vector import itemsize
from ..machine.leaf import Leaf
from ..machine.places import address_of
from .panels import padded, product
from .rows import RowPass, row_functions, tail
from .steps import SKEW, Steps, active, taken

ARRAYS = ("g", "u", "r", "cp", "hp", "k", "p", "s", "d", "w", "f", "e")
"""What the cell's expressions may name (see `ops/cells.py`)."""


def backward_scratch_elements(rows: int, n: int, width: int, dtype: str) -> int:
    """Of one worker: gradients of h, of c and of the reset state, a state of zeros."""
    return rows * (3 * (padded(n, width) + SKEW // itemsize(dtype))) + n


def backward_leaf(dtype: str, passes: tuple[RowPass, ...]) -> Leaf:
    """The leaf of a cell given by the passes before its products, one or two."""
    return _leaf(dtype, tuple(p.form for p in passes), cpu.current())


@functools.cache
def _leaf(dtype: str, forms: tuple[RowPass, ...], path: cpu.Cpu) -> Leaf:
    multiply, size = product(dtype, path), itemsize(dtype)
    functions = row_functions(forms, ARRAYS, "", dtype, path)
    first, last, two = functions[0], functions[-1], len(forms) > 1
    gap = SKEW // size

    def recurrent_gradient(gy, gh, gc, panels, lengths, h0, c0, p, y, record, dx, before, dh0, dc0, extra, dq, scratch,  # type: ignore[no-untyped-def]
                           s, lo, hi, rest):
        n, batch, gates, reset_after = s.n, s.batch, s.gates, s.reset_after
        count = (n + s.width - 1) // s.width
        wide = count * s.width + gap
        row, apart = wide * size, gates * n * s.width * size
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
                for j in range(n):
                    scratch[at_g + i * wide + j] = gh[state + j] if s.gradient_h else 0
                    scratch[at_k + i * wide + j] = gc[state + j] if s.gradient_c else 0
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
                        through += at_run * gates * n * size
                        step, g = s.x_b * gates * n * size, base + (r0 - b0) * row
                        for phase in range(1 + two):
                            if phase:
                                multiply(r1 - r0, n, s.width, through + (gates - 1) * n * size, step, weights + (gates - 1) * n * s.width * size,
                                         apart, count, g + at_s * size, row, 0)
                            for i in range(r0, r1):
                                at = d * s.x_d + t * s.x_t + i * s.x_b
                                at_y = d * s.y_d + t * s.y_t + i * s.y_b
                                state = (i * s.s_b + d * s.s_d) * n * size
                                edge = t == s.steps - 1 if back else t == 0
                                if back and s.lengths:
                                    edge = t == lengths[i] - 1
                                if edge:
                                    hp = address_of(h0) + state if s.has_h else base + at_0 * size
                                    cp = address_of(c0) + state if s.has_c else base + at_0 * size
                                else:
                                    other = 1 if back else -1
                                    hp = address_of(y) + (at_y + other * s.y_t) * n * size
                                    cp = address_of(record) + ((at + other * s.x_t) * s.recorded + gates) * n * size * s.cell
                                own = base + (i - b0) * row
                                values = (own, address_of(gy) + at_y * n * size * s.gradient, address_of(record) + at * s.recorded * n * size, cp, hp,
                                          own + at_k * size, address_of(p) + d * 3 * n * size * s.peepholes, own + at_s * size,
                                          address_of(dx) + at * gates * n * size, address_of(dq) + at * gates * n * size * reset_after,
                                          address_of(before) + at * n * size, address_of(extra) + at * n * size * (two or s.peepholes))
                                if phase:
                                    last(n, 0, rest, *values)
                                else:
                                    first(n, 0, rest, *values)
                        multiply(r1 - r0, (gates - two) * n, s.width, through, step, weights, apart, count, g, row, adds)
                        r0, r1 = active(lengths, s.lengths, t, r1, b1)
            for i in range(rows):
                state = ((b0 + i) * s.s_b + d * s.s_d) * n
                for j in range(n):
                    dh0[state + j] = scratch[at_g + i * wide + j]
                if s.cell:
                    for j in range(n):
                        dc0[state + j] = scratch[at_k + i * wide + j]

    signature = ", ".join(["T[:]"] * 4 + ["i4[:]"] + ["T[:]"] * 11) + ", T[w,:], numbers, lo, hi"
    signature = signature.replace("T", dtype) + tail(forms)
    key = f"{path.name} {' '.join(f.key for f in forms)}"
    return Leaf(recurrent_gradient, signature, key=key, numbers=Steps)
