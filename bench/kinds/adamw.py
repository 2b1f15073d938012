"""AdamW over many weights: the rows of our update graph against PyTorch's optimizer step."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tileflow.graph import Graph, State, TensorType, Value
from tileflow.optim import AdamW
from tileflow.optim.base import build_update

from .base import Problem, Runner, numbers, some

RATE, DECAY, BETAS, EPSILON = 1e-3, 0.01, (0.9, 0.999), 1e-8


class AdamWStep(Problem):
    """`parameters` weights in `tensors` tensors of about the same size."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.count, self.tensors = shape["parameters"], shape["tensors"]
        self.name = f"AdamW {self.count / 1e6:g} M in {self.tensors}"

    def sizes(self) -> list[int]:
        """Elements of each tensor: they differ, as those of a network do."""
        cuts = np.linspace(0, self.count, self.tensors + 1).astype(np.int64)
        cuts[1:-1] += np.arange(1, self.tensors) % 7
        return [int(n) for n in np.diff(cuts)]

    def start(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Weights and their gradients."""
        return ([numbers(f"w{i}", (n,), scale=0.1) for i, n in enumerate(self.sizes())],
                [numbers(f"g{i}", (n,), scale=0.01) for i, n in enumerate(self.sizes())])

    def exact(self, steps: int) -> np.ndarray:
        """Some weights of the first tensor after `steps` updates with one gradient, in float64."""
        (w, *_), (g, *_) = self.start()
        at = some(len(w), 10_000)
        w, g = w[at].astype(np.float64), g[at].astype(np.float64)
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t in range(1, steps + 1):
            m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
            w = w * (1 - RATE * DECAY) - RATE * (m / (1 - BETAS[0] ** t)) / (np.sqrt(v / (1 - BETAS[1] ** t)) + EPSILON)
        return w

    def away(self, first: np.ndarray, steps: int) -> float:
        """The largest deviation of the first tensor's weights from float64, over how far the weights came."""
        exact, (start, *_) = self.exact(steps), self.start()[0]
        at = some(len(first), 10_000)
        return float(np.abs(first[at] - exact).max() / max(np.abs(exact - start[at]).max(), 1e-30))

    def nbytes(self) -> float:
        """Reads weight, gradient and two moments, writes all but the gradient."""
        return 28.0 * self.count

    def ours(self, threads: int) -> Runner:
        return _Ours(self, threads)

    def torch(self, threads: int, variant: str = "") -> Runner:
        import torch
        torch.set_num_threads(threads)
        return _Torch(self, torch, variant == "fused")


class _Ours:
    def __init__(self, problem: AdamWStep, threads: int) -> None:
        from ..native import NativeUpdate
        self._problem, self._steps = problem, 0
        weights, gradients = problem.start()
        optimizer = AdamW(lr=RATE, weight_decay=DECAY, betas=BETAS, eps=EPSILON)
        parameters = [State(f"w{i}", "parameter", Value(f"w{i}", TensorType("float32", w.shape)), group="parameter") for i, w in enumerate(weights)]
        update: Graph = build_update(optimizer, parameters, [None] * len(weights), 1.0)[0]
        initial = {f"w{i}": w for i, w in enumerate(weights)} | {f"w{i}.grad": g for i, g in enumerate(gradients)}
        self._native = NativeUpdate(update, initial, optimizer.values(0), threads)

    def run(self, times: int) -> None:
        self._steps += times
        self._native.run(times)

    def error(self) -> float:
        return self._problem.away(self._native.session["w0"], self._steps)


class _Torch:
    def __init__(self, problem: AdamWStep, torch: Any, fused: bool) -> None:
        self._problem, self._steps = problem, 0
        weights, gradients = problem.start()
        self._weights = [torch.nn.Parameter(torch.from_numpy(w)) for w in weights]
        for w, g in zip(self._weights, gradients, strict=True):
            w.grad = torch.from_numpy(g)
        settings = dict(lr=RATE, weight_decay=DECAY, betas=BETAS, eps=EPSILON) | ({"fused": True} if fused else {})
        self._optimizer = torch.optim.AdamW(self._weights, **settings)

    def run(self, times: int) -> None:
        self._steps += times
        for _ in range(times):
            self._optimizer.step()

    def error(self) -> float:
        return self._problem.away(self._weights[0].detach().numpy(), self._steps)
