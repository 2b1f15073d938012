"""Channels-last forms against the logical ones, the choice between them, whole networks in both."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hosting
import lowered
import numpy as np
import paths
import pytest
from evaluate import check_kernel, evaluate, run_kernel
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.graph import Builder, Graph, Op, TensorType, Value, type_of
from tileflow.host.form import ChannelsLast, HostOp, axis_order, channels_last
from tileflow.host.pool import WinningMaxPool, WinningMaxPoolGrad
from tileflow.kernels.elementwise.expr import Var
from tileflow.kernels.elementwise.loops import elementwise_call
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import Call, In, Out
from tileflow.lower.cut import SINK, SOURCE, MinimumCut
from tileflow.lower.layout import Reshaped, TurnChannels, arrange
from tileflow.lower.moves import undo_moves
from tileflow.ops.conv import Conv
from tileflow.ops.index import Gather, Slice
from tileflow.ops.norm import BatchNormalization, BatchNormalizationGrad
from tileflow.ops.pad import Pad
from tileflow.ops.pool import AveragePool, AveragePoolGrad, GlobalAveragePool, MaxPool
from tileflow.ops.reduce import ReduceMax, ReduceMean, ReduceSum
from tileflow.ops.resize import Interpolate, Repeat, SparseRows
from tileflow.ops.shape import Concat, Expand, Split

rng = np.random.default_rng(11)
Array = np.ndarray


def turned(a: Array) -> Array:
    """[N, C, *spatial] as [N, *spatial, C]."""
    return np.ascontiguousarray(np.moveaxis(a, 1, -1))


def form(op: Op, *arrays: Array | None) -> tuple[Op, list[Array | None]]:
    """The channels-last form of an operator and its operands in that order."""
    types = [None if a is None else type_of(a) for a in arrays]
    last = channels_last(op, types, op.infer(*types), cpu.current())
    assert last is not None
    return last.op, [turned(a) if a is not None and yes else a for a, yes in zip(arrays, last.inputs, strict=True)]


def check_form(op: Op, *arrays: Array | None, rtol: float, atol: float = 0.0) -> tuple[Array, ...]:
    """The form's kernels against the operator's reference; the results."""
    made, given = form(op, *arrays)
    return check_kernel(made, *given, rtol=rtol, atol=atol)


@pytest.fixture(params=paths.PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[cpu.Cpu]:
    with cpu.forced(request.param) as path:
        yield path


# ---- batch normalisation

@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("shape", [(4, 3, 5, 7), (1, 8, 40), (2, 130, 3, 11), (3, 257, 1, 1), (1, 64, 90, 70), (2, 1, 1000), (1, 40, 2, 2, 3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), paths.rare("float64", 1e-12)])
def test_batch_norm(shape: tuple[int, ...], dtype: str, tolerance: float) -> None:
    c = shape[1]
    x = (rng.standard_normal(shape) * 2 + 0.5).astype(dtype)
    scale, shift = (rng.random(c) + 0.5).astype(dtype), rng.standard_normal(c).astype(dtype)
    op = BatchNormalization(training_mode=1, epsilon=1e-3)
    _, mean, _, inverse = check_form(op, x, scale, shift, None, None, rtol=tolerance, atol=tolerance)
    g = rng.standard_normal(shape).astype(dtype)
    check_form(BatchNormalizationGrad(), g, x, scale, mean, inverse, rtol=20 * tolerance, atol=20 * tolerance)


def test_statistics_of_data_far_from_zero() -> None:
    x = (rng.standard_normal((6, 20, 30, 9)) + 3000).astype("f4")
    one, zero = np.ones(20, "f4"), np.zeros(20, "f4")
    op, arrays = form(BatchNormalization(training_mode=1), x, one, zero, None, None)
    _, mean, var, _ = run_kernel(op, *arrays)
    wide = x.astype("f8")
    np.testing.assert_allclose(mean, wide.mean((0, 2, 3)), rtol=1e-7)
    np.testing.assert_allclose(var, wide.var((0, 2, 3)), rtol=1e-5)


def test_a_channel_that_is_not_finite_stays_alone() -> None:
    x = rng.standard_normal((2, 5, 4, 4)).astype("f4")
    x[0, 1, 2, 3], x[1, 3, 0, 0] = np.nan, np.inf
    op, arrays = form(BatchNormalization(training_mode=1), x, np.ones(5, "f4"), np.zeros(5, "f4"), None, None)
    y = run_kernel(op, *arrays)[0]
    assert np.isnan(y[..., [1, 3]]).all()
    assert np.isfinite(y[..., [0, 2, 4]]).all()


# ---- pools

POOLS: list[dict[str, Any]] = [
    dict(kernel_shape=(2, 2), strides=(2, 2)),
    dict(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    dict(kernel_shape=(3, 2), strides=(1, 3), pads=(2, 0, 1, 1), ceil_mode=1),
    dict(kernel_shape=(2, 3), strides=(3, 4)),
]


def tied(shape: tuple[int, ...], dtype: str) -> Array:
    """Few different numbers, so that elements of a window tie; NaN and infinities."""
    x = rng.integers(-2, 3, shape).astype(dtype)
    x.reshape(-1)[::37], x.reshape(-1)[5::41], x.reshape(-1)[9::53] = np.nan, -np.inf, np.inf
    return x


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("dtype", "channels"), [("float32", 3), ("float32", 45), ("float64", 17)])
def test_max_pool(pool: dict[str, Any], dtype: str, channels: int) -> None:
    x = tied((2, channels, 9, 11), dtype)
    alone, = check_form(MaxPool(**pool), x, rtol=0)
    y, where = check_form(WinningMaxPool(**pool), x, rtol=0)
    assert alone.tobytes() == y.tobytes()
    g = rng.standard_normal(np.moveaxis(y, -1, 1).shape).astype(dtype)
    won = np.ascontiguousarray(np.moveaxis(where, -1, 1))
    check_form(WinningMaxPoolGrad(**pool, shape=(9, 11)), g, won, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize(("dtype", "channels"), [("float32", 3), ("float32", 45), ("float64", 17)])
def test_average_pool(pool: dict[str, Any], count: int, dtype: str, channels: int) -> None:
    x = rng.standard_normal((2, channels, 9, 11)).astype(dtype)
    y, = check_form(AveragePool(**pool, count_include_pad=count), x, rtol=1e-5, atol=1e-6)
    g = rng.standard_normal(np.moveaxis(y, -1, 1).shape).astype(dtype)
    check_form(AveragePoolGrad(**pool, count_include_pad=count, shape=(9, 11)), g, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("path")
def test_pools_of_one_axis_and_of_nothing() -> None:
    pool: dict[str, Any] = dict(kernel_shape=(3,), strides=(2,), pads=(1, 1))
    x = tied((2, 8, 12), "float32")
    check_form(MaxPool(**pool), x, rtol=0)
    _, where = check_form(WinningMaxPool(**pool), x, rtol=0)
    won = np.ascontiguousarray(np.moveaxis(where, -1, 1))
    check_form(WinningMaxPoolGrad(**pool, shape=(12,)), np.ones((2, 8, 6), "f4"), won, rtol=0)
    check_form(AveragePool(**pool), np.nan_to_num(x, posinf=1, neginf=1), rtol=1e-6)
    check_form(MaxPool(**pool), x[:0], rtol=0)
    check_form(WinningMaxPoolGrad(**pool, shape=(12,)), np.ones((2, 0, 6), "f4"), np.ones((2, 0, 6), "u1"), rtol=0)


def test_what_a_byte_or_a_step_cannot_tell_has_no_form() -> None:
    x = type_of(np.zeros((1, 2, 40, 40), "f4"))
    for op in (MaxPool(kernel_shape=(16, 16)), MaxPool(kernel_shape=(2, 2), dilations=(2, 1)), MaxPool(kernel_shape=(2, 2), indices=True)):
        assert channels_last(op, [x], op.infer(x), cpu.current()) is None


@pytest.mark.parametrize(("op", "shapes"), [
    (GlobalAveragePool(), [(2, 5, 3, 4)]),
    (ReduceSum(axes=(0, 2, 3), keepdims=0), [(2, 5, 3, 4)]),
    (ReduceMean(axes=(1, -1)), [(2, 5, 3, 4)]),
    (ReduceMax(axes=(2, 3), keepdims=0), [(2, 5, 3, 4)]),
    (Concat(axis=1), [(2, 5, 3, 4), (2, 1, 3, 4)]),
    (Concat(axis=-2), [(2, 5, 3, 4), (2, 5, 2, 4)]),
    (Split(axis=1, sizes=(3, 2)), [(2, 5, 3, 4)]),
    (Split(axis=3, sizes=(1, 3)), [(2, 5, 3, 4)]),
    (Expand(shape=(2, 5, 3, 4)), [(2, 5, 1, 4)]),
    (Repeat(axis=3, times=2, rows=3), [(2, 5, 3, 4)]),
    (Repeat(axis=2, times=3), [(2, 5, 3, 4)]),
    (Pad(pads=(0, 1, 0, 2, 0, 0, 3, -1)), [(2, 5, 3, 4)]),
    (Slice(starts=(1, 3), ends=(3, -9), axes=(2, 3), steps=(1, -2)), [(2, 5, 3, 4)]),
    (Slice(starts=(0, 1), ends=(1, 4)), [(2, 5, 3, 4)]),
])
def test_moves_and_sums(op: Op, shapes: list[tuple[int, ...]]) -> None:
    arrays = [rng.standard_normal(s).astype("f4") for s in shapes]
    types = [type_of(a) for a in arrays]
    last = channels_last(op, types, op.infer(*types), cpu.current())
    assert last is not None
    found = run_kernel(last.op, *[turned(a) if yes else a for a, yes in zip(arrays, last.inputs, strict=True)])
    wanted = op.reference(*arrays)
    for a, b, yes in zip(found, wanted, last.outputs, strict=True):
        np.testing.assert_allclose(a, turned(b) if yes else b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axis", [2, 3])
def test_elements_along_a_spatial_axis(axis: int) -> None:
    """Weighted sums of them, and those at places; of channels nothing is picked one by one."""
    x = rng.standard_normal((2, 9, 4, 4)).astype("f4")
    table = SparseRows.of(4, [[(0, 0.25), (1, 0.75)], [(3, 1.0), (0, 2.0), (3, -0.5)], [(2, 1.5)]])
    tables = (*table.arrays(np.dtype("f4")), *table.turned.arrays(np.dtype("f4")))
    for op, others in ((Interpolate(axis=axis), tables), (Gather(axis=axis), (np.array([3, 0, 0, -1, 2]),))):
        made, given = form(op, x, *others)
        np.testing.assert_allclose(run_kernel(made, *given)[0], turned(op.reference(x, *others)[0]), rtol=1e-6, atol=1e-6)
    types = [type_of(x), TensorType("int64", (3,))]
    assert channels_last(Gather(axis=1), types, Gather(axis=1).infer(*types), cpu.current()) is None
    assert channels_last(Repeat(axis=2, rows=2), types[:1], Repeat(axis=2, rows=2).infer(types[0]), cpu.current()) is None


def test_a_sum_that_would_leave_axes_in_another_order_has_no_form() -> None:
    x = type_of(np.zeros((2, 5, 3, 4), "f4"))
    for axes in ((0,), (3,)):
        op = ReduceSum(axes=axes, keepdims=0)
        assert channels_last(op, [x], op.infer(x), cpu.current()) is None


# ---- minimum cuts

def test_cuts_are_the_cheapest() -> None:
    """Against all choices of five nodes, some of which are tied to the sink."""
    draw = np.random.default_rng(3)
    for _ in range(200):
        gains = draw.integers(-5, 6, 5)
        groups = [(int(draw.integers(0, 6)), draw.integers(0, 6, int(draw.integers(1, 4))).tolist(), int(draw.integers(0, 5))) for _ in range(5)]
        cut = MinimumCut()
        names: list[Any] = [*range(5), SINK]
        for i, gain in enumerate(gains):
            cut.edge(SOURCE, i, float(gain))
            cut.edge(i, SINK, float(-gain))
        for k, (maker, readers, cost) in enumerate(groups):
            cut.agree(("group", k), names[maker], [names[r] for r in readers], cost)

        def price(side: set[Any], gains: Any = gains, groups: Any = groups) -> int:
            kept = [i in side for i in range(5)] + [False]
            paid = sum(max(0, -g) if kept[i] else max(0, g) for i, g in enumerate(gains))
            return int(paid) + sum(cost for maker, readers, cost in groups if any(kept[r] != kept[maker] for r in readers))
        best = min(price({i for i in range(5) if bits >> i & 1}) for bits in range(32))
        assert price(cut.side()) == best


# ---- the choice

class Scaled(HostOp):
    """2 x, which gains `gain` with channels last."""

    name = "Scaled"

    def __init__(self, gain: float = 1e9, last: bool = False) -> None:
        self.gain, self.last = gain, last

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        assert types[0] is not None
        return (types[0],)

    def kernel(self, inputs: Any, outputs: Any, cpu: Any) -> list[Call]:
        whole = (outputs[0].size,)
        return [elementwise_call([Var(0, "float32") * 2], [In(0, whole)], [Out(0, whole)])]


@channels_last.register(Scaled)
def _(op: Scaled, inputs: Any, outputs: Any, cpu: Any) -> ChannelsLast | None:
    return ChannelsLast(Scaled(last=True), (True,), (True,), op.gain) if outputs[0].rank > 2 else None


def arranged(build: Any, rtol: float = 0.0) -> Graph:
    """The graph with layouts chosen; its results are those of the given one, where nothing is summed bit for bit."""
    graph = Graph()
    b = Builder(graph)
    values = [b.input(n, TensorType("float32", shape)) for n, shape in (("x", (2, 3, 4, 5)), ("y", (2, 3, 4, 5)), ("z", (3, 1, 1)))]
    graph.outputs = list(build(b, *values))
    feeds = {v.name: rng.standard_normal(v.shape).astype("f4") for v in values}
    done = arrange(graph, cpu.current())
    found: dict[Value, Array] = {v: feeds[v.name] for v in values} | graph.constants
    for node in done.nodes:
        arrays = [None if v is None else found[v] for v in node.inputs]
        alias = node.op.alias is not None and isinstance(node.op, Reshaped)
        made = [arrays[0].reshape(node.outputs[0].shape)] if alias and arrays[0] is not None else run_kernel(node.op, *arrays)
        found |= dict(zip(node.outputs, made, strict=True))
        assert [type_of(a) for a in made] == [v.type for v in node.outputs]
    wanted = evaluate(graph, feeds, run_kernel)
    for v in graph.outputs:
        np.testing.assert_allclose(found[v], wanted[v.name], rtol, rtol)
    return done


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def last_nodes(graph: Graph) -> int:
    return sum(isinstance(n.op, Scaled) and n.op.last for n in graph.nodes)


def test_a_region_turns_at_its_borders_only() -> None:
    def build(b: Builder, x: Value, y: Value, z: Value) -> list[Value]:
        first, = b.emit(Scaled(), x)
        second, = b.emit(Scaled(), b.Relu(b.Add(b.Mul(first, z), b.scalar(1.0, x))))
        return [b.Add(second, first)]
    done = arranged(build)
    assert last_nodes(done) == 2
    assert names(done).count("TurnChannels") == 2
    assert names(done)[-2:] == ["Add", "TurnChannels"]


def test_operands_left_out_are_no_obstacle() -> None:
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (8, 64, 28, 28)))
    for name in ("v", "w"):
        x, = b.emit(Conv(pads=(1, 1, 1, 1)), x, b.input(name, TensorType("float32", (64, 64, 3, 3))))
    graph.outputs = [x]
    assert [hosting.added(n.op) for n in arrange(graph, cpu.current()).nodes].count({"channels last"}) == 2


def test_what_gains_less_than_it_costs_to_turn_stays() -> None:
    done = arranged(lambda b, x, y, z: [b.Add(b.emit(Scaled(10.0), x)[0], y)])
    assert names(done) == ["Scaled", "Add"]


def test_one_turned_value_serves_all_its_readers() -> None:
    done = arranged(lambda b, x, y, z: [b.ReduceSum(b.emit(Scaled(), x)[0], axes=(0, 2, 3), keepdims=0),
                                        b.ReduceSum(b.emit(Scaled(), b.Neg(x))[0], axes=(0, 2, 3), keepdims=0)], 1e-5)
    assert names(done).count("TurnChannels") == 1


def test_pixels_and_single_channels_are_views() -> None:
    done = arranged(lambda b, x, y, z: [b.Flatten(b.GlobalAveragePool(b.emit(Scaled(), x)[0]))], 1e-5)
    assert names(done) == ["TurnChannels", "Scaled", "GlobalAveragePool", "Reshaped", "Flatten"]


def test_operands_along_one_axis_follow() -> None:
    """Of fewer axes, along the width, along channels and height: a view or turned."""
    def build(b: Builder, x: Value, y: Value, z: Value) -> list[Value]:
        wide = b.ReduceMax(y, axes=(0, 1, 2), keepdims=0)
        high = b.ReduceMax(y, axes=(0, 3), keepdims=1)
        return [b.Mul(b.Add(b.emit(Scaled(), x)[0], wide), high)]
    assert last_nodes(arranged(build)) == 1


def test_results_and_kept_values_stay_logical() -> None:
    def build(b: Builder, x: Value, y: Value, z: Value) -> list[Value]:
        first, = b.emit(Scaled(), x)
        return [b.emit(Scaled(), b.Relu(first))[0], first]
    done = arranged(build)
    assert last_nodes(done) == 2
    assert names(done).count("TurnChannels") == 3


# ---- whole networks

class Small(nn.Module):
    """Normalisation, residual sum, pools of each kind, a head."""

    def __init__(self, convolutions: bool) -> None:
        self.first = nn.Conv2d(3, 24, 3, padding=1, bias=False) if convolutions else None
        self.one, self.two = nn.BatchNorm2d(24 if convolutions else 3), nn.BatchNorm2d(24 if convolutions else 3)
        self.inner = nn.Conv2d(24, 24, 3, padding=1) if convolutions else None
        self.pool, self.average, self.mean = nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.GlobalAvgPool()
        self.head = nn.Linear(24 if convolutions else 3, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:              # type: ignore[override]
        y = self.one(self.first(x) if self.first else x).relu()
        z = self.pool(y)
        z = (self.two(self.inner(z) if self.inner else z) + z).relu()
        out: nn.Tensor = self.head(self.mean(self.average(z)).flatten())
        return out


def trained(monkeypatch: pytest.MonkeyPatch, convolutions: bool, planar: bool, steps: int = 3, **options: Any) -> tuple[Any, dict[str, Array]]:
    """A model after some steps, with layouts chosen as if turning were free, or not at all."""
    with monkeypatch.context() as patch:
        if planar:
            patch.setattr("tileflow.lower.passes.arrange", lambda graph, cpu, keep: graph)
        patch.setattr("tileflow.lower.layout.TURN", 1e-9)
        nn.manual_seed(2)
        net = Small(convolutions)
        model = tileflow.training_model(net, optimizer=optim.SGD(lr=0.05, momentum=0.9), loss="cross_entropy", **options)
        draw = np.random.default_rng(0)
        for _ in range(steps):
            model(draw.standard_normal((4, 3, 16, 18)).astype("f4"), draw.integers(0, 5, 4))
        return model, net.state_dict()


@pytest.mark.parametrize("convolutions", [paths.rare(False), True])
def test_training_is_the_same_in_both_orders(monkeypatch: pytest.MonkeyPatch, convolutions: bool) -> None:
    """Weights and running statistics after some steps."""
    model, last = trained(monkeypatch, convolutions, planar=False)
    _, first = trained(monkeypatch, convolutions, planar=True)
    assert any(row.leaf.name == "batch_normalise" for row in model.plan.micro.rows)
    assert last.keys() == first.keys()
    for name, array in last.items():
        np.testing.assert_allclose(array, first[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_bits_do_not_depend_on_threads_or_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    _, wanted = trained(monkeypatch, True, planar=False, threads=1)
    _, two = trained(monkeypatch, True, planar=False, threads=2)
    monkeypatch.setattr("tileflow.lower.passes.fuse_epilogues", lambda graph, keep: graph)
    monkeypatch.setattr("tileflow.lower.passes.fuse", lambda graph, keep, together=False: graph)
    _, apart = trained(monkeypatch, True, planar=False, threads=1)
    for other in (two, apart):
        assert {n: a.tobytes() for n, a in other.items()} == {n: a.tobytes() for n, a in wanted.items()}


@pytest.mark.parametrize("planar", [False, True])
def test_normalisation_residual_and_activation_of_inference_join_their_convolution(monkeypatch: pytest.MonkeyPatch, planar: bool) -> None:
    """Elementwise passes of their own are left for the factors per channel only, which the prologue computes; the results are torch's."""
    torch = needs("torch")
    if planar:
        monkeypatch.setattr("tileflow.lower.passes.arrange", lambda graph, cpu, keep: graph)
    monkeypatch.setattr("tileflow.lower.layout.TURN", 1e-9)
    nn.manual_seed(2)
    net = Small(convolutions=True)
    for norm in (net.one, net.two):
        norm.running_mean.data[:], norm.running_var.data[:] = rng.standard_normal(24), rng.random(24) + 0.5
    x = rng.standard_normal((2, 3, 16, 18)).astype("f4")
    model = tileflow.inference_model(net)
    found = np.asarray(model(x))
    if not planar:
        plan = model.plan
        passes = {part: [row.n for row in plan.parts[part].every_row() if row.leaf.name == "elementwise"] for part in ("prologue", "micro")}
        assert passes == {"prologue": [24, 24], "micro": []}
    s = {n: torch.tensor(a) for n, a in net.state_dict().items()}
    F = torch.nn.functional

    def normal(y: Any, name: str) -> Any:
        return F.batch_norm(y, s[f"{name}.running_mean"], s[f"{name}.running_var"], s[f"{name}.weight"], s[f"{name}.bias"])
    y = F.max_pool2d(F.relu(normal(F.conv2d(torch.tensor(x), s["first.weight"], padding=1), "one")), 3, 2, 1)
    y = F.relu(normal(F.conv2d(y, s["inner.weight"], s["inner.bias"], padding=1), "two") + y)
    wanted = F.avg_pool2d(y, 2).mean((2, 3)) @ s["head.weight"].T + s["head.bias"]
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-4)


