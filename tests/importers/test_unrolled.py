"""Loops whose turns are known and whose sizes follow from the turn, unrolled; bags of embeddings, which exporters write so, as one reduction."""
from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, helper
from onnx_models import compare, imported, model_of, node, port, run

import tileflow
from tileflow.importers.onnx import wrap_model
from tileflow.system.errors import UnsupportedError

RNG = np.random.default_rng(5)
TABLE = RNG.standard_normal((11, 3)).astype(np.float32)
INDICES = RNG.integers(0, 11, 12)


def body_of(nodes: list[NodeProto], inputs: list[Any], outputs: list[Any]) -> GraphProto:
    return helper.make_graph(nodes, "body", inputs, outputs)


def bags(offsets: list[int] | None, reduce: str = "ReduceSum", weighted: bool = False, count: int = 4) -> ModelProto:
    """As PyTorch's older exporter writes nn.EmbeddingBag: indices x [12] in bags between offsets, which are an input where they are None."""
    cut = [node("Gather", ["bounds", "i"], ["first"]), node("Gather", ["ends", "i"], ["last"]),
           node("Unsqueeze", ["first", "zero"], ["a"]), node("Unsqueeze", ["last", "zero"], ["b"])]
    rows = [node("Slice", ["x", "a", "b", "zero"], ["bag"]), node("Gather", ["table", "bag"], ["rows"])]
    if weighted:
        rows += [node("Slice", ["each", "a", "b", "zero"], ["some"]), node("Unsqueeze", ["some", "one"], ["column"]),
                 node("Mul", ["rows", "column"], ["scaled"])]
    body = body_of([*cut, *rows, node(reduce, ["scaled" if weighted else "rows", "zero"], ["row"], keepdims=0), node("Identity", ["on"], ["on2"])],
                    [port("i", [], "int64"), port("on", [], "bool")], [port("on2", [], "bool"), port("row", None)])
    nodes = [node("Concat", ["offsets", "total"], ["bounds"], axis=0), node("Slice", ["bounds", "one", "far"], ["ends"]),
             node("Loop", ["count", "more"], ["y"], "Bags", body=body)]
    inputs = [port("x", [12], "int64"), *([port("each", [12])] if weighted else [])]
    inputs += [port("offsets", [count], "int64")] if offsets is None else []
    constants: dict[str, Any] = {"table": TABLE, "zero": np.array([0]), "one": np.array([1]), "far": np.array([99]), "total": np.array([12]),
                                 "more": np.array(True), "count": np.array(count), **({} if offsets is None else {"offsets": np.array(offsets)})}
    return model_of(nodes, inputs, [port("y", [None, 3])], constants, opset=18)


def listed_bags(offsets: list[int]) -> ModelProto:
    """As the newer exporter writes it: the rows are inserted into a sequence while bags are left, zeros for an empty one."""
    empty = body_of([node("Identity", ["zeros"], ["nothing"])], [], [port("nothing", None)])
    full = body_of([node("Slice", ["all", "a", "b"], ["rows"]), node("ReduceSum", ["rows", "zero"], ["sum"])], [], [port("sum", None)])
    body = body_of([
        node("Reshape", ["n", "one"], ["at"]), node("Add", ["at", "one"], ["next"]), node("Add", ["next", "one"], ["after"]),
        node("Slice", ["bounds", "at", "next"], ["a"]), node("Slice", ["bounds", "next", "after"], ["b"]), node("Equal", ["a", "b"], ["same"]),
        node("If", ["same"], ["row"], then_branch=empty, else_branch=full), node("SequenceInsert", ["s", "row"], ["s2"]),
        node("Add", ["n", "step"], ["n2"]), node("Less", ["n2", "count"], ["on2"])],
        [port("i", [], "int64"), port("on", [], "bool"), port("n", [], "int64"), port("s", None)],
        [port("on2", [], "bool"), port("n2", [], "int64"), port("s2", None)])
    nodes = [node("Gather", ["table", "x"], ["all"]), node("SequenceEmpty", [], ["s0"]),
             node("Loop", ["", "more", "n0", "s0"], ["n9", "s9"], "Bags", body=body), node("ConcatFromSequence", ["s9"], ["y"], axis=0)]
    return model_of(nodes, [port("x", [12], "int64")], [port("y", [None, 3])], {
        "table": TABLE, "bounds": np.array([*offsets, 12]), "zero": np.array([0]), "one": np.array([1]), "step": np.array(1), "n0": np.array(0),
        "count": np.array(len(offsets)), "more": np.array(True), "zeros": np.zeros((1, 3), np.float32)}, opset=18)


def wanted(x: np.ndarray, offsets: list[int], reduce: Any = np.sum) -> np.ndarray:
    bounds = [*offsets, len(x)]
    return np.stack([reduce(TABLE[x[a:b]], axis=0) for a, b in pairwise(bounds)])


def operators(proto: ModelProto) -> list[str]:
    return [n.op.name for n in imported(proto, training=True).graph.nodes]


