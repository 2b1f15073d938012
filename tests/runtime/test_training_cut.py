"""Training of models whose sizes follow from data that no trained weight changes; where one does, the sentence says which node and what to do."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow.importers.onnx import wrap_model
from tileflow.system.errors import OptionError, ShapeError, TrainingError, UnsupportedError

DRAW = np.random.default_rng(7)
W, V = DRAW.standard_normal((5, 4)).astype(np.float64), DRAW.standard_normal((4, 3)).astype(np.float64)
RATE = 0.1


def sequences(rows: int, counts: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [rows, 6, 5], and which of their places count."""
    x = np.random.default_rng(seed).standard_normal((rows, 6, 5))
    return x, np.arange(6)[None] < np.array(counts)[:, None]


def packed() -> ModelProto:
    """The places that a mask names, through two layers: as many rows as there are."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Tanh", ["h"], ["t"]), node("NonZero", ["mask"], ["found"], "places"),
             node("Transpose", ["found"], ["pairs"]), node("GatherND", ["t", "pairs"], ["rows"]), node("MatMul", ["rows", "v"], ["y"])]
    return model_of(nodes, [port("x", ["N", 6, 5], "float64"), port("mask", ["N", 6], "bool")], [port("y", [None, 3], "float64")], {"w": W, "v": V})


def trained(proto: ModelProto, **options: Any) -> Any:
    options = {"optimizer": "sgd", "learning_rate": RATE, "on_new_shape": "compile", **options}
    return tileflow.training_model(wrap_model(proto), loss="mse", precision="64", **options)


def test_sizes_that_inputs_decide_train_as_in_pytorch() -> None:
    """Other counts, and so other sizes, in every call; twice the same sizes by another mask are one program."""
    torch = needs("torch")
    w, v = (torch.tensor(a, requires_grad=True) for a in (W, V))
    sgd = torch.optim.SGD([w, v], lr=RATE)
    model = trained(packed())
    engines = []
    for seed, counts in enumerate([[6, 2, 3], [1, 4, 4], [4, 1, 4], [3, 3, 5]]):
        x, mask = sequences(3, counts, seed)
        y = np.random.default_rng(100 + seed).standard_normal((sum(counts), 3))
        out, loss = model(x, mask, y)
        wanted = torch.tanh(torch.tensor(x) @ w)[torch.tensor(mask)] @ v
        by_torch = torch.nn.functional.mse_loss(wanted, torch.tensor(y))
        sgd.zero_grad()
        by_torch.backward()
        sgd.step()
        np.testing.assert_allclose(out, wanted.detach().numpy(), rtol=1e-9)
        np.testing.assert_allclose(loss, by_torch.item(), rtol=1e-9)
        engines.append(model.engine)
    found = model.state_dict()
    np.testing.assert_allclose(found["w"], w.detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(found["v"], v.detach().numpy(), rtol=1e-9)
    assert engines[1] is engines[2], "9 rows each, of other places"
    assert engines[0] is engines[3], "11 rows each"
    assert engines[0] is not engines[1]


def test_values_that_decide_a_shape_are_compiled_in() -> None:
    """A shape that is an input, computed further: another value is another program, and the weights are one."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Mul", ["sizes", "two"], ["doubled"]), node("Reshape", ["h", "doubled"], ["y"], "shaped")]
    proto = model_of(nodes, [port("x", [4, 5], "float64"), port("sizes", [2], "int64")], [port("y", [None, None], "float64")],
                     {"w": W, "two": np.array([2, 2])})
    model, w = trained(proto), W
    x = DRAW.standard_normal((4, 5))
    for sizes in ([1, 4], [2, 2], [1, 4]):
        y = DRAW.standard_normal([2 * n for n in sizes])
        out, _ = model(x, np.array(sizes), y)
        np.testing.assert_allclose(out, (x @ w).reshape(y.shape), rtol=1e-9)
        w = w - RATE * x.T @ (2 * ((x @ w).reshape(y.shape) - y) / y.size).reshape(4, 4)
    np.testing.assert_allclose(model.state_dict()["w"], w, rtol=1e-9)


def test_cuts_behind_cuts() -> None:
    """What one cut finds decides another."""
    nodes = [node("NonZero", ["mask"], ["one"]), node("Gather", ["one", "zero"], ["rows"], axis=0), node("Unique", ["rows"], ["once"], "unique"),
             node("Gather", ["x", "once"], ["some"], axis=0), node("MatMul", ["some", "w"], ["y"])]
    proto = model_of(nodes, [port("x", ["N", 5], "float64"), port("mask", ["N", 3], "bool")], [port("y", [None, 4], "float64")],
                     {"w": W, "zero": np.array(0)})
    x, mask = DRAW.standard_normal((4, 5)), np.array([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]], bool)
    y = np.zeros((3, 4))
    model = trained(proto)
    model(x, mask, y)
    some = x[[0, 2, 3]]
    np.testing.assert_allclose(model.state_dict()["w"], W - RATE * some.T @ (2 * some @ W / 12), rtol=1e-9)


