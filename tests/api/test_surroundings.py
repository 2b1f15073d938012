"""What the environment asks of a process: reports of what is compiled, a trace of what is done, the log."""
from __future__ import annotations

import copy
import json
import logging
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT

import tileflow
from tileflow import nn, report
from tileflow.api import surroundings
from tileflow.options.reference.table import OWN_ENVIRONMENT
from tileflow.runtime.programs import listeners
from tileflow.system import logs, spans
from tileflow.system.errors import ReportError

X, Y = np.ones((8, 4), np.float32), np.zeros(8, np.int64)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def test_every_variable_is_told():
    """In one table, and no other is read."""
    named = {name for path in (*(ROOT / "tileflow").rglob("*.py"), *(ROOT / "kernels").rglob("*.py"))
             for name in re.findall(r"TILEFLOW_[A-Z_]+", path.read_text(encoding="utf-8"))}
    assert {e.name for e in OWN_ENVIRONMENT} == named


def test_a_trace(tmp_path: Path):
    """Calls, compiling, batches and checkpoints, with a user's own marks, by threads, in microseconds from its
    begin."""
    path = tmp_path / "inner" / "trace.json"
    with tileflow.trace(path), spans.span("mine"):
        model = tileflow.training_model(network())
        for x, y in tileflow.DataLoader(tileflow.Options(micro_batch_size=4, prefetch=2),
                                        (np.ones((16, 4), np.float32), np.zeros(16, np.int64))):
            model(x, y)
        tileflow.save_state(model.state_dict(), tmp_path / "state.safetensors")
    events = json.loads(path.read_text())["traceEvents"]
    spent = [e for e in events if e["ph"] == "X"]
    count = {name: sum(e["name"] == name for e in spent)
             for name in ("mine", "compile", "training call", "make a batch", "write state.safetensors")}
    assert count == {"mine": 1, "compile": 1, "training call": 4, "make a batch": count["make a batch"],
                     "write state.safetensors": 1}
    assert count["make a batch"] >= 4
    assert {e["cat"] for e in spent} <= set(spans.KINDS)
    mine = next(e for e in spent if e["name"] == "mine")
    calls = [e for e in spent if e["name"] == "training call"]
    assert all(mine["ts"] <= e["ts"] and e["ts"] + e["dur"] <= mine["ts"] + mine["dur"] + 1 for e in calls)
    assert min(e["ts"] for e in spent) == 0
    assert {e["tid"] for e in spent} == {e["tid"] for e in events if e["name"] == "thread_name"}
    assert not spans.is_open()
    with spans.span("after"):
        assert not spans.is_open()


@pytest.mark.parametrize(("threads", "strategy"), [(1, {}), (2, {}), (3, {"strategy": "pipelined", "auto_pipeline": 2,
                                                                          "gradient_accumulation": 4})])
