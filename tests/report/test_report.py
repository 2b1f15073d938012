"""Reports: the versioned file and its loader, the text, the page that stands alone, the trace."""
from __future__ import annotations

import copy
import itertools
import json
import re
from html.parser import HTMLParser

import pytest
from places import ROOT
from tile_programs import CATEGORIES, handmade

from tileflow import report
from tileflow.cli import main
from tileflow.options.options import declarations
from tileflow.report import compare, gantt, gaps, insights, palette, svg, text, trace
from tileflow.report import format as f
from tileflow.system.errors import ReportError
from tileflow.tiles.hardware.chip import CHIPS

POINTS = [
    {"label": "0.1", "kind": "sweep", "proportion": 0.1, "per_op": {}, "cycles": 2000, "bytes": 300_000, "fits": True, "best": False},
    {"label": "0.2", "kind": "sweep", "proportion": 0.2, "per_op": {}, "cycles": 2000, "bytes": 400_000, "fits": True, "best": False},
    {"label": "0.6", "kind": "sweep", "proportion": 0.6, "per_op": {}, "cycles": 1000, "bytes": 700_000, "fits": False, "best": False},
    {"label": "a 0.3", "kind": "search", "proportion": 0.6, "per_op": {"a": 0.3}, "cycles": 1500, "bytes": 600_000, "fits": True, "best": True},
]


VARIABLE = {"name": "w", "kind": "weights", "category": "weights", "layer": "fc", "shape": [4], "dtype": "float32", "ipu": 0, "bytes": 16,
            "largest": 16, "tiles": 1, "spread": 0, "element_bytes": 4, "copies": 1, "birth": None, "death": None, "heir": None, "off_chip": False}


class OutOfMemory(Exception):
    def __init__(self) -> None:
        super().__init__("Tile 0 needs 900,000 bytes.")
        self.tile, self.demand, self._hidden = 0, 900_000, object()


@pytest.fixture(scope="module")
def made():
    return handmade()


@pytest.fixture(scope="module")
def built(made):
    return report.build(made, model="net.onnx", frontier=POINTS)


def test_what_is_written_comes_back(built, tmp_path):
    folder = report.write(built, tmp_path / "a" / "b")
    assert sorted(p.name for p in folder.iterdir()) == ["page.html", "report.json", "trace.json"]
    assert report.load(folder) == report.load(folder / "report.json") == built
    report.write(report.load(folder), folder)
    assert report.load(folder) == built


def test_figures_add_up(built, made):
    assert built["totals"]["cycles"] == sum(s["cycles_per_update"] for s in built["steps"]) == sum(built["totals"]["phases"].values())
    assert built["totals"]["flops"] == sum(s.work.flops * s.repeats for s in made.steps)
    assert built["memory"]["worst"] == max(built["memory"]["peak"])
    assert set(built["memory"]["categories"]) == set(CATEGORIES)
    for t in (0, 700, 1471):
        assert sum(c[t] for c in built["memory"]["categories"].values()) == built["memory"]["peak"][t]
    assert built["host"]["cycles_per_update"] == sum(s["cycles"] * s["repeats"] for s in built["host"]["streams"])
    assert built["batching"]["samples_per_update"] == 64
    kinds = {c["name"]: c["kind"] for c in built["chip"]["constants"]}
    assert kinds["tiles"] in ("documented", "user")
    assert kinds["sync_cycles"] == "estimate"


def test_unknown_fields_are_kept_for_newer_writers(built):
    more = copy.deepcopy(built)
    more["totals"]["watts"] = 3.5
    assert report.validate(more, "x") is more


def change(value, path, new):
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if new is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