def behind_weights() -> ModelProto:
    """NonZero of what a weight made, then another layer."""
    nodes = [node("MatMul", ["x", "w"], ["h"], "first"), node("Greater", ["h", "zero"], ["on"]), node("NonZero", ["on"], ["found"], "places"),
             node("Transpose", ["found"], ["pairs"]), node("GatherND", ["h", "pairs"], ["some"]), node("Mul", ["some", "gain"], ["y"])]
    weights = {"w": W, "zero": np.float64(0), "gain": np.float64([1.5])}
    return model_of(nodes, [port("x", ["N", 5], "float64")], [port("y", [None], "float64")], weights)


def test_a_cut_on_the_way_names_the_node_the_weights_and_what_to_do() -> None:
    x = DRAW.standard_normal((3, 5))
    with pytest.raises(UnsupportedError, match=r"at NonZero node 'places' sizes follow from .* \(by w\).*Freeze these weights"):
        trained(behind_weights())(x, np.zeros(3))


def test_behind_frozen_weights_the_rest_trains() -> None:
    x = DRAW.standard_normal((3, 5))
    h = x @ W
    some = h[h > 0]
    model = trained(behind_weights(), trainable="gain")
    y = np.zeros(len(some))
    out, _ = model(x, y)
    np.testing.assert_allclose(out, 1.5 * some, rtol=1e-9)
    found = model.state_dict()
    np.testing.assert_allclose(found["gain"], 1.5 - RATE * 2 * np.mean(1.5 * some * some), rtol=1e-9)
    assert np.array_equal(found["w"], W)


def test_the_shape_of_what_a_weight_made_changes_with_no_number() -> None:
    """Shape of the hidden layer is on the way to the size, and the weights are not."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Shape", ["h"], ["s"]), node("Gather", ["s", "one"], ["width"]),
             node("Mul", ["n", "width"], ["n4"]), node("Concat", ["n4", "minus"], ["shape"], axis=0), node("Reshape", ["h", "shape"], ["y"])]
    proto = model_of(nodes, [port("x", [4, 5], "float64"), port("n", [1], "int64")], [port("y", [None, None], "float64")],
                     {"w": W, "one": np.array([1]), "minus": np.array([-1])})
    x = DRAW.standard_normal((4, 5))
    out, _ = trained(proto)(x, np.array([2]), np.zeros((8, 2)))
    np.testing.assert_allclose(out, (x @ W).reshape(8, 2), rtol=1e-9)


def test_what_cannot_be_asked_of_such_models() -> None:
    x, mask = sequences(3, [6, 2, 3])
    y = np.zeros((11, 3))
    with pytest.raises(OptionError, match=r"a call trains one: leave gradient_accumulation=3 out"):
        trained(packed(), gradient_accumulation=3)(x, mask, y)
    model = tileflow.training_model(wrap_model(packed()), loss="mse", precision="64")
    model(x, mask, y)
    with pytest.raises(ShapeError, match=r"Shape mismatch for x: .*set on_new_shape='compile'"):
        model(x[:2], mask[:2], y[:8])
    other = sequences(3, [1, 1, 1])[1]
    assert model(x, other, y[:3])[0].shape == (3, 3), "sizes within the model are compiled whatever on_new_shape says"


def test_a_trained_file_is_written_and_runs(tmp_path: Path) -> None:
    x, mask = sequences(3, [6, 2, 3])
    model = trained(packed())
    model(x, mask, np.zeros((11, 3)))
    model.save_onnx(tmp_path / "after.onnx")
    after = onnx.load(tmp_path / "after.onnx")
    found = model.state_dict()
    for tensor in after.graph.initializer:
        assert np.array_equal(onnx.numpy_helper.to_array(tensor), found[tensor.name])
    y = tileflow.inference_model(tmp_path / "after.onnx")(x, mask)
    np.testing.assert_allclose(y, np.tanh(x @ found["w"])[mask] @ found["v"], rtol=1e-9)


def test_a_body_with_a_cut_is_refused_in_a_sentence() -> None:
    body = onnx.helper.make_graph([node("NonZero", ["m"], ["found"], "within"), node("Shape", ["found"], ["s"]), node("Cast", ["s"], ["f"], to=11),
                                   node("ReduceSum", ["f"], ["total"], keepdims=0), node("Add", ["carried", "total"], ["next"]),
                                   node("Identity", ["going"], ["on"])], "body",
                                  [port("i", [], "int64"), port("going", [], "bool"), port("carried", [4, 4], "float64")],
                                  [port("on", [], "bool"), port("next", [4, 4], "float64")])
    body.node[0].input[0] = "mask"
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Loop", ["turns", "", "h"], ["y"], "loop", body=body)]
    proto = model_of(nodes, [port("x", [4, 5], "float64"), port("mask", [4], "bool")], [port("y", [4, 4], "float64")], {"w": W, "turns": np.array(2)})
    with pytest.raises((UnsupportedError, TrainingError), match=r"loop|within"):
        trained(proto)(DRAW.standard_normal((4, 5)), np.ones(4, bool), np.zeros((4, 4)))
