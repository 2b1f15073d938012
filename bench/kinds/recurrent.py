"""Recurrent layers, forward and with their gradients."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tileflow.graph import Builder, Value
from tileflow.graph.op import OPS

from .base import Problem, beside_largest, numbers, plain, pulled

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""For each of PyTorch's gates the place of ONNX's: i, o, f, g to i, f, g, o and z, r, n to r, z, n."""


class Recurrent(Problem):
    """`layer` ("LSTM" or "GRU") over x [steps, batch, hidden] to states of `hidden` units, from zeros; `training`: and the gradients of x and of all
    weights."""

    bound_by = "flops"
    parameters = ("W", "R", "B")

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__({"weights": "each" if shape["pass"] == "training" else "once", **shape})
        self.layer, self.which, self.batch, self.hidden, self.steps = (shape[k] for k in ("layer", "pass", "batch", "hidden", "steps"))
        self.directions = 2 if shape.get("bidirectional") else 1
        self.name = f"{self.layer} {self.which} {self.steps}x{self.batch}x{self.hidden}" + " bidirectional" * (self.directions == 2)

    def arrays(self) -> dict[str, np.ndarray]:
        t, n, h, d, wide = self.steps, self.batch, self.hidden, self.directions, len(GATES[self.layer]) * self.hidden
        made = {"x": numbers("x", (t, n, h)), "W": numbers("W", (d, wide, h), scale=h ** -0.5), "R": numbers("R", (d, wide, h), scale=h ** -0.5),
                "B": numbers("B", (d, 2 * wide), scale=0.1)}
        if self.which == "training":
            made["g"] = numbers("g", (t, d, n, h))
        return made

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        direction = {"direction": "bidirectional" if self.directions == 2 else "forward", "hidden_size": self.hidden}
        op = OPS[self.layer](**direction, **({"linear_before_reset": 1} if self.layer == "GRU" else {}))
        operands = [v[k] for k in ("x", "W", "R", "B")]
        if self.which == "forward":
            return [b.emit(op, *operands)[0]]
        start = len(b.graph.nodes)
        y = op.expand(b, operands)
        assert y is not None
        return [y[0], *pulled(b, start, y[0], v["g"], operands)]

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        layer = getattr(torch.nn, self.layer)(self.hidden, self.hidden, bidirectional=self.directions == 2)
        order, h = GATES[self.layer], self.hidden

        def turned(w: Any) -> Any:
            return torch.cat([w[k * h:(k + 1) * h] for k in order])
        wide = len(order) * h
        own = []
        with torch.no_grad():
            for d in range(self.directions):
                own += [turned(t["W"][d]), turned(t["R"][d]), turned(t["B"][d][:wide]), turned(t["B"][d][wide:])]
            for p, w in zip(layer.parameters(), own, strict=True):
                p.copy_(w)
        if self.which == "forward":
            def forward() -> Any:
                with torch.inference_mode():
                    return self._as_ours(layer(t["x"])[0])
            return forward
        x, g = t["x"].requires_grad_(), t["g"].permute(0, 2, 1, 3).reshape(self.steps, self.batch, -1).contiguous()

        def training() -> Any:
            y = layer(x)[0]
            return [self._as_ours(y), *torch.autograd.grad(y, [x, *layer.parameters()], g)]
        return training

    def _as_ours(self, y: Any) -> Any:
        return y.unflatten(2, (self.directions, self.hidden)).permute(0, 2, 1, 3)

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """Of the outputs, and of x's gradient, against PyTorch's layer in float64."""
        import torch
        wide = {k: torch.from_numpy(a.astype(np.float64)) for k, a in arrays.items()}
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            exact = self.peer(torch, wide)()
        finally:
            torch.set_default_dtype(before)
        exact = exact[:2] if isinstance(exact, list) else [exact]
        return max(beside_largest(o.reshape(e.shape), plain(torch, e)) for o, e in zip(outputs, exact, strict=False))

    def flops(self) -> float:
        products = 1 if self.which == "forward" else 3
        return 4.0 * products * self.directions * self.steps * self.batch * len(GATES[self.layer]) * self.hidden ** 2
