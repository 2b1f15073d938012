"""Energy: sums over operators and categories, hand counts, what a file may say, what may be ranked."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import pytest

import tileflow
from tileflow import machine, nn, report
from tileflow.exploration.point import thriftiest
from tileflow.report import format as f
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import CHIPS, Chip, chip
from tileflow.tiles.hardware.energy import Energy
from tileflow.tiles.system.energy import BESIDE, CATEGORIES, ON_TILES

EXACT = {
    "operation": {"float32": 2e-12, "int32": 1e-12, "bool": 0, "int8": 0, "uint8": 0},
    "tile_byte": 1e-12,
    "exchange_byte": 3e-12,
    "link_byte": 50e-12,
    "streaming_byte": [100e-12, 200e-12],
    "host_byte": 70e-12,
    "idle_watts": 40,
}
SETTINGS = {
    "inference": {"training": False, "micro_batch_size": 4},
    "training": {"training": True, "micro_batch_size": 4, "gradient_accumulation": 4},
    "streamed": {
        "training": True,
        "micro_batch_size": 4,
        "gradient_accumulation": 2,
        "optimizer": "adam",
        "optimizer_off_chip": True,
    },
    "pipeline": {
        "training": True,
        "micro_batch_size": 2,
        "gradient_accumulation": 4,
        "auto_pipeline": 2,
        "strategy": "pipelined",
    },
    "replicas": {"training": True, "micro_batch_size": 4, "gradient_accumulation": 2, "replication_factor": 4},
}


def exact(**changes: object) -> Chip:
    return chip("gc200").variant(tiles=64, energy={**EXACT, **changes})


@pytest.mark.parametrize("name", SETTINGS)
def test_operators_and_categories_add_up(name):
    tiled = tileflow.compile("digits_cnn.onnx", machine=exact(), allow_out_of_memory=True, **SETTINGS[name]).tiled
    found = tiled.energy
    assert len(found.steps) == len(tiled.steps)
    views = [each for step, each in zip(tiled.steps, found.steps, strict=True) if step.plan.vertex == "none"]
    assert views
    assert all(sum(map(sum, each.values())) == 0 for each in views)
    assert list(found.categories) == [*ON_TILES, *BESIDE] == [*CATEGORIES]
    for end in (0, 1):
        for category in ON_TILES:
            assert found.categories[category][end] == pytest.approx(
                sum(s[category][end] for s in found.steps), rel=1e-12
            )
        assert found.total[end] == pytest.approx(sum(v[end] for v in found.categories.values()), rel=1e-12)
        assert found.per_sample[end] == pytest.approx(found.total[end] / tiled.samples_per_update, rel=1e-12)
        assert found.delay[end] == pytest.approx(
            found.per_sample[end] * tiled.seconds_per_update / tiled.samples_per_update
        )
    assert found.uncounted == ()
    assert found.board is None
    assert found.total[1] > found.total[0] if name == "streamed" else found.total[0] == found.total[1]
    replicas = tiled.options.replicas
    assert found.categories["arithmetic"][0] == pytest.approx(
        2e-12 * tiled.flops * replicas, rel=0.02
    )  # a few operators count integers
    ipus = replicas * max(1, len(tiled.ipus))
    assert found.categories["idle"][0] == pytest.approx(40 * tiled.seconds_per_update * ipus)
    assert found.categories["host"][0] == pytest.approx(
        70e-12 * replicas * sum(t.nbytes * t.repeats for t in tiled.transfers)
    )
    assert (found.categories["links"][0] > 0) == (name in ("pipeline", "replicas"))
    assert (found.categories["streaming memory"][0] > 0) == (name == "streamed")


def test_a_product_by_hand():
    """64 x 96 by 96 x 32 with the matrix unit of float32: 16 products a cycle, 16 outputs, 8 summed together."""
    net = nn.Linear(96, 32, bias=False)
    tiled = tileflow.compile(net, inputs=[(64, 96)], machine=exact()).tiled
    step, energy = next(
        (s, e) for s, e in zip(tiled.steps, tiled.energy.steps, strict=True) if s.flops == 2 * 64 * 96 * 32
    )
    macs = 64 * 96 * 32
    assert energy["arithmetic"] == (pytest.approx(2e-12 * 2 * macs),) * 2
    exchanged = (step.plan.exchange_bytes + tiled.rearranged[step.index]) * step.plan.tiles
    assert energy["exchange"] == (pytest.approx(3e-12 * exchanged),) * 2
    loaded = macs * (4 / 16 + 2 * 4 / 8) if step.plan.vertex == "amp" else macs * 2 * 4
    assert energy["tile memory"] == (pytest.approx(1e-12 * (loaded + 64 * 32 * 4 + 2 * exchanged)),) * 2


def test_what_is_not_known_is_named_and_bounds_nothing():
    bare = chip("gc200").variant(tiles=64, energy=Energy())
    found = tileflow.compile("digits_cnn.onnx", machine=bare).tiled.energy
    assert found.total == (0, 0)
    assert found.bounds is None
    assert found.per_sample is None
    assert found.delay is None
    assert found.uncounted == ("arithmetic", "tile memory", "exchange", "host", "idle")
    some = tileflow.compile(
        "digits_cnn.onnx", machine=bare.variant(energy={"tile_byte": 1e-12, "board_watts": [100, 200]})
    ).tiled
    assert some.energy.bounds == (some.energy.total[0], pytest.approx(200 * some.seconds_per_update))
    assert some.energy.total[0] > 0


@pytest.mark.parametrize("name", CHIPS)
def test_built_in_chips_have_sources_and_bounds(name):
    one = CHIPS[name]
    rows = one.energy.rows()
    assert all(0 <= least <= most and source != "given" and len(source) > 20 for _, (least, most), source in rows)
    assert one.energy.board_watts is not None
    assert one.energy.link_byte is one.energy.host_byte is one.energy.idle_watts is None
    assert {n for n, *_ in one.constants() if n.startswith("energy.")} == {f"energy.{n}" for n, *_ in rows}
    found = tileflow.compile("digits_cnn.onnx", machine=name).tiled.energy
    assert found.bounds is not None
    assert 0 < found.bounds[0] <= found.bounds[1] <= found.board[1]
    assert "idle" in found.uncounted


def test_a_file_says_what_operations_and_bytes_cost(tmp_path):
    text = Path("docs/tiles.md").read_text().split("## Energy")[1].split("```toml\n")[1].split("```")[0]
    (tmp_path / "mine.toml").write_text(text)
    one = chip(tmp_path / "mine.toml")
    assert one.energy.operation["float16"] == (0.5e-12, 0.5e-12)
    assert one.energy.operation["float32"] == (1e-12, 1.5e-12)
    assert one.energy.idle_watts == (60, 60)
    assert one.energy.board_watts == CHIPS["gc200"].energy.board_watts
    assert Chip.from_dict(one.to_dict()) == one
    assert Chip.from_dict(one.to_dict()).energy == one.energy
    assert pickle.loads(pickle.dumps(one)).energy == one.energy
    assert one.key == CHIPS["gc200"].key


def test_another_board_is_not_the_one_that_was_measured():
    one = CHIPS["gc200"]
    for changes in ({"tiles": 1000}, {"bytes_per_tile": 1000}, {"clock_hz": 1e9}, {"tiles": 1000, "name": "x"}):
        other = one.variant(**changes)
        assert other.energy.board_watts is None
        assert other.energy.tile_byte == one.energy.tile_byte
    assert one.variant(name="x").energy == one.energy == one.variant(tiles=one.tiles).energy
    assert one.variant(tiles=1000, energy={"board_watts": 90}).energy.board_watts == (90, 90)


@pytest.mark.parametrize(
    ("energy", "says"),
    [
        ({"tile": 1}, "energy has no entry 'tile'"),
        (3, "energy must be"),
        ({"operation": 3}, "energy must be a table"),
        ({"tile_byte": [2, 1]}, "energy.tile_byte must be a number of at least 0, or"),
        ({"tile_byte": -1}, "must be a number"),
        ({"tile_byte": math.nan}, "must be a number"),
        ({"tile_byte": [1, 2, 3]}, "must be a number"),
        ({"idle_watts": True}, "must be a number"),
        ({"operation": {"float16": "much"}}, "energy.operation.float16 must be a number"),
    ],
)
def test_a_wrong_table_is_told(energy, says):
    with pytest.raises(OptionError, match=says):
        Chip.from_dict({"base": "gc200", "energy": energy})
    with pytest.raises(OptionError, match=says):
        Chip.from_dict({**CHIPS["gc200"].to_dict(), "energy": energy})


def test_only_ranges_that_do_not_overlap_are_ranked():
    program = machine.compile("digits_cnn.onnx", micro_batch_size=8)
    low, mid, high = (
        exact(tile_byte=b, exchange_byte=0, idle_watts=0).variant(name=n)
        for n, b in (("low", [1e-12, 5e-12]), ("mid", [4e-12, 9e-12]), ("high", [90e-12, 99e-12]))
    )
    found = program.study([high, low, mid, chip("gc200").variant(name="unknown", energy=Energy())])
    assert [p.values["machine"] for p in found.thriftiest] == ["low", "mid"]
    assert [p.joules_most for p in found.points][-1] is None
    assert "joules_least" in found.to_csv().splitlines()[0]
    assert thriftiest([]) == []


def test_reports_say_it_and_older_ones_are_read(tmp_path):
    compiled = tileflow.compile("digits_cnn.onnx", machine="gc200", report=tmp_path)
    data = report.load(tmp_path)
    assert data["energy"]["per_sample"] == [*compiled.tiled.energy.per_sample]
    assert len(data["energy"]["steps"]) == len(data["steps"])
    for name, (least, most) in list(data["energy"]["categories"].items())[:3]:
        steps = [s[name.replace(" ", "_")] for s in data["energy"]["steps"]]
        assert (least, most) == (pytest.approx(sum(s[0] for s in steps)), pytest.approx(sum(s[1] for s in steps)))
    assert "Energy: a sample takes" in compiled.to_text()
    assert "not counted: host, idle" in compiled.to_text()
    older = {k: v for k, v in data.items() if k != "energy"}
    assert "Energy" not in report.text.render(report.json.validate(older, "it"))
    with pytest.raises(tileflow.errors.ReportError, match=r"energy\.steps does not have bounds"):
        report.json.validate({**data, "energy": {**data["energy"], "steps": []}}, "it")


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [(0.0174, 0.2083, "17.4 to 208 mJ"), (2, 2, "2 J"), (0, 3e-9, "0 to 3 nJ"), (0, 0, "0 nJ")],
)
def test_ranges_in_words(least, most, words):
    assert f.span(least, most, "J") == words
