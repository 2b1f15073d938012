"""What a network asks of the planner: MultiConv blocks, memory per operator, serialized matmuls by layer and by name."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tileflow
from bench.models import initial_weights, tutorial_cnn
from tileflow import nn
from tileflow.compiler import CompileOptions, inference, training
from tileflow.graph import Graph, Hints, Node, TensorType
from tileflow.loss import find
from tileflow.lower.plan import make_plan
from tileflow.nn.module import record
from tileflow.program.batching import Batching
from tileflow.system.errors import OptionError, ShapeError, TileflowError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.plan import TileOptions


class Net(nn.Module):
    """Layers by keyword and a forward function."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        self.function = forward
        vars(self).update(layers)

    def forward(self, *x: nn.Tensor) -> Any:
        return self.function(self, *x)


def graph_of(net: nn.Module, *shapes: tuple[int, ...], dtype: str = "float32") -> Graph:
    return record(net, [(f"x{i}", TensorType(dtype, s)) for i, s in enumerate(shapes)], training=True, dtype="float32")


def convolutions(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.name.startswith("Conv")]


def grouped(**settings: Any) -> Graph:
    def forward(net: Any, x: nn.Tensor) -> Any:
        with nn.MultiConv(**settings):
            a = net.left(x).relu()
            b = net.right(x)
        return net.after(a + b)
    net = Net(forward, left=nn.Conv2d(3, 4, 3, padding=1), right=nn.Conv2d(3, 4, 1), after=nn.Conv2d(4, 2, 1))
    return graph_of(net, (2, 3, 8, 8))


def test_a_group_has_its_settings() -> None:
    left, right, after = convolutions(grouped(plan_type="serial", available_memory_proportions=[0.1, 0.2], partials_types="float16",
                                              per_conv_reserved_tiles=9, cycle_back_off=0.3))
    assert after.origin.hints == Hints()
    group = left.origin.hints.multi_conv
    assert group is not None
    assert right.origin.hints.multi_conv == group
    assert (group.plan, group.reserved_tiles, group.cycle_back_off) == ("serial", 9, 0.3)
    assert [n.origin.hints.available_memory_proportion for n in (left, right)] == [0.1, 0.2]
    assert [n.origin.hints.partials for n in (left, right)] == ["float16", "float16"]


def test_defaults_and_gradients() -> None:
    graph = grouped()
    program = training(graph, _sum_loss, tileflow.optim.SGD(lr=0.1), Batching(2)).program
    group = convolutions(program.micro)[0].origin.hints.multi_conv
    assert group is not None
    assert (group.plan, group.reserved_tiles, group.cycle_back_off) == ("parallel", 50, 0.1)
    backward = [n for n in convolutions(program.micro) if n.origin.role == "backward" and n.origin.hints.multi_conv]
    assert {n.op.name for n in backward} == {"ConvWeightGrad"}
    assert all(n.origin.hints.multi_conv == group for n in backward)
    assert len(backward) == 2


def _sum_loss(b: Any, outputs: Any) -> Any:
    return b.ReduceSum(outputs[0], axes=(0, 1, 2, 3), keepdims=0)


def test_results_do_not_depend_on_groups() -> None:
    conv = dict(left=nn.Conv2d(3, 4, 3, padding=1), right=nn.Conv2d(3, 4, 1))

    def plain(net: Any, x: nn.Tensor) -> Any:
        return net.left(x) + net.right(x)

    def together(net: Any, x: nn.Tensor) -> Any:
        with nn.MultiConv():
            a, b = net.left(x), net.right(x)
        return a + b
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    results = []
    for forward in (plain, together):
        net = Net(forward, **conv)
        results.append(tileflow.inference_model(net, micro_batch_size=2)(x))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("settings", "message"), [
    (dict(partials_types="double"), "Invalid partials types"), (dict(plan_type="both"), "Invalid plan type 'both'"),
    (dict(available_memory_proportions=1.0), "below 1"), (dict(available_memory_proportions=[0.1, -1]), "from 0 to 1"),
    (dict(available_memory_proportions=[0.1] * 3), "3 values for 2 convolutions"), (dict(per_conv_reserved_tiles=0), "at least 1"),
    (dict(cycle_back_off=-0.5), "cycle_back_off")])
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        grouped(**settings)


def test_blocks_that_make_no_group() -> None:
    def nested(net: Any, x: nn.Tensor) -> Any:
        with nn.MultiConv(), nn.MultiConv():
            return net.conv(x)

    def empty(net: Any, x: nn.Tensor) -> Any:
        with nn.MultiConv():
            y = x.relu()
        return y

    def dependent(net: Any, x: nn.Tensor) -> Any:
        with nn.MultiConv():
            y = net.conv(net.conv(x).relu())
        return y
    for forward, message in ((nested, "Nested MultiConv is not supported"), (empty, "no convolution was recorded"),
                             (dependent, "needs the result of conv")):
        with pytest.raises(OptionError, match=message):
            graph_of(Net(forward, conv=nn.Conv2d(3, 3, 1)), (1, 3, 4, 4))
    with pytest.raises(TileflowError, match="forward"), nn.MultiConv():
        pass


