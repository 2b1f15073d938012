"""Channels-last kernels over planar images: each is turned into scratch memory, or out of it."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..machine.call import Call, In, Out, Work
from ..move import Axis, move

Image = tuple[tuple[int, ...], str, int]
"""The planar shape [n, c, *spatial] of an operand, its element type's letters and its bytes per element."""


def turned_calls(calls: Sequence[Call], inputs: Mapping[int, Image], outputs: Mapping[int, Image]) -> list[Call]:
    """`calls` over planar images, where they are for channels-last ones: for the inputs and outputs that are named."""
    before: list[Call] = []
    after: list[Call] = []
    scratch: dict[tuple[type, int], Work] = {}
    for i, (shape, code, itemsize) in inputs.items():
        size = math.prod(shape)
        scratch[In, i] = Work(f"input {i}", (size,), code)
        before += move(In(i, (size,)), scratch[In, i], turned(shape, False), itemsize)
    for i, (shape, code, itemsize) in outputs.items():
        size = math.prod(shape)
        scratch[Out, i] = Work(f"output {i}", (size,), code)
        after += move(scratch[Out, i], Out(i, (size,)), turned(shape, True), itemsize)
    middle = []
    for call in calls:
        args = [replace(scratch[type(a), a.index], shape=a.shape) if isinstance(a, In | Out) and (type(a), a.index) in scratch else a
                for a in call.args]
        middle.append(replace(call, args=args))
    return [*before, *middle, *after]


def turned(shape: tuple[int, ...], back: bool) -> list[Axis]:
    """The axes of the move from planar images of this shape to channels-last ones, or `back`."""
    n, c, pixels = shape[0], shape[1], math.prod(shape[2:])
    if back:
        return [Axis(n, c * pixels, c * pixels), Axis(c, 1, pixels), Axis(pixels, c, 1)]
    return [Axis(n, c * pixels, c * pixels), Axis(pixels, 1, c), Axis(c, pixels, 1)]
