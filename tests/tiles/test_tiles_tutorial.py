"""The pipelining tutorial's network on four simulated IPUs, and what stages of BERT-Base hold."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tileflow
from bench import networks
from tileflow import nn
from tileflow.program.batching import Batching
from tileflow.program.schedule import busy, elapsed, period, times
from tileflow.report import gantt
from tileflow.strategy import pipelined
from tileflow.strategy.order import Parts
from tileflow.strategy.stages import PipelinedExecution, Stage
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.placing.memory import ALWAYS_LIVE
from tileflow.tiles.plans.plan import TileOptions

PLACES, STEPS = 7, 10
"""Of four stages; micro-batches of an update."""


class Tutorial(nn.Module):
    """Two convolutions with pooling, two linear layers, a block each."""

    def __init__(self) -> None:
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 256), nn.Linear(256, 10)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        with nn.Block("B1"):
            x = nn.functional.max_pool2d(self.conv1(x), 2).relu()
        with nn.Block("B2"):
            x = nn.functional.max_pool2d(self.conv2(x), 2).relu()
        with nn.Block("B3"):
            x = self.fc1(x.flatten(1)).relu()
        with nn.Block("B4"):
            return self.fc2(x)


@pytest.fixture(scope="module")
def tutorial() -> Any:
    strategy = PipelinedExecution(*(Stage(f"B{i + 1}").ipu(i) for i in range(4)))
    return tileflow.compile(Tutorial(), training=True, inputs=[(40, 1, 28, 28)], machine="gc200", micro_batch_size=40, gradient_accumulation=STEPS,
                            device_iterations=10, loss="cross_entropy", **strategy.to_options())


def test_each_place_is_busy_in_as_many_cycles_as_there_are_micro_batches(tutorial: Any) -> None:
    """G + P - 1 cycles of the pipeline, each of the P places busy in G of them, for every update."""
    chart = gantt.Chart(tutorial.report)
    ends = sorted({b.start + b.cycles for b in chart.bars if b.kind == "exchange"})
    assert len(ends) == STEPS + PLACES - 1 - 1, "after each cycle but the last, in which the first stage ends what it began, something crosses"
    for place in range(PLACES):
        bars = [b for b in chart.bars if b.part == f"stage{place}"]
        at = {b.micro_batch: sum(b.start >= end for end in ends) for b in bars}
        assert at == {m: place + m for m in range(STEPS)}, f"place {place}"
    assert {part: n for part, n in times(period(tutorial.tiled.program.schedule)).items() if part.startswith("stage")} == dict.fromkeys(
        (f"stage{i}" for i in range(PLACES)), STEPS)


@pytest.mark.parametrize(("forward", "micro_batches"), [(2, 3), (2, 20), (3, 5), (4, 7), (4, 10), (8, 15), (8, 100)])
def test_equal_stages_work_for_their_share(forward: int, micro_batches: int) -> None:
    """G / (G + F - 1) of the cycles: as the pipeline fills it runs forwards only, as it drains backwards only. The tutorial's: 10 / 13."""
    places = 2 * forward - 1
    ipus = tuple(min(i, places - 1 - i) for i in range(places))
    order = pipelined.build(Parts(tuple(f"s{i}" for i in range(places)), (None,) * places, ipus), Batching(1, micro_batches, 1), True)
    cycles = {f"s{i}": 6 if i == forward - 1 else 3 for i in range(places)}
    total = elapsed(period(order), cycles)
    assert total == 6 * (micro_batches + forward - 1)
    runs = times(period(order))
    for ipu in range(forward):
        works = sum(cycles[f"s{i}"] * runs[f"s{i}"] for i in range(places) if ipus[i] == ipu)
        assert works / total == micro_batches / (micro_batches + forward - 1)
    assert busy((), cycles) == {}


def test_every_byte_of_the_tutorial_is_accounted_for(tutorial: Any) -> None:
    """On each tile of each IPU the categories add up to the whole, and what is always live to the floor."""
    for ipu in tutorial.tiled.ipus:
        memory = ipu.memory
        np.testing.assert_array_equal(sum(memory.categories.values()), memory.peak)
        np.testing.assert_array_equal(sum(memory.categories[name] for name in ALWAYS_LIVE), memory.always_live)
        assert memory.peak.max() == ipu.worst
    held = sum(int(ipu.memory.categories["weights"].sum()) for ipu in tutorial.tiled.ipus)
    assert held == 4 * sum(int(np.prod(p.shape)) for p in Tutorial().parameters())
    assert tutorial.tiled.memory_schedule.streamed, "images come from the host"


@pytest.mark.exhaustive
def test_stages_of_bert_base_hold_less_each() -> None:
    """What is always live on the fullest IPU falls from one to two to four stages' IPUs."""
    worst = []
    for splits in ((), (6,), (3, 6, 9)):
        program = networks.bert_program("base", 1, 9, sequence=16, masked=2, cuts=splits)
        tiled = analyze(program, chip("gc200"), TileOptions(precision="16.16"))
        always = [i.memory.always_live for i in tiled.ipus] or [tiled.always_live]
        worst.append((max(int(a.sum()) for a in always), max(int(a.max()) for a in always)))
    assert worst[0][0] > worst[1][0] > worst[2][0], "all tiles"
    assert worst[0][1] > worst[1][1] > worst[2][1], "the fullest tile"
