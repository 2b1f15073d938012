"""Planar images for kernels of channels-last ones: each is turned into scratch memory, or out of it."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...isa.half import HALVES, stored
from ...isa.vector import itemsize
from ...machine.call import Call, In, Out, Work
from ...move import MoveAxis, move
from ..problem import ConvProblem
from .geometry import cost

__all__ = ["around", "cost", "images", "serves"]

Image = tuple[int, int, int]
"""Images, channels, pixels."""


def serves(p: ConvProblem, dtype: str) -> bool:
    """What has no kernels over planes: volumes and 16-bit floats."""
    return p.rank == 3 or dtype in HALVES


def images(p: ConvProblem) -> tuple[Image, Image]:
    """The images that `p` reads and those that it makes."""
    return (p.n, p.groups * p.c, p.pixels_in), (p.n, p.groups * p.oc, p.pixels_out)


def around(calls: Sequence[Call], dtype: str, inputs: dict[int, Image], outputs: dict[int, Image]) -> list[Call]:
    """`calls` over channels-last images, with planar ones as these inputs and outputs."""
    moved: dict[In | Out, Work] = {}
    before: list[Call] = []
    after: list[Call] = []
    for i, image in inputs.items():
        work = Work(f"input {i}", (math.prod(image),), stored(dtype))
        moved[In(i, ())] = work
        before += move(In(i, work.shape), work, _turn(*image), itemsize(dtype))
    for i, image in outputs.items():
        work = Work(f"output {i}", (math.prod(image),), stored(dtype))
        moved[Out(i, ())] = work
        after += move(work, Out(i, work.shape), _back(*image), itemsize(dtype))

    def renamed(arg: object) -> object:
        if isinstance(arg, In | Out) and (work := moved.get(replace(arg, shape=()))) is not None:
            return replace(work, shape=arg.shape)
        return arg

    return [*before, *(replace(call, args=[renamed(arg) for arg in call.args]) for call in calls), *after]


def _turn(n: int, c: int, pixels: int) -> list[MoveAxis]:
    """The axes of the move from planar images to channels-last ones."""
    return [MoveAxis(n, c * pixels, c * pixels), MoveAxis(pixels, 1, c), MoveAxis(c, pixels, 1)]


def _back(n: int, c: int, pixels: int) -> list[MoveAxis]:
    return [MoveAxis(n, c * pixels, c * pixels), MoveAxis(c, 1, pixels), MoveAxis(pixels, c, 1)]