@pytest.mark.parametrize(("path", "new", "says"), [
    (("schema_version",), 2, "has schema_version 2, and this tileflow reads version 6"),
    (("schema_version",), None, "has schema_version None"),
    (("totals",), None, "totals is missing"),
    (("totals", "cycles"), 1.5, "totals.cycles is a number, not an integer"),
    (("totals", "cycles"), True, "totals.cycles is a boolean, not an integer"),
    (("totals", "phases", "sync"), None, "totals.phases.sync is missing"),
    (("training",), 1, "training is an integer, not a boolean"),
    (("steps",), {}, "steps is a table, not a list"),
    (("steps", 1, "splits", "m"), "4", "steps[1].splits.m is a string, not an integer"),
    (("steps", 2, "phases"), [], "steps[2].phases is a list, not a table"),
    (("memory", "peak", 3), "x", "memory.peak[3] is a string"),
    (("memory", "peak"), [1], "memory of peak has 1 tiles, always_live 1472"),
    (("memory", "categories", "weights"), [], "memory of weights has 0 tiles"),
    (("memory", "worst_tile"), 1472, "no worst_tile 1472"),
    (("out_of_memory",), 3, "out_of_memory is an integer, not a table"),
    (("frontier", 0, "fits"), None, "frontier[0].fits is missing"),
    (("chip", "ipus"), 0, "chip.ipus is 0, less than 1"),
    (("steps", 2, "index"), 7, "steps[2].index is 7"),
    (("steps", 2, "inputs"), [0], "steps[2] names a variable that there is not"),
    (("steps", 2, "running", "spread"), 900, "steps[2].running has a spread that there is not"),
    (("steps", 2, "running", "bytes"), {"air": 1}, "steps[2].running is of a category that there is not"),
    (("steps", 2, "running", "bytes"), {"exchange": -1}, "steps[2].running.bytes.exchange is -1, less than 0"),
    (("memory", "kinds"), [], "memory.categories are not those of memory.kinds"),
    (("memory", "steps", "fullest"), [0], "memory.steps does not have a number for each of the 6 steps"),
    (("schedule",), [{"kind": "dance"}], "schedule[0] is no step"),
    (("spreads", 0), [1, 1], "spreads[0] is not one of 1472 tiles"),
    (("variables",), [{}], "variables[0].name is missing"),
    (("variables",), [{**VARIABLE, "spread": 900}], "variables[0] has a spread that there is not"),
    (("variables",), [{**VARIABLE, "spread": -1}], "variables[0] has a spread that there is not"),
    (("variables",), [{**VARIABLE, "heir": 4}], "variables[0] has an heir that there is not"),
    (("variables",), [{**VARIABLE, "birth": 3, "death": 2}], "variables[0] lives at steps that there are not"),
    (("variables",), [{**VARIABLE, "birth": 3}], "variables[0] lives at steps that there are not"),
    (("variables",), [{**VARIABLE, "stays": [[2, 1]]}], "variables[0] stays at steps that there are not"),
    (("variables",), [{**VARIABLE, "stays": [[1]]}], "variables[0] stays at steps that there are not"),
])
def test_damaged_reports(built, tmp_path, path, new, says):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(change(built, path, new)))
    with pytest.raises(ReportError, match=re.escape(says)) as error:
        report.load(tmp_path)
    assert str(file) in str(error.value)
    assert "compile the model again" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"schema_version": NaN}', b"[]", b"null"])
def test_files_that_are_no_reports(tmp_path, content):
    (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(ReportError, match=r"report\.json"):
        report.load(tmp_path)


def test_no_report_and_no_place_for_one(built, tmp_path):
    with pytest.raises(ReportError, match=r"cannot be read: No such file.*tileflow compile MODEL --machine"):
        report.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"Cannot write the report to .*file/out.*choose another folder"):
        report.write(built, tmp_path / "file" / "out")


def test_text(built):
    shown = text.render(built)
    for words in ("net.onnx, training", "gc200: 1,472 tiles of 624.0 KiB", "micro-batch 16", "fits. Worst tile 0: 116,150 of 638,976 (18.2 %)",
                  "layer2/act/Relu", "m/4 n/8 k/2 serial n/2", "weights      always live", "a 0.3", "← taken", "no plan within 10,000 bytes"):
        assert words in shown, words
    assert "exchange buffers" in shown
    line = next(line for line in shown.splitlines() if "layer2/fc/MatMul" in line and "amp" in line)
    assert "5,000 !" in line


def test_text_lists_the_slowest_or_all():
    many = report.build(handmade(30, tiles=16))
    assert "and 40 operators more" in text.render(many)
    assert "layer0/fc/MatMul" not in text.render(many)
    assert "layer0/fc/MatMul" in text.render(many, every_operator=True)


def test_a_table_is_in_line():
    rows = text.table(("name", "n"), [("a", "1"), ("long", "1,000")]).splitlines()
    assert rows == ["  name      n", "  ----  -----", "  a         1", "  long  1,000"]


