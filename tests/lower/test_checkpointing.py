"""Gradient checkpointing by name: marked blocks run again in the backward pass; less memory, the same bits."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from bench.again import CASES, model
from tileflow import nn
from tileflow.graph import Builder, Graph, Hints, Origin, TensorType, checkpoints
from tileflow.lower.plan import make_plan
from tileflow.lower.rematerialise import rematerialise
from tileflow.passes.checkpoint import recompute
from tileflow.system.errors import OptionError

DRAW = np.random.default_rng(0)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        self.before, self.attend, self.between = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, dropout=0.1), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = x + self.attend(self.before(x))
        return x + self.feed(self.between(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        self.token, self.layers, self.head = nn.Embedding(20, 16), nn.ModuleList([Layer(16) for _ in range(4)]), nn.Linear(16, 20)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = self.token(x)
        for layer in self.layers:
            y = layer(y)
        return self.head(y).transpose(1, 2)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return (self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())) + x).relu()


class ResNet(nn.Module):
    def __init__(self) -> None:
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layer1, self.layer2 = nn.Sequential(Residual(16), Residual(16)), nn.Sequential(Residual(16), Residual(16))
        self.fc = nn.Linear(16, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


def trained(make: Any, x: np.ndarray, y: np.ndarray, **options: Any) -> tuple[int, list[float], dict[str, np.ndarray]]:
    """Bytes of the step's arena but for what it hands on, losses of three updates, weights and statistics."""
    nn.manual_seed(0)
    model = tileflow.training_model(make(), optimizer=tileflow.optim.SGD(lr=0.1), **options)
    losses = [float(model(x, y)[-1]) for _ in range(3)]
    micro = model.plan.micro
    return micro.arena_bytes - micro.kept_bytes, losses, model.state_dict()


@pytest.mark.parametrize(("make", "x", "y", "pattern", "share"), [
    (Transformer, DRAW.integers(0, 20, (4, 32)), DRAW.integers(0, 20, (4, 32)), "layers.*", 0.5),
    (ResNet, DRAW.standard_normal((4, 3, 16, 16)).astype(np.float32), DRAW.integers(0, 5, 4), "layer?.*", 0.7),
], ids=["transformer", "resnet"])
def test_less_memory_and_the_same_bits(make: Any, x: np.ndarray, y: np.ndarray, pattern: str, share: float) -> None:
    """Dropout draws the same numbers, batch normalisation updates its statistics once."""
    kept, losses, state = trained(make, x, y)
    smaller, again_losses, again_state = trained(make, x, y, gradient_checkpointing=pattern)
    assert smaller < share * kept
    assert losses == again_losses
    assert state.keys() == again_state.keys()
    for name, array in state.items():
        assert np.array_equal(array, again_state[name]), name


def test_nodes_of_a_file_go_by_the_beginning_of_their_path(tmp_path: Path) -> None:
    path = tileflow.save_onnx(ResNet(), tmp_path / "net.onnx", np.ones((2, 3, 16, 16), np.float32))
    x, y = DRAW.standard_normal((4, 3, 16, 16)).astype(np.float32), DRAW.integers(0, 5, 4)
    plain = tileflow.training_model(tileflow.load(path))
    marked = tileflow.training_model(tileflow.load(path), gradient_checkpointing=["layer1", "layer2*"])
    assert plain(x, y)[-1] == marked(x, y)[-1]
    blocks = {n.origin.hints.recomputed for n in marked.program.micro.nodes if n.origin.role == "forward"}
    assert blocks == {None, "layer1", "layer2"}
    with pytest.raises(OptionError, match=r"the pattern 'layr\*' fits no layer or node; their names are stem"):
        tileflow.training_model(tileflow.load(path), gradient_checkpointing="layr*").compile(x, y)


