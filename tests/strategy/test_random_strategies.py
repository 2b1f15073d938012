"""Runs over several IPUs drawn at random: the bits of one IPU on the host, and a report of the tile machine that adds up."""
from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from random_strategies import Drawn, LookingBack, Remembering, draw

import tileflow
from tileflow.report import pagedata

EXHAUSTIVE = 60
"""Seeds of `make check`; the first few are run at every change. (`python tests/strategy/test_random_strategies.py 60
400` runs others.)"""
QUICK = 4


ON_HOST = ("seed", "threads", "output_mode", "output_return_period", "broadcast_buffers", "input_group_type", "gradient_checkpointing")
"""Options that the tile machine knows nothing of."""


def seeds(quick: int, every: int) -> list[Any]:
    return [*range(quick), *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(quick, every))]


def trained(drawn: Drawn, whole: bool) -> tuple[dict[str, np.ndarray], list[Any], Any]:
    """Weights, optimizer states and what replicas have of their own after two calls, and what the calls returned."""
    draw = np.random.default_rng(7)
    net = drawn.network()
    for p in net.parameters():
        p.data = (draw.standard_normal(p.shape) * 0.2).astype(np.float32)
    model = tileflow.training_model(net, **drawn.options(whole))
    results = [a for _ in range(2) for a in model(*drawn.data())]
    return {**model.state_dict(), **model.optimizer_state_dict(), **model.replica_state_dict()}, results, model


@pytest.mark.parametrize("seed", seeds(QUICK, EXHAUSTIVE))
def test_several_ipus_give_the_bits_of_one(seed: int) -> None:
    agree(draw(seed))


@pytest.mark.parametrize("network", [Remembering, LookingBack])
@pytest.mark.parametrize("seed", seeds(QUICK, EXHAUSTIVE))
def test_buffers_that_stages_write(seed: int, network: type[Remembering]) -> None:
    agree(draw(seed, network))


def agree(drawn: Drawn) -> None:
    wanted, results, _ = trained(drawn, True)
    found, others, model = trained(drawn, False)
    assert [part for part in model.plan.parts if part.startswith("stage")], "the program is really cut"
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    for a, b in zip(results, others, strict=True):
        np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("seed", seeds(QUICK, EXHAUSTIVE))
def test_the_tile_machines_report_adds_up(seed: int) -> None:
    """Of what a chip has room for: no IPU works longer than the update takes, none holds less than nothing, figures are those of the report, and text
    and page are made."""
    drawn = draw(seed)
    options = {k: v for k, v in drawn.options().items() if k not in ON_HOST}
    found = tileflow.compile(drawn.network(), inputs=[drawn.data()[0][:options["micro_batch_size"]]], training=True, machine="gc200",
                             **options, **drawn.tiles)
    tiled = found.tiled
    assert tiled.program.caller is not None, "it is cut, if only into phases of one IPU"
    assert 0 < max(i.busy for i in tiled.ipus) <= tiled.cycles_per_update == found.report["totals"]["cycles"]
    assert sum(i.busy for i in tiled.ipus) >= sum(s.phases.total * s.repeats for s in tiled.steps), "every step is some IPU's"
    assert all((i.memory.peak >= i.memory.always_live).all() and (i.memory.always_live >= 0).all() for i in tiled.ipus)
    assert found.to_text()
    assert len(repr(found)) < 200, "for a prompt"
    assert pagedata.data(json.loads(json.dumps(found.report)))


if __name__ == "__main__":
    for number in range(*map(int, sys.argv[1:3])):
        for check in (test_several_ipus_give_the_bits_of_one, test_the_tile_machines_report_adds_up):
            try:
                check(number)
            except Exception as error:
                print(f"seed {number}: {type(error).__name__}: {error}\n{draw(number)}", flush=True)
