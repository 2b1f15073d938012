"""Forests: a TreeEnsembleRegressor over rows of features, as both runtimes run the file: arrays in, arrays out.

Calls bring other rows in turn: with the same row each time, a processor learns the way through all trees by heart and foretells every branch.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from ..peer_onnx import session
from .base import Problem, Runner, beside_largest

ML = "ai.onnx.ml"
CYCLE = 1024
"""Rows that calls bring before they begin anew; two batches at least."""
EARLY = 0.1
"""Share of the nodes below the third level that are leaves before the last one."""


class Forest(Problem):
    """`trees` trees of up to `depth` levels of comparisons, drawn at random, over `batch` rows of `features` features; the sum of their votes."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.trees, self.depth, self.features, self.rows = (shape[k] for k in ("trees", "depth", "features", "batch"))
        self.name = f"{self.trees} trees of {self.depth} levels, {self.rows} x {self.features}"

    def arrays(self) -> dict[str, np.ndarray]:
        return self.batches[0]

    @functools.cached_property
    def batches(self) -> list[dict[str, np.ndarray]]:
        """The operands of the calls that follow one another."""
        rng = np.random.default_rng(1)
        return [{"x": rng.random((self.rows, self.features), np.float32)} for _ in range(max(2, CYCLE // self.rows))]

    @functools.cached_property
    def nodes(self) -> dict[str, np.ndarray]:
        """Of all trees one after the other: tree, feature (-1: a leaf), threshold, first and second child (in the tree), vote."""
        rng = np.random.default_rng(0)
        found: dict[str, list[Any]] = {k: [] for k in ("tree", "feature", "threshold", "first", "second", "vote")}
        for tree in range(self.trees):
            levels, following = [0], 1
            for level in levels:
                inner = level < self.depth and (level < 3 or rng.random() >= EARLY)
                if inner:
                    levels += [level + 1] * 2                  # read as the loop goes on
                row = (tree, int(rng.integers(self.features)) if inner else -1, float(np.float32(rng.random())) if inner else 0.0,
                       following if inner else 0, following + 1 if inner else 0, float(np.float32(rng.standard_normal())))
                following += 2 * inner
                for column, value in zip(found.values(), row, strict=True):
                    column.append(value)
        return {k: np.array(v) for k, v in found.items()}

    def model(self) -> ModelProto:
        """The ONNX model."""
        n = self.nodes
        at = np.arange(len(n["tree"])) - np.searchsorted(n["tree"], n["tree"])
        leaf = n["feature"] < 0
        attributes = {"nodes_treeids": n["tree"], "nodes_nodeids": at, "nodes_modes": ["LEAF" if one else "BRANCH_LEQ" for one in leaf],
                      "nodes_featureids": np.maximum(n["feature"], 0), "nodes_values": n["threshold"], "nodes_truenodeids": n["first"],
                      "nodes_falsenodeids": n["second"], "target_treeids": n["tree"][leaf], "target_nodeids": at[leaf],
                      "target_ids": np.zeros(int(leaf.sum()), np.int64), "target_weights": n["vote"][leaf], "n_targets": 1}
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.rows, self.features])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [self.rows, 1])
        graph = helper.make_graph([helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, **plain)], "forest", [x], [y])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def ours(self, threads: int) -> Runner:
        from tileflow.onnx_backend import Backend
        prepared = Backend.prepare(self.model(), "CPU", threads=threads)
        return _Runner(self, lambda batch: list(prepared.run([batch["x"]])))

    def onnxruntime(self, threads: int, variant: str = "") -> Runner:
        """ONNX Runtime's side."""
        opened = session(self.model().SerializeToString(), threads)
        return _Runner(self, lambda batch: list(opened.run(None, batch)))

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        n, x = self.nodes, arrays["x"]
        roots = np.searchsorted(n["tree"], np.arange(self.trees))
        at = np.broadcast_to(roots, (self.rows, self.trees)).copy()
        for _ in range(self.depth):
            feature, first = n["feature"][at], np.searchsorted(n["tree"], n["tree"][at])
            goes = np.take_along_axis(x, np.maximum(feature, 0), 1) <= n["threshold"][at].astype(np.float32)
            at = np.where(feature < 0, at, first + np.where(goes, n["first"][at], n["second"][at]))
        return beside_largest(outputs[0][:, 0], n["vote"][at].sum(1))

    def nbytes(self) -> float:
        """Features and results; how much of a forest is read depends on the rows."""
        return 4.0 * self.rows * (self.features + 1)


class _Runner:
    """A side, given as a function of one batch."""

    def __init__(self, problem: Forest, call: Callable[[dict[str, np.ndarray]], list[np.ndarray]]) -> None:
        self._problem, self._call, self._at = problem, call, 0

    def run(self, times: int) -> None:
        batches = self._problem.batches
        for _ in range(times):
            self._call(batches[self._at])
            self._at = (self._at + 1) % len(batches)

    def error(self) -> float:
        return max(self._problem.deviation(batch, [np.asarray(o) for o in self._call(batch)]) for batch in self._problem.batches[:2])
