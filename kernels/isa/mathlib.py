"""Vector functions in LLVM IR: exp, log, tanh, erf, sin, pow and their kin, for any lane count.

float32 has polynomials of its own, within 2 units in the last place (GELU: 2.5 in its negative tail), right for NaN, ±Inf,
denormals and overflow. float64 calls libm lane by lane. A lane's bits do not depend on its neighbours or on the number of
lanes, so vector bodies and scalar tails agree.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from .inlined import outside
from .vector import INT32, Emitter

Function = Callable[..., Any]
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()


def constant(kind: ir.Type, number: float) -> ir.Constant:
    """A scalar or vector constant of type `kind`, every lane `number` rounded to it."""
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    value = float(np.float32(number)) if element == FLOAT else number
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def integers(kind: ir.Type) -> ir.Type:
    """The integer type of the same shape: where the bits of `kind` go."""
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    word = INT32 if element == FLOAT else ir.IntType(64)
    return ir.VectorType(word, kind.count) if isinstance(kind, ir.VectorType) else word


class Lanes:
    """Arithmetic on one vector type with Python numbers as constants."""

    def __init__(self, e: Emitter, kind: ir.VectorType) -> None:
        self.e, self.b, self.kind, self.bits_kind = e, e.b, kind, integers(kind)

    def k(self, number: float) -> ir.Constant:
        return constant(self.kind, number)

    def _value(self, x: Any) -> Any:
        return self.k(x) if isinstance(x, int | float) else x

    def add(self, x: Any, y: Any) -> Any:
        return self.b.fadd(self._value(x), self._value(y))

    def sub(self, x: Any, y: Any) -> Any:
        return self.b.fsub(self._value(x), self._value(y))

    def mul(self, x: Any, y: Any) -> Any:
        return self.b.fmul(self._value(x), self._value(y))

    def div(self, x: Any, y: Any) -> Any:
        return self.b.fdiv(self._value(x), self._value(y))

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.e.fma(self._value(x), self._value(y), self._value(z))

    def test(self, x: Any, relation: str, y: Any) -> Any:
        """An ordered comparison: false where either side is NaN."""
        return self.b.fcmp_ordered(relation, x, self._value(y))

    def pick(self, condition: Any, x: Any, y: Any) -> Any:
        return self.b.select(condition, self._value(x), self._value(y))

    def at_least(self, x: Any, bound: float) -> Any:
        """max(x, bound), NaN passing through."""
        return self.pick(self.test(x, "<", bound), bound, x)

    def at_most(self, x: Any, bound: float) -> Any:
        """min(x, bound), NaN passing through."""
        return self.pick(self.test(x, ">", bound), bound, x)

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Horner's scheme, the highest power first."""
        return self.horner(self.k(coefficients[0]), x, coefficients[1:])

    def split(self, x: Any, square: Any, coefficients: Sequence[float]) -> Any:
        """The same polynomial as two chains in x^2, one for even powers and one for odd ones: half the latency."""
        other, last = self.polynomial(square, coefficients[-2::-2][::-1]), self.polynomial(square, coefficients[::-2][::-1])
        return self.fma(other, x, last)

    def horner(self, total: Any, x: Any, coefficients: Sequence[float]) -> Any:
        """Horner's scheme going on from `total`."""
        for c in coefficients:
            total = self.fma(total, x, c)
        return total

    def bits(self, x: Any) -> Any:
        return self.b.bitcast(x, self.bits_kind)

    def from_bits(self, x: Any) -> Any:
        return self.b.bitcast(x, self.kind)

    def word(self, number: int) -> ir.Constant:
        """An integer constant for arithmetic on bits."""
        return ir.Constant(self.bits_kind, [number] * self.bits_kind.count)

    def absolute(self, x: Any) -> Any:
        return self.e.unary("fabs", x)

    def copy_sign(self, x: Any, y: Any) -> Any:
        """x >= 0 with the sign of y."""
        return self.from_bits(self.b.or_(self.bits(x), self.sign_bit(y)))

    def sign_bit(self, x: Any) -> Any:
        width = self.bits_kind.element.width
        return self.b.and_(self.bits(x), self.word(-(1 << (width - 1))))

    def nearest(self, x: Any, scale: float) -> tuple[Any, Any]:
        """The integer next to x * scale as a float and as bits. For |x * scale| far below 2 ** 22 (2 ** 51 in float64).

        Adding 1.5 * 2 ** 23 rounds in the addition and leaves the integer in the low bits: no conversion, which would be
        undefined for NaN.
        """
        magic = 1.5 * 2.0 ** (23 if self.kind.element == FLOAT else 52)
        shifted = self.fma(x, scale, magic)
        return self.sub(shifted, magic), self.b.sub(self.bits(shifted), self.bits(self.k(magic)))


