"""Casts from and to elements of 8 bits and fewer: ONNX's float8, float4, int4 and int2. In registers they are their bits, one byte each.

A number is *decoded* to float32 (floats) or a byte-wide integer (int4, uint4, int2, uint2), exactly, and *encoded* from float32 or float64, to
nearest, ties to even. What is beyond the largest number becomes it (saturating), or NaN, or infinity where the type has one. Integers are encoded
from an integer, of which the low bits are kept; floats cast to them become int32 first, and ONNX's own tests want the low bits of that, too.

float8_e8m0fnu, a power of two without sign, rounds up, down or to nearest by choice, from float32; signs are ignored. It has no zero: what is
too small becomes its least number, 2^-127, or NaN without saturation. float4_e2m1fn always saturates; of NaN it makes -0, as ml_dtypes does.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir

from ..dtypes import CODES, ELEMENTS
from ..isa.vector import Emitter

__all__ = ["BYTES", "FORMATS", "INTEGERS", "MODES", "cast_from", "cast_to", "decode", "encode", "mode"]

ROUNDINGS = ("up", "down", "nearest")
MODES = {(saturate, rounding): "cast" + ("" if rounding == "up" else f"_{rounding}") + ("" if saturate else "_open")
         for rounding in ROUNDINGS for saturate in (True, False)}
"""Operations of scalar expressions by (saturate, round_mode): "cast" saturates and rounds float8_e8m0fnu up, as ONNX does by default."""
_OF = {name: how for how, name in MODES.items()}


def mode(name: str) -> tuple[bool, str]:
    """(saturate, round_mode) of an operation's name."""
    return _OF[name]


@dataclass(frozen=True)
class Format:
    """A narrow float: exponent bias, bits of the fraction, codes (without sign) of the largest number, infinity (None: it has none) and NaN."""

    bias: int
    fraction: int
    top: int
    infinity: int | None = None
    nan: int = 0x7F
    sign: int = 0x80
    unsigned_zero: bool = False          # -0 is 0: its code is that of NaN


FORMATS = {
    "float8_e4m3fn": Format(7, 3, 0x7E), "float8_e4m3fnuz": Format(8, 3, 0x7F, nan=0x80, unsigned_zero=True),
    "float8_e5m2": Format(15, 2, 0x7B, infinity=0x7C, nan=0x7E), "float8_e5m2fnuz": Format(16, 2, 0x7F, nan=0x80, unsigned_zero=True),
    "float4_e2m1fn": Format(1, 1, 0x7, nan=0x8, sign=0x8),
}
"""Floats of 8 and 4 bits, as ONNX names them."""
INTEGERS = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
"""Least and largest number."""
BYTES = {name: "uint8" if name.startswith("u") else "int8" for name in INTEGERS}
"""The byte-wide integers in which they are decoded."""
POWER = "float8_e8m0fnu"


# ---- NumPy twins (ml_dtypes knows the formats; the rules beyond their range are ONNX's)

def cast_from(x: np.ndarray) -> np.ndarray:
    """Narrow numbers as float32, or as a byte-wide integer."""
    name = x.dtype.name
    return x.astype(BYTES.get(name, "float32"))


def cast_to(x: np.ndarray, dtype: np.dtype, operation: str) -> np.ndarray:
    """float32 or float64 numbers as a narrow float; integers as a narrow one by their low bits."""
    if dtype.name in INTEGERS:
        return (x.astype(np.uint8) & ((1 << ELEMENTS[CODES[dtype.name]].bits) - 1)).astype(np.uint8).view(dtype)
    saturate, rounding = mode(operation)
    if dtype.name == POWER:
        return _powers(np.asarray(x, np.float32), saturate, rounding).view(dtype)
    form = FORMATS[dtype.name]
    if saturate and dtype.name != "float4_e2m1fn":
        top = float(ml_dtypes.finfo(dtype).max)
        x = np.clip(x, -top, top)                            # NaN stays
    code = x.astype(dtype).view(np.uint8)
    return np.where(np.isnan(x), form.nan | (np.signbit(x) * (form.nan & 0x80 == 0) * (form.sign & 0x80)), code).astype(np.uint8).view(dtype)


def _powers(x: np.ndarray, saturate: bool, rounding: str) -> np.ndarray:
    bits = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    code = (bits + np.uint32(_MORE[rounding])) >> np.uint32(23)
    code = np.where(bits < NORMAL, bits > _LEAST_UP[rounding], code)
    code = np.minimum(code, LARGEST) if saturate else np.where(bits < LEAST, 0xFF, np.minimum(code, 0xFF))
    return np.where(np.isnan(x), 0xFF, code).astype(np.uint8)


NORMAL, LEAST, LARGEST = 0x800000, 0x400000, 0xFE
"""float32's least normal number, 2^-126; the least power of two, 2^-127; the code of the largest."""
_MORE = {"up": 0x7FFFFF, "down": 0, "nearest": 0x400000}
"""What is added to a float32 number's bits before its fraction is cut off."""
_LEAST_UP = {"up": LEAST, "down": NORMAL, "nearest": 0x5FFFFF}
"""Bits up to which numbers below 2^-126 become 2^-127."""


# ---- vectors

def _kind(x: Any, element: ir.Type) -> ir.VectorType:
    return ir.VectorType(element, x.type.count)


def _all(kind: ir.VectorType, number: Any) -> Any:
    return ir.Constant(kind, [number] * kind.count)


