"""Seconds from starting `tileflow train` to the end of its first call, with an empty and with a warm compile cache."""
from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from . import files
from .kinds.network import Network
from .models import initial_weights, tutorial_cnn
from .report import Result

MNIST = ["--micro-batch-size", "40", "--gradient-accumulation", "10", "--device-iterations", "10"]
BERT = ["--micro-batch-size", "32"]


def prepare(name: str, folder: Path) -> list[str]:
    """Write a model and the data of one call; the arguments of `tileflow train`."""
    if name == "mnist":
        model, arguments = tutorial_cnn(initial_weights(0)), MNIST
        x, y = Network({"network": "mnist", "pass": "training", "batch": 40}).data(4000)
    else:
        model, arguments = files.bert_mini(), BERT
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 30522, (32, 128)), rng.integers(0, 2, 32)
    onnx.save(model, folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", x=x, y=y)
    return [str(folder / f"{name}.onnx"), "--data", str(folder / f"{name}.npz"), "--epochs", "1", *arguments]


def first_step(arguments: list[str], cache: Path, out: Path) -> float:
    """Seconds from the start of a process that trains an epoch of one call to the line that the epoch ends with.

    Raises:
        RuntimeError: it failed; the message holds its own.
    """
    command = [sys.executable, "-m", "tileflow", "train", *arguments, "--out", str(out)]
    environment = {**os.environ, "TILEFLOW_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)                   # installed packages have their bytecode on disk
    began, ended = time.perf_counter(), None
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if ended is None and line.startswith(b"epoch"):
                ended = time.perf_counter()
        if process.wait() or ended is None:
            said.seek(0)
            raise RuntimeError(f"tileflow train failed: {said.read().decode(errors='replace').strip()[-300:]}")
    return ended - began


def run(threads: int | None, runs: int) -> Iterator[Result]:
    """Medians for MNIST and BERT-mini."""
    from tileflow.kernels.isa import cpu
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("mnist", "bert-mini"):
            arguments = prepare(name, folder)
            if threads:
                arguments += ["--threads", str(threads)]
            times: dict[str, list[float]] = {"empty": [], "warm": []}
            note = ""
            try:
                for i in range(max(1, min(3, runs))):
                    for state, found in times.items():
                        found.append(first_step(arguments, folder / f"{name}.cache{i}", folder / f"{name}.{i}.{state}"))
            except RuntimeError as error:
                note = f"not supported yet: {error}"
            for state, found in times.items():
                seconds = statistics.median(found) if found else None
                yield Result("startup", "none", threads or os.cpu_count() or 1, cpu.current().name, seconds, None, None,
                             row=f"startup-{name}-{state}", shape=f"{name}, {state} cache", note=note)
