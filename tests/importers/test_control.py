"""Control flow: branches and loops of ONNX files as rows of the driver, their gradients, and what must not happen in them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate
from images import constants, rows_of
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from samples import cases

import tileflow
from tileflow import exact
from tileflow.compiler import inference
from tileflow.graph import Builder, Graph, Op, State, TensorType, to_text, type_of, verify
from tileflow.graph.copy import copied
from tileflow.graph.digest import digest
from tileflow.importers.onnx import import_graph, wrap_model
from tileflow.importers.onnx.site import DynamicOperandError
from tileflow.kernels.machine.call import Call, Const, In, Out
from tileflow.kernels.machine.leaf import generic
from tileflow.ops.control import INDEX, If, Loop, closed
from tileflow.passes.autocast import CastRule, autocast
from tileflow.passes.autograd import gradients
from tileflow.passes.cse import cse
from tileflow.passes.fold import fold
from tileflow.program.batching import Batching
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
from tileflow.state import Session
from tileflow.system.errors import TileflowError, UnsupportedError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze

Array = np.ndarray
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SMALL = chip("gc200").variant(name="small", tiles=16)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def port(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def graph_of(nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "g", inputs, outputs)


def model_of(nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto],
             weights: Mapping[str, Array] | None = None, opset: int = 18) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(a, name) for name, a in (weights or {}).items()]
    made = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def f4(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


W1, W2 = f4(4, 4, seed=1), f4(4, 4, seed=2)


def branches() -> onnx.ModelProto:
    """relu(x w1) where c, else tanh(x w2)."""
    then = graph_of([node("MatMul", ["x", "w1"], ["t0"]), node("Relu", ["t0"], ["t1"])], [], [port("t1", [3, 4])])
    other = graph_of([node("MatMul", ["x", "w2"], ["e0"]), node("Tanh", ["e0"], ["e1"])], [], [port("e1", [3, 4])])
    return model_of([node("If", ["c"], ["y"], then_branch=then, else_branch=other)], [port("c", [], BOOL), port("x", [3, 4])],
                    [port("y", [3, 4])], {"w1": W1, "w2": W2})


def settling(limit: bool = True) -> onnx.ModelProto:
    """h = tanh(h w + x) while the largest of h is below 0.97, at most n times."""
    body = graph_of(
        [node("MatMul", ["h", "w"], ["m"]), node("Add", ["m", "x"], ["a"]), node("Tanh", ["a"], ["h2"]),
         node("ReduceMax", ["h2"], ["most"], keepdims=0), node("Less", ["most", "high"], ["on2"]), node("Identity", ["k"], ["k2"])],
        [port("i", [], INT64), port("on", [], BOOL), port("h", [3, 4]), port("k", [1])], [port("on2", [], BOOL), port("h2", [3, 4]), port("k2", [1])])
    inputs = [port("n", [], INT64), port("c", [], BOOL), port("h0", [3, 4]), port("x", [3, 4]), port("k0", [1])]
    return model_of([node("Loop", ["n" if limit else "", "c", "h0", "k0"], ["y", "k1"], body=body)], inputs if limit else inputs[1:],
                    [port("y", [3, 4]), port("k1", [1])], {"w": W1, "high": np.array(0.97, np.float32)})


def recurrent(directions: int = 0, axis: int = 1, steps: int = 5) -> onnx.ModelProto:
    """A plain recurrent network as a Scan."""
    body = graph_of([node("MatMul", ["h", "w"], ["m"]), node("Add", ["m", "xs"], ["a"]), node("Tanh", ["a"], ["h2"]),
                     node("Identity", ["h2"], ["o"])],
                    [port("h", [2, 4]), port("xs", [2, 4])], [port("h2", [2, 4]), port("o", [2, 4])])
    shape = [2, 4]
    shape.insert(axis, steps)
    scan = node("Scan", ["h0", "x"], ["h", "ys"], body=body, num_scan_inputs=1, scan_input_axes=[axis], scan_output_axes=[axis],
                scan_input_directions=[directions & 1], scan_output_directions=[directions >> 1])
    return model_of([scan], [port("h0", [2, 4]), port("x", shape)], [port("h", [2, 4]), port("ys", shape)], {"w": W1})


def powers(turns: int) -> onnx.ModelProto:
    """h = tanh(h w), and of each turn h times its number."""
    body = graph_of([node("MatMul", ["h", "w"], ["m"]), node("Tanh", ["m"], ["h2"]), node("Cast", ["i"], ["fi"], to=FLOAT),
                     node("Mul", ["h2", "fi"], ["o"]), node("Identity", ["on"], ["on2"])],
                    [port("i", [], INT64), port("on", [], BOOL), port("h", [2, 4])], [port("on2", [], BOOL), port("h2", [2, 4]), port("o", [2, 4])])
    return model_of([node("Loop", ["n", "", "h0"], ["h", "ys"], body=body)], [port("h0", [2, 4])],
                    [port("h", [2, 4]), port("ys", ["a", "b", "c"])], {"w": W1, "n": np.array(turns)})


def nested() -> onnx.ModelProto:
    """A loop over rows around a loop of n turns, in which a branch doubles or halves what is odd or even; the outer turn is used inside."""
    one = {"two": np.array(2), "zero": np.array(0), "half": np.array(0.5, np.float32), "w": f4(4, scale=0.5), "n": np.array(3)}
    double = graph_of([node("Add", ["v", "v"], ["d"])], [], [port("d", [4])])
    half = graph_of([node("Mul", ["v", "half"], ["e0"]), node("Mul", ["e0", "row"], ["e"])], [], [port("e", [4])])
    inner = graph_of([node("Add", ["j", "i"], ["ij"]), node("Mod", ["ij", "two"], ["odd"]), node("Equal", ["odd", "zero"], ["even"]),
                      node("If", ["even"], ["u"], then_branch=double, else_branch=half), node("Mul", ["u", "w"], ["v2"]),
                      node("Identity", ["on1"], ["on2"])],
                     [port("j", [], INT64), port("on1", [], BOOL), port("v", [4])], [port("on2", [], BOOL), port("v2", [4])])
    body = graph_of([node("Gather", ["x", "i"], ["row"], axis=0), node("Add", ["s", "row"], ["v0"]),
                     node("Loop", ["m", "", "v0"], ["s2"], body=inner),
                     node("Identity", ["s2"], ["o"]), node("Identity", ["on3"], ["on4"])],
                    [port("i", [], INT64), port("on3", [], BOOL), port("s", [4])], [port("on4", [], BOOL), port("s2", [4]), port("o", [4])])
    return model_of([node("Loop", ["n", "", "s0"], ["s", "os"], body=body)], [port("m", [], INT64), port("x", [3, 4]), port("s0", [4])],
                    [port("s", [4]), port("os", ["a", "b"])], one)


Feeds = dict[str, Array]


def models() -> list[tuple[str, onnx.ModelProto, Feeds]]:
    """Name, model, inputs."""
    found = [(f"if {c}", branches(), {"c": np.array(c), "x": f4(3, 4)}) for c in (True, False)]
    found += [(f"while {n} {c}", settling(), {"n": np.array(n), "c": np.array(c), "h0": f4(3, 4, scale=0.1), "x": f4(3, 4, seed=3, scale=0.3),
                                              "k0": f4(1)}) for n, c in ((0, True), (3, True), (3, False), (50, True))]
    found += [(f"scan {d} {axis} {n}", recurrent(d, axis, n), {"h0": f4(2, 4), "x": f4(*[2, 4][:axis], n, *[2, 4][axis:], seed=3)})
              for d, axis, n in ((0, 0, 5), (1, 1, 5), (2, 0, 4), (3, 2, 5), (0, 0, 1))]
    found += [(f"for {n}", powers(n), {"h0": f4(2, 4)}) for n in (0, 1, 7)]
    found += [(f"nested {m}", nested(), {"m": np.array(m), "x": f4(3, 4), "s0": f4(4)}) for m in (0, 1, 4)]
    return found


every_model = pytest.mark.parametrize(("model", "feeds"), [(m, f) for _, m, f in models()], ids=[name for name, _, _ in models()])


def imported(model: onnx.ModelProto, dtype: str | None = None, **options: Any) -> tuple[Graph, dict[str, Array]]:
    found = import_graph(wrap_model(model), float_dtype=dtype, **options)
    return found.graph, found.weights


def run(graph: Graph, feeds: Mapping[str, Array], weights: Mapping[str, Array], threads: int = 1, detect: bool = False) -> dict[str, Array]:
    """What the engine computes of a graph."""
    engine = engine_of(graph, weights, threads, detect)
    arrays = {v.name: np.ascontiguousarray(feeds[v.name])[None] for v in engine.image.inputs}
    return {name: a[0] for name, a in engine.run(arrays).items()}


def engine_of(graph: Graph, weights: Mapping[str, Array], threads: int = 1, detect: bool = False) -> Any:
    program = inference(graph, Batching(1)).program
    return make_engine(program, Session(), weights, Host(threads=threads, detect_anomaly=detect))


def wanted_of(model: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    """What a model computes. ONNX's evaluator knows Scans of one direction and one axis only, and joins slices of loops along their own axis."""
    if "x" in feeds and "m" in feeds:
        return nested_twin(**feeds)
    if model.graph.node[0].op_type == "Scan":
        return recurrent_twin(model, feeds)
    if list(feeds) == ["h0"]:
        return powers_twin(feeds["h0"], int(numpy_helper.to_array(model.graph.initializer[1])))
    return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feeds)]


