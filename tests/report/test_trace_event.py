"""trace.json is what the published Trace Event Format describes, so that Perfetto's and Chrome's viewers open it; the checker finds what is not."""
from __future__ import annotations

import copy
import json

import pytest
from test_report_facts import CASES, built  # noqa: F401  (a fixture: real programs)
from trace_event import problems

from tileflow.report import trace

GOOD = {"displayTimeUnit": "ns", "traceEvents": [
    {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "IPU"}},
    {"ph": "M", "pid": 0, "tid": 1, "name": "thread_sort_index", "args": {"sort_index": 1}},
    {"ph": "X", "pid": 0, "tid": 1, "name": "a", "cat": "compute", "ts": 0, "dur": 2.5, "args": {}},
    {"ph": "X", "pid": 0, "tid": 1, "name": "in a", "cat": "compute", "ts": 1, "dur": 1.5, "args": {}},
    {"ph": "X", "pid": 0, "tid": 1, "name": "b", "cat": "compute", "ts": 2.5, "dur": 0, "args": {}},
    {"ph": "C", "pid": 0, "name": "bytes", "ts": 0, "args": {"bytes": 3}}]}


def test_traces_of_real_programs(built):  # noqa: F811
    found = json.loads(trace.to_text(built))
    assert problems(found) == []
    assert {e["cat"] for e in found["traceEvents"] if e["ph"] == "X"} <= set(trace.ROWS)
    named = {(e["pid"], e["tid"]) for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in found["traceEvents"] if e["ph"] == "X"} <= named


def test_the_cases_have_pipelines():
    assert {"training", "pipelined"} <= set(CASES)


@pytest.mark.parametrize(("at", "change", "says"), [
    (None, {"displayTimeUnit": "us"}, "displayTimeUnit"),
    (None, {"traceEvents": {}}, "no object with a list"),
    (0, {"name": "processname"}, "no metadata"),
    (0, {"args": {}}, "has no name"),
    (1, {"tid": None}, "whole numbers"),
    (1, {"args": {"sort_index": "1"}}, "has no sort_index"),
    (2, {"ph": "Y"}, "ph is 'Y'"),
    (2, {"ph": "XX"}, "ph is 'XX'"),
    (2, {"ts": -1}, "ts is no time"),
    (2, {"ts": float("nan")}, "ts is no time"),
    (2, {"dur": "2"}, "dur is no duration"),
    (2, {"pid": "0"}, "whole numbers"),
    (2, {"name": ""}, "has no name"),
    (2, {"args": []}, "args is no object"),
    (3, {"dur": 1.6}, "in a overlaps a"),
    (4, {"ts": 2.4, "dur": 1}, "b overlaps"),
    (5, {"args": {"bytes": "3"}}, "a counter's arguments"),
    (5, {"args": {}}, "a counter's arguments"),
])
def test_near_misses(at, change, says):
    assert problems(GOOD) == []
    wrong = copy.deepcopy(GOOD)
    (wrong if at is None else wrong["traceEvents"][at]).update(change)
    assert any(says in problem for problem in problems(wrong)), problems(wrong)
