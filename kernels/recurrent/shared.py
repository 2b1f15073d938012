"""A step of a recurrent layer of one row and one direction, shared out by its units: a call for each, all in order.

`forward.py` takes a row through all its steps, by one worker, however many there are: it reads all recurrent weights in
each. Here everybody reads those of its own units only. A step's product needs the state of all units of the step
before, which its own must not replace: states lie in two places in turn. No bit depends on which of the two files does
it. By two workers: a GRU of 256 units 0.5, of 512 0.6, an LSTM of 1024 0.5 of the time.
"""
from __future__ import annotations

import functools

from ..gemm.micro import copy
from ..isa import cpu
from ..isa.vector import itemsize
from ..machine.leaf import Leaf
from ..machine.places import address_of
from .forward import ARRAYS
from .panels import product
from .rows import RowPass, row_functions, tail
from .steps import Steps

LEAST = 15_000.0
"""Estimated nanoseconds of a step from which it is shared out: a GRU of 200 units, an LSTM of 174; one that is shorter
is done as soon as a helper has heard of it."""
MOST_STEPS = 512
"""Steps at most: each is a row of a table."""


def state_elements(n: int, gates: int) -> int:
    """Of h, twice, and of c, and of what the first step makes of the biases."""
    return (4 + gates) * n


def step_elements(n: int, gates: int, width: int) -> int:
    """Of one worker: the state's share of the gates of a panel's units, and a state of zeros."""
    return gates * width + n


def step_leaf(dtype: str, what: RowPass) -> Leaf:
    """The leaf of a cell with this pass after its product; k: the number of the step, in the order in which they are
    done. Range: panels of units."""
    return _leaf(dtype, what.form, cpu.current())


@functools.cache
def _leaf(dtype: str, form: RowPass, path: cpu.Cpu) -> Leaf:
    multiply, move, size = product(dtype, path), copy(dtype), itemsize(dtype)
    cell, = row_functions([form], ARRAYS, "q", dtype, path)

    def recurrent_step(x, panels, b, h0, c0, p, y, yh, yc, record, states, scratch, s, k, lo, hi, rest):  # type: ignore
        n, gates, width = s.n, s.gates, s.width
        count, apart = (n + width - 1) // width, n * width * size
        t = s.steps - 1 - k if s.reverse & 1 else k
        at_b, at_0 = 3 * n, gates * width
        new, held = address_of(states) + (1 - k % 2) * n * size, address_of(states) + 2 * n * size
        before = address_of(states) + k % 2 * n * size
        if k == 0:
            before = address_of(h0)
            if not s.has_h:
                scratch[at_0:at_0 + n] = 0
                before = address_of(scratch) + at_0 * size
        for unit in range(lo, hi):
            j = unit * width
            units, own = min(width, n - j), j * size
            move(1, units, before + own, 0, new + own, 0)
            if k == 0:
                if s.has_c:
                    move(1, units, address_of(c0) + own, 0, held + own, 0)
                else:
                    states[2 * n + j:2 * n + j + units] = 0
                for gate in range(gates * s.biased):
                    own_b, shared_b = gate * n + j, (gates + gate) * n + j
                    if s.reset_after and gate == 2:
                        to = address_of(states) + (at_b + own_b) * size
                        move(1, units, address_of(b) + own_b * size, 0, to, 0)
                        move(1, units, address_of(b) + shared_b * size, 0, to + n * size, 0)
                    else:
                        for i in range(units):
                            states[at_b + own_b + i] = b[own_b + i] + b[shared_b + i]
            for gate in range(gates):
                multiply(1, n, width, before, 0, address_of(panels) + (gate * count + unit) * apart, apart, 1,
                         address_of(scratch) + gate * width * size, 0, 0)
            at, to_y = t * s.x_t * n * size, t * s.y_t * n * size
            cell(units, n, width * size, rest, address_of(x) + at * gates + own, address_of(scratch),
                 address_of(states) + at_b * size + own, address_of(p) + own * s.peepholes, held + own, new + own,
                 new + own, new + own, address_of(y) + to_y + own,
                 address_of(record) + (at * s.recorded + own) * s.record)
            if k == s.steps - 1:
                move(1, units, new + own, 0, address_of(yh) + own, 0)
                if s.cell:
                    move(1, units, held + own, 0, address_of(yc) + own, 0)

    signature = ("T[:], " * 11 + "T[w,:], numbers, i8, lo, hi").replace("T", dtype)
    return Leaf(recurrent_step, signature + tail([form]), key=f"{path.name} {form.key}", numbers=Steps)
