"""What a state's memory starts with."""
from __future__ import annotations

import numpy as np

from tileflow.graph import State, TensorType, Value
from tileflow.memory.alignment import padded_nbytes
from tileflow.state import Session, declared


def state(name: str, shape: tuple[int, ...], fill: float, dtype: str = "float32") -> State:
    return State(name, "optimizer", Value(name, TensorType(dtype, shape)), group="g", fill=fill)


def test_memory_starts_full_of_what_the_state_says_and_the_padding_at_zero():
    session = Session()
    states = [state("a", (3, 5), 1.0), state("b", (), 0.5), state("c", (7,), 0.0), state("d", (2,), 1.0)]
    session.declare(declared(states), {"d": np.array([3.0, 4.0], np.float32)})
    assert (session["a"] == 1).all()
    assert session["b"] == 0.5
    assert not session["c"].any()
    assert session["d"].tolist() == [3.0, 4.0]          # what is given comes first
    buffer = session["a"].base
    while buffer.base is not None and buffer.base.dtype == np.uint8:
        buffer = buffer.base
    first = session["a"].ctypes.data - buffer.ctypes.data
    lie = buffer[first:first + sum(padded_nbytes(s.input.type) for s in states)].view(np.float32)
    assert lie.sum() == 15 + 0.5 + 7.0


def test_a_16_bit_state_is_filled_in_its_own_type():
    session = Session()
    session.declare(declared([state("v", (9,), 1.0, "bfloat16")]))
    assert session["v"].dtype.name == "bfloat16"
    assert (session["v"].astype(np.float32) == 1).all()
