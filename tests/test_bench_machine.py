"""The networks and the arithmetic of the tile machine's benchmarks."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tileflow
from bench import hardware, networks
from bench.hardware import LINES, Prediction
from bench.pipeline import Layout, update_time
from tileflow import nn
from tileflow.graph import Origin
from tileflow.program import Program
from tileflow.schedule import one_by_one
from tileflow.tiles.chip import chip
from tileflow.work import Contraction


def forward_macs(program: Program) -> float:
    works = [n.op.work([None if v is None else v.type for v in n.inputs], [v.type for v in n.outputs])
             for n in program.micro.nodes if n.origin.role == "forward"]
    return sum(w.points for w in works if isinstance(w, Contraction))


def weights(program: Program) -> int:
    return sum(s.input.type.size for s in program.parts["update"].parameters)


@pytest.mark.parametrize(("layers", "count", "gmacs"), [(18, 11_689_512, 1.814), (50, 25_557_032, 4.089)])
def test_resnets_have_the_published_sizes(layers: int, count: int, gmacs: float) -> None:
    """Weights and multiply-accumulates of torchvision's models."""
    program = networks.resnet_program(layers, micro_batch=2)
    assert weights(program) == count
    np.testing.assert_allclose(forward_macs(program) / 2e9, gmacs, rtol=1e-3)


def test_bert_base_has_the_published_size() -> None:
    """110 M weights; 85 M multiply-accumulates a token in the encoder's layers, and the attention's own."""
    program = networks.bert_program("base", micro_batch=2)
    assert 109e6 < weights(program) < 111e6
    tokens = 2 * 128
    encoder = tokens * 12 * (12 * 768 * 768 + 2 * 128 * 768)
    heads = 2 * (20 * 768 * (768 + networks.VOCABULARY) + 768 * (768 + 2))
    assert forward_macs(program) == encoder + heads


def test_a_small_bert_learns() -> None:
    rng = np.random.default_rng(0)
    nn.manual_seed(1)
    net = networks.Bert(1, 16, 2, masked=2, vocabulary=11, dropout=0.1)
    model = tileflow.training_model(net, optimizer=tileflow.optim.AdamW(lr=1e-2), loss=_first_word, micro_batch_size=8)
    tokens = rng.integers(0, 11, (8, 6))
    inputs = (tokens, np.tile(np.arange(6), (8, 1)), np.zeros((8, 6), np.int64), np.ones((8, 6), np.float32))
    losses = []
    for _ in range(30):
        model(*inputs, tokens[:, :2].reshape(8, 2))
        losses.append(float(model.last_losses[0]))             # type: ignore[index]
    assert losses[-1] < 0.5 * losses[0]


def _first_word(b: Any, outputs: Any) -> Any:
    """The masked tokens' cross entropy; both outputs are needed so that every weight has a gradient."""
    from tileflow.graph import TensorType
    labels = b.input("labels", TensorType("int64", (8, 2)))
    words = b.SoftmaxCrossEntropyLoss(outputs[0], b.Reshape(labels, shape=(16,)), reduction="mean")
    words = words[0] if isinstance(words, tuple) else words
    return b.Add(words, b.ReduceMean(b.Mul(outputs[1], outputs[1]), axes=(0, 1), keepdims=0))


# ---- pipelines ----------------------------------------------------------------------------------------------------------

def tile_program(accumulation: int) -> Any:
    """Two layers of 1,000 and 3,000 cycles per micro-batch, 100 and 200 per update; 4 and 8 million weights."""
    def step(part: str, source: str, cycles: int) -> Any:
        return SimpleNamespace(part=part, node=SimpleNamespace(origin=Origin((source,))), phases=SimpleNamespace(total=cycles))
    steps = [step("micro", "a.conv", 700), step("micro", "b.conv", 2900), step("micro", "b.norm", 60), step("fold", "b.conv", 40),
             step("micro", "a.conv", 300), step("update", "a.conv.weight", 100), step("update", "b.conv.weight", 200)]
    states = [SimpleNamespace(name=f"{name}.conv.weight", input=SimpleNamespace(type=SimpleNamespace(size=size)))
              for name, size in (("a", 4e6), ("b", 8e6))]
    program = SimpleNamespace(batching=SimpleNamespace(gradient_accumulation=accumulation), schedule=one_by_one(accumulation, 1),
                              parts={"update": SimpleNamespace(parameters=states)})
    return SimpleNamespace(chip=chip("bow"), steps=steps, program=program, options=SimpleNamespace(precision="16.16"))


def test_one_stage_and_one_replica_is_the_sum() -> None:
    time = update_time(tile_program(5), Layout())
    assert time.total == pytest.approx((5 * 4000 + 300) / chip("bow").clock_hz)
    assert time.all_reduce == time.bubbles == time.boundary == 0


def test_a_pipeline_waits_for_its_slowest_stage() -> None:
    time = update_time(tile_program(5), Layout((("a.*",), ("b.*",)), boundary_values=1000))
    clock, link = chip("bow").clock_hz, chip("bow").link_bytes_per_second / 2
    assert time.stage_cycles == (1000, 3000)
    assert time.micro_batches + time.bubbles + time.boundary == pytest.approx((5 + 3 - 1) * (3000 / clock + 2 * 2 * 1000 / link))
    assert time.weight_update == 200 / clock


def test_a_stage_has_all_of_its_layers() -> None:
    """Also the sums of their residual connections, which stand for a layer itself and not for one inside it."""
    program = networks.bert_program("mini", 2, sequence=16, masked=2)
    layout = Layout(((), ("layers.0", "layers.1"), ("layers.2", "layers.3")))
    found = {(name, node.op.name, layout.stage_of(node)) for node in program.micro.nodes for name in node.origin.sources
             if name.startswith("layers.")}
    assert {stage for _, _, stage in found} == {1, 2}
    assert {(name, stage) for name, op, stage in found if op == "Add" and name.count(".") == 1} == {(f"layers.{i}", 1 + i // 2) for i in range(4)}
    bert = {node for node in hardware._bert_program().micro.nodes if any(name.startswith("layers.") for name in node.origin.sources)}
    in_stages = Layout(hardware.BERT_STAGES)
    assert {in_stages.stage_of(node) for node in bert} == {1, 2, 3}


def test_replicas_add_gradients_around_a_ring() -> None:
    time = update_time(tile_program(5), Layout((("a.*",), ("b.*",)), replicas=4), link_share=1.0)
    bow = chip("bow")
    assert time.all_reduce == pytest.approx(6 / 4 * 16e6 / bow.link_bytes_per_second + 6 * bow.link_sync_cycles / bow.clock_hz)


def test_every_line_pins_its_configuration() -> None:
    for line in LINES:
        assert line.source
        assert "precision" in line.configuration
    assert {line.published for line in LINES} == {42029, 16391, 18.9, 58.9, 2262696}


def test_a_matmul_line_is_below_the_peak_and_names_its_estimates() -> None:
    line = LINES[-1]
    made = line.run()
    assert isinstance(made, Prediction)
    assert made.ratio == line.published / made.predicted > 1.2
    estimates = {name for name, _, kind, _ in chip("c600").constants() if kind == "estimate"}
    assert made.sensitivity
    assert set(made.sensitivity) <= estimates
    assert "ratio" in made.to_text()
    assert made.to_dict()["configuration"]["machine"] == "c600"
