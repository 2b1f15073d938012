"""`python -m bench busy --models DIR`: two threads beside one where the machine is not ours alone.

Inference of four real models and the MNIST training step, each on one thread and on two, ours and a peer's (ONNX Runtime, PyTorch): beside busy
processes of equal priority, and with a quota of the processors' time as containers have. Everything is measured in turns, in wall-clock time:
every round goes through the loads, every load through the sides; one thread and two do the same work in a turn. The goal: ours on two threads takes
at most `SLOWDOWN` times ours on one, and loses no more beside its own idle time than the peer loses beside its. (Under a quota of one processor no
two threads lose less than they gained by being two: where ours gained more than the peer's, that half cannot be met.)

    python -m bench busy --models DIR --only mtcnn_onet --loads 4      # a piece: idle is always measured
    python -m bench busy --models DIR --loads quota-0.5 --runs 5

Quotas are control groups (version 1 or 2) where this process may make some. Elsewhere a thread here stops a side for the rest of each tenth of
a second once it has used its share, which is what the kernel does.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tileflow.kernels.machine import limits

from .cases import cases
from .kinds import problem
from .side import Missing, Side

MODELS: dict[str, dict[str, Any]] = {
    "ppocr_cls": {"x": (1, 3, 48, 192)},
    "mtcnn_onet": {"input_3": (1, 48, 48, 3)},
    "minilm_l3_fp32": {"input_ids": (4, 11), "token_type_ids": (4, 11), "attention_mask": (4, 11)},
    "speech_embedding": {"input_1": (16, 76, 32, 1)},
}
"""Files (`<name>.onnx`) and the sizes of their inputs: a text-direction and a face classifier of about a millisecond, an encoder, an audio CNN."""
LOADS = ("idle", "1", "2", "4", "quota-1.0", "quota-0.5")
"""Nothing else; that many busy processes; that share of a processor's time for the side."""
SLOWDOWN = 1.05
TURN = 0.2
"""Seconds of a turn on one idle thread: many time slices."""
QUOTA_TURN = 1.5
"""The same under a quota, which ends a turn some whole periods after it began: of half a processor that takes thirty, and one more or less changes
little."""
RUNS = 15
"""A thread beside two others on two processors has one to itself, or not, for longer than a turn: turns differ by half, medians of few by a tenth."""
PERIOD = 0.1
"""Seconds after which a quota begins anew."""


@dataclass
class Busy:
    """Medians of one subject under one load, seconds by (side, threads)."""

    subject: str
    load: str
    peer: str
    ours_1: float
    ours_2: float
    peer_1: float | None
    peer_2: float | None
    ours_2_idle: float
    peer_2_idle: float | None

    @property
    def slowdown(self) -> float:
        """Two threads' time over one's."""
        return self.ours_2 / self.ours_1

    @property
    def loss(self) -> float:
        """Two threads' time over theirs on an idle machine."""
        return self.ours_2 / self.ours_2_idle

    @property
    def peer_loss(self) -> float | None:
        return None if self.peer_2 is None or not self.peer_2_idle else self.peer_2 / self.peer_2_idle

    @property
    def met(self) -> bool:
        return self.slowdown <= SLOWDOWN and (self.peer_loss is None or self.loss <= self.peer_loss)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "slowdown": self.slowdown, "loss": self.loss, "peer_loss": self.peer_loss, "met": self.met}

    def to_text(self) -> str:
        theirs = "not installed" if self.peer_1 is None or self.peer_2 is None else \
            f"{1e3 * self.peer_1:9.3f} {1e3 * self.peer_2:9.3f} {self.peer_2 / self.peer_1:6.2f} {self.peer_loss:6.2f}"
        return (f"{self.subject:<18} {self.load:<10} {1e3 * self.ours_1:9.3f} {1e3 * self.ours_2:9.3f} {self.slowdown:6.2f} {self.loss:6.2f}   "
                f"{self.peer:<12} {theirs}   {'met' if self.met else 'missed'}")


