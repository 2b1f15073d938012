"""Matrix micro-kernels over addresses and byte strides, called from leaf bodies: products, copies, transposes.

The products hold blocks of C in registers: `outer` runs vectors along the columns of C (B is read by rows), `dot` along the summed
axis (A and B^T are read by rows).
Neither packs nor blocks for caches: that is the caller's part (float32.py, conv). Every element of C is summed over k
in ascending order, CHAIN products at a time, in one chain (`outer`) or in `lanes` interleaved ones (`dot`), whatever block it falls
into, so results do not depend on how a caller cuts m and n.
"""
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.half import HALVES, read, summed
from ..isa.vector import ELEMENTS, Emitter, define, inlined_code, itemsize, vector, word

CHAIN = 128
"""Products that `outer` sums in registers before it adds them to C, which lies in the first-level cache meanwhile.

Longer chains lose accuracy. Largest error against float64 over that of PyTorch 2.13, mean of three draws, for chains of
64, 128, 192 and unbroken (256) ones: 256^3 0.63, 1.00, 1.37, 1.54; 1024^3 0.59, 0.83, 1.00, 1.29; 512 x 768 x 3072 1.07, 1.00, 1.01, 1.16.
128 costs nothing (0.99 to 1.0 of the unbroken chain's speed in the median), 64 some 3 %.
"""
LINE = 64
"""Bytes of a line of cache."""


@dataclass(frozen=True)
class Ahead:
    """What `outer` asks for before its loads and stores need it, in bytes ahead of them: B, into the first-level cache
    or `far`, the second, and C (0: its first line, when a block begins)."""

    b: int = 0
    far: bool = False
    c: int = 0


NOTHING = Ahead()
IN_PANELS = Ahead(4096)
"""The first block of rows waits for memory at every step, and the hardware's prefetching alone leaves it at 5 GB/s. Speed
over that without: 44 x 1536 x 384 from memory 1.95, 12 rows 3.4, 8 rows 6.7, 512 x 768 x 768 1.26; in cache 1.0."""
IN_ROWS = Ahead(512, True, 256)
"""A B whose rows lie where they are, and C: of each row a strip is met at a time, which the hardware takes for no stream.
Speed over that without, from beyond the second-level cache: 64 x 30400 x 64 2.2, 16 x 121600 x 32 4.2, 128 x 16384 x 64
(rows a power of two apart) 1.7, 32 x 121600 x 16 1.9, 128 x 7600 x 128 1.3; in cache 1.0. Into the first-level cache, or
at once for C: 0.6 to 1.0 of that."""
WIDE = 8
"""Columns of `outer`'s block for a single row, in vectors."""

NARROW = 1
"""Vectors of columns of the last strip, where no more are left."""

MANY = 8
"""Columns of `dot`'s block for a single row of 16-bit numbers."""


def remainders(rows: int) -> list[int]:
    """Powers of two whose sums give every number below `rows`, largest first."""
    return [1 << bit for bit in reversed(range((rows - 1).bit_length()))]


def by_rows(e: Emitter, m: Any, most: int, block: Callable[[int, Any], None]) -> None:
    """Emit `block(rows, first)` over m rows: blocks of `most`, then those of the remainders that are left."""
    def full(i: Any, _state: list[Any]) -> list[Any]:
        block(most, i)
        return [e.address(i, most)]

    done, = e.loop(0, e.address(m, 1 - most), most, [word(0)], full)
    left = e.b.sub(m, done)
    for rows in remainders(most):
        with e.when(e.b.icmp_signed("!=", e.b.and_(left, word(rows)), word(0))):
            block(rows, e.address(done, e.b.and_(left, word(-2 * rows))))


def columns(dtype: str, path: cpu.Cpu) -> int:
    """Columns of `outer`'s register block: the width in which packed panels of B are best laid out."""
    return path.tile.vectors * path.lanes(itemsize(dtype))


