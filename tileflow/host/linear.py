"""Whether a scalar expression is a multiple of its one variable: f(x) = c x, proved from the expression and not from samples of it.

Clip, Floor or Min agree with a multiple wherever a few numbers happen to be tried; what is not proved here is none.
"""
from __future__ import annotations

from collections.abc import Callable

from ..kernels.elementwise.expr import FLOATS, Expr, evaluate, postorder

_DIGITS = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
"""Bits of significand and exponent: a type holds all numbers of another one that has no more of either."""
_SPAN = {"float16": 2.0 ** 8}
_WIDE_SPAN = 2.0 ** 40
"""How large a multiple may be, and one over it how small: x * 1e38 / 1e38 is infinite for x = 4, so to a computer it is not x."""


def linear_factor(expr: Expr) -> float | None:
    """The finite c, not 0, for which `expr` is c x up to rounding, x being the only variable that occurs; None for anything else."""
    known: dict[Expr, float] = {}               # the multiples of x among the nodes; the others must not depend on it
    free: set[Expr] = set()
    for node in postorder([expr]):
        if node.op == "var":
            if node.value != 0:
                return None
            known[node] = 1.0
        elif all(a in free for a in node.args):
            free.add(node)
        else:
            factor = _RULES[node.op](node, known) if node.op in _RULES and node.dtype in FLOATS else None
            if factor is None or not is_moderate(factor, node.dtype):
                return None
            known[node] = factor
    return known.get(expr)


def is_moderate(factor: float, dtype: str) -> bool:
    """Whether numbers of this type are multiplied without leaving its range, but for those at its ends; 0 and what is not finite are not."""
    span = _SPAN.get(dtype, _WIDE_SPAN)
    return 1 / span <= abs(factor) <= span


def _number(e: Expr) -> float:
    """The value of an expression without variables, as the computer gets it."""
    return float(evaluate(e, ()))


def _sum(node: Expr, known: dict[Expr, float]) -> float | None:
    """Terms of one sign, so that nothing cancels; a number beside them must be 0."""
    a, b = node.args
    sign = -1.0 if node.op == "sub" else 1.0
    if a not in known or b not in known:
        factor, number = (known[a], b) if a in known else (sign * known[b], a)
        return factor if _number(number) == 0 else None
    first, second = known[a], sign * known[b]
    return first + second if first * second > 0 else None


def _product(node: Expr, known: dict[Expr, float]) -> float | None:
    a, b = node.args
    if a in known and b in known:
        return None
    return known[a] * _number(b) if a in known else known[b] * _number(a)


def _quotient(node: Expr, known: dict[Expr, float]) -> float | None:
    a, b = node.args
    divisor = 0.0 if b in known else _number(b)
    return known[a] / divisor if divisor else None


def _opposite(node: Expr, known: dict[Expr, float]) -> float | None:
    return -known[node.args[0]]


def _conversion(node: Expr, known: dict[Expr, float]) -> float | None:
    """A wider type loses nothing, and back to the variable's own type a multiple is rounded once."""
    inner = node.args[0]
    variable = next(e.dtype for e in postorder([inner]) if e.op == "var")
    held = all(x <= y for x, y in zip(_DIGITS[variable], _DIGITS[node.dtype], strict=True))
    return known.get(inner) if held else None


_RULES: dict[str, Callable[[Expr, dict[Expr, float]], float | None]] = {
    "add": _sum, "sub": _sum, "mul": _product, "div": _quotient, "neg": _opposite, "cast": _conversion}
