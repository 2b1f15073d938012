"""QDQ models in integers: what the rule takes is one step from exact numbers at most, what it is not sure of it leaves alone."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate
from onnx_models import imported, model_of, node, port
from paths import rare
from peers import needs, onnx_runtime

from bench import files
from tileflow.compiler import inference
from tileflow.graph import Graph
from tileflow.host.dequantized import _within
from tileflow.host.rewrite import COMPOSITES, rewrite
from tileflow.lower.plan import make_plan
from tileflow.onnx_backend import Backend
from tileflow.ops.activation import Relu
from tileflow.ops.arithmetic import Clip
from tileflow.program.batching import Batching

Array = np.ndarray
F = np.float32
RNG = np.random.default_rng(0)
CONV: dict[str, Any] = {"sx": F(0.03), "zx": np.uint8(110), "w": RNG.integers(-127, 128, (6, 4, 3, 3), dtype=np.int8),
                        "sw": np.linspace(0.01, 0.02, 6, dtype=F), "zw": np.zeros(6, np.int8), "b": RNG.integers(-3000, 3000, 6, dtype=np.int32),
                        "zb": np.zeros(6, np.int32), "sy": F(0.7), "zy": np.uint8(120)}
CONV["sb"] = CONV["sx"] * CONV["sw"]
GEMM: dict[str, Any] = {**CONV, "w": RNG.integers(-127, 128, (6, 20), dtype=np.int8)}


def conv(changes: dict[str, Any] | None = None, between: tuple[Any, ...] = (), more: tuple[str, ...] = (), **attributes: Any) -> onnx.ModelProto:
    """x (uint8) -> DQ, Conv, `between`, Q -> y; `more`: further outputs."""
    stored = {**CONV, **(changes or {})}
    kind = stored["zy"].dtype.name
    last = "c" if not between else "a"
    nodes = [node("DequantizeLinear", ["x", "sx", "zx"], ["dx"]), node("DequantizeLinear", ["w", "sw", "zw"], ["dw"], axis=attributes.pop("axis", 0)),
             node("DequantizeLinear", ["b", "sb", "zb"], ["db"], axis=0), node("Conv", ["dx", "dw", "db"], ["c"], pads=[1, 1, 1, 1], **attributes),
             *between, node("QuantizeLinear", [last, "sy", "zy"], ["y"])]
    results = [port("y", (2, 6, 5, 6), kind), *(port(v, (2, 6, 5, 6)) for v in more)]
    return model_of(nodes, [port("x", (2, 4, 5, 6), stored["zx"].dtype.name)], results, stored, opset=17)


def gemm(changes: dict[str, Any] | None = None, **attributes: Any) -> onnx.ModelProto:
    stored = {**GEMM, **(changes or {})}
    attributes = {"transB": 1, **attributes}
    nodes = [node("DequantizeLinear", ["x", "sx", "zx"], ["dx"]), node("DequantizeLinear", ["w", "sw", "zw"], ["dw"], axis=1 - attributes["transB"]),
             node("DequantizeLinear", ["b", "sb", "zb"], ["db"], axis=0), node("Gemm", ["dx", "dw", "db"], ["g"], **attributes),
             node("QuantizeLinear", ["g", "sy", "zy"], ["y"])]
    return model_of(nodes, [port("x", (3, 20), "uint8")], [port("y", (3, 6), "uint8")], stored, opset=17)


def rewritten(model: onnx.ModelProto) -> tuple[Graph, Graph]:
    graph = imported(model).graph
    return graph, rewrite(graph, (), COMPOSITES)


def names(graph: Graph) -> set[str]:
    return {n.op.name for n in graph.nodes} & {"HostConv", "QLinearConv", "QuantizedProduct", "ScaledProduct"}


TAKEN: dict[str, Callable[[], onnx.ModelProto]] = {
    "conv": conv,
    "per tensor": lambda: conv({"sw": F(0.01), "zw": np.int8(3), "sb": F(0.03) * F(0.01), "zb": np.int32(0)}),
    "relu": lambda: conv(between=(node("Relu", ["c"], ["a"]),)),
    "relu to int8": lambda: conv({"zy": np.int8(-3)}, between=(node("Relu", ["c"], ["a"]),)),
    "six": lambda: conv({"lo": F(0), "hi": F(6)}, between=(node("Clip", ["c", "lo", "hi"], ["a"]),)),
    "relu saturated": lambda: conv({"zy": np.uint8(0)}, between=(node("Relu", ["c"], ["a"]),)),
    "gemm": gemm, "gemm as it lies": lambda: gemm({"w": np.ascontiguousarray(GEMM["w"].T)}, transB=0)}


@pytest.mark.parametrize("name", [name if name in ("conv", "relu to int8", "gemm") else rare(name) for name in TAKEN])
def test_taken_and_one_step_from_the_exact_numbers(name: str) -> None:
    model = TAKEN[name]()
    graph, done = rewritten(model)
    assert names(done) in ({"HostConv"}, {"QuantizedProduct"}), [n.op for n in done.nodes]
    x = np.random.default_rng(1).integers(0, 256, graph.inputs[0].shape, dtype=np.uint8)
    exact, = _exactly(model, x)
    wanted = evaluate(graph, {"x": x})[graph.outputs[0].name]                 # in float, as the file says
    found, = Backend.prepare(model).run([x])
    for y in (exact, wanted):
        assert np.abs(found.astype(int) - y).max() <= 1
        assert (found != y).mean() < 0.02
    assert len(np.unique(found)) > 5


def _exactly(model: onnx.ModelProto, x: Array) -> list[Array]:
    """The file's operators in float64."""
    wide = {"float32": np.float64}
    graph = imported(model).graph
    values: dict[Any, Array] = {graph.inputs[0]: x, **{v: a.astype(wide.get(a.dtype.name, a.dtype)) for v, a in graph.constants.items()}}
    for n in graph.nodes:
        given = [None if v is None else values[v] for v in n.inputs]
        if n.op.name == "DequantizeLinear":
            lying = [1] * given[0].ndim                                                                    # type: ignore[union-attr]
            lying[n.op.axis if np.size(given[1]) > 1 else 0] = -1                                           # type: ignore[attr-defined]
            made = (given[0].astype(float) - given[2].reshape(lying)) * given[1].reshape(lying)             # type: ignore[union-attr]
            made = made.reshape(given[0].shape)                                                             # type: ignore[union-attr]
        elif n.op.name == "QuantizeLinear":
            info = np.iinfo(n.outputs[0].type.numpy)
            made = np.clip(np.rint(given[0] / given[1]) + given[2], info.min, info.max)                    # type: ignore[operator]
        else:
            made = n.op.reference(*given)[0]
        values[n.outputs[0]] = made
    return [values[v] for v in graph.outputs]


