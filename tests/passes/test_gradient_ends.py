"""Where gradients end on their way (8-bit operators, casts to whole numbers) and where weights are stored as integers: it is said, by name."""
from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate
from onnx import ModelProto, NodeProto
from onnx_models import model_of, node, port

import tileflow
from tileflow import cli
from tileflow.graph import Builder, Graph, TensorType
from tileflow.importers.onnx import import_graph, wrap_model
from tileflow.passes.autograd import barriers
from tileflow.system.errors import OptionError, UnsupportedError

DRAW = np.random.default_rng(5)
X, Y = DRAW.standard_normal((4, 6)).astype(np.float32), DRAW.standard_normal((4, 3)).astype(np.float32)


def w(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng([rows, columns]).standard_normal((rows, columns)).astype(np.float32)


BYTES = DRAW.integers(-100, 100, (6, 6)).astype(np.int8)
DYNAMIC = [node("DynamicQuantizeLinear", ["h"], ["q", "s", "z"], "quantise"), node("MatMulInteger", ["q", "bytes", "z"], ["i"], "product"),
           node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT), node("Mul", ["s", "step"], ["steps"]), node("Mul", ["f", "steps"], ["g"])]
STATIC = [node("QuantizeLinear", ["h", "one", "zero"], ["q"], "quantise"),
          node("QLinearMatMul", ["q", "one", "zero", "bytes", "step", "naught", "one", "zero"], ["i"], "product"),
          node("DequantizeLinear", ["i", "one", "zero"], ["g"])]
WHOLE = [node("Cast", ["h"], ["i"], "whole", to=onnx.TensorProto.INT32), node("Cast", ["i"], ["g"], to=onnx.TensorProto.FLOAT)]
STORED = {"bytes": BYTES, "step": np.float32(0.01), "one": np.float32(0.05), "zero": np.uint8(128), "naught": np.int8(0)}


def model(middle: list[NodeProto], *, head: bool = True, around: bool = False) -> ModelProto:
    """x @ first, then the nodes from h to g, then @ last; `around`: h itself is added behind them."""
    nodes = [node("MatMul", ["x", "first"], ["h"], "first"), *middle, node("Add", ["g", "h" if around else "nothing"], ["a"], "sum"),
             node("MatMul", ["a", "last"], ["y"], "last") if head else node("Identity", ["a"], ["y"])]
    weights = {"first": w(6, 6), "nothing": np.float32(0), **STORED, **({"last": w(6, 3)} if head else {})}
    read = {name for n in nodes for name in n.input}
    return model_of(nodes, [port("x", ["N", 6])], [port("y", ["N", 3 if head else 6])], {n: a for n, a in weights.items() if n in read})