def test_frontier():
    assert [p["label"] for p in text.pareto(POINTS)] == ["0.1", "a 0.3", "0.6"]
    plot = text.frontier({"frontier": POINTS, "memory": {"bytes_per_tile": 638_976}})
    assert [plot.count(c) for c in "●○×"] == [1 + 1, 2 + 1, 1 + 1]          # in the plot, and in the line that explains them
    wild = [*POINTS, {**POINTS[0], "bytes": 10**9}, {**POINTS[0], "cycles": 10**9}]
    assert text.near(wild, 638_976) == POINTS
    assert text.near(POINTS[:1], 1) == POINTS[:1]
    one = text.frontier({"frontier": POINTS[:1], "memory": {"bytes_per_tile": 638_976}})
    assert one.count("○") == 2


class Page(HTMLParser):
    """Checks that tags nest, and keeps the data of the page."""

    VOID = ("meta",)

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.named: list[str] = []
        self.data: dict = {}
        self.feed(content)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.named += [name for name, _ in attrs]
        if tag not in self.VOID:
            self.open.append(tag)
        self.is_data = ("id", "data") in attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and self.is_data:
            self.data = json.loads(data)


def test_the_page_stands_alone_and_nests(built):
    content = report.page.render(built)
    page = Page(content)
    assert not {"link", "iframe", "img", "object", "embed", "base", "form"} & set(page.tags)
    assert not {"src", "href", "srcset", "style"} & set(page.named)
    assert not any(name.startswith("on") for name in page.named)
    unsafe = (r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)|innerHTML|insertAdjacentHTML"
              r"|document\.write|eval\(")
    assert not re.search(unsafe, content)
    shown, = page.data["reports"]
    assert shown["fits"] is True
    assert len(shown["steps"]["name"]) == len(built["steps"])
    assert [shown["texts"][n] for n in shown["steps"]["name"]] == [s["name"] for s in built["steps"]]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', content)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_names_cannot_break_the_page(built):
    evil = change(built, ("model",), "</script><script>alert(1)</script><!--")
    evil["steps"][0]["name"] = '"><img src=x onerror=alert(1)></script>'
    page = Page(report.page.render(evil))
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert page.data["reports"][0]["model"] == evil["model"]
    assert evil["steps"][0]["name"] in page.data["reports"][0]["texts"]


def test_categories_phases_and_roles_are_data(built):
    """What nobody has heard of yet is drawn like the rest, in a colour of its own."""
    new = copy.deepcopy(built)
    new["memory"]["kinds"].append({"name": "stashes", "always_live": False})
    new["memory"]["categories"]["stashes"] = [7] * 1472
    new["totals"]["phases"]["warp"] = 5
    for s in new["steps"]:
        s["phases"]["warp"] = 5
        s["role"] = "dreaming"
    report.validate(new, "it")
    shown = Page(report.page.render(new)).data["reports"][0]
    assert shown["memory"]["kinds"][-1]["name"] == "stashes"
    assert re.fullmatch("#[0-9a-f]{6}", shown["memory"]["kinds"][-1]["colour"])
    assert shown["phases"][-1]["name"] == "warp"
    assert {k["name"] for k in shown["chart"]["kinds"]} == {"dreaming", "update"}
    text.render(new)


def test_colours_are_of_a_name():
    assert palette.colour("exchange") != palette.colour("exchange", "memory")
    assert palette.colour("stashes") == palette.colour("stashes") != palette.colour("stash")


def test_a_tall_stack_of_repeats_is_drawn_in_few_bars(built, monkeypatch):
    """A schedule may be of any length: what is drawn is bounded, and its cycles are right."""
    monkeypatch.setattr(gantt, "MOST", 100)
    inner = [{"kind": "run", "part": "micro", "ahead": 0, "ipu": 0}]
    for times in (50, 50, 50):
        inner = [{"kind": "repeat", "times": times, "steps": inner, "counts": "micro-batch", "by": 1}]
    chart = gantt.Chart(change(built, ("schedule",), inner))
    assert len(chart.bars) < 300
    assert chart.clock == 125_000 * sum(s["cycles"] for s in built["steps"] if s["part"] == "micro") == sum(b.cycles for b in chart.bars)