def test_a_trace_shows_rows_by_name_and_changes_no_number(tmp_path: Path, threads: int, strategy: dict[str, Any]):
    """Forward, backward and update, within the call's span, one after the other in each task; none without being
    asked."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 4)).astype(np.float32), rng.integers(0, 3, 4)
    net = network()
    plain, watched = (tileflow.training_model(copy.deepcopy(net), tileflow.Options(threads=threads, **strategy))
                      for _ in range(2))
    for model, rows in ((plain, False), (watched, True)):
        model.compile(x, y)
        with tileflow.trace(tmp_path / f"{rows}.json", rows=rows):
            model(x, y)
    assert all(np.array_equal(a, watched.state_dict()[name]) for name, a in plain.state_dict().items())
    found = {rows: json.loads((tmp_path / f"{rows}.json").read_text())["traceEvents"] for rows in (False, True)}
    assert not [e for e in found[False] if e.get("cat") == "row"]
    spent = [e for e in found[True] if e.get("cat") == "row"]
    current = watched.programs.current
    assert current is not None
    nodes = {str(owner) for owner in current.engine.image.owners if owner.operator == "Gemm"}
    assert nodes
    said = " ".join(e["name"] for e in spent)
    assert all(name in said for name in nodes), (nodes, said)
    call = next(e for e in found[True] if e["name"] == "training call")
    assert all(call["ts"] <= e["ts"] and e["ts"] + e["dur"] <= call["ts"] + call["dur"] for e in spent)
    for track in {e["tid"] for e in spent}:
        own = sorted((e["ts"], e["dur"]) for e in spent if e["tid"] == track)
        assert all(a + took <= b + 1e-6 for (a, took), (b, _) in pairwise(own))


def test_a_trace_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    trace = tmp_path / "file" / "trace.json"
    with pytest.raises(ReportError, match="The trace cannot be written to"), tileflow.trace(trace):
        tileflow.inference_model(network())(X)
    assert not spans.is_open()


@pytest.fixture
def _nobody_listens():
    before, folders = list(listeners), list(surroundings._folders)
    yield
    listeners[:] = before
    surroundings._folders[:] = folders


@pytest.mark.usefixtures("_nobody_listens")
def test_reports_of_every_program(tmp_path: Path):
    """A folder for each, for the model's chip or the usual one; what is computed does not depend on it."""
    plain = tileflow.inference_model(network())
    plain(X)
    surroundings.report_every_program(tmp_path)
    net = network()
    tileflow.training_model(net)(X, Y)
    tileflow.training_model(net, tileflow.Options(machine="bow"))(X, Y)
    tileflow.inference_model(net)(X)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inference", "training", "training-2"]
    chips = {p.name: report.load(p / "report.json")["chip"]["name"] for p in tmp_path.iterdir()}
    assert chips == {"training": "gc200", "training-2": "bow", "inference": "gc200"}
    assert (tmp_path / "training" / "page.html").is_file()


@pytest.mark.usefixtures("_nobody_listens")
def test_what_has_no_report_runs_all_the_same(tmp_path: Path):
    (tmp_path / "file").write_text("")
    surroundings.report_every_program(tmp_path / "file")
    with pytest.warns(UserWarning, match="There is no report of the inference program: Cannot write the report"):
        found = tileflow.inference_model(network())(X)
    assert found.shape == (8, 3)


def test_the_log_is_silent_until_it_is_asked_for(caplog: pytest.LogCaptureFixture):
    root = logging.getLogger("tileflow")
    assert [type(h) for h in root.handlers if not isinstance(h, logging.StreamHandler)] == [logging.NullHandler]
    with caplog.at_level("DEBUG", "tileflow"):
        tileflow.inference_model(network())(X)
    assert "A program was compiled in" in caplog.text
    assert logs.level("warn") == logging.WARNING
    assert logs.level("loud") is None


@pytest.mark.exhaustive
def test_a_process(tmp_path: Path):
    """All variables at once, for a script that knows none of them; a wrong one is said."""
    script = ("import numpy as np, tileflow\nfrom tileflow import nn\n"
              "tileflow.inference_model(nn.Linear(4, 2))(np.ones((2, 4), np.float32))\n")
    given = {"TILEFLOW_TRACE": str(tmp_path / "trace.json"), "TILEFLOW_AUTO_REPORT": str(tmp_path / "reports"),
             "TILEFLOW_LOG_LEVEL": "debug"}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT), **given},
                          capture_output=True, text=True, check=True)
    assert "[tileflow.compile] [DEBUG] A program was compiled in" in done.stderr
    assert (tmp_path / "reports" / "inference" / "report.json").is_file()
    assert "inference call" in (tmp_path / "trace.json").read_text()
    done = subprocess.run([sys.executable, "-c", "import tileflow"],
                          env={**os.environ, "PYTHONPATH": str(ROOT), "TILEFLOW_LOG_LEVEL": "loud"},
                          capture_output=True, text=True, check=True)
    assert "TILEFLOW_LOG_LEVEL='loud', which is no level" in done.stderr
