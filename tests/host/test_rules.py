"""Rules that find patterns in a graph: what they are not sure of they leave alone, so that a graph always means what it meant."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hosting
import numpy as np
import pytest
from evaluate import evaluate
from lowered import host_passes, run
from paths import rare

from tileflow.graph import OPS, Builder, Graph, Node, TensorType, Value
from tileflow.host.linear import linear_factor
from tileflow.host.rewrite import rewrite
from tileflow.kernels.elementwise.expr import Const, Expr, Var, cast, exp, floor, maximum, sign, where
from tileflow.lower import layout
from tileflow.passes.autograd import gradients

Made = Callable[[Builder, Value], Value]
x, half = Var(0, "float32"), Var(0, "float16")


# ---- multiples, proved

@pytest.mark.parametrize(("expr", "factor"), [
    (x, 1), (-x, -1), (x * 0.5, 0.5), (3 * x, 3), (x / 4, 0.25), (-(x / -4), 0.25), (x + x, 2), (x + x * 3, 4), (x - x * -0.5, 1.5), (x + 0, 1),
    (0 - x, -1), (x - 0, 1), ((x * 0.5) * Const(2, "float32") / (Const(1, "float32") + 3), 0.25), (x * exp(Const(0, "float32")), 1),
    (cast(cast(half, "float32") * 0.125, "float16"), 0.125), (half * 0.1, float(np.float16(0.1))),
])
def test_what_is_a_multiple(expr: Expr, factor: float) -> None:
    assert linear_factor(expr) == factor


@pytest.mark.parametrize("expr", [
    x + 3, 3 - x, x * 0, x - x, x * np.inf, x * np.nan, x / 0, x / np.inf, 1 / x, x * x, x / x, floor(x), sign(x), maximum(x, -10),
    x * Var(1, "float32"), Const(2, "float32"), Var(1, "float32"), x + np.nan, half * 3e4, x * 1.0000001 - x, x * 1e38 / 1e38,
    x * 1e-30, cast(cast(x, "float16"), "float32"), cast(cast(x, "int32"), "float32"),
])
def test_what_is_none(expr: Expr) -> None:
    assert linear_factor(expr) is None


# ---- patterns

SMALL = {"q": (2, 2, 3, 4), "k": (2, 2, 5, 4), "v": (2, 2, 5, 3)}


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def attention(b: Builder) -> Value:
    q, k, v = (b.input(n, TensorType("float64", s)) for n, s in SMALL.items())
    mask = b.input("mask", TensorType("float64", (2, 1, 3, 5)))
    scores = b.Mul(b.MatMul(q, b.Transpose(k, perm=(0, 1, 3, 2))), b.scalar(0.5, q))
    return b.MatMul(b.Softmax(b.Add(scores, mask), axis=-1), v)


def capped(b: Builder) -> Value:
    q, k, v = (b.input(n, TensorType("float64", s)) for n, s in SMALL.items())
    cap = b.scalar(0.7, q)
    return b.MatMul(b.Softmax(b.Mul(b.Tanh(b.Div(b.FusedMatMul(q, k, transB=1), cap)), cap), axis=-1), v)


def network(b: Builder, wide: int = 4) -> Value:
    """Convolutions, a batch normalisation, pooling that alone reads its convolution, a product and its activation."""
    shapes = {"image": (2, 3, 6, 6), "w": (wide, 3, 3, 3), "norm": (wide,), "w2": (wide, wide, 3, 3), "w3": (9 * wide, 5)}
    image, w, norm, w2, w3 = (b.input(n, TensorType("float64", s)) for n, s in shapes.items())
    y = b.Conv(image, w, pads=(1, 1, 1, 1))
    y = b.Relu(b.BatchNormalization(y, norm, norm, norm, b.Mul(norm, norm)))
    y = b.MaxPool(b.Conv(y, w2, pads=(1, 1, 1, 1)), kernel_shape=(2, 2), strides=(2, 2))
    return b.Tanh(b.Gemm(b.Reshape(y, shape=(2, 9 * wide)), w3))


def broad(b: Builder) -> Value:
    """With channels enough to lie last."""
    return network(b, 32)


def graph_of(build: Callable[[Builder], Value], trained: bool, place: float, forward: bool, readers: int, made: Made) -> Graph:
    """The pattern, in training with its gradients, where `made` stands between two of its nodes.

    place: which of the nodes' inputs, from 0 to 1. forward: put it in before the gradients are made, so that it has one itself.
    readers: 0: that input alone reads it; 1: everything that read the value.
    """
    graph = Graph(build.__name__)
    b = Builder(graph)
    y = build(b)

    def differentiate() -> None:
        if trained:
            wanted = [v for v in graph.inputs if v.name not in ("mask", "norm")]
            loss = b.ReduceSum(b.Mul(graph.outputs[0], b.constant(draw(y.shape, 1))), keepdims=0)
            graph.outputs += gradients(graph, loss, wanted)

    def insert() -> None:
        edges = [(n, i) for n in graph.nodes for i, v in enumerate(n.inputs) if v is not None and v.type.is_float]
        node, i = edges[min(int(place * len(edges)), len(edges) - 1)]
        put(b, node, i, readers, made)

    graph.outputs.append(b.Mul(y, b.scalar(1.5, y)))
    for step in ((insert, differentiate) if forward else (differentiate, insert)):
        step()
    graph.prune()
    for k, value in enumerate([*graph.constants, *(v for n in graph.nodes for v in n.outputs)]):
        value.name = f"{value.name} {k}"                   # `gradients` has a Builder of its own
    return graph


def put(b: Builder, node: Node, i: int, readers: int, made: Made) -> None:
    graph = b.graph
    value, at, start = node.inputs[i], graph.nodes.index(node), len(graph.nodes)
    assert value is not None
    if readers:
        at = next(k for k, n in enumerate(graph.nodes) if value in n.inputs)
    inserted = made(b, value)
    assert inserted.type == value.type
    new = graph.nodes[start:]
    del graph.nodes[start:]
    for n in graph.nodes if readers else [node]:
        n.inputs = [inserted if v is value and (readers or k == i) else v for k, v in enumerate(n.inputs)]
    graph.nodes[at:at] = new


def check_means_the_same(graph: Graph, passes: Callable[[Graph], Graph]) -> list[str]:
    """Every output and gradient after the passes against before; returns the operators that the passes left, and what
    they added to them."""
    feeds = {v.name: draw(v.shape, i + 2) * (10 if v.name == "q" else 1) for i, v in enumerate(graph.inputs)}
    with np.errstate(all="ignore"):
        wanted = evaluate(graph, feeds)
    finite = [np.abs(a[np.isfinite(a)]).max(initial=1) for a in wanted.values()]
    results = list(dict.fromkeys(graph.outputs))
    done = passes(graph)
    found = run(done, feeds)
    for v in results:
        what = f"{v!r} of {[str(n.op) for n in graph.nodes]}"
        np.testing.assert_allclose(found[v], wanted[v.name], rtol=1e-8, atol=1e-12 * max(finite), err_msg=what)
    return [word for n in done.nodes for word in (n.op.name, *hosting.added(n.op))]


def same(b: Builder, v: Value) -> Value:
    return v


@pytest.mark.parametrize(("build", "trained", "wanted"), [
    (attention, False, {"FusedAttention"}), (attention, True, {"FusedAttention", "FusedAttentionGrad"}),
    (capped, False, {"FusedAttention"}), (capped, True, {"FusedAttention", "FusedAttentionGrad"}),
    (network, False, {"pooled"}), (network, True, {"epilogue", "pooled", "WinningMaxPoolGrad"}),
    (broad, False, {"TurnChannels"}), (broad, True, {"TurnChannels"})])
def test_rules_find_the_patterns_as_they_are(build: Any, trained: bool, wanted: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "TURN", 0.0)
    names = check_means_the_same(graph_of(build, trained, 0, True, 0, same), host_passes)
    assert wanted <= {*names}, names


UNARY = ["Abs", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Neg",
         "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Swish", "Tanh", "ThresholdedRelu"]
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "Mod"]
NUMBERS = [0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 20.0, 1e-3]


def elementwise(name: str, number: float, left: bool, whole: bool) -> Made:
    """An operator of one value, or of one and a number; `whole`: of one and an array as large."""
    def made(b: Builder, v: Value) -> Value:
        if name == "Clip":
            return b.Clip(v, min=-10 * abs(number), max=10 * abs(number))
        if name in UNARY:
            return getattr(b, name)(v)
        other = b.constant(draw(v.shape, 9)) if whole else b.scalar(number, v)
        return getattr(b, name)(*((other, v) if left else (v, other)))
    return made


@pytest.mark.parametrize("examples", [100, rare(400)])
def test_an_operator_in_a_pattern_blocks_the_rule_or_keeps_the_values(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hypothesis = pytest.importorskip("hypothesis", reason="pip install hypothesis makes it run")
    st = hypothesis.strategies
    operator = st.builds(elementwise, st.sampled_from([*UNARY, *BINARY, "Clip"]), st.sampled_from(NUMBERS), st.booleans(), st.booleans())

    @hypothesis.settings(max_examples=examples, deadline=None, derandomize=True)
    @hypothesis.given(st.sampled_from([attention, capped, network, broad]), st.booleans(), st.floats(0, 1), st.booleans(), st.integers(0, 1),
                      st.lists(operator, min_size=1, max_size=2), st.sampled_from([layout.TURN, 0.0]))
    def check(build: Any, trained: bool, place: float, forward: bool, readers: int, chain: list[Made], turn: float) -> None:
        def made(b: Builder, v: Value) -> Value:
            for step in chain:
                v = step(b, v)
            return v
        monkeypatch.setattr(layout, "TURN", turn)
        check_means_the_same(graph_of(build, trained, place, forward, readers, made), host_passes)
    check()


# ---- attention's near misses

@pytest.mark.parametrize("miss", [
    "Clip", "Min", "Max", "Add 3", "Sub 3", "Floor", "Round", "Sign", "Abs", "Relu", "LeakyRelu", "Mul 0", "Mul inf", "Div inf", "Mul large", "Pow 3",
    "Mod", "ThresholdedRelu", "HardSwish", "Softsign"])
@pytest.mark.parametrize("before", ["scale", "mask", "softmax"])
def test_no_attention_with_another_function_between_scores_and_softmax(miss: str, before: str) -> None:
    def near(b: Builder, v: Value) -> Value:
        name, _, number = miss.partition(" ")
        if name == "Clip":
            return b.Clip(v, min=-10.0, max=10.0)
        if name in ("Min", "Max", "Mod"):
            return getattr(b, name)(v, b.scalar({"Min": 20.0, "Max": -20.0, "Mod": 64.0}[name], v))
        if number:
            return getattr(b, name)(v, b.scalar({"large": 1e200}.get(number) or float(number), v))
        return getattr(b, name)(v)
    graph = Graph(miss)
    b = Builder(graph)
    q, k, v = (b.input(n, TensorType("float64", s)) for n, s in SMALL.items())
    mask = b.input("mask", TensorType("float64", (2, 1, 3, 5)))
    scores = b.FusedMatMul(q, k, transB=1)
    scores = b.Mul(near(b, scores) if before == "scale" else scores, b.scalar(0.5, q))
    scores = b.Add(near(b, scores) if before == "mask" else scores, mask)
    graph.outputs.append(b.MatMul(b.Softmax(near(b, scores) if before == "softmax" else scores, axis=-1), v))
    assert rewrite(graph) is graph


def test_a_gradient_that_is_not_the_softcaps_blocks_the_rule() -> None:
    """g (1 - y y) for y up to 0.9 and for y = 1, which a few numbers tried do not tell apart from it."""
    graph = graph_of(capped, True, 0, True, 0, same)
    assert "FusedAttentionGrad" in [n.op.name for n in rewrite(graph).nodes]
    tanh = next(n.outputs[0] for n in graph.nodes if n.op.name == "Tanh")
    node = next(n for n in graph.nodes if n.op.name == "Map" and tanh in n.inputs)
    made, = node.op.attributes()["exprs"]
    y = Var(node.inputs.index(tanh), "float64")
    node.op = OPS["Map"](exprs=(where(y <= 0.9, made, 0),))
    assert rewrite(graph) is graph


# ---- gradients of cuts

def cuts(*places: dict[str, tuple[int, ...]], extra: Callable[[Builder, Value], Value] | None = None,
         kept: bool = False) -> Graph:
    """A sum of SliceGrads into [3, 8], each of an input of its own; `extra` is done to the first, which is read where
    it is `kept`."""
    graph = Graph("cuts")
    b = Builder(graph)
    parts = []
    for i, place in enumerate(places):
        op = OPS["SliceGrad"](shape=(3, 8), **place)
        g = b.input(f"g{i}", TensorType("float64", op.taken((3, 8))))
        parts.append(b.emit(op, g)[0])
    if kept:
        graph.outputs.append(parts[0])
    total = parts[0] if extra is None else extra(b, parts[0])
    for part in parts[1:]:
        total = b.Add(part, total)
    graph.outputs.append(total)
    return graph


def columns(first: int, last: int, step: int = 1) -> dict[str, tuple[int, ...]]:
    return dict(starts=(first,), ends=(last,), axes=(1,), steps=(step,))


@pytest.mark.parametrize("places", [
    [columns(0, 3), columns(3, 5), columns(5, 8)], [columns(5, 8), columns(0, 5)], [columns(-4, 8), columns(0, -4)],
    [dict(starts=(0,), ends=(1,)), dict(starts=(1,), ends=(3,))]])
def test_cuts_that_fill_a_tensor_are_its_parts(places: Any) -> None:
    graph = cuts(*places)
    done = rewrite(graph)
    assert [n.op.name for n in done.nodes] == ["Concat"]
    feeds = {v.name: draw(v.shape, i) for i, v in enumerate(graph.inputs)}
    wanted, got = evaluate(graph, feeds), run(done, feeds)
    np.testing.assert_array_equal(got[graph.outputs[0]], wanted[graph.outputs[0].name])


@pytest.mark.parametrize("graph", [
    cuts(columns(0, 3), columns(4, 8)), cuts(columns(0, 4), columns(3, 8)), cuts(columns(0, 8, 2), columns(1, 8, 2)),
    cuts(columns(7, -9, -1), columns(0, 0)), cuts(columns(0, 4), columns(2, 6), columns(6, 8)),
    cuts(columns(0, 3), dict(starts=(1,), ends=(3,), axes=(0,))), cuts(columns(0, 3), columns(3, 8), kept=True),
    cuts(columns(0, 3), columns(3, 8), extra=lambda b, v: b.Neg(v)),
    cuts(columns(0, 3), columns(3, 8), extra=lambda b, v: b.Add(v, b.constant(np.ones((3, 8)))))])
def test_other_sums_of_cuts_stay(graph: Graph) -> None:
    assert rewrite(graph) is graph


# ---- turned matrices of 16 bits

def turned_gradient(narrow: str, wide: str, rank: int = 2, twice: str = "") -> Graph:
    """The gradient of a turned weight in mixed precision: a product of `narrow`, cast to `wide`, turned; `twice`: what
    else is an output."""
    graph = Graph("turned")
    b = Builder(graph)
    x, g = (b.input(n, TensorType(narrow, s)) for n, s in (("x", (7, 5)), ("g", (7, 6))))
    values = {"product": b.Gemm(x, g, transA=1, alpha=0.5)}
    values["cast"] = b.Cast(values["product"], to=wide)
    seen = values["cast"] if rank == 2 else b.Reshape(values["cast"], shape=(1, 5, 6))
    graph.outputs.append(b.Transpose(seen, perm=(1, 0) if rank == 2 else (0, 2, 1)))
    graph.outputs.extend([values[twice]] if twice else [])
    return graph


def turned_weight(wide: str, narrow: str, perm: tuple[int, ...] = (1, 0), kept: bool = False) -> Graph:
    graph = Graph("turned")
    b = Builder(graph)
    x, w = b.input("x", TensorType(narrow, (9, 6))), b.input("w", TensorType(wide, (5, 6)))
    seen = w if len(perm) == 2 else b.Reshape(w, shape=(5, 6, 1))
    turned = b.Transpose(seen, perm=perm)
    cast = b.Cast(turned, to=narrow)
    graph.outputs.append(b.MatMul(x, cast if len(perm) == 2 else b.Reshape(cast, shape=(6, 5))))
    graph.outputs.extend([turned] if kept else [])
    return graph


def check_same(graph: Graph, wanted: list[str]) -> None:
    done = rewrite(graph)
    assert [n.op.name for n in done.nodes] == wanted
    feeds = {v.name: draw(v.shape, i).astype(v.type.numpy) for i, v in enumerate(graph.inputs)}
    exact, got = evaluate(graph, feeds), run(done, feeds)
    for v in graph.outputs:
        np.testing.assert_array_equal(got[v].astype("f4"), exact[v.name].astype("f4"))


def test_a_gradient_that_is_cast_and_turned_is_made_so() -> None:
    check_same(turned_gradient("float16", "float32"), ["Gemm", "Cast"])
    assert [n.op.name for n in rewrite(turned_gradient("bfloat16", "float32")).nodes] == ["Gemm", "Cast"]


def test_a_weight_is_cast_before_it_is_turned() -> None:
    check_same(turned_weight("float32", "float16"), ["Cast", "Transpose", "MatMul"])
    done = rewrite(turned_weight("float32", "bfloat16"))
    assert [n.op.name for n in done.nodes] == ["Cast", "Transpose", "MatMul"]


@pytest.mark.parametrize("graph", [
    turned_gradient("float32", "float64"), turned_gradient("bfloat16", "float16"),
    turned_gradient("bfloat16", "float32", rank=3), turned_gradient("bfloat16", "float32", twice="product"),
    turned_gradient("bfloat16", "float32", twice="cast"), turned_weight("float64", "float32"),
    turned_weight("float32", "bfloat16", kept=True), turned_weight("float32", "bfloat16", perm=(1, 2, 0))])
def test_other_turned_casts_stay(graph: Graph) -> None:
    assert rewrite(graph) is graph
