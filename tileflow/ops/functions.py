"""The scalar functions of an expression: by name, with the type that each computes in."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..kernels.elementwise import narrow
from ..kernels.elementwise.expr import OPERATIONS, Expr, postorder

CASTS = frozenset(narrow.MODES.values())
"""Conversions: done where operands are loaded and stored."""


def functions(*roots: Expr) -> tuple[tuple[str, str, int], ...]:
    """The operations for one element, as `Work.functions` has them: name, element type of what is computed with, how often."""
    counts = Counter((n.op, n.args[-1].dtype) for n in postorder(roots) if n.op in OPERATIONS and n.op not in CASTS)
    return tuple((name, dtype, n) for (name, dtype), n in sorted(counts.items()))


def applications(counts: Sequence[tuple[str, str, int]]) -> float:
    """Floating-point operations of one element: a function is one, as PopLibs counts them, however long it takes."""
    return float(sum(n for _, _, n in counts))
