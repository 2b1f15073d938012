"""Expressions to vector code: what each operation is in LLVM's instructions, and how numbers lie in memory and in
registers."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from llvmlite import ir

from ..dtypes import CODES, ELEMENTS, HALVES, NARROW
from ..isa import half, mathlib
from ..isa.vector import BIT, INT32, Emitter
from ..isa.vector import ELEMENTS as LLVM
from . import narrow, rounding
from .coefficients import coefficients
from .expr import Expr, postorder
from .tabulated import look_up

NOTHING: Mapping[Any, Any] = MappingProxyType({})

Table = tuple[Expr, Any]
"""What a table is looked up by, and its address."""


def size_of(dtype: str) -> int:
    return ELEMENTS[CODES[dtype]].bytes


def stored(dtype: str) -> ir.Type:
    """The element type in memory."""
    return ir.IntType(16) if dtype in HALVES else LLVM[CODES[dtype]]


def _held(dtype: str) -> ir.Type:
    """The type in registers: those of 16 bits are held as float32 (rounded after each operation), bool is a bit."""
    return {"float16": ir.FloatType(), "bfloat16": ir.FloatType(), "bool": BIT}.get(dtype) or stored(dtype)


def loaded(e: Emitter, at: Any, exprs: Sequence[Expr]) -> list[Any]:
    """The coefficients of lifted expressions as registers hold them; their words lie in the argument block, from the
    address `at` on."""
    return [e.load(e.address(at, 8 * i), _held(dtype)) for i, dtype in enumerate(coefficients(*exprs))]


def unpacked(e: Emitter, raw: Any, dtype: str) -> Any:
    if dtype == "bool":
        return e.b.icmp_unsigned("!=", raw, ir.Constant(raw.type, None))
    return half.widen(e, CODES[dtype], raw) if dtype in HALVES else raw


def packed(e: Emitter, value: Any, dtype: str, rounded: bool = False) -> Any:
    """The value as memory holds it. rounded: it is an operation's, which has been rounded to its type."""
    kind = ir.VectorType(stored(dtype), value.type.count)
    if dtype == "bool":
        return e.b.zext(value, kind)
    return half.narrow(e, CODES[dtype], value, rounded) if dtype in HALVES else value


class Translator:
    """Expressions to vector values. A dtype decides between float, signed, unsigned and bool instructions."""

    def __init__(self, e: Emitter, lanes: int) -> None:
        self.e, self.b, self.lanes = e, e.b, lanes

    def values(self, outputs: Sequence[Expr], inputs: dict[int, Any], scalars: Sequence[Any],
               words: dict[int, Any] | None = None, tables: Mapping[Expr, Table] = NOTHING,
               given: Mapping[Expr, Any] = NOTHING) -> list[Any]:
        """The outputs' values; `inputs` holds a vector per variable, `scalars` one per coefficient, `words` one per
        stream; `given` are known already. A shared subexpression is computed once."""
        known: dict[Expr, Any] = {}
        sources = {**{node: () for node in given}, **{node: (source,) for node, (source, _) in tables.items()}}
        for node in postorder(outputs, sources):
            if node in given:
                known[node] = given[node]
            elif node in tables:
                source, address = tables[node]
                known[node] = look_up(self.e, address, known[source], self.kind(node.dtype))
            elif node.op == "var":
                known[node] = inputs[int(node.value or 0)]
            elif node.op == "coefficient":
                known[node] = scalars[int(node.value or 0)]
            elif node.op == "draw":
                assert words is not None, "nobody drew"
                known[node] = words[int(node.value or 0)]
            elif node.op == "const":
                known[node] = self.constant(node.dtype, node.value or 0)
            else:
                value = _EMITTERS[node.op](self, node, *[known[a] for a in node.args])
                if node.dtype in HALVES:
                    value = unpacked(self.e, packed(self.e, value, node.dtype), node.dtype)
                known[node] = value
        return [known[o] for o in outputs]

    def kind(self, dtype: str) -> ir.VectorType:
        return ir.VectorType(_held(dtype), self.lanes)

    def constant(self, dtype: str, number: float) -> Any:
        return ir.Constant(self.kind(dtype), [number if "float" in dtype else int(number)] * self.lanes)

    def compare(self, relation: str, dtype: str, x: Any, y: Any) -> Any:
        if "float" in dtype:
            return (self.b.fcmp_unordered if relation == "!=" else self.b.fcmp_ordered)(relation, x, y)
        return (self.b.icmp_signed if dtype.startswith("int") else self.b.icmp_unsigned)(relation, x, y)


Rule = Callable[..., Any]


def _arithmetic(name: str) -> Rule:
    """add, sub, mul: an LLVM instruction with an integer and a float form."""
    def rule(t: Translator, node: Expr, x: Any, y: Any) -> Any:
        return getattr(t.b, ("f" if node.is_float else "") + name)(x, y)
    return rule


def _bitwise(name: str) -> Rule:
    return lambda t, _node, x, y: getattr(t.b, name)(x, y)


def _comparison(relation: str) -> Rule:
    return lambda t, node, x, y: t.compare(relation, node.args[0].dtype, x, y)


