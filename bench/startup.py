"""What a first result takes: `tileflow train` to the end of its first call, and files and executables to their first
outputs, with an empty and a warm cache.

    python -m bench startup [DIR] [--manifest FILE] [--inputs DIR] [--only IDS] [--python PROGRAM] [--runs N]

DIR: ONNX files besides the two networks and a chain of 50 quantised layers, as for `bench models`. PROGRAM: the Python
of an environment in which tileflow is installed, as from its wheel; by default this one.
"""
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from . import files, real
from .kinds.model import inputs_of
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


# ---- the verb

FIRST = """
import sys
import numpy as np
import tileflow
with np.load(sys.argv[2]) as stored:
    arrays = [stored[f"in{i}"] for i in range(len(stored.files))]
tileflow.inference_model(sys.argv[1])(*arrays)
"""
STEP = """
import sys
import numpy as np
import tileflow
with np.load(sys.argv[2]) as stored:
    x, y = stored["x"], stored["y"]
sizes = dict(zip(("micro_batch_size", "gradient_accumulation", "device_iterations"), map(int, sys.argv[3:])))
tileflow.training_model(sys.argv[1], loss="cross_entropy", optimizer="adamw", **sizes)(x, y)
"""
EXPORT = """
import sys
import numpy as np
import tileflow
with np.load(sys.argv[2]) as stored:
    x, y = stored["x"], stored["y"]
model = tileflow.training_model(sys.argv[1], loss="cross_entropy", optimizer="adamw")
model(x, y)
model.save(sys.argv[3])
tileflow.inference_model(model).compile_and_export(sys.argv[4], x)
"""
LOADED = """
import sys
import numpy as np
import tileflow
with np.load(sys.argv[2]) as stored:
    x, y = stored["x"], stored["y"]
began = __import__("time").perf_counter()
model = tileflow.load_executable(sys.argv[1])
model(*((x, y) if model.training else (x,)))
print(f"{__import__('time').perf_counter() - began:.3f}", file=sys.stderr)
"""
"""Says on standard error what loading and the first call took after the imports."""
LAYERS = 50


class Taken(NamedTuple):
    """What a process took: CPU seconds, its children's too, and seconds of clock."""

    cpu: float
    wall: float


def taken(command: Sequence[str], cache: Path) -> Taken:
    """What a process takes that has its kernels in that cache. Another Python than this one has its own tileflow, so it
    sees neither the folder that this one was started in nor its paths.

    Raises:
        RuntimeError: it failed; the message holds its own.
    """
    environment = {**os.environ, "TILEFLOW_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    elsewhere = command[0] != sys.executable
    if elsewhere:
        environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment,
                                   cwd=cache.parent if elsewhere else None)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(said.read().decode(errors="replace").strip()[-300:])
    return Taken(used.ru_utime + used.ru_stime, wall)


def subjects(chosen: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Names, and what runs them in a new process."""
    for name in ("mnist", "bert-mini"):
        model, _, data, _, _, *sizes = prepare(name, folder)
        yield f"{name}, a training step", [chosen.python, "-c", STEP, model, data, *sizes[1::2]]
        if name == "bert-mini":
            exported = [str(folder / f"{name}-{kind}.tileflow") for kind in ("training", "inference")]
            taken([chosen.python, "-c", EXPORT, model, data, *exported], folder / "cache of the export")
            for kind, path in zip(("a training step", "inference"), exported, strict=True):
                yield f"{name}, executable: {kind}", [chosen.python, "-c", LOADED, path, data]
    yield "(both imports, for comparison)", [chosen.python, "-c", "import numpy, tileflow"]
    onnx.save(files.quantised(LAYERS), folder / "quantised.onnx")
    paths = [folder / "quantised.onnx",
             *(real.files(chosen.folder, chosen.manifest, chosen.only) if chosen.folder else [])]
    for path in paths:
        stored = folder / f"{path.stem}.npz"
        arrays = inputs_of(path, {}, chosen.inputs)
        np.savez(stored, **{f"in{i}": a for i, a in enumerate(arrays.values())})
        name = f"{LAYERS} quantised layers" if path.stem == "quantised" else path.stem
        yield name, [chosen.python, "-c", FIRST, str(path), str(stored)]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench startup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="ONNX files")
    parser.add_argument("--manifest", type=Path, help="a JSON list of objects with an id, the files' names")
    parser.add_argument("--inputs", type=Path, help="a folder of arrays for them")
    parser.add_argument("--only", default="", help="only files with one of these in their names, separated by commas")
    parser.add_argument("--python", default=sys.executable, help="the Python of an environment with tileflow")
    parser.add_argument("--runs", type=int, default=3, help="warm starts; their median is told")
    chosen = parser.parse_args(list(arguments))
    chosen.folder = chosen.folder and chosen.folder.absolute()
    print(f"{'first result of':<36} {'empty cache':>12} {'warm':>8} {'warm':>9}\n{'':<36} {'CPU s':>12} {'CPU s':>8} "
          f"{'clock s':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        for i, (name, command) in enumerate(subjects(chosen, Path(scratch))):
            cache = Path(scratch) / f"cache{i}"
            try:
                empty, *warm = [taken(command, cache) for _ in range(1 + max(1, chosen.runs))]
            except RuntimeError as error:
                print(f"{name:<36} {error}")
                continue
            cpu, wall = (statistics.median(values) for values in zip(*warm, strict=True))
            print(f"{name:<36} {empty.cpu:12.2f} {cpu:8.2f} {wall:9.2f}", flush=True)
    if chosen.folder is None:
        print("No folder of models was given: python -m bench startup DIR measures its files, too.")
