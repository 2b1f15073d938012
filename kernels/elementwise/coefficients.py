"""Coefficients: constants leave expressions where a leaf is made, so that a new slope, scale or bound is no new kernel.

    lift((x * 0.1 + 3.0,))          # expressions (x * c0 + c1,), values (0.1, 3.0)

A coefficient is a scalar argument: its value is a word of the argument block. Equal constants are coefficients of their
own, so that models in which other numbers happen to be equal share a kernel. What shapes code stays a constant
(`_is_free`). No bit depends on which is which.
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from ..dtypes import CODES, HALVES, NARROW
from .expr import Const, Expr, Number, evaluate, make, postorder

BAKED = (0, 1, -1, 0.5, 2)
"""Numbers with which arithmetic is simpler than with others."""
STRUCTURAL = ("pow", "fmod", "shl", "shr", "and", "or", "xor")
"""Operations of which code is made for the very number."""


@dataclass(frozen=True)
class Lifted:
    """Expressions without the constants that became coefficients, and the values of these, by index."""

    exprs: tuple[Expr, ...]
    values: tuple[Number, ...]


@functools.cache
def lift(exprs: tuple[Expr, ...]) -> Lifted:
    """`exprs` with their free constants as coefficients, each use one of its own, in the order of `postorder`."""
    values: list[Number] = []

    def coefficient(constant: Expr) -> Expr:
        assert constant.value is not None
        values.append(constant.value)
        return make("coefficient", (), constant.dtype, len(values) - 1)

    new: dict[Expr, Expr] = {}
    fixed: set[Expr] = set()                               # made of constants alone: LLVM computes them
    for node in postorder(exprs):
        found = _simplified(make(node.op, tuple(new[a] for a in node.args), node.dtype, node.value))
        if found.op == "const" or (found.args and fixed.issuperset(found.args)):
            fixed.add(found)
        elif found.args:
            args = tuple(coefficient(a) if _is_free(found, i) else a for i, a in enumerate(found.args))
            found = make(found.op, args, found.dtype, found.value)
        new[node] = found
    roots = tuple(coefficient(new[e]) if _is_number(new[e]) else new[e] for e in exprs)
    return Lifted(roots, tuple(values))


def coefficients(*exprs: Expr) -> tuple[str, ...]:
    """The dtypes of the coefficients of lifted expressions, by index."""
    found = {int(n.value): n.dtype for n in postorder(exprs) if n.op == "coefficient" and n.value is not None}
    return tuple(found[i] for i in range(len(found)))


def letters(*exprs: Expr) -> list[str]:
    """The coefficients as a leaf's signature writes them: 16-bit floats are float32, as registers hold them."""
    return [CODES["float32" if dtype in HALVES else dtype] for dtype in coefficients(*exprs)]


def _simplified(node: Expr) -> Expr:
    """A node as LLVM would do it that knows the constant: a constant's cast is a constant, where that is exact, and a
    quotient by a power of two a product, which always is."""
    if node.op.startswith("cast") and node.args[0].op == "const" and not {node.dtype, node.args[0].dtype} & {*NARROW}:
        number = evaluate(node, ()).item()
        return Const(number, node.dtype) if number == node.args[0].value else node
    if node.op == "div" and node.is_float and node.args[1].op == "const":
        divisor = float(node.args[1].value or 0)
        if abs(math.frexp(divisor)[0]) == 0.5:
            reciprocal = Const(1 / divisor, node.dtype)
            if float(reciprocal.value or 0) * divisor == 1:
                return make("mul", (node.args[0], reciprocal), node.dtype)
    return node


def _is_number(x: Expr) -> bool:
    """Whether it is a constant, and a number like any other. NaN and infinities are not: so no coefficient is NaN."""
    if x.op != "const" or x.dtype == "bool" or x.dtype in NARROW:
        return False
    return x.value is not None and math.isfinite(x.value) and x.value not in BAKED


def _is_free(node: Expr, i: int) -> bool:
    """Whether argument `i` is a constant that does not shape the node's code. Exponents, shifts, masks and integer
    divisors do."""
    constant = node.args[i]
    if not _is_number(constant):
        return False
    if node.op in STRUCTURAL:
        return node.op == "pow" and i == 0 and node.is_float
    if constant.is_float:
        return True
    number = abs(int(constant.value or 0))
    return not (node.op == "div" and i == 1) and not (node.op == "mul" and number & (number - 1) == 0)
