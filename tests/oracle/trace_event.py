"""What the viewers of traces want of a file: a checker written from the published Trace Event Format.

Nat Duca, Dan Sinclair: Trace Event Format. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
(named as the format's definition by Chromium's catapult, docs/trace-event-format.md). Sections: JSON Object Format, Event Descriptions (the fields
of all events), Complete Events, Counter Events, Metadata Events.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

PHASES = set("BEXiICbneSTFpstfPNODMVvRc(),")
"""Types of events that the document lists."""
METADATA = {"process_name": ("name", str), "process_labels": ("labels", str), "process_sort_index": ("sort_index", int), "thread_name": ("name", str),
            "thread_sort_index": ("sort_index", int)}
"""Metadata events, with the argument of each and its type."""


def problems(trace: Any) -> list[str]:
    """What is wrong with a trace in the JSON Object Format, none where nothing is."""
    if not isinstance(trace, Mapping) or not isinstance(trace.get("traceEvents"), list):
        return ["it is no object with a list of traceEvents"]
    found = [] if trace.get("displayTimeUnit", "ms") in ("ms", "ns") else ["displayTimeUnit is neither ms nor ns"]
    for i, event in enumerate(trace["traceEvents"]):
        found += [f"event {i}: {wrong}" for wrong in _event(event)]
    return found or list(_nesting(trace["traceEvents"]))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _event(event: Any) -> Iterator[str]:
    if not isinstance(event, Mapping):
        yield "it is no object"
        return
    kind = event.get("ph")
    if not isinstance(kind, str) or kind not in PHASES or len(kind) != 1:
        yield f"ph is {kind!r}"
        return
    if not isinstance(event.get("name"), str) or not event["name"]:
        yield "it has no name"
    if type(event.get("pid")) is not int or ("tid" in event and type(event["tid"]) is not int):
        yield "pid and tid are not whole numbers"
    if not isinstance(event.get("args", {}), Mapping):
        yield "args is no object"
        return
    if not isinstance(event.get("cat", ""), str):
        yield "cat is no text"
    if kind == "M":
        yield from _metadata(event)
        return
    if not _number(event.get("ts")) or event["ts"] < 0:
        yield "ts is no time in microseconds"
    if kind == "X":
        if not _number(event.get("dur")) or event["dur"] < 0:
            yield "dur is no duration in microseconds"
        if "tid" not in event:
            yield "it is on no thread"
    if kind == "C" and not (event.get("args") and all(map(_number, event["args"].values()))):
        yield "a counter's arguments are its series, all numbers"


def _metadata(event: Mapping[str, Any]) -> Iterator[str]:
    if event["name"] not in METADATA:
        yield f"there is no metadata {event['name']}"
        return
    argument, kind = METADATA[event["name"]]
    if type(event.get("args", {}).get(argument)) is not kind:
        yield f"{event['name']} has no {argument}"
    if event["name"].startswith("thread") and "tid" not in event:
        yield f"{event['name']} names no thread"


def _nesting(events: list[Mapping[str, Any]]) -> Iterator[str]:
    """Complete events of a thread lie side by side or in each other; Perfetto's rounds to whole nanoseconds and drops what overlaps
    then (`tests/report/test_trace_viewers.py`)."""
    threads: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            threads.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000), event["name"]))
    for (pid, tid), found in threads.items():
        found.sort(key=lambda one: (one[0], -one[1]))
        around: list[int] = []
        for (begin, end, name), before in zip(found, itertools.chain([None], found), strict=False):
            while around and around[-1] <= begin:
                around.pop()
            if around and end > around[-1]:
                yield f"process {pid}, thread {tid}: {name} overlaps {before[2] if before else ''}"
            around.append(end)
