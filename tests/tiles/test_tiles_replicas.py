"""Replicas on the tile machine: what their all-reduce costs, one report for all of them; proportions of memory by IPU."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tileflow
from tileflow import nn, report
from tileflow.report import gantt
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import CHIPS, chip
from tileflow.tiles.system.links import collective, crossing_cycles, waits

GC200 = CHIPS["gc200"]


# ---- the price of a collective

def around(data: np.ndarray, owner: int, fragment: slice, ways: tuple[int, int], hops: list[list[int]]) -> np.ndarray:
    """The sum of a fragment at its owner: partial sums of `ways[0]` IPUs arrive from behind and of `ways[1]` from ahead, a hop a step. `hops`: per
    IPU the elements that it sends."""
    count = len(data)
    total = data[owner, fragment].copy()
    for way, sign in zip(ways, (1, -1), strict=True):
        partial = np.zeros_like(total)
        for i in range(way, 0, -1):
            at = (owner - sign * i) % count
            partial = partial + data[at, fragment]
            hops[at].append(partial.size)
        total += partial
    return total


@pytest.mark.parametrize(("replicas", "ipus", "scale", "method"), [
    (2, 1, 1, "one way"), (4, 4, 1, "one way"), (16, 2, 1, "one way"), (3, 1, 10 ** 4, "both ways"), (8, 1, 10 ** 5, "both ways"),
    (4, 1, 1, "half way round"), (5, 1, 1, "half way round"), (8, 1, 1, "half way round"), (32, 1, 10 ** 4, "half way round")])
def test_rounds_and_bytes_are_those_of_the_ring(replicas: int, ipus: int, scale: int, method: str) -> None:
    """The reduce-scatter is done, on arrays: it gives the sums, and what an IPU sends and the longest way are what is priced."""
    size = 12 * replicas
    data = np.random.default_rng(replicas).integers(-9, 9, (replicas, size)).astype(float)
    hops: list[list[int]] = [[] for _ in range(replicas)]
    fragments = 2 * replicas if method == "both ways" else replicas
    each, steps = size // fragments, 0
    for k in range(fragments):
        ways = (replicas // 2, (replicas - 1) // 2) if method == "half way round" else (replicas - 1, 0) if k < replicas else (0, replicas - 1)
        found = around(data, k % replicas, slice(k * each, (k + 1) * each), ways, hops)
        np.testing.assert_array_equal(found, data[:, k * each:(k + 1) * each].sum(0))
        steps = max(steps, *ways)
    for kind in ("reduce-scatter", "all-gather"):
        priced = collective(kind, 4 * size * scale, replicas, GC200, ipus=ipus)                                      # type: ignore[arg-type]
        assert priced.methods == (method,)
        assert (priced.steps, priced.sent) == (steps, 4 * scale * max(map(sum, hops)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1 << 28), st.integers(2, 64), st.sampled_from([1, 2, 4]), st.sampled_from(sorted(CHIPS)))
def test_no_all_reduce_is_faster_than_the_links(nbytes: int, replicas: int, ipus: int, machine: str) -> None:
    """Each IPU must send (R - 1) / R of its tensor twice, and can send at half of what its links carry in both directions."""
    found = collective("all-reduce", nbytes, replicas, CHIPS[machine], ipus=ipus)
    least = 2 * (replicas - 1) / replicas * nbytes
    assert found.sent >= least - 1
    assert found.cycles >= least / (CHIPS[machine].link_bytes_per_second / 2) * CHIPS[machine].clock_hz
    halves = [collective(kind, nbytes, replicas, CHIPS[machine], ipus=ipus) for kind in ("reduce-scatter", "all-gather")]   # type: ignore[arg-type]
    assert found.cycles == sum(h.cycles for h in halves)
    assert found.steps == sum(h.steps for h in halves)


def test_the_reference_chooses_the_method() -> None:
    """PopLibs' thresholds, in bytes, by the number of replicas."""
    def methods(nbytes: int, replicas: int, ipus: int = 1) -> tuple[str, ...]:
        return collective("all-reduce", nbytes, replicas, GC200, ipus=ipus).methods
    assert methods(1 << 30, 2) == methods(1 << 30, 16, ipus=4) == ("one way", "one way")
    assert methods(1_245_183, 4) == ("half way round", "both ways")
    assert methods(1_245_184, 4) == ("both ways", "both ways")
    assert methods(622_591, 4) == ("half way round", "half way round")
    assert methods(4_980_735, 8) == ("half way round", "both ways")
    assert methods(39_845_887, 16) == ("half way round", "both ways")
    assert methods(1 << 30, 32) == ("half way round", "half way round")
    assert collective("all-reduce", 100, 1, GC200).cycles == collective("all-reduce", 0, 4, GC200).cycles == 0


