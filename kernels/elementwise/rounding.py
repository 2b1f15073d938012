"""How float32 numbers become 16-bit ones in an update: at random in proportion (stochastic), or with what is lost kept beside them (remainder).

**Stochastic**: a number between two neighbours of the narrow type becomes the upper one with the probability that is its distance from the
lower one, in steps of 2^-32 (bfloat16 and normal float16: exactly), so that its mean over many roundings is the number itself. What the type
holds stays as it is; infinities and NaN, too. The neighbour of the largest number is infinity, as far away as if the exponents went on.

**Remainder**: a float32 number is a 16-bit one, the nearest, and 16 more bits.
- bfloat16: the low half of the float32 number. Ties go away from zero, since a nearest even number would leave open from which side it was rounded;
  so every float32 number whose rounded one is finite comes back exactly.
- float16: how far the float32 number is from the rounded one, in 2^-15 of the latter's last place. That is exact from 2^-16 up; smaller
  numbers come back to the nearest multiple of 2^-39.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from ..isa import half
from ..isa.vector import INT32, Emitter

FIXED = 2.0 ** 15
"""Steps of a float16 remainder in the last place of the number it belongs to."""
LEAST = 2.0 ** -24
"""The last place of float16's small numbers."""
NORMAL = 2.0 ** -14
"""float16's least normal number."""


# ---- NumPy twins

def stochastic(x: np.ndarray, words: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float32 `x` rounded by random uint32 `words` of its shape."""
    u = x.view(np.uint32)
    if dtype.name == "bfloat16":
        rounded = ((u.astype(np.uint64) + (words >> np.uint32(16))) >> np.uint64(16)).astype(np.uint16)
        return np.where(np.isfinite(x), rounded, x.astype(dtype).view(np.uint16)).astype(np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        kept = ((u.astype(np.uint64) + (words >> np.uint32(19))).astype(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        steps = np.abs(x) * np.float32(1 / LEAST)
        whole = np.floor(steps)
        up = words.astype(np.float32) < (steps - whole) * np.float32(2.0 ** 32)
        small = np.copysign((whole + up).astype(np.float32) * np.float32(LEAST), x)
        return np.where(np.isfinite(x), np.where(np.abs(x) < NORMAL, small, kept), x).astype(dtype)


def away(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float32 `x` as the nearest bfloat16, ties away from zero."""
    rounded = ((x.view(np.uint32).astype(np.uint64) + 0x8000) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(x), x.astype(dtype).view(np.uint16), rounded).astype(np.uint16).view(dtype)


def remainder(x: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """What `rounded` (16-bit) lacks of the float32 `x`, as int16."""
    if rounded.dtype.name == "bfloat16":
        return x.view(np.uint32).astype(np.uint16).view(np.int16)
    w = rounded.astype(np.float32)
    with np.errstate(all="ignore"):
        steps = np.rint((x - w) * (np.float32(FIXED) / _last_place(w)))
        return np.where(np.abs(steps) < FIXED, steps, 0).astype(np.int16)


def joined(rounded: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """The float32 number that became `rounded` and `rest`."""
    if rounded.dtype.name == "bfloat16":
        return ((rounded.view(np.uint16).astype(np.int64) << 16) + rest.astype(np.int64)).astype(np.uint32).view(np.float32)
    w = rounded.astype(np.float32)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(w), w + rest.astype(np.float32) * (_last_place(w) * np.float32(1 / FIXED)), w).astype(np.float32)


def _last_place(w: np.ndarray) -> np.ndarray:
    """Of float16 numbers in float32."""
    power = (w.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
    return np.maximum(power * np.float32(2.0 ** -10), np.float32(LEAST))


# ---- vectors (float32 in registers, as the elementwise loops hold 16-bit numbers, too)

def _words(value: Any) -> ir.VectorType:
    return ir.VectorType(INT32, value.type.count)


def _splat(kind: ir.VectorType, number: float) -> Any:
    return ir.Constant(kind, [number] * kind.count)


def emit_stochastic(e: Emitter, dtype: str, x: Any, words: Any) -> Any:
    """The 16-bit numbers, as float32."""
    b, kind, ints = e.b, x.type, _words(x)
    size = e.unary("fabs", x)
    finite = b.fcmp_ordered("<", size, _splat(kind, float("inf")))
    u = b.bitcast(x, ints)
    shift, mask = (16, 0xFFFF0000) if dtype == "bfloat16" else (19, 0xFFFFE000)
    kept = b.bitcast(b.and_(b.add(u, b.lshr(words, _splat(ints, shift))), _splat(ints, mask)), kind)
    if dtype == "float16":
        steps = b.fmul(size, _splat(kind, 1 / LEAST))
        small = b.fcmp_ordered("<", size, _splat(kind, NORMAL))
        whole = b.fptosi(b.select(small, steps, _splat(kind, 0.0)), ints)
        lower = b.sitofp(whole, kind)
        up = b.fcmp_ordered("<", b.uitofp(words, kind), b.fmul(b.fsub(steps, lower), _splat(kind, 2.0 ** 32)))
        upper = b.fadd(lower, b.select(up, _splat(kind, 1.0), _splat(kind, 0.0)))
        sign = b.and_(u, _splat(ints, 0x80000000))
        grid = b.bitcast(b.or_(b.bitcast(b.fmul(upper, _splat(kind, LEAST)), ints), sign), kind)
        kept = b.select(small, grid, kept)
    return b.select(finite, kept, x)


def emit_away(e: Emitter, dtype: str, x: Any) -> Any:
    """The nearest bfloat16, ties away from zero, as float32."""
    b, ints = e.b, _words(x)
    u = b.and_(b.add(b.bitcast(x, ints), _splat(ints, 0x8000)), _splat(ints, 0xFFFF0000))
    return b.select(b.fcmp_unordered("uno", x, x), x, b.bitcast(u, x.type))


def emit_remainder(e: Emitter, dtype: str, x: Any, w: Any) -> Any:
    """int16 from the float32 number and the rounded one, as float32."""
    b, kind, halves = e.b, x.type, ir.VectorType(half.BITS16, x.type.count)
    if dtype == "bfloat16":
        return b.trunc(b.bitcast(x, _words(x)), halves)
    steps = e.unary("rint", b.fmul(b.fsub(x, w), b.fdiv(_splat(kind, FIXED), _emit_last_place(e, w))))
    known = b.fcmp_ordered("<", e.unary("fabs", steps), _splat(kind, FIXED))
    return b.trunc(b.fptosi(b.select(known, steps, _splat(kind, 0.0)), _words(x)), halves)


def emit_joined(e: Emitter, dtype: str, w: Any, rest: Any) -> Any:
    """float32 from the rounded number, as float32, and its remainder."""
    b, kind, ints = e.b, w.type, _words(w)
    wide = b.sext(rest, ints)
    if dtype == "bfloat16":
        return b.bitcast(b.add(b.bitcast(w, ints), wide), kind)
    whole = b.fadd(w, b.fmul(b.sitofp(wide, kind), b.fmul(_emit_last_place(e, w), _splat(kind, 1 / FIXED))))
    return b.select(b.fcmp_ordered("<", e.unary("fabs", w), _splat(kind, float("inf"))), whole, w)


def _emit_last_place(e: Emitter, w: Any) -> Any:
    b, kind, ints = e.b, w.type, _words(w)
    power = b.bitcast(b.and_(b.bitcast(w, ints), _splat(ints, 0x7F800000)), kind)
    place, least = b.fmul(power, _splat(kind, 2.0 ** -10)), _splat(kind, LEAST)
    return b.select(b.fcmp_ordered("<", place, least), least, place)
