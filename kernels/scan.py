"""Running sums and products of x[outer, n, inner] along the middle axis, and the gradient of running products."""
from __future__ import annotations

from typing import Any

from .machine.leaf import Generic, generic

STRIP = 256               # columns that one unit of range runs over
TYPES = ("f4", "f8", "i4", "i8", "u4", "u8")


def _running(product: bool) -> Any:
    neutral = int(product)

    def running(x: Any, y: Any, lo: int, hi: int, exclusive: int, reverse: int) -> None:
        """y[o, k] = the sum (or product) of x[o, :k + 1], one element after the other; `exclusive`: without x[o, k]; `reverse`: from the other end.

        A unit of range is a strip of columns of one o.
        """
        n, inner = x.shape[1], x.shape[2]
        strips = (inner + STRIP - 1) // STRIP
        first, step = (n - 1, -1) if reverse else (0, 1)
        for unit in range(lo, hi):
            o, left = unit // strips, unit % strips * STRIP
            right = min(left + STRIP, inner)
            if right - left == 1:
                total = x.dtype.type(neutral)
                at = first
                for _ in range(n):
                    value = x[o, at, left]
                    if exclusive:
                        y[o, at, left] = total
                    if product:
                        total *= value
                    else:
                        total += value
                    if not exclusive:
                        y[o, at, left] = total
                    at += step
                continue
            at = first
            for k in range(n):
                target = y[o, at, left:right]
                if k == 0:
                    for i in range(target.shape[0]):
                        target[i] = neutral
                else:
                    before = y[o, at - step, left:right]
                    for i in range(target.shape[0]):
                        target[i] = before[i]
                if not exclusive or k > 0:
                    source = x[o, at - step if exclusive else at, left:right]
                    for i in range(target.shape[0]):
                        if product:
                            target[i] *= source[i]
                        else:
                            target[i] += source[i]
                at += step
    return running


running_sum: Generic = generic("T[:,:,:], T[:,:,:], lo, hi, i8, i8", TYPES, key="sum")(_running(False))
running_product: Generic = generic("T[:,:,:], T[:,:,:], lo, hi, i8, i8", TYPES, key="product")(_running(True))


@generic("T[:,:,:], T[:,:,:], T[:,:,:], lo, hi, i8, i8")
def running_product_gradient(g: Any, x: Any, d: Any, lo: int, hi: int, exclusive: int, reverse: int) -> None:
    """The gradient of x from that of its running product, without a division: element k is the product of all before it, times what comes back
    from those after it, r[k] = g[k] + x[k + 1] r[k + 1] (`exclusive`: g[k + 1] + ...).

    A unit of range is one column (o, i).
    """
    n, inner = x.shape[1], x.shape[2]
    first, step = (n - 1, -1) if reverse else (0, 1)
    for unit in range(lo, hi):
        o, i = unit // inner, unit % inner
        product, at = x.dtype.type(1), first
        for _ in range(n):
            d[o, at, i] = product
            product *= x[o, at, i]
            at += step
        back, after = x.dtype.type(0), first + n * step
        for k in range(n):
            at = after - step
            if exclusive:
                back = back if k == 0 else g[o, after, i] + x[o, after, i] * back
            else:
                back = g[o, at, i] if k == 0 else g[o, at, i] + x[o, after, i] * back
            d[o, at, i] *= back
            after = at
