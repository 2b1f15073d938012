"""Kernels of float32 over 16-bit memory: the bits of widening whole tensors, computing and rounding once; and the pass that asks for them."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import paths
import pytest
from evaluate import run_kernel
from samples import Case, cases

from tileflow.graph import Builder, Graph, Op, Origin, TensorType, Value
from tileflow.graph.composite import declares
from tileflow.host.form import HostForm, channels_last
from tileflow.host.hosted import Hosted, hosted, over_narrow
from tileflow.host.pool import WinningMaxPool, WinningMaxPoolGrad
from tileflow.kernels import streamed as kernels
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import Call, In, Out
from tileflow.lower.fuse import fuse
from tileflow.lower.narrow import narrow
from tileflow.lower.widen import widen
from tileflow.ops.loss import SoftmaxCrossEntropyLoss, SoftmaxCrossEntropyLossGrad
from tileflow.ops.matmul import MatMul
from tileflow.ops.norm import BatchNormalization, BatchNormalizationGrad, LayerNormalization, LayerNormalizationGrad
from tileflow.ops.pool import MaxPool
from tileflow.ops.reduce import ReduceMean, ReduceSum
from tileflow.ops.softmax import Softmax, SoftmaxGrad

KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def forms(op: Op, arrays: list[np.ndarray | None], dtype: str) -> Hosted | None:
    """The operator with all inputs and outputs in 16-bit memory that can be."""
    if not declares(op, "kernel"):
        return None
    types = [None if a is None else TensorType(a.dtype.name, a.shape) for a in arrays]
    outputs = op.infer(*types)
    if op.alias is not None or op.expression(types, outputs) is not None:
        return None
    calls = op.kernel(types, outputs, cpu.current())

    def fits(into: dict[int, str], out: dict[int, str]) -> bool:
        return over_narrow(calls, into, out) is not None
    into = {i: dtype for i, t in enumerate(types) if t is not None and t.dtype == "float32" and fits({i: dtype}, {})}
    out = {i: dtype for i, t in enumerate(outputs) if t.dtype == "float32" and fits({}, {i: dtype})}
    return hosted(op).also(narrow_inputs=into, narrow_outputs=out) if (into or out) and fits(into, out) else None


def check(op: Op, arrays: list[np.ndarray | None], dtype: str, workers: int = 2) -> Hosted | None:
    """The form's bits are those of the operator over widened operands, rounded."""
    made = forms(op, arrays, dtype)
    if made is None:
        return None
    low = [a.astype(KINDS[dtype]) if a is not None and i in made.form.narrow_inputs else a
           for i, a in enumerate(arrays)]
    wide = [a.astype("float32") if a is not None and i in made.form.narrow_inputs else a for i, a in enumerate(low)]
    with np.errstate(all="ignore"):
        wanted = [a.astype(made.form.narrow_outputs.get(i, a.dtype))
                  for i, a in enumerate(run_kernel(op, *wide, seed=3, micro=1))]
    for count in (1, workers):
        for i, (got, want) in enumerate(zip(run_kernel(made, *low, workers=count, seed=3, micro=1), wanted, strict=True)):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got.astype("float64"), want.astype("float64"), err_msg=f"{made}: output {i}")
    return made


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("case", [c for c in cases() if c.name.endswith("-0")], ids=lambda c: c.name)
@paths.exhaustive
def test_declared_samples(case: Case, dtype: str) -> None:
    arrays = case.arrays()
    if any(a is not None and a.dtype == np.float32 for a in arrays):
        check(case.op, arrays, dtype)


