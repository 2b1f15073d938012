"""Tables: what follows from an 8-bit number alone is computed for all 256 of them, once for a call, and looked up.

Between quantised operators a file says each function in floats: of one 8-bit number, over a dozen operations and more.
The table's entries are made by the code that would have computed each element, so no bit changes.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..isa.vector import INT32, WORD, Emitter, word
from .expr import OPERATIONS, Expr, postorder

BYTES = ("int8", "uint8")
LEAST = 40.0
"""Operations that a table must save: looking up takes about as long as half of them."""
ENTRIES, MOST = 256, 4
"""Of a table, and tables at most."""
MANY = 2048
"""Elements from which tables pay."""


@dataclass(frozen=True)
class Tabulated:
    """Nodes that follow from the node `source`, an 8-bit number, and from what is the same for all elements."""

    source: Expr
    nodes: tuple[Expr, ...]


@functools.lru_cache(1024)
def tabulated(exprs: tuple[Expr, ...], fixed: frozenset[int]) -> Tabulated | None:
    """What of expressions is looked up; `fixed`: variables that are the same for all elements. None: nothing would save
    enough."""
    order = postorder(exprs)
    varying: set[Expr] = set()                             # what depends on the element
    for node in order:
        if (node.op == "var" and node.value not in fixed) or node.op == "draw" or not varying.isdisjoint(node.args):
            varying.add(node)
    best, saved = None, LEAST
    for source in (node for node in order if node.dtype in BYTES and node in varying):
        found = _following(exprs, order, varying, source)
        count = sum(OPERATIONS[node.op].flops for node in found)
        if count >= saved:
            best, saved = Tabulated(source, _tops(exprs, order, found)), count
    return best if best is None or (len(best.nodes) <= MOST and all(map(_fits, best.nodes))) else None


def _following(exprs: Sequence[Expr], order: Sequence[Expr], varying: set[Expr], source: Expr) -> set[Expr]:
    """The operations that depend on elements through `source` alone."""
    found: set[Expr] = set()
    for node in order:
        depends = [a for a in node.args if a in varying]
        if node is not source and depends and all(a == source or a in found for a in depends):
            found.add(node)
    return found


def _tops(exprs: Sequence[Expr], order: Sequence[Expr], found: set[Expr]) -> tuple[Expr, ...]:
    """Those that somebody else reads."""
    read = {*exprs, *(a for node in order if node not in found for a in node.args)}
    return tuple(node for node in order if node in found and node in read)


def _fits(node: Expr) -> bool:
    """Whether a word holds the value as a register does."""
    return node.dtype in ("float32", "int32", "uint32", "int16", "uint16", *BYTES)


def tabulated_for(size: int, exprs: tuple[Expr, ...], fixed: frozenset[int]) -> Tabulated | None:
    """What of them is looked up where they are computed for `size` elements."""
    return tabulated(exprs, fixed) if size >= MANY else None


def reserve(e: Emitter, count: int) -> list[Any]:
    """The addresses of so many tables, on the stack."""
    return [e.b.ptrtoint(e.b.alloca(ir.ArrayType(INT32, ENTRIES)), WORD) for _ in range(count)]


def fill(e: Emitter, lanes: int, addresses: Sequence[Any], evaluate: Callable[[Any], Sequence[Any]]) -> None:
    """Write tables; `evaluate` gives a vector of each node for a vector of the source."""
    count = ir.Constant(ir.VectorType(INT32, lanes), list(range(lanes)))

    def entries(i: Any, _state: list[Any]) -> None:
        at = e.b.add(e.splat(e.b.trunc(i, INT32), lanes), count)
        for address, value in zip(addresses, evaluate(e.b.trunc(at, ir.VectorType(ir.IntType(8), lanes))), strict=True):
            kind = ir.VectorType(INT32, lanes)
            bits = e.b.bitcast(value, kind) if isinstance(value.type.element, ir.FloatType) else value
            e.store(bits if bits.type == kind else e.b.zext(bits, kind), e.address(address, e.times(i, 4)))
    e.loop(0, word(ENTRIES), lanes, [], entries)


def look_up(e: Emitter, address: Any, source: Any, kind: ir.VectorType) -> Any:
    """The entries of a vector of 8-bit numbers, as vectors of `kind`."""
    lanes = kind.count
    at = e.b.zext(source, ir.VectorType(WORD, lanes))
    found = ir.Constant(ir.VectorType(INT32, lanes), ir.Undefined)
    for i in range(lanes):
        place = ir.Constant(INT32, i)
        entry = e.load(e.address(address, e.times(e.b.extract_element(at, place), 4)), INT32)
        found = e.b.insert_element(found, entry, place)
    if isinstance(kind.element, ir.FloatType):
        return e.b.bitcast(found, kind)
    return found if kind == found.type else e.b.trunc(found, kind)