# ---- moves undone ----------------------------------------------------------------------------------------------------------------

def moved(build: Any, shape: tuple[int, ...], keep: bool = False) -> tuple[list[str], Array, Array]:
    """The names of the nodes that are left of moves (Relu around them), the result and the one of the given graph."""
    graph = Graph("g")
    b = Builder(graph)
    between = build(b, b.Relu(b.input("x", TensorType("float32", shape))))
    graph.outputs.append(b.Neg(between[-1]))
    if keep:
        graph.outputs.append(between[0])
    feeds, output = {"x": rng.standard_normal(shape).astype(np.float32)}, graph.outputs[0]
    left = undo_moves(graph)
    return [n.op.name for n in left.nodes], lowered.run(left, feeds)[output], lowered.run(graph, feeds)[output]


@pytest.mark.parametrize(("build", "left"), [
    (lambda b, x: [t := b.Transpose(x, perm=(0, 2, 3, 1)), b.Transpose(t, perm=(0, 3, 1, 2))],
     ["Relu", "Reshaped", "Neg"]),
    (lambda b, x: [t := b.Transpose(x, perm=(0, 2, 3, 1)), b.Transpose(b.Reshape(t, shape=(1, 2, 1, 4, 5, 3)), perm=(1, 5, 3, 0, 4, 2))],
     ["Relu", "Reshaped", "Neg"]),
    (lambda b, x: [t := b.Transpose(x, perm=(0, 2, 3, 1)), u := b.Transpose(t, perm=(3, 0, 1, 2)), b.Transpose(u, perm=(1, 0, 2, 3))],
     ["Relu", "Reshaped", "Neg"]),
    (lambda b, x: [t := b.Transpose(x, perm=(0, 2, 3, 1)), b.Transpose(t, perm=(0, 2, 3, 1))], ["Relu", "Transpose", "Transpose", "Neg"]),
    (lambda b, x: [t := b.Transpose(x, perm=(0, 2, 3, 1)), b.Transpose(b.Reshape(t, shape=(2, 20, 3)), perm=(0, 2, 1))],
     ["Relu", "Transpose", "Reshape", "Transpose", "Neg"])])
