"""Matrix products, with transposed operands, batches, a bias."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tileflow.graph import Builder, Value

from .base import Problem, numbers, some

SAMPLED_ROWS = 48
"""Rows of the result that are checked against float64."""


class MatMul(Problem):
    """C[m, n] = A[m, k] @ B[k, n] (+ bias[n]); `ta`, `tb`: the operand lies transposed; `batch`: so many of them."""

    bound_by = "flops"
    parameters = ("b", "bias")

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.m, self.n, self.k = shape["m"], shape["n"], shape["k"]
        self.ta, self.tb, self.biased = shape.get("ta", False), shape.get("tb", False), shape.get("bias", False)
        self.batch = (shape["batch"],) if "batch" in shape else ()
        self.name = "".join((f"{shape['batch']} of " if self.batch else "", f"{self.m}x{self.n}x{self.k}", " A'" * self.ta, " B'" * self.tb,
                             " bias" * self.biased, f" weights {self.weights}" if self.weights else ""))

    def arrays(self) -> dict[str, np.ndarray]:
        left = (self.k, self.m) if self.ta else (self.m, self.k)
        right = (self.n, self.k) if self.tb else (self.k, self.n)
        made = {"a": numbers("a", (*self.batch, *left), self.dtype), "b": numbers("b", (*self.batch, *right), self.dtype)}
        return made | ({"bias": numbers("bias", (self.n,), self.dtype)} if self.biased else {})

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        if self.biased:
            return [b.Gemm(v["a"], v["b"], v["bias"], transA=int(self.ta), transB=int(self.tb))]
        if self.ta or self.tb:
            return [b.FusedMatMul(v["a"], v["b"], transA=int(self.ta), transB=int(self.tb))]
        return [b.MatMul(v["a"], v["b"])]

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        a, b = t["a"], t["b"]
        a, b = a.mT if self.ta else a, b.mT if self.tb else b
        out = torch.empty((*self.batch, self.m, self.n), dtype=a.dtype)
        if self.biased:
            return lambda: torch.addmm(t["bias"], a, b, out=out)
        multiply = torch.bmm if self.batch else torch.mm
        return lambda: multiply(a, b, out=out)

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        a, b = (arrays[k].astype(np.float64) for k in "ab")
        c = outputs[0].astype(np.float64)
        if self.batch:
            which = some(self.batch[0], 4)
            a, b, c = a[which], b[which], c[which]
        a, b = a.swapaxes(-1, -2) if self.ta else a, b.swapaxes(-1, -2) if self.tb else b
        rows = some(self.m, SAMPLED_ROWS)
        a, c = a[..., rows, :], c[..., rows, :]
        bias = arrays["bias"].astype(np.float64) if self.biased else np.zeros(self.n)
        return float((np.abs(c - (a @ b + bias)) / (np.abs(a) @ np.abs(b) + np.abs(bias))).max())

    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * int(np.prod(self.batch, dtype=np.int64))

    def nbytes(self) -> float:
        each = self.m * self.k + self.k * self.n + self.m * self.n
        return float(each * (2 if self.dtype in ("float16", "bfloat16") else 4) * int(np.prod(self.batch, dtype=np.int64)))
