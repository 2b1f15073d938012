"""Who does what when, on the page and in the trace: of every strategy the slices of each IPU add up, streams of the
host stand once for each micro-batch on the IPU that does them, and all ends when the totals say."""
from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from test_report_facts import Net
from trace_event import problems

import tileflow
from tileflow.program.schedule import from_data, visits
from tileflow.report import gantt, hosting, pagedata, trace

TRAINING: dict[str, Any] = {"training": True, "loss": "cross_entropy"}
PIPELINED: dict[str, Any] = {"strategy": "pipelined", "gradient_accumulation": 5}
CASES: dict[str, dict[str, Any]] = {
    "one IPU": {**TRAINING, "gradient_accumulation": 3},
    "inference": {},
    "I/O tiles": {**TRAINING, "gradient_accumulation": 6, "num_io_tiles": 32,
                  "overlap_inputs": {"*": "accumulation_loop"}},
    "I/O tiles, an output": {**TRAINING, "gradient_accumulation": 4, "num_io_tiles": 32,
                             "overlap_outputs": {"*": "accumulation_loop"}},
    "pipelined": {**TRAINING, **PIPELINED},
    "pipelined, off the chip": {**TRAINING, **PIPELINED, "activations_off_chip": True},
    "pipelined inference": {"strategy": "pipelined", "device_iterations": 4},
    "sharded": {**TRAINING, "strategy": "sharded", "gradient_accumulation": 2},
    "replicas": {**TRAINING, "replication_factor": 2, "gradient_accumulation": 4},
    "replicas of pipelines": {**TRAINING, **PIPELINED, "replication_factor": 2},
    "serial phases": {**TRAINING, "strategy": "serial_phased", "pipeline_splits": ("norm", "b"),
                      "gradient_accumulation": 2},
    "parallel phases": {**TRAINING, "strategy": "parallel_phased", "pipeline_splits": ("norm", "b")},
}


@pytest.fixture(scope="module", params=CASES)
def compiled(request: pytest.FixtureRequest) -> Any:
    given = CASES[request.param]
    made = tileflow.compile(Net(), inputs=[(4, 3, 8, 8)], machine={"name": "small", "base": "gc200", "tiles": 64},
                            allow_out_of_memory=True, **given)
    return made


def row(events: list[dict[str, Any]], pid: int, rows: set[str]) -> list[dict[str, Any]]:
    return sorted((e for e in events if e["ph"] == "X" and e["pid"] == pid and e["cat"] in rows), key=lambda e: e["ts"])


def test_all_ends_when_the_totals_say(compiled: Any) -> None:
    report = compiled.report
    chart, events = gantt.Chart(report), trace.build(report)["traceEvents"]
    cycles = report["totals"]["cycles"] + report["host"]["waits"]
    assert cycles == pytest.approx(report["totals"]["seconds"] * report["chip"]["clock_hz"])
    assert chart.clock == cycles == max(b.start + b.cycles for b in chart.bars)
    assert max(e["ts"] + e["dur"]
               for e in events if e["ph"] == "X") == pytest.approx(1e6 * report["totals"]["seconds"], abs=2e-3)
    assert problems(json.loads(trace.to_text(report))) == []
    assert pagedata.data(report)["chart"]["cycles"] == cycles


def test_slices_of_an_ipu_add_up(compiled: Any) -> None:
    """To what it works; on one IPU without a gap to the whole."""
    report, tiled = compiled.report, compiled.tiled
    chart, events = gantt.Chart(report), trace.build(report)["traceEvents"]
    for number, ipu in enumerate(report["ipus"] or [{"busy": report["totals"]["cycles"]}]):
        own = sorted((b for b in chart.bars if b.ipu == number), key=lambda b: b.start)
        for before, after in itertools.pairwise(own):
            assert before.start + before.cycles <= after.start
        works = sum(b.cycles for b in own if b.first >= 0)
        together = sum(b.cycles for b in own if b.kind == "replicas")
        assert works == ipu["busy"] - (0 if report["ipus"] else together)
        assert works == sum(e["args"]["cycles"]
                            for e in row(events, number, {"compute", "sync", "exchange"}) if "phase" in e["args"])
        if not report["ipus"]:
            assert sum(b.cycles for b in own) == tiled.cycles_per_update + report["host"]["waits"]


def test_streams_stand_once_for_each_micro_batch_where_they_are_read(compiled: Any) -> None:
    report = compiled.report
    chart, events = gantt.Chart(report), trace.build(report)["traceEvents"]
    on = {v.step.part: v.step.ipu for v in visits(from_data(report["schedule"]))}
    host = [b for b in (*chart.bars, *chart.beside) if b.kind == "host"]
    for s in report["host"]["streams"]:
        name = f"{s['name']} {'in' if s['to_chip'] else 'out'}"
        own = [b for b in host if b.part == name]
        assert len(own) == s["repeats"]
        assert {b.cycles for b in own} == {s["cycles"]}
        assert {b.ipu for b in own} == {on[s["part"]]}
        assert len({b.micro_batch for b in own}) == len(own), "each micro-batch once"
        assert sum(b in chart.beside for b in own) >= int(s["repeats"] * s["overlaps"])
    drawn = Counter((e["pid"], e["args"]["cycles"])
                    for e in events if e.get("cat") in ("host I/O", "through I/O tiles"))
    assert drawn == Counter((b.ipu, b.cycles) for b in host)
    assert sum(b.cycles for b in chart.bars if b.kind == "host") == report["host"]["waits"]


@pytest.mark.parametrize("most", [0, 9])
def test_turns_that_are_not_drawn_take_as_long(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long schedule, where only some turns are drawn, with what is waited for in the others."""
    for name in ("one IPU", "pipelined"):
        machine = {"name": "small", "base": "gc200", "tiles": 64}
        report = tileflow.compile(Net(), inputs=[(4, 3, 8, 8)], machine=machine,   # type: ignore[attr-defined]
                                  **{**CASES[name], "gradient_accumulation": 9}, allow_out_of_memory=True).report
        monkeypatch.setattr(gantt, "MOST", most)
        monkeypatch.setattr(trace, "MOST_EVENTS", most)
        short = gantt.Chart(report)
        assert any(b.kind == "more" for b in short.bars)
        assert short.clock == report["totals"]["cycles"] + report["host"]["waits"]
        events = trace.build(report)["traceEvents"]
        assert max(e["ts"] + e["dur"]
                   for e in events if e["ph"] == "X") == pytest.approx(1e6 * report["totals"]["seconds"], abs=2e-3)
        monkeypatch.undo()


def test_reports_of_before_have_no_parts() -> None:
    """An input comes with the first part that runs as often, an output goes after the last."""
    report = tileflow.compile(Net(), inputs=[(4, 3, 8, 8)], machine="gc200",             # type: ignore[attr-defined]
                              **CASES["one IPU"]).report
    before = {**report, "host": {**report["host"], "streams": [{k: v for k, v in s.items() if k != "part"}
                                                               for s in report["host"]["streams"]]}}
    assert gantt.Chart(before).clock == gantt.Chart(report).clock
    assert hosting.Host(before, from_data(report["schedule"])).left == report["host"]["waits"]
