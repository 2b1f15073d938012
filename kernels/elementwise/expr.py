"""Scalar expressions traced from Python: what an elementwise operator computes for one element.

    x, y = Var(0, "float32"), Var(1, "float32")
    e = maximum(x, 0) * tanh(y)

Equal expressions are one object (they are interned when made), so `is`, `==` and hashing are by value and a common
subexpression is computed once. Every operation is rounded to its dtype: an expression composed of two
(`substitute`) gives the very bits that computing one after the other gives. Element types are NumPy's names.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from ..dtypes import FLOATS, HALVES, NARROW
from . import narrow, rounding

Number = bool | int | float


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True, repr=False)
class Expr:
    """A node: `op` is "var", "const", "draw", "coefficient" (`coefficients`) or a key of OPERATIONS; `value` is a
    variable's or a coefficient's index, a constant's number or the stream drawn from."""

    op: str
    args: tuple[Expr, ...]
    dtype: str
    value: Number | None = None

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def __add__(self, other: Operand) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return _binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return _binary("div", other, self)

    def __neg__(self) -> Expr:
        return _unary("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return _compare("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return _compare("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return _compare("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return _compare("ge", self, other)

    def __and__(self, other: Operand) -> Expr:
        return _binary("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return _binary("or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        return _binary("xor", self, other)

    def __invert__(self) -> Expr:
        return _unary("not", self)

    def __bool__(self) -> bool:
        raise TypeError("An Expr has no truth value; use where(condition, a, b).")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies are the same object."""
        return make, (self.op, self.args, self.dtype, self.value)

    def __repr__(self) -> str:
        return key(self)

    content = __repr__


Operand = Expr | Number
_known: dict[tuple[Any, ...], Expr] = {}


def make(op: str, args: tuple[Expr, ...], dtype: str, value: Number | None = None) -> Expr:
    """The one node with these fields."""
    at = (op, args, dtype, None if value is None else literal(value))
    node = _known.get(at)
    return node if node is not None else _known.setdefault(at, Expr(op, args, dtype, value))


def literal(value: Number) -> str:
    """A number as text, exactly: -0.0, infinities and NaN keep their meaning."""
    return value.hex() if isinstance(value, float) else str(value)


def Var(index: int, dtype: str) -> Expr:
    """Input `index`."""
    return make("var", (), dtype, index)


def Const(number: Number, dtype: str) -> Expr:
    """A number rounded to `dtype`."""
    with np.errstate(over="ignore"):
        return make("const", (), dtype, np.dtype(dtype).type(number).item())


# ---- construction -------------------------------------------------------------------------------------------------------

def _unify(*operands: Operand) -> tuple[Expr, ...]:
    """Operands of one dtype; Python numbers take the dtype of the expressions beside them."""
    dtypes = {x.dtype for x in operands if isinstance(x, Expr)}
    assert len(dtypes) == 1, f"operands of several or no element types: {operands}"
    dtype = dtypes.pop()
    return tuple(x if isinstance(x, Expr) else Const(x, dtype) for x in operands)


def _unary(op: str, x: Expr) -> Expr:
    return make(op, (x,), x.dtype)


def _binary(op: str, a: Operand, b: Operand) -> Expr:
    args = _unify(a, b)
    return make(op, args, args[0].dtype)


def _compare(op: str, a: Operand, b: Operand) -> Expr:
    return make(op, _unify(a, b), "bool")


def _function(op: str) -> Callable[[Expr], Expr]:
    def apply(x: Expr) -> Expr:
        return _unary(op, x)
    apply.__name__ = apply.__qualname__ = op
    return apply


abs_, sign, sqrt = _function("abs"), _function("sign"), _function("sqrt")
exp, expm1, log, log1p = _function("exp"), _function("expm1"), _function("log"), _function("log1p")
tanh, sigmoid, erf, sin, cos = _function("tanh"), _function("sigmoid"), _function("erf"), _function("sin"), _function("cos")
gelu = _function("gelu")
"""x times the normal distribution function at x."""
tan, asin, acos, atan = _function("tan"), _function("asin"), _function("acos"), _function("atan")
sinh, cosh = _function("sinh"), _function("cosh")
asinh, acosh, atanh = _function("asinh"), _function("acosh"), _function("atanh")
floor, ceil = _function("floor"), _function("ceil")
round_ = _function("round")
"""Nearest integer, ties to even."""


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger; NaN where either is NaN."""
    return _binary("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller; NaN where either is NaN."""
    return _binary("minimum", a, b)


def pow_(a: Operand, b: Operand) -> Expr:
    """C's pow for floats; integers wrap, and a negative exponent truncates (2 ** -1 is 0)."""
    return _binary("pow", a, b)


def fmod(a: Operand, b: Operand) -> Expr:
    """The remainder of the division towards zero, with the dividend's sign; integers by 0 give the dividend."""
    return _binary("fmod", a, b)


def shift_left(a: Operand, b: Operand) -> Expr:
    """An integer's bits moved up by b places; 0 where b is negative or no place is left."""
    return _binary("shl", a, b)


def shift_right(a: Operand, b: Operand) -> Expr:
    """An integer's bits moved down by b places, signed ones filled up by their sign, which is all that is left where b is negative or too large."""
    return _binary("shr", a, b)


def equal(a: Operand, b: Operand) -> Expr:
    return _compare("eq", a, b)


def not_equal(a: Operand, b: Operand) -> Expr:
    return _compare("ne", a, b)


def isnan(x: Expr) -> Expr:
    return make("isnan", (x,), "bool")


def isinf(x: Expr) -> Expr:
    return equal(abs_(x), math.inf)


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """`a` where the condition holds, else `b`; the side not taken has no influence, not even by NaN."""
    assert condition.dtype == "bool", condition.dtype
    args = _unify(a, b)
    return make("where", (condition, *args), args[0].dtype)


def cast(x: Expr, dtype: str, saturate: bool = True, round_mode: str = "up") -> Expr:
    """`x` as `dtype`. Float to integer truncates, saturates out of range and makes NaN 0; integers wrap; bool is `x != 0`.

    `saturate` and `round_mode` are for narrow floats (`narrow`).
    """
    how = narrow.MODES[saturate, round_mode] if dtype in NARROW else "cast"
    return x if x.dtype == dtype else make(how, (x,), dtype)


def draw(stream: int) -> Expr:
    """A random uint32 of the element's own, from a stream: what computes the expression says by which seed and which count (`Position`)."""
    return make("draw", (), "uint32", stream)


def stochastic(x: Expr, dtype: str, stream: int) -> Expr:
    """The float32 `x` as a 16-bit float, rounded up or down at random so that the mean is x (`rounding`)."""
    assert x.dtype == "float32", x.dtype
    assert dtype in HALVES, dtype
    return make("stochastic", (x, draw(stream)), dtype)


def away(x: Expr) -> Expr:
    """The float32 `x` as the nearest bfloat16, ties away from zero."""
    assert x.dtype == "float32", x.dtype
    return make("away", (x,), "bfloat16")


def remainder(x: Expr, rounded: Expr) -> Expr:
    """What the 16-bit `rounded` lacks of the float32 `x`, as an int16 (`rounding`)."""
    assert x.dtype == "float32", x.dtype
    assert rounded.dtype in HALVES, rounded.dtype
    return make("remainder", (x, rounded), "int16")


def joined(rounded: Expr, rest: Expr) -> Expr:
    """The float32 number that a 16-bit one and its remainder stand for."""
    assert rounded.dtype in HALVES, rounded.dtype
    assert rest.dtype == "int16", rest.dtype
    return make("joined", (rounded, rest), "float32")


# ---- the operations: evaluation, cost, derivative -----------------------------------------------------------------------

Partial = Expr | None
"""A partial derivative; None where it is zero everywhere."""


@dataclass(frozen=True)
class Operation:
    """One row of OPERATIONS.

    evaluate: NumPy arrays to an array of the node's dtype. flops: rough count on vector hardware.
    partials: (node, *args) to the derivative by each argument.
    """

    evaluate: Callable[..., Any]
    flops: float = 1.0
    partials: Callable[..., tuple[Partial, ...]] = lambda node, *args: (None,) * len(args)


def _precise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluate in float64 and round, so that the reference is right to the last bit but for rare ties."""
    def evaluate(*arrays: np.ndarray) -> Any:
        dtype = arrays[0].dtype
        return np.asarray(function(*[a.astype(np.float64) for a in arrays])).astype(dtype)
    return evaluate


def _divide(a: np.ndarray, b: np.ndarray) -> Any:
    """Floats: IEEE. Integers: towards zero, and 0 where the divisor is 0."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return quotient + inexact.astype(a.dtype)


def _remainder(a: np.ndarray, b: np.ndarray) -> Any:
    return np.fmod(a, b) if a.dtype.kind == "f" else a - _divide(a, b) * b


def _power(a: np.ndarray, b: np.ndarray) -> Any:
    if a.dtype.kind == "f":
        a, b = (np.array(x) for x in np.broadcast_arrays(a, b))       # for a lone exponent NumPy has shortcuts of other values
        return _precise(np.power)(a, b)
    whole = np.power(a, np.maximum(b, 0))
    inverse = np.where(a == 1, 1, np.where(a + 1 == 0, 1 - 2 * (b & 1), 0))
    return np.where(b < 0, inverse, whole).astype(a.dtype)


def _cast(x: np.ndarray, dtype: np.dtype, how: str = "cast") -> Any:
    if x.dtype.name in NARROW:
        return _cast(narrow.cast_from(x), dtype, how)
    if dtype.name in narrow.INTEGERS:
        return narrow.cast_to(_cast(x, np.dtype("int32")) if x.dtype.kind == "f" else x, dtype, how)
    if dtype.name in NARROW:
        return narrow.cast_to(x.astype("float32" if x.dtype.itemsize <= 2 or x.dtype == np.float32 else "float64"), dtype, how)
    if x.dtype.kind != "f" or dtype.kind not in "iu":
        return x.astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    inside = (x >= x.dtype.type(low)) & (x < x.dtype.type(2.0) ** (np.iinfo(dtype).bits - (dtype.kind == "i")))
    inside |= (x > -1) & (x < 0)
    outside = np.where(np.isnan(x), 0, np.where(x < 0, low, high)).astype(dtype)
    return np.where(inside, np.where(inside, x, 0).astype(dtype), outside)


def _shift(x: np.ndarray, places: np.ndarray, left: bool) -> Any:
    bits = 8 * x.itemsize
    inside = (places >= 0) & (places < bits)
    if left:
        return np.where(inside, np.left_shift(x, np.where(inside, places, 0).astype(x.dtype)), 0).astype(x.dtype)
    filled = np.right_shift(x, np.where(inside, places, bits - 1).astype(x.dtype))
    return filled if x.dtype.kind == "i" else np.where(inside, filled, 0).astype(x.dtype)


def _sigmoid(x: np.ndarray) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(np.isnan(x), x, np.where(x < 0, e, 1.0) / (1.0 + e))


def _gelu(x: np.ndarray) -> Any:
    """max(x, 0) - a Phi(-a) with a = |x|, nothing being left beyond 40; -0 stays."""
    size = np.minimum(np.abs(x), 40.0)
    return np.where(x >= 0, x, -0.0) - size * 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(size * math.sqrt(0.5))


def _by_winner(beaten: Callable[[Expr, Expr], Expr]) -> Callable[..., tuple[Partial, ...]]:
    """Partials of maximum and minimum: all to the winner, half to each on a tie."""
    def partials(node: Expr, a: Expr, b: Expr) -> tuple[Partial, ...]:
        one, half, zero = (Const(c, node.dtype) for c in (1, 0.5, 0))
        tie = equal(a, b)
        return where(beaten(a, b), zero, where(tie, half, one)), where(beaten(b, a), zero, where(tie, half, one))
    return partials


def _pow_partials(node: Expr, a: Expr, b: Expr) -> tuple[Partial, ...]:
    """d/da = b a^(b-1), 0 where b is 0; d/db = a^b log a, 0 where a is 0 and b >= 0 (torch's conventions)."""
    if b.op == "const":
        assert b.value is not None
        if b.value == 0:
            return None, None
        exponent = Const(b.value - 1, b.dtype)
        slope = b if exponent.value == 0 else b * (a if exponent.value == 1 else pow_(a, exponent))
    else:
        slope = where(equal(b, 0), 0, b * pow_(a, b - 1))
    return slope, where(equal(a, 0) & (b >= 0), 0, node * log(a))


OPERATIONS: dict[str, Operation] = {
    "add": Operation(np.add, 1, lambda y, a, b: (Const(1, y.dtype), Const(1, y.dtype))),
    "sub": Operation(np.subtract, 1, lambda y, a, b: (Const(1, y.dtype), Const(-1, y.dtype))),
    "mul": Operation(np.multiply, 1, lambda y, a, b: (b, a)),
    "div": Operation(_divide, 4, lambda y, a, b: (1 / b, -(y / b))),
    "neg": Operation(np.negative, 1, lambda y, a: (Const(-1, y.dtype),)),
    "abs": Operation(np.abs, 1, lambda y, a: (sign(a),)),
    "sign": Operation(np.sign, 2),
    "sqrt": Operation(np.sqrt, 4, lambda y, a: (0.5 / y,)),
    "exp": Operation(_precise(np.exp), 12, lambda y, a: (y,)),
    "expm1": Operation(_precise(np.expm1), 14, lambda y, a: (y + 1,)),
    "log": Operation(_precise(np.log), 18, lambda y, a: (1 / a,)),
    "log1p": Operation(_precise(np.log1p), 20, lambda y, a: (1 / (a + 1),)),
    "tanh": Operation(_precise(np.tanh), 20, lambda y, a: (1 - y * y,)),
    "sigmoid": Operation(_precise(_sigmoid), 18, lambda y, a: (y * (1 - y),)),
    "erf": Operation(_precise(np.vectorize(math.erf, otypes=[np.float64])), 28,
                     lambda y, a: (2 / math.sqrt(math.pi) * exp(-(a * a)),)),
    "gelu": Operation(_precise(_gelu), 32, lambda y, a: (
        0.5 * (1 + erf(a * math.sqrt(0.5))) + a * (exp(-0.5 * (a * a)) * (1 / math.sqrt(2 * math.pi))),)),
    "sin": Operation(_precise(np.sin), 30, lambda y, a: (cos(a),)),
    "cos": Operation(_precise(np.cos), 30, lambda y, a: (-sin(a),)),
    "tan": Operation(_precise(np.tan), 600, lambda y, a: (y * y + 1,)),
    "asin": Operation(_precise(np.arcsin), 600, lambda y, a: (1 / sqrt(1 - a * a),)),
    "acos": Operation(_precise(np.arccos), 600, lambda y, a: (-1 / sqrt(1 - a * a),)),
    "atan": Operation(_precise(np.arctan), 600, lambda y, a: (1 / (a * a + 1),)),
    "sinh": Operation(_precise(np.sinh), 600, lambda y, a: (cosh(a),)),
    "cosh": Operation(_precise(np.cosh), 600, lambda y, a: (sinh(a),)),
    "asinh": Operation(_precise(np.arcsinh), 600, lambda y, a: (1 / sqrt(a * a + 1),)),
    "acosh": Operation(_precise(np.arccosh), 600, lambda y, a: (1 / sqrt((a - 1) * (a + 1)),)),
    "atanh": Operation(_precise(np.arctanh), 600, lambda y, a: (1 / (1 - a * a),)),
    "fmod": Operation(_remainder, 600),
    "floor": Operation(np.floor), "ceil": Operation(np.ceil), "round": Operation(np.rint),
    "maximum": Operation(np.maximum, 2, _by_winner(lambda a, b: a < b)),
    "minimum": Operation(np.minimum, 2, _by_winner(lambda a, b: a > b)),
    "pow": Operation(_power, 60, _pow_partials),
    "lt": Operation(np.less), "le": Operation(np.less_equal), "gt": Operation(np.greater), "ge": Operation(np.greater_equal),
    "eq": Operation(np.equal), "ne": Operation(np.not_equal), "isnan": Operation(np.isnan),
    "and": Operation(np.bitwise_and), "or": Operation(np.bitwise_or), "xor": Operation(np.bitwise_xor),
    "not": Operation(np.invert),
    "shl": Operation(lambda x, y: _shift(x, y, True), 2), "shr": Operation(lambda x, y: _shift(x, y, False), 2),
    "where": Operation(np.where, 1, lambda y, c, a, b: (
        None, where(c, Const(1, y.dtype), Const(0, y.dtype)), where(c, Const(0, y.dtype), Const(1, y.dtype)))),
    **{name: Operation(_cast) for name in narrow.MODES.values()},
    "stochastic": Operation(rounding.stochastic, 20), "away": Operation(rounding.away, 3),
    "remainder": Operation(rounding.remainder, 6), "joined": Operation(rounding.joined, 4),
}

EXACT = frozenset(("neg", "abs", "sign", "floor", "ceil", "round", "maximum", "minimum", "where"))
"""Operations on floats whose results are numbers of their operands' type, whatever that is: nothing is rounded."""


# ---- back ends ----------------------------------------------------------------------------------------------------------

def postorder(roots: Iterable[Expr], instead: Mapping[Expr, Sequence[Expr]] = MappingProxyType({})) -> list[Expr]:
    """Every node once, arguments before their users; `instead`: of some nodes, what counts as their arguments."""
    found: dict[Expr, None] = {}
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if node in found:
            continue
        args = instead.get(node, node.args) if instead else node.args
        if ready or not args:
            found[node] = None
        else:
            stack.append((node, True))
            stack += [(a, False) for a in reversed(args)]
    return list(found)


def variables(*roots: Expr) -> dict[int, Expr]:
    """The variables that occur, by index, in ascending order."""
    found = {int(n.value): n for n in postorder(roots) if n.op == "var" and n.value is not None}
    return dict(sorted(found.items()))


def key(*roots: Expr) -> str:
    """A text that names these expressions and nothing else; the same in every process."""
    number: dict[Expr, int] = {}
    words = []
    for node in postorder(roots):
        number[node] = len(number)
        if node.value is not None:
            words.append(f"{node.op} {literal(node.value)}:{node.dtype}")
        else:
            words.append(f"{node.op}({','.join(str(number[a]) for a in node.args)}):{node.dtype}")
    return "; ".join(words) + " -> " + ",".join(str(number[r]) for r in roots)


def draws(*roots: Expr) -> tuple[int, ...]:
    """The streams that are drawn from, in ascending order."""
    return tuple(sorted({int(n.value) for n in postorder(roots) if n.op == "draw" and n.value is not None}))


def evaluate(expr: Expr, arrays: Sequence[np.ndarray], words: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
    """The value over (broadcast) arrays, variable i being arrays[i] and words[s] what is drawn from stream s; the slow NumPy twin of the
    compiled code."""
    values: dict[Expr, Any] = {}
    with np.errstate(all="ignore"):
        for node in postorder([expr]):
            dtype = np.dtype(node.dtype)
            if node.op == "var":
                assert node.value is not None
                value = np.asarray(arrays[int(node.value)])
                assert value.dtype == dtype, f"variable {node.value} is {node.dtype}, the array is {value.dtype}"
            elif node.op == "const":
                value = np.array(node.value, dtype)
            elif node.op == "draw":
                assert words is not None, "nobody said what is drawn"
                value = words[int(node.value or 0)]
            elif node.op.startswith("cast"):
                value = _cast(_plain(values[node.args[0]]), dtype, node.op)
            elif node.op in ("stochastic", "away"):
                value = OPERATIONS[node.op].evaluate(*[values[a] for a in node.args], dtype)
            elif node.op in ("remainder", "joined"):
                value = OPERATIONS[node.op].evaluate(*[values[a] for a in node.args])
            else:
                value = OPERATIONS[node.op].evaluate(*[_plain(values[a]) for a in node.args])
            values[node] = np.asarray(value, dtype)
    return values[expr]


def _plain(x: np.ndarray) -> np.ndarray:
    """bfloat16, which NumPy's own functions do not know, as float32."""
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def flops(*roots: Expr) -> float:
    """Operations for one element, functions such as exp counted as the arithmetic they are made of."""
    return sum(OPERATIONS[n.op].flops for n in postorder(roots) if n.op in OPERATIONS)


def substitute(expr: Expr, values: Mapping[int, Expr]) -> Expr:
    """`expr` with variables replaced; variables not named stay."""
    new: dict[Expr, Expr] = {}
    for node in postorder([expr]):
        if node.op == "var":
            assert node.value is not None
            new[node] = values.get(int(node.value), node)
            assert new[node].dtype == node.dtype, f"variable {node.value} is {node.dtype}, not {new[node].dtype}"
        else:
            new[node] = make(node.op, tuple(new[a] for a in node.args), node.dtype, node.value)
    return new[expr]


def certain(expr: Expr) -> Expr:
    """`expr` without chance: rounded to nearest, and infinite where rounding at random may make it so."""
    new: dict[Expr, Expr] = {}
    for node in postorder([expr]):
        if node.op == "stochastic":
            x = new[node.args[0]]
            new[node] = where(abs_(x) > float(ml_dtypes.finfo(node.dtype).max), Const(math.inf, node.dtype), cast(x, node.dtype))
        else:
            new[node] = make(node.op, tuple(new[a] for a in node.args), node.dtype, node.value)
    return new[expr]


def is_zero(expr: Expr) -> bool:
    """Whether it is the literal 0."""
    return expr.op == "const" and expr.value == 0


def _is_one(expr: Expr) -> bool:
    return expr.op == "const" and expr.value == 1


def times(a: Expr, b: Expr) -> Expr:
    """a * b for derivatives: literal 0, 1 and -1 vanish, also inside `where`, so that 0 * inf does not arise."""
    for x, y in ((a, b), (b, a)):
        if is_zero(x) or _is_one(y):
            return x
    for x, y in ((a, b), (b, a)):
        if x.op == "const" and x.value == -1:
            return -y
        if x.op == "where" and any(c.op in ("const", "where") for c in x.args[1:]):
            condition, yes, no = x.args
            return where(condition, times(yes, y), times(no, y))
    return a * b


def plus(a: Expr, b: Expr) -> Expr:
    """a + b for derivatives: literal zeros vanish."""
    return b if is_zero(a) else a if is_zero(b) else a + b


def derivative(expr: Expr, index: int) -> Expr:
    """d expr / d variable `index`, simplified; the literal 0 where it does not depend on it.

    The result has expr's dtype. Kinks follow torch: abs'(0) = 0, ties of maximum and minimum share.
    """
    assert expr.is_float, expr.dtype
    found: dict[Expr, Expr] = {}
    for node in postorder([expr]):
        zero = Const(0, node.dtype)
        if node.op in ("var", "const"):
            found[node] = Const(1, node.dtype) if node.op == "var" and node.value == index else zero
        elif not node.is_float:
            found[node] = zero
        elif node.op == "cast":
            inner = found[node.args[0]]
            found[node] = cast(inner, node.dtype) if inner.value is None else Const(inner.value, node.dtype)
        elif all(is_zero(found[a]) for a in node.args):
            found[node] = zero
        else:
            total = zero
            for argument, partial in zip(node.args, OPERATIONS[node.op].partials(node, *node.args), strict=True):
                if partial is not None and not is_zero(found[argument]):
                    total = plus(total, times(partial, found[argument]))
            found[node] = total
    return found[expr]
