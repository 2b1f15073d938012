"""Group normalisation as files and people write it becomes one operator; what is only nearly that stays as it is."""
from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate
from onnx import TensorProto, helper
from peers import needs

import tileflow
from tileflow.graph import Builder, Graph, Hints, Origin, TensorType, Value, verify
from tileflow.importers.onnx import import_graph, wrap_model
from tileflow.passes.gather import gather
from tileflow.system.errors import ShapeError

N, C, G, H, W = 2, 6, 3, 4, 5
Change = dict[str, Any]


def exported(b: Builder, x: Value, change: Change) -> Value:
    """As both exporters of PyTorch write it."""
    groups = change.get("groups", G)
    rows = b.Reshape(x, shape=change.get("rows", (N, groups, -1)))
    ones, zeros = (b.constant(np.full(rows.shape[1], change.get(name, n), "float64")) for name, n in (("one", 1), ("zero", 0)))
    y = b.InstanceNormalization(rows, ones, zeros, epsilon=1e-3)
    return scaled(b, y, rows, x, change)


def written(b: Builder, x: Value, change: Change) -> Value:
    """In means and squares."""
    groups = change.get("groups", G)
    rows = b.Reshape(x, shape=change.get("rows", (N, groups, -1)))
    axes = change.get("axes", tuple(range(2, rows.type.rank)))
    less = b.Sub(rows, b.ReduceMean(rows, axes=axes))
    other = b.Sub(rows, b.ReduceMean(rows, axes=(1,))) if change.get("another") else less
    square = b.Mul(less, other) if change.get("product") else b.Pow(other, b.scalar(change.get("power", 2.0), x))
    deviation = b.Sqrt(b.Add(b.ReduceMean(square, axes=axes), b.scalar(1e-3, x)))
    y = b.Mul(less, b.Reciprocal(deviation)) if change.get("reciprocal") else b.Div(less, deviation)
    return scaled(b, y, rows, x, change)


def scaled(b: Builder, y: Value, rows: Value, x: Value, change: Change) -> Value:
    if "read" in change:
        b.graph.outputs.append({"normal": y, "rows": rows}[change["read"]])
    y = b.Reshape(y, shape=change.get("back", x.shape))
    scale, shift = (b.input(name, TensorType("float64", change.get(name, (C, 1, 1)))) for name in ("scale", "shift"))
    with b.at(Origin(("p",), hints=change.get("hints", Hints()))):
        return b.Add(b.Mul(scale, y), shift) if change.get("turned") else b.Add(b.Mul(y, scale), shift)


def made(write: Callable[[Builder, Value, Change], Value], change: Change) -> Graph:
    graph = Graph()
    b = Builder(graph)
    graph.outputs.append(write(b, b.input("x", TensorType("float64", (N, C, H, W))), change))
    return graph


def values(graph: Graph) -> list[np.ndarray]:
    """The outputs for the same inputs."""
    rng = np.random.default_rng(0)
    found = evaluate(graph, {v.name: rng.standard_normal(v.shape) for v in graph.inputs})
    return [found[v.name] for v in graph.outputs]


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


