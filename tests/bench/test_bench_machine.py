"""The networks and the arithmetic of the tile machine's benchmarks."""
from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from bench import hardware, networks, planning, validation
from bench.published import LINES
from tileflow import nn
from tileflow.graph import TensorType
from tileflow.graph.work import Contraction
from tileflow.loss import find
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import RANGES, chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileOptions


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


@pytest.mark.parametrize(("program", "count"), [
    (lambda: networks.resnet_program(101, 2, groups=32), 44_177_704),
    (lambda: networks.resnet_program(101, 2, groups=32, norm=networks.Norm(32), pixels=True), 44_177_704),
    (lambda: networks.efficientnet_program(0, 2, 1, 6, 1, networks.BATCH), 5_288_548),
    (lambda: networks.efficientnet_program(4, 2, 1, 6, 1, networks.Norm(4)), 19_341_616)])
def test_networks_in_groups_have_the_published_sizes(program: Any, count: int) -> None:
    """Weights of torchvision's resnext101_32x4d, efficientnet_b0 and _b4; what normalises has as many, of any kind."""
    assert weights(program()) == count


def test_a_network_that_is_served_has_a_bias_for_each_normalisation() -> None:
    program = networks.resnet_inference(50, 2, 128)
    assert not [n for n in program.micro.nodes if "Norm" in n.op.name]
    assert program.rows_per_period == 2


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


def test_vit_base_has_the_published_size() -> None:
    """torchvision's vit_b_16: 86,567,656 weights; 85 M multiply-accumulates a token in the layers, and the attention's own."""
    program = networks.vit_program("base", micro_batch=2)
    assert weights(program) == 86_567_656
    tokens, patches = 2 * 197, 2 * 196
    layers = 12 * (tokens * 12 * 768 * 768 + 2 * tokens * 197 * 768)
    assert forward_macs(program) == patches * 3 * 16 * 16 * 768 + layers + 2 * 768 * 1000


# ---- lines ----------------------------------------------------------------------------------------------------------------

def test_stages_have_all_of_their_layers() -> None:
    """Also the sums of their residual connections, which stand for a layer itself and not for one inside it; the head returns to the embeddings."""
    program = networks.bert_program("mini", 2, 5, sequence=16, masked=2, cuts=(0,))
    assert program.staging is not None
    assert program.staging.ipus == (0, 1, 0)
    origins = [node.origin for node in program.micro.nodes if node.origin.role == "forward"]
    found = {(name.split(".")[0], origin.hints.stage) for origin in origins for name in origin.sources}
    assert {stage for name, stage in found if name == "layers"} == {1}
    assert {name: stage for name, stage in found if name != "Bert"} == {
        "tokens": 0, "positions": 0, "segments": 0, "norm": 0, "dropout": 0, "layers": 1, "transform": 2, "activation": 2, "transform_norm": 2,
        "pooler": 2, "next_sentence": 2, "loss": 2}


@pytest.mark.exhaustive
def test_checkpoints_behind_layers_take_less_memory_than_their_stage_again() -> None:
    """What all layers of a stage compute again is not there at once."""
    def worst(checkpoints: bool) -> int:
        program = networks.bert_program("mini", 4, 5, sequence=128, masked=2, layers=6, cuts=(0,), checkpoints=checkpoints)
        return analyze(program, chip("gc200").variant(tiles=64), TileOptions(precision="16.16", optimizer_off_chip=True)).ipus[1].worst
    assert worst(True) < 0.85 * worst(False)


@pytest.mark.exhaustive
def test_stages_fit_that_ran() -> None:
    """BERT-Base's and both ViTs', as published: the real runs had the same memory."""
    for line in (line for line in LINES if line.known and "stages" in line.configuration):
        if line.configuration["stages"][0] in "45":
            details = line.predict(chip(line.machine), {})[1]
            assert [text for name, text in details.items() if name.startswith("IPU ") and "does not fit" in text] == [], line.case


def test_every_line_pins_its_configuration() -> None:
    assert len({line.case for line in LINES}) == len(LINES) > 60
    assert sum(line.held_out for line in LINES) > len(LINES) / 3
    for line in LINES:
        assert len(line.source) > 40
        c = line.configuration
        if "training" in line.family:
            missing = {"network", "replicas", "stages", "micro-batch", "gradient accumulation", "global batch",
                       "recomputation", "precision"} - {*c}
            assert not missing, f"{line.case}: {missing}"
            assert c["global batch"] == c["replicas"] * c["micro-batch"] * c["gradient accumulation"]


def test_lines_of_one_setting_are_seen_or_held_out_together() -> None:
    """Or what is seen would tell of what is not."""
    fates: dict[tuple[Any, Any], set[bool]] = {}
    for line in LINES:
        fates.setdefault((line.predict, line.machine), set()).add(line.held_out)
    assert all(len(fate) == 1 for fate in fates.values())


SMALL = chip("gc200").variant(name="small", tiles=16, host_bytes_per_second=1e9)


def two_layers() -> Program:
    """Two linear layers, each on an IPU."""
    net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    return networks.training_program(net, [("x", TensorType("float32", (2, 8)))], find("cross_entropy"), tileflow.optim.SGD(lr=0.1), Batching(2, 5),
                                     [(net[1], 1)])