def test_moves_that_lead_back_are_no_moves(build: Any, left: list[str]) -> None:
    names, found, expected = moved(build, (2, 3, 4, 5))
    assert names == left
    np.testing.assert_array_equal(found, expected)


def test_a_move_that_somebody_else_reads_stays() -> None:
    names, found, expected = moved(lambda b, x: [t := b.Transpose(x, perm=(1, 0)), b.Transpose(t, perm=(1, 0))], (3, 4), keep=True)
    assert names == ["Relu", "Transpose", "Reshaped", "Neg"]
    np.testing.assert_array_equal(found, expected)


def test_axes_of_equal_length_are_told_apart() -> None:
    names, found, expected = moved(lambda b, x: [t := b.Transpose(x, perm=(2, 0, 1)), b.Transpose(t, perm=(2, 0, 1))], (3, 3, 3))
    assert names == ["Relu", "Transpose", "Transpose", "Neg"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("back", [False, True])
def test_a_turn_puts_axes_in_the_order_it_says(back: bool) -> None:
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    turn = TurnChannels(back)
    found, = run_kernel(turn, x)
    np.testing.assert_array_equal(found, x.transpose(axis_order(turn, type_of(x))))


@pytest.mark.parametrize("path", cpu.available())
def test_large_windows_of_maxima_stay_on_planes(path: str) -> None:
    def gain(size: int, k: int, stride: int) -> float:
        x = TensorType("float32", (1, 256, size, size))
        op = MaxPool(kernel_shape=(k, k), strides=(stride, stride), pads=(k // 2,) * 4)
        form = channels_last(op, [x], op.infer(x), cpu.PATHS[path])
        assert form is not None
        return form.gain

    assert gain(20, 13, 1) < gain(20, 9, 1) < 0
    assert gain(14, 3, 2) > 0
