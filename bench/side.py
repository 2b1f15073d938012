"""A side of a comparison in a process of its own: two pools of threads in one process disturb each other.

    python -m bench.side '{"side": "torch", "threads": 1}'

reads requests, one JSON object a line, and answers each with one line:
    {"do": "prepare", "kind": ..., "shape": {...}}    {"ok": true} or {"unsupported": "a sentence"}
    {"do": "time", "times": 3, "wall": false}         {"seconds": of all three}
    {"do": "error"}, {"do": "peak"}, {"do": "memory"}, {"do": "ask", "what": "memory"}
Only one side works at a time, so that an answer is also a turn. The side "ours 32" is our own in that precision.
"""
from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from typing import IO, Any

from . import ROOT

SETTLE = {"ours": 0.02, "torch": 0.02, "onnxruntime": 0.06, "openvino": 0.02}
"""Seconds after a turn, in which a side's threads stop spinning. GNU OpenMP's spin 300,000 times at the end of a region, which takes up to
7 ms, ONNX Runtime's up to 40 ms: until then a region of two threads waits for one that shares its core, and takes ten times as long."""


PATIENCE = 5.0
"""Seconds that a side may take to end, once its requests have."""


class Missing(Exception):
    """The peer is not installed; the message says so."""


class Side:
    """The other end of such a process."""

    def __init__(self, side: str, threads: int, path: str | None = None) -> None:
        self.name, self.threads = side, threads
        settings = json.dumps({"side": side, "threads": threads, "path": path})
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])}
        self._process = subprocess.Popen([sys.executable, "-m", "bench.side", settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, env=environment)
        try:
            self.facts = self._answer()
        except Exception:
            self.close()
            raise
        if "missing" in self.facts:
            self.close()
            raise Missing(self.facts["missing"])

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request. Raises RuntimeError where the process ended or failed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"the {self.name} side ended with exit code {self._process.wait()}") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        line = out.readline()
        if not line:
            raise RuntimeError(f"the {self.name} side ended with exit code {self._process.wait()}; its messages are above")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(f"the {self.name} side failed: {answer['failed']}")
        return answer

    @property
    def pid(self) -> int:
        return self._process.pid

    def seconds(self, times: int, wall: bool = False) -> float:
        """Seconds of one of `times` repetitions, measured by the side itself after one that is not counted; `wall`: always the clock's."""
        seconds = float(self.ask(do="time", times=times, wall=wall)["seconds"])
        time.sleep(SETTLE[self.name.split()[0]])
        return seconds / times

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:               # OpenVINO has loops that it does not end
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


# ---- within the process ---------------------------------------------------------------------------------------------------------

class Server:
    """Answers requests about one subject at a time."""

    def __init__(self, side: str, threads: int, path: str | None = None) -> None:
        self.side, _, self.variant = side.partition(" ")
        self.threads, self.path = threads, path
        self._runner: Any = None
        self._forced = contextlib.ExitStack()

    def start(self) -> dict[str, Any]:
        """What this side is, or that it is missing."""
        if self.side != "ours":
            try:
                module = __import__(self.side)
            except ImportError:
                return {"missing": f"{self.side} is not installed, so there is nothing to compare with: pip install {self.side}"}
            return {"version": module.__version__}
        from tileflow.kernels.isa import cpu
        if self.path is not None:
            self._forced.enter_context(cpu.forced(self.path))
        return {"path": cpu.current().name}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        match request["do"]:
            case "prepare":
                return self.prepare(request["kind"], request["shape"])
            case "time":
                return {"seconds": self.measure(request["times"], request.get("wall", False))}
            case "error":
                return {"error": self._runner.error()}
            case "ask":
                return {"answer": getattr(self._runner, request["what"])()}
            case "memory":
                from .memory import peak
                return {"bytes": peak()}
            case "peak":
                from .peak import peaks
                return {"peaks": peaks(self.threads)}
        raise ValueError(f"no such request: {request}")

    def prepare(self, kind: str, shape: dict[str, Any]) -> dict[str, Any]:
        """Make a subject ready to be timed; the one before goes."""
        from .kinds import Unsupported, problem
        self._runner = None
        gc.collect()
        try:
            subject = problem(kind, {**shape, "precision": self.variant} if self.side == "ours" and self.variant else shape)
            made = getattr(subject, self.side)
            self._runner = made(self.threads) if self.side == "ours" else made(self.threads, self.variant)
            self._runner.run(1)
        except Unsupported as error:
            return {"unsupported": str(error)}
        return {"ok": True}

    def measure(self, times: int, wall: bool = False) -> float:
        """Seconds of `times` repetitions: the process's own time with one thread, the clock's with more or where `wall` asks for it."""
        clock = time.process_time if self.threads == 1 and not wall else time.perf_counter
        if times > 1:
            self._runner.run(1)
        began = clock()
        self._runner.run(times)
        return clock() - began


def main() -> None:
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                                              # whatever a library prints must not look like an answer

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)
    server = Server(**json.loads(sys.argv[1]))
    say(server.start())
    for line in sys.stdin:
        try:
            say(server.answer(json.loads(line)))
        except Exception as error:
            import traceback
            traceback.print_exc()
            say({"failed": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