def _libm(name: str) -> Function:
    """A function that calls C's `name` on each lane. "nobuiltin": LLVM must not replace it by another approximation."""
    def call(e: Emitter, *args: Any) -> Any:
        kind = ir.FunctionType(DOUBLE, [DOUBLE] * len(args))
        function = outside(e.b.module, kind, name)
        function.attributes.add("nobuiltin")
        function.attributes.add("nounwind")
        result = ir.Constant(args[0].type, ir.Undefined)
        for lane in range(args[0].type.count):
            at = ir.Constant(INT32, lane)
            result = e.b.insert_element(result, e.b.call(function, [e.b.extract_element(a, at) for a in args]), at)
        return result
    return call


def _library(name: str) -> Function:
    """libm's float64 function for both element types."""
    libm = _libm(name)

    def call(e: Emitter, x: Any, *rest: Any) -> Any:
        if x.type.element != FLOAT:
            return libm(e, x, *rest)
        return e.b.fptrunc(libm(e, *[_doubles(e, a) for a in (x, *rest)]), x.type)
    return call


def _by_element(single: Function, double: Function) -> Function:
    """Choose by the element type of the first argument."""
    @functools.wraps(single)
    def apply(e: Emitter, x: Any, *rest: Any) -> Any:
        return (single if x.type.element == FLOAT else double)(e, x, *rest)
    return apply


# ---- exp and what is made of it -----------------------------------------------------------------------------------------

_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693145751953125, 1.428606765330187e-06
_EXP = (0.000198527617612853646278381, 0.00139304355252534151077271, 0.00833336077630519866943359,
        0.0416664853692054748535156, 0.166666671633720397949219, 0.5)
"""(e^r - 1 - r) / r^2 on |r| <= ln2 / 2 (the coefficients of SLEEF's expf)."""


def _reduced(v: Lanes, x: Any, rest: Any = None) -> tuple[Any, Any, Any]:
    """x + rest = n ln2 + r: (e^r - 1, n as float, n as integer). `rest` is what did not fit into x."""
    n, whole = v.nearest(x, _LOG2E)
    r = v.fma(n, -_LN2_HIGH, x)
    r = v.fma(n, -_LN2_LOW, r) if rest is None else v.add(r, v.fma(n, -_LN2_LOW, rest))
    square = v.mul(r, r)
    return v.fma(square, v.split(r, square, _EXP), r), n, whole


def _power_of_two(v: Lanes, exponent: Any) -> Any:
    """2 ** exponent for an integer vector within the normal range."""
    bits, bias = (23, 127) if v.kind.element == FLOAT else (52, 1023)
    return v.from_bits(v.b.shl(v.b.add(exponent, v.word(bias)), v.word(bits)))


def _exp_within(e: Emitter, x: Any, vanishes: Any = None) -> Any:
    """exp for NaN and -104 <= x <= 89, beyond which float32 has only 0 and Inf; 0 in lanes that are said to vanish."""
    v = Lanes(e, x.type)
    scales = e.path.scales and x.type.count == 16
    if vanishes is not None and not scales:
        x = v.pick(vanishes, 0.0, x)
    q, n, whole = _reduced(v, x)
    if scales:
        kept = ir.Constant(ir.IntType(16), -1) if vanishes is None else e.b.bitcast(e.b.not_(vanishes), ir.IntType(16))
        return e.call("llvm.x86.avx512.mask.scalef.ps.512", x.type,
                      [v.add(q, 1.0), n, ir.Constant(x.type, None), kept, ir.Constant(INT32, 4)])
    half = e.b.ashr(whole, v.word(1))                  # in two steps: only the last multiplication may lose bits or overflow
    scale = _power_of_two(v, half)
    y = v.mul(v.fma(q, scale, scale), _power_of_two(v, e.b.sub(whole, half)))
    return y if vanishes is None else v.pick(vanishes, 0.0, y)