def test_insights_name_what_is_most(built):
    found = {section["title"]: section for section in insights.sections(built)}
    slowest = max(built["steps"], key=lambda s: s["cycles_per_update"])
    assert found["Slowest operators"]["rows"][0]["cells"][0] == slowest["name"]
    assert found["Slowest operators"]["rows"][0]["goto"] == ["operators", {"step": slowest["index"]}]
    assert found["Fullest tiles"]["rows"][0]["cells"][0] == "0"
    layers = {}
    for s in built["steps"]:
        layers[s["sources"][0]] = layers.get(s["sources"][0], 0) + s["cycles_per_update"]
    assert [r["cells"][0] for r in found["Slowest layers"]["rows"]] == sorted(layers, key=lambda name: (-layers[name], name))
    alone = insights.sections(change(built, ("levers_sought",), False))[-1]
    assert (alone["title"], alone["rows"]) == ("What was tried", [])          # nothing was: a suggestion has been run, or is absent
    assert alone["text"].startswith("Nothing was.")
    none = insights.sections(change(built, ("levers_sought",), True))[-1]
    assert none["text"] == "Changes of options were tried, and none makes the program faster or smaller."
    rate = 1.5 * built["totals"]["samples_per_second"]
    tried = {"name": "recompute", "fits": True, "bytes": 5, "cycles": 7, "slower": 1.25, "samples_per_second": rate, "ipus": 2, "sentence": "Tried."}
    shown = change(built, ("levers",), [tried])
    first = insights.sections(shown)[0]
    assert first["rows"][0]["cells"] == ["recompute", "fits", f.count(rate), "1.50 ×", "5", "0.0 %", "2"]
    assert "Levers: changes that make it faster or smaller" in text.render(shown)
    assert "Levers" not in text.render(built)


def test_gaps_are_an_insight(built):
    """What the layout of the fullest tiles takes beyond what they hold; a tile that holds what it can only without gaps is named."""
    peak = built["memory"]["peak"][0]
    laid = {"ipu": 0, "tile": 0, "extent": peak + 24, "blocks": []}
    built = change(built, ("layouts",), [laid])
    found = {section["title"]: section for section in insights.sections(built)}["Gaps between variables"]
    assert found["rows"][0]["cells"][:4] == ["0", f.count(peak), f.count(laid["extent"]), f.count(laid["extent"] - peak)]
    assert f"takes {f.count(laid['extent'])} bytes" in text.render(built)
    tight = change(built, ("memory", "bytes_per_tile"), peak)
    tight["layouts"][0]["extent"] = peak + 8
    assert "whether the program fits depends on how well it is laid out" in gaps.sentences(tight)[1]
    tight["layouts"][0]["extent"] = peak
    assert len(gaps.sentences(tight)) == 1
    assert gaps.sentences(change(built, ("layouts",), [])) == []


def test_why_a_plan_was_chosen():
    step = {"bound_bytes": 5000, "fits": True, "choice": {"of": 7, "faster": [90, 6000], "leaner": [120, 4000]}}
    assert f.why(step) == ("The fastest within 5,000 bytes of temporaries a tile of 7 plans worth having. The next faster one takes 90 cycles and "
                           "6,000 bytes. The next leaner one takes 120 cycles and 4,000 bytes.")
    assert f.why({**step, "fits": False}).startswith("No plan keeps 5,000 bytes of temporaries a tile; this is the one of 7 that takes least.")
    assert f.why({**step, "choice": {"of": 1, "faster": None, "leaner": None}}) == "No other plan has fewer cycles or takes fewer bytes."
    assert f.why({**step, "choice": None}).startswith("Its plan follows")


