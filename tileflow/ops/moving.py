"""Moves of boxes of any rank: the kernel walks a few axes, longer walks are several of its calls."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ..kernels import move as kernel
from ..kernels.machine.call import Call, In, Out
from ..kernels.move import MoveAxis
from ..system.errors import ShapeError

MOST_CALLS = 1 << 12


def move(source: In, target: Out, axes: Sequence[MoveAxis], itemsize: int, source_start: int = 0,
         target_start: int = 0) -> list[Call]:
    """The Calls that move a box; see `kernels.move.move`.

    Raises:
        ShapeError: the box has so many axes that do not lie together that it takes endless calls.
    """
    if any(axis.n == 0 for axis in axes):
        return []
    box = kernel.merged(axes)
    walked = kernel.OUTER + (not box or box[-1].n <= kernel.PIECE)     # a long innermost axis becomes two
    beyond = box[:-walked]
    if math.prod(axis.n for axis in beyond) > MOST_CALLS:
        raise ShapeError(f"It moves elements along {len(box)} axes that do not lie together, {[axis.n for axis in box]}; tileflow walks "
                         f"{walked} at once: move fewer axes in one operator.")
    if not beyond:
        return kernel.move(source, target, axes, itemsize, source_start, target_start)
    outermost, *rest = box
    return [call for i in range(outermost.n)
            for call in move(source, target, rest, itemsize, source_start + i * outermost.source, target_start + i * outermost.target)]
