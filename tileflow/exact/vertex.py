"""The code that runs on a tile: the kernels' leaves over arrays of the tile's arena, on the calling thread."""
from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import Op, TensorType, type_of
from ..graph.composite import declares
from ..kernels.dtypes import ELEMENTS
from ..kernels.gemm import GemmProblem, matmul_calls
from ..kernels.isa import cpu
from ..kernels.machine.call import Call, Const, In, Micro, Out, Seed, Work
from ..kernels.quantized.product import calls as byte_calls
from ..system.errors import DataError

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
    wide: bool = False
    """16-bit floats are computed with as float32 and rounded once, for the kernels have no other form."""

    @staticmethod
    def of(op: Op, inputs: Types) -> Vertex:
        outputs = op.infer(*inputs)
        halves = any(t is not None and t.is_half for t in (*inputs, *outputs))
        if _by_reference(op):
            return Vertex(op, outputs, [])
        if not halves or op.halves or op.alias is not None or op.expression(inputs, outputs) is not None:
            return Vertex(op, outputs, op.kernel(inputs, outputs, cpu.current()))
        wide = tuple(None if t is None else _float32(t) for t in inputs)
        return Vertex(op, outputs, op.kernel(wide, op.infer(*wide), cpu.current()), True)

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array], streams: Streams) -> None:
        """Compute `outputs` (contiguous) from `inputs` (contiguous) by the operator's kernel.

        Random operators run by their NumPy twin, which draws the same numbers and knows where a part lies in the whole,
        and so does what Python runs.

        Raises:
            DataError: a label or an index is out of range.
        """
        if _by_reference(self.op):
            extra = {"seed": streams.seed, "micro": streams.micro} if "seed" in inspect.signature(self.op.reference).parameters else {}
            for y, found in zip(outputs, self.op.reference(*inputs, **extra), strict=True):
                y[...] = found
        if self.wide:
            given = [None if a is None else a.astype(_float32(type_of(a)).numpy) for a in inputs]
            made = [np.empty(t.shape, t.numpy) for t in self.op.infer(*types_of(given))]
            self._run(given, made, streams)
            for y, result in zip(outputs, made, strict=True):
                y[...] = result
        else:
            self._run(inputs, outputs, streams)

    def _run(self, inputs: Sequence[Array | None], outputs: Sequence[Array], streams: Streams) -> None:
        scratch: dict[str, Array] = {}
        for call in self.calls:
            status = _run(call, inputs, outputs, scratch, streams)
            if status:
                raise DataError(f"{self.op.name} stopped with status {status}: a label or an index is out of range.")


def _by_reference(op: Op) -> bool:
    return op.random or declares(op, "host")


def _float32(t: TensorType) -> TensorType:
    return t.with_dtype("float32") if t.is_half else t


def types_of(arrays: Sequence[Array | None]) -> Types:
    return tuple(None if a is None else type_of(a) for a in arrays)


def run_op(op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], streams: Streams) -> None:
    """Compute an operator once (see `Vertex.run`)."""
    Vertex.of(op, types_of(inputs)).run(inputs, outputs, streams)


def _run(call: Call, inputs: Sequence[Array | None], outputs: Sequence[Array], scratch: dict[str, Array], streams: Streams) -> int:
    """One leaf over its whole range. Workspace is the host's: registers and stack of a vertex."""
    values: list[Any] = []
    for p, arg in zip(call.leaf.takes(call.args), call.args, strict=True):
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
        values.append(array.view(ELEMENTS[p.dtype].memory))
    return call.leaf(*values, n=call.n)


def _grown(old: Array | None, size: int) -> Array:
    """At least `size` bytes that begin on a cache line, with the old ones in front."""
    raw = np.zeros(size + 64, np.uint8)
    new = raw[-raw.ctypes.data % 64:][:size]
    if old is not None:
        new[:old.size] = old
    return new


@functools.lru_cache(4096)
def _product_calls(code: str, b: int, m: int, n: int, k: int, path: str, partials: str) -> list[Call]:
    problem = GemmProblem(m, n, k, batch=(b,), a_step=(m * k,), b_step=(k * n,))
    return matmul_calls(code, problem, In(0, (b, m, k)), In(1, (b, k, n)), Out(0, (b, m, n)), partials=partials)


@functools.lru_cache(4096)
def _byte_calls(codes: tuple[str, str], b: int, m: int, n: int, k: int, path: str) -> list[Call]:
    problem = GemmProblem(m, n, k, batch=(b,), a_step=(m * k,), b_step=(k * n,))
    return byte_calls(codes, problem, In(0, (b, m, k)), In(1, (b, k, n)), None, None, Out(0, (b, m, n)))


def multiply(a: Array, b: Array, partials: str = "f4") -> Array:
    """[b, m, k] @ [b, k, n] by the engine's matmul leaf; `partials` as `matmul_calls` has it. Products of bytes are int32."""
    (batch, m, k), n, codes = a.shape, b.shape[2], (type_of(a).code, type_of(b).code)
    bytes_ = a.dtype.itemsize == 1
    y = np.empty((batch, m, n), np.int32 if bytes_ else a.dtype)
    scratch: dict[str, Array] = {}
    path = cpu.current().name
    for call in _byte_calls(codes, batch, m, n, k, path) if bytes_ else _product_calls(codes[0], batch, m, n, k, path, partials):
        status = _run(call, (a, b), (y,), scratch, Streams())
        assert status == 0, status
    return y