def test_comparison(built):
    other = change(built, ("totals", "cycles"), built["totals"]["cycles"] // 2)
    other["steps"][4]["cycles_per_update"] += 7_000_000
    other["steps"][2]["cycles_per_update"] -= 5
    other["steps"][1]["name"] = "another"
    other["options"]["available_memory_proportion"] = 0.25
    found = compare.compare(built, other, ("old", "new"))
    assert [row[0] for row in found["operators"]][:2] == [built["steps"][4]["name"], "another"]
    assert found["operators"][0][3] - found["operators"][0][2] == 7_000_000
    before, after = (r["steps"][2]["cycles_per_update"] for r in (built, other))
    assert found["operators"][-1] == [built["steps"][2]["name"], "forward", before, after]
    assert found["options"] == [["available_memory_proportion", "0.6", "0.25"]]
    each = next(row for row in found["totals"] if row[0] == "cycles per sample")
    assert each[1:3] == [r["totals"]["cycles"] / r["batching"]["samples_per_update"] for r in (built, other)]
    shown = compare.render(found)
    assert "A: old\nB: new" in shown
    assert "+7,000,000" in shown
    assert "-50.0 %" in shown
    page = Page(report.page.render_both(built, other, found))
    assert page.data["comparison"]["names"] == ["old", "new"]
    assert len(page.data["reports"]) == 2
    staged = {**built, "staging": {"strategy": "serial_phased", "schedule": "off_chip_after_fwd", "automatic": False}}
    assert compare.compare(built, staged)["options"] == [["strategy", "none", "serial_phased off_chip_after_fwd"]]
    assert "serial phased (off chip after fwd)" in text.render(staged)
    same = compare.compare(built, built)
    assert not same["operators"]
    assert not same["options"]
    assert "Operators that differ, cycles of an update: none" in compare.render(same)


def test_variables_are_matched_though_they_are_numbered_otherwise(built):
    """An operator more renames all tensors after it; weights keep their names."""
    def of(*rows):
        return {**built, "variables": [{**VARIABLE, "name": name, "layer": "fc", "birth": birth, "bytes": n} for name, birth, n in rows]}
    before, after = of(("w", None, 8), ("relu.7", 3, 40), ("conv", 2, 5)), of(("w", None, 9), ("relu.9", 4, 44), ("conv.1", 2, 5), ("v", None, 1))
    found = compare.compare(before, after)
    assert found["variables"] == [["fc: relu", "weights", 40, 44], ["v", "weights", None, 1], ["w", "weights", 8, 9]]


def test_report_command(built, tmp_path, capsys):
    report.write(built, tmp_path)
    for name in ("page.html", "trace.json"):
        (tmp_path / name).unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert "net.onnx, training" in capsys.readouterr().out
    assert [f.name for f in tmp_path.iterdir()] == ["report.json"]
    report.write({**built, "out_of_memory": {"message": "Tile 0 needs 900,000 bytes."}}, tmp_path)
    assert main(["report", str(tmp_path / "report.json"), "--render", "--verbose"]) == 0
    assert "Tile 0 needs 900,000 bytes." in capsys.readouterr().out
    assert sorted(f.name for f in tmp_path.iterdir()) == ["page.html", "report.json", "trace.json"]


def test_compare_command(built, tmp_path, capsys):
    other = change(built, ("totals", "cycles"), 5)
    report.write(built, tmp_path / "x" / "out")
    report.write(other, tmp_path / "y" / "out")
    assert main(["report", str(tmp_path / "x" / "out"), str(tmp_path / "y" / "out"), "--render"]) == 0
    printed = capsys.readouterr().out
    assert f"A: {tmp_path}/x/out" in printed
    assert "compare.html: open it in a browser" in printed
    assert Page((tmp_path / "y" / "out" / "compare.html").read_text()).data["comparison"]


def test_a_program_that_does_not_fit():
    big = report.build(handmade(scale=8.0), out_of_memory=OutOfMemory())
    assert big["out_of_memory"] == {"message": "Tile 0 needs 900,000 bytes.", "tile": 0, "demand": 900_000}
    assert not big["memory"]["fits"]
    assert "OUT OF TILE MEMORY" in text.render(big)
    shown, = Page(report.page.render(big)).data["reports"]
    assert shown["fits"] is False
    assert shown["error"] == "Tile 0 needs 900,000 bytes."


def test_trace(built, made):
    found = json.loads(trace.to_text(built))
    events = found["traceEvents"]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")}
    assert names == {(0, None): "IPU 0 (gc200)", (0, 1): "compute", (0, 2): "sync", (0, 3): "exchange",
                     (0, 4): "host I/O", (0, 5): "through I/O tiles"}
    work = sorted((e for e in events if e["ph"] == "X" and e["tid"] < 4), key=lambda e: e["ts"])
    assert sum(e["args"]["cycles"] for e in work) == built["totals"]["cycles"]
    for before, after in itertools.pairwise(work):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=1e-6)          # bulk-synchronous: no gap, no overlap
    assert work[-1]["ts"] + work[-1]["dur"] == pytest.approx(1e6 * made.seconds_per_update, abs=1e-3)
    host = [e for e in events if e["ph"] == "X" and e["tid"] == 5]              # all of them overlap
    assert [e["name"] for e in host] == [f"{way}, micro-batch {i}" for i in range(4) for way in ("x in", "relu.2 out")]
    for before, after in itertools.pairwise(host):
        assert after["ts"] >= before["ts"] + before["dur"] - 1e-5
    assert {e["ph"] for e in events} == {"M", "X", "C"}