BOTH = [(name, op, shapes) for name, op, shapes in (
    ("rows", Softmax(), [(37, 130)]), ("rows back", SoftmaxGrad(), [(37, 130), (37, 130)]), ("norm", LayerNormalization(), [(70, 33), (33,), (33,)]),
    ("norm back", LayerNormalizationGrad(), [(70, 33), (70, 33), (33,), (70, 1), (70, 1)]), ("sum", ReduceSum(axes=(1,)), [(5, 700)]),
    ("images", Hosted(BatchNormalization(training_mode=1), HostForm((True,), (True,))),
     [(2, 37, 41, 19), (19,), (19,)]),
    ("images back", Hosted(BatchNormalizationGrad(), HostForm((True, True), (True,))),
     [(2, 37, 41, 19), (2, 37, 41, 19), (19,), (19,), (19,)]),
    ("sum of rows", ReduceSum(axes=(0,)), [(90, 40)]), ("long sum", ReduceMean(axes=(0, 1)), [(33000, 2)]), ("long row", Softmax(), [(3, 5001)]))]


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("dtype", ["float16", paths.rare("bfloat16")])
@pytest.mark.parametrize(("name", "op", "shapes"), [(pytest.param if case[0] in ("rows", "norm back", "sum") else paths.rare)(*case, id=case[0])
                                                    for case in BOTH])
