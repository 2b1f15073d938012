"""Area and cost of a chip: what its file says, with where it is from; throughput for them where they are said, and only
there."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import tileflow
from tileflow import machine, report
from tileflow.exploration.point import WHERE_SAID
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import CHIPS, Chip, chip

AREA, COST = WHERE_SAID
MODEL = "digits_cnn.onnx"


def small(**said: float) -> Chip:
    return chip("gc200").variant(name="small", tiles=64, **said)


def test_a_file_says_them_and_where_they_are_from(tmp_path):
    text = Path("docs/tiles.md").read_text().split("## Area and cost")[1].split("```toml\n")[1].split("```")[0]
    (tmp_path / "mine.toml").write_text(text)
    one = chip(tmp_path / "mine.toml")
    assert (one.area_mm2, one.cost) == (1250, 4000)
    rows = {name: (value, kind, source) for name, value, kind, source in one.constants()}
    assert rows["area_mm2"] == (1250, "user", "floor plan of June, SRAM of 0.027 mm2 a macro")
    assert rows["cost"] == (4000, "user", "quote for 10,000")
    again = Chip.from_dict(json.loads(json.dumps(one.to_dict())))
    assert again == one == pickle.loads(pickle.dumps(one))
    assert again.sources["cost"] == one.sources["cost"]
    assert one.key == chip("gc200").variant(bytes_per_tile=one.bytes_per_tile).key, "plans do not follow from them"
    whole = Chip.from_dict({**CHIPS["gc2"].to_dict(), "sources": {"tiles": "counted"}})
    assert next(r for r in whole.constants() if r[0] == "tiles")[2:] == ("user", "counted")


@pytest.mark.parametrize("name", CHIPS)
def test_built_in_chips_have_a_source_or_no_area(name):
    one = CHIPS[name]
    rows = [r for r in one.constants() if r[0] in ("area_mm2", "cost")]
    assert one.cost is None
    assert len(rows) == (name != "c600")
    assert all(kind in ("documented", "estimate") and len(source) > 20 for *_, kind, source in rows)


def test_another_chip_is_another_piece_of_silicon():
    one = CHIPS["gc200"]
    priced = one.variant(cost=100)
    assert (priced.area_mm2, priced.cost) == (823, 100)
    assert one.variant(name="x").area_mm2 == one.variant(tiles=one.tiles).area_mm2 == 823
    for changes in ({"tiles": 1000}, {"bytes_per_tile": 1000}, {"vector_bytes": 16}):
        assert priced.variant(**changes).area_mm2 is priced.variant(**changes).cost is None
        assert priced.variant(**changes, area_mm2=5).area_mm2 == 5
    assert not [r for r in small().constants() if r[0] in ("area_mm2", "cost")]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"area_mm2": 0}, "area_mm2 must be a number above 0"),
        ({"area_mm2": "large"}, "area_mm2 must be a number"),
        ({"cost": True}, "cost must be a number"),
        ({"cost": float("nan")}, "cost must be a number"),
        ({"sources": 3}, "sources must be a table of texts"),
        ({"sources": {"cost": 3}}, "sources must be a table of texts"),
        ({"sources": {"costs": "a quote"}}, "no constant 'costs'; did you mean cost"),
    ],
)
def test_what_is_wrong_is_told(said, says):
    for base in ({"base": "gc200"}, CHIPS["gc200"].to_dict()):
        with pytest.raises(OptionError, match=says):
            Chip.from_dict({**base, **said})


@pytest.mark.parametrize("replicas", [1, 2])
def test_throughput_is_over_all_ipus(replicas, tmp_path):
    compiled = tileflow.compile(
        MODEL, machine=small(area_mm2=200, cost=40), replication_factor=replicas, micro_batch_size=4, report=tmp_path
    )
    tiled = compiled.tiled
    assert tiled.samples_per_second_per_mm2 == pytest.approx(tiled.samples_per_second / (200 * replicas))
    assert tiled.samples_per_second_per_cost == pytest.approx(tiled.samples_per_second / (40 * replicas))
    found = report.load(tmp_path)
    assert found["efficiency"] == {
        "area_mm2": 200,
        "cost": 40,
        AREA: tiled.samples_per_second_per_mm2,
        COST: tiled.samples_per_second_per_cost,
    }
    said = f"{tiled.samples_per_second_per_mm2:.4g} samples/s for a mm² of silicon (an IPU has 200 mm²)"
    assert said in compiled.to_text()
    assert "for a unit of cost (an IPU costs 40)" in compiled.to_text()
    assert "Efficiency: " in (tmp_path / "page.html").read_text()
    older = {k: v for k, v in found.items() if k != "efficiency"}
    assert "Efficiency" not in report.text.render(report.json.validate(older, "it"))


def test_where_nothing_is_said_there_is_no_such_figure(tmp_path):
    compiled = tileflow.compile(MODEL, machine=small(), report=tmp_path)
    assert compiled.tiled.samples_per_second_per_mm2 is compiled.tiled.samples_per_second_per_cost is None
    assert report.load(tmp_path)["efficiency"] is None
    assert "Efficiency" not in compiled.to_text()
    one = tileflow.compile(MODEL, machine=small(cost=3)).to_text()
    assert "unit of cost" in one
    assert "of silicon" not in one


def test_tables_have_the_columns_where_some_chip_says_it():
    program = machine.compile(MODEL, micro_batch_size=4)
    chips = [small(), small().variant(name="priced", cost=10), small().variant(name="dear", cost=1e4, area_mm2=1)]
    bare, found = program.study(chips[:1]), program.study(chips)
    assert {AREA, COST}.isdisjoint(bare.columns())
    assert "samples/s per" not in bare.to_text()
    assert [v is None for v in found.columns()[COST]] == [True, False, False]
    assert [v is None for v in found.columns()[AREA]] == [True, True, False]
    assert {AREA, COST} <= {*found.to_csv().splitlines()[0].split(",")}
    assert "samples/s per mm²" in found.to_text()
    assert "samples/s per cost" in found.to_text()
    assert found.points[1].samples_per_second_per_cost == pytest.approx(found.points[1].samples_per_second / 10)
    assert [p.values["machine"] for p in program.study(chips[1:]).pareto(maximize=COST)] == ["priced"]
    assert list(program.study(machine.grid(small(), cost=[1, 2])).axes) == ["machine", "cost"]