def test_trace_has_one_process_per_ipu_and_stays_small(built, monkeypatch):
    several = change(built, ("chip", "ipus"), 4)
    assert {e["pid"] for e in trace.build(several)["traceEvents"]} == {0, 1, 2, 3}
    monkeypatch.setattr(trace, "MOST_EVENTS", 10)
    events = trace.build(built)["traceEvents"]
    assert sum(e["args"]["cycles"] for e in events if e["ph"] == "X" and e["tid"] < 4) == built["totals"]["cycles"]
    assert sum(e["name"] == "micro, micro-batch 3" for e in events) == 1


def test_figures_as_people_read_them():
    assert [f.size(n) for n in (0, 1023, 1536, 638_976, 3 << 20)] == ["0 B", "1023 B", "1.5 KiB", "624.0 KiB", "3.0 MiB"]
    assert [f.seconds(t) for t in (2.5, 0.0125, 3e-6, 2e-9, 0.0)] == ["2.5 s", "12.5 ms", "3 µs", "2 ns", "0 ns"]
    assert [f.short(n) for n in (0, 999, 1234, 5_600_000, 2e12)] == ["0", "999", "1.23 k", "5.6 M", "2 T"]
    assert f.histogram([0, 5, 9, 10, 99], 10, 2) == [(0, 5, 1), (5, 10, 4)]
    assert f.histogram([], 0, 1) == [(0, 1, 0)]


def test_figures_have_no_exponents():
    assert [f.short(n) for n in (999.6, 1e15, 0.000123, 999_999)] == ["1 k", "1 P", "0.000123", "1 M"]
    assert [f.seconds(t) for t in (0.9996, 999.9e-6, 123.4)] == ["1 s", "1 ms", "123 s"]
    assert [" ".join(f.flops(t)) for t in (1.25, 12345.6, 1.2e-5, 0.0)] == [
        "1.25 TFLOP/s", "12.35 PFLOP/s", "12 MFLOP/s", "0 FLOP/s"]
    assert f.digits(1234567, 2) == "1200000"


def test_what_limits_agrees_with_where_the_cycles_go(built):
    """Insights, summary and text share the time alike, and what is waited for the host is part of it."""
    for waits in (0, 50_000):
        found = change(built, ("host", "waits"), waits)
        shown = Page(report.page.render(found)).data["reports"][0]
        summary = {p["name"]: f.percent(p["cycles"] / shown["all_phases"]) for p in shown["shares"] if p["cycles"]}
        limits = next(x for x in insights.sections(found) if x["title"] == "What limits")
        assert {r["cells"][0]: r["cells"][4] for r in limits["rows"]} == summary
        assert ("host" in summary) is bool(waits)
        assert sum(p["cycles"] for p in shown["shares"]) == shown["all_phases"] == found["totals"]["cycles"] + waits
        lines = text.render(found).splitlines()
        assert all(any(line.split()[:1] == [name] and share.split()[0] in line.split() for line in lines)
                   for name, share in summary.items())


def test_ticks():
    assert svg.ticks(0, 100, 4) == [0, 50, 100]
    assert svg.ticks(0, 624 * 1024, 4, binary=True) == [0, 262144, 524288]
    assert svg.ticks(5, 5, 4)


def test_a_slow_host_and_streaming_memory_are_named(built):
    assert f.limits(built) == []
    slow = change(change(built, ("host", "cycles_per_update"), 10**9), ("host", "streaming_memory_cycles"), 1000)
    assert "The host decides the time: its streams take 1,000,000,000 cycles" in text.render(slow)
    assert "Exchange with streaming memory takes 1,000 cycles" in report.page.render(slow)


def test_the_guide_names_every_constant_and_its_kind():
    guide = (ROOT / "docs" / "tiles.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (documented|estimate) \|$", guide, re.MULTILINE))
    assert rows == {name.split(".")[0]: kind
                    for name, _, kind, _ in CHIPS["gc200"].constants() if not name.startswith("energy.")}
    table = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", guide, re.MULTILINE))
    assert set(table) == {"precision"} | {d.name for d in declarations().values() if d.group == "machine"}       # of the program itself