def test_a_ring_of_two_by_hand() -> None:
    """A half of the tensor goes to the other, is added there, and the sum comes back."""
    found = collective("all-reduce", 8_000_000, 2, GC200, ipus=2)
    assert found.steps == 2
    assert found.sent == 8_000_000
    crossing = crossing_cycles(4_000_000, GC200)
    assert crossing == 1200 + 66_500                                     # 4 MB at 80 GB/s, 1.33 GHz
    assert 0 < found.cycles - 2 * crossing < 0.1 * crossing              # adding is spread over all tiles


# ---- one report

class Net(nn.Module):
    def __init__(self) -> None:
        self.a, self.norm, self.b, self.c, self.d = nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 30), nn.Linear(30, 30), nn.Linear(30, 10)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        with nn.Block("first", ipu_id=0):
            x = self.norm(self.a(x)).relu()
        with nn.Block("second", ipu_id=1):
            x = self.b(x).relu()
        with nn.Block("third", ipu_id=2):
            x = self.c(x).relu()
        with nn.Block("fourth", ipu_id=3):
            return self.d(x)


def compiled(**options: Any) -> Any:
    given = {"inputs": [(8, 20)], "training": True, "machine": "gc200", "micro_batch_size": 8, "loss": "cross_entropy", "gradient_accumulation": 8,
             **options}
    return tileflow.compile(Net(), **given)


PIPELINED = {"strategy": "pipelined"}


def test_sixteen_ipus_as_four_replicas_of_four_stages_are_one_report(tmp_path: Path) -> None:
    alone, found = compiled(**PIPELINED), compiled(**PIPELINED, replication_factor=4, report=tmp_path)
    one, all_ = alone.report, found.report
    assert all_["replicas"] == {"count": 4, "ipus": 4, "all": 16, "reserved": 16}
    assert [i["number"] for i in all_["ipus"]] == [0, 1, 2, 3]
    assert all_["memory"] == one["memory"]
    assert all_["totals"]["phases"] == one["totals"]["phases"]
    waited = max(c["cycles"] for c in all_["collectives"])
    assert waited > 0
    assert all_["totals"]["cycles"] == one["totals"]["cycles"] + waited
    assert all_["batching"]["samples_per_update"] == 4 * one["batching"]["samples_per_update"] == 4 * 8 * 8
    assert all_["totals"]["samples_per_second"] == pytest.approx(256 / all_["totals"]["seconds"])
    weights = {i: sum(int(x) for x in ipu.memory.categories["weights"]) for i, ipu in enumerate(found.tiled.ipus)}
    assert {c["ipu"]: c["bytes"] for c in all_["collectives"]} == weights, "a gradient is as large as its weight"
    text = found.to_text()
    assert "16 × gc200 (4 replicas of 4 IPUs), each" in text
    assert "All-reduce of" in text
    chart = gantt.Chart(all_)
    assert chart.clock == all_["totals"]["cycles"] + all_["host"]["waits"]
    assert {(b.ipu, b.cycles, b.part) for b in chart.bars if b.kind == "replicas"} == {(i, waited, "all-reduce over 4 replicas") for i in range(4)}
    assert report.load(tmp_path) == all_
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "all-reduce over 4 replicas" in page
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    between = [e for e in events if e["ph"] == "X" and e["name"] == "between replicas"]
    assert sorted((e["pid"], e["args"]["cycles"]) for e in between) == [(i, waited) for i in range(4)]


@pytest.mark.exhaustive
def test_sixteen_ipus_compute_what_the_program_does() -> None:
    assert compiled(**PIPELINED, replication_factor=4).tile_exact().ok


