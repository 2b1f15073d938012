"""Where a call's arrays come from and go to: small ones through memory of the engine's own, at addresses that never
change; others in place."""
from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..memory import budget
from ..memory.alignment import aligned
from ..memory.tensor import Tensor

HELD = 1 << 13
"""Bytes: to copy fewer takes less time than to ask NumPy where an array lies (0.1 us against 0.2 to 0.8, and as much
again for its patch)."""


def address(array: np.ndarray) -> int:
    """Where a C-contiguous array begins: `array.ctypes.data`, in a quarter of the time where the array can be
    written."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))          # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):                     # read only, empty, or of a type that buffers do not know
        return int(array.ctypes.data)


@dataclass
class CallPort:
    """One input or output of a call. `held`: the engine's own memory for it, all rows of a call; None where the
    caller's is used."""

    tensor: Tensor
    count: int
    """Micro-batches that it holds."""
    held: np.ndarray | None

    @classmethod
    def of(cls, tensor: Tensor, count: int, shape: tuple[int, ...]) -> CallPort:
        """A port for `count` micro-batches of a tensor; `shape` is that of a whole call's array."""
        nbytes = count * tensor.nbytes
        held = aligned(nbytes)[:nbytes].view(tensor.numpy).reshape(shape) if 0 < nbytes <= HELD else None
        return cls(tensor, count, held)


class Ports:
    """The inputs and outputs of an engine's calls."""

    def __init__(self, inputs: Sequence[Tensor], micro_batches: int, outputs: Iterable[tuple[Tensor, int]]) -> None:
        """Args:
            inputs: what a call brings `micro_batches` times the rows of.
            outputs: each with the micro-batches of which it is kept.
        """
        self.inputs = [CallPort.of(v, micro_batches, _rows(v, micro_batches)) for v in inputs]
        self.outputs = [CallPort.of(v, count, (count, *v.shape)) for v, count in outputs]
        self.returned = sum(p.count * p.tensor.nbytes for p in self.outputs)
        """Bytes that a call returns."""

    def fixed(self) -> dict[str, int]:
        """The addresses that never change."""
        return {p.tensor.name: int(p.held.ctypes.data) for p in (*self.inputs, *self.outputs) if p.held is not None}

    def take(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """Copy the small arrays of a call (C-contiguous, in the order of `inputs`) in; the addresses of the others."""
        moved = {}
        for port, array in zip(self.inputs, arrays, strict=True):
            held = port.held
            if held is None:
                moved[port.tensor.name] = address(array)
            else:
                held[...] = array if array.shape == held.shape else array.reshape(held.shape)
        return moved

    def open(self, moved: dict[str, int], clear: bool) -> list[np.ndarray]:
        """Memory for the outputs, whose addresses join `moved` where it is new. `clear`: what a call does not write
        shall be zero."""
        budget.require(self.returned, "What a call returns", "lower device_iterations or micro_batch_size")
        results = []
        for port in self.outputs:
            held = port.held
            if held is None:
                held = (np.zeros if clear else np.empty)((port.count, *port.tensor.shape), port.tensor.numpy)
                moved[port.tensor.name] = address(held)
            elif clear:
                held[...] = 0
            results.append(held)
        return results

    def give(self, results: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of a call as the caller's own: [micro-batches, *micro-batch shape] each."""
        return [array if port.held is None else array.copy() for port, array in zip(self.outputs, results, strict=True)]


def _rows(tensor: Tensor, micro_batches: int) -> tuple[int, ...]:
    """The shape of a whole call's array: micro-batches follow each other along dimension 0."""
    return (micro_batches * tensor.shape[0], *tensor.shape[1:]) if tensor.shape else (micro_batches,)
