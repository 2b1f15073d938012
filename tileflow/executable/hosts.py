"""HOST rows: what Python does in the native loop, over arrays where the program has them, and what it says, in
order."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..kernels.machine.host import HostCall, Moment
from ..memory.types import TensorType
from ..system.terminal import say
from .image import Owner


@dataclass(frozen=True)
class HostedRow:
    """A HOST row of an Image: `words` are the indices of its arrays' addresses. It is no data, so that no Image that
    has one is kept."""

    call: HostCall
    words: tuple[int, ...]
    types: tuple[TensorType, ...]
    owner: Owner


class Sayings:
    """What HOST rows say, in the order of micro-batches: a pipeline has several of these under way, and of an update
    all that they say is there before the next one's."""

    def __init__(self) -> None:
        self._said: list[tuple[int, str]] = []
        self._update = 0

    def add(self, update: int, micro: int, text: str) -> None:
        """Take what a row says; what was said of the update before is told."""
        if update != self._update:
            self.tell()
            self._update = update
        self._said.append((micro, text))

    def tell(self) -> None:
        """Say what is left."""
        said, self._said = self._said, []
        for _, text in sorted(said, key=lambda line: line[0]):
            say(text)


def bound(
    row: HostedRow,
    words: Callable[[int], int],
    moment: Callable[[int], tuple[int, int]],
    sayings: Sayings,
    asked: Callable[[], bool],
) -> Callable[[], None]:
    """The function of a HOST row.

    Args:
        words: the Image's, by index. moment: the update and the micro-batch under way, so many ahead of the counter.
        asked: whether somebody has asked the call to end early.
    """

    last: list[tuple[int, np.ndarray]] = [(0, np.empty(0))] * len(row.words)

    def array(i: int) -> np.ndarray:
        """Operand i: mostly where it was the last time, and making an array takes 2 microseconds."""
        if last[i][0] != (address := words(row.words[i])):
            last[i] = address, _array(address, row.types[i])
        return last[i][1]

    def run() -> None:
        update, micro = moment(row.owner.ahead)
        arrays = [array(i) for i in range(len(last))]
        try:
            row.call.function(Moment(update, micro, lambda text: sayings.add(update, micro, text), asked), *arrays)
        except Exception as error:
            error.add_note(f"tileflow: in {row.owner}, at micro-batch {micro} of the call.")
            raise

    return run


def _array(address: int, t: TensorType) -> np.ndarray:
    """The array that lies at an address."""
    memory: Any = _bytes(t.nbytes).from_address(address)
    return np.frombuffer(memory, t.numpy, math.prod(t.shape)).reshape(t.shape)


@cache
def _bytes(count: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * count