def proportions(graph: Graph) -> dict[str, float | None]:
    return {n.op.name: n.origin.hints.available_memory_proportion for n in graph.nodes}


def test_available_memory_of_layers() -> None:
    inner = nn.set_available_memory(nn.Linear(8, 4), 0.05)
    net = nn.set_available_memory(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), inner), 0.3)
    found = proportions(graph_of(net, (1, 3, 4, 4)))
    assert (found["Conv"], found["Gemm"]) == (0.3, 0.05)
    assert proportions(graph_of(nn.Conv2d(3, 2, 3), (1, 3, 4, 4)))["Conv"] is None


def test_available_memory_of_tensors() -> None:
    def forward(net: Any, x: nn.Tensor, y: nn.Tensor) -> Any:
        far = nn.set_available_memory((x @ y).reshape(15) + 1.0, 0.1)
        return far, nn.set_available_memory(x.lift(np.ones((4, 2))).apply("Gather", np.array([1, 3])), 0.2)
    found = proportions(graph_of(Net(forward), (3, 4), (4, 5)))
    assert (found["MatMul"], found["Gather"], found["Reshape"]) == (0.1, 0.2, None)


def test_available_memory_errors() -> None:
    for share in (-0.1, 1.5, float("nan"), "a lot", True):
        with pytest.raises(OptionError, match="number from 0 to 1"):
            nn.set_available_memory(nn.Linear(2, 2), share)             # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no convolution, matmul, lookup"):
        graph_of(Net(lambda net, x: nn.set_available_memory(x.relu(), 0.1)), (2, 2))


# ---- serialized matmuls in networks -----------------------------------------------------------------------------------

def trained(net: nn.Module, **changes: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    model = tileflow.training_model(net, optimizer=tileflow.optim.SGD(lr=0.1), micro_batch_size=8, **changes)
    for _ in range(2):
        model(rng.standard_normal((8, 12)).astype(np.float32), rng.integers(0, 4, 8))
    return list(net.state_dict().values())


def network(serialization: tuple[str, int] | None = None) -> nn.Module:
    nn.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 16, serialization=serialization), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.parametrize("mode", ["input_channels", "reducing_dim", "output_channels"])
def test_training_with_serialized_layers(mode: str) -> None:
    plain, by_layer, by_name = trained(network()), trained(network((mode, 4))), trained(network(), serialized_matmul={"0": f"{mode}:4"})
    for a, b, c in zip(plain, by_layer, by_name, strict=True):
        np.testing.assert_array_equal(b, c)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_serialized_by_name_covers_the_gradients() -> None:
    program = training(graph_of(network(), (8, 12)), find("cross_entropy"), tileflow.optim.SGD(lr=0.1), Batching(8),
                       CompileOptions(serialized={"2": ("output_channels", 2)})).program
    modes = [n.op.mode for n in program.micro.nodes if n.op.name == "SerializedGemm"]            # type: ignore[attr-defined]
    assert modes == ["output_channels", "reducing_dim", "input_channels"]       # the gradient of W [out, in] has the columns of y as rows
    assert [n.origin.sources for n in program.micro.nodes if n.op.name == "Gemm"] == [("0",)] * 2


@pytest.mark.parametrize(("wanted", "error", "message"), [
    ({"fc9": ("output_channels", 2)}, OptionError, r"'fc9' matches no matmul; the matmuls are 0, 2"),
    ({"1": ("output_channels", 2)}, OptionError, r"'1' matches no matmul"),
    ({"*": ("output_channels", 3)}, ShapeError, r"serialized_matmul '\*': Gemm \(0\): .* factor 3 does not divide 16")])
def test_wrong_names_and_factors(wanted: dict[str, tuple[str, int]], error: type[TileflowError], message: str) -> None:
    with pytest.raises(error, match=message):
        inference(graph_of(network(), (8, 12)), Batching(8), CompileOptions(serialized=wanted))


def test_serialized_matmul() -> None:
    def forward(mode: str, factor: int) -> nn.Module:
        return Net(lambda net, x, y: nn.serialized_matmul(x, y, mode, factor))
    for shapes in (((4, 6), (6, 8)), ((3, 4, 6), (3, 6, 8))):
        for mode in ("input_channels", "reducing_dim", "output_channels"):
            node, = graph_of(forward(mode, 2), *shapes).nodes
            assert str(node.op) == "SerializedMatMul(" + f"mode={mode}, " * (mode != "output_channels") + "factor=2)"
        assert graph_of(forward("none", 0), *shapes).nodes[0].op.name == "MatMul"
    for left, message in (((1, 1, 4, 6), "LHS input x0 must have rank 2 or 3"), ((3, 4, 6), "must have equal rank")):
        with pytest.raises(ShapeError, match=message):
            graph_of(forward("input_channels", 2), left, (6, 8))
    with pytest.raises(ShapeError, match="factor 0 does not divide 4"):
        graph_of(forward("input_channels", 0), (4, 6), (6, 8))


