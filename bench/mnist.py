"""The tutorial's training step (batch 40, accumulation 10, 10 updates a call, AdamW) against eager PyTorch; time to the first step.

The two sides run in processes of their own, one call each in turn: two OpenMP pools in one process disturb each other.
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

import numpy as np
import onnx

from .models import initial_weights, tutorial_cnn
from .report import Result, compare

MICRO_BATCH, ACCUMULATION, ITERATIONS = 40, 10, 10
ROWS = MICRO_BATCH * ACCUMULATION * ITERATIONS


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of a call, standardised noise with a few blank borders as MNIST has them, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, 1, 28, 28)).astype(np.float32)
    x[:, :, :4] = x[:, :, -4:] = -0.4242
    return x, rng.integers(0, 10, ROWS)


def serve_ours(threads: int) -> None:
    """Answer each line on stdin with the seconds of one call."""
    import tileflow
    from tileflow.importers.onnx import wrap_model
    x, y = rows()
    model = tileflow.training_model(wrap_model(tutorial_cnn(initial_weights(0))), optimizer=tileflow.optim.AdamW(lr=1e-3), threads=threads,
                                    gradient_accumulation=ACCUMULATION, device_iterations=ITERATIONS)
    _serve(lambda: model(x, y))


def serve_torch(threads: int) -> None:
    """The same in PyTorch."""
    import torch

    from .peer_torch import call, network
    torch.set_num_threads(threads)
    x, y = rows()
    net = network(initial_weights(0))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    _serve(lambda: call(net, optimizer, x, y, MICRO_BATCH, ACCUMULATION))


def _serve(step: Any) -> None:
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, flush=True)


class Side:
    """One side's process."""

    def __init__(self, name: str, threads: int) -> None:
        command = [sys.executable, "-c", f"from bench.mnist import serve_{name}; serve_{name}({threads})"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._out.readline().strip() == "ready", f"the {name} side did not start"

    @property
    def _out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def once(self) -> float:
        """Seconds of one call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._out.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def training_step(threads: int, runs: int) -> Result:
    """Our call against PyTorch's, in turn."""
    from tileflow.kernels import cpu
    sides = [Side("ours", threads), Side("torch", threads)]
    try:
        times = [[side.once() for side in sides] for _ in range(runs)]
    finally:
        for side in sides:
            side.close()
    ours, theirs = zip(*times, strict=True)
    median = sorted(ours)[len(ours) // 2]
    return compare("mnist training call", "torch eager", threads, cpu.current().label, ours, theirs, images_per_s=ROWS / median,
                   rows=ROWS, micro_batch=MICRO_BATCH, gradient_accumulation=ACCUMULATION, device_iterations=ITERATIONS)


def first_step(runs: int) -> list[Result]:
    """Seconds from starting `tileflow train` to the end of its first call, with an empty and with a warm compile cache."""
    from tileflow.kernels import cpu
    x, y = rows()
    results = {"mnist first step, empty cache": [], "mnist first step, warm cache": []}     # type: dict[str, list[float]]
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(tutorial_cnn(initial_weights(0)), f"{folder}/model.onnx")
        np.savez(f"{folder}/data.npz", x=x, y=y)
        for run in range(runs):
            environment = {**os.environ, "TILEFLOW_CACHE_DIR": f"{folder}/cache{run}"}
            base = [sys.executable, "-m", "tileflow", "train", f"{folder}/model.onnx", "--data", f"{folder}/data.npz", "--epochs", "1",
                       "--micro-batch-size", str(MICRO_BATCH), "--gradient-accumulation", str(ACCUMULATION),
                       "--device-iterations", str(ITERATIONS), "--out"]
            for k, times in enumerate(results.values()):
                command = [*base, f"{folder}/run{run}.{k}"]
                began = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True, env=environment)
                times.append(time.perf_counter() - began)
    return [compare(case, "none", os.cpu_count() or 1, cpu.current().label, times, None) for case, times in results.items()]


def run(threads: int | None, runs: int) -> list[Result]:
    """All results of this case."""
    counts = [threads] if threads else [os.cpu_count() or 1]
    return [*(training_step(n, runs) for n in counts), *first_step(max(1, min(3, runs)))]