def _exp(e: Emitter, x: Any) -> Any:
    """What vanishes is not computed: a result below the normal numbers, 0 too, costs a hundred times the others, and
    masked scores are many."""
    v = Lanes(e, x.type)
    return _exp_within(e, v.at_most(x, 89.0), v.test(x, "<", -104.0))


def _expm1(e: Emitter, x: Any) -> Any:
    """2^n (e^r - 1) + (2^n - 1), halved inside so that 2^n does not overflow before the result does."""
    v = Lanes(e, x.type)
    q, _, whole = _reduced(v, v.at_most(v.at_least(x, -20.0), 89.0))
    half = _power_of_two(v, e.b.sub(whole, v.word(1)))
    y = v.fma(half, q, v.sub(half, 0.5))
    return v.add(y, y)


_TANH = (-6.274237380e-03, 2.107167765e-02, -5.385230960e-02, 1.333258614e-01, -3.333331756e-01)
"""(tanh(x) / x - 1) / x^2 in powers of x^2 on 0..0.55: minimax (Lawson's iteration) for the relative error of tanh, 1e-9."""


def _tanh(e: Emitter, x: Any) -> Any:
    """y = -t / u with t = expm1(-2|x|), u = 2 + t; less y d / u for the rounding error d of u, where 1 / u = (1 + y) / 2.

    Below 0.55 a polynomial: t would hold fewer bits there than the result.
    """
    v = Lanes(e, x.type)
    size = v.absolute(x)
    square = v.mul(size, size)
    small = v.fma(v.mul(square, v.polynomial(square, _TANH)), size, size)
    t = _expm1(e, v.mul(size, -2.0))
    u = v.add(t, 2.0)
    y = v.absolute(v.div(t, u))
    d = v.sub(t, v.sub(u, 2.0))
    large = v.fma(v.mul(y, d), v.fma(y, -0.5, -0.5), y)
    return v.copy_sign(v.pick(v.test(size, ">", 0.55), large, small), x)


def _sigmoid(e: Emitter, x: Any) -> Any:
    """y = s / u with t = e^-|x|, u = 1 + t, s = t below 0 and else 1; less y d / u for the rounding error d of u.

    e^-|x| cannot overflow, and small results keep their precision.
    """
    v = Lanes(e, x.type)
    size = e.b.fneg(v.absolute(x))
    t = _exp_within(e, v.at_least(size, -104.0)) if x.type.element == FLOAT else exp(e, size)
    u = v.add(t, 1.0)
    y = v.div(v.pick(v.test(x, "<", 0.0), t, 1.0), u)
    d = v.sub(t, v.sub(u, 1.0))
    return v.fma(v.mul(y, d), v.fma(t, 0.5, -1.0), y)


_ERF = (-9.256347515e-06, 1.176419499e-04, -6.328390601e-04, 1.667031068e-03, -1.603992024e-04, -1.915306251e-02, 1.027778302e-01,
        6.366193820e-01, 1.283791716e-01)
"""-log(1 - erf(x)) / x - 1 in powers of x on 0..4: minimax (Lawson's iteration) for the relative error of erf, 4e-9."""


def _erf(e: Emitter, x: Any) -> Any:
    """1 - e^-p with p = -log(1 - erf|x|), a smooth function that is 1.128 |x| near 0: one polynomial serves everywhere."""
    v = Lanes(e, x.type)
    size = v.at_most(v.absolute(x), 4.0)
    q, _, whole = _reduced(v, e.b.fneg(v.fma(v.split(size, v.mul(size, size), _ERF), size, size)))
    scale = _power_of_two(v, whole)
    return v.copy_sign(v.sub(v.sub(1.0, scale), v.mul(scale, q)), x)


_TAIL = (0.000143913494, 0.0004572934704, 0.0002646160719, -0.001026705839, -0.002720557386, -0.0024438377, 0.003991388716,
         0.01764293946, 0.01789608225, -0.05749570578, -0.1950994581, 0.6173419952)