HEAD = (f"{'':<18} {'load':<10} {'ours 1':>9} {'ours 2':>9} {'2 / 1':>6} {'loss':>6}   {'peer':<12} {'1':>9} {'2':>9} {'2 / 1':>6} {'loss':>6}\n"
        "milliseconds, medians; loss: two threads beside their own idle time")


# ---- loads ----------------------------------------------------------------------------------------------------------------------

BUSY = """import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000): pass"""
"""Busy until it is stopped, or its parent was."""


class Neighbours:
    """Busy processes of equal priority, stopped when they are not wanted."""

    def __init__(self, most: int) -> None:
        self._processes = [subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(most)]
        self.run(0)

    def run(self, count: int) -> None:
        """Let so many be busy."""
        for i, process in enumerate(self._processes):
            process.send_signal(signal.SIGCONT if i < count else signal.SIGSTOP)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


class Group:
    """A control group of its own for a process, below the one that this process is in."""

    def __init__(self, pid: int) -> None:
        """Raises OSError where none can be made."""
        parent = next(iter(limits.groups(limits.ROOT, "cpu")), None)
        if parent is None:
            raise FileNotFoundError("no control groups")
        self._folder, self._v2 = parent.folder / f"tileflow-busy-{pid}", parent.v2
        self._folder.mkdir()
        try:
            if self._v2 and "cpu" not in (self._folder / "cgroup.controllers").read_text().split():
                raise PermissionError("processors' time cannot be limited here")
            (self._folder / "cgroup.procs").write_text(f"{pid}\n", encoding="ascii")
            self.limit(None)
        except OSError:
            self._folder.rmdir()
            raise

    def limit(self, share: float | None) -> None:
        period = int(1e6 * PERIOD)
        used = None if share is None else int(share * period)
        if self._v2:
            (self._folder / "cpu.max").write_text(f"{'max' if used is None else used} {period}\n", encoding="ascii")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(f"{period}\n", encoding="ascii")
            (self._folder / "cpu.cfs_quota_us").write_text(f"{-1 if used is None else used}\n", encoding="ascii")

    def close(self) -> None:
        """After the process has ended."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class Stops:
    """Without control groups: stop the process for the rest of each period in which it has used its share."""

    def __init__(self, pid: int) -> None:
        self._pid, self._clock = pid, ((~pid) << 3) | 2                 # Linux: the clock of another process's own time
        self._share: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tileflow-busy", daemon=True)
        self._thread.start()

    def limit(self, share: float | None) -> None:
        self._share = share

    def _watch(self) -> None:
        while not self._over.is_set():
            share, end = self._share, time.monotonic() + PERIOD
            try:
                before, stopped = time.clock_gettime(self._clock), False
                while time.monotonic() < end:
                    if share is not None and not stopped and time.clock_gettime(self._clock) - before >= share * PERIOD:
                        os.kill(self._pid, signal.SIGSTOP)
                        stopped = True
                    time.sleep(0.001 if share is not None and not stopped else max(0.0, end - time.monotonic()))
                if stopped:
                    os.kill(self._pid, signal.SIGCONT)
            except OSError:                                             # it has ended
                return

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def quota_of(pid: int) -> Group | Stops:
    """What limits a process's share of the processors."""
    try:
        return Group(pid)
    except OSError:
        return Stops(pid)


# ---- measuring ------------------------------------------------------------------------------------------------------------------

@dataclass
class Runner:
    """A side that is prepared for a subject, and what one repetition takes it when idle."""

    side: Side
    quota: Group | Stops | None
    once: float = 1.0

    def seconds(self, repeat: int) -> float:
        """Wall-clock seconds of one of so many repetitions."""
        return self.side.seconds(repeat, wall=True)

    def close(self) -> None:
        self.side.close()
        if self.quota is not None:
            self.quota.close()


def subjects(folder: Path, only: str) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """(name, peer, kind, shape) of what is measured."""
    for name, sizes in MODELS.items():
        if only in name:
            file = folder / f"{name}.onnx"
            if not file.exists():
                raise SystemExit(f"There is no {file}; give the folder that has {', '.join(f'{n}.onnx' for n in MODELS)} with --models.")
            yield name, "onnxruntime", "model", {"file": str(file.resolve()), "inputs": sizes}
    row = cases().row("mnist")
    if only in "mnist-step":                                            # one update a call: beside busy processes PyTorch's takes seconds
        yield "mnist-step", row.peer, row.kind, {**row.shapes[0], "updates": 1}


