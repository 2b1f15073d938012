"""Scaled dot-product attention, forward and with its gradients."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tileflow.graph import Builder, Value
from tileflow.graph.op import OPS

from .base import Problem, beside_largest, numbers


class Attention(Problem):
    """softmax(q k' / sqrt(size) + mask) v per head; `training`: and the gradients of q, k and v."""

    needs = ("Attention",)
    bound_by = "flops"

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.which, self.batch, self.heads, self.queries, self.size = (shape[x] for x in ("pass", "batch", "heads", "queries", "size"))
        self.keys, self.causal, self.masked = shape.get("keys", self.queries), shape.get("causal", False), shape.get("mask", False)
        self.name = "".join((self.which, f" {self.batch}x{self.heads}x{self.queries}", f"x{self.keys}" * (self.keys != self.queries), f"x{self.size}",
                             " causal" * self.causal, " mask" * self.masked))

    def arrays(self) -> dict[str, np.ndarray]:
        lead = (self.batch, self.heads)
        made = {name: numbers(name, (*lead, n, self.size)) for name, n in (("q", self.queries), ("k", self.keys), ("v", self.keys))}
        if self.masked:
            seen = np.random.default_rng(0).random((self.batch, 1, self.queries, self.keys)) < 0.9
            made["mask"] = np.where(seen, 0, -1e4).astype(np.float32)
        if self.which == "training":
            made["g"] = numbers("g", (*lead, self.queries, self.size))
        return made

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        operator = OPS["Attention"](is_causal=int(self.causal))
        operands = [v["q"], v["k"], v["v"], *([v["mask"]] if self.masked else [])]
        made = list(b.emit(operator, *operands))
        if self.which == "forward":
            return made[:1]
        gradients = operator.vjp(b, [v["g"], *[None] * (len(made) - 1)], operands, made)[:3]
        return [made[0], *(g for g in gradients if g is not None)]

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        attend = torch.nn.functional.scaled_dot_product_attention
        mask = t.get("mask")
        if self.which == "forward":
            def forward() -> Any:
                with torch.inference_mode():
                    return attend(t["q"], t["k"], t["v"], attn_mask=mask, is_causal=self.causal)
            return forward
        operands = [t[name].requires_grad_() for name in "qkv"]

        def training() -> Any:
            y = attend(*operands, attn_mask=mask, is_causal=self.causal)
            return [y, *torch.autograd.grad(y, operands, t["g"])]
        return training

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """Of the first and the last head."""
        worst = 0.0
        for at in ((0, 0), (self.batch - 1, self.heads - 1)):
            q, k, v = (arrays[name][at].astype(np.float64) for name in "qkv")
            scores = q @ k.T / math.sqrt(self.size)
            if self.masked:
                scores = scores + arrays["mask"][at[0], 0]
            if self.causal:
                scores = np.where(np.tri(self.queries, self.keys, dtype=bool), scores, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            exact = [p @ v]
            if self.which == "training":
                g = arrays["g"][at].astype(np.float64)
                dp = g @ v.T
                ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(self.size)
                exact += [ds @ k, ds.T @ q, p.T @ g]
            worst = max(worst, *(beside_largest(o[at], e) for o, e in zip(outputs, exact, strict=True)))
        return worst

    def flops(self) -> float:
        products = 2 if self.which == "forward" else 7
        share = 0.5 if self.causal else 1.0
        return 2.0 * products * share * self.batch * self.heads * self.queries * self.keys * self.size