"""(a + 1.5) e^(a^2 / 2) Phi(-a) in powers of (a - 1.5) / (a + 1.5), a = 0..14.6: minimax (Lawson's iteration) for the relative error, 8e-9."""


def _gelu(e: Emitter, x: Any) -> Any:
    """max(x, 0) - a Phi(-a) with a = |x|: nothing cancels, so that the negative tail keeps its digits, too.

    a^2 is held in two numbers, for e^-(a^2 / 2) enlarges its error. Fused multiply-adds also find what the quotient and the
    products have lost: 3 units in the last place become 1.4 above zero, 5 become 2.5 below.
    """
    v = Lanes(e, x.type)
    size = v.at_most(v.absolute(x), 14.5)              # beyond it nothing is left
    if e.path.fma:
        square = v.mul(size, size)
        rest = v.fma(size, size, e.b.fneg(square))
    else:
        high = v.from_bits(e.b.and_(v.bits(size), v.word(-4096)))
        square, rest = v.mul(high, high), v.mul(v.sub(size, high), v.add(size, high))
    q, _, whole = _reduced(v, v.mul(square, -0.5), v.mul(rest, -0.5))
    moved = v.add(size, 1.5)
    inverse = v.div(1.0, moved)
    place = v.fma(inverse, -3.0, 1.0)
    slope, start = v.split(place, v.mul(place, place), _TAIL[:-1]), _TAIL[-1]
    quotient = v.mul(size, inverse)
    if e.path.fma:
        step = v.mul(place, slope)
        factor = v.add(start, step)
        lost = v.add(v.sub(start, factor), step)                                   # factor + lost = start + place * slope
        missing = v.sub(size, v.sub(moved, 1.5))                                   # moved + missing = size + 1.5
        away = v.fma(e.b.fneg(quotient), missing, v.fma(e.b.fneg(quotient), moved, size))
        tail = v.mul(quotient, factor)
        lost = v.fma(v.mul(away, inverse), factor, v.fma(quotient, lost, v.fma(quotient, factor, e.b.fneg(tail))))
        tail = v.add(tail, v.fma(tail, q, lost))
    else:
        tail = v.mul(quotient, v.fma(place, slope, start))
        tail = v.fma(tail, q, tail)
    scale = _power_of_two(v, e.b.add(whole, v.word(64)))           # in two steps: only the last one may lose bits
    tail = v.mul(v.mul(tail, scale), 2.0 ** -64)
    return v.sub(v.pick(v.test(x, ">=", 0.0), x, -0.0), tail)


def _gelu_double(e: Emitter, x: Any) -> Any:
    v = Lanes(e, x.type)
    size = v.at_most(v.absolute(x), 40.0)
    tail = v.mul(v.mul(size, 0.5), _libm("erfc")(e, v.mul(size, math.sqrt(0.5))))
    return v.sub(v.pick(v.test(x, ">=", 0.0), x, -0.0), tail)


# ---- log ----------------------------------------------------------------------------------------------------------------

def _log_core(v: Lanes, m: Any, exponent: Any) -> Any:
    """log((1 + m) 2^exponent) for m in [-1/3, 1/3], exponent a float (N. Juffa's minimax polynomial)."""
    s = v.mul(m, m)
    odd = v.polynomial(s, (0.140869141, 0.139814854, 0.200120345))
    even = v.polynomial(s, (-0.130310059, -0.121483512, -0.166846126, -0.249996200))
    r = v.horner(v.fma(odd, m, even), m, (0.333331972, -0.5))
    return v.fma(exponent, math.log(2), v.fma(r, s, m))


_EXPONENT = -(1 << 23)


def _octave(v: Lanes, x: Any) -> tuple[Any, Any]:
    """The exponent field that brings x > 0 into [2/3, 4/3): as bits, and as a float number of octaves."""
    field = v.b.and_(v.b.sub(v.bits(x), v.bits(v.k(2 / 3))), v.word(_EXPONENT))
    return field, v.mul(v.b.sitofp(field, v.kind), 2.0 ** -23)