def chain() -> tuple[Graph, list[Any]]:
    """Three forward products with names as PyTorch's exporter writes them, and one backward node for each."""
    graph = Graph("chain")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (2, 2)))
    made = [x]
    for name in ("/model/layer1/layer1.0/fc/MatMul", "/model/layer1/layer1.1/MatMul", "/model/head/MatMul"):
        with b.at(Origin((name,))):
            made.append(b.MatMul(made[-1], made[-1]))
    g = made[-1]
    for i, v in enumerate(reversed(made[:-1])):
        with b.at(Origin((f"back{i}",), "backward")):
            g = b.MatMul(g, v)
    graph.outputs = [made[-1], g]
    return graph, made


@pytest.mark.parametrize(("pattern", "blocks"), [
    ("*layer1.*", ["model/layer1/layer1.0", "model/layer1/layer1.1", None]), ("model/layer1", ["model/layer1", "model/layer1", None]),
    ("/model/*/layer1", ["/model/layer1/layer1", "/model/layer1/layer1", None]),
])
def test_marks(pattern: str, blocks: list[str | None]) -> None:
    graph, _ = chain()
    recompute(graph, [pattern])
    assert [n.origin.hints.recomputed for n in graph.nodes] == [*blocks, None, None, None]


def test_what_is_done_again_and_what_is_kept() -> None:
    """What another block reads is kept; what only the block itself and the backward pass read is made again, once, just before."""
    graph, made = chain()
    recompute(graph, ["model"])                                 # one block of all three: the last is a result
    done = rematerialise(graph)
    assert [n.origin.role for n in done.nodes] == ["forward"] * 3 + ["recompute"] * 2 + ["backward"] * 3
    assert [v.name for n in done.nodes[3:5] for v in n.outputs] == [f"{v.name}.again" for v in made[1:3]]
    assert done.nodes[-1].inputs[1] is made[0]
    graph, made = chain()
    recompute(graph, ["*/layer1.?"])                              # two blocks: each reads what the other one makes
    assert rematerialise(graph).nodes == graph.nodes
    graph, _ = chain()
    assert rematerialise(graph) is graph


class Deep(nn.Module):
    """A chain of layers; with `marked`, every second one's result is a checkpoint."""

    def __init__(self, marked: bool = False, layers: int = 8, width: int = 64) -> None:
        self.marked, self.stem, self.head = marked, nn.Linear(width, width), nn.Linear(width, 10)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = self.stem(x)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.marked and i % 2:
                x = nn.recomputation_checkpoint(x)
        return self.head(x)


def test_checkpoints_in_a_block_that_is_computed_again() -> None:
    """A block as a whole must be there as a whole when its backward pass begins; checkpoints part it. Bits stay."""
    x, y = DRAW.standard_normal((256, 64)).astype(np.float32), DRAW.integers(0, 10, 256)
    kept, losses, state = trained(Deep, x, y)
    whole, *_ = trained(Deep, x, y, gradient_checkpointing="layers")
    parted, again_losses, again_state = trained(lambda: Deep(True), x, y, gradient_checkpointing="layers")
    by_name, *_ = trained(Deep, x, y, gradient_checkpointing="layers", recomputation_checkpoints=["layers.1", "layers.[357]"])
    assert parted < 0.75 * whole
    assert parted < 0.75 * kept
    assert by_name == parted
    assert losses == again_losses
    assert all(np.array_equal(array, again_state[name]) for name, array in state.items())
    marked_only, *_ = trained(lambda: Deep(True), x, y)
    assert marked_only == kept, "where nothing is computed again a checkpoint says nothing"


def test_several_tensors_and_what_is_none() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            y, z, x = nn.recomputation_checkpoint(self.a(x), self.b(x), x)
            return y + z * x

    model = tileflow.training_model(Two(), loss="mse")
    model.compile(np.ones((2, 4), "f4"), np.ones((2, 4), "f4"))
    assert {n.origin.sources[0]
            for n in model.program.micro.nodes if n.origin.hints.kept and n.origin.role == "forward"} == {"a", "b"}
    for wrong in ((), (3,)):
        with pytest.raises(OptionError, match="recomputation_checkpoint takes tensors"):
            nn.recomputation_checkpoint(*wrong)                      # type: ignore[arg-type]


