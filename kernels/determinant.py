"""Determinants of small matrices, and their gradient, by elimination with the largest pivot of each column."""
from __future__ import annotations

from typing import Any

from .machine.leaf import generic


def _eliminated(a: Any, n: int) -> Any:
    """The determinant of the matrix whose rows lie in `a` one after the other, which is overwritten."""
    product = a.dtype.type(1)
    for k in range(n):
        best = k
        for r in range(k + 1, n):
            if abs(a[r * n + k]) > abs(a[best * n + k]):
                best = r
        pivot = a[best * n + k]
        product *= pivot if best == k else -pivot
        if pivot == 0:
            return product
        if best != k:
            for c in range(k, n):
                a[k * n + c], a[best * n + c] = a[best * n + c], a[k * n + c]
        for r in range(k + 1, n):
            factor = a[r * n + k] / pivot
            if factor != 0:
                for c in range(k + 1, n):
                    a[r * n + c] -= factor * a[k * n + c]
    return product


@generic("T[:,:], T[:], T[w,:], lo, hi, i8")
def determinant(x: Any, y: Any, a: Any, lo: int, hi: int, n: int) -> None:
    """y[b] = det x[b], its n rows one after the other; a unit of range is one matrix."""
    for m in range(lo, hi):
        for i in range(n * n):
            a[i] = x[m, i]
        y[m] = _eliminated(a, n)


@generic("T[:], T[:,:], T[:,:], T[w,:], lo, hi, i8")
def determinant_gradient(g: Any, x: Any, d: Any, a: Any, lo: int, hi: int, n: int) -> None:
    """d[b] = g[b] times the cofactors of x[b]: the determinants of what is left without a row and a column, with alternating signs.

    Each is eliminated on its own, which needs no inverse: a matrix without one has a gradient all the same.
    """
    for m in range(lo, hi):
        for r in range(n):
            for c in range(n):
                at = 0
                for i in range(n):
                    for j in range(n):
                        if i != r and j != c:
                            a[at] = x[m, i * n + j]
                            at += 1
                minor = _eliminated(a, n - 1)
                d[m, r * n + c] = g[m] * (minor if (r + c) % 2 == 0 else -minor)
