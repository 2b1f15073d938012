"""Transpositions of a few channels: runs that are mixed element by element, and told apart again."""
from __future__ import annotations

import numpy as np
import paths
import pytest
from evaluate import check_kernel, normal

from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import In, Out
from tileflow.kernels.move import LONG, MoveAxis, move
from tileflow.ops.shape import Transpose

CASES = {"an image to channels last": ((2, 3, 7, 9), (0, 2, 3, 1)), "an image from channels last": ((2, 7, 9, 3), (0, 3, 1, 2)),
         "two": ((5, 33), None), "longer than a unit": ((3, 2 * LONG + 5), (1, 0)), "longer, told apart": ((3 * LONG - 1, 2), (1, 0)),
         "as long as short": ((4, 5, 5), (0, 2, 1)), "runs shorter than a vector": ((6, 2, 3), (0, 2, 1)), "eight": ((8, 40), (1, 0)),
         "gaps between": ((3, 4, 5, 6), (0, 3, 2, 1))}


@pytest.mark.parametrize(("path", "name"), [paths.on(path, name) for path in cpu.available() for name in CASES])
def test_transpositions(path: str, name: str) -> None:
    shape, perm = CASES[name]
    with cpu.forced(path):
        check_kernel(Transpose(perm=perm), normal(*shape), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float64"])
@pytest.mark.parametrize("name", ["an image to channels last", "an image from channels last"])
def test_other_widths(name: str, dtype: str) -> None:
    shape, perm = CASES[name]
    check_kernel(Transpose(perm=perm), np.random.default_rng(0).integers(0, 200, shape).astype(dtype), rtol=0, atol=0)


def test_only_what_lies_together_is_shuffled() -> None:
    """Three of four channels are rows or tiles, as before."""
    def leaf(axes: list[MoveAxis]) -> str:
        call, = move(In(0, (400,)), Out(0, (400,)), axes, 4)
        return call.leaf.name
    assert leaf([MoveAxis(100, 1, 3), MoveAxis(3, 100, 1)]) == leaf([MoveAxis(3, 1, 100),
                                                                     MoveAxis(100, 3, 1)]) == "move_few"
    assert leaf([MoveAxis(100, 1, 4), MoveAxis(3, 100, 1)]) == leaf([MoveAxis(3, 1, 100),
                                                                     MoveAxis(100, 4, 1)]) == "move_rows"
