"""Mutated models, each judged in a forked process of its own: one sentence or the right answer, in little time and memory.

    python tests/oracle/hostile_models.py 1000                                # seeds 0 to 999
    python tests/oracle/hostile_models.py 1 --first 77 --keep damaged         # one again, its file kept in `damaged`

The models are those of `hostile.py`, damaged as there. A model that is taken is planned for inference and for training, and computed by the
operators' references, so nothing is compiled; where ONNX Runtime is installed and takes the model as well, both must give the same numbers.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from evaluate import evaluate
from hostile import CUT, MODELS, Refused, check_size, damaged_model, judge, use_model, use_pieces

SECONDS, MEGABYTES = 1.0, 300
"""CPU time of a case, and the most resident memory that its process may have, the interpreter and all modules included."""
CLOSE = 1e-4
"""Relative to the largest number, beside ONNX Runtime's."""
MOST = 30
"""CPU seconds after which the process of a case is ended."""
PLACES = (("model", MODELS, False), ("pieces", CUT, True))


@dataclass
class Found:
    """What came of a case. how: "refused", "answered" (nothing to compare with), "right" or "wrong"."""

    seed: int
    how: str
    said: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0

    def __bool__(self) -> bool:
        """All is well."""
        return self.how != "wrong" and self.seconds <= SECONDS and self.megabytes <= MEGABYTES


def write(seed: int, folder: Path) -> tuple[Path, bool]:
    """The file of a case, and whether it runs in pieces."""
    rng = random.Random(f"hostile model {seed}")
    _, makers, pieces = PLACES[seed % 3 // 2]
    path = folder / f"{seed}.onnx"
    path.write_bytes(damaged_model(rng.choice(makers)(), rng).SerializeToString())
    return path, pieces


def act(path: Path, pieces: bool) -> tuple[dict[str, np.ndarray], list[Any]] | None:
    """Everything that is done with a model; its inputs and outputs, if it was computed."""
    if pieces:
        return use_pieces(path)
    use_model(path)
    from tileflow.importers.onnx import import_graph, load_model
    imported = import_graph(load_model(path), batch=2)
    rng = np.random.default_rng(0)
    data = {v.name: rng.uniform(-2, 2, v.type.shape).astype(v.type.numpy) for v in imported.graph.inputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            weights = {s.input.name: imported.weights[s.name] for s in imported.graph.states}
            values = evaluate(check_size(imported.graph), {**weights, **data})
        except (Refused, ValueError, IndexError, OverflowError, ZeroDivisionError):   # indices out of range: kernels have sentences for them
            return None
    return data, [values[v.name] for v in imported.graph.outputs]


def compare(path: Path, data: dict[str, np.ndarray], ours: list[Any]) -> tuple[str, str]:
    """`how` and `said` of outputs beside ONNX Runtime's."""
    try:
        import onnxruntime
        onnxruntime.set_default_logger_severity(4)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL      # its rewrites of 4-bit products round
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        theirs = session.run(None, {p.name: data[p.name] for p in session.get_inputs()})
    except Exception:                                                  # it is not installed, or refuses what is taken here
        return "answered", ""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, np.ndarray) or not isinstance(a, np.ndarray) or a.dtype.kind == "V":   # a list; a type that NumPy has not
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return "wrong", f"output {i} is {a.dtype}{a.shape}, and ONNX Runtime's {b.dtype}{b.shape}"
        if a.dtype.kind == "f":
            if not np.allclose(a, b, CLOSE, CLOSE * float(np.abs(b[np.isfinite(b)]).max(initial=1e-3)), equal_nan=True):
                return "wrong", f"output {i} is {a.ravel()[:4]}, and ONNX Runtime's {b.ravel()[:4]}"
        elif not np.array_equal(a, b):
            return "wrong", f"output {i} is {a.ravel()[:4]}, and ONNX Runtime's {b.ravel()[:4]}"
    return "right", ""


def judged(seed: int, folder: Path) -> Found:
    """A case, in this process."""
    path, pieces = write(seed, folder)
    kept: list[Any] = []
    began = time.process_time()
    said = judge(lambda: kept.append(act(path, pieces)))
    found = Found(seed, "wrong" if said else "refused" if not kept else "answered", said or "", time.process_time() - began,
                  resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if kept and kept[0] is not None and not said:
        compared, _, _ = apart(lambda: compare(path, *kept[0]))        # ONNX Runtime may crash: that says nothing of ours
        found.how, found.said = compared or ("answered", "")
    return found


def apart(work: Callable[[], Any]) -> tuple[Any, int, resource.struct_rusage]:
    """What work gives, as JSON has it, in a forked process that may not go on for ever; None where it failed. Its status and what it used."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST, MOST))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)                   # checkers' warnings
        try:
            os.write(writer, json.dumps(work()).encode())
            os._exit(0)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status, used = os.wait4(child, 0)
    return json.loads(said) if said and not status else None, status, used


def case(seed: int, folder: Path) -> Found:
    """A case in a process of its own."""
    said, status, used = apart(lambda: asdict(judged(seed, folder)))
    if said is None:
        return Found(seed, "wrong", f"its process ended with status {status}", used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
    return Found(**said)


def warm(folder: Path) -> None:
    """Import what cases need: the undamaged models go through here."""
    for _, makers, pieces in PLACES:
        for make in dict.fromkeys(makers):
            path = folder / "whole.onnx"
            path.write_bytes(make().SerializeToString())
            if said := judge(lambda path=path, pieces=pieces: act(path, pieces)):   # type: ignore[misc]
                raise RuntimeError(f"{make.__name__}: {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutated models: each ends in one sentence or the right answer, in little time and memory.")
    parser.add_argument("count", type=int, help="how many models")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--keep", type=Path, help="folder for the files of what went wrong")
    chosen = parser.parse_args()
    counted: Counter[str] = Counter()
    slowest, largest, bad = 0.0, 0.0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm(folder)
        for seed in range(chosen.first, chosen.first + chosen.count):
            found = case(seed, folder)
            counted[found.how] += 1
            slowest, largest = max(slowest, found.seconds), max(largest, found.megabytes)
            if not found:
                bad += 1
                sys.stdout.write(f"==== {seed}: {found.how}, {found.seconds:.2f} s, {found.megabytes:.0f} MB: {found.said}\n")
            path = folder / f"{seed}.onnx"
            if chosen.keep and path.exists() and (not found or chosen.count == 1):
                chosen.keep.mkdir(parents=True, exist_ok=True)
                (chosen.keep / path.name).write_bytes(path.read_bytes())
            path.unlink(missing_ok=True)
    kinds = ", ".join(f"{n} {how}" for how, n in sorted(counted.items()))
    sys.stdout.write(f"{sum(counted.values())} models: {kinds}; the longest took {slowest:.2f} CPU s, "
                     f"the largest {math.ceil(largest)} MB; {bad} not as they should be\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
