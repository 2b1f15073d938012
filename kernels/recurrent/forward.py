"""All steps of a recurrent layer. The inputs' share of the gates is there; a step multiplies the state by the recurrent weights, which stay in
cache, and passes over the gates of each row.

A worker takes some rows of the batch, of one direction, through all steps: nobody waits for anybody. Rows whose sequence has ended are not
computed; their output is 0 and their state stays.
"""
from __future__ import annotations

import functools

from ..isa import cpu
from ..isa.half import HALVES, summed
from ..isa.vector import itemsize
from ..machine.leaf import Leaf
from ..machine.places import address_of
from ..machine.status import INDEX_OUT_OF_RANGE, OK
from .panels import padded, product
from .rows import RowPass, row_functions, tail
from .steps import SKEW, Steps, active, asked, between, taken

ARRAYS = ("x", "q", "b", "p", "c", "h", "a", "s", "y", "r")
"""What the cell's expressions may name (see `ops/cells.py`)."""


def scratch_elements(rows: int, n: int, gates: int, width: int, dtype: str) -> int:
    """Of one worker: h, c, the reset state and h of 16 bits, the state's share of the gates, biases, a row for outputs
    that nobody wants."""
    skew = SKEW // itemsize(summed(dtype))
    return rows * ((4 if dtype in HALVES
                    else 3) * (n + skew) + gates * padded(n, width) + skew) + (gates + 2) * n + gates * n


def forward_leaf(dtype: str, passes: tuple[RowPass, ...]) -> Leaf:
    """The leaf of a cell given by the passes after its products, one or two (see `ops.cells.Cell`).

    dtype: of operands and results, and of the products' operands; 16-bit ones are computed with in float32, and the
    states stay so from step to step.
    """
    return _leaf(dtype, tuple(p.form for p in passes), cpu.current())


@functools.cache
def _leaf(dtype: str, forms: tuple[RowPass, ...], path: cpu.Cpu) -> Leaf:
    multiply, size, held = product(dtype, path), itemsize(summed(dtype)), itemsize(dtype)
    functions = row_functions(forms, ARRAYS, "q", dtype, path)
    first, last, two = functions[0], functions[-1], len(forms) > 1
    gap, halves = SKEW // size, dtype in HALVES
    (load, store), ask = between(dtype), asked(path)

    def recurrent(x, panels, b, lengths, h0, c0, p, y, yh, yc, record, scratch,  # type: ignore[no-untyped-def]
                  s, lo, hi, rest):
        n, batch, gates = s.n, s.batch, s.gates
        count = (n + s.width - 1) // s.width
        across, apart, row = count * s.width, n * s.width * held, (n + gap) * size
        wide = gates * across + gap
        unit = lo
        while unit < hi:
            d, b0, b1, unit = taken(unit, hi, s.rows, s.blocks, batch)
            d += s.first
            rows = b1 - b0
            for i in range(b0, b1 if s.lengths else b0):
                if lengths[i] < 0 or lengths[i] > s.steps:
                    return INDEX_OUT_OF_RANGE
            at_h, at_c = 0, rows * (n + gap)
            at_s = 2 * at_c
            at_a = at_s + at_c if halves else at_h
            at_q = at_s + at_c + (at_c if halves else 0)
            at_b = at_q + rows * wide
            base = address_of(scratch)
            # States begin; biases are added once.
            for i in range(rows):
                state = ((b0 + i) * s.s_b + d * s.s_d) * n
                own = base + i * row
                if s.has_h:
                    load(1, n, address_of(h0) + state * held, 0, own + at_h * size, 0)
                else:
                    scratch[at_h + i * (n + gap):at_h + i * (n + gap) + n] = 0
                if s.has_c:
                    load(1, n, address_of(c0) + state * held, 0, own + at_c * size, 0)
                else:
                    scratch[at_c + i * (n + gap):at_c + i * (n + gap) + n] = 0
                if halves:
                    store(1, n, own + at_h * size, 0, own + at_a * size, 0)
            if s.biased:
                own, more = address_of(b) + d * 2 * gates * n * held, gates * n * held
                load(1, gates * n, own, 0, base + at_b * size, 0)
                load(1, gates * n, own + more, 0, base + at_q * size, 0)
                for j in range(gates * n):
                    scratch[at_b + j] += scratch[at_q + j]
                if s.reset_after:
                    load(1, n, own + 2 * n * held, 0, base + (at_b + 2 * n) * size, 0)
                    load(1, n, own + more + 2 * n * held, 0, base + (at_b + 3 * n) * size, 0)
            weights = address_of(panels) + d * gates * count * apart
            for k in range(s.steps):
                t = s.steps - 1 - k if s.reverse >> d & 1 else k
                ended = b0
                r0, r1 = active(lengths, s.lengths, t, b0, b1)
                while ended < b1:
                    for i in range(ended, r0):
                        to = (d * s.y_d + t * s.y_t + i * s.y_b) * n
                        y[to:to + n] = 0
                        if s.record:
                            to = (d * s.x_d + t * s.x_t + i * s.x_b) * s.recorded * n
                            record[to:to + s.recorded * n] = 0
                    ended = r1
                    if r0 < r1:
                        run, q = r0 - b0, base + at_q * size + (r0 - b0) * wide * size
                        multiply(r1 - r0, n, s.width, base + at_a * size + run * row, row, weights, apart,
                                 (gates - two) * count, q, wide * size, 0)
                        for phase in range(1 + two):
                            if phase:
                                multiply(r1 - r0, n, s.width, base + at_s * size + run * row, row, weights + (gates - 1) * count * apart, apart,
                                         count, q + (gates - 1) * across * size, wide * size, 0)
                            for i in range(r0, r1):
                                at = d * s.x_d + t * s.x_t + i * s.x_b
                                to_y = (d * s.y_d + t * s.y_t + i * s.y_b) * n
                                states = base + (i - b0) * row
                                values = (address_of(x) + at * gates * n * held, base + (at_q + (i - b0) * wide) * size,
                                          base + at_b * size,
                                          address_of(p) + d * 3 * n * held * s.peepholes, states + at_c * size,
                                          states + at_h * size,
                                          states + at_a * size, states + at_s * size, address_of(y) + to_y * held,
                                          address_of(record) + at * s.recorded * n * held * s.record)
                                if phase:
                                    last(n, n, across * size, rest, *values)
                                else:
                                    ask(gates * n * held, address_of(x) + (at + s.x_b) * gates * n * held)
                                    first(n, n, across * size, rest, *values)
                        r0, r1 = active(lengths, s.lengths, t, r1, b1)
            for i in range(rows):
                state = ((b0 + i) * s.s_b + d * s.s_d) * n
                store(1, n, base + at_h * size + i * row, 0, address_of(yh) + state * held, 0)
                if s.cell:
                    store(1, n, base + at_c * size + i * row, 0, address_of(yc) + state * held, 0)
        return OK

    signature = "T[:], T[:], T[:], i4[:], T[:], T[:], T[:], T[:], T[:], T[:], T[:], S[w,:], numbers, lo, hi"
    signature = signature.replace("T", dtype).replace("S", summed(dtype)) + tail(forms)
    key = f"{path.name} {' '.join(f.key for f in forms)}"
    return Leaf(recurrent, signature, key=key, numbers=Steps, checked=True)
