"""Programs drawn at random, on chips and with options drawn at random, run tile by tile: every operator is what its kernel makes of the whole.

A seed names a program: `python -m pytest "tests/exact/test_tile_exact_programs.py::test_many[140]"` runs 140 to 159.
"""
from __future__ import annotations

import pytest
from random_tile_programs import draw

from tileflow import exact
from tileflow.tiles.machine import analyze

FEW, MANY, CHUNK = 10, 1000, 10


def check(seed: int) -> None:
    program, chip, options, feeds = draw(seed)
    tiled = analyze(program, chip, options)
    report = exact.check(tiled, seed, feeds)
    assert report.ok, f"seed {seed}: {report.to_text()}"
    done = {step.node for step in tiled.steps if step.node.op.alias is None}
    assert len(report.steps) >= len(done), f"seed {seed}: an operator was not run"


@pytest.mark.parametrize("seed", range(FEW))
def test_few(seed: int) -> None:
    check(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(FEW, MANY, CHUNK))
def test_many(seed: int) -> None:
    for number in range(seed, seed + CHUNK):
        check(number)


def test_the_programs_are_of_all_kinds() -> None:
    """Precisions, chips of one tile and of many, training and not, with a matrix unit for float32 and without."""
    drawn = [draw(seed) for seed in range(60)]
    assert {options.precision for _, _, options, _ in drawn} == {"32.32", "16.32", "16.16"}
    assert {program.training for program, *_ in drawn} == {True, False}
    assert min(chip.tiles for _, chip, *_ in drawn) == 1
    assert max(chip.tiles for _, chip, *_ in drawn) >= 1216
    assert {"float32.float32" in chip.matrix for _, chip, *_ in drawn} == {True, False}
    assert len({node.op.name for program, *_ in drawn for graph in program.graphs for node in graph.nodes}) > 80
