"""Root-mean-square normalisation of rows (Zhang and Sennrich, arXiv:1910.07467) and its gradient; sums as in `norm`."""
from __future__ import annotations

import functools
import math
from typing import Any

from ..machine.leaf import Leaf
from ..sums import row_dot


def _rms_norm(x: Any, scale: Any, y: Any, inverses: Any, epsilon: float) -> None:
    """Divide each row by the root of its mean square, then times `scale` per column."""
    kind = x.dtype.type
    for r in range(y.shape[0]):
        row, target = x[r], y[r]
        inverse = kind(1.0 / math.sqrt(row_dot(row, row) / row.shape[0] + epsilon))
        inverses[r] = inverse
        for i in range(target.shape[0]):
            target[i] = row[i] * inverse * scale[i]


def _rms_norm_grad(g: Any, x: Any, scale: Any, inverses: Any, dx: Any, part: Any) -> None:
    """dx = inverse (h - xhat mean(h xhat)) with h = g scale and xhat = x inverse."""
    kind = x.dtype.type
    for r in range(dx.shape[0]):
        gradient, row, inverse = g[r], x[r], float(inverses[r])
        for i in range(row.shape[0]):
            part[i] = gradient[i] * scale[i]
        tilt, factor, target = kind(row_dot(part, row) * inverse * inverse / row.shape[0]), kind(inverse), dx[r]
        for i in range(target.shape[0]):
            target[i] = (part[i] - row[i] * tilt) * factor


@functools.cache
def rms_leaf(t: str, backward: bool) -> Leaf:
    """x [rows, n], scale, y, 1 / root mean square [rows], epsilon; backward: g, x, scale, 1 / rms, dx, scratch [n]."""
    flat, row, one = f"{t}[:]", f"{t}[r,:]", f"{t}[r]"
    if backward:
        return Leaf(_rms_norm_grad, ", ".join([row, row, flat, one, row, f"{t}[w,:]"]))
    return Leaf(_rms_norm, ", ".join([row, flat, row, one, "f8"]))
