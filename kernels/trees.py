"""Ensembles of decision trees over rows of features, as one leaf.

A node holds a feature, a threshold and where to go on: to its first child where feature <= threshold, else to its second; a leaf goes on to
itself. ABREAST walks are taken together, without branches, until all of them stand: one step waits for memory and for the one before it, several
walks do not wait for each other. They are those of neighbouring rows through one tree; where a block has fewer rows, of one row through
neighbouring trees. A row's trees vote in their order, into float64, so the bits depend neither on threads nor on the other rows of the batch.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from .machine.call import Call, In, Out, Work
from .machine.leaf import Leaf, from_lines

ABREAST = 8
"""Walks that are taken together."""
ROWS = 64
"""Rows of a block: they and a tree stay in the cache while the tree is walked."""
STEP_NS = 0.8
"""Of one walk, one node further."""
FEATURE, FIRST, SECOND, LAST = range(4)
"""Columns of a node's links. The last one says whether NaN goes to the first child; of a leaf, where its votes are."""
COMBINED = {"SUM": "total + vote", "MIN": "vote if not total <= vote else total", "MAX": "vote if not total >= vote else total"}
"""How votes are combined. Smallest and largest ones begin with NaN, which every number replaces."""
SIGNATURE = "T[r,:], T[:], u4[:,:], u4[:], u4[:], u4[:], f8[:], f8[:], f8[w,:], u4[w,:], T[r,:]"


def trees_leaf(dtype: str, aggregate: str, missing: bool, bare: bool = False) -> Leaf:
    """x [rows, features], thresholds [nodes], links [nodes, 4], roots [trees], starts [leaves + 1] of each leaf's votes, targets [votes],
    votes [votes], base [targets], and as scratch the totals of a block and the leaves reached -> y [rows, targets].

    Args:
        dtype: the letter of the features' and of the results' type.
        aggregate: "SUM", "AVERAGE", "MIN" or "MAX" of the votes; base is added then. Where nothing votes, the result is base.
        missing: some nodes send NaN to their first child.
        bare: where nothing votes, the least and largest is NaN.
    """
    return _leaf(dtype, aggregate, missing, bare)


@functools.cache
def _leaf(dtype: str, aggregate: str, missing: bool, bare: bool) -> Leaf:
    body = from_lines(_lines(aggregate, missing, bare), {"ABREAST": ABREAST, "ROWS": ROWS, "NAN": math.nan}, trees_leaf)
    body.__module__ = __name__
    return Leaf(body, SIGNATURE.replace("T[", f"{dtype}["), key=f"{aggregate} {missing}{' bare' * bare}")


def _lines(aggregate: str, missing: bool, bare: bool) -> list[str]:
    """The leaf's source."""
    summed = aggregate in ("SUM", "AVERAGE")
    lines = ["def trees(x, thresholds, links, roots, starts, targets, votes, base, totals, reached, y):",
             "  outputs = y.shape[1]",
             "  for first in range(0, x.shape[0], ROWS):",
             "    rows = min(ROWS, x.shape[0] - first)",
             f"    for i in range(rows * outputs): totals[i] = {'0.0' if summed else 'NAN'}",
             "    abreast = rows // ABREAST * ABREAST",
             "    for tree in range(roots.shape[0]):",
             "      for row in range(0, abreast, ABREAST):"]
    lines += _walks(aggregate, missing, "        ", "first + row + {k}", "tree", "row + {k}")
    lines += ["    for row in range(abreast, rows):", "      for tree in range(0, roots.shape[0] - ABREAST + 1, ABREAST):"]
    lines += _walks(aggregate, missing, "        ", "first + row", "tree + {k}", "row")
    lines += ["      for tree in range(roots.shape[0] // ABREAST * ABREAST, roots.shape[0]):"]
    lines += _walks(aggregate, missing, "        ", "first + row", "tree", "row", 1)
    total = "totals[row * outputs + k]"
    end = f"({total} / roots.shape[0] if roots.shape[0] else 0.0)" if aggregate == "AVERAGE" else total
    end = end if summed or bare else f"({total} if {total} == {total} else 0.0)"
    return [*lines, "    for row in range(rows):", "      for k in range(outputs):", f"        y[first + row, k] = {end} + base[k]"]


def _walks(aggregate: str, missing: bool, indent: str, row: str, tree: str, place: str, count: int = ABREAST) -> list[str]:
    """Walks from roots to leaves, and the votes of those: `row`, `tree` and `place` (the row in its block) are those of walk {k}."""
    lines = [f"at{k} = roots[{tree.format(k=k)}]" for k in range(count)] + ["moved = True", "while moved:"]
    step = "x{k} <= thresholds[at{k}]"
    if missing:
        step = f"({step}) | ((x{{k}} != x{{k}}) & (links[at{{k}}, {LAST}] != 0))"
    walk = [f"x{{k}} = x[{row}, links[at{{k}}, {FEATURE}]]",
            f"next{{k}} = links[at{{k}}, {FIRST}] if {step} else links[at{{k}}, {SECOND}]"]
    for k in range(count):
        lines += [f"  {text.format(k=k)}" for text in walk]
    lines += ["  moved = " + " | ".join(f"(next{k} != at{k})" for k in range(count))] + [f"  at{k} = next{k}" for k in range(count)]
    lines += [f"reached[{k}] = links[at{k}, {LAST}]" for k in range(count)]
    lines += [f"for k in range({count}):", "  leaf = reached[k]", "  for v in range(starts[leaf], starts[leaf + 1]):",
              f"    i, vote = ({place.format(k='k')}) * outputs + targets[v], votes[v]", "    total = totals[i]",
              f"    totals[i] = {COMBINED.get(aggregate, COMBINED['SUM'])}"]
    return [indent + line for line in lines]


def trees_calls(shapes: Sequence[tuple[int, ...]], outputs: int, dtype: str, aggregate: str, missing: bool, depth: int,
                bare: bool = False) -> list[Call]:
    """The call for operands of these shapes, in the order of `trees_leaf`; `depth` is of a usual walk, for the estimated cost."""
    rows = shapes[0][0]
    if not rows or not outputs:
        return []
    args = (*(In(i, shape) for i, shape in enumerate(shapes)), Work("votes of a block", (ROWS * outputs,), "f8"),
            Work("leaves reached", (ABREAST,), "u4"), Out(0, (rows, outputs)))
    return [Call(trees_leaf(dtype, aggregate, missing, bare), args, rows, ROWS,
                 rows * shapes[3][0] * max(depth, 1) * STEP_NS)]