def _intrinsic(name: str) -> Rule:
    """A rounding or root that LLVM has; integers are unchanged by floor, ceil and round."""
    return lambda t, node, x: t.e.unary(name, x) if node.is_float else x


def _library(function: Callable[..., Any]) -> Rule:
    return lambda t, _node, *args: function(t.e, *args)


def _div(t: Translator, node: Expr, x: Any, y: Any) -> Any:
    """Integers: 0 where the divisor is 0, and the least value by -1 wraps; the hardware would trap on both."""
    if node.is_float:
        return t.b.fdiv(x, y)
    zero, one = t.constant(node.dtype, 0), t.constant(node.dtype, 1)
    empty = t.b.icmp_signed("==", y, zero)
    if not node.dtype.startswith("int"):
        return t.b.select(empty, zero, t.b.udiv(x, t.b.select(empty, one, y)))
    reverse = t.b.icmp_signed("==", y, t.constant(node.dtype, -1))
    quotient = t.b.sdiv(x, t.b.select(t.b.or_(empty, reverse), one, y))
    return t.b.select(empty, zero, t.b.select(reverse, t.b.neg(x), quotient))


def _shift(left: bool) -> Rule:
    """LLVM leaves open what a shift by all bits or more gives; a negative number of places is a large one unsigned."""
    def rule(t: Translator, node: Expr, x: Any, y: Any) -> Any:
        bits, signed = 8 * size_of(node.dtype), node.dtype.startswith("int")
        beyond = t.b.icmp_unsigned(">=", y, t.constant(node.dtype, bits))
        if not left and signed:
            return t.b.ashr(x, t.b.select(beyond, t.constant(node.dtype, bits - 1), y))
        zero = t.constant(node.dtype, 0)
        return t.b.select(beyond, zero, (t.b.shl if left else t.b.lshr)(x, t.b.select(beyond, zero, y)))
    return rule


def _neg(t: Translator, node: Expr, x: Any) -> Any:
    return t.b.fneg(x) if node.is_float else t.b.neg(x)


def _abs(t: Translator, node: Expr, x: Any) -> Any:
    if node.is_float:
        return t.e.unary("fabs", x)
    return t.b.select(t.compare("<", node.dtype, x, t.constant(node.dtype, 0)), t.b.neg(x), x)


def _sign(t: Translator, node: Expr, x: Any) -> Any:
    """x itself where it is 0 or NaN."""
    zero = t.constant(node.dtype, 0)
    positive = t.b.select(t.compare(">", node.dtype, x, zero), t.constant(node.dtype, 1), x)
    return t.b.select(t.compare("<", node.dtype, x, zero), t.constant(node.dtype, -1), positive)


def _extreme(relation: str) -> Rule:
    """maximum (x unless x < y) and minimum (x unless x > y); NaN of x passes by the comparison, NaN of y by a second
    one, unless y is a number: coefficients are never NaN."""
    def rule(t: Translator, node: Expr, x: Any, y: Any) -> Any:
        chosen = t.b.select(t.compare(relation, node.dtype, x, y), y, x)
        other = node.args[1]
        if not node.is_float or other.op == "coefficient" or (other.op == "const" and not math.isnan(other.value or 0)):
            return chosen
        return t.b.select(t.b.fcmp_unordered("uno", y, y), y, chosen)
    return rule


def _pow(t: Translator, node: Expr, x: Any, y: Any) -> Any:
    """Integers by squaring; beyond 63 only the parity of the exponent matters (0 and ±1; all else has overflowed)."""
    if node.is_float:
        return mathlib.pow_(t.e, x, y)

    def k(number: int) -> Any:
        return t.constant(node.dtype, number)

    odd = t.b.and_(y, k(1))
    large = t.compare(">", node.dtype, y, k(63))
    exponent, square, power = t.b.select(large, t.b.or_(k(62), odd), y), x, k(1)
    for bit in range(6):
        chosen = t.b.icmp_unsigned("!=", t.b.and_(exponent, k(1 << bit)), k(0))
        power = t.b.select(chosen, t.b.mul(power, square), power)
        square = t.b.mul(square, square)
    if not node.dtype.startswith("int"):
        return power
    minus = t.b.select(t.b.icmp_unsigned("!=", odd, k(0)), k(-1), k(1))
    inverse = t.b.select(t.b.icmp_signed("==", x, k(-1)), minus, t.b.select(t.b.icmp_signed("==", x, k(1)), k(1), k(0)))
    return t.b.select(t.b.icmp_signed("<", y, k(0)), inverse, power)


def _fmod(t: Translator, node: Expr, x: Any, y: Any) -> Any:
    if node.is_float:
        return mathlib.fmod(t.e, x, y)
    return t.b.sub(x, t.b.mul(_div(t, node, x, y), y))