def step(proto: ModelProto, **options: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    """The weights after one update, and what was said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained = tileflow.training_model(wrap_model(proto), loss="mse", optimizer="sgd", learning_rate=0.1, **options)
        trained(X, Y)
    return trained.state_dict(), [str(one.message) for one in said]


@pytest.mark.parametrize(("middle", "where"), [(DYNAMIC, "DynamicQuantizeLinear (quantise)"), (STATIC, "QuantizeLinear (quantise)"),
                                               (WHOLE, "Cast (whole)")], ids=["dynamic", "static", "cast"])
def test_weights_before_an_integer_path_are_named_and_stay(middle: list[NodeProto], where: str, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    proto = model(middle)
    after, said = step(proto)
    sentence, = [one for one in said if "no gradient gets there" in one]
    assert sentence.startswith(f"Not trained, because no gradient gets there: first. It ends at {where}; ")
    assert np.array_equal(after["first"], w(6, 6))
    assert not np.array_equal(after["last"], w(6, 3))
    onnx.save(proto, tmp_path / "m.onnx")
    assert cli.main(["inspect", str(tmp_path / "m.onnx"), "--training"]) == 0
    assert f"Nodes that end gradients\n  Not trained, because no gradient gets there: first. It ends at {where}; " in capsys.readouterr().out
    with pytest.raises(UnsupportedError, match=rf"has no gradient by x: it ends at {where}".replace("(", "[(]").replace(")", "[)]")):
        tileflow.grad(wrap_model(proto), X)
    assert set(tileflow.grad(wrap_model(proto), X, wrt="last")) == {"last"}


@pytest.mark.parametrize("middle", [DYNAMIC, STATIC, WHOLE], ids=["dynamic", "static", "cast"])
def test_a_model_of_which_nothing_would_train_is_an_error(middle: list[NodeProto], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = model(middle, head=False)
    trained = tileflow.training_model(wrap_model(proto), loss="mse")
    with pytest.raises(UnsupportedError, match=r"Nothing of the model would be trained.*first. It ends at \w+ "):
        trained(X, X)
    onnx.save(proto, tmp_path / "m.onnx")
    assert cli.main(["inspect", str(tmp_path / "m.onnx"), "--training"]) == 2
    text = capsys.readouterr().out
    assert "no gradient gets there: first. It ends at" in text
    assert "It cannot be trained like this" in text


@pytest.mark.parametrize(("middle", "where"), [(DYNAMIC, "DynamicQuantizeLinear (quantise)"), (WHOLE, "Cast (whole)")], ids=["dynamic", "cast"])
def test_gradients_that_lack_a_part_are_said_and_are_those_of_the_rest(middle: list[NodeProto], where: str) -> None:
    proto = model(middle, around=True)
    after, said = step(proto)
    sentence, = [one for one in said if "lack a part" in one]
    assert sentence.startswith("Their gradients lack a part: first. ")
    assert where in sentence
    with pytest.warns(UserWarning, match="Their gradients lack a part: x"):
        found = tileflow.grad(wrap_model(proto), X)["x"]
    np.testing.assert_allclose(found, np.ones((4, 3)) @ w(6, 3).T @ w(6, 6).T, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(after["first"], w(6, 6))


def test_comparisons_and_places_have_no_derivative_that_would_be_lost() -> None:
    """Where, TopK and Gather by an index: nothing is said of values that have another way; of those that have none, the node is named."""
    graph = Graph("g")
    b = Builder(graph)
    x, z = b.input("x", TensorType("float32", (4, 6))), b.input("z", TensorType("float32", (4, 6)))
    chosen = b.Where(b.Greater(x, z), x, b.constant(np.zeros((4, 6), np.float32)))
    y = b.ReduceSum(chosen, keepdims=0)
    graph.outputs = [y]
    found, = barriers(graph, y, [x, z])
    assert (found.node.op.name, found.behind, found.rounds) == ("Greater", {0, 1}, False)
    assert barriers(graph, y, []) == []


def test_a_model_of_floats_says_nothing() -> None:
    assert step(model([node("Relu", ["h"], ["g"])]))[1] == []


# ---- weights that are stored as integers

def by_cast(with_point: bool) -> ModelProto:
    points = [node("Sub", ["c", "p"], ["d"])] if with_point else []
    nodes = [node("Cast", ["bytes"], ["c"], to=onnx.TensorProto.FLOAT), *points, node("Mul", ["dc"[not with_point], "scale"], ["wide"], "scaled"),
             node("MatMul", ["x", "wide"], ["h"]), node("Add", ["h", "bias"], ["y"])]
    return model_of(nodes, [port("x", ["N", 6])], [port("y", ["N", 6])],
                    {"bytes": BYTES, "scale": w(1, 6), "bias": w(1, 6)[0], **({"p": np.float32(3)} if with_point else {})})


@pytest.mark.parametrize("with_point", [False, True])
def test_cast_and_scaled_weights_are_constants_and_so_are_their_scales(with_point: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = by_cast(with_point)
    given = import_graph(wrap_model(proto), batch=4, training=True)
    assert [s.name for s in given.graph.states] == ["bias"]
    assert any("the file stores them as int8, which has no gradient: bytes. To train them, train the file of floats" in one for one in given.warnings)
    with pytest.raises(OptionError, match=r"'byt\*' names weights that the file stores as int8, which has no gradient: bytes"):
        import_graph(wrap_model(proto), batch=4, training=True, trainable=["byt*"])
    onnx.save(proto, tmp_path / "m.onnx")
    assert cli.main(["inspect", str(tmp_path / "m.onnx"), "--training"]) == 0
    text = capsys.readouterr().out
    assert "constant bytes int8[6, 6] stored as int8, which has no gradient; read by Mul node 'scaled' " in " ".join(text.split())
    assert "a scale of numbers that are stored as integers, in Mul" in text


def test_other_integers_are_no_weights() -> None:
    """A mask of bytes, a product by a float that is no scale of stored integers, and a single byte."""
    nodes = [node("Cast", ["mask"], ["c"], to=onnx.TensorProto.FLOAT), node("Mul", ["c", "x"], ["h"]), node("Cast", ["byte"], ["k"], to=1),
             node("Mul", ["k", "gain"], ["g"]), node("Mul", ["h", "g"], ["y"])]
    proto = model_of(nodes, [port("x", ["N", 6])], [port("y", ["N", 6])], {"mask": np.ones(6, np.uint8), "byte": np.int8(3), "gain": w(1, 6)[0]})
    given = import_graph(wrap_model(proto), batch=4, training=True)
    assert [s.name for s in given.graph.states] == ["gain"]
    assert not any("stores" in one for one in given.warnings)


@pytest.mark.parametrize("middle", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_weights_of_integer_products_are_named(middle: list[NodeProto]) -> None:
    said = import_graph(wrap_model(model(middle)), batch=4, training=True).warnings
    assert any("the file stores them as int8, which has no gradient: bytes." in one for one in said)


# ---- zero points of 8-bit floats

@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_zero_points_of_floats_count(dtype: str) -> None:
    kind = TensorType(dtype, ()).numpy
    x, scale, point = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4), np.float32([0.5, 0.25, 1, 2]), np.float32([1, 0, -2, 0.5]).astype(kind)
    graph = Graph("g")
    b = Builder(graph)
    q = b.QuantizeLinear(b.input("x", TensorType("float32", x.shape)), b.constant(scale), b.constant(point), axis=1)
    graph.outputs = [q, b.DequantizeLinear(q, b.constant(scale), b.constant(point), axis=1)]
    found = evaluate(graph, {"x": x})
    wanted = (x / scale + point.astype(np.float32)).astype(kind)
    assert np.array_equal(found[graph.outputs[0].name].view(np.uint8), wanted.view(np.uint8))
    np.testing.assert_allclose(found[graph.outputs[1].name], (wanted.astype(np.float32) - point.astype(np.float32)) * scale, rtol=1e-6)


def test_a_zero_point_of_zero_keeps_the_sign_of_zero() -> None:
    kind = TensorType("float8_e4m3fn", ()).numpy
    graph = Graph("g")
    b = Builder(graph)
    zero = b.constant(np.zeros((), kind))
    q = b.QuantizeLinear(b.input("x", TensorType("float32", (2,))), b.constant(np.ones((), np.float32)), zero)
    graph.outputs = [q, b.DequantizeLinear(q, b.constant(np.ones((), np.float32)), zero)]
    found = evaluate(graph, {"x": np.array([-0.0, 0.0], np.float32)})
    assert [np.signbit(found[v.name].astype(np.float32)).tolist() for v in graph.outputs] == [[True, False]] * 2
