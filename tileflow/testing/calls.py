"""An operator's leaf calls over NumPy arrays, in memory that tells what was written beside it: what tests of operators
run."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import Op, type_of
from ..kernels.dtypes import ELEMENTS
from ..kernels.isa import cpu
from ..kernels.machine.call import Call, Const, In, Micro, Out, Position, Seed, Work
from ..kernels.machine.host import Moment
from ..kernels.machine.leaf import Leaf, Parameter

Array = np.ndarray
GUARD = 64  # bytes before and after each output and workspace that a kernel must leave alone


class KernelFailed(Exception):
    """A leaf returned `status`."""

    def __init__(self, leaf: str, status: int) -> None:
        super().__init__(f"{leaf} returned status {status}")
        self.status = status


def run_kernel(
    op: Op,
    *arrays: Array | None,
    workers: int = 1,
    seed: int = 0,
    micro: int = 0,
    calls: Sequence[Call] | None = None,
    garbage: int | None = None,
    paged: bool = False,
) -> tuple[Array, ...]:
    """Run `op.kernel()` on arrays (None: an absent input), and what Python does after it, and return all outputs.

    With several workers each range is cut at multiples of its grain as the runtime does it, and the parts run last to
    first. Outputs and workspace start as garbage between guard bytes; inputs must stay as they were.

    Args:
        calls: in place of the operator's own. garbage: the byte that outputs begin with.
        paged: every array ends where a page begins that nobody may touch; who does ends the process.

    Raises:
        KernelFailed: a leaf returned a status other than 0.
    """
    inputs = [None if a is None else np.ascontiguousarray(a).reshape(a.shape) for a in arrays]
    before = [None if a is None else a.tobytes() for a in inputs]
    types = [None if a is None else type_of(a) for a in inputs]
    result_types = op.infer(*types)
    garbage = 0xA5 + workers if garbage is None else garbage
    guarded_array = _Paged if paged else _Guarded
    if paged:
        inputs = [None if a is None else guarded_array(a.shape, a.dtype, garbage).holding(a) for a in inputs]
    outputs = [guarded_array(t.shape, t.numpy, garbage) for t in result_types]
    calls = op.kernel(types, result_types, cpu.current()) if calls is None else calls
    scratch = _scratch(calls, workers, garbage)
    for call in calls:
        _run_call(call, inputs, outputs, scratch, workers, garbage, {Seed: seed, Micro: micro})
    host = op.host(types, result_types)
    if host is not None:
        given = [inputs[arg.index] if isinstance(arg, In) else outputs[arg.index].array for arg in host.args]
        host.function(Moment(0, micro, lambda text: None), *(None if a is None else a.view() for a in given))
    for guarded in [*outputs, *scratch.values()]:
        assert guarded.intact, f"{op} wrote outside of its memory"
    assert before == [None if a is None else a.tobytes() for a in inputs], f"{op} changed an input"
    return tuple(g.array for g in outputs)


class _Guarded:
    """An array aligned to 64 bytes, filled with garbage, between guard bytes."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, garbage: int) -> None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = np.full(size + 3 * GUARD, garbage, np.uint8)
        start = GUARD + -(raw.ctypes.data + GUARD) % 64
        self._before, self._after, self._garbage = raw[:start], raw[start + size :], garbage
        self.array = raw[start : start + size].view(dtype).reshape(shape)

    def holding(self, elements: Array) -> Array:
        """The array, with these elements."""
        self.array[...] = elements
        return self.array

    @property
    def intact(self) -> bool:
        return bool((self._before == self._garbage).all() and (self._after == self._garbage).all())


class _Paged(_Guarded):
    """An array that ends at a page of which reading and writing ends the process, and begins within one of its own."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, garbage: int) -> None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        own = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, own + 2 * mmap.PAGESIZE)
        raw = np.frombuffer(self._map, np.uint8)
        raw[:] = garbage
        end = mmap.PAGESIZE + own
        for first in (0, end):
            if ctypes.CDLL(None).mprotect(ctypes.c_void_p(raw.ctypes.data + first), ctypes.c_size_t(mmap.PAGESIZE), 0):
                raise OSError("mprotect")
        self._before, self._after, self._garbage = raw[mmap.PAGESIZE : end - size], raw[end:end], garbage
        self.array = raw[end - size : end].view(dtype).reshape(shape)


def _work_shape(p: Parameter, work: Work, workers: int) -> tuple[int, ...]:
    return (workers, *work.shape) if p.cut == "w" else work.shape


def _scratch(calls: Sequence[Call], workers: int, garbage: int) -> dict[str, _Guarded]:
    """Bytes for each named workspace, as many as its largest use needs."""
    sizes: dict[str, int] = {}
    for call in calls:
        for p, arg in zip(call.leaf.takes(call.args), call.args, strict=True):
            if isinstance(arg, Work):
                size = (arg.offset + math.prod(_work_shape(p, arg, workers))) * np.dtype(arg.dtype).itemsize
                sizes[arg.name] = max(sizes.get(arg.name, 0), size)
    return {name: _Guarded((size,), np.dtype("u1"), garbage) for name, size in sizes.items()}


def _run_call(
    call: Call,
    inputs: list[Array | None],
    outputs: Sequence[_Guarded],
    scratch: dict[str, _Guarded],
    workers: int,
    garbage: int,
    words: dict[type, int],
) -> None:
    parameters = call.leaf.takes(call.args)
    assert len(parameters) == len(call.args), (
        f"{call.leaf.name} takes {len(parameters)} arguments, not {len(call.args)}"
    )
    values: list[Any] = []
    for p, arg in zip(parameters, call.args, strict=True):
        if isinstance(arg, Work):
            shape = _work_shape(p, arg, workers)
            start, size = arg.offset * np.dtype(arg.dtype).itemsize, math.prod(shape) * np.dtype(arg.dtype).itemsize
            array = scratch[arg.name].array[start : start + size].view(arg.dtype).reshape(shape)
        elif isinstance(arg, In):
            source = inputs[arg.index]
            assert source is not None, f"{call.leaf.name} reads input {arg.index}, which is absent"
            array = source.reshape(arg.shape)
        elif isinstance(arg, Out):
            array = outputs[arg.index].array.reshape(arg.shape)
        elif isinstance(arg, Const):
            array = arg.array()
        else:
            values.append(
                words[type(arg)] if isinstance(arg, (Seed, Micro)) else arg.start if isinstance(arg, Position) else arg
            )
            continue
        assert p.is_array, f"{call.leaf.name} got an array for a scalar"
        assert array.ndim == p.ndim, f"{call.leaf.name}: {arg} for {p}"
        assert p.cut != "r" or array.shape[0] == call.n, f"{call.leaf.name}: {arg} is not {call.n} rows"
        values.append(array.view("f2" if p.dtype == "f2" else ELEMENTS[p.dtype].memory))
    chunks = -(-call.n // call.grain)
    for w in reversed(range(workers)):
        lo = min(call.n, chunks * w // workers * call.grain)
        hi = min(call.n, chunks * (w + 1) // workers * call.grain)
        status = call_leaf(call.leaf, values, lo, hi, w)
        if status:
            raise KernelFailed(call.leaf.name, status)


def call_leaf(leaf: Leaf, values: Sequence[Any], lo: int, hi: int, worker: int) -> int:
    """Run a leaf over lo..hi of its range; also with lo == hi, as the runtime may."""
    return leaf(*values, n=hi, lo=lo, worker=worker)