def test_kernels_that_matter(path: str, dtype: str, name: str, op: Op, shapes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are streamed, and leaves that read 16-bit memory by themselves; every large operand is among them."""
    monkeypatch.setattr(kernels, "SMALL", 64)
    rng = np.random.default_rng(0)
    with cpu.forced(path):
        arrays = [rng.standard_normal(s).astype("float32") for s in shapes]
        made = check(op, arrays, dtype, 3)
        assert made is not None
        assert all(i in made.form.narrow_inputs for i, a in enumerate(arrays) if a.size > 70), made
        assert name.endswith("sum") or name == "sum of rows" or 0 in made.form.narrow_outputs, made


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("dtype", [paths.rare("float16"), paths.rare("bfloat16")])
def test_losses_that_matter(path: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL", 64)
    rng = np.random.default_rng(0)
    with cpu.forced(path):
        scores, labels = rng.standard_normal((40, 301)).astype("float32"), rng.integers(0, 301, 40)
        loss, grad = SoftmaxCrossEntropyLoss(), SoftmaxCrossEntropyLossGrad()
        made = check(loss, [scores, labels], dtype)
        assert made is not None
        assert 0 in made.form.narrow_inputs
        made = check(grad, [np.float32(0.5), scores, labels], dtype)
        assert made is not None
        assert (1 in made.form.narrow_inputs, 0 in made.form.narrow_outputs) == (True, True)
        labels[5] = 301
        with pytest.raises(Exception, match="status"):
            run_kernel(made, np.float32(0.5), scores.astype(KINDS[dtype]), labels)


@paths.exhaustive
@pytest.mark.parametrize("path", cpu.available())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pools_of_channels_last_images(path: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL", 64)
    rng = np.random.default_rng(1)
    image, planes = rng.standard_normal((2, 13, 11, 19)).astype("float32"), TensorType("float32", (2, 19, 13, 11))
    with cpu.forced(path):
        for kernel, stride, pads in ((3, 2, (1, 1, 1, 1)), (2, 2, (0, 0, 0, 0)), (3, 1, (3, 0, 0, 0))):
            plain = MaxPool(kernel_shape=(kernel,) * 2, strides=(stride,) * 2, pads=pads)
            winning = WinningMaxPool(**plain.attributes())
            for op in (plain, winning):
                form = channels_last(op, [planes], op.infer(planes), cpu.current())
                assert form is not None
                made = check(form.op, [image], dtype)
                assert made is not None
                assert (0 in made.form.narrow_inputs, 0 in made.form.narrow_outputs) == (True, True)
            pooled, winners = run_kernel(form.op, image)
            back = WinningMaxPoolGrad(**plain.same(), shape=(13, 11))
            types = [TensorType("float32", (2, 19, *pooled.shape[1:3])), TensorType(winners.dtype.name, (2, 19, *pooled.shape[1:3]))]
            form = channels_last(back, types, back.infer(*types), cpu.current())
            assert form is not None
            made = check(form.op, [rng.standard_normal(pooled.shape).astype("float32"), winners], dtype)
            assert made is not None
            assert (0 in made.form.narrow_inputs, 0 in made.form.narrow_outputs) == (True, True)


def test_casts_at_the_border_of_an_operator_go() -> None:
    """What a rounded result is for one reader only is written rounded; a second reader of the float32 value keeps it."""
    for kept in (False, True):
        graph = Graph("casts")
        b = Builder(graph)
        x = b.input("x", TensorType("bfloat16", (64, 300)))
        scale, shift = (b.input(n, TensorType("float32", (300,))) for n in ("scale", "shift"))
        y = b.LayerNormalization(b.Cast(x, to="float32"), scale, shift)[0]
        graph.outputs += [b.Cast(y, to="bfloat16"), *([y] if kept else [])]
        found = narrow(graph, cpu.current())
        names, op = [n.op.name for n in found.nodes], found.nodes[0].op
        assert names == (["LayerNormalization", "Cast"] if kept else ["LayerNormalization"])
        assert isinstance(op, Hosted)
        assert op.form == HostForm(narrow_inputs={0: "bfloat16"}, narrow_outputs={} if kept else {0: "bfloat16"})
        assert [n.op.name for n in graph.nodes].count("Cast") == 2, "the graph itself stays"


def test_widened_operators_keep_16_bits_in_memory() -> None:
    graph = Graph("widened")
    b = Builder(graph)
    x = b.input("x", TensorType("float16", (64, 300)))
    graph.outputs.append(b.Softmax(b.Softmax(x)))
    wide = widen(graph, cpu.current())
    assert any(v.type.dtype == "float32" for n in wide.nodes for v in n.outputs)
    found = narrow(wide, cpu.current())
    assert [n.op.name for n in found.nodes] == ["Softmax", "Softmax"]
    assert not any(v.type.dtype == "float32" for n in found.nodes for v in n.outputs)


def test_a_leaf_that_cannot_is_left_alone() -> None:
    graph = Graph("product")
    b = Builder(graph)
    x: list[Value] = [b.input(n, TensorType("float16", (200, 200))) for n in "ab"]
    graph.outputs.append(b.MatMul(b.Cast(x[0], to="float32"), b.Cast(x[1], to="float32")))
    assert [n.op.name for n in narrow(graph, cpu.current()).nodes] == ["Cast", "Cast", "MatMul"]
    call, = LayerNormalization().kernel([TensorType("float32", s) for s in ((4, 3), (3,), (3,))],
                                        LayerNormalization().infer(*[TensorType("float32", s) for s in ((4, 3), (3,), (3,))]), cpu.current())
    first, then = kernels.streamed([call], {0: "f2", 1: "f2"}, {0: "f2"}) or []
    assert (first.args[0], then.args[0], then.args[3]) == (In(1, (3,)), In(0, (4, 3)), Out(0, (4, 3))), "the scale is small: it is converted whole"
    assert kernels.streamed([*call_of_product()], {0: "f2"}, {}) is None


def call_of_product() -> list[Call]:
    types = [TensorType("float32", (200, 200))] * 2
    return MatMul().kernel(types, MatMul().infer(*types), cpu.current())


def test_no_float32_copy_waits_for_the_backward_pass() -> None:
    """What both passes read in float32 is widened once in each, and fusion leaves the later one where it is wanted."""
    graph = Graph("two passes")
    b = Builder(graph)
    x = b.input("x", TensorType("float16", (40, 300)))
    y = b.Relu(x)
    first = b.CumSum(y, axis=1)
    with b.at(Origin(("later",), "backward")):
        graph.outputs.append(b.Add(b.CumSum(y, axis=0), first))
    wide = widen(graph, cpu.current())
    casts = [n for n in wide.nodes if n.op.name == "Rounded" and n.outputs[0].dtype == "float32"]
    assert [n.origin.role for n in casts] == ["forward", "backward"]
    assert len({n.outputs[0].name for n in casts}) == 2
    fused = fuse(wide, [])
    late = [n for n in fused.nodes if casts[1].outputs[0] in n.outputs]
    assert len(late) == 1
    assert fused.nodes.index(late[0]) > next(i for i, n in enumerate(fused.nodes) if n.op.name == "CumSum")
