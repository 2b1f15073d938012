"""Sequences of a known length: lists at import, nothing in the graph."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper
from onnx_models import compare, imported, model_of, node, port

import tileflow
from tileflow.importers.onnx import wrap_model
from tileflow.system.errors import ShapeError, UnsupportedError

RNG = np.random.default_rng(0)


def split(inputs: list[str], places: list[int], weights: dict[str, Any], **attributes: Any) -> Any:
    """x [2, 5] is split; the outputs are elements of the sequence."""
    nodes: list[NodeProto] = [node("SplitToSequence", inputs, ["s"], axis=1, **attributes)]
    constants = {f"i{k}": np.int64(k) for k in places}
    nodes += [node("SequenceAt", ["s", f"i{k}"], [f"y{n}"]) for n, k in enumerate(places)]
    nodes.append(node("SequenceLength", ["s"], ["n"]))
    return model_of(nodes, [port("x", [2, 5])], [*(f"y{n}" for n in range(len(places))), "n"], {**constants, **weights})


@pytest.mark.parametrize(("inputs", "weights", "places", "attributes"), [
    (["x", "size"], {"size": np.int64(2)}, [0, -1], {}), (["x", "size"], {"size": np.int64(9)}, [0], {}),
    (["x", "sizes"], {"sizes": np.array([1, 3, 1])}, [1, 2], {}), (["x"], {}, [4], {}), (["x"], {}, [1, 3], {"keepdims": 0})])
def test_parts(inputs: list[str], weights: dict[str, Any], places: list[int], attributes: dict[str, Any]) -> None:
    compare(split(inputs, places, weights, **attributes), {"x": RNG.standard_normal((2, 5)).astype(np.float32)})


def test_constructed() -> None:
    proto = model_of([node("SequenceConstruct", ["x", "w"], ["s"]), node("SequenceAt", ["s", "one"], ["a"]), node("Add", ["x", "a"], ["y"])],
                     [port("x", [2])], ["y"], {"w": np.ones(2, np.float32), "one": np.int64(1)})
    assert compare(proto, {"x": np.ones(2, np.float32)}).graph.parameters


def test_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"splits 5 elements into parts of \[1, 3\]"):
        imported(split(["x", "sizes"], [0], {"sizes": np.array([1, 3])}))
    with pytest.raises(ShapeError, match="takes element 3 of a sequence of 3"):
        imported(split(["x", "size"], [3], {"size": np.int64(2)}))
    empty = [node("SequenceEmpty", [], ["s"])]
    for reader, why in ((node("SequenceAt", ["s", "i"], ["y"]), "takes element 0 of a sequence of 0"),
                        (node("SequenceInsert", ["s", "x", "one"], ["y"]), "takes element 1 of a sequence of 0"),
                        (node("ConcatFromSequence", ["s"], ["y"], axis=0), "joins a sequence that is empty")):
        with pytest.raises(ShapeError, match=why):
            imported(model_of([*empty, reader], [port("x", [2])], ["y"], {"i": np.int64(0), "one": np.int64(1)}))


@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_inserted_and_joined(axis: int, new_axis: int) -> None:
    """At the end without a place, before it with one; parts of other sizes where no axis is new."""
    last = np.ones((2, 3) if new_axis else ((4, 3) if axis == 0 else (2, 4)), np.float32)
    nodes = [node("SequenceEmpty", [], ["s0"]), node("SequenceInsert", ["s0", "x"], ["s1"]), node("SequenceInsert", ["s1", "w"], ["s2"]),
             node("Neg", ["x"], ["z"]), node("SequenceInsert", ["s2", "z", "at"], ["s3"]),
             node("ConcatFromSequence", ["s3"], ["y"], axis=axis, new_axis=new_axis)]
    compare(model_of(nodes, [port("x", [2, 3])], ["y"], {"w": last, "at": np.int64(-1)}), {"x": RNG.standard_normal((2, 3)).astype(np.float32)})


def test_endless_sequences_are_refused() -> None:
    proto = model_of([node("SplitToSequence", ["x"], ["s"], axis=0), node("SequenceLength", ["s"], ["y"])], [port("x", [5000, 1])], ["y"])
    with pytest.raises(UnsupportedError, match="a sequence of more than 4096 parts"):
        imported(proto)


def test_an_empty_sequence_is_handed_to_a_loop_whose_turns_are_data() -> None:
    """Nothing else is made before the loop, so that no graph runs there."""
    body = helper.make_graph(
        [node("Identity", ["on"], ["still"]), node("Cast", ["i"], ["number"], to=1), node("Add", ["x", "number"], ["part"]),
         node("SequenceInsert", ["s", "part"], ["t"])], "body",
        [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("on", 9, []), helper.make_tensor_sequence_value_info("s", 1, None)],
        [helper.make_tensor_value_info("still", 9, []), helper.make_tensor_sequence_value_info("t", 1, None)])
    nodes = [node("SequenceEmpty", [], ["none"]), node("Loop", ["n", "", "none"], ["all"], body=body),
             node("SequenceInsert", ["all", "x"], ["more"]), node("ConcatFromSequence", ["more"], ["y"], axis=0)]
    model = tileflow.inference_model(wrap_model(model_of(nodes, [port("x", [2]), port("n", [], "int64")], ["y"], opset=17)))
    x = np.array([1, 2], np.float32)
    for turns in (3, 0, 1):
        np.testing.assert_array_equal(model(x, np.int64(turns)), np.concatenate([*(x + i for i in range(turns)), x]))