def product(changes: dict[str, Any] | None = None, **attributes: Any) -> onnx.ModelProto:
    """x (uint8) -> DQ, Gemm with dequantised weights and a bias of floats -> Relu -> y."""
    stored = {**GEMM, "b": np.linspace(-4, 5, 6, dtype=F), **(changes or {})}
    nodes = [node("DequantizeLinear", ["x", "sx", "zx"], ["dx"]),
             node("DequantizeLinear", ["w", "sw", "zw"], ["dw"], axis=0),
             node("Gemm", ["dx", "dw", "b"], ["g"], transB=1, **attributes), node("Relu", ["g"], ["y"])]
    return model_of(nodes, [port("x", (3, 20), "uint8")], [port("y", (3, 6))], stored, opset=17)


@pytest.mark.parametrize("changes", [{}, rare({"sw": F(0.01), "zw": np.int8(3)})], ids=["channels", "tensor"])
def test_products_that_nothing_quantises_are_exact_sums_scaled_once(changes: dict[str, Any]) -> None:
    model = product(changes)
    assert names(rewritten(model)[1]) == {"ScaledProduct"}
    x = np.random.default_rng(1).integers(0, 256, (3, 20), dtype=np.uint8)
    found, = Backend.prepare(model).run([x])
    of, bias = {**GEMM, **changes}, np.linspace(-4, 5, 6, dtype=F).astype(float)
    image = (x - 110.0) * float(of["sx"])
    weights = (of["w"] - of["zw"].reshape(-1, 1).astype(float)) * of["sw"].reshape(-1, 1).astype(float)
    exact = np.maximum(image @ weights.T + bias, 0)
    assert (np.abs(found - exact) <= 2.0 ** -24 * (4 * np.abs(exact) + 4 * np.abs(bias))).all()
    assert len(np.unique(found)) > 5


def test_what_is_quantised_again_is_no_such_product() -> None:
    assert names(rewritten(gemm())[1]) == {"QuantizedProduct"}


