"""Ensembles of trees against ONNX Runtime, the libraries they come from, and by themselves: bits, damaged files."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import imported, node
from peers import needs

from tileflow.importers.onnx import load_model
from tileflow.onnx_backend import Backend
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.system.errors import ModelError, ShapeError, TileflowError, UnsupportedError
from tileflow.tiles.hardware.chip import Chip, chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileStep
from tileflow.tiles.plans.planner import plan_uncut

ML = "ai.onnx.ml"
FEATURES = 5
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def random_trees(seed: int, trees: int, modes: tuple[str, ...], targets: int, per_leaf: int = 1, missing: bool = False) -> dict[str, Any]:
    """Attributes of nodes and votes of random trees, whose thresholds are a few whole numbers and what is not finite; ids begin anywhere."""
    rng = np.random.default_rng(seed)
    nodes: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")}
    votes: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        count, open_ = int(rng.integers(0, 12)), [3]
        following = 4
        while open_:
            at = open_.pop(int(rng.integers(len(open_))))
            inner = count > 0
            count -= 1
            value = float(rng.choice([-1, 0, 1, 0.5, 0.1, np.inf, -np.inf])) if inner else 0.0
            row = (7 * tree - 3, at, str(rng.choice(modes)) if inner else "LEAF", int(rng.integers(FEATURES)) if inner else 0, value,
                   following if inner else 0, following + 1 if inner else 0)
            for key, item in zip(nodes, row, strict=True):
                nodes[key].append(item)
            if inner:
                open_ += [following, following + 1]
                following += 2
                continue
            for target in rng.permutation(targets)[:per_leaf]:
                for key, item in zip(votes, (7 * tree - 3, at, int(target), float(np.float32(rng.standard_normal()))), strict=True):
                    votes[key].append(item)
    if missing:
        nodes["missing_value_tracks_true"] = rng.integers(0, 2, len(nodes["modes"])).tolist()
    return {**{f"nodes_{k}": v for k, v in nodes.items()}, **{f"votes_{k}": v for k, v in votes.items()}, "n_targets": targets}


def tree_model(op: str, attributes: Mapping[str, Any], kind: str = "float32", version: int = 3, rows: int | None = None) -> ModelProto:
    """A model of one node over [rows, features]."""
    votes = "class" if op.endswith("Classifier") else "target"
    given = {k.replace("votes_", f"{votes}_"): v for k, v in attributes.items() if (votes, k) != ("class", "n_targets")}
    outputs = [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(kind if op == "TreeEnsemble" else "float32")), None)]
    if votes == "class":
        outputs.insert(0, helper.make_tensor_value_info("label", onnx.TensorProto.INT64, None))
    x = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["N" if rows is None else rows, FEATURES])
    graph = helper.make_graph([node(op, ["x"], [o.name for o in outputs], "trees", domain=ML, **given)], "trees", [x], outputs)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(ML, version)])


def rows(count: int = 41, seed: int = 0, missing: bool = True) -> np.ndarray:
    """Features among which are all the thresholds, numbers next to them, and what is not finite."""
    rng = np.random.default_rng(seed)
    x = rng.choice(np.float32([-1, 0, 1, 0.5, 0.1, np.inf, -np.inf, -0.0, 2.5]), (count, FEATURES))
    x = np.where(rng.random(x.shape) < 0.2, np.nextafter(x, np.float32(rng.choice([-9, 9]))), x)
    return np.where(rng.random(x.shape) < 0.1, np.float32(np.nan), x) if missing else x


def same(proto: ModelProto, x: np.ndarray, tolerance: float = 1e-5) -> list[np.ndarray]:
    """What ONNX Runtime gives."""
    session = needs("onnxruntime").InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {session.get_inputs()[0].name: x})
    got = Backend.prepare(proto).run([x])
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return list(got)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("missing", [False, True])
def test_every_comparison_is_exact(mode: str, missing: bool) -> None:
    for seed in range(3):
        same(tree_model("TreeEnsembleRegressor", random_trees(seed, 12, (mode,), 1, missing=missing)), rows(seed=seed))


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(("targets", "per_leaf", "base"), [(1, 1, []), (1, 1, [0.5]), (3, 3, []), (3, 3, [0.5, -1.0, 2.0])])
def test_aggregates_targets_and_base_values(aggregate: str, targets: int, per_leaf: int, base: list[float]) -> None:
    given = random_trees(5, 9, MODES, targets, per_leaf, True)
    more = {"base_values": base} if base else {}
    same(tree_model("TreeEnsembleRegressor", {**given, "aggregate_function": aggregate, **more}), rows())


def test_targets_that_few_leaves_vote_for_get_zero() -> None:
    same(tree_model("TreeEnsembleRegressor", {**random_trees(5, 2, MODES, 4, 1), "n_targets": 5}), rows())


@pytest.mark.parametrize("kind", ["int64", "int32", "float64"])
def test_features_of_other_types(kind: str) -> None:
    op = "TreeEnsembleRegressor" if kind == "float64" else "TreeEnsembleClassifier"
    labels = {} if kind == "float64" else {"classlabels_int64s": [4, 5, 6]}
    given = {**random_trees(1, 9, MODES, 3, 3), **labels}
    same(tree_model(op, given, kind), np.clip(np.nan_to_num(rows()), -3, 3).astype(kind))


def test_thresholds_of_float64() -> None:
    given = random_trees(1, 9, MODES, 2, 2)
    for name in ("nodes_values", "votes_weights"):
        array = np.array(given.pop(name)) * (1 + 1e-12)
        given[f"{name.replace('votes', 'target')}_as_tensor"] = onnx.numpy_helper.from_array(array, name)
    same(tree_model("TreeEnsembleRegressor", given, "float64"), np.concatenate([rows().astype(float), rows().astype(float) * (1 + 1e-12)]))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("base", [[], [0.125, -0.5, 0.25]])
def test_classes_and_transforms(transform: str, base: list[float]) -> None:
    """Labels are those of the first highest score."""
    given = {**random_trees(2, 9, MODES, 3, 3), "classlabels_int64s": [30, -4, 5], "post_transform": transform}
    if transform == "PROBIT":
        given["votes_weights"] = (0.05 * np.abs(given["votes_weights"])).tolist()
    same(tree_model("TreeEnsembleClassifier", {**given, **({"base_values": base} if base else {})}), rows(),
         1e-4 if transform == "PROBIT" else 1e-5)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("signs", ["positive", "mixed"])
@pytest.mark.parametrize(("column", "base"), [(0, []), (0, [0.1]), (1, [])])
def test_two_classes_of_which_one_is_voted_for(transform: str, signs: str, column: int, base: list[float]) -> None:
    given = {**random_trees(2, 9, MODES, 1), "classlabels_int64s": [8, 9], "post_transform": transform}
    given["votes_ids"] = [column] * len(given["votes_ids"])
    if signs == "positive":
        given["votes_weights"] = (0.2 * np.abs(given["votes_weights"])).tolist()
    same(tree_model("TreeEnsembleClassifier", {**given, **({"base_values": base} if base else {})}), rows())


# ---- TreeEnsemble -------------------------------------------------------------------------------------------------------

def tree_ensemble(kind: str = "float32", transform: int = 0, aggregate: int = 1, rows: int | None = None) -> ModelProto:
    """Two trees, one of which asks for membership twice."""
    def array(values: list[float], dtype: str = kind) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(np.array(values, dtype))

    return tree_model("TreeEnsemble", dict(
        nodes_modes=array([6, 0, 6, 1, 4], "uint8"), nodes_featureids=[0, 1, 2, 0, 3], nodes_splits=array([0, 0.5, 0, 0.5, 1]),
        nodes_truenodeids=[1, 0, 1, 3, 0], nodes_trueleafs=[0, 1, 1, 1, 1], nodes_falsenodeids=[2, 1, 2, 4, 2],
        nodes_falseleafs=[0, 1, 1, 0, 1], tree_roots=[0, 3], n_targets=2, aggregate_function=aggregate, post_transform=transform,
        membership_values=array([1, 0.5, -1, np.nan, 0.1, np.nan]), leaf_targetids=[0, 1, 0, 1], leaf_weights=array([1.5, -0.5, 2, 0.25])),
        kind, 5, rows)


@pytest.mark.parametrize(("kind", "transform", "aggregate"), [("float32", 0, 1), ("float32", 2, 1), ("float64", 0, 0)])
def test_membership(kind: str, transform: int, aggregate: int) -> None:
    """As ONNX's reference has it: ONNX Runtime asks for whole numbers only, and takes the numbers of other transforms."""
    x = rows(missing=False).astype(kind)
    proto = tree_ensemble(kind, transform, aggregate)
    got, = Backend.prepare(proto).run([x])
    wanted, = ReferenceEvaluator(proto).run(None, {"x": x})
    assert got.dtype == wanted.dtype
    if transform == 2:                                          # LOGISTIC, which the reference leaves out
        wanted = 1 / (1 + np.exp(-wanted))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_halves_are_compared_exactly() -> None:
    x = np.clip(rows(missing=False), -9, 9).astype(np.float16)
    x[x == np.float16(0.1)] = 2.5                              # which is another number in 16 bits
    a, = Backend.prepare(tree_ensemble("float16")).run([x])
    b, = Backend.prepare(tree_ensemble("float32")).run([np.float32(x)])
    assert a.dtype == np.float16
    np.testing.assert_array_equal(a, b.astype(np.float16))