def test_the_real_run_takes_a_smaller_arena() -> None:
    """A wide layer's packed weights are the arena's largest part; serialized they are there piece by piece."""
    def arenas(serialized: dict[str, tuple[str, int]]) -> np.ndarray:
        with nn.skip_init():
            net = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 16))
        options = CompileOptions(serialized=serialized)
        forward = inference(graph_of(net, (64, 512)), Batching(64), options)
        sgd = tileflow.optim.SGD(lr=0.1)
        both = training(graph_of(net, (64, 512)), find("cross_entropy"), sgd, Batching(64), options)
        plans = [make_plan(c.program, 1) for c in (forward, both)]
        return np.array([plan.parts["prologue"].arena_bytes + plan.micro.arena_bytes for plan in plans])        # packed once, or piece by piece
    plain = arenas({})
    for mode in ("input_channels", "reducing_dim", "output_channels"):
        assert (arenas({"0": (mode, 8)}) < [0.5, 0.8] * plain).all()


# ---- on the tile machine ------------------------------------------------------------------------------------------------

def analysed(net: nn.Module, *shapes: tuple[int, ...], serialized: dict[str, tuple[str, int]] | None = None) -> TileProgram:
    options = CompileOptions(serialized=serialized or {})
    return analyze(inference(graph_of(net, *shapes), Batching(shapes[0][0]), options).program, chip("gc200"))


@pytest.mark.parametrize("mode", ["input_channels", "reducing_dim", "output_channels"])
def test_serialized_matmuls_take_fewer_temporary_bytes_on_tiles(mode: str) -> None:
    def temporaries(factor: int) -> int:
        with nn.skip_init():
            net = nn.Linear(4096, 4096, bias=False)
        tiles = analysed(net, (2048, 4096), serialized={"*": (mode, factor)} if factor > 1 else None)
        step, = (s for s in tiles.steps if s.work.flops)
        assert step.work.flops == 2 * 2048 * 4096 * 4096
        return step.plan.temp_bytes
    sizes = [temporaries(factor) for factor in (1, 4, 16)]
    assert max(sizes[1:]) < 0.7 * sizes[0], sizes


def test_the_layers_proportion_bounds_its_plan() -> None:
    def bounds(proportion: float | None) -> list[int | None]:
        net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        if proportion is not None:
            nn.set_available_memory(net[1], proportion)
        return [s.plan.bound_bytes for s in analysed(net, (32, 64)).steps if s.work.flops]
    first, second = bounds(None)
    assert first == second
    assert bounds(0.125) == [first, chip("gc200").bound(0.125)]


@pytest.mark.parametrize("plan_type", ["parallel", "serial"])
def test_groups_on_tiles(plan_type: str) -> None:
    """Side by side the parts of the tiles are disjoint; one after the other each has all of them."""
    def forward(net: Any, x: nn.Tensor) -> Any:
        with nn.MultiConv(plan_type=plan_type):
            a, b = net.left(x), net.right(x)
        return a, b
    net = Net(forward, left=nn.Conv2d(32, 64, 3, padding=1), right=nn.Conv2d(32, 16, 1))
    left, right = (s.plan for s in analysed(net, (4, 32, 28, 28)).steps if s.node.op.name == "Conv")
    assert left.notes["planned"] == right.notes["planned"] == plan_type
    if plan_type == "serial":
        assert left.start_tile == right.start_tile == 0
        return
    spans = sorted((p.start_tile, p.start_tile + p.tiles) for p in (left, right))
    assert spans[0][1] <= spans[1][0]
    assert spans[1][1] <= chip("gc200").tiles
    assert right.phases.total == 0                             # its cycles are beside the other's, which carries the group's


# ---- ONNX files ---------------------------------------------------------------------------------------------------------

def test_by_onnx_node_name(tmp_path: Path) -> None:
    onnx.save(tutorial_cnn(initial_weights(0)), tmp_path / "cnn.onnx")
    x = np.random.default_rng(0).standard_normal((4, 1, 28, 28)).astype(np.float32)
    plain = tileflow.inference_model(tmp_path / "cnn.onnx", micro_batch_size=4)(x)
    pieces = {"serialized_matmul": {"fc1": "output_channels:4", "fc2": "input_channels:2"}}
    np.testing.assert_array_equal(tileflow.inference_model(tmp_path / "cnn.onnx", micro_batch_size=4, **pieces)(x), plain)
    program = tileflow.compile(tmp_path / "cnn.onnx", training=True, micro_batch_size=4, **pieces).program
    serial = [n for n in program.micro.nodes if n.op.name == "SerializedGemm"]
    assert {n.origin.sources for n in serial} == {("fc1",), ("fc2",)}
    assert len(serial) == 6
    tiles = analyze(program, chip("gc200"), TileOptions(per_op={"conv2": 0.05, "fc*": 0.1}))
    bounds = {s.node.origin.sources[0]: s.plan.bound_bytes for s in tiles.steps if s.work.flops and s.plan.bound_bytes is not None}
    assert (bounds["conv1"], bounds["conv2"], bounds["fc1"]) == tuple(chip("gc200").bound(p) for p in (0.6, 0.05, 0.1))
