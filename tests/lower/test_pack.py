"""Weights laid out once per update: which operands, how many copies, when they are made anew, the same results."""
from __future__ import annotations

from typing import Any

import hosting
import numpy as np
import paths
import pytest
from evaluate import evaluate, run_kernel

import tileflow
from tileflow import nn, optim
from tileflow.compiler import inference
from tileflow.graph import OPS, Builder, Graph, State, TensorType, Value
from tileflow.kernels.isa import cpu
from tileflow.lower import pack as packing
from tileflow.lower.pack import pack
from tileflow.lower.plan import make_plan
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.runtime.executable import make_engine
from tileflow.state import Session

rng = np.random.default_rng(7)


def product(name: str, a: tuple[int, ...], b: tuple[int, ...], **attributes: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    return OPS[name](**attributes), rng.standard_normal(a).astype("f4"), rng.standard_normal(b).astype("f4")


CASES = [("Gemm", (40, 70), (33, 70), dict(transB=1, alpha=0.5)), ("Gemm", (70, 40), (70, 64), dict(transA=1)), ("Gemm", (40, 70), (70, 17), {}),
         ("MatMul", (3, 5, 70), (70, 50), {}), ("FusedMatMul", (4, 40, 30), (61, 30), dict(transB=1)),
         ("Gemm", (200, 700), (800, 700), dict(transB=1)), ("Gemm", (200, 600), (600, 900), {})]


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize(("name", "a", "b", "attributes"), CASES, ids=str)
def test_a_packed_product_is_the_product(name: str, a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any], path: str) -> None:
    op, x, y = product(name, a, b, **attributes)
    arrays: list[Any] = [x, y]
    if name == "Gemm":
        arrays.append(rng.standard_normal(op.problem(TensorType("float32", a), TensorType("float32", b)).n).astype("f4"))
    with cpu.forced(path):
        plain, = run_kernel(op, *arrays)
        types = [TensorType("float32", v.shape) for v in arrays]
        found, reading = hosting.packed(op, types)
        assert found is not None
        assert found.index == 1
        laid, = run_kernel(packing.Pack(found), y)
        got, = run_kernel(reading, x, laid, *arrays[2:])
        np.testing.assert_array_equal(run_kernel(reading, x, laid, *arrays[2:], workers=3)[0], got)
    right, = op.reference(*[v.astype("f8") for v in arrays])
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-4)
    # Few rows of a transposed B are summed in another order, and so are products whose B must be packed for tiles to
    # pay.
    if path == "amx" and b in ((70, 64), (70, 50)):
        assert not np.array_equal(got, plain)
    elif not attributes.get("transB") or b[0] > 100:
        np.testing.assert_array_equal(got, plain)


def test_what_has_no_packed_form() -> None:
    for name, a, b, attributes in (("Gemm", (4, 256), (64, 256), dict(transB=1)), ("MatMul", (40, 30), (30,), {}),
                                   ("MatMul", (2, 9, 3), (2, 3, 9), {}), ("Gemm", (40, 0), (0, 32), {}),
                                   ("SerializedGemm", (40, 70), (70, 32), dict(factor=2))):
        op = OPS[name](**attributes)
        types = [TensorType("float32", a), TensorType("float32", b)]
        assert hosting.packed(op, types)[0] is None, (name, a, b)


# ---- the pass

def two_layers(k: int = 64, rows: int = 40, accumulation: int = 2) -> tuple[Program, list[Value]]:
    """x @ W0.T, x @ W1.T and then both by W0: W0 is wanted in two layouts, one of them by two nodes."""
    graph = Graph("micro")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (rows, k)))
    weights = [Value(f"w{i}", TensorType("float32", (k, k))) for i in range(2)]
    graph.states = [State(w.name, "parameter", w) for w in weights]
    y = b.Gemm(b.Gemm(b.Gemm(x, weights[0], transB=1), weights[0], transB=1), weights[1], transB=1)
    graph.outputs = [b.Gemm(y, weights[0])]
    return Program.of(graph, Batching(rows, accumulation), training=False), weights


def test_one_copy_per_weight_and_layout() -> None:
    program, weights = two_layers()
    before = [repr(n) for n in program.micro.nodes]
    made = pack(program, cpu.current())
    assert [(n.op.name, n.inputs[0]) for n in made.parts["prologue"].nodes] == [("Pack", weights[0]), ("Pack", weights[1]), ("Pack", weights[0])]
    first, second, third, last = (n.inputs[1] for n in made.micro.nodes)
    assert first is second and len({first, third, last}) == 3         # noqa: PT018
    assert [repr(n) for n in program.micro.nodes] == before
    assert not program.parts["prologue"].nodes
    assert not program.links
    assert made.inputs == program.inputs


def test_what_changes_within_an_update_is_not_packed() -> None:
    program, weights = two_layers(rows=64)
    program.micro.states[0].output = program.micro.outputs[0]
    assert {n.inputs[0] for n in pack(program, cpu.current()).parts["prologue"].nodes} == {weights[1]}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    program, weights = two_layers(accumulation=1)
    program.training = True
    monkeypatch.setattr(packing, "SMALL", 1)
    assert [n.inputs[0] for n in pack(program, cpu.current()).parts["prologue"].nodes] == [weights[0]]        # only that is read twice in an update
    monkeypatch.setattr(packing, "SMALL", 1 << 20)
    made = pack(program, cpu.current()).parts["prologue"].nodes
    assert len(made) == 3
    monkeypatch.setattr(packing, "MOST_BYTES", sum(n.outputs[0].type.nbytes for n in made) - 1)
    assert len(pack(program, cpu.current()).parts["prologue"].nodes) == 2


