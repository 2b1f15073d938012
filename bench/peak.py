"""What this machine can do at most, measured by kernels of our own: fused multiply-adds, tile products, copy and triad.

A figure is the best of a few rounds; only figures of one run compare, because clocks drift.
"""
from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir

from tileflow.kernels.isa import cpu
from tileflow.kernels.isa.vector import Emitter, inlined_code, vector, word
from tileflow.kernels.machine import job, pool
from tileflow.kernels.machine.leaf import Leaf
from tileflow.kernels.machine.table import CHUNK_NS, Table

CHAINS = 12
"""Independent sums: enough to hide the latency of a multiply-add on two ports, few enough for 16 registers."""
STREAM = 1 << 24
"""float32 elements of each array of a stream: far out of the caches."""
ROUNDS = 60
"""The best of so many: a second thread may share a core with the first one for several."""
TILE_FLOPS = 2 * 16 * 16 * 32
"""Of one product of bfloat16 tiles."""
PRODUCTS = {"float32": 6, "float16": 4, "bfloat16": 1}
"""Tile products of bfloat16 parts that one product of this type takes."""


def _version() -> str:
    """The compile cache knows the sources of the kernels, not this file."""
    return hashlib.sha1(Path(__file__).read_bytes()).hexdigest()[:8]


def _multiply_adds(e: Emitter, times: Any, at: Any) -> None:
    """`times` multiply-adds of CHAINS vectors; sums go to `at`, so that they are needed."""
    kind = vector("f4", e.path.lanes(4))
    x, y = e.load(at, kind), e.load(e.address(at, e.path.vector_bytes), kind)
    sums = e.loop(word(0), times, 1, [y] * CHAINS, lambda _i, state: [e.fma(s, x, y) for s in state])
    for i, value in enumerate(sums):
        e.store(value, e.address(at, i * e.path.vector_bytes))


def _tile_products(e: Emitter, times: Any, at: Any) -> None:
    """`times` rounds of four products of bfloat16 tiles into four sums. `at`: a tile configuration, then zeros."""
    byte, void = ir.IntType(8), ir.VoidType()

    def tile(number: int) -> ir.Constant:
        return ir.Constant(byte, number)

    def pointer(address: Any) -> Any:
        return e.b.inttoptr(address, byte.as_pointer())
    e.call("llvm.x86.ldtilecfg", void, [pointer(at)])
    for t in range(4):
        e.call("llvm.x86.tilezero", void, [tile(t)])
    for t in range(4, 8):
        e.call("llvm.x86.tileloadd64", void, [tile(t), pointer(e.address(at, 64)), word(64)])

    def body(_i: Any, _state: list[Any]) -> None:
        for t in range(4):
            e.call("llvm.x86.tdpbf16ps", void, [tile(t), tile(4 + t // 2), tile(6 + t % 2)])
    e.loop(word(0), times, 1, [], body)
    e.call("llvm.x86.tilestored64", void, [tile(0), pointer(e.address(at, 64)), word(64)])
    e.call("llvm.x86.tilerelease", void, [])


def _burner(name: str, emit: Callable[..., None]) -> Leaf:
    """A leaf (rounds, one row of bytes per worker)."""
    path = cpu.current()
    burn = inlined_code(f"tileflow_bench_{name}_{path.name}_{_version()}", "times, at", path, emit)

    def burner(times, scratch):                                # type: ignore[no-untyped-def]
        burn(times, scratch.ctypes.data)
    return Leaf(burner, "i8, u1[w,:]", key=f"{name}-{path.name}-{_version()}")


def _copy(x, y):                                               # type: ignore[no-untyped-def]
    for i in range(y.shape[0]):
        y[i] = x[i]


def _triad(x, y, z):                                           # type: ignore[no-untyped-def]
    for i in range(z.shape[0]):
        z[i] = x[i] + np.float32(3) * y[i]


def _seconds(leaf: Leaf, arguments: Sequence[Any], n: int, grain: int, threads: int) -> float:
    """The best round of a leaf over 0..n on so many threads."""
    block = leaf.block(*arguments)
    table = Table()
    table.main.leaf(leaf.address, int(block.ctypes.data), n, grain, cost=threads * CHUNK_NS, parallel=threads > 1)      # a chunk for each thread
    table.seal()
    clock = time.process_time if threads == 1 else time.perf_counter
    best = np.inf
    for _ in range(ROUNDS):
        began = clock()
        job.run(table, threads)
        best = min(best, clock() - began)
    return best


def multiply_add_peak(threads: int, rounds: int = 2_000_000) -> float:
    """float32 operations a second (a multiply-add is two) on the current path."""
    scratch = np.zeros((threads, 64 * CHAINS), np.uint8)
    scratch.view(np.float32)[...] = 0.5
    took = _seconds(_burner("fma", _multiply_adds), (rounds, scratch), threads, 1, threads)
    return 2.0 * CHAINS * cpu.current().lanes(4) * rounds * threads / took


def tile_peak(threads: int, rounds: int = 500_000) -> float:
    """bfloat16 operations a second of the tile unit; only on a path that has it."""
    scratch = np.zeros((threads, 64 + 1024), np.uint8)
    scratch[:, 0] = 1                                          # palette
    scratch[:, 16:32:2] = 64                                   # bytes of a row, 8 tiles (16 bits each)
    scratch[:, 48:56] = 16                                     # rows
    took = _seconds(_burner("tiles", _tile_products), (rounds, scratch), threads, 1, threads)
    return 4.0 * TILE_FLOPS * rounds * threads / took


def stream_peaks(threads: int) -> dict[str, float]:
    """Bytes a second, read and written, of a copy and of x + 3 y."""
    x, y, z = (np.ones(STREAM, np.float32) for _ in range(3))
    copy, triad = Leaf(_copy, "f4[r], f4[r]", key=_version()), Leaf(_triad, "f4[r], f4[r], f4[r]", key=_version())
    return {"copy": 8.0 * STREAM / _seconds(copy, (x, y), STREAM, 4096, threads),
            "triad": 12.0 * STREAM / _seconds(triad, (x, y, z), STREAM, 4096, threads)}


def peaks(threads: int) -> dict[str, float]:
    """Operations a second by element type ("flops float32") and bytes a second ("copy", "triad") on the current path."""
    pool.start_threads(threads)
    vectors = multiply_add_peak(threads)
    found = {"fma": vectors, **stream_peaks(threads)}
    if getattr(cpu.current(), "amx", False):
        found["tiles"] = tile_peak(threads)
    for dtype, products in PRODUCTS.items():
        found[f"flops {dtype}"] = max(vectors, found.get("tiles", 0.0) / products)
    return found
