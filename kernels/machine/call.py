"""What an operator asks the runtime to run: leaf calls over its inputs, outputs and workspace, still without addresses."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .leaf import Address as Address
from .leaf import Leaf


@dataclass(frozen=True)
class In:
    """Input `index` of the node, seen in `shape` (same number of elements, contiguous)."""

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Out:
    """Output `index` of the node, seen in `shape`."""

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """Scratch memory that lives for the node's calls only. Calls of one node that use the same `name` share it.

    A parameter marked `w` in the leaf's signature gets one such array per worker: give the shape of ONE worker's row,
    the runtime puts the worker axis in front. `offset`: where in the memory of that name the array begins, in elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0


@dataclass(frozen=True)
class Const:
    """Numbers that are the same in every run, in order of memory: read only, one copy for all calls that want the same."""

    data: bytes
    dtype: str
    shape: tuple[int, ...]

    @staticmethod
    def of(values: Any, dtype: str = "i8") -> Const:
        array = np.ascontiguousarray(values, dtype)
        return Const(array.tobytes(), dtype, array.shape)

    def array(self) -> np.ndarray:
        """The numbers (not to be written)."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Micro:
    """The global index of the micro-batch being computed, as an int64 scalar (random streams count by it)."""


@dataclass(frozen=True)
class Seed:
    """The run's random seed, as an int64 scalar (known to the session, not to the compiler)."""


@dataclass(frozen=True)
class Position:
    """Where element 0 of a flat call is counted among all that draws random numbers, as an int64 scalar: a multiple of a block of elements.
    Neighbours in memory that are neighbours here, too, can be one row."""

    start: int


@dataclass(frozen=True)
class Call:
    """One leaf over the range 0..n; workers split it at multiples of `grain`.

    Results never depend on where the range is cut: a leaf writes disjoint outputs per unit of range, and a reduction over
    the range is partials per fixed block, combined in order by a second call. `cost` is the estimated nanoseconds of the
    whole range on one core: the runtime runs cheap calls on one thread.
    """

    leaf: Leaf
    args: Sequence[Any]        # In | Out | Work | Const | Micro | Seed | Position | Numbers | Address | Python number:
                               # one for each of `leaf.takes(args)`
    n: int
    grain: int = 1
    cost: float = 0.0
    flat: bool = False         # unit i of the range reads and writes element i of its 1-D arrays of n elements (others have 1)