LEFT: dict[str, Callable[[], onnx.ModelProto]] = {
    "the sums are wanted, too": lambda: conv(more=("c",)),
    "an activation that is no limit": lambda: conv(between=(node("Sigmoid", ["c"], ["a"]),)),
    "scales of input channels": lambda: conv({"sw": np.linspace(0.01, 0.02, 4, dtype=F), "zw": np.zeros(4, np.int8)}, axis=1),
    "a bias of another scale": lambda: conv({"sb": CONV["sb"] * F(1.001)}),
    "a bias with a zero point": lambda: conv({"zb": np.arange(6, dtype=np.int32)}),
    "a scale near the end of the range": lambda: conv({"sy": F(1e-30)}),
    "a limit that is none": lambda: conv({"hi": F(np.nan)}, between=(node("Clip", ["c", "", "hi"], ["a"]),)),
    "sums beyond 32 bits": lambda: conv({"b": np.full(6, 2 ** 31 - 9, np.int32)}),
    "a scale of zero": lambda: conv({"sy": F(0)}),
    "a factor": lambda: gemm(alpha=0.5),
    "a factor before no quantisation": lambda: product(alpha=0.5),
    "a factor of a bias of floats": lambda: product(beta=0.5),
    "a scale that is no number": lambda: product({"sw": F(np.inf), "zw": np.int8(0)}),
    "a factor of the bias": lambda: gemm(beta=2.0)}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    _, done = rewritten(LEFT[name]())
    assert not names(done), [n.op for n in done.nodes]


def test_scales_that_come_with_the_input_are_left_alone() -> None:
    nodes = [node("DequantizeLinear", ["x", "s"], ["dx"]), node("DequantizeLinear", ["w", "sw"], ["dw"]), node("MatMul", ["dx", "dw"], ["m"]),
             node("QuantizeLinear", ["m", "sw"], ["y"])]
    stored = {"w": GEMM["w"].T.copy(), "sw": F(0.1)}
    for given in (True, False):
        ports = [port("x", (3, 20), "uint8"), *([port("s", ())] if given else [])]
        model = model_of(nodes, ports, [port("y", (3, 6), "uint8")], {**stored, **({} if given else {"s": F(0.02)})}, opset=17)
        assert names(rewritten(model)[1]) == (set() if given else {"QuantizedProduct"})


@pytest.mark.parametrize("zero", [0, 7, 255])
def test_limits_are_those_of_the_quantised_numbers(zero: int) -> None:
    """In any order, also where nothing is left between them."""
    y = np.linspace(-30, 30, 2001).astype(F)
    scale = F(0.11)

    def quantized(values: Array) -> Array:
        return np.clip(np.rint(values / scale) + zero, 0, 255).astype(int)

    for ops in ([Relu()], [Clip(min=-3.0, max=4.0)], [Clip(max=-1.0)], [Relu(), Clip(max=-1.0)], [Clip(max=-1.0), Relu()],
                [Clip(min=5.0), Clip(max=2.0)], [Clip(min=5.0, max=2.0)], [Clip(min=-1000.0, max=1000.0)], [Clip(min=28.0), Relu()]):
        bounds, wanted = (0, 255), y
        for op in reversed(ops):
            bounds = _within(bounds, op, float(scale), zero)
        for op in ops:
            wanted = op.reference(wanted)[0]
        np.testing.assert_array_equal(np.clip(quantized(y), *bounds), quantized(wanted), err_msg=f"{ops} {bounds}")


def test_weights_are_found_where_they_are_dequantised_beforehand() -> None:
    """A Program computes them in its prologue; after the rule nothing does."""
    program = inference(imported(conv()).graph, Batching(2)).program
    assert {n.op.name for n in program.parts["prologue"].nodes} == {"DequantizeLinear"}
    plan = make_plan(program, 1)
    assert "integer_conv" in plan.to_text()
    assert {row.leaf.name for row in plan.parts["prologue"].rows} == {"lay_weights"}


def chain(layers: int, between: bool, weights: str) -> onnx.ModelProto:
    """x -> Q -> [DQ, MatMul with dequantised weights, perhaps Relu, Q] ... -> DQ -> y; each layer has scales and zero
    points of its own."""
    rng, nodes = np.random.default_rng(5), [node("QuantizeLinear", ["x", "s0", "z0"], ["q0"])]
    stored: dict[str, Any] = {"s0": F(0.03), "z0": np.uint8(128)}
    for i in range(layers):
        per = rng.uniform(0.002, 0.003, 32).astype(F) if weights == "channels" else F(0.002 + 0.0001 * i)
        stored |= {f"s{i + 1}": F(0.031 + 0.001 * i), f"z{i + 1}": np.uint8(100 + i), f"ws{i}": per,
                   f"wz{i}": np.zeros_like(per, np.int8), f"w{i}": rng.integers(-127, 128, (32, 32), dtype=np.int8)}
        made = f"r{i}" if between else f"y{i}"
        nodes += [node("DequantizeLinear", [f"q{i}", f"s{i}", f"z{i}"], [f"d{i}"]),
                  node("DequantizeLinear", [f"w{i}", f"ws{i}", f"wz{i}"], [f"dw{i}"], axis=1),
                  node("MatMul", [f"d{i}", f"dw{i}"], [f"y{i}"]),
                  *([node("Relu", [f"y{i}"], [made])] if between else []),
                  node("QuantizeLinear", [made, f"s{i + 1}", f"z{i + 1}"], [f"q{i + 1}"])]
    nodes.append(node("DequantizeLinear", [f"q{layers}", f"s{layers}", f"z{layers}"], ["y"]))
    return model_of(nodes, [port("x", (4, 32))], [port("y", (4, 32))], stored, opset=17)


