"""Scalar expressions (`kernels/elementwise/expr.py`) as plain data: a list of operations in order, each with the places
of its arguments.

An expression is compiled, so what is read is checked operation by operation: how many arguments it has, of which
element types, and what it gives.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph import FLOATS, NARROW
from ..kernels.elementwise import narrow
from ..kernels.elementwise.expr import OPERATIONS, Const, Expr, literal, make, postorder
from ..memory.types import CODES
from .fields import Fault, read, shown, written

WHOLE = tuple(name for name in CODES if name not in (*FLOATS, *NARROW, "bool"))
"""Names of the integers."""
NUMBERS = (*FLOATS, *WHOLE)
MOST_VARIABLES = 1 << 16


@dataclass(frozen=True)
class Signature:
    """What an operation takes and gives: so many arguments of one element type, which is one of `accepts`. gives: that
    of the result; empty: theirs."""

    count: int
    accepts: Sequence[str]
    gives: str = ""


def _signatures() -> dict[str, Signature]:
    found = dict.fromkeys(("neg", "abs", "sign", "floor", "ceil", "round"), Signature(1, NUMBERS))
    functions = "sqrt exp expm1 log log1p tanh sigmoid erf gelu sin cos tan asin acos atan sinh cosh asinh acosh atanh"
    found |= dict.fromkeys(functions.split(), Signature(1, FLOATS))
    found |= dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "pow", "fmod"), Signature(2, NUMBERS))
    found |= dict.fromkeys(("shl", "shr"), Signature(2, WHOLE))
    found |= dict.fromkeys(("and", "or", "xor"), Signature(2, (*WHOLE, "bool")))
    found |= dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), Signature(2, (*NUMBERS, "bool"), "bool"))
    return found | {"not": Signature(1, (*WHOLE, "bool")), "isnan": Signature(1, FLOATS, "bool"),
                    "away": Signature(1, ("float32",), "bfloat16")}


SIGNATURES = _signatures()
"""Of the operations whose arguments are all of one type; `_OTHERS` says it of the rest."""


def _takes_where(dtype: str, *args: str) -> bool:
    return len(args) == 3 and args[0] == "bool" and args[1] == args[2] == dtype and dtype not in NARROW


def _takes_cast(how: str) -> Callable[..., bool]:
    def takes(dtype: str, *args: str) -> bool:
        return len(args) == 1 and args[0] != dtype and (how == "cast" or dtype in NARROW)
    return takes


_OTHERS: dict[str, Callable[..., bool]] = {
    "where": _takes_where, **{how: _takes_cast(how) for how in narrow.MODES.values()}}
DRAWING = ("stochastic", "remainder", "joined")
"""Operations of the update's rounding, which operators declare themselves: they stand in no attribute."""


def to_data(e: Expr, at: str) -> list[list[Any]]:
    """[operation, element type, places of its arguments], or of "var" and "const" [name, element type, index or
    number]; the last is the result. Fault where a file cannot say it."""
    place: dict[Expr, int] = {}
    found: list[list[Any]] = []
    for node in postorder([e]):
        place[node] = len(place)
        if node.op in ("var", "const"):
            value = written(node.value, float, at) if type(node.value) is float else node.value
            found.append([node.op, node.dtype, value])
        elif _is_known(node.op):
            found.append([node.op, node.dtype, [place[a] for a in node.args]])
        else:
            raise Fault(at, f"computes {node.op}, which a file cannot say")
    return found


def from_data(data: Any, at: str) -> Expr:
    """The expression that `to_data` wrote; Fault where it is none."""
    if type(data) is not list or not data:
        raise Fault(at, "is no expression")
    found: list[Expr] = []
    for i, item in enumerate(data):
        where = f"{at}[{i}]"
        if type(item) is not list or len(item) != 3 or type(item[0]) is not str or type(item[1]) is not str:
            raise Fault(where, "is no operation")
        op, dtype, rest = item
        if dtype not in CODES:
            raise Fault(where, f"has element type {shown(dtype)}, which tileflow lacks")
        leaf = op in ("var", "const")
        found.append(_leaf(op, dtype, rest, where) if leaf else _operation(op, dtype, rest, found, where))
    return found[-1]


def _leaf(op: str, dtype: str, rest: Any, at: str) -> Expr:
    if op == "var":
        if type(rest) is not int or not 0 <= rest < MOST_VARIABLES:
            raise Fault(at, f"is variable {shown(rest)}")
        return make("var", (), dtype, rest)
    if dtype in NARROW:
        raise Fault(at, f"is a constant of {dtype}, which no expression has")
    value = read(rest, float, at) if dtype in FLOATS else rest
    if dtype not in FLOATS and type(value) is not (bool if dtype == "bool" else int):
        raise Fault(at, f"is {shown(value)}, which no {dtype} is")
    try:
        rounded = Const(value, dtype)
    except (OverflowError, ValueError):
        raise Fault(at, f"is {shown(value)}, which no {dtype} is") from None
    exact = float(value) if dtype in FLOATS else value
    if rounded.value is None or literal(rounded.value) != literal(exact):
        raise Fault(at, f"is {shown(value)}, which no {dtype} is")
    return rounded


def _operation(op: str, dtype: str, rest: Any, found: Sequence[Expr], at: str) -> Expr:
    if not _is_known(op):
        raise Fault(at, f"computes {shown(op)}, which is no operation")
    if type(rest) is not list or not all(type(n) is int and 0 <= n < len(found) for n in rest):
        raise Fault(at, "has arguments that are not there")
    args = tuple(found[n] for n in rest)
    given = [a.dtype for a in args]
    if op in SIGNATURES:
        takes = SIGNATURES[op]
        right = len(args) == takes.count and len({*given}) == 1 and given[0] in takes.accepts
        right = right and dtype == (takes.gives or given[0])
    else:
        right = _OTHERS[op](dtype, *given)
    if not right:
        raise Fault(at, f"is {op}({', '.join(given)}) to {dtype}, which there is not")
    return make(op, args, dtype)


def _is_known(op: str) -> bool:
    return op in OPERATIONS and op not in DRAWING