@pytest.mark.parametrize("change", [{}, {"turned": True}, {"groups": 1}, {"groups": C}, {"scale": (1, C, 1, 1)}, {"rows": (N, G, C // G, H * W)},
                                    {"read": "rows"}])
@pytest.mark.parametrize("write", [exported, written])
def test_groups_are_found(write: Callable[..., Value], change: Change) -> None:
    wanted, found = values(made(write, change)), verify(gather(made(write, change)))
    assert names(found).count("GroupNormalization") == 1
    assert not {"InstanceNormalization", "ReduceMean", "Mul", "Add"} & {*names(found)}
    for a, b in zip(values(found), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("change", [{"reciprocal": True}, {"product": True}, {"reciprocal": True, "product": True}])
def test_groups_written_otherwise_are_found(change: Change) -> None:
    found = verify(gather(made(written, change)))
    assert names(found).count("GroupNormalization") == 1
    np.testing.assert_allclose(values(found)[0], values(made(written, change))[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("write", "change"), [
    (exported, {"one": 1.5}), (exported, {"zero": 0.1}), (exported, {"read": "normal"}),
    (exported, {"rows": (1, N * G, -1)}), (exported, {"rows": (N * G, 2, -1), "groups": 2}), (exported, {"rows": (N, 4, -1)}),
    (written, {"power": 3.0}), (written, {"another": True}), (written, {"axes": (2,), "rows": (N, G, C // G, H * W)}), (written, {"axes": (1, 2)}),
])
def test_what_is_nearly_that_stays(write: Callable[..., Value], change: Change) -> None:
    graph = made(write, change)
    before = [str(n.op) for n in graph.nodes]
    assert [str(n.op) for n in gather(graph).nodes] == before


def test_means_and_squares_that_somebody_else_reads_are_found_as_rows() -> None:
    """The normalised rows are an output: what follows them stays."""
    wanted, found = values(made(written, {"read": "normal"})), verify(gather(made(written, {"read": "normal"})))
    assert names(found) == ["Reshape", "GroupNormalization", "Reshape", "Mul", "Add"]
    for a, b in zip(values(found), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("change", [{"scale": (C, H, W)}, {"scale": (1, H, W)}, {"scale": (1, 1, W)}, {"scale": (N, C, 1, 1)},
                                    {"hints": Hints(partials="float16")}])
@pytest.mark.parametrize("write", [exported, written])
def test_a_product_that_is_not_per_channel_stays(write: Callable[..., Value], change: Change) -> None:
    """The normalisation before it is found all the same; nor is it taken in where something was asked of it alone."""
    wanted, found = values(made(write, change)), verify(gather(made(write, change)))
    assert {"Mul", "Add"} <= {*names(found)}
    assert "GroupNormalization" in names(found)
    np.testing.assert_allclose(values(found)[-1], wanted[-1], rtol=1e-10, atol=1e-12)


# ---- files

def file(opset: int, scale: int, **attributes: Any) -> onnx.ModelProto:
    """GroupNormalization with `scale` numbers in scale and bias, in a file that has an operator after it."""
    arrays = {"s": np.linspace(0.5, 2, scale), "b": np.linspace(-1, 1, scale)}
    graph = helper.make_graph(
        [helper.make_node("GroupNormalization", ["x", "s", "b"], ["n"], "norm", num_groups=3, epsilon=1e-3, **attributes),
         helper.make_node("Relu", ["n"], ["y"], "act")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 4, 5])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 6, 4, 5])],
        [onnx.numpy_helper.from_array(a.astype("float32"), n) for n, a in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize(("opset", "scale", "attributes"), [
    (18, 3, {}), (20, 3, {}), (21, 6, {}), (21, 6, {"stash_type": 11}), (21, 6, {"stash_type": 10})])
def test_the_operator_of_each_opset(tmp_path: Path, opset: int, scale: int, attributes: dict[str, Any]) -> None:
    """Until opset 21 a scale was a group's."""
    path = tmp_path / "norm.onnx"
    path.write_bytes(file(opset, scale, **attributes).SerializeToString())
    x = np.random.default_rng(1).standard_normal((2, 6, 4, 5)).astype("float32")
    y = tileflow.inference_model(path)(x)
    s, b = (np.repeat(np.linspace(*ends, scale), 6 // scale).reshape(6, 1, 1) for ends in ((0.5, 2), (-1, 1)))
    rows = x.astype("float64").reshape(2, 3, -1)
    normal = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-3)
    np.testing.assert_allclose(y, np.maximum(normal.reshape(x.shape) * s + b, 0), atol=2e-5 if attributes.get("stash_type") != 10 else 5e-3)


@pytest.mark.parametrize(("opset", "scale"), [(18, 3), (21, 6)])
@pytest.mark.parametrize("around", ["If", "Loop"])
def test_the_operator_within_a_branch_and_a_loop(tmp_path: Path, opset: int, scale: int, around: str) -> None:
    """The body reads scale and bias of the file around it: in the other branch, or without a turn, x stays as it is."""
    plain, value = file(opset, scale), helper.make_tensor_value_info
    shape, scalar = [2, 6, 4, 5], helper.make_tensor_value_info("c", TensorProto.BOOL if around == "If" else TensorProto.INT64, [])
    nodes = [copy.deepcopy(node) for node in plain.graph.node]
    if around == "If":
        then = helper.make_graph(nodes, "then", [], [value("y", TensorProto.FLOAT, shape)])
        other = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "else", [], [value("z", TensorProto.FLOAT, shape)])
        made = helper.make_node("If", ["c"], ["out"], then_branch=then, else_branch=other)
    else:
        nodes[0].input[0] = "state"
        body = helper.make_graph([*nodes, helper.make_node("Identity", ["go"], ["on"])], "body",
                                 [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state", TensorProto.FLOAT, shape)],
                                 [value("on", TensorProto.BOOL, []), value("y", TensorProto.FLOAT, shape)])
        made = helper.make_node("Loop", ["c", "", "x"], ["out"], body=body)
    graph = helper.make_graph([made], "g", [value("x", TensorProto.FLOAT, shape), scalar], [value("out", TensorProto.FLOAT, shape)],
                              plain.graph.initializer)
    path = tmp_path / "around.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=plain.opset_import, ir_version=9).SerializeToString())
    (tmp_path / "plain.onnx").write_bytes(plain.SerializeToString())
    model, alone = tileflow.inference_model(path), tileflow.inference_model(tmp_path / "plain.onnx")
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    for turns in (0, 1) if around == "If" else (0, 1, 2):
        wanted = x
        for _ in range(turns):
            wanted = alone(wanted)
        np.testing.assert_array_equal(model(x, np.array(turns, bool if around == "If" else np.int64)), wanted)


@pytest.mark.parametrize(("opset", "scale"), [(20, 6), (21, 3)])
def test_scales_of_another_opset_are_refused(opset: int, scale: int) -> None:
    with pytest.raises(ShapeError, match=r"scale" if opset == 21 else "opset 21"):
        import_graph(wrap_model(file(opset, scale)))


@pytest.mark.parametrize("how", ["torchscript training", "torchscript evaluation", "dynamo training", "dynamo evaluation"])
def test_every_exporters_groups_are_found(how: str) -> None:
    """Three normalisations, one of them without numbers per channel."""
    needs("torch")
    from exported_networks import export, network
    graph = gather(import_graph(wrap_model(export("Groups", network("Groups"), how)), training="training" in how).graph)
    assert names(graph).count("GroupNormalization") == 3
    assert not {"InstanceNormalization", "Mul", "Add"} & {*names(graph)}
