"""Large graphs from small files take a time that grows with their size, and none of Python's stack."""
from __future__ import annotations

import gc
import time
from collections.abc import Callable

import numpy as np
import paths
import pytest
from effort import at_most
from hostile import array, model_of, ones
from onnx import ModelProto, NodeProto, TensorProto, helper

from tileflow import compiler, inference_model
from tileflow.importers.onnx import UnsupportedNodesError, import_graph, wrap_model
from tileflow.loss import find
from tileflow.lower.plan import make_plan
from tileflow.optim import Adam
from tileflow.program.batching import Batching
from tileflow.system.errors import ModelError

FEW, MANY, MOST = 1500, 6000, 9.0
"""Sizes to compare, and how much longer the larger one may take: 4 is in proportion, 16 its square."""
node = helper.make_node


def chain(n: int, kind: Callable[[str, str, int], list[NodeProto]]) -> list[NodeProto]:
    names = ["x", *(f"v{i}" for i in range(n - 1)), "y"]
    return [made for i in range(n) for made in kind(names[i], names[i + 1], i)]


def fused(n: int) -> ModelProto:
    return model_of(chain(n, lambda a, b, i: [node("Relu", [a], [b]) if i % 2 else node("Add", [a, "w"], [b])]), [2, 3], [ones("w", 3)])


def plain(n: int) -> ModelProto:
    return model_of(chain(n, lambda a, b, i: [node("Softmax", [a], [b], axis=-1)]), [2, 3], [])


def turned(n: int) -> ModelProto:
    """Weights that the prologue lays out anew, a crossing each."""
    nodes = chain(n // 4, lambda a, b, i: [node("Transpose", [f"w{i}"], [f"t{i}"], perm=[1, 0]), node("MatMul", [a, f"t{i}"], [b])])
    return model_of(nodes, [2, 4], [ones(f"w{i}", 4, 4) for i in range(n // 4)])


def fan(n: int) -> ModelProto:
    """One value with many readers, and as many outputs that are copies of it."""
    names = [f"y{i}" for i in range(n // 2)]
    nodes = [node("Softmax", ["x"], ["s"]), *(node("Identity", ["s"], [name]) for name in names)]
    return model_of(nodes, [2, 3], [], outputs=tuple(names))


def total(n: int) -> ModelProto:
    nodes = [node("Softmax", ["x"], ["v0"]), *(node("Softmax", [f"v{i}"], [f"v{i + 1}"]) for i in range(n // 4))]
    return model_of([*nodes, node("Sum", [f"v{i}" for i in range(n // 4 + 1)], ["y"])], [2, 3], [])


def dynamic(n: int) -> ModelProto:
    """Nothing of it can be imported, for a reason that lies far above each node."""
    nodes = [*chain(n // 2, lambda a, b, i: [node("Relu", [a], [b])]), node("Cast", ["y"], ["k"], to=TensorProto.INT64)]
    return model_of([*nodes, *(node("Reshape", ["x", "k"], [f"r{i}"]) for i in range(n // 2))], [2, 3], [], outputs=("y",))


def compiled(model: ModelProto) -> None:
    imported = import_graph(wrap_model(model))
    make_plan(compiler.inference(imported.graph, Batching(2)).program, 1)


def trained(model: ModelProto) -> None:
    imported = import_graph(wrap_model(model), training=True, trainable=["*"])
    make_plan(compiler.training(imported.graph, find("mse"), Adam(), Batching(2)).program, 1)


def refused(model: ModelProto) -> None:
    with pytest.raises(UnsupportedNodesError, match="is computed while the model runs"):
        import_graph(wrap_model(model))


def normalised(n: int) -> ModelProto:
    parts = "stmq"
    nodes = chain(n // 16, lambda a, b, i: [node("BatchNormalization", [a, *(f"{p}{i}" for p in parts)], [b])])
    return model_of(nodes, [4, 3], [array(f"{p}{i}", [1, 2, 3]) for p in parts for i in range(n // 16)])


@pytest.mark.parametrize(("make", "act"), [
    paths.rare(fused, compiled), (plain, compiled), paths.rare(turned, compiled), paths.rare(fan, compiled), (total, compiled), (dynamic, refused),
    paths.rare(normalised, trained)], ids=lambda f: f.__name__)
def test_time_grows_with_the_graph(make: Callable[[int], ModelProto], act: Callable[[ModelProto], None]):
    gc.collect()
    gc.freeze()                                              # what other tests left is not searched for cycles
    act(make(40))                                            # warms up
    for _ in range(3):                                       # other processes make one time longer, not all
        seconds = []
        for model in (make(FEW), make(MANY)):
            began = time.process_time()
            act(model)
            seconds.append(time.process_time() - began)
        if seconds[1] < MOST * max(seconds[0], 0.05):
            return
    raise AssertionError(seconds)


def test_a_sum_of_thousands_of_operands(monkeypatch: pytest.MonkeyPatch):
    """It is taken a few at a time, from the left, as one sum would be; so are Mean and Max."""
    x = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    cut = [node("Split", ["x"], [f"v{i}" for i in range(30)], axis=0)]
    for name in ("Sum", "Mean", "Max", "Min"):
        y = inference_model(wrap_model(model_of([*cut, node(name, [f"v{i}" for i in range(30)], ["y"])], [30, 4], [])))(x)
        wanted = x[:1]
        for row in x[1:]:
            wanted = {"Max": np.maximum, "Min": np.minimum}.get(name, np.add)(wanted, row)
        np.testing.assert_array_equal(y, wanted / np.float32(30) if name == "Mean" else wanted)
    compiled(model_of([node("Sum", ["x"] * 20_000, ["y"])], [2, 3], []))


def test_a_chain_far_deeper_than_the_stack():
    model = wrap_model(fused(4000))
    x = np.ones((2, 3), np.float32)
    wanted, w = x, np.linspace(-1, 1, 3).astype(np.float32)
    for i in range(4000):
        wanted = np.maximum(wanted, 0) if i % 2 else wanted + w
    np.testing.assert_array_equal(inference_model(model)(x), wanted)


def test_functions_that_unfold_endlessly_are_counted_first():
    """1.3 KB: each function calls the next one twice."""
    bodies = [helper.make_function("mine", f"F{i}", ["a"], ["b"], [node(f"F{i + 1}", ["a"], ["t"], domain="mine"),
                                                                  node(f"F{i + 1}", ["t"], ["b"], domain="mine")],
                                   [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]) for i in range(17)]
    bodies.append(helper.make_function("mine", "F17", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]))
    model = model_of([node("F0", ["x"], ["y"], domain="mine")], [1], [])
    model.functions.extend(bodies)
    says = r"its functions unfold into 393,215 nodes, and the file holds 36; tileflow takes up to 23,600"
    with at_most(100_000), pytest.raises(ModelError, match=says):
        wrap_model(model)