def test_a_value_that_only_packings_read_is_not_kept() -> None:
    """W.T made in the prologue: the micro-step reads its panels only."""
    program, weights = two_layers()
    turned = Builder(program.parts["prologue"]).Transpose(weights[1], perm=(1, 0))
    program.parts["prologue"].outputs = [turned]
    program.parts["prologue"].states = [State("w1", "parameter", weights[1])]
    crossing = Value("crossing", turned.type)
    program.micro.inputs.append(crossing)
    program.links = {crossing: turned}
    b = Builder(program.micro)
    program.micro.outputs = [b.Gemm(program.micro.outputs[0], crossing)]
    made = pack(program, cpu.current())
    assert turned not in made.parts["prologue"].outputs
    assert program.parts["prologue"].outputs == [turned]
    assert crossing not in made.micro.inputs
    assert make_plan(program, 1).parts["prologue"].rows


# ---- sessions

class Deep(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(3)
        self.first, self.last = nn.Linear(50, 96), nn.Linear(96, 10)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.last(self.first(x).relu())


def forward(net: Deep, x: np.ndarray) -> np.ndarray:
    w = {n: a.astype("f8") for n, a in net.state_dict().items()}
    return np.maximum(x @ w["first.weight"].T + w["first.bias"], 0) @ w["last.weight"].T + w["last.bias"]


def test_copies_follow_updates_and_loads() -> None:
    net = Deep()
    x, labels = rng.standard_normal((160, 50)).astype("f4"), rng.integers(0, 10, 160)
    trained = tileflow.training_model(net, optimizer=optim.SGD(lr=0.5), gradient_accumulation=2, device_iterations=2)
    inferred = tileflow.inference_model(net)
    start = {n: a.copy() for n, a in net.state_dict().items()}
    outputs = []
    for _ in range(2):
        np.testing.assert_allclose(inferred(x[:40]), forward(net, x[:40]), rtol=1e-4, atol=1e-5)
        trained(x, labels)
        outputs.append(inferred(x[:40]))
        np.testing.assert_allclose(outputs[-1], forward(net, x[:40]), rtol=1e-4, atol=1e-5)
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
    net.load_state_dict(start)
    np.testing.assert_allclose(inferred(x[:40]), forward(net, x[:40]), rtol=1e-4, atol=1e-5)
    trained(x, labels)
    np.testing.assert_array_equal(inferred(x[:40]), outputs[0])


@pytest.mark.parametrize("dtype", ["float32", paths.rare("float16")])
def test_different_operators_share_a_layout(dtype: str) -> None:
    """A depthwise convolution, its input gradient, and products of other factors read one copy, and each computes its own."""
    kernel = dict(strides=(1, 1), pads=(2, 2, 2, 2), dilations=(1, 1), group=16)
    graph = Graph()
    b = Builder(graph)
    x, a = b.input("x", TensorType(dtype, (4, 16, 4, 4))), b.input("a", TensorType(dtype, (40, 64)))
    shapes = {"w": (16, 1, 5, 5), "m": (64, 64)}
    graph.states = [State(n, "parameter", Value(n, TensorType(dtype, shape))) for n, shape in shapes.items()]
    w, m = (s.input for s in graph.states)
    graph.outputs = [b.Conv(x, w, None, kernel_shape=(5, 5), **kernel), b.ConvInputGrad(x, w, shape=(4, 4), **kernel), b.Gemm(a, m),
                     b.Gemm(a, m, alpha=0.5)]
    feeds = {v.name: rng.standard_normal(v.shape).astype(dtype) for v in (x, a, w, m)}
    wanted, names = evaluate(graph, feeds), [v.name for v in graph.outputs]
    engine = make_engine(inference(graph, Batching(1, 1, 1)).program, Session(), feeds)
    for name, found in zip(names, engine.call([feeds["x"], feeds["a"]]), strict=True):
        exact = wanted[name].astype(np.float64)
        np.testing.assert_allclose(found[0], exact, atol=np.abs(exact).max() * (4e-3 if dtype == "float16" else 1e-5))


@pytest.mark.parametrize("rows", [40, 4])
def test_a_turned_weight_is_laid_out_as_it_lies(rows: int) -> None:
    """x @ W^T, where the file turns W: no copy of it is turned where the product reads panels; few rows read the turned
    one."""
    graph = Graph("micro")
    b = Builder(graph)
    x, w = b.input("x", TensorType("float32", (rows, 70))), Value("w", TensorType("float32", (50, 70)))
    graph.states = [State("w", "parameter", w)]
    graph.outputs.append(b.MatMul(x, b.Transpose(w, perm=(1, 0))))
    program = inference(graph, Batching(rows)).program
    assert [n.op.name for n in program.parts["prologue"].nodes] == ["Transpose"]
    packed = pack(program, cpu.current())
    assert [n.op.name for n in packed.parts["prologue"].nodes] == (["Pack"] if rows > 8 else ["Transpose"])
    a, c = (rng.standard_normal(s).astype("f4") for s in ((rows, 70), (50, 70)))
    engine = make_engine(program, Session(), {"w": c})
    got, = engine.run({"x": a}).values()
    np.testing.assert_allclose(got.reshape(rows, 50), a.astype("f8") @ c.astype("f8").T, rtol=1e-4, atol=1e-4)
    if rows > 8:
        op, kinds = OPS["MatMul"](), [TensorType("float32", (rows, 70)), TensorType("float32", (70, 50))]
        found, reading = hosting.packed(op, kinds)
        laid, = run_kernel(packing.Pack(found), np.ascontiguousarray(c.T))
        np.testing.assert_array_equal(run_kernel(reading, a, laid)[0], got.reshape(rows, 50))