def _log_edges(v: Lanes, x: Any, y: Any) -> Any:
    """y, but -Inf at 0, NaN below, Inf at Inf, NaN at NaN."""
    y = v.pick(v.test(x, "<", math.inf), y, x)
    y = v.pick(v.test(x, "<", 0.0), math.nan, y)
    return v.pick(v.test(x, "==", 0.0), -math.inf, y)


def _log(e: Emitter, x: Any) -> Any:
    v = Lanes(e, x.type)
    tiny = v.test(x, "<", 2.0 ** -126)
    scaled = v.pick(tiny, v.mul(x, 2.0 ** 23), x)
    field, octaves = _octave(v, scaled)
    m = v.sub(v.from_bits(e.b.sub(v.bits(scaled), field)), 1.0)
    octaves = v.pick(tiny, v.sub(octaves, 23.0), octaves)
    return _log_edges(v, x, _log_core(v, m, octaves))


def _log1p(e: Emitter, x: Any) -> Any:
    """As log, the argument of the polynomial being x 2^-n + (2^-n - 1) so that a small x loses nothing."""
    v = Lanes(e, x.type)
    total = v.add(x, 1.0)
    field, octaves = _octave(v, total)
    quarter = v.from_bits(e.b.sub(v.bits(v.k(4.0)), field))
    m = v.add(v.from_bits(e.b.sub(v.bits(x), field)), v.fma(quarter, 0.25, -1.0))
    m = v.pick(v.test(x, "==", 0.0), x, m)
    return v.pick(v.test(x, "==", 0.0), x, _log_edges(v, total, _log_core(v, m, octaves)))


# ---- sin, cos, pow: through float64 -------------------------------------------------------------------------------------

_SIN = (-2.50507602534068634195e-08, 2.75573137070700676789e-06, -1.98412698298579493134e-04, 8.33333333332248946124e-03,
        -1.66666666666666324348e-01)
_COS = (2.08757232129817482790e-09, -2.75573143513906633035e-07, 2.48015872894767294178e-05, -1.38888888888741095749e-03,
        4.16666666666666019037e-02, -0.5)
"""Powers of r^2 on |r| <= pi / 4 (fdlibm's minimax, without the last terms)."""
_QUARTER_HIGH, _QUARTER_LOW = 1.57079632673412561417e+00, 6.07710050650619224932e-11
_FAR = 1.0e5
"""Beyond this |x| libm reduces the argument."""


def _doubles(e: Emitter, x: Any) -> Any:
    return e.b.fpext(x, ir.VectorType(DOUBLE, x.type.count))


def _unless_all(e: Emitter, known: Any, value: Any, otherwise: Callable[[], Any]) -> Any:
    """`value` where all lanes are `known`, else what `otherwise` computes, skipped when it is not needed."""
    before = e.b.block
    missing = e.call(f"llvm.vector.reduce.or.v{known.type.count}i1", ir.IntType(1), [e.b.not_(known)])
    with e.b.if_then(missing):
        other = otherwise()
        inside = e.b.block
    result = e.b.phi(value.type)
    result.add_incoming(value, before)
    result.add_incoming(other, inside)
    return result


def _wave(name: str, quarters: int) -> Function:
    """sin(x + quarters * pi/2) in float32."""
    def apply(e: Emitter, x: Any) -> Any:
        wide = _doubles(e, x)
        v = Lanes(e, wide.type)
        n, whole = v.nearest(wide, 2 / math.pi)
        r = v.fma(n, -_QUARTER_LOW, v.fma(n, -_QUARTER_HIGH, wide))
        s = v.mul(r, r)
        sine, cosine = v.mul(v.fma(s, v.polynomial(s, _SIN), 1.0), r), v.fma(s, v.polynomial(s, _COS), 1.0)
        turn = e.b.add(whole, v.word(quarters))
        odd = e.b.icmp_signed("!=", e.b.and_(turn, v.word(1)), v.word(0))
        flip = e.b.shl(e.b.and_(turn, v.word(2)), v.word(62))
        y = v.from_bits(e.b.xor(v.bits(v.pick(odd, cosine, sine)), flip))
        near = v.test(v.absolute(wide), "<=", _FAR)
        return e.b.fptrunc(_unless_all(e, near, y, lambda: e.b.select(near, y, _libm(name)(e, wide))), x.type)
    return apply


