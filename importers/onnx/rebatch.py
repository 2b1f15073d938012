"""Constant shapes in a file that was exported for one batch size, restated for another."""
from __future__ import annotations

import math
from collections.abc import Sequence

Shape = tuple[int, ...]


def resolved(target: Sequence[int], shape: Shape, allowzero: bool) -> Shape:
    """A Reshape target with 0 (copy) and one -1 (the rest) worked out where that is possible."""
    sizes = [shape[i] if n == 0 and not allowzero and i < len(shape) else n for i, n in enumerate(target)]
    rest = math.prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and rest > 0 and math.prod(shape) % rest == 0:
        sizes[sizes.index(-1)] = math.prod(shape) // rest
    return tuple(sizes)


def rescaled(before: Shape, after: Shape, target: Shape, batch: int) -> Shape | None:
    """What a reshape from `before` to `target`, written for `batch`, becomes when its input has the shape `after`, of the same rank.

    Both shapes are cut into the shortest runs of dimensions with equal products; in the run that the batch is in, one dimension of the
    target grows with it. None where it is not clear which: a guess could mix samples up without anybody noticing.
    """
    result: list[int] = []
    i = j = 0
    while i < len(before) or j < len(target):
        start, first = i, j
        i, j = min(i + 1, len(before)), min(j + 1, len(target))
        while (a := math.prod(before[start:i])) != (b := math.prod(target[first:j])):
            if a < b and i < len(before):
                i += 1
            elif b < a and j < len(target):
                j += 1
            else:
                return None
        run = list(target[first:j])
        if before[start:i] != after[start:i]:
            at = _growing(before[start:i], after[start:i], run, batch, leads=start == 0, followed_by_one=target[j:j + 1] == (1,))
            grown = 0 if at is None else run[at] * math.prod(after[start:i])
            if at is None or a == 0 or grown % a:
                return None
            run[at] = grown // a
        result += run
    return tuple(result)


def _growing(before: Shape, after: Shape, run: list[int], batch: int, leads: bool, followed_by_one: bool) -> int | None:
    """Which dimension of a run grows with the batch; None where several could."""
    changed = next(k for k, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
    if before[changed] == batch:
        outermost = math.prod(before[:changed]) == 1
        merges = len(before) > 1 and batch == 1 and not leads
        return 0 if run and not merges and (outermost or len(run) == 1) else None
    if len(run) == 1:
        return None if batch == 1 and followed_by_one else 0
    return run.index(batch) if run.count(batch) == 1 else None
