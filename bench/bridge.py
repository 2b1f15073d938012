"""What the bridge to PyTorch adds to a training step: a module's call beside the same compiled model's own call, in
turns of several steps each, as a loop makes them: one call finds in caches what the one before has left there."""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .report import Figures

LONG = 5e-3
"""Seconds from which on the ratio is promised."""
MOST_RATIO, MOST_ADDED = 1.05, 100e-6
"""For such steps, and what shorter ones may take more, in seconds."""
STEPS = 10
"""Of a turn."""
SHAPES = ((1, 16, 4), (8, 128, 64), (8, 256, 512), (24, 256, 512))
"""Layers, width and rows of a residual network of linear layers and layer norms, each with four parameters."""


@dataclass
class Bridge(Figures):
    """One network: seconds of a step through the bridge and of the engine's own call."""

    case: str
    tensors: int
    threads: int
    bridge: float
    engine: float
    ratio: float
    added: float

    def to_text(self) -> str:
        most = f"at most {MOST_RATIO}" if self.engine >= LONG else f"at most {1e6 * MOST_ADDED:.0f} us more"
        return (f"{self.case:<40} {self.tensors:>4} tensors, {self.threads} threads: {1e3 * self.bridge:.3f} of "
                f"{1e3 * self.engine:.3f} ms, {self.ratio:.3f} times, {1e6 * self.added:+.0f} us ({most})")


def run(threads: int | None, runs: int) -> list[Bridge]:
    """All networks; `runs` turns on either side, the median step of each. Without PyTorch there are none."""
    try:
        import torch

        import tileflow.torch
    except ImportError:
        return []
    found = []
    for layers, width, rows in SHAPES:
        torch.manual_seed(0)
        net = _network(torch, layers, width)
        x, y = torch.randn(rows, width), torch.randint(0, 10, (rows,))
        model = tileflow.torch.training_model(net, tileflow.Options(threads=threads or 1),
                                              torch.optim.AdamW(net.parameters(), lr=1e-4))
        model(x, y)
        engine, arrays = model.compiled, (x.numpy(), y.numpy())
        pairs = [(_seconds(model, x, y), _seconds(engine, *arrays)) for _ in range(runs + 1)][1:]
        ours, own = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        found.append(Bridge(f"{layers} layers of {width}, {rows} rows", sum(1 for _ in net.parameters()), threads or 1,
                            ours, own,
                            statistics.median(a / b for a, b in pairs), statistics.median(a - b for a, b in pairs)))
        model.destroy()
    return found


def _network(torch: Any, layers: int, width: int) -> Any:
    class Residual(torch.nn.Module):                       # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.LayerNorm(width),
                                                                  torch.nn.Linear(width, width), torch.nn.ReLU())
                                              for _ in range(layers))
            self.head = torch.nn.Linear(width, 10)

        def forward(self, x: Any, y: Any) -> Any:
            for layer in self.layers:
                x = x + layer(x)
            z = self.head(x)
            return z, torch.nn.functional.cross_entropy(z, y)
    return Residual()


def _seconds(call: Callable[..., Any], *arguments: Any) -> float:
    """The median step of a turn."""
    found = []
    for _ in range(STEPS):
        began = time.perf_counter()
        call(*arguments)
        found.append(time.perf_counter() - began)
    return statistics.median(found)