_EXP2 = tuple(math.log(2) ** i / math.factorial(i) for i in range(9, -1, -1))
_ATANH = tuple(2 / math.log(2) / i for i in range(17, 0, -2))


def _log2_wide(v: Lanes, x: Any) -> Any:
    """log2 of float64 x >= 0 that came from float32, to 1e-13: 2 atanh((m - 1) / (m + 1)) / ln2 + exponent."""
    field = v.b.and_(v.b.sub(v.bits(x), v.bits(v.k(2 / 3))), v.word(-(1 << 52)))
    m = v.from_bits(v.b.sub(v.bits(x), field))
    s = v.div(v.sub(m, 1.0), v.add(m, 1.0))
    octaves = v.b.sitofp(v.b.ashr(field, v.word(52)), v.kind)
    y = v.fma(v.polynomial(v.mul(s, s), _ATANH), s, octaves)
    y = v.pick(v.test(x, "==", 0.0), -math.inf, y)
    return v.pick(v.test(x, "<", math.inf), y, x)


def _pow(e: Emitter, x: Any, y: Any) -> Any:
    """C's powf. Where every exponent is 2, 3, -1 or 0.5, or one lane of them, no logarithm is taken."""
    v = Lanes(e, x.type)
    wide = _doubles(e, x)
    root = v.pick(v.test(x, "==", -math.inf), math.inf, e.unary("sqrt", v.add(x, 0.0)))
    cube = e.b.fptrunc(e.b.fmul(e.b.fmul(wide, wide), wide), x.type)
    cases = [(2.0, v.mul(x, x)), (3.0, cube), (-1.0, v.div(1.0, x)), (0.5, root)]
    power, known = x, ir.Constant(ir.VectorType(ir.IntType(1), x.type.count), None)
    for exponent, value in cases:
        here = v.test(y, "==", exponent)
        power, known = e.b.select(here, value, power), e.b.or_(here, known)
    return _unless_all(e, known, power, lambda: e.b.select(known, power, _general_pow(e, x, y)))


def _general_pow(e: Emitter, x: Any, y: Any) -> Any:
    """2^(y log2|x|) in float64 with the sign and the special cases put right."""
    a, b = _doubles(e, x), _doubles(e, y)
    v = Lanes(e, a.type)
    size = v.absolute(a)
    exponent = v.at_most(v.at_least(v.mul(b, _log2_wide(v, size)), -200.0), 200.0)
    n, whole = v.nearest(exponent, 1.0)
    power = v.mul(v.polynomial(v.sub(exponent, n), _EXP2), _power_of_two(v, whole))

    integral = v.test(e.unary("floor", b), "==", b)
    halved = v.mul(b, 0.5)
    odd = e.b.and_(integral, e.b.fcmp_unordered("!=", e.unary("floor", halved), halved))
    power = e.b.select(odd, v.from_bits(e.b.or_(v.bits(power), v.sign_bit(a))), power)
    finite_negative = e.b.and_(v.test(a, "<", 0.0), v.test(a, ">", -math.inf))
    power = v.pick(e.b.and_(finite_negative, e.b.not_(integral)), math.nan, power)
    one = e.b.or_(v.test(a, "==", 1.0), v.test(b, "==", 0.0))
    one = e.b.or_(one, e.b.and_(v.test(a, "==", -1.0), v.test(v.absolute(b), "==", math.inf)))
    return e.b.fptrunc(v.pick(one, 1.0, power), x.type)


exp = _by_element(_exp, _libm("exp"))
expm1 = _by_element(_expm1, _libm("expm1"))
log = _by_element(_log, _libm("log"))
log1p = _by_element(_log1p, _libm("log1p"))
tanh = _by_element(_tanh, _libm("tanh"))
sigmoid = _sigmoid
erf = _by_element(_erf, _libm("erf"))
gelu = _by_element(_gelu, _gelu_double)
sin = _by_element(_wave("sin", 0), _libm("sin"))
cos = _by_element(_wave("cos", 1), _libm("cos"))
pow_ = _by_element(_pow, _libm("pow"))
fmod = _library("fmod")
RARE = {name: _library(name) for name in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")}
"""Functions that no model's time depends on: libm's, lane by lane."""