def test_a_chain_that_ends_in_floats_is_few_kernels() -> None:
    """The product, the layout of its weights, of all of them at once, what follows it, what follows the last one, and a
    pass over the input."""
    plan = make_plan(inference(imported(files.quantised(16)).graph, Batching(8)).program, 1)
    assert len(plan.leaves()) <= 6
    assert sum(row.leaf.name == "integer_product" for row in plan.micro.rows) == 16


@pytest.mark.parametrize("weights", ["tensor", "channels"])
@pytest.mark.parametrize("between", [False, True])
def test_layers_that_differ_in_their_scales_are_the_same_kernels(between: bool, weights: str) -> None:
    """The product, the layout of its weights, what follows it, what follows the last one, and passes over the input and
    the zero points."""
    few, many = (make_plan(inference(imported(chain(layers, between, weights)).graph, Batching(4)).program, 1)
                 for layers in (2, 16))
    assert set(few.leaves()) == set(many.leaves())
    assert len(many.leaves()) <= 6
    assert sum(row.leaf.name == "integer_product" for row in many.micro.rows) == 16


def test_layers_that_round_in_other_ways_are_other_kernels() -> None:
    """One step from the above: a Relu among layers without one."""
    models = (imported(chain(3, between, "tensor")) for between in (False, True))
    plain, limited = ({*make_plan(inference(model.graph, Batching(4)).program, 1).leaves()} for model in models)
    names = [[leaf.name for leaf in others] for others in (plain - limited, limited - plain)]
    assert names == [["integer_epilogue"] * 2] * 2


def test_files_of_onnx_runtimes_quantisation(tmp_path: Path) -> None:
    """Static quantisation of a small network: the same numbers up to a step of the last one."""
    needs("onnxruntime")
    from onnxruntime import quantization

    rng = np.random.default_rng(3)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "w3": (12, 8, 1, 1), "b3": (12,), "w4": (12, 5), "b4": (5,)}
    weights = {name: rng.normal(size=shape).astype(F) for name, shape in shapes.items()}
    nodes = [node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4, strides=[2, 2]), node("Relu", ["c1"], ["r1"]),
             node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4, group=8), node("Relu", ["c2"], ["r2"]), node("Conv", ["r2", "w3", "b3"], ["c3"]),
             node("GlobalAveragePool", ["c3"], ["p"]), node("Flatten", ["p"], ["f"]), node("Gemm", ["f", "w4", "b4"], ["y"])]
    model = model_of(nodes, [port("x", (1, 3, 12, 12))], [port("y", (1, 5))], weights, opset=17)
    onnx.save(model, tmp_path / "float.onnx")
    batches = [rng.normal(size=(1, 3, 12, 12)).astype(F) for _ in range(8)]

    class Reader(quantization.CalibrationDataReader):                                                       # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(batches)

        def get_next(self) -> dict[str, Array] | None:
            return next(({"x": x} for x in self.left), None)

    for per_channel, kind in ((True, quantization.QuantType.QInt8), (False, quantization.QuantType.QUInt8)):
        quantization.quantize_static(tmp_path / "float.onnx", tmp_path / "q.onnx", Reader(), quant_format=quantization.QuantFormat.QDQ,
                                     per_channel=per_channel, activation_type=kind, weight_type=quantization.QuantType.QInt8)
        made = onnx.load(tmp_path / "q.onnx")
        assert len([n for n in rewritten(made)[1].nodes if n.op.name in ("HostConv", "QuantizedProduct")]) == 4
        session = onnx_runtime(tmp_path / "q.onnx")
        backend = Backend.prepare(made)
        step = max(float(onnx.numpy_helper.to_array(i)) for i in made.graph.initializer if i.name == "y_scale")
        for x in batches:
            (found,), (wanted,) = backend.run([x]), session.run(None, {"x": x})
            assert np.abs(found - wanted).max() <= 2.01 * step