def _outer_block(dtype: str, lanes: int, rows: int, vectors: int, masked: bool, ahead: Ahead = NOTHING) -> Any:
    """One register block of C: `rows` x min(n, vectors * lanes)."""
    kind, size = vector(dtype, lanes), itemsize(dtype)
    lines = range(0, vectors * lanes * size, LINE)

    def emit(e: Emitter, n: Any, k: Any, a: Any, a_row: Any, a_k: Any, b: Any, b_k: Any, c: Any, c_row: Any, accumulate: Any) -> None:
        masks = [e.first(e.b.sub(n, word(v * lanes)), lanes) if masked else None for v in range(vectors)]
        # Three rows to an address, as far as address modes reach: loads of later terms then start while earlier sums still wait.
        starts = [e.opaque(e.address(a, e.times(a_row, i))) for i in range(0, rows, 3)]
        twice = e.times(a_row, 2)
        c_rows = [e.address(c, e.times(c_row, i)) for i in range(rows)]
        for row, line in itertools.product(c_rows, lines if ahead.c else lines[:1]):
            e.prefetch(e.address(row, ahead.c + line), write=True)

        def step(_k: Any, state: list[Any]) -> list[Any]:
            at_b, ats, sums = state[0], state[1:1 + len(starts)], state[1 + len(starts):]
            right = [e.load(e.address(at_b, v * lanes * size), kind, masks[v]) for v in range(vectors)]
            for line in lines if ahead.b else ():
                e.prefetch(e.address(at_b, ahead.b + line), locality=2 if ahead.far else 3)
            for i in range(rows):
                left = e.splat(e.load(e.address(ats[i // 3], (0, a_row, twice)[i % 3]), ELEMENTS[dtype]), lanes)
                for v in range(vectors):
                    sums[i * vectors + v] = e.fma(left, right[v], sums[i * vectors + v])
            return [e.address(at_b, b_k), *(e.address(at, a_k) for at in ats), *sums]

        zero = ir.Constant(kind, None)
        places = [(e.address(c_rows[i], v * lanes * size), masks[v]) for i in range(rows) for v in range(vectors)]

        def run(done: Any, state: list[Any]) -> list[Any]:
            state = e.loop(0, e.minimum(e.b.sub(k, done), word(CHAIN)), 1, [*state, *[zero] * (rows * vectors)], step)
            sums = state[1 + len(starts):]
            with e.b.if_else(e.b.icmp_signed("!=", e.b.or_(accumulate, done), word(0))) as (adding, writing):
                with adding:
                    for value, (place, mask) in zip(sums, places, strict=True):
                        e.store(e.b.fadd(e.load(place, kind, mask), value), place, mask)
                with writing:
                    for value, (place, mask) in zip(sums, places, strict=True):
                        e.store(value, place, mask)
            return state[:1 + len(starts)]

        # Without any k one run of none writes the zeros.
        e.loop(0, e.b.select(e.b.icmp_signed(">", k, word(1)), k, word(1)), CHAIN, [b, *starts], run)
    return emit


def _outer(dtype: str, path: cpu.Cpu, ahead: Ahead = NOTHING) -> Any:
    tile, lanes, size = path.tile, path.lanes(itemsize(dtype)), itemsize(dtype)
    width = tile.vectors * lanes

    def emit(e: Emitter, m: Any, n: Any, k: Any, a: Any, a_row: Any, a_k: Any, b: Any, b_k: Any, c: Any, c_row: Any,
             accumulate: Any) -> None:
        def rows_of(count: Any, b: Any, c: Any, lanes: int, vectors: int, masked: bool) -> None:
            """All rows of one strip of columns."""
            def block(rows: int, i: Any) -> None:
                name = f"tileflow_outer_{dtype}_{path.name}_{rows}x{vectors}x{lanes}{'m' if masked else ''}_{ahead.b}"
                function = define(e.b.module, name, 10, path, _outer_block(dtype, lanes, rows, vectors, masked, ahead))
                e.b.call(function, [count, k, e.address(a, e.b.mul(i, a_row)), a_row, a_k, b, b_k,
                                    e.address(c, e.b.mul(i, c_row)), c_row, accumulate])

            by_rows(e, m, tile.rows, block)

        def strip(j: Any, lanes: int, vectors: int, masked: bool) -> None:
            offset = e.times(j, size)
            rows_of(e.b.sub(n, j), e.address(b, offset), e.address(c, offset), lanes, vectors, masked)

        def each(lanes: int, vectors: int, masked: bool) -> Any:
            return lambda j, _state: strip(j, lanes, vectors, masked)

        def wide(j: Any, _state: list[Any]) -> None:
            """A single row has too few sums in flight per strip: it takes wider ones."""
            function = define(e.b.module, f"tileflow_outer_{dtype}_{path.name}_1x{WIDE}x{lanes}", 10, path,
                              _outer_block(dtype, lanes, 1, WIDE, False))
            offset = e.times(j, size)
            e.b.call(function, [n, k, a, a_row, a_k, e.address(b, offset), b_k, e.address(c, offset), c_row, accumulate])

        start = e.b.select(e.b.icmp_signed("==", m, word(1)), e.b.and_(n, word(-WIDE * lanes)), word(0))
        e.loop(0, start, WIDE * lanes, [], wide)
        whole = e.b.and_(n, word(-width))
        few = e.b.icmp_signed("<=", e.b.sub(n, whole), word(NARROW * lanes))
        last = e.b.select(few, whole, n)
        if path.mask_registers:                     # masked vectors cost nothing there, but those without a column do
            e.loop(start, last, width, [], each(lanes, tile.vectors, True))
            e.loop(last, n, width, [], each(lanes, NARROW, True))
            return
        e.loop(start, whole, width, [], each(lanes, tile.vectors, False))
        if path.masked_moves:
            e.loop(whole, last, width, [], each(lanes, tile.vectors, True))
            e.loop(last, n, width, [], each(lanes, NARROW, True))
        else:                                      # no masked instructions: the last columns one by one
            e.loop(whole, n, 1, [], each(1, 1, False))
    return emit


def add_dots(e: Emitter, dtype: str, n: Any, lefts: Sequence[Any], rights: Sequence[Any], sums: Sequence[Any]) -> list[Any]:
    """sums[i * len(rights) + j] + the products of the `n` elements at address lefts[i] with those at rights[j], lane by lane."""
    size, lanes, cols = itemsize(dtype), e.path.lanes(itemsize(summed(dtype))), len(rights)
    whole = e.b.and_(n, word(-lanes))

    def step(position: Any, sums: list[Any], mask: Any = None) -> list[Any]:
        offset = e.times(position, size)
        sums = list(sums)
        right = [read(e, dtype, e.address(row, offset), lanes, mask) for row in rights]
        for i, row in enumerate(lefts):
            left = read(e, dtype, e.address(row, offset), lanes, mask)
            for j in range(cols):
                sums[i * cols + j] = e.fma(left, right[j], sums[i * cols + j])
        return sums

    sums = e.loop(0, whole, lanes, sums, step)
    return e.loop(whole, n, lanes, sums, lambda at, state: step(at, state, e.first(e.b.sub(n, at), lanes)))


def dot_totals(e: Emitter, sums: Sequence[Any]) -> list[Any]:
    """The sum of each vector's lanes, as many of them in a vector as it has lanes; the last one is filled up with zeros."""
    kind = sums[0].type
    filled = [*sums, *[ir.Constant(kind, None)] * (-len(sums) % kind.count)]
    return [e.sums(filled[i:i + kind.count]) for i in range(0, len(filled), kind.count)]


def _dot_block(dtype: str, lanes: int, rows: int, cols: int) -> Any:
    """One block of `rows` x `cols` dot products."""
    size = itemsize(summed(dtype))

    def emit(e: Emitter, k: Any, a: Any, a_row: Any, b: Any, b_row: Any, c: Any, c_row: Any, accumulate: Any) -> None:
        a_rows = [e.address(a, e.times(a_row, i)) for i in range(rows)]
        b_rows = [e.address(b, e.times(b_row, j)) for j in range(cols)]
        zeros = [ir.Constant(vector(summed(dtype), lanes), None)] * (rows * cols)

        def run(done: Any, state: list[Any]) -> list[Any]:
            """CHAIN products in each lane."""
            lefts, rights = ([e.address(row, e.times(done, itemsize(dtype))) for row in side] for side in (a_rows, b_rows))
            sums = add_dots(e, dtype, e.minimum(e.b.sub(k, done), word(CHAIN * lanes)), lefts, rights, zeros)
            return [e.b.fadd(x, y) for x, y in zip(state, sums, strict=True)]

        totals = dot_totals(e, e.loop(0, k, CHAIN * lanes, zeros, run))
        chunk = min(cols, lanes)
        adding = e.b.icmp_signed("!=", accumulate, word(0))
        for at in range(0, rows * cols, chunk):
            value = e.shuffle(totals[at // lanes], totals[at // lanes], range(at % lanes, at % lanes + chunk))
            place = e.address(c, e.times(c_row, at // cols), at % cols * size)
            with e.b.if_else(adding) as (add, write):
                with add:
                    e.store(e.b.fadd(e.load(place, value.type), value), place)
                with write:
                    e.store(value, place)
    return emit


def _dot(dtype: str, path: cpu.Cpu) -> Any:
    (most_rows, most_cols), size = path.tile.dot, itemsize(summed(dtype))
    lanes = path.lanes(size)

    def emit(e: Emitter, m: Any, n: Any, k: Any, a: Any, a_row: Any, b: Any, b_row: Any, c: Any, c_row: Any, accumulate: Any) -> None:
        def block(rows: int, cols: int, i: Any, j: Any) -> None:
            name = f"tileflow_dot_{dtype}_{path.name}_{rows}x{cols}"
            function = define(e.b.module, name, 8, path, _dot_block(dtype, lanes, rows, cols))
            e.b.call(function, [k, e.address(a, e.b.mul(i, a_row)), a_row, e.address(b, e.b.mul(j, b_row)), b_row,
                                e.address(c, e.b.mul(i, c_row), e.times(j, size)), c_row, accumulate])

        def strip(j: Any, cols: int) -> None:
            """All rows of `cols` columns."""
            start: Any = word(0)
            for rows in (most_rows, *remainders(most_rows)):
                stop = e.b.and_(m, word(-rows))
                e.loop(start, stop, rows, [], lambda i, _state, rows=rows: block(rows, cols, i, j))
                start = stop

        start = word(0)
        if dtype in HALVES:
            # A single row has too few sums in flight: it takes more columns.
            start = e.b.select(e.b.icmp_signed("==", m, word(1)), e.b.and_(n, word(-MANY)), start)
            e.loop(0, start, MANY, [], lambda j, _state: block(1, MANY, word(0), j))
        whole = e.b.and_(n, word(-most_cols))
        e.loop(start, whole, most_cols, [], lambda j, _state: strip(j, most_cols))
        e.loop(whole, n, 1, [], lambda j, _state: strip(j, 1))
    return emit


def _transpose(dtype: str, path: cpu.Cpu) -> Any:
    lanes, size = path.lanes(itemsize(dtype)), itemsize(dtype)
    kind = vector(dtype, lanes)

    def square(e: Emitter, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        rows = [e.load(e.address(source, e.times(source_row, i)), kind) for i in range(lanes)]
        for j, row in enumerate(e.transpose(rows)):
            e.store(row, e.address(target, e.times(target_row, j)))

    def emit(e: Emitter, m: Any, n: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        name = f"tileflow_transpose_{dtype}_{path.name}_square"
        function = define(e.b.module, name, 4, path, square)

        def places(i: Any, j: Any) -> tuple[Any, Any]:
            return (e.address(source, e.b.mul(i, source_row), e.times(j, size)),
                    e.address(target, e.b.mul(j, target_row), e.times(i, size)))

        def whole(i: Any, j: Any) -> None:
            at, to = places(i, j)
            e.b.call(function, [at, source_row, to, target_row])

        def single(i: Any, j: Any) -> None:
            at, to = places(i, j)
            e.store(e.load(at, ELEMENTS[dtype]), to)

        whole_m, whole_n = e.b.and_(m, word(-lanes)), e.b.and_(n, word(-lanes))
        e.loop(0, whole_n, lanes, [], lambda j, _s: e.loop(0, whole_m, lanes, [], lambda i, _s: whole(i, j)))
        e.loop(0, whole_n, 1, [], lambda j, _s: e.loop(whole_m, m, 1, [], lambda i, _s: single(i, j)))
        e.loop(whole_n, n, 1, [], lambda j, _s: e.loop(0, m, 1, [], lambda i, _s: single(i, j)))
    return emit


def _copy(dtype: str, path: cpu.Cpu) -> Any:
    lanes, size = path.lanes(itemsize(dtype)), itemsize(dtype)
    kind = vector(dtype, lanes)

    def emit(e: Emitter, m: Any, n: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        whole = e.b.and_(n, word(-lanes))

        def row(i: Any, _state: list[Any]) -> None:
            at, to = e.address(source, e.b.mul(i, source_row)), e.address(target, e.b.mul(i, target_row))

            def move(j: Any, kind: Any) -> None:
                offset = e.times(j, size)
                e.store(e.load(e.address(at, offset), kind), e.address(to, offset))

            e.loop(0, whole, lanes, [], lambda j, _s: move(j, kind))
            e.loop(whole, n, 1, [], lambda j, _s: move(j, ELEMENTS[dtype]))

        e.loop(0, m, 1, [], row)
    return emit


def _strips(dtype: str, path: cpu.Cpu, wide: int) -> Any:
    lanes, size = path.lanes(itemsize(dtype)), itemsize(dtype)
    kind = vector(dtype, lanes)

    def emit(e: Emitter, m: Any, n: Any, source: Any, source_row: Any, target: Any, strip: Any) -> None:
        whole = e.b.sub(n, e.b.srem(n, word(wide)))

        def row(i: Any, _state: list[Any]) -> None:
            at, to = e.address(source, e.b.mul(i, source_row)), e.address(target, e.times(i, wide * size))

            def move(j: Any, state: list[Any]) -> list[Any]:
                for v in range(0, wide, lanes):
                    mask = None if v + lanes <= wide else e.first(word(wide - v), lanes)
                    e.store(e.load(e.address(at, e.times(j, size), v * size), kind, mask), e.address(state[0], v * size))
                return [e.b.add(state[0], strip)]

            def single(j: Any, state: list[Any]) -> list[Any]:
                e.store(e.load(e.address(at, e.times(j, size)), ELEMENTS[dtype]), state[0])
                return [e.address(state[0], size)]

            e.loop(whole, n, 1, e.loop(0, whole, wide, [to], move), single)

        e.loop(0, m, 1, [], row)
    return emit


_EMIT: dict[str, tuple[str, Any]] = {
    "outer": ("m, n, k, a, a_row, a_k, b, b_k, c, c_row, accumulate", _outer),
    "panels": ("m, n, k, a, a_row, a_k, b, b_k, c, c_row, accumulate", functools.partial(_outer, ahead=IN_PANELS)),
    "rows": ("m, n, k, a, a_row, a_k, b, b_k, c, c_row, accumulate", functools.partial(_outer, ahead=IN_ROWS)),
    "dot": ("m, n, k, a, a_row, b, b_row, c, c_row, accumulate", _dot),
    "copy": ("m, n, source, source_row, target, target_row", _copy),
    "transpose": ("m, n, source, source_row, target, target_row", _transpose),
}


@functools.cache
def _kernel(kind: str, dtype: str, path: cpu.Cpu) -> Any:
    parameters, emitter = _EMIT[kind]
    return inlined_code(f"tileflow_{kind}_{dtype}_{path.name}", parameters, path, emitter(dtype, path))


def outer(dtype: str) -> Any:
    """The function `outer(m, n, k, a, a_row, a_k, b, b_k, c, c_row, accumulate)` of the current path, for "f4" or "f8".

    C[i, j] = sum_k A[i, k] * B[k, j], or += when `accumulate` is not 0; i < m, j < n; all arguments intp. Element A[i, k] lies at
    address a + i * a_row + k * a_k, B[k, j] at b + k * b_k + j * itemsize, C[i, j] at c + i * c_row + j * itemsize (strides in
    bytes, any alignment). With k = 0 zeros are written. Nothing outside the three matrices is read or written.
    """
    return _kernel("outer", dtype, cpu.current())


def panels(dtype: str) -> Any:
    """`outer` for a B whose next rows and panels follow in memory: it asks for them before it reads them."""
    return _kernel("panels", dtype, cpu.current())


def rows(dtype: str) -> Any:
    """`outer` for a B with long rows that lie where they are, and may come from beyond the second-level cache."""
    return _kernel("rows", dtype, cpu.current())


def dot(dtype: str) -> Any:
    """The function `dot(m, n, k, a, a_row, b, b_row, c, c_row, accumulate)` of the current path, for "f4", "f8", "f2" or "b2".

    C[i, j] = sum_k A[i, k] * B[j, k], or += when `accumulate` is not 0; rows of A, B and C are contiguous, strides in bytes.
    16-bit numbers are widened in registers; their C is float32.
    """
    return _kernel("dot", dtype, cpu.current())


def transpose(dtype: str) -> Any:
    """The function `transpose(m, n, source, source_row, target, target_row)` of the current path, for "f4" or "f8".

    target[j, i] = source[i, j] for i < m, j < n; rows are contiguous, strides in bytes; the two must not overlap.
    """
    return _kernel("transpose", dtype, cpu.current())


def copy(dtype: str) -> Any:
    """The function `copy(m, n, source, source_row, target, target_row)` of the current path, for "f4" or "f8".

    target[i, j] = source[i, j] for i < m, j < n; rows are contiguous, strides in bytes; the two must not overlap.
    """
    return _kernel("copy", dtype, cpu.current())


@functools.cache
def _strip_kernel(dtype: str, wide: int, path: cpu.Cpu) -> Any:
    return inlined_code(f"tileflow_strips{wide}_{dtype}_{path.name}", "m, n, source, source_row, target, strip", path, _strips(dtype, path, wide))


def strips(dtype: str, wide: int) -> Any:
    """The function `strips(m, n, source, source_row, target, strip)` of the current path, for "f4" or "f8".

    Cuts rows into strips of `wide` columns: target[j // wide, i, j % wide] = source[i, j] for i < m, j < n; rows of source are contiguous,
    strides in bytes. The strips lie `strip` bytes apart. A strip takes m * wide elements and `slack(wide)`, which may be overwritten.
    """
    return _strip_kernel(dtype, wide, cpu.current())


def slack(dtype: str, wide: int, path: cpu.Cpu) -> int:
    """Elements after a strip that `strips` needs, because it writes whole vectors."""
    return -wide % path.lanes(itemsize(dtype))