def _cast(t: Translator, node: Expr, x: Any) -> Any:
    source, target = node.args[0].dtype, node.dtype
    if source in NARROW:
        source, x = narrow.BYTES.get(source, "float32"), narrow.decode(t.e, source, x)
    if target in NARROW:
        short = source == "float32" or size_of(source) <= 2
        through = "int32" if target in narrow.INTEGERS else "float32" if short else "float64"
        if target not in narrow.INTEGERS or "float" in source:
            source, x = through, _convert(t, source, through, x)
        elif source == "bool":
            source, x = "uint8", _convert(t, source, "uint8", x)
    return narrow.encode(t.e, target, x, node.op) if target in NARROW else _convert(t, source, target, x)


def _convert(t: Translator, source: str, target: str, x: Any) -> Any:
    """Numbers of one type as another, none of them narrow."""
    kind = t.kind(target)
    if source == target:
        return x
    if target == "bool":
        return t.compare("!=", source, x, t.constant(source, 0))
    if "float" in source and "float" in target:
        wider, narrower = kind.element == ir.DoubleType(), x.type.element == ir.DoubleType()
        return x if wider == narrower else t.b.fpext(x, kind) if wider else t.b.fptrunc(x, kind)
    if "float" in source:
        if size_of(target) < 4 or target == "int32":
            return _saturated(t, target, x)
        name = f"llvm.fpto{'s' if target.startswith('int') else 'u'}i.sat.v{t.lanes}i{8 * size_of(target)}"
        return t.e.call(f"{name}.v{t.lanes}f{32 if x.type.element == ir.FloatType() else 64}", kind, [x])
    signed = source.startswith("int")
    if "float" in target:
        return (t.b.sitofp if signed else t.b.uitofp)(x, kind)
    if x.type.element.width >= kind.element.width:
        return t.b.trunc(x, kind) if x.type != kind else x
    return (t.b.sext if signed else t.b.zext)(x, kind)


def _saturated(t: Translator, target: str, x: Any) -> Any:
    """Floats as integers of at most 32 bits: towards zero, saturated, NaN as 0. What `llvm.fptosi.sat` says, which LLVM
    does lane by lane."""
    bits, number = 8 * size_of(target), lambda value: ir.Constant(x.type, [value] * t.lanes)
    least, most = (-2.0 ** (bits - 1), 2.0 ** (bits - 1) - 1) if target.startswith("int") else (0.0, 2.0 ** bits - 1)
    x = t.b.select(t.b.fcmp_ordered("ord", x, x), x, number(0.0))
    x = t.b.select(t.b.fcmp_ordered(">", x, number(least)), x, number(least))
    words = ir.VectorType(INT32, t.lanes)
    if target == "int32":                                       # its largest number is none of float32
        over = t.b.fcmp_ordered(">=", x, number(2.0 ** 31))
        found = t.b.fptosi(t.b.select(over, number(0.0), x), words)
        return t.b.select(over, ir.Constant(words, [2 ** 31 - 1] * t.lanes), found)
    found = t.b.fptosi(t.b.select(t.b.fcmp_ordered("<", x, number(most)), x, number(most)), words)
    return t.b.trunc(found, t.kind(target))


_EMITTERS: dict[str, Rule] = {
    "add": _arithmetic("add"), "sub": _arithmetic("sub"), "mul": _arithmetic("mul"), "div": _div, "neg": _neg,
    "abs": _abs, "sign": _sign, "sqrt": _intrinsic("sqrt"),
    "floor": _intrinsic("floor"), "ceil": _intrinsic("ceil"), "round": _intrinsic("rint"),
    "exp": _library(mathlib.exp), "expm1": _library(mathlib.expm1),
    "log": _library(mathlib.log), "log1p": _library(mathlib.log1p),
    "tanh": _library(mathlib.tanh), "sigmoid": _library(mathlib.sigmoid), "erf": _library(mathlib.erf),
    "gelu": _library(mathlib.gelu),
    "sin": _library(mathlib.sin), "cos": _library(mathlib.cos), "pow": _pow, "fmod": _fmod,
    **{name: _library(function) for name, function in mathlib.RARE.items()},
    "maximum": _extreme("<"), "minimum": _extreme(">"),
    "lt": _comparison("<"), "le": _comparison("<="), "gt": _comparison(">"), "ge": _comparison(">="),
    "eq": _comparison("=="), "ne": _comparison("!="),
    "isnan": lambda t, _node, x: t.b.fcmp_unordered("uno", x, x),
    "and": _bitwise("and_"), "or": _bitwise("or_"), "xor": _bitwise("xor"),
    "not": lambda t, _node, x: t.b.not_(x),
    "shl": _shift(True), "shr": _shift(False),
    "where": lambda t, _node, condition, x, y: t.b.select(condition, x, y),
    **{name: _cast for name in narrow.MODES.values()},
    "stochastic": lambda t, node, x, words: rounding.emit_stochastic(t.e, node.dtype, x, words),
    "away": lambda t, node, x: rounding.emit_away(t.e, node.dtype, x),
    "remainder": lambda t, node, x, rounded: rounding.emit_remainder(t.e, node.args[1].dtype, x, rounded),
    "joined": lambda t, node, rounded, rest: rounding.emit_joined(t.e, node.args[0].dtype, rounded, rest),
}
