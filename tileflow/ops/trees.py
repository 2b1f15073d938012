"""Ensembles of decision trees."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Map, Operand, Staged, Work
from ..kernels import trees as kernels
from ..kernels.machine.call import Call
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .shape import present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

WIDE = ("float32", "float64")
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
WALKED = 16
"""How often a node may be reached on ways of different lengths: in trees once."""


@op("Trees", onnx=False)
class Trees(Op):
    """The votes of decision trees for rows of features.

    Inputs: x [rows, features] float32 or float64; thresholds [nodes] of its type; links uint32 [nodes, 4]: feature, first child (where the
    feature is <= the threshold), second child, and 1 where NaN goes to the first one. A leaf is its own child, and the last of its links is its
    number; its votes are those from starts[number] to starts[number + 1]. roots uint32 [trees], starts uint32 [leaves + 1], targets uint32
    [votes], votes float64 [votes], base float64 [targets]. Whoever makes the tables sees to it that they hold together.

    Output: [rows, targets] of x's type: the sum, average, least or largest vote of all trees (0 where there is none), and base.

    bare: where there is no least or largest vote, the output is NaN instead.
    """

    no_gradient = "trees are constant between their thresholds: they are not trained, and pass no gradient on to their features"

    aggregate: str = "SUM"
    missing: int = 0
    depth: int = 8
    bare: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        stump = _tables([0.5], [[0, 1, 2, 1], [0, 1, 1, 0], [0, 2, 2, 1]], [0], [0, 1, 2], [0, 1], [1.5, -2.0], [0.25, 0.5])
        two = _tables([0.5, 0.3], [[1, 2, 1, 0], [2, 3, 4, 0], [0, 2, 2, 0], [0, 3, 3, 1], [0, 4, 4, 2]], [0, 1, 4], [0, 1, 3, 3],
                      [0, 0, 0], [1.5, -2.0, 0.75], [0.0])
        x = ("float32", (5, 3))
        return [sample(x, *stump, missing=1), sample(("float32", (19, 3)), *two), sample(x, *two, aggregate="AVERAGE"),
                sample(x, *two, aggregate="MIN"), sample(x, *two, aggregate="MAX")]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, thresholds, links, roots, starts, targets, votes, base = map(present, types)
        if x.dtype not in WIDE or thresholds.dtype != x.dtype:
            raise TypeMismatchError(f"features are {x.dtype} and thresholds {thresholds.dtype}; they must be both float32 or both float64.")
        if x.rank != 2 or links.shape != (*thresholds.shape, 4) or targets.shape != votes.shape or base.rank != 1:
            raise ShapeError(f"features {x}, thresholds {thresholds}, links {links}, targets {targets}, votes {votes} and base {base} do not fit.")
        assert (votes.dtype, base.dtype) == ("float64",) * 2
        assert {t.dtype for t in (links, roots, starts, targets)} == {"uint32"}
        return (x.with_shape((x.shape[0], base.shape[0])),)

    def require(self, inputs: Types, constants: Sequence[np.ndarray | None]) -> None:
        x, *_, votes, base = map(present, inputs)
        links, roots, starts, targets = constants[2:6]
        if links is None or roots is None or starts is None or targets is None:
            raise ShapeError("its trees are no constants")
        if {a.ndim for a in (roots, starts, targets)} != {1} or votes.shape != targets.shape or not starts.size:
            raise ShapeError("its tables are no lists")
        features, children = links[:, kernels.FEATURE], links[:, kernels.FIRST:kernels.SECOND + 1]
        nodes = np.arange(len(links), dtype=np.uint32)
        leaves = (children == nodes[:, None]).all(1)
        numbers = links[leaves, kernels.LAST]
        inside = ((features, x.shape[1]), (children, len(links)), (roots, len(links)), (numbers, starts.size - 1),
                  (targets, base.shape[0]), (starts, targets.size + 1))
        if any(a.size and a.max() >= n for a, n in inside) or np.any(starts[1:] < starts[:-1]):
            raise ShapeError("its tables name features, nodes, leaves or votes that are not there")
        reached, steps = np.unique(roots), 0
        while reached.size:
            steps += reached.size
            if steps > WALKED * len(links):
                raise ShapeError("its trees have circles, in which a walk does not end")
            reached = np.unique(children[reached[~leaves[reached]]])

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, thresholds, links, roots, starts, targets, votes, base = map(present, inputs)
        total = np.full((len(x), len(base)), 0.0 if self.aggregate in ("SUM", "AVERAGE") else np.nan)
        combine = {"MIN": np.fmin, "MAX": np.fmax}.get(self.aggregate, np.add)
        rows = np.arange(len(x))
        for root in roots:
            at = np.full(len(x), root, np.int64)
            while len(x):
                feature = x[rows, links[at, kernels.FEATURE]]
                first = (feature <= thresholds[at]) | (np.isnan(feature) & (links[at, kernels.LAST] != 0) & bool(self.missing))
                onward = np.where(first, links[at, kernels.FIRST], links[at, kernels.SECOND])
                if np.array_equal(onward, at):
                    break
                at = onward
            for row, leaf in enumerate(links[at, kernels.LAST]):
                for v in range(starts[leaf], starts[leaf + 1]):
                    total[row, targets[v]] = combine(total[row, targets[v]], votes[v])
        if self.aggregate == "AVERAGE":
            total /= max(len(roots), 1)
        return ((total if combine is np.add
                 or self.bare else np.where(np.isnan(total), 0, total)) + base).astype(x.dtype),

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        """Rows are walked by themselves, each through all trees, whatever there is to vote for; what votes of some
        trees come to is combined as all votes are."""
        y, depth, trees = outputs[0], max(1, self.depth), present(inputs[3]).shape[0]
        tables = [Operand((None,) * t.rank, t.dtype) for t in map(present, inputs[1:])]
        x = y_ = Operand(("a", None), y.dtype)
        if trees < 2:
            return Map(
                (Axis("a", y.shape[0]),),
                (x, *tables),
                (y_,),
                float(trees * depth),
                functions=(("walk", y.dtype, trees * depth),),
            )
        tables[2] = Operand(("t",), tables[2].dtype)
        summed = self.aggregate == "SUM"
        return Staged(
            (Axis("a", y.shape[0]), Axis("t", trees, "staged")),
            (x, *tables),
            (y_,),
            float(depth),
            joined="add" if summed else f"f{self.aggregate.lower()}" if self.bare else "",
            once=(7,) if summed else (),
            functions=(("walk", y.dtype, depth),),
        )

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Votes without base, of which parts of the trees combine; then what all trees make of them, and base."""
        *tables, base = map(present, inputs)
        trees, nothing = tables[3].shape[0], b.constant(np.zeros(base.shape, np.float64))
        if self.aggregate == "AVERAGE":
            total = b.emit(replace(self, aggregate="SUM"), *tables, nothing)[0]
            votes = b.Div(total, b.scalar(float(trees), total))
        else:
            best = b.emit(replace(self, bare=1), *tables, nothing)[0]
            votes = b.Where(b.IsNaN(best), b.scalar(0.0, best), best)
        return [b.Add(votes, b.Cast(base, to=votes.dtype))]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        given = [present(t) for t in inputs]
        return kernels.trees_calls([t.shape for t in given], outputs[0].shape[1], given[0].code, self.aggregate,
                                   bool(self.missing), self.depth, bool(self.bare))


def _tables(thresholds: list[float], links: list[list[int]], *rest: list) -> list[np.ndarray]:
    """Operands of a sample: leaves have the threshold 0."""
    given = np.array([*thresholds, *[0.0] * (len(links) - len(thresholds))], np.float32)
    *whole, votes, base = rest
    return [given, *(np.array(a, np.uint32) for a in (links, *whole)), *(np.array(a, np.float64) for a in (votes, base))]