def decode(e: Emitter, dtype: str, bits: Any) -> Any:
    """A vector of narrow elements as float32, or as a byte-wide integer."""
    b = e.b
    if dtype in INTEGERS:
        wide = _all(bits.type, 8 - ELEMENTS[CODES[dtype]].bits)
        return (b.lshr if dtype.startswith("u") else b.ashr)(b.shl(bits, wide), wide)
    words, floats = _kind(bits, ir.IntType(32)), _kind(bits, ir.FloatType())

    def c(number: int) -> Any:
        return _all(words, number)

    u = b.zext(bits, words)
    quiet = c(0x7FC00000)
    if dtype == POWER:
        value = b.select(b.icmp_unsigned("==", u, c(0)), c(LEAST), b.shl(u, c(23)))
        return b.bitcast(b.select(b.icmp_unsigned("==", u, c(0xFF)), quiet, value), floats)
    form = FORMATS[dtype]
    magnitude = b.and_(u, c(form.sign - 1))
    scaled = b.fmul(b.bitcast(b.shl(magnitude, c(23 - form.fraction)), floats), _all(floats, 2.0 ** (127 - form.bias)))
    value = b.bitcast(scaled, words)
    if form.infinity is not None:
        value = b.select(b.icmp_unsigned("==", magnitude, c(form.infinity)), c(0x7F800000), value)
    if dtype != "float4_e2m1fn" and not form.unsigned_zero:
        value = b.select(b.icmp_unsigned(">", magnitude, c(form.infinity or form.top)), quiet, value)
    value = b.or_(value, b.shl(b.and_(u, c(form.sign)), c(24 if form.sign == 0x80 else 28)))
    if form.unsigned_zero:
        value = b.select(b.icmp_unsigned("==", u, c(form.nan)), c(0xFFC00000), value)         # its NaN has the sign's bit only
    return b.bitcast(value, floats)


def encode(e: Emitter, dtype: str, x: Any, operation: str) -> Any:
    """A vector of float32 or float64 numbers (integers for the narrow ones) as narrow elements."""
    b = e.b
    if dtype in INTEGERS:
        x = x if x.type.element.width == 8 else b.trunc(x, _kind(x, ir.IntType(8)))
        return b.and_(x, _all(x.type, (1 << ELEMENTS[CODES[dtype]].bits) - 1))
    saturate, rounding = mode(operation)
    if dtype == POWER:
        return _encode_power(e, x if x.type.element == ir.FloatType() else b.fptrunc(x, _kind(x, ir.FloatType())), saturate, rounding)
    form = FORMATS[dtype]
    width, mantissa, bias = (32, 23, 127) if x.type.element == ir.FloatType() else (64, 52, 1023)
    words, drop = _kind(x, ir.IntType(width)), mantissa - form.fraction

    def c(number: int) -> Any:
        return _all(words, number)

    whole = b.bitcast(x, words)
    u = b.and_(whole, c((1 << (width - 1)) - 1))
    rounded = b.add(u, b.add(b.and_(b.lshr(u, c(drop)), c(1)), c((1 << (drop - 1)) - 1)))
    normal = b.sub(b.lshr(rounded, c(drop)), c((bias - form.bias) << form.fraction))
    large = 1 - form.bias + drop                             # its last place is that of the type's small numbers
    sum_ = b.bitcast(b.fadd(b.bitcast(u, x.type), _all(x.type, 2.0 ** large)), words)
    small = b.sub(sum_, c((large + bias) << mantissa))
    code = b.select(b.icmp_unsigned("<", u, c((1 - form.bias + bias) << mantissa)), small, normal)
    beyond = form.top if saturate or dtype == "float4_e2m1fn" else form.infinity or form.nan
    over = b.icmp_unsigned(">", code, c(form.top))
    code = b.select(over, c(beyond), code)
    nan = b.fcmp_unordered("uno", x, x)
    code = b.select(nan, c(form.nan), code)
    sign = b.and_(b.lshr(whole, c(width - (8 if form.sign == 0x80 else 4))), c(form.sign))
    if form.unsigned_zero:
        sign = b.select(b.icmp_unsigned("==", code, c(0)), c(0), sign)
    return b.trunc(b.or_(code, sign) if form.nan != form.sign else
                   b.select(b.icmp_unsigned("==", code, c(form.nan)), code, b.or_(code, sign)), _kind(x, ir.IntType(8)))


def _encode_power(e: Emitter, x: Any, saturate: bool, rounding: str) -> Any:
    b = e.b
    words = _kind(x, ir.IntType(32))

    def c(number: int) -> Any:
        return _all(words, number)

    u = b.and_(b.bitcast(x, words), c(0x7FFFFFFF))
    code = b.lshr(b.add(u, c(_MORE[rounding])), c(23))
    least = b.zext(b.icmp_unsigned(">", u, c(_LEAST_UP[rounding])), words)
    code = b.select(b.icmp_unsigned("<", u, c(NORMAL)), least, code)
    most = LARGEST if saturate else 0xFF
    code = b.select(b.icmp_unsigned(">", code, c(most)), c(most), code)
    if not saturate:
        code = b.select(b.icmp_unsigned("<", u, c(LEAST)), c(0xFF), code)
    code = b.select(b.fcmp_unordered("uno", x, x), c(0xFF), code)
    return b.trunc(code, _kind(x, ir.IntType(8)))