def test_a_line_is_what_the_machine_says_of_all_replicas_and_stages() -> None:
    """And what it says at the ends of the ranges."""
    options = TileOptions(precision="16.16", replicas=4)
    predict = hardware.network(two_layers, options)
    made = hardware.Line("small", "Small", "images/s", 1e6, "nobody", SMALL, {"precision": "16.16"}, predict).run()
    tiles = analyze(two_layers(), SMALL, options)
    assert made.predicted == tiles.samples_per_second == pytest.approx(4 * 10 / tiles.seconds_per_update)
    assert made.ratio == made.predicted / 1e6
    slow, fast = (analyze(two_layers(), end, options).samples_per_second / 1e6
                  for end in (SMALL.at_worst(), SMALL.at_best()))
    assert made.interval == (slow, fast)
    assert slow < made.ratio < fast
    text = made.to_text()
    for words in ("between replicas", "fill and drain", "crossing", "IPU 1", "wide", "phases"):
        assert words in text


@pytest.mark.parametrize(("ratio", "interval", "verdict"), [
    (1.1, (0.95, 1.2), "inside"), (0.9, (0.8, 1.1), "inside"), (1.3, (1.1, 1.4), "too fast"),
    (0.7, (0.6, 0.8), "too slow"),
    (1.1, (0.7, 1.2), "wide"), (0.9, (0.8, 1.2), "wide"), (1.0, (0.75, 1.25), "inside"), (1.0, (0.9, 0.995), "inside"),
    (0.98, (0.9, 0.985), "too slow"), (1.02, (1.005, 1.1), "inside")])
def test_only_narrow_intervals_are_hits(ratio: float, interval: tuple[float, float], verdict: str) -> None:
    found = hardware.Prediction("a", "b", "c", ratio, 1, ratio, interval, "d", False, False, 0.01, {})
    assert found.verdict == verdict
    assert found.hit == (verdict == "inside")


def test_cycles_are_the_other_way_round() -> None:
    """Fewer are faster."""
    line = next(line for line in LINES if line.unit == "cycles")
    made = line.run()
    assert made.ratio == line.published / made.predicted > 1.2
    assert int(made.details["share of the peak"].rstrip("%")) < 100
    assert made.interval[0] < made.ratio <= made.interval[1]
    assert made.to_dict()["configuration"]["machine"] == "c600"


# ---- the page --------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
ROW = re.compile(r"^\| (.+?)(?: \((?:soft|held out|soft, held out)\))? \| ([\d,.]+) \| ([\d,.]+) (\S+) "
                 r"\| ([\d.]+) \| ([\d.]+) to ([\d.]+) \| (inside|wide|too fast|too slow) \|$", re.MULTILINE)


def test_the_page_says_what_the_machine_predicts() -> None:
    """Here of the lines that are quickly predicted."""
    page = PAGE.read_text(encoding="utf-8")
    quick = [line for line in LINES if line.quick]
    assert len(quick) > 10
    for prediction in hardware.predictions(quick):
        assert validation.row(prediction) in page, prediction.to_text()


def test_the_page_has_all_lines_and_counts_them_right() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = ROW.findall(page)
    assert [row[0] for row in rows] == [line.case for line in LINES]
    hits = sum(row[-1] == "inside" for row in rows)
    assert f"| all lines | {len(rows)} | {hits} ({hits / len(rows):.0%}) |" in page
    found = math.exp(sum(math.log(float(row[4])) for row in rows) / len(rows))
    said = re.search(r"^\| all lines \| .* \| ([\d.]+) \|$", page, re.MULTILINE)
    assert said is not None
    assert float(said[1]) == pytest.approx(found, abs=0.011)
    for name in RANGES:
        assert f"| `{name}` |" in page


@pytest.mark.exhaustive
def test_the_page_is_what_its_command_makes() -> None:
    assert validation.page(list(hardware.predictions(LINES))) == PAGE.read_text(encoding="utf-8")


def test_chips_that_differ_in_their_surroundings_share_plans() -> None:
    """Their figures are those that they have alone."""
    program, together = two_layers(), dict[Any, Any]()
    for machine in (chip("gc200"), chip("bow"), chip("gc200").variant(link_bytes_per_second=1e9, host_bytes_per_second=1e8)):
        shared, alone = analyze(program, machine, cache=together), analyze(program, machine, cache={})
        assert (shared.cycles_per_update, shared.seconds_per_update) == (alone.cycles_per_update, alone.seconds_per_update)
        assert [s.plan for s in shared.steps] == [s.plan for s in alone.steps]
    before = len(together)
    analyze(program, chip("c600"), cache=together)
    assert len(together) == before
    analyze(program, chip("gc2"), cache=together)
    assert len(together) > before


@pytest.mark.exhaustive
def test_planning_is_timed_in_a_process_of_its_own(tmp_path: Any) -> None:
    found = planning.fresh("small", "small_cnn()", (1e9, 1e9, 0.0), 1, str(tmp_path))
    assert 0 < found.build < found.imports
    assert found.plan > 0
    assert found.to_text().count(": met") == 2
    assert found.to_text().count(": missed") == 1
    with pytest.raises(RuntimeError, match="NameError"):
        planning.fresh("small", "nothing()", (1, 1, 1), 1, str(tmp_path))