def test_replicas_of_one_ipu() -> None:
    one, eight = compiled(gradient_accumulation=1).tiled, compiled(gradient_accumulation=1, devices=8)
    assert eight.tiled.cycles_per_update == one.cycles_per_update + waits(eight.tiled.collectives)["update", "before"]
    assert [c.bytes for c in eight.tiled.collectives] == [int(one.categories["weights"].sum())], "without accumulation, the gradients themselves"
    assert eight.tiled.samples_per_second * eight.tiled.seconds_per_update == pytest.approx(64)
    assert "8 × gc200 (8 replicas), each" in eight.to_text()
    assert f"All-reduce of {int(one.categories['weights'].sum()):,} bytes over the 8 replicas before the update" in eight.to_text()
    half = compiled(devices=8, machine_precision="16.16").tiled
    assert sum(c.bytes for c in half.collectives) == int(one.categories["weights"].sum()) // 2


def test_inference_adds_nothing_up() -> None:
    one, four = (tileflow.compile(Net(), inputs=[(8, 20)], micro_batch_size=8, machine="gc200", replication_factor=r).tiled for r in (1, 4))
    assert four.cycles_per_update == one.cycles_per_update
    assert four.collectives == []
    assert four.samples_per_second == pytest.approx(4 * one.samples_per_second)


def test_all_ipus_together_are_a_power_of_two() -> None:
    with pytest.raises(OptionError, match="the use of 12 IPUs, however a minimum of 16"):
        compiled(**PIPELINED, replication_factor=3)
    with pytest.raises(OptionError, match=r"Too many IPUs requested \(128\)"):
        compiled(**PIPELINED, replication_factor=32)
    rounded = compiled(replication_factor=3, auto_round_num_ipus=True)
    assert rounded.report["replicas"] == {"count": 3, "ipus": 1, "all": 3, "reserved": 4}
    assert "3 × gc200 (3 replicas, 4 reserved), each" in rounded.to_text()
    with pytest.raises(OptionError, match="tile machine; name one"):
        tileflow.compile(Net(), inputs=[(8, 20)], replication_factor=4)


def test_groups_of_replicas_add_up_what_they_share() -> None:
    """Weights of a group go round its replicas only, a replica's own not at all; rows that several get count once."""
    whole = compiled(**PIPELINED, replication_factor=4).tiled
    found = compiled(**PIPELINED, replication_factor=4, input_group_size=2, replica_grouping={"b.*": "orthogonal:2", "c.*": "no_grouping"})
    assert [(c["ipu"], c["replicas"]) for c in found.report["collectives"]] == [(0, 4), (1, 2), (3, 4)]
    pair = collective("all-reduce", next(c.bytes for c in whole.collectives if c.ipu == 1), 2, GC200, ipus=4, ipu=1)
    assert found.tiled.collectives[1] == pair
    assert found.report["batching"]["samples_per_update"] == 2 * 8 * 8
    assert found.tiled.samples_per_second == pytest.approx(2 * 8 * 8 / found.tiled.seconds_per_update)
    assert "over 2 groups of 2 replicas of IPU 1" in found.to_text()
    with pytest.raises(OptionError, match="fits no parameter"):
        compiled(replication_factor=4, replica_grouping={"x*": "no_grouping"})


# ---- proportions by IPU

def test_every_ipu_has_its_proportion() -> None:
    machine = chip("gc200")
    found = compiled(**PIPELINED, available_memory_proportion={"IPU1": 0.2, "IPU3": 0.05, "c": 0.3, "*": 0.4})
    bounds = {(s.ipu, s.node.origin.sources[0]): s.plan.bound_bytes for s in found.tiled.steps
              if s.plan.bound_bytes is not None and s.node.origin.sources and s.node.op.name in ("Gemm", "MatMul")}
    assert bounds == {(0, "a"): machine.bound(0.4), (1, "b"): machine.bound(0.2), (2, "c"): machine.bound(0.3), (3, "d"): machine.bound(0.05)}
    assert found.report["options"]["per_ipu"] == {"IPU1": 0.2, "IPU3": 0.05}
    assert "available memory proportion 0.4, IPU1 0.2, IPU3 0.05" in found.to_text()
    with pytest.raises(OptionError, match="names IPU4, but the program runs on the IPUs IPU0, IPU1, IPU2, IPU3"):
        compiled(**PIPELINED, available_memory_proportion={"IPU4": 0.2})
    with pytest.raises(OptionError, match="names IPU1, but the program runs on one IPU"):
        compiled(available_memory_proportion={"IPU1": 0.2})
    assert compiled(available_memory_proportion={"IPU0": 0.2}).tiled.options.available_memory_proportion == 0.2