# ---- exporters ----------------------------------------------------------------------------------------------------------

def exported() -> Iterator[tuple[str, Any]]:
    """(name, function from features and targets to (ONNX file, what the library says of the features))."""
    def sklearn(kind: str, **options: Any) -> Any:
        def make(x: np.ndarray, y: np.ndarray) -> tuple[ModelProto, list[np.ndarray]]:
            module = needs("sklearn.tree" if kind.startswith("Decision") else "sklearn.ensemble")
            fitted = getattr(module, kind)(**options).fit(x, y)
            zipmap = {"options": {id(fitted): {"zipmap": False}}} if kind.endswith("Classifier") else {}
            return needs("skl2onnx").to_onnx(fitted, x[:1], target_opset={"": 17, ML: 3}, **zipmap), told(fitted, x)
        return make

    def told(fitted: Any, x: np.ndarray) -> list[np.ndarray]:
        return [fitted.predict(x), *([fitted.predict_proba(x)] if hasattr(fitted, "predict_proba") else [])]

    def other(package: str, kind: str, **options: Any) -> Any:
        def make(x: np.ndarray, y: np.ndarray) -> tuple[ModelProto, list[np.ndarray]]:
            fitted = getattr(needs(package), kind)(**options).fit(x, y)
            tensor = needs("onnxmltools.convert.common.data_types").FloatTensorType([None, x.shape[1]])
            convert = getattr(needs("onnxmltools"), f"convert_{package}")
            zipmap = {"zipmap": False} if package == "lightgbm" and kind.endswith("Classifier") else {}
            return convert(fitted, initial_types=[("x", tensor)], target_opset=15, **zipmap), told(fitted, x)
        return make

    for kind in ("DecisionTree", "RandomForest", "GradientBoosting", "ExtraTrees"):
        options = {"random_state": 0, **({} if kind.startswith("Dec") else {"n_estimators": 8})}
        yield from ((f"{kind}{task}", sklearn(f"{kind}{task}", **options)) for task in ("Regressor", "Classifier"))
    for package, prefix in (("lightgbm", "LGBM"), ("xgboost", "XGB")):
        options = {"n_estimators": 8, "random_state": 0, **({"verbose": -1} if package == "lightgbm" else {})}
        yield from ((f"{prefix}{task}", other(package, f"{prefix}{task}", **options)) for task in ("Regressor", "Classifier"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("name", "make"), list(exported()), ids=lambda v: v if isinstance(v, str) else "")
def test_forests_of_real_exporters(name: str, make: Any, classes: int) -> None:
    """Labels and scores equal the library's and ONNX Runtime's."""
    x, y = needs("sklearn.datasets").load_iris(return_X_y=True)
    x = np.float32(x)
    x, y = (x[y < classes], y[y < classes]) if name.endswith("Classifier") else (x, x @ np.float32([1, -1, 2, 0.5]) * (1 + (classes == 3)))
    proto, wanted = make(x, y)
    got = same(proto, x, 2e-5)
    for a, b in zip(got, wanted, strict=False):
        np.testing.assert_allclose(np.asarray(a).reshape(np.shape(b)), b, rtol=1e-4, atol=1e-5)


# ---- by themselves ------------------------------------------------------------------------------------------------------

def test_bits_depend_neither_on_threads_nor_on_the_rest_of_the_batch() -> None:
    proto = tree_model("TreeEnsembleRegressor", random_trees(5, 53, MODES, 3, 2, True))
    x = rows(300)
    whole, = Backend.prepare(proto, threads=1).run([x])
    shared, = Backend.prepare(proto, threads=2).run([x])
    np.testing.assert_array_equal(whole, shared)
    alone = Backend.prepare(proto)
    for i in (0, 5, 299):
        np.testing.assert_array_equal(alone.run([x[i:i + 1]])[0], whole[i:i + 1])


def test_no_gradient_passes_trees() -> None:
    graph = imported(tree_model("TreeEnsembleRegressor", random_trees(5, 3, MODES, 1), rows=4)).graph
    from tileflow.graph import Builder
    from tileflow.passes.autograd import gradients
    with pytest.raises(UnsupportedError, match="trees are constant between their thresholds"):
        gradients(graph, Builder(graph).ReduceSum(graph.outputs[0], keepdims=0), [graph.inputs[0]])


@pytest.mark.parametrize(("change", "error", "says"), [
    ({"nodes_truenodeids": [99]}, ModelError, "names a node that it does not list"),
    ({"nodes_truenodeids": [3]}, ModelError, "is no forest"),
    ({"nodes_nodeids": [4]}, ModelError, "lists a node twice|is no forest|does not list"),
    ({"nodes_modes": ["BRANCH_ODD"]}, UnsupportedError, "nodes of the mode 'BRANCH_ODD'"),
    ({"nodes_featureids": [77]}, ShapeError, "compares feature 77, and its input .* has 5"),
    ({"nodes_featureids": [-1]}, ModelError, "compares feature -1"),
    ({"votes_ids": [7]}, ModelError, "votes for target 7 of 1"),
    ({"votes_nodeids": [3]}, ModelError, "votes of a node that is no leaf"),
    ({"nodes_treeids": [1 << 62]}, ModelError, "beyond all that a file could hold|names a node"),
    ({"aggregate_function": "MEDIAN"}, UnsupportedError, "aggregate_function='MEDIAN'"),
    ({"base_values": [1.0, 2.0]}, ModelError, "2 base_values for 1 targets"),
], ids=str)
def test_damaged_trees_are_refused(change: dict[str, Any], error: type[TileflowError], says: str) -> None:
    """The first element of a list is another."""
    given = random_trees(0, 3, MODES, 1)
    assert given["nodes_modes"][0] != "LEAF"
    for name, value in change.items():
        given[name] = [*value, *given[name][1:]] if name in given and isinstance(value, list) else value
    with pytest.raises(error, match=says):
        imported(tree_model("TreeEnsembleRegressor", given, rows=2))


def test_lengths_that_differ_are_refused() -> None:
    for name in ("nodes_modes", "nodes_values", "nodes_truenodeids", "nodes_treeids", "votes_ids", "votes_treeids"):
        given = random_trees(0, 3, MODES, 1)
        given[name] = given[name][:-1]
        with pytest.raises(ModelError, match=r"trees.*has \d+ "):
            imported(tree_model("TreeEnsembleRegressor", given, rows=2))


def test_texts_as_labels_are_told(tmp_path: Any) -> None:
    proto = tree_model("TreeEnsembleClassifier", {**random_trees(2, 3, MODES, 3, 3), "classlabels_strings": ["a", "b", "c"]}, rows=2)
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    unread = onnx.ModelProto.FromString(proto.SerializeToString())
    del unread.graph.output[0]
    assert len(imported(unread).graph.outputs) == 1
    onnx.save(proto, tmp_path / "m.onnx")
    assert load_model(tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="Python"):
        imported(proto)


APART = {"n_targets": 2, "tree_roots": [0, 1], "nodes_featureids": [0, 1, 2], "nodes_modes": np.array([0, 1, 4], np.uint8),
         "nodes_splits": np.array([0.5, 1, -1], np.float32), "nodes_truenodeids": [2, 0, 1], "nodes_trueleafs": [0, 1, 1],
         "nodes_falsenodeids": [2, 3, 4], "nodes_falseleafs": [1, 1, 1], "leaf_targetids": [0, 1, 0, 1, 0],
         "leaf_weights": np.array([1, 2, 3, 4, 5], np.float32)}


@pytest.mark.parametrize(("change", "error", "says"), [
    ({"nodes_truenodeids": [0]}, ModelError, "is no forest: a node is below two others, below itself"),
    ({"nodes_truenodeids": [1]}, ModelError, "is no forest"),                        # a root below another tree
    ({"nodes_truenodeids": [2, 2, 1], "nodes_trueleafs": [0, 0, 1]}, ModelError, "is no forest"),      # below two
    ({"tree_roots": [0, 2]}, ModelError, "is no forest"),                            # one root below the other, one node below none
    ({"tree_roots": [0]}, ModelError, "is no forest"),
    ({"nodes_truenodeids": [3]}, ModelError, "a nodes_truenodeids that is no node or leaf"),
    ({"nodes_falsenodeids": [5]}, ModelError, "a nodes_falsenodeids that is no node or leaf"),
    ({"nodes_falsenodeids": [-1]}, ModelError, "a nodes_falsenodeids that is no node or leaf"),
    ({"tree_roots": [0, 8]}, ModelError, "a root that is no node"),
    ({"tree_roots": [0, -1]}, ModelError, "a root that is no node"),
    ({"nodes_featureids": [3]}, ShapeError, "compares feature 3, and its input .* has 3"),
    ({"nodes_featureids": [-1]}, ModelError, "compares feature -1"),
    ({"leaf_targetids": [2]}, ModelError, "votes for target 2 of 2"),
    ({"nodes_modes": np.array([7, 1, 4], np.uint8)}, ModelError, "a mode that is none"),
    ({"nodes_modes": np.array([6, 1, 4], np.uint8)}, ModelError, "0 sets of membership_values for 1 nodes"),
    ({"nodes_splits": np.array([1], np.float32)}, ModelError, "1 nodes_splits for 3 nodes"),
    ({}, None, ""),
], ids=str)
def test_damaged_trees_with_leaves_apart_are_refused(change: dict[str, Any], error: type[TileflowError] | None, says: str) -> None:
    """No walk goes in a circle or leaves its tables: the kernel walks whatever it is given. A list's first elements are others."""
    given = {**APART, **{name: [*value, *APART[name][len(value):]] if isinstance(value, list) and name != "tree_roots" else value
                         for name, value in change.items()}}
    attributes = {k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    graph = helper.make_graph([helper.make_node("TreeEnsemble", ["x"], ["y"], "trees", domain="ai.onnx.ml", **attributes)], "g",
                              [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 3])],
                              [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 5)], ir_version=10)
    if error is None:
        assert imported(model).graph.outputs[0].type.shape == (4, 2)
        return
    with pytest.raises(error, match=says):
        imported(model)


def test_forests_are_cut_into_few_rows() -> None:
    """The least that a tile is given follows what it takes: 60 rows of two votes are 480 bytes, and each takes thousands of cycles."""
    machine, forest = chip("gc200"), random_trees(3, 200, MODES, 2)

    def planned(by: Chip, **more: str) -> TileStep:
        graph = imported(tree_model("TreeEnsembleRegressor", {**forest, **more}, rows=60)).graph
        return next(s for s in analyze(Program.of(graph, Batching(60)), by).steps if s.node.op.name == "Trees")

    for how in ("SUM", "AVERAGE", "MIN", "MAX"):
        step, alone = (planned(by, aggregate_function=how) for by in (machine, machine.variant(tiles=1)))
        (uncut,) = plan_uncut(step.work, machine, None)
        assert uncut.tiles == 60, "a row for each"
        assert uncut.phases.compute < 0.3 * alone.plan.phases.compute
        assert step.plan.splits["t"] > 1, "they are cut over trees, too"
        assert step.plan.phases.total < uncut.phases.total < alone.phases.total