@pytest.mark.parametrize(("reduce", "function"), [("ReduceSum", np.sum), ("ReduceMean", np.mean), ("ReduceMax", np.max), ("ReduceProd", np.prod)])
@pytest.mark.parametrize("offsets", [[0, 3, 6, 9], [0, 2, 4, 9], [1, 2, 3, 8]])
def test_bags_between_constant_offsets(offsets: list[int], reduce: str, function: Any) -> None:
    proto = bags(offsets, reduce)
    compare(proto, {"x": INDICES})
    found = tileflow.inference_model(wrap_model(proto))(INDICES)
    np.testing.assert_allclose(found, wanted(INDICES, offsets, function), rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_one_size_are_one_reduction(weighted: bool) -> None:
    proto = bags([0, 3, 6, 9], weighted=weighted)
    expected = ["Slice", "Gather", *(["Slice", "Unsqueeze", "Mul"] if weighted else []), "Reshape", "ReduceSum", "Identity"]
    assert sorted(operators(proto)) == sorted(expected)
    compare(proto, {"x": INDICES, **({"each": RNG.standard_normal(12).astype(np.float32)} if weighted else {})})


@pytest.mark.parametrize("offsets", [[0, 3, 6, 9], [0, 4, 4, 8], [0, 0, 12]])
def test_bags_of_a_sequence(offsets: list[int]) -> None:
    proto = listed_bags(offsets)
    np.testing.assert_allclose(tileflow.inference_model(wrap_model(proto))(INDICES), wanted(INDICES, offsets), rtol=1e-5)
    assert operators(listed_bags([0, 3, 6, 9])) == ["Gather", "Slice", "Reshape", "ReduceSum", "Identity"]


@pytest.mark.parametrize("make", [bags, listed_bags])
@pytest.mark.parametrize("offsets", [[0, 3, 6, 9], [0, 2, 4, 9]])
def test_bags_train(offsets: list[int], make: Any) -> None:
    """The table follows the gradient of the sums: of the squared error, rate 1, every use of a row counts."""
    model = tileflow.training_model(wrap_model(make(offsets)), optimizer="sgd", learning_rate=1.0, loss="mse")
    y = RNG.standard_normal((4, 3)).astype(np.float32)
    model(INDICES, y)
    slope = 2 * (wanted(INDICES, offsets) - y) / y.size
    moved = TABLE.copy()
    np.subtract.at(moved, INDICES, np.repeat(slope, np.diff([*offsets, 12]), axis=0))
    np.testing.assert_allclose(model.state_dict()["table"], moved, rtol=1e-5, atol=1e-6)


def test_bags_between_computed_offsets_run_and_the_refusal_to_train_names_the_offsets() -> None:
    proto = bags(None)
    for offsets in ([0, 3, 6, 9], [0, 1, 4, 11]):
        found = tileflow.inference_model(wrap_model(proto))(INDICES, np.array(offsets))
        np.testing.assert_allclose(found, wanted(INDICES, offsets), rtol=1e-5)
    model = tileflow.training_model(wrap_model(proto), optimizer="sgd", learning_rate=1.0, loss="mse")
    with pytest.raises(UnsupportedError) as caught:
        model(INDICES, np.array([0, 3, 6, 9]), np.zeros((4, 3), np.float32))
    assert str(caught.value) == (
        "the model 'test': within Loop node 'Bags' sizes follow from data (of offsets), and training needs one program. Export the model with "
        "constants there: bags of embeddings, say, as a matrix [bags, indices] without offsets.")


def growing(turns: int) -> ModelProto:
    """A tensor that gets one element more in every turn, and how long it was."""
    body = body_of([node("Concat", ["h", "two"], ["h2"], axis=0), node("Shape", ["h"], ["length"]), node("Identity", ["on"], ["on2"])],
                   [port("i", [], "int64"), port("on", [], "bool"), port("h", None)],
                   [port("on2", [], "bool"), port("h2", None), port("length", None)])
    nodes = [node("Loop", ["n", "", "x"], ["y", "lengths"], body=body)]
    return model_of(nodes, [port("x", [1])], [port("y", [None]), port("lengths", None, "int64")],
                    {"n": np.array(turns), "two": np.full(1, 2, np.float32)}, opset=18)


@pytest.mark.parametrize("turns", [1, 2, 7])
def test_what_grows_from_turn_to_turn(turns: int) -> None:
    y, lengths = run(imported(growing(turns)), {"x": np.ones(1, np.float32)})
    np.testing.assert_array_equal(y, [1, *[2] * turns])
    np.testing.assert_array_equal(lengths, np.arange(1, turns + 1)[:, None])


@pytest.mark.parametrize("turns", [0, 5000])
def test_no_turns_and_too_many_are_refused(turns: int) -> None:
    with pytest.raises(UnsupportedError, match=r"makes float32\[2\] of 'x', which is float32\[1\] before the first turn; types must stay"):
        imported(growing(turns))
