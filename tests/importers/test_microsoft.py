"""Operators of com.microsoft against ONNX Runtime, whose they are: outputs, and what is declared of them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate
from microsoft import DOMAIN, by_runtime, f4, fused
from onnx import ModelProto, TensorProto
from onnx_models import imported, model_of, node, port, run
from peers import needs
from places import TESTS

from tileflow.graph import Builder
from tileflow.importers.onnx.declared import DECLARED, ROLES
from tileflow.passes.autograd import gradients
from tileflow.system.errors import ModelError, UnsupportedError


def same(op: str, feeds: Mapping[str, np.ndarray | None], outputs: int = 1, weights: Sequence[str] = (), tolerance: float = 2e-5,
         **attributes: Any) -> None:
    """The node gives what ONNX Runtime's gives."""
    proto = fused(op, feeds, outputs, weights, **attributes)
    fed = {n: a for n, a in feeds.items() if a is not None and n not in weights}
    for got, wanted in zip(run(imported(proto), fed), by_runtime(proto, fed), strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("a", "b", "attributes"), [
    ((2, 3), (3, 4), {}), ((2, 3), (3, 4), {"alpha": 0.5}), ((3, 2), (3, 4), {"transA": 1}), ((2, 3), (4, 3), {"transB": 1, "alpha": 2.0}),
    ((3,), (3, 4), {}), ((5, 2, 3), (3, 4), {}), ((2, 5, 3), (5, 3, 4), {"transBatchA": 1}), ((5, 2, 3), (3, 5, 4), {"transBatchB": 1}),
    ((3, 5, 2), (5, 3, 4), {"transBatchA": 1, "transA": 1}), ((5, 2, 3), (4, 5, 3), {"transBatchB": 1, "transB": 1, "alpha": 3.0}),
], ids=str)
def test_products_with_transposed_operands(a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any]) -> None:
    same("FusedMatMul", {"a": f4(*a), "b": f4(*b)}, **attributes)


# ---- one node -----------------------------------------------------------------------------------------------------------