def test_parts_of_a_marked_operator_are_no_checkpoints() -> None:
    graph, made = chain()
    for node in graph.nodes[:2]:
        node.origin = Origin(("one",), hints=Hints(kept=True))
    assert checkpoints(graph.nodes) == {made[2]}, "what the first hands to the second only is its own affair"
    graph.nodes[1].origin = Origin(("other",), hints=Hints(kept=True))
    assert checkpoints(graph.nodes) == {made[1], made[2]}
    assert not checkpoints(graph.nodes[3:])


def test_a_pipelines_stage_keeps_what_enters_it_and_its_checkpoints() -> None:
    def machine(marked: bool) -> Any:
        return tileflow.compile(Deep(marked), training=True, inputs=[(8, 64)], machine={"base": "gc200", "tiles": 16, "name": "small"},
                                strategy="pipelined", pipeline_splits=("layers.6",), gradient_accumulation=4).tiled
    plain, marked = machine(False), machine(True)

    def again(tiled: Any) -> int:
        return sum(s.node.origin.role == "recompute" for s in tiled.steps)
    assert marked.ipus[0].stashed - plain.ipus[0].stashed == 2 * 2 * 8 * 64 * 4, "results within stage 0 of F = 2: 2 (F - 1) micro-batches wait"
    assert again(marked) < again(plain)


def test_the_tile_machine_keeps_the_checkpoints_in_place_of_its_own() -> None:
    def machine(marked: bool, **options: Any) -> Any:
        return tileflow.compile(Deep(marked), training=True, inputs=[(64, 64)], machine={"base": "gc200", "tiles": 16, "name": "small"}, **options)
    kept, own, marked = machine(True), machine(False, recompute=True), machine(True, recompute=True)
    named = machine(False, recompute=True, recomputation_checkpoints="layers.[1357]")
    assert kept.tiled.categories["activations"].max() > marked.tiled.categories["activations"].max()
    assert [s.node.op.name for s in named.tiled.steps] == [s.node.op.name for s in marked.tiled.steps] != [s.node.op.name for s in own.tiled.steps]
    first = next(s for s in marked.tiled.steps if s.node.origin.role == "backward" and s.node.origin.sources == ("layers.7.0",))
    assert {s.node.origin.sources for s in marked.tiled.steps[:first.index] if s.node.origin.role == "recompute"} <= {
        ("layers.6.0",), ("layers.6.1",), ("layers.7.0",), ("layers.7.1",)}


@pytest.mark.parametrize(("options", "says"), [
    ({"recomputation_checkpoints": "stem"}, "has no effect where nothing is computed again"),
    ({"recomputation_checkpoints": "lay?", "gradient_checkpointing": "layers"}, r"recomputation_checkpoints: the pattern 'lay\?' fits no layer"),
])
def test_checkpoints_without_an_effect_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tileflow.training_model(Deep(), **options).compile(np.ones((2, 64), "f4"), np.zeros(2, int))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0]["network"])
def test_networks_save_what_is_promised(case: Any) -> None:
    """At least 45 % of the arena of a ResNet-18 step, and 30 % of a BERT step with its attention fused; `python -m bench again` measures the time."""
    shape, patterns, saves, _ = case
    plans = []
    for again_ in ((), patterns):
        made, rows = model(shape, 2, again_)
        plans.append(make_plan(made.program_for(*rows), 2))
    kept, again_plan = plans
    assert again_plan.micro.arena_bytes <= (1 - saves) * kept.micro.arena_bytes
    fused = [sum("attention" in leaf.name for leaf in plan.leaves()) for plan in plans]
    assert fused == ([2, 2] if "bert" in shape["network"] else [0, 0])
