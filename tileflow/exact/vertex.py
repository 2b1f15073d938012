"""The code that runs on a tile: the kernels' leaves over arrays of the tile's arena, on the calling thread."""
from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DataError
from ..graph import Op, TensorType, type_of
from ..kernels.gemm import Problem, matmul_calls
from ..kernels.isa import cpu
from ..kernels.machine.call import Call, Const, In, Micro, Out, Seed, Work

Array = np.ndarray
Types = tuple[TensorType | None, ...]


@dataclass(frozen=True)
class Streams:
    """What random operators draw from: the run's seed and the micro-batch's global index."""

    seed: int = 0
    micro: int = 0


@dataclass(frozen=True)
class Vertex:
    """An operator ready to run on arrays of certain types; most parts of an operator share one."""

    op: Op
    outputs: tuple[TensorType, ...]
    calls: list[Call]

    @staticmethod
    def of(op: Op, inputs: Types) -> Vertex:
        outputs = op.infer(*inputs)
        return Vertex(op, outputs, [] if op.random else op.kernel(inputs, outputs, cpu.current()))

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array], streams: Streams) -> None:
        """Compute `outputs` (contiguous) from `inputs` (contiguous) by the operator's kernel.

        Random operators run by their NumPy twin, which draws the same numbers and knows where a part lies in the whole.

        Raises:
            DataError: a label or an index is out of range.
        """
        if self.op.random:
            extra = {"seed": streams.seed, "micro": streams.micro} if "seed" in inspect.signature(self.op.reference).parameters else {}
            for y, found in zip(outputs, self.op.reference(*inputs, **extra), strict=True):
                y[...] = found
        scratch: dict[str, Array] = {}
        for call in self.calls:
            status = _run(call, inputs, outputs, scratch, streams)
            if status:
                raise DataError(f"{self.op.name} stopped with status {status}: a label or an index is out of range.")


def types_of(arrays: Sequence[Array | None]) -> Types:
    return tuple(None if a is None else type_of(a) for a in arrays)


def run_op(op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], streams: Streams) -> None:
    """Compute an operator once (see `Vertex.run`)."""
    Vertex.of(op, types_of(inputs)).run(inputs, outputs, streams)


def _run(call: Call, inputs: Sequence[Array | None], outputs: Sequence[Array], scratch: dict[str, Array], streams: Streams) -> int:
    """One leaf over its whole range. Workspace is the host's: registers and stack of a vertex."""
    values: list[Any] = []
    for p, arg in zip((p for p in call.leaf.parameters if p.words), call.args, strict=True):
        if isinstance(arg, Work):
            shape = (1, *arg.shape) if p.cut == "w" else arg.shape
            size = math.prod(shape) * np.dtype(arg.dtype).itemsize
            if arg.name not in scratch or scratch[arg.name].size < size:
                scratch[arg.name] = _grown(scratch.get(arg.name), size)
            array = scratch[arg.name][:size].view(arg.dtype).reshape(shape)
        elif isinstance(arg, In):
            source = inputs[arg.index]
            assert source is not None, f"{call.leaf.name} reads input {arg.index}, which is absent"
            array = source.reshape(arg.shape)
        elif isinstance(arg, Out):
            array = outputs[arg.index].reshape(arg.shape)
        elif isinstance(arg, Const):
            array = arg.array()
        else:
            values.append(streams.seed if isinstance(arg, Seed) else streams.micro if isinstance(arg, Micro) else arg)
            continue
        values.append(array.view(np.bool_ if p.dtype == "b1" else p.dtype))
    return call.leaf(*values, n=call.n)


def _grown(old: Array | None, size: int) -> Array:
    """At least `size` bytes that begin on a cache line, with the old ones in front."""
    raw = np.zeros(size + 64, np.uint8)
    new = raw[-raw.ctypes.data % 64:][:size]
    if old is not None:
        new[:old.size] = old
    return new


@functools.lru_cache(4096)
def _product_calls(code: str, b: int, m: int, n: int, k: int, path: str) -> list[Call]:
    problem = Problem(m, n, k, batch=(b,), a_step=(m * k,), b_step=(k * n,))
    return matmul_calls(code, problem, In(0, (b, m, k)), In(1, (b, k, n)), Out(0, (b, m, n)))


def multiply(a: Array, b: Array) -> Array:
    """[b, m, k] @ [b, k, n] by the engine's matmul leaf."""
    batch, m, k = a.shape
    y = np.empty((batch, m, b.shape[2]), a.dtype)
    scratch: dict[str, Array] = {}
    for call in _product_calls(type_of(a).code, batch, m, b.shape[2], k, cpu.current().name):
        status = _run(call, (a, b), (y,), scratch, Streams())
        assert status == 0, status
    return y