X = f4(2, 3, 8)
IDS = np.array([[1, 4, 0], [2, 2, 3]], np.int32)
IMAGE, KERNEL = f4(1, 4, 6, 5), f4(6, 4, 3, 3)
NODES: list[tuple[str, dict[str, np.ndarray | None], int, dict[str, Any]]] = [
    ("FusedGemm", {"a": f4(3, 4), "b": f4(4, 5), "c": f4(5)}, 1, {"activation": "Relu", "alpha": 0.5, "beta": 2.0}),
    ("FusedGemm", {"a": f4(3, 4), "b": f4(5, 4), "c": f4(5)}, 1, {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1}),
    ("FusedConv", {"x": IMAGE, "w": KERNEL, "b": f4(6)}, 1, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    ("FusedConv", {"x": IMAGE, "w": KERNEL}, 1, {"activation": "Clip", "activation_params": [-0.5, 0.75]}),
    ("FusedConv", {"x": IMAGE, "w": KERNEL, "b": f4(6)}, 1, {"activation": "HardSigmoid", "activation_params": [0.1, 0.4], "strides": [2, 2]}),
    ("FusedConv", {"x": IMAGE, "w": KERNEL, "b": None, "z": f4(1, 6, 4, 3)}, 1, {"activation": "Relu"}),
    ("BiasGelu", {"a": X, "b": f4(8)}, 1, {}), ("Gelu", {"a": X}, 1, {}), ("FastGelu", {"a": X, "b": f4(8)}, 1, {}), ("FastGelu", {"a": X}, 1, {}),
    ("QuickGelu", {"a": X}, 1, {}), ("QuickGelu", {"a": X}, 1, {"alpha": 0.5}),
    ("SkipLayerNormalization", {"x": X, "s": f4(2, 3, 8, seed=1), "g": f4(8), "b": f4(8, seed=1), "c": f4(8, seed=2)}, 1, {"epsilon": 1e-5}),
    ("SkipLayerNormalization", {"x": X, "s": f4(1, 3, 8), "g": f4(8)}, 4, {}),
    ("SkipSimplifiedLayerNormalization", {"x": X, "s": f4(2, 3, 8, seed=1), "g": f4(8), "b": f4(8, seed=1)}, 4, {}),
    ("EmbedLayerNormalization", {"i": IDS, "s": IDS % 2, "w": f4(5, 8), "p": f4(6, 8), "e": f4(2, 8), "g": f4(8), "b": f4(8), "m": IDS % 2}, 2, {}),
    ("EmbedLayerNormalization", {"i": IDS, "s": None, "w": f4(5, 8), "p": f4(6, 8), "e": None, "g": f4(8), "b": f4(8), "m": None, "o": IDS}, 2, {}),
    ("Trilu", {"x": f4(3, 4, 4), "k": np.array(1)}, 1, {"upper": 0}), ("Range", {"a": np.int64([2])[0], "b": np.int64([9])[0]}, 1, {}),
    ("ExpandDims", {"x": f4(3, 4), "k": np.array(-2, np.int32)}, 1, {}), ("Pad", {"x": f4(3, 4), "p": np.int64([1, 0, 0, 2])}, 1, {}),
    ("Inverse", {"x": f4(2, 3, 3)}, 1, {}), ("CDist", {"a": f4(3, 4), "b": f4(5, 4)}, 1, {"metric": "euclidean"}),
    ("ConvTransposeWithDynamicPads", {"x": IMAGE, "w": f4(4, 2, 3, 3), "p": np.int64([1, 1, 1, 1])}, 1, {"strides": [2, 2]}),
    ("RotaryEmbedding", {"x": f4(2, 3, 16), "p": np.int64([[0, 1, 2], [3, 4, 5]]), "c": f4(8, 4), "s": f4(8, 4, seed=1)}, 1, {}),
    ("RotaryEmbedding", {"x": f4(2, 2, 3, 8), "p": np.int64([2]), "c": f4(8, 4), "s": f4(8, 4, seed=1)}, 1, {"interleaved": 1}),
    ("RotaryEmbedding", {"x": f4(2, 3, 16), "p": np.int64([2]), "c": f4(8, 2), "s": f4(8, 2, seed=1)}, 1,
     {"rotary_embedding_dim": 4, "num_heads": 2}),
]
STATIC = {"k", "p"}


@pytest.mark.parametrize(("op", "feeds", "outputs", "attributes"), NODES, ids=[f"{op}-{i}" for i, (op, *_) in enumerate(NODES)])
def test_a_node_gives_what_onnx_runtime_gives(op: str, feeds: dict[str, np.ndarray | None], outputs: int, attributes: dict[str, Any]) -> None:
    static = [n for n in feeds if n in STATIC and op != "RotaryEmbedding" and op != "EmbedLayerNormalization"] + (["a", "b"] if op == "Range" else [])
    proto = fused(op, feeds, outputs, static, **attributes)
    for k, kind in ((1, TensorProto.INT32),) if op == "EmbedLayerNormalization" else ((0, TensorProto.INT64),) if op == "Range" else ():
        proto.graph.output[k].type.tensor_type.elem_type = kind
    if outputs == 4:                                          # the statistics are ONNX Runtime's training's
        for k in (1, 2):
            proto.graph.node[0].output[k] = ""
        del proto.graph.output[1:3]
    fed = {n: a for n, a in feeds.items() if a is not None and n not in static}
    for got, wanted in zip(run(imported(proto), fed), by_runtime(proto, fed), strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


HIDDEN = f4(2, 3, 8)
LENGTHS = np.array([3, 2], np.int32)
KEYS = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
QKV = {"x": HIDDEN, "w": f4(8, 24), "b": f4(24)}
ATTENTION: list[tuple[str, dict[str, np.ndarray | None], int, dict[str, Any]]] = [
    ("Attention", QKV, 1, {}), ("Attention", QKV, 1, {"unidirectional": 1}), ("Attention", {**QKV, "m": LENGTHS}, 1, {}),
    ("Attention", {**QKV, "m": KEYS}, 1, {"mask_filter_value": -3.0}), ("Attention", {**QKV, "m": np.array([3, 3, 1, 0], np.int32)}, 1, {}),
    ("Attention", {**QKV, "m": np.stack([KEYS] * 3, 1)}, 1, {"unidirectional": 1}),
    ("Attention", {**QKV, "m": None, "p": f4(2, 2, 2, 5, 4)}, 2, {"unidirectional": 1}),
    ("Attention", {**QKV, "m": None, "p": None, "a": f4(1, 2, 3, 3)}, 1, {"scale": 0.3}),
    ("Attention", {"x": HIDDEN, "w": f4(8, 28), "b": f4(28)}, 1, {"qkv_hidden_sizes": [8, 8, 12]}),
    ("MultiHeadAttention", {"q": HIDDEN, "k": f4(2, 5, 8), "v": f4(2, 5, 12)}, 1, {}),
    ("MultiHeadAttention", {"q": HIDDEN, "k": f4(2, 5, 8), "v": f4(2, 5, 8), "b": f4(24), "m": np.array([5, 2], np.int32)}, 1, {}),
    ("MultiHeadAttention", {"q": HIDDEN, "k": HIDDEN, "v": HIDDEN, "b": None, "m": KEYS, "a": f4(2, 2, 3, 3)}, 1, {"unidirectional": 1}),
    ("MultiHeadAttention", {"q": HIDDEN, "k": HIDDEN, "v": HIDDEN, "b": None, "m": None, "a": None, "pk": f4(2, 2, 4, 4),
                            "pv": f4(2, 2, 4, 4, seed=1)}, 3, {}),
    ("MultiHeadAttention", {"q": HIDDEN, "k": f4(2, 2, 5, 4), "v": f4(2, 2, 5, 4, seed=1)}, 1, {}),
]


@pytest.mark.parametrize(("op", "feeds", "outputs", "attributes"), ATTENTION, ids=[f"{op}-{i}" for i, (op, *_) in enumerate(ATTENTION)])
def test_attention_gives_what_onnx_runtime_gives(op: str, feeds: dict[str, np.ndarray | None], outputs: int, attributes: dict[str, Any]) -> None:
    same(op, feeds, outputs, num_heads=2, **attributes)


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize(("past", "count", "lengths", "attributes"), [
    (0, 3, [3, 3], {}), (0, 3, [3, 2], {}), (6, 1, [7, 7], {}), (9, 1, [7, 5], {}), (4, 3, [7], {}), (9, 3, [7], {}),
    (6, 1, [7, 7], {"local_window_size": 3}), (4, 3, [7], {"softcap": 2.0, "scale": 0.25})], ids=str)
def test_queries_share_keys_and_caches_grow_or_are_written(past: int, count: int, lengths: list[int], rotary: int,
                                                           attributes: dict[str, Any]) -> None:
    rows, size = len(lengths), 16
    feeds: dict[str, np.ndarray | None] = {"q": f4(rows, count, 4 * size), "k": f4(rows, count, 2 * size), "v": f4(rows, count, 2 * size, seed=1)}
    feeds |= {"pk": f4(rows, 2, past, size), "pv": f4(rows, 2, past, size, seed=1)} if past else {"pk": None, "pv": None}
    feeds |= {"n": np.array(lengths, np.int32) - 1, "t": np.array(max(lengths), np.int32)}
    feeds |= {"c": f4(16, size // 2), "s": f4(16, size // 2, seed=1)} if rotary else {}
    proto = fused("GroupQueryAttention", feeds, 3, ["t"], num_heads=4, kv_num_heads=2, do_rotary=rotary, **attributes)
    fed = {n: a for n, a in feeds.items() if a is not None and n != "t"}
    got, wanted = run(imported(proto), fed), by_runtime(proto, fed)
    for row, length in enumerate(lengths):                     # what is behind a row's end is anything
        queries = count if past else length
        np.testing.assert_allclose(got[0][row, :queries], wanted[0][row, :queries], rtol=2e-4, atol=2e-5)
        for a, b in zip(got[1:], wanted[1:], strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a[row, :, :length], b[row, :, :length], rtol=2e-5, atol=2e-6)


def test_what_is_not_served_of_shared_keys_is_refused_by_name() -> None:
    feeds = {"q": f4(1, 2, 64), "k": f4(1, 2, 32), "v": f4(1, 2, 32), "pk": None, "pv": None, "n": np.int32([1]), "t": np.array(2, np.int32)}
    with pytest.raises(UnsupportedError, match=r"smooth_softmax=1"):
        imported(fused("GroupQueryAttention", feeds, 3, ["t"], num_heads=4, kv_num_heads=2, smooth_softmax=1))
    more: dict[str, np.ndarray | None] = {**feeds, **dict.fromkeys("cspahijlm"), "lengths": np.array([2], np.int32)}
    with pytest.raises(UnsupportedError, match=r"the input query_seqlens"):
        imported(fused("GroupQueryAttention", more, 3, ["t"], num_heads=4, kv_num_heads=2))


def test_the_simplified_norm_is_in_onnx_own_domain() -> None:
    proto = model_of([node("SimplifiedLayerNormalization", ["x", "g"], ["y"], epsilon=1e-3)], [port("x", [2, 3, 8])], [port("y", None)], {"g": f4(8)})
    old = model_of([node("LayerNormalization", ["x", "g"], ["y"], epsilon=1e-3)], [port("x", [2, 3, 8])], [port("y", None)], {"g": f4(8)}, opset=14)
    for model in (proto, old):
        np.testing.assert_allclose(run(imported(model), {"x": X})[0], by_runtime(model, {"x": X})[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("bias", "axis", "inner"), [((2, 1, 1, 5), 3, 0), ((4, 5), 2, 1)])
def test_softmax_behind_a_bias(bias: tuple[int, ...], axis: int, inner: int) -> None:
    """Which ONNX Runtime has on GPUs only; by NumPy."""
    feeds = {"a": f4(2, 3, 4, 5), "b": f4(*bias)}
    e = np.exp(feeds["a"] + feeds["b"])
    got, = run(imported(fused("BiasSoftmax", feeds, axis=axis, is_inner_broadcast=inner)), feeds)
    np.testing.assert_allclose(got, e / e.sum(tuple(range(axis, 4)), keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("op", ["GroupNorm", "SkipGroupNorm"])
@pytest.mark.parametrize("last", [0, 1])
def test_groups_of_channels(op: str, last: int) -> None:
    """Which ONNX Runtime has on GPUs only; by NumPy."""
    x, scale, bias, skip = f4(2, 3, 4, 6), f4(6), f4(6, seed=1), f4(2, 3, 4, 6, seed=1)
    total = x + skip if op == "SkipGroupNorm" else x
    groups = total.reshape(2, 12, 2, 3)
    y = ((groups - groups.mean((1, 3), keepdims=True)) / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-3)).reshape(x.shape) * scale + bias
    y = y / (1 + np.exp(-y))
    if not last:
        x, skip, y = (a.transpose(0, 3, 1, 2) for a in (x, skip, y))
    feeds = {"x": np.ascontiguousarray(x), "g": scale, "b": bias, **({"s": np.ascontiguousarray(skip)} if op == "SkipGroupNorm" else {})}
    if op == "SkipGroupNorm" and not last:
        feeds["s"] = np.ascontiguousarray(skip)
    got, = run(imported(fused(op, feeds, groups=2, activation=1, epsilon=1e-3, channels_last=last)), feeds)
    np.testing.assert_allclose(got, y, rtol=2e-4, atol=2e-5)


# ---- whole files --------------------------------------------------------------------------------------------------------

def optimised(proto: ModelProto, level: str, path: Path) -> ModelProto:
    """What ONNX Runtime's own optimiser makes of a model."""
    runtime = needs("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level, options.optimized_model_filepath, options.log_severity_level = level, str(path), 3
    runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def network(kind: str) -> ModelProto:
    """A network of layers as ONNX Runtime finds its patterns in: convolutions with activations, or a transformer's block."""
    def w(*shape: int) -> np.ndarray:
        return 0.3 * f4(*shape, seed=len(weights))

    weights: dict[str, np.ndarray] = {}
    if kind == "images":
        weights |= {"c1": w(8, 3, 3, 3), "b1": w(8)}
        weights |= {"c2": w(8, 8, 3, 3), "b2": w(8), "w1": w(128, 16), "v1": w(16)}
        nodes = [node("Conv", ["x", "c1", "b1"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["b"]),
                 node("Conv", ["b", "c2", "b2"], ["c"]), node("LeakyRelu", ["c"], ["d"], alpha=0.2),
                 node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]), node("Flatten", ["e"], ["f"]),
                 node("Gemm", ["f", "w1", "v1"], ["g"]), node("Relu", ["g"], ["y"])]
        return model_of(nodes, [port("x", [2, 3, 10, 10])], [port("y", [2, 16])], weights)
    for k, (rows, columns) in {"q": (16, 16), "k": (16, 16), "v": (16, 16), "o": (16, 16), "u": (16, 32), "d": (32, 16)}.items():
        weights |= {f"w{k}": w(rows, columns), f"b{k}": w(columns)}
    weights |= {"s1": 1 + w(16), "s2": 1 + w(16), "n1": w(16), "n2": w(16), "split": np.array([0, 0, 2, 8]), "join": np.array([0, 0, 16]),
                "root": np.float32(8 ** 0.5), "half": np.float32(0.5), "one": np.float32(1), "two": np.float32(2 ** 0.5)}

    def linear(x: str, k: str) -> list[Any]:
        return [node("MatMul", [x, f"w{k}"], [f"{k}m"]), node("Add", [f"b{k}", f"{k}m"], [f"{k}a"])]

    nodes = []
    for k in "qkv":
        nodes += [*linear("x", k), node("Reshape", [f"{k}a", "split"], [f"{k}r"]),
                  node("Transpose", [f"{k}r"], [f"{k}t"], perm=[0, 2, 3, 1] if k == "k" else [0, 2, 1, 3])]
    nodes += [node("MatMul", ["qt", "kt"], ["scores"]), node("Div", ["scores", "root"], ["scaled"]), node("Softmax", ["scaled"], ["p"], axis=-1),
              node("MatMul", ["p", "vt"], ["h"]), node("Transpose", ["h"], ["ht"], perm=[0, 2, 1, 3]), node("Reshape", ["ht", "join"], ["hr"]),
              *linear("hr", "o"), node("Add", ["oa", "x"], ["r1"]), node("LayerNormalization", ["r1", "s1", "n1"], ["l1"], axis=-1),
              *linear("l1", "u"), node("Div", ["ua", "two"], ["g1"]), node("Erf", ["g1"], ["g2"]), node("Add", ["g2", "one"], ["g3"]),
              node("Mul", ["ua", "g3"], ["g4"]), node("Mul", ["g4", "half"], ["g5"]), *linear("g5", "d"), node("Add", ["da", "l1"], ["r2"]),
              node("LayerNormalization", ["r2", "s2", "n2"], ["y"], axis=-1)]
    return model_of(nodes, [port("x", [2, 5, 16])], [port("y", [2, 5, 16])], weights)


@pytest.mark.parametrize("kind", ["images", "transformer"])
def test_optimised_files_give_the_outputs_and_gradients_of_the_others(kind: str, tmp_path: Path) -> None:
    """In float64, by the input, and by all parameters that have kept their names."""
    plain = network(kind)
    fused_one = optimised(plain, needs("onnxruntime").GraphOptimizationLevel.ORT_ENABLE_EXTENDED, tmp_path / "fused.onnx")
    assert any(n.domain == DOMAIN for n in fused_one.graph.node)
    x = f4(*(d.dim_value for d in plain.graph.input[0].type.tensor_type.shape.dim)).astype(np.float64)
    found = []
    for proto in (plain, fused_one):
        made = imported(proto, float_dtype="float64", training=True)
        graph, b = made.graph, Builder(made.graph)
        y, wrt = graph.outputs[0], [*graph.inputs, *(s.input for s in graph.parameters)]
        names = ["x", *(s.name for s in graph.parameters)]
        loss = b.ReduceSum(b.Mul(y, b.constant(f4(*y.shape).astype(np.float64))), keepdims=0)
        results = [y, *gradients(graph, loss, wrt)]
        values = evaluate(graph, {**made.weights, "x": x})
        found.append({"y": values[y.name], **{n: values[v.name] for n, v in zip(names, results[1:], strict=True)}})
    both = set(found[0]) & set(found[1])
    assert {"x", "y"} < both
    for name in both:
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-6, atol=1e-9 + 1e-6 * np.abs(found[0][name]).max(), err_msg=name)


def test_layouts_of_one_machine_are_refused(tmp_path: Path) -> None:
    made = optimised(network("images"), needs("onnxruntime").GraphOptimizationLevel.ORT_ENABLE_ALL, tmp_path / "all.onnx")
    if not any(n.domain == "com.microsoft.nchwc" for n in made.graph.node):
        pytest.skip("ONNX Runtime has no layout of its own on this machine")
    with pytest.raises(UnsupportedError, match="as one machine's ONNX Runtime likes them"):
        imported(made)


# ---- declarations -------------------------------------------------------------------------------------------------------

def test_declarations_are_those_of_onnx_runtime() -> None:
    """Operands and attributes, with types, defaults and what may be absent; roles are named for each operand."""
    state = needs("onnxruntime.capi.onnxruntime_pybind11_state")
    theirs = {(s.domain, s.name): s for s in state.get_all_operator_schema()}
    for key, ours in ((key, schema) for key, schema in DECLARED.items() if key[0] == DOMAIN):
        wanted, option = theirs[key], lambda formal: (formal.name, str(formal.option))
        both = min(len(ours.inputs), len(wanted.inputs))                    # a newer version may have more, which nobody must give
        assert [option(i) for i in ours.inputs[:both]] == [option(i) for i in wanted.inputs[:both]], key
        assert all(str(i.option).endswith(("Optional", "Variadic")) for i in (*ours.inputs[both:], *wanted.inputs[both:])), key
        assert [o.name for o in ours.outputs] == [o.name for o in wanted.outputs], key
        assert len(ROLES[key]) == len(ours.inputs)
        told = {n: (str(a.type), a.required) for n, a in wanted.attributes.items()}
        said = {n: (str(a.type), a.required) for n, a in ours.attributes.items()}
        assert said == {n: told[n] for n in said}, key
        assert not [n for n, (_, required) in told.items() if required and n not in said], key          # others are refused where they are given


def test_every_declared_operator_has_a_test() -> None:
    """By its name, as a text, in one of the files that try them."""
    files = [*TESTS.rglob("test_microsoft*.py"), *TESTS.rglob("test_quantize.py")]
    tried = "".join(file.read_text() for file in files)
    assert not [name for domain, name in DECLARED if domain == DOMAIN and f'"{name}"' not in tried]


def test_what_is_not_declared_is_refused_by_name() -> None:
    x = {"a": f4(2, 2), "b": f4(2, 2)}
    with pytest.raises(UnsupportedError, match=r"com.microsoft::FusedMatMul node 'it': the attribute beta, which is not known here"):
        imported(fused("FusedMatMul", x, beta=2.0))
    with pytest.raises(ModelError, match=r"its attribute 'alpha' must be FLOAT and is INT"):
        imported(fused("FusedMatMul", x, alpha=2))
    with pytest.raises(ModelError, match=r"FusedMatMul node 'it' has 3 inputs, more than its operator takes"):
        imported(fused("FusedMatMul", {**x, "c": f4(2)}))
    with pytest.raises(UnsupportedError, match=r"com.microsoft::Strange node 'it': tileflow has no such operator"):
        imported(fused("Strange", x))
    old = model_of([node("Scaler", ["a"], ["y"], domain="ai.onnx.ml")], [port("a", [2])], ["y"], domains=["ai.onnx.ml"])
    old.graph.node[0].op_type = "TreeEnsemble"
    with pytest.raises(UnsupportedError, match=r"opset 1 of ai.onnx.ml has no such operator"):
        imported(old)
