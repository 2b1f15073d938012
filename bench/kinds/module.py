"""Training steps of PyTorch's own modules: through the bridge on our side, by eager PyTorch, its autocast or
torch.compile on the other."""
from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .base import Problem, Runner, Unsupported

CHECKED = 3
"""Steps whose losses are compared with those of float64."""
TRIED = 3
"""Steps by which PyTorch's faster form is found."""
RATE = 1e-3


class Module(Problem):
    """A step of AdamW on fixed rows."""

    bound_by = "flops"

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.network, self.precision = shape["network"], shape.get("precision", "32")
        self.name = self.network + ("" if self.precision == "32" else f" {self.precision}")

    def made(self) -> tuple[Any, tuple[np.ndarray, ...]]:
        """The module, always with the same weights, and its rows: the last are labels, and it returns scores and the
        loss."""
        import torch

        from .. import peer_modules
        torch.manual_seed(0)
        return peer_modules.NETWORKS[self.network](np.random.default_rng(0))

    def flops(self) -> float:
        """Of products and convolutions, forwards and backwards, as PyTorch counts them where it counts them rightly."""
        try:
            import torch
            from torch.utils.flop_counter import FlopCounterMode
        except ImportError:
            return 0.0
        net, rows = self.made()
        # oneDNN's LSTM is one operator, which is not counted; leaving it out has PyTorch warn of GPUs.
        with (warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False),
              FlopCounterMode(display=False, custom_mapping=_counts()) as counter):
            net(*map(torch.from_numpy, rows))[1].backward()
        return float(counter.get_total_flops())

    def ours(self, threads: int) -> Runner:
        try:
            return _Ours(self, threads)
        except ImportError as error:
            raise Unsupported(str(error)) from None

    def torch(self, threads: int, variant: str = "") -> Runner:
        import torch
        torch.set_num_threads(threads)
        return _Torch(self, variant)


class _Checked:
    """A side whose first losses are kept; `_call` is a step that returns the loss."""

    def __init__(self, problem: Module, call: Callable[[], float]) -> None:
        self._problem, self._call = problem, call
        self._losses = [call() for _ in range(CHECKED)]

    def run(self, times: int) -> None:
        for _ in range(times):
            self._call()

    def error(self) -> float | None:
        """The largest relative deviation of the first losses from those of float64."""
        step = torch_step(self._problem, "float64")
        exact = np.array([step() for _ in range(CHECKED)])
        return float(np.abs((np.array(self._losses) - exact) / exact).max())


class _Ours(_Checked):
    def __init__(self, problem: Module, threads: int) -> None:
        import torch

        import tileflow
        import tileflow.torch as bridge
        net, rows = problem.made()
        tensors = [torch.from_numpy(a) for a in rows]
        options = tileflow.Options(threads=threads, precision=problem.precision)
        model = bridge.training_model(net, options, torch.optim.AdamW(net.parameters(), lr=RATE))
        super().__init__(problem, lambda: float(model(*tensors)[1]))


class _Torch(_Checked):
    """Eager PyTorch in float32; "fastest": in float32 or under bfloat16 autocast, whichever takes less time here;
    "compile": the faster of both under torch.compile."""

    def __init__(self, problem: Module, variant: str) -> None:
        compiled, form = variant == "compile", "float32"
        if variant:
            form = min(("float32", "autocast"), key=lambda name: _least(torch_step(problem, name, compiled)))
        super().__init__(problem, torch_step(problem, form, compiled))


def _counts() -> dict[Any, Callable[..., int]]:
    """What PyTorch's counter leaves out on a CPU (fused attention) or counts `groups` times (gradients of grouped
    convolutions). Of causal attention the half that is needed counts, and scores that are computed again do not."""
    import torch
    aten = torch.ops.aten

    def attention(q: Any, k: Any, v: Any, *rest: Any, products: int = 1, **named: Any) -> int:
        (batch, heads, queries, size), (keys, width) = q, (k[2], v[3])
        causal = named.get("is_causal", any(a is True for a in rest))
        return products * 2 * batch * heads * queries * keys * (size + width) // (2 if causal else 1)

    def attention_gradient(_g: Any, q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> int:
        return attention(q, k, v, *rest, products=2, **named)

    def convolution_gradient(g: Any, x: Any, w: Any, _bias: Any, _stride: Any, _padding: Any, _dilation: Any,
                             transposed: bool, _output_padding: Any, _groups: Any, wanted: Any, **_: Any) -> int:
        pixels = math.prod((x if transposed else g)[2:])
        return 2 * (bool(wanted[0]) + bool(wanted[1])) * g[0] * pixels * math.prod(w)

    return {aten._scaled_dot_product_flash_attention_for_cpu: attention,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_gradient,
            aten.convolution_backward: convolution_gradient}


def _least(step: Callable[[], float]) -> float:
    """The least time of a step, the first of which is not counted."""
    taken = []
    for _ in range(TRIED + 1):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return min(taken[1:])


def torch_step(problem: Module, form: str, compiled: bool = False) -> Callable[[], float]:
    """PyTorch's training step; form: "float32", "float64" or "autocast" to bfloat16."""
    import torch
    net, rows = problem.made()
    if form == "float64":
        net, rows = net.double(), tuple(a.astype(np.float64) if a.dtype.kind == "f" else a for a in rows)
    tensors, optimizer = [torch.from_numpy(a) for a in rows], torch.optim.AdamW(net.parameters(), lr=RATE)
    forward = torch.compile(net) if compiled else net

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
            loss = forward(*tensors)[1]
        loss.backward()
        optimizer.step()
        return float(loss.detach())
    return step