def recurrent_twin(model: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    attributes = {a.name: helper.get_attribute_value(a) for a in model.graph.node[0].attribute if a.type == onnx.AttributeProto.INTS}
    (axis,), (back,), (turned,) = (attributes[f"scan_{name}"] for name in ("input_axes", "input_directions", "output_directions"))
    h, slices, outputs = feeds["h0"], list(np.moveaxis(feeds["x"], axis, 0)), []
    for x in reversed(slices) if back else slices:
        h = np.tanh(h @ W1 + x)
        outputs.append(h)
    return [h, np.stack(outputs[::-1] if turned else outputs, axis)]


def powers_twin(h: Array, turns: int) -> list[Array]:
    outputs = np.zeros((turns, *h.shape), np.float32)
    for i in range(turns):
        h = np.tanh(h @ W1)
        outputs[i] = h * np.float32(i)
    return [h, outputs]


def nested_twin(m: Array, x: Array, s0: Array) -> list[Array]:
    s, outputs = s0, []
    for i in range(3):
        v = s + x[i]
        for j in range(int(m)):
            v = (v + v if (i + j) % 2 == 0 else v * np.float32(0.5) * x[i]) * f4(4, scale=0.5)
        s = v
        outputs.append(s)
    return [s, np.stack(outputs)]


# ---- values ---------------------------------------------------------------------------------------------------------------------

@every_model
def test_models_compute_what_onnx_says(model: onnx.ModelProto, feeds: Feeds) -> None:
    wanted = wanted_of(model, feeds)
    graph, weights = imported(model)
    found = run(graph, feeds, weights)
    for output, want in zip(model.graph.output, wanted, strict=True):
        np.testing.assert_allclose(found[output.name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [c for c in cases() if c.op.regions], ids=lambda c: c.name)
def test_rows_compute_what_the_reference_does(case: Any) -> None:
    graph = Graph()
    b = Builder(graph)
    arrays = case.arrays()
    inputs = [None if a is None else b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]
    graph.outputs = [b.Identity(v) for v in b.emit(case.op, *inputs)]
    names = [v.name for v in graph.outputs]
    with np.errstate(all="ignore"):
        wanted = case.op.reference(*arrays)
    found = run(graph, {f"x{i}": a for i, a in enumerate(arrays) if a is not None}, {})
    for name, want in zip(names, wanted, strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-12)


# ---- gradients ------------------------------------------------------------------------------------------------------------------

def differentiated(model: onnx.ModelProto, feeds: Feeds, wrt: Sequence[str]) -> tuple[Graph, dict[str, Array], list[str]]:
    """A graph in float64 of the gradients of random sums of all outputs by inputs and weights; states' arrays; the results' names."""
    graph, weights = imported(model, "float64", input_types={n: type_of(wide(a)) for n, a in feeds.items()}, training=True)
    b = Builder(graph)
    loss = b.constant(np.array(0.0))
    for i, v in enumerate(graph.outputs):
        loss = b.Add(loss, b.ReduceSum(b.Mul(v, b.constant(np.random.default_rng(i).standard_normal(v.shape))), keepdims=0))
    values = {v.name: v for v in [*graph.inputs, *(s.input for s in graph.states)]}
    graph.outputs = [b.Identity(g) for g in gradients(graph, loss, [values[name] for name in wrt])]
    verify(graph)
    return graph, weights, [v.name for v in graph.outputs]


def wide(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype == np.float32 else a


def loss_of(model: onnx.ModelProto, feeds: Feeds, weights: Mapping[str, Array]) -> float:
    """The sum that is differentiated, by the references of the operators."""
    graph, _ = imported(model, "float64", input_types={n: type_of(a) for n, a in feeds.items()})
    values = evaluate(graph, {**feeds, **weights})
    return float(sum(np.sum(values[v.name] * np.random.default_rng(i).standard_normal(v.shape), dtype=np.longdouble)
                     for i, v in enumerate(graph.outputs)))


@pytest.mark.parametrize(("model", "feeds"), [(m, f) for name, m, f in models() if name != "while 50 True"],
                         ids=[name for name, _, _ in models() if name != "while 50 True"])
def test_gradients_are_those_of_central_differences(model: onnx.ModelProto, feeds: Feeds) -> None:
    """By a few elements of every floating input and weight. The loop without bound is bounded by its constant here."""
    for name in ("n", "m"):
        if name in feeds:
            model, feeds = known(model, name, feeds[name]), {k: v for k, v in feeds.items() if k != name}
    feeds = {n: wide(a) for n, a in feeds.items()}
    _, weights = imported(model, "float64", training=True, input_types={n: type_of(a) for n, a in feeds.items()})
    wrt = [n for n, a in {**feeds, **weights}.items() if a.dtype == np.float64 and (n in feeds or n in weights)]
    graph, weights, names = differentiated(model, feeds, wrt)
    found = run(graph, feeds, weights)
    arrays = {**feeds, **weights}
    for name, result in zip(wrt, names, strict=True):
        for at in list(np.ndindex(arrays[name].shape))[::5]:
            moved = {n: a.copy() for n, a in arrays.items()}
            values = []
            for step in (1e-6, -1e-6):
                moved[name][at] = arrays[name][at] + step
                values.append(loss_of(model, {n: moved[n] for n in feeds}, {n: moved[n] for n in weights}))
            np.testing.assert_allclose(found[result][at], (values[0] - values[1]) / 2e-6, rtol=1e-5, atol=1e-7, err_msg=f"{name}{list(at)}")


def known(model: onnx.ModelProto, name: str, value: Array) -> onnx.ModelProto:
    """The model with an input as a constant."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    left = [v for v in made.graph.input if v.name != name]
    del made.graph.input[:]
    made.graph.input.extend(left)
    made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return made


# ---- what runs, and what does not -----------------------------------------------------------------------------------------------

TAG = 7_310_001
COUNTS = [Const.of([TAG + i, 0]) for i in range(4)]
"""Words that leaves count in: engines have a copy each."""


@generic("f8[r], f8[r], i8[c]", dtypes=("f8",))
def counting(x, y, count):                                 # type: ignore[no-untyped-def]
    """Copy, and count the call."""
    for i in range(x.shape[0]):
        y[i] = x[i]
    count[1] += 1


@dataclass(frozen=True)
class Counted(Op):
    """x -> x. Each run is counted, in word `forward` or, by its gradient, in the next."""

    name = "Counted"
    word: int = 0

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        assert types[0] is not None
        return (types[0],)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        assert inputs[0] is not None
        return (inputs[0],)

    def vjp(self, b: Builder, grads: Any, inputs: Any, outputs: Any) -> Any:
        return [b.emit(Counted(self.word + 1), grads[0])[0]]

    def kernel(self, inputs: Any, outputs: Any, cpu: Any) -> list[Call]:
        n = outputs[0].size
        return [Call(counting["f8"], [In(0, (n,)), Out(0, (n,)), COUNTS[self.word]], n, n)]


def counts(engine: Any) -> list[int]:
    """How often each word was counted."""
    found = {int(words[0]): int(words[1]) for words in (c.view(np.int64) for c in constants(engine)) if len(words)}
    return [found.get(TAG + i, 0) for i in range(len(COUNTS))]


@pytest.mark.parametrize("taken", [True, False])
def test_only_the_taken_branch_runs_forward_and_backward(taken: bool) -> None:
    """The other one gives zeros as gradients; NaN there go nowhere."""
    graph = Graph()
    b = Builder(graph)
    word, x, u, v = b.input("word", TensorType("bool", ())), *(b.input(n, TensorType("float64", (3,))) for n in "xuv")

    def branch(i: int, word: int) -> Any:
        inner = Builder(Graph("region"))
        given = [inner.input(n, TensorType("float64", (3,))) for n in "xuv"]
        return closed(inner, [inner.Exp(inner.Mul(inner.emit(Counted(word), given[0])[0], given[i]))])
    y, = b.emit(If(branch(1, 0), branch(2, 2)), word, x, u, v)
    loss = b.ReduceSum(y, keepdims=0)
    graph.outputs = [b.Identity(g) for g in gradients(graph, loss, [x, u, v])]
    engine = engine_of(graph, {})
    arrays = {"x": np.arange(3.0), "u": np.ones(3), "v": np.full(3, 0.5)}
    arrays["v" if taken else "u"][:] = np.nan
    found = list(engine.run({"word": np.array(taken)[None], **{n: a[None] for n, a in arrays.items()}}).values())
    used = arrays["u" if taken else "v"]
    np.testing.assert_allclose(found[0][0], used * np.exp(used * arrays["x"]))
    np.testing.assert_allclose(found[1 if taken else 2][0], arrays["x"] * np.exp(used * arrays["x"]))
    assert not found[2 if taken else 1].any()
    ran, other = (counts(engine)[:2], counts(engine)[2:]) if taken else (counts(engine)[2:], counts(engine)[:2])
    assert ran[0] >= 1, "the forward pass, and what the backward pass computes anew"
    assert ran[1] == 1
    assert other == [0, 0]


def stopping(count: int, at: int) -> Graph:
    """A loop of at most `count` turns that ends after turn `at`; x doubles each turn, counted."""
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float64", (3,)))
    inner = Builder(Graph("region"))
    turn, h = inner.input("turn", INDEX), inner.input("h", x.type)
    region = closed(inner, [inner.Less(turn, inner.constant(np.array(at))), inner.emit(Counted(0), inner.Add(h, h))[0]])
    y, = b.emit(Loop(region, 1, 0, count, True), None, None, x)
    loss = b.ReduceSum(y, keepdims=0)
    graph.outputs = [b.Identity(y), *(b.Identity(g) for g in gradients(graph, loss, [x]))]
    return graph


@pytest.mark.parametrize("at", [0, 3, 99])
def test_a_loop_that_ends_early_computes_no_more(at: int) -> None:
    engine = engine_of(stopping(10, at), {})
    y, g = engine.run({"x": np.ones((1, 3))}).values()
    turns = min(10, at + 1)
    np.testing.assert_array_equal(y[0], np.full(3, 2.0 ** turns))
    np.testing.assert_array_equal(g[0], np.full(3, 2.0 ** turns))
    assert counts(engine)[1] == turns
    assert counts(engine)[0] == turns, "nothing of the body's forward pass is read by its backward pass"


def test_rows_do_not_grow_with_the_turns() -> None:
    """Neither forward nor backward; a thousand turns are the same table as ten."""
    few, many = (engine_of(stopping(n, n), {}) for n in (10, 1000))
    assert rows_of(few, "micro") == rows_of(many, "micro")
    assert [name.split("-")[0] for name in few.image.kernels] == [name.split("-")[0] for name in many.image.kernels]


def test_bits_do_not_depend_on_threads_and_calls_follow_each_other() -> None:
    """Words of loops begin anew in every call; large bodies are shared out."""
    graph = Graph()
    b = Builder(graph)
    x, w = b.input("x", TensorType("float32", (64, 256))), b.input("w", TensorType("float32", (256, 256)))
    inner = Builder(Graph("region"))
    _, h, v = inner.input("turn", INDEX), inner.input("h", x.type), inner.input("v", w.type)
    region = closed(inner, [inner.Tanh(inner.MatMul(h, v))])
    y, = b.emit(Loop(region, 1, 0, 5), None, None, x, w)
    loss = b.ReduceSum(y, keepdims=0)
    graph.outputs = [b.Identity(y), *(b.Identity(g) for g in gradients(graph, loss, [x, w]))]
    feeds = {"x": f4(1, 64, 256), "w": f4(1, 256, 256, scale=0.1)}
    engines = [engine_of(copied(graph), {}, threads) for threads in (1, 2)]
    results = [[a.copy() for a in engine.run(feeds).values()] for engine in (engines[0], engines[0], engines[1])]
    for other in results[1:]:
        for a, c in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, c)


def test_second_derivatives_of_loops_and_branches() -> None:
    """Of a loop of three turns around a branch, beside central differences of the first."""
    graph = Graph()
    b = Builder(graph)
    x, w = (b.input(n, TensorType("float64", (3,))) for n in "xw")
    one, other = Builder(Graph("region")), Builder(Graph("region"))
    pairs = [[c.input(n, x.type) for n in "hw"] for c in (one, other)]
    either = [closed(one, [one.Tanh(one.Mul(*pairs[0]))]), closed(other, [other.Sin(other.Mul(*pairs[1]))])]
    inner = Builder(Graph("region"))
    turn, h, v = inner.input("turn", INDEX), inner.input("h", x.type), inner.input("v", w.type)
    region = closed(inner, list(inner.emit(If(*either), inner.Less(turn, inner.constant(np.array(2))), h, v)))
    y, = b.emit(Loop(region, 1, 0, 3), None, None, x, w)
    first = gradients(graph, b.ReduceSum(y, keepdims=0), [w])[0]
    second = gradients(graph, b.ReduceSum(b.Mul(first, first), keepdims=0), [x, w])
    graph.outputs = [b.Identity(v) for v in (first, *second)]
    names = [v.name for v in graph.outputs]
    verify(graph)
    arrays = {"x": np.array([0.3, -0.4, 0.9]), "w": np.array([0.7, 1.1, -0.6])}
    found = evaluate(graph, arrays)

    def squares(**changed: Array) -> float:
        return float(np.sum(evaluate(graph, {**arrays, **changed})[names[0]] ** 2))
    for name, result in zip("xw", names[1:], strict=True):
        for i in range(3):
            step = np.eye(3)[i] * 1e-6
            slope = (squares(**{name: arrays[name] + step}) - squares(**{name: arrays[name] - step})) / 2e-6
            np.testing.assert_allclose(found[result][i], slope, rtol=1e-6, atol=1e-8)


# ---- passes ---------------------------------------------------------------------------------------------------------------------

def test_passes_reach_what_is_inside() -> None:
    """Constants fold and equal nodes are one within regions, equal branches are one node, and listings and digests show them."""
    graph, _ = imported(branches())
    twice = graph.nodes[0]
    b = Builder(graph)
    again = b.emit(twice.op, *twice.inputs)[0]
    graph.outputs.append(b.Neg(again))
    assert "Relu" in to_text(graph)
    assert {n.op.name for n in graph.walk()} >= {"If", "MatMul", "Relu", "Tanh"}
    before = digest(graph)
    cse(fold(graph))
    assert [n.op.name for n in graph.nodes].count("If") == 1
    other, _ = imported(branches())
    inner = other.nodes[0].op.regions[0].graph.nodes[-1]
    inner.op = type(other.nodes[0].op.regions[1].graph.nodes[-1].op)()
    assert digest(imported(branches())[0]) != digest(other) != before


def test_a_branch_is_cast_inside_by_automatic_mixed_precision() -> None:
    """Products in regions are in 16 bits, what regions are given and give stays as it is, and the result is close."""
    (wide, weights), (half, _) = imported(branches()), imported(branches())
    verify(autocast(half, lambda node: CastRule("fp16" if node.op.name == "MatMul" else "follow", "bfloat16")))
    products = [node for node in half.walk() if node.op.name == "MatMul"]
    assert [v.dtype for node in products for v in node.operands] == ["bfloat16"] * 4
    assert half.outputs[0].dtype == "float32"
    feeds = {"c": np.array(True), "x": f4(3, 4)}
    difference = np.abs(run(wide, feeds, weights)["y"] - run(half, feeds, weights)["y"]).max()
    assert 0 < difference < 0.05


def test_an_anomaly_in_a_branch_is_found() -> None:
    graph, weights = imported(branches())
    weights["w1"] = np.full((4, 4), np.inf, np.float32)
    with pytest.raises(TileflowError, match="NaN"):
        run(graph, {"c": np.array(True), "x": np.zeros((3, 4), np.float32)}, weights, detect=True)


# ---- training and the tile machine ----------------------------------------------------------------------------------------------

def chooser() -> onnx.ModelProto:
    """x w1 + b1 where the mean square of x is above zero, else x w2 + b2, then a loop of two turns through a layer."""
    then, other = (graph_of([node("Gemm", ["x", f"w{i}", f"b{i}"], [f"y{i}"])], [], [port(f"y{i}", ["N", 8])]) for i in (1, 2))
    body = graph_of([node("MatMul", ["h", "w"], ["m"]), node("Tanh", ["m"], ["h2"]), node("Identity", ["on"], ["on2"])],
                    [port("i", [], INT64), port("on", [], BOOL), port("h", ["N", 8])], [port("on2", [], BOOL), port("h2", ["N", 8])])
    return model_of([node("Mul", ["x", "x"], ["xx"]), node("ReduceMean", ["xx"], ["mean"], keepdims=0), node("Greater", ["mean", "zero"], ["c"]),
                     node("If", ["c"], ["y0"], then_branch=then, else_branch=other), node("Loop", ["turns", "", "y0"], ["h3"], body=body),
                     node("Gemm", ["h3", "w3", "b3"], ["y"])],
                    [port("x", ["N", 4])], [port("y", ["N", 3])],
                    {"w1": f4(4, 8, seed=1), "b1": f4(8, seed=2), "w2": f4(4, 8, seed=3), "b2": f4(8, seed=4), "w3": f4(8, 3, seed=5),
                     "b3": f4(3, seed=6), "w": f4(8, 8, seed=7, scale=0.5), "zero": np.array(0, np.float32), "turns": np.array(2)})


def test_training_changes_the_weights_of_the_taken_branch(tmp_path: Path) -> None:
    """The loop's, too; the trained file has the branches and computes what the engine does (which training checks itself)."""
    proto = chooser()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    x = np.abs(f4(24, 4)) + 0.1
    y = np.argmax(x @ f4(4, 3, seed=9), 1)
    result = tileflow.train(path, data=(x, y), epochs=20, micro_batch_size=4, gradient_accumulation=2, learning_rate=0.1, weight_decay=0.0,
                            out=tmp_path / "run", threads=2)
    before = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    after = {t.name: numpy_helper.to_array(t) for t in onnx.load(result.save_onnx(tmp_path / "trained.onnx")).graph.initializer}
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"w1", "b1", "w", "w3", "b3"}
    assert result.history["loss"][-1] < 0.7 * result.history["loss"][0]


def tiled(graph: Graph) -> Any:
    return analyze(inference(graph, Batching(1)).program, SMALL)


def test_the_tile_machine_counts_the_dearer_branch_and_every_turn() -> None:
    def sized(n: int) -> Graph:
        graph = Graph()
        b = Builder(graph)
        word, x = b.input("word", TensorType("bool", ())), b.input("x", TensorType("float32", (32, 64)))
        cheap, dear = Builder(Graph("region")), Builder(Graph("region"))
        h, g = cheap.input("h", x.type), dear.input("h", x.type)
        either = If(closed(cheap, [cheap.Relu(h)]), closed(dear, [dear.MatMul(g, dear.constant(f4(64, 64)))]))
        if n == 0:
            graph.outputs = list(b.emit(either, word, x))
            return graph
        body = Builder(Graph("region"))
        body.input("turn", INDEX)
        state, inner = body.input("h", x.type), body.input("word", word.type)
        graph.outputs = list(b.emit(Loop(closed(body, list(body.emit(either, inner, state))), 1, 0, n), None, None, x, word))
        return graph
    once, alone, ten = tiled(sized(0)), tiled(sized(1)), tiled(sized(10))
    assert [(s.node.op.name, s.times) for s in once.steps] == [("Relu", 0), ("MatMul", 1)]
    assert once.flops == 2 * 32 * 64 * 64
    assert ten.flops == 10 * once.flops
    assert ten.cycles_per_update == 10 * alone.cycles_per_update
    assert once.cycles_per_update == sum(s.phases.total for s in once.steps) > 0
    assert exact.check(ten).ok


@every_model
def test_tiles_compute_what_the_host_does(model: onnx.ModelProto, feeds: Feeds) -> None:
    graph, weights = imported(model)
    wanted = run(copied(graph), feeds, weights)
    program = inference(graph, Batching(1)).program
    plans = {step.node: step.plan for step in analyze(program, SMALL).steps}
    found = exact.execute(program, plans, {n: a[None] for n, a in feeds.items()}, weights, exact.Tiles(SMALL.tiles, SMALL.bytes_per_tile))
    for name, want in wanted.items():
        np.testing.assert_allclose(found.outputs[name][0], want, rtol=1e-5, atol=1e-6)


def test_weights_that_a_body_reads_are_laid_out_once() -> None:
    """In the prologue, for all turns; the result is that of the loop written out."""
    graph = Graph()
    b = Builder(graph)
    x, w = b.input("x", TensorType("float32", (64, 256))), b.input("w", TensorType("float32", (256, 256)))
    graph.inputs.remove(w)
    graph.states.append(State("w", "parameter", w))
    inner = Builder(Graph("region"))
    _, h, v = inner.input("turn", INDEX), inner.input("h", x.type), inner.input("v", w.type)
    y, = b.emit(Loop(closed(inner, [inner.Tanh(inner.MatMul(h, v))]), 1, 0, 3), None, None, x, w)
    graph.outputs = [y]
    weights, feeds = {"w": f4(256, 256, scale=0.1)}, {"x": f4(64, 256)}
    engine = engine_of(graph, weights)
    assert [owner.operator for owner in engine.image.owners if owner.part == "prologue"] == ["Pack"]
    found = engine.run({"x": feeds["x"][None]})[y.name][0]
    wanted = feeds["x"]
    for _ in range(3):
        wanted = np.tanh(wanted @ weights["w"])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


# ---- refusals -------------------------------------------------------------------------------------------------------------------

def test_what_is_refused_says_why() -> None:
    growing = graph_of([node("Concat", ["h", "h"], ["h2"], axis=0), node("Identity", ["on"], ["on2"])],
                       [port("i", [], INT64), port("on", [], BOOL), port("h", ["n"])], [port("on2", [], BOOL), port("h2", ["m"])])
    loop = model_of([node("Loop", ["n", "", "h0"], ["h"], body=growing)], [port("h0", [2]), port("n", [], INT64)], [port("h", ["k"])])
    with pytest.raises(UnsupportedError, match=r"makes float32\[4\] of 'h0', which is float32\[2\] before the first turn"):
        imported(loop)
    del loop.graph.input[1]
    loop.graph.initializer.append(numpy_helper.from_array(np.array(3), "n"))
    assert imported(loop)[0].outputs[0].shape == (16,)
    endless = graph_of([node("Neg", ["h"], ["h2"]), node("Identity", ["on"], ["on2"])],
                       [port("i", [], INT64), port("on", [], BOOL), port("h", [2])], [port("on2", [], BOOL), port("h2", [2])])
    for limit in ("", "n"):
        with pytest.raises(UnsupportedError, match="nothing ends it"):
            imported(model_of([node("Loop", [limit, "", "h0"], ["h"], body=endless)], [port("h0", [2])], [port("h", [2])],
                              {"n": np.array(np.iinfo(np.int64).max)}))
    random = graph_of([node("Dropout", ["h", "", "train"], ["h2"]), node("Identity", ["on"], ["on2"])],
                      [port("i", [], INT64), port("on", [], BOOL), port("h", [2])], [port("on2", [], BOOL), port("h2", [2])])
    dropping = model_of([node("Loop", ["n", "", "h0"], ["h"], body=random)], [port("h0", [2])], [port("h", [2])],
                        {"n": np.array(3), "train": np.array(True)})
    assert imported(dropping, training=False)
    with pytest.raises(UnsupportedError, match=r"draws random numbers \(Dropout\)"):
        imported(dropping, training=True)
    then, other = (graph_of([node(op, ["x"], [f"{op}.y"], **attributes)], [], [port(f"{op}.y", None)])
                   for op, attributes in (("Neg", {}), ("Transpose", {"perm": [1, 0]})))
    uneven = model_of([node("If", ["c"], ["y"], then_branch=then, else_branch=other)], [port("c", [], BOOL), port("x", [2, 3])], [port("y", None)])
    with pytest.raises(DynamicOperandError, match=r"branches give \(float32\[2, 3\]\) and \(float32\[3, 2\]\)") as caught:
        imported(uneven)
    assert caught.value.names == {"c"}


def test_slices_of_a_number_of_turns_that_is_computed_are_refused() -> None:
    model = powers(3)
    del model.graph.initializer[1]
    model.graph.input.append(port("n", [], INT64))
    with pytest.raises(DynamicOperandError, match="how many slices it gives is computed") as caught:
        imported(model)
    assert caught.value.names == {"n"}


def test_a_loop_without_bound_has_no_gradient_and_says_so() -> None:
    graph, _ = imported(settling(limit=False), training=True)
    loss = Builder(graph).ReduceSum(graph.outputs[0], keepdims=0)
    with pytest.raises(UnsupportedError, match="number of its turns has no bound"):
        gradients(graph, loss, [graph.state("w").input])
