"""float16 ("f2") and bfloat16 ("b2") as uint16 bits: conversion from and to float32 in vectors, on every path.

Widening is exact. Narrowing rounds to nearest, ties to even; NaN stays NaN (quiet), what is too large becomes infinite.
Where the CPU has no float16 instructions LLVM would call a slow library function for each element, so it is done with
integers (after F. Giesen's half-to-float notes). So it is to bfloat16, but for whole vectors where the CPU has
AVX512-BF16.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from ..dtypes import ELEMENTS as TYPES
from ..dtypes import HALF_CODES
from ..machine.places import address_of
from . import cpu
from .vector import ELEMENTS, Emitter, define, inlined_code, itemsize, vector, word

HALVES = HALF_CODES
BITS16 = ir.IntType(16)
NARROWED = 16
"""Lanes that the CPU's own conversion to bfloat16 takes."""
DENORMAL = 0x20
"""VFPCLASSPS's bit of denormal numbers."""


class Bfloat(ir.types.HalfType):
    """LLVM's bfloat, which llvmlite does not name."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


Bfloat._create_instance()                # llvmlite's float types have one instance each


def _like(type_: ir.Type, element: ir.Type) -> ir.Type:
    """`element` in as many lanes as `type_` has, or alone."""
    return ir.VectorType(element, type_.count) if isinstance(type_, ir.VectorType) else element


def _constant(type_: ir.Type, number: Any) -> Any:
    return ir.Constant(type_, [number] * type_.count if isinstance(type_, ir.VectorType) else number)


def widen(e: Emitter, dtype: str, bits: Any) -> Any:
    """The float32 values of 16-bit patterns (a scalar or a vector)."""
    b = e.b
    words, floats = _like(bits.type, ELEMENTS["i4"]), _like(bits.type, ELEMENTS["f4"])
    if dtype == "b2":
        return b.bitcast(b.shl(b.zext(bits, words), _constant(words, 16)), floats)
    if e.path.f16c:
        return b.fpext(b.bitcast(bits, _like(bits.type, ELEMENTS["f2"])), floats)
    u = b.zext(bits, words)
    shifted = b.bitcast(b.shl(b.and_(u, _constant(words, 0x7FFF)), _constant(words, 13)), floats)
    value = b.bitcast(b.fmul(shifted, _constant(floats, 2.0 ** 112)), words)                  # moves the exponent, denormals too
    special = b.icmp_unsigned(">=", b.and_(u, _constant(words, 0x7FFF)), _constant(words, 0x7C00))
    value = b.or_(value, b.select(special, _constant(words, 0x7F800000), _constant(words, 0)))
    return b.bitcast(b.or_(value, b.shl(b.and_(u, _constant(words, 0x8000)), _constant(words, 16))), floats)


def narrow(e: Emitter, dtype: str, x: Any, rounded: bool = False) -> Any:
    """The 16-bit patterns nearest to float32 values (a scalar or a vector); `rounded`: these are values that the type
    has."""
    if dtype == "f2" and e.path.f16c:
        return e.b.bitcast(e.b.fptrunc(x, _like(x.type, ELEMENTS["f2"])), _like(x.type, BITS16))
    if dtype == "b2" and not rounded and e.path.pairs and getattr(x.type, "count", 1) == NARROWED:
        return _narrow_at_once(e, x)
    return _narrow_bits(e, dtype, x, rounded)


def _narrow_at_once(e: Emitter, x: Any) -> Any:
    """A vector to bfloat16 by the CPU's instruction. It makes zeros of denormals: a vector that has some goes the way
    of integers.

    0.97 of the time of batch normalisation's gradient in ResNet-20, 0.98 of a product's of 2048 x 1024 x 256.
    """
    halves = ir.VectorType(BITS16, NARROWED)
    made, mask = ir.VectorType(Bfloat(), NARROWED), ir.VectorType(ir.IntType(1), NARROWED)
    found = e.b.bitcast(e.call("llvm.x86.avx512bf16.cvtneps2bf16.512", made, [x]), halves)
    tiny = e.call("llvm.x86.avx512.fpclass.ps.512", mask, [x, ir.Constant(ir.IntType(32), DENORMAL)])
    plain = e.b.block
    with e.b.if_then(e.b.icmp_unsigned("!=", e.b.bitcast(tiny, BITS16), ir.Constant(BITS16, 0)), likely=False):
        exact, there = _narrow_bits(e, "b2", x, False), e.b.block
    result = e.b.phi(halves)
    result.add_incoming(found, plain)
    result.add_incoming(exact, there)
    return result


def _narrow_bits(e: Emitter, dtype: str, x: Any, rounded: bool) -> Any:
    """As `narrow`, by integers."""
    b = e.b
    halves, words, floats = _like(x.type, BITS16), _like(x.type, ELEMENTS["i4"]), x.type

    def c(number: int) -> Any:
        return _constant(words, number)

    u = b.bitcast(x, words)
    if dtype == "b2":
        nearest = b.add(u, b.add(b.and_(b.lshr(u, c(16)), c(1)), c(0x7FFF)))
        quiet = b.or_(u, c(0x00400000))
        return b.trunc(b.lshr(u if rounded else b.select(b.fcmp_unordered("uno", x, x), quiet, nearest), c(16)), halves)
    sign = b.and_(b.lshr(u, c(16)), c(0x8000))
    u = b.and_(u, c(0x7FFFFFFF))
    normal = b.lshr(b.add(b.add(u, c(0xC8000FFF - (1 << 32))), b.and_(b.lshr(u, c(13)), c(1))), c(13))     # new exponent, to even
    tiny = b.sub(b.bitcast(b.fadd(b.bitcast(u, floats), _constant(floats, 0.5)), words), c(0x3F000000))
    result = b.select(b.icmp_unsigned("<", u, c(0x38800000)), tiny, normal)
    beyond = b.select(b.icmp_unsigned(">", u, c(0x7F800000)), c(0x7E00), c(0x7C00))
    result = b.select(b.icmp_unsigned(">=", u, c(0x47800000)), beyond, result)
    return b.trunc(b.or_(result, sign), halves)


def read(e: Emitter, dtype: str, address: Any, lanes: int, mask: Any = None) -> Any:
    """A vector of elements of `dtype`, 16-bit ones as their float32 values; lanes outside `mask` are not touched and zero."""
    if dtype in HALVES:
        return widen(e, dtype, e.load(address, ir.VectorType(BITS16, lanes), mask))
    return e.load(address, vector(dtype, lanes), mask)


def summed(dtype: str) -> str:
    """The dtype in which products of `dtype` are summed."""
    return "f4" if dtype in HALVES else dtype


def stored(dtype: str) -> str:
    """The NumPy dtype of scratch memory that holds `dtype`."""
    return TYPES[dtype].memory


def _convert_rows(dtype: str, path: cpu.Cpu, kind: str) -> Any:
    """target[i, j] = source[i, j] in the other width, or rounded to what the narrow one can hold."""
    lanes = path.lanes(4)
    read, size_in, size_out = {"widen": (BITS16, 2, 4), "narrow": (ELEMENTS["f4"], 4, 2), "round": (ELEMENTS["f4"], 4, 4)}[kind]

    def convert(e: Emitter, value: Any) -> Any:
        value = value if kind == "widen" else narrow(e, dtype, value)
        return value if kind == "narrow" else widen(e, dtype, value)

    def emit(e: Emitter, m: Any, n: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        whole = e.b.and_(n, word(-lanes))

        def row(i: Any, _state: list[Any]) -> None:
            at, to = e.address(source, e.b.mul(i, source_row)), e.address(target, e.b.mul(i, target_row))

            def move(j: Any, kind: Any) -> None:
                value = e.load(e.address(at, e.times(j, size_in)), kind)
                e.store(convert(e, value), e.address(to, e.times(j, size_out)))

            e.loop(0, whole, lanes, [], lambda j, _s: move(j, ir.VectorType(read, lanes)))
            e.loop(whole, n, 1, [], lambda j, _s: move(j, read))
        e.loop(0, m, 1, [], row)
    return emit


def _widen_turned(dtype: str, path: cpu.Cpu) -> Any:
    """target[j, i] = source[i, j], 16 bits to 32."""
    lanes = path.lanes(4)

    def square(e: Emitter, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        rows = [widen(e, dtype, e.load(e.address(source, e.times(source_row, i)), ir.VectorType(BITS16, lanes))) for i in range(lanes)]
        for j, row in enumerate(e.transpose(rows)):
            e.store(row, e.address(target, e.times(target_row, j)))

    def emit(e: Emitter, m: Any, n: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        function = define(e.b.module, f"tileflow_widen_turned_{dtype}_{path.name}_square", 4, path, square)

        def places(i: Any, j: Any) -> tuple[Any, Any]:
            return (e.address(source, e.b.mul(i, source_row), e.times(j, 2)), e.address(target, e.b.mul(j, target_row), e.times(i, 4)))

        def whole(i: Any, j: Any) -> None:
            at, to = places(i, j)
            e.b.call(function, [at, source_row, to, target_row])

        def single(i: Any, j: Any) -> None:
            at, to = places(i, j)
            e.store(widen(e, dtype, e.load(at, BITS16)), to)

        whole_m, whole_n = e.b.and_(m, word(-lanes)), e.b.and_(n, word(-lanes))
        e.loop(0, whole_n, lanes, [], lambda j, _s: e.loop(0, whole_m, lanes, [], lambda i, _s: whole(i, j)))
        e.loop(0, whole_n, 1, [], lambda j, _s: e.loop(whole_m, m, 1, [], lambda i, _s: single(i, j)))
        e.loop(whole_n, n, 1, [], lambda j, _s: e.loop(0, m, 1, [], lambda i, _s: single(i, j)))
    return emit


@functools.cache
def _kernel(kind: str, dtype: str, path: cpu.Cpu) -> Any:
    assert dtype in HALVES
    emit = _widen_turned(dtype, path) if kind == "widen_turned" else _convert_rows(dtype, path, kind.removesuffix("_rows"))
    return inlined_code(f"tileflow_{kind}_{dtype}_{path.name}", "m, n, source, source_row, target, target_row", path, emit)


def widen_rows(dtype: str) -> Any:
    """The function `widen_rows(m, n, source, source_row, target, target_row)` of the current path, for "f2" or "b2".

    target[i, j] (float32) = source[i, j] for i < m, j < n; rows are contiguous, strides in bytes; the two must not overlap.
    """
    return _kernel("widen_rows", dtype, cpu.current())


def widen_turned(dtype: str) -> Any:
    """Likewise `widen_turned`: target[j, i] = source[i, j]."""
    return _kernel("widen_turned", dtype, cpu.current())


def narrow_rows(dtype: str) -> Any:
    """Likewise `narrow_rows`: target[i, j] (16 bits) = the number nearest to the float32 source[i, j]."""
    return _kernel("narrow_rows", dtype, cpu.current())


def round_rows(dtype: str) -> Any:
    """Likewise `round_rows`: target[i, j] = the float32 source[i, j] rounded to what `dtype` can hold; the two may be the same."""
    return _kernel("round_rows", dtype, cpu.current())


@functools.cache
def _widened(dtype: str, path: cpu.Cpu) -> Any:
    convert = _kernel("widen_rows", dtype, path)

    def wide(x, at, n, spare):  # type: ignore[no-untyped-def]
        convert(1, n, address_of(x) + 2 * at, 0, address_of(spare), 0)
        return spare[:n]
    return wide


def widened(dtype: str) -> Any:
    """The function `widened(x, at, n, spare)`: n elements of the 16-bit array x from element `at` on, as float32 in `spare`; returns them."""
    return _widened(dtype, cpu.current())


@functools.cache
def _borrowed(dtype: str, letter: str, path: cpu.Cpu) -> Any:
    size = itemsize(dtype)
    if not letter:
        def place(x, at, _n, _spare, _offset):  # type: ignore[no-untyped-def]
            return address_of(x) + size * at

        def leave(_x, _at, _n, _spare, _offset):  # type: ignore[no-untyped-def]
            pass
        return place, place, leave
    convert, back = _kernel("widen_rows", letter, path), _kernel("narrow_rows", letter, path)

    def take(x, at, n, spare, offset):  # type: ignore[no-untyped-def]
        to = address_of(spare) + 4 * offset
        convert(1, n, address_of(x) + 2 * at, 0, to, 0)
        return to

    def room(_x, _at, _n, spare, offset):  # type: ignore[no-untyped-def]
        return address_of(spare) + 4 * offset

    def give(x, at, n, spare, offset):  # type: ignore[no-untyped-def]
        back(1, n, address_of(spare) + 4 * offset, 0, address_of(x) + 2 * at, 0)
    return take, room, give


def borrowed(dtype: str, letter: str = "") -> Any:
    """Three functions by which a body computes in `dtype` on n elements of an array from element `at` on, wherever they lie.

    take(x, at, n, spare, offset) gives the address of their values, room(...) that of a place for new ones, give(...) puts these into the array. With
    a `letter`, the array's 16-bit type, values are in `spare` from number `offset` on; without, all is done where the elements lie.
    """
    return _borrowed(dtype, letter, cpu.current())