def prepared(name: str, threads: int, kind: str, shape: Mapping[str, Any], quotas: bool) -> Runner | None:
    """A side ready to be timed; None where the peer is not installed."""
    try:
        side = Side(name, threads)
    except Missing as missing:
        print(f"{missing}. Our side is measured alone.", file=sys.stderr)
        return None
    answer = side.ask(do="prepare", kind=kind, shape=dict(shape))
    if "unsupported" in answer:
        side.close()
        raise SystemExit(f"{problem(kind, shape).name}: {name}: {answer['unsupported']}")
    runner = Runner(side, quota_of(side.pid) if quotas else None)
    for _ in range(3):                                                  # the first calls are slow: not theirs is the time of a turn
        runner.once = max(runner.seconds(max(1, round(TURN / runner.once))), 1e-6)
    return runner


def measure(subject: tuple[str, str, str, Mapping[str, Any]], loads: Sequence[str], runs: int) -> list[Busy]:
    """All loads of one subject, idle first."""
    name, peer, kind, shape = subject
    quotas = any(load.startswith("quota") for load in loads)
    counts = [int(load) for load in loads if load.isdigit()]
    runners: dict[tuple[str, int], Runner] = {}
    neighbours = Neighbours(max(counts, default=0))
    try:
        for side in ("ours", peer):
            for threads in (1, 2):
                if (made := prepared(side, threads, kind, shape, quotas)) is not None:
                    runners[side, threads] = made
        times: dict[tuple[str, str, int], list[float]] = {}
        for _ in range(runs):
            for load in loads:
                neighbours.run(int(load) if load.isdigit() else 0)
                share = float(load.removeprefix("quota-")) if load.startswith("quota") else None
                for (side, threads), runner in runners.items():
                    if runner.quota is not None:
                        runner.quota.limit(share)
                    repeat = max(1, round((TURN if share is None else QUOTA_TURN) / runners[side, 1].once))
                    times.setdefault((load, side, threads), []).append(runner.seconds(repeat))
    finally:
        neighbours.close()
        for runner in runners.values():
            runner.close()
    medians = {at: statistics.median(found) for at, found in times.items()}
    return [Busy(name, load, peer, medians[load, "ours", 1], medians[load, "ours", 2], medians.get((load, peer, 1)), medians.get((load, peer, 2)),
                 medians["idle", "ours", 2], medians.get(("idle", peer, 2))) for load in loads]


def main(arguments: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench busy", description="Two threads beside one on a machine that others use too.")
    parser.add_argument("--models", type=Path, required=True, metavar="DIR", help=f"the folder of {', '.join(f'{name}.onnx' for name in MODELS)}")
    parser.add_argument("--only", default="", metavar="TEXT", help=f"subjects with this in their name: {', '.join(MODELS)}, mnist-step")
    parser.add_argument("--loads", default=",".join(LOADS[1:]), help="besides idle, separated by commas; numbers are busy processes")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"rounds (default: {RUNS}); medians are compared")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    chosen = parser.parse_args(arguments)
    loads = [LOADS[0], *(load for load in chosen.loads.split(",") if load and load != LOADS[0])]
    if unknown := [load for load in loads if load not in LOADS]:
        parser.error(f"no load is called {', '.join(unknown)}; the loads are {', '.join(LOADS)}")
    results = []
    out = sys.stderr if chosen.json else sys.stdout
    print(HEAD, file=out)
    for subject in subjects(chosen.models, chosen.only):
        for result in measure(subject, loads, chosen.runs):
            results.append(result)
            print(result.to_text(), file=out, flush=True)
    if chosen.json:
        print(json.dumps({"results": [r.to_dict() for r in results]}))
    else:
        print(f"{sum(r.met for r in results)} of {len(results)} met: 2 / 1 at most {SLOWDOWN}, and no greater loss than the peer's.")
