"""Balance, traffic, roofline, graph and groups in a real browser: what they show adds up to what the report says."""
from __future__ import annotations

import re

import browser as chromium
import numpy as np
import pytest
from report_pages import VIEWS, column, compiled, opened, quiet, several, shown, tab, text

from tileflow import report

__all__ = ["several", "shown"]
if chromium.found() is None:
    pytest.skip("needs a browser: apt-get install chromium (or CHROMIUM=its path)", allow_module_level=True)

WORK = ("compute", "transform", "reduce")
HOSTILE = "</script><img src=x onerror=document.title='hacked'><b>an operator with a long name, which ends in /MatMul_7"


@pytest.fixture(scope="module")
def one():
    return compiled(optimizer="adam")


def per_tile(found, number):
    lengths, values = np.array(found["spreads"][number]).reshape(-1, 2).T
    return np.repeat(values, lengths)


def work_of(found, ipu):
    """Cycles that each tile works in an update, and those of the slowest tile of each operator."""
    total, slowest = np.zeros(96), 0
    for s in found["steps"]:
        points = per_tile(found, s["points"])
        if (s["ipu"] == ipu or not found["ipus"]) and points.max():
            work = sum(s["phases"][p] for p in WORK) * s["repeats"]
            total, slowest = total + work * points / points.max(), slowest + work
    return total, slowest


def choose(page, label, value):
    page(f"(s => {{ s.value = '{value}'; s.dispatchEvent(new Event('change')); }})"
         f"(document.querySelector(\"[role=tabpanel]:not([hidden]) select[aria-label='{label}']\"))")
    page.frame()


def number(words):
    return int(words.replace(",", ""))


def test_what_colours_tell_apart_patterns_do_too(shown, one, tmp_path):
    """Areas, bars and legends: a pattern for each category, the same wherever it is drawn."""
    page = opened(shown, tmp_path, one)
    for view in ("memory", "liveness", "balance", "execution", "summary"):
        tab(page, view)
        panel = f"document.querySelector('#panel-{view}')"
        fills = page(f"[...{panel}.querySelectorAll('path, rect')].map(p => p.getAttribute('fill') || '')")
        for fill in {f for f in fills if f.startswith("url(")}:
            assert page(f"document.querySelector('{fill[4:-1]}').tagName") == "pattern"
        dots = page(
            f"[...{panel}.querySelectorAll('.legend')].map(l => [...l.querySelectorAll('.dot')].map(d => "
            "getComputedStyle(d).backgroundImage))"
        )
        assert any(len(found) > 2 for found in dots) or view == "balance"
        for found in dots:
            patterns = [image.replace("rgba(0, 0, 0, 0.353)", "ink").replace("rgba(255, 255, 255, 0.44)", "ink")
                        for image in found]
            assert len({*patterns}) == len(patterns), f"two of {view} are alike but for their colour: {patterns}"
        if view != "summary":
            assert any(f.startswith("url(") for f in fills), view
    assert page("[...document.querySelectorAll('#panel-summary .bar i')].some(i => getComputedStyle(i).backgroundImage "
                "!== 'none')")
    quiet(page)


@pytest.mark.parametrize("pipelined", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_cycles_of_each_tile(shown, one, several, tmp_path, pipelined):
    """A tile's cycles are its share of each operator's, whatever the colours; all wait for the slowest of each."""
    found = several if pipelined else one
    page = opened(shown, tmp_path, found)
    tab(page, "balance")
    for ipu in (0, 1) if pipelined else (0,):
        if pipelined:
            choose(page, "IPU", ipu)
        total, slowest = work_of(found, ipu)
        assert f"{slowest:,} cycles in all" in text(page, ".card")
        assert f"the mean tile works {100 * total.mean() / slowest:.1f} % of them" in text(page, ".card")
        for by in ("type", "role", "phases"):
            choose(page, "Colours by", by)
            page("document.querySelector('#panel-balance svg[role=slider]').focus()")
            for keys, tile in ((("Home",), 0), (("ArrowRight", "ArrowRight"), 2), (("End",), 95)):
                page.key(*keys)
                assert page("document.activeElement.getAttribute('aria-valuenow')") == str(tile)
                said = page("document.activeElement.getAttribute('aria-valuetext')")
                assert said.startswith(f"tile {tile}: {round(total[tile]):,} cycles")
                parts = [number(n) for n in re.findall(r"[a-zA-Z] ([\d,]*\d)(?:,|$)", said)]
                assert abs(sum(parts) - total[tile]) <= len(parts)
                here = [number(n) for n in column(page, "cycles here")]
                assert sum(here) <= total[tile] + len(here)
                if f"{len(here)} rows" == text(page, ".found"):              # all of them exist
                    assert abs(sum(here) - total[tile]) <= len(here)
    quiet(page)


@pytest.mark.exhaustive
def test_what_keeps_tiles_waiting(shown, one, tmp_path):
    page = opened(shown, tmp_path, one)
    tab(page, "balance")
    waits = {}
    for s in one["steps"]:
        points = per_tile(one, s["points"])
        work = sum(s["phases"][p] for p in WORK) * s["repeats"]
        waits[s["name"]] = work * (1 - points.mean() / points.max()) if points.max() else 0
    most = sorted(waits, key=lambda name: -waits[name])[:5]
    assert [number(n) for n in column(page, "mean waits", 1)[:5]] == [round(waits[name]) for name in most]
    page("[...document.querySelectorAll('#panel-balance .link')]"
         ".find(b => b.textContent === 'What is in its memory').click()")
    assert page("location.hash") == "#memory"
    quiet(page)


def traffic(found, ipu):
    """Bytes of an update from tile to tile, [96, 96], by the rule of docs/report.md."""
    matrix = np.zeros((96, 96))
    for s in found["steps"]:
        on = per_tile(found, s["running"]["spread"])
        for v, nbytes in s["received"] if s["ipu"] == ipu else ():
            held = on if v < 0 else per_tile(found, found["variables"][v]["spread"])
            matrix += np.outer(held / held.sum(), on * nbytes * s["repeats"])
    return matrix


@pytest.mark.exhaustive
def test_who_sends_to_whom(shown, several, tmp_path):
    """Squares and table add up to what operators are sent, on the tiles of each; keys go from square to square."""
    page = opened(shown, tmp_path, several)
    tab(page, "exchange")
    for ipu in (0, 1):
        choose(page, "IPU", ipu)
        matrix = traffic(several, ipu).reshape(16, 6, 16, 6).sum((1, 3))
        mine = [s for s in several["steps"] if s["ipu"] == ipu]
        assert matrix.sum() == pytest.approx(sum(n * s["repeats"] * per_tile(several, s["running"]["spread"]).sum()
                                                 for s in mine for _, n in s["received"]))
        assert text(page, ".card p").startswith(report.format.size(matrix.sum()))
        cycles = sum(s["phases"]["exchange"] * s["repeats"] for s in mine)
        assert f"in {cycles:,} cycles of exchange" in text(page, ".card p")
        page("document.querySelector('#panel-exchange .heat').focus()")
        page.key("Home")
        for keys, (a, b) in (((), (0, 0)), (("ArrowDown", "ArrowRight", "ArrowRight"), (1, 2)),
                             (("End", "ArrowRight", "ArrowUp"), (14, 15))):
            page.key(*keys)
            said = page("document.activeElement.getAttribute('aria-valuetext')")
            assert said.startswith(f"tiles {6 * a}–{6 * a + 5} send tiles {6 * b}–{6 * b + 5} ")
            assert said.endswith(f", {100 * matrix[a, b] / matrix.sum():.1f} %")
        shares = column(page, "share")
        assert len(shares) > 3
        assert sum(float(n.removesuffix(" %")) for n in shares) == pytest.approx(100, abs=0.06 * len(shares))
        assert "weights" in column(page, "from")
        choose(page, "Called by", "source")
        assert ({"a", "b"} if ipu else {"conv"}) <= set(column(page, "to"))
        choose(page, "Called by", "op")
    quiet(page)


@pytest.mark.exhaustive
def test_no_operator_is_above_its_roofs(shown, one, tmp_path):
    """By hand from the report; keys go through them, the longest first, and open the one that is picked."""
    hz, tiles = one["chip"]["clock_hz"], one["chip"]["tiles"]
    constants = {c["name"]: c["value"] for c in one["chip"]["constants"]}
    bandwidth = tiles * constants["exchange_bytes_per_cycle"] * constants["tiles_per_bus"] * hz
    computing = [s for s in one["steps"] if s["flops"] and s["cycles"]]
    for s in computing:
        sent, rate = sum(n for _, n in s["received"]) * s["tiles"], s["flops"] * hz / s["cycles"]
        assert s["utilisation"] <= 1
        assert not sent or rate <= s["flops"] / sent * bandwidth * 1.001, s["name"]
    page = opened(shown, tmp_path, one)
    tab(page, "roofline")
    page("document.querySelector('#panel-roofline svg').focus()")
    longest = sorted(computing, key=lambda s: (-s["cycles_per_update"], s["index"]))
    for key, s in zip(("Home", "ArrowRight", "ArrowRight"), longest, strict=False):
        page.key(key)
        said = page("document.activeElement.getAttribute('aria-valuetext')")
        assert said.startswith(s["name"])
        assert f"{100 * s['utilisation']:.1f} % of its peak" in said
        assert f"{s['cycles_per_update']:,} cycles" in said
    page.key("Enter")
    assert page("location.hash") == "#operators"
    assert text(page, "div > .card:last-child").startswith(longest[2]["name"])
    quiet(page)


@pytest.mark.exhaustive
def test_the_graph_by_keys_search_and_mouse(shown, one, tmp_path):
    """Keys go along tensors; words find operators; 0 shows all; the operator under the mouse is picked."""
    page = opened(shown, tmp_path, one)
    tab(page, "graph")
    made = {v: s["index"] for s in reversed(one["steps"]) for v in s["outputs"]}
    assert f"of {len(one['steps']):,} operators are in sight" in text(page, ".choices")
    page("document.querySelector('#panel-graph svg').focus()")
    page.key("Home")

    def at():
        return text(page, ".card:last-child h2")
    assert at() == one["steps"][0]["name"]
    page.key("ArrowRight")
    after = next(s for s in one["steps"][1:] if any(made.get(v) == 0 for v in s["inputs"]))
    assert at() == after["name"]
    page.key("ArrowLeft")
    assert at() == one["steps"][0]["name"]
    page.key("End")
    assert at() == one["steps"][-1]["name"]
    page.key("0")
    everything = f"{len(one['steps']):,}"
    assert f"\n{everything} of {everything} operators are in sight" in text(page, ".choices")
    page.click("#panel-graph input[type=search]")
    page.type("convweight grad")
    found = [s["name"] for s in one["steps"] if "ConvWeightGrad" in s["op"]]
    assert f"{len(found):,} found" in text(page, ".choices")
    page.key("Enter")
    assert at() == found[0]
    box = page("(b => [b.x + b.width / 2, b.y + b.height / 2])"
               "(document.querySelector('#panel-graph .chosen').getBoundingClientRect())")
    page("document.querySelector('#panel-graph svg').focus()")
    page.key("ArrowLeft", "ArrowRight", "Home")
    assert at() == one["steps"][0]["name"]
    page.click("#panel-graph input[type=search]")
    page.key("Enter")
    page.mouse(*box)
    page.frame()
    assert at() == found[0]
    drag(page, "#panel-graph svg", box, (box[0] + 60, box[1] + 40))
    assert at() == found[0]
    moved = page("(b => [b.x + b.width / 2, b.y + b.height / 2])"
                 "(document.querySelector('#panel-graph .chosen').getBoundingClientRect())")
    assert moved == pytest.approx([box[0] + 60, box[1] + 40], abs=2)
    page("document.querySelector('#panel-graph svg').focus()")
    page.key("Enter")
    assert page("location.hash") == "#operators"
    quiet(page)


def drag(page, selector, start, end):
    """From a place of the window to another, with the button down, in two moves."""
    middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
    for kind, (x, y), buttons in (("pointerdown", start, 1), ("pointermove", middle, 1), ("pointermove", end, 1),
                                  ("pointerup", end, 0), ("click", end, 0)):
        page(f"document.querySelector('{selector}').dispatchEvent(new PointerEvent('{kind}', {{bubbles: true, "
             f"clientX: {x}, clientY: {y}, buttons: {buttons}}}))")
    page.frame()


@pytest.mark.exhaustive
def test_operators_in_groups(shown, one, tmp_path):
    """Groups have the cycles of their operators, and open these."""
    page = opened(shown, tmp_path, one)
    for by, of in (("op", lambda s: s["op"]), ("role", lambda s: s["role"]),
                   ("source", lambda s: ", ".join(s["sources"]) or "none")):
        tab(page, "groups")
        choose(page, "Group by", by)
        cycles = {}
        for s in one["steps"]:
            cycles[of(s)] = cycles.get(of(s), 0) + s["cycles_per_update"]
        largest = sorted(cycles, key=lambda name: -cycles[name])
        assert column(page, "group")[:3] == largest[:3]
        assert [number(n) for n in column(page, "cycles")[:3]] == [cycles[name] for name in largest[:3]]
        page("document.querySelector('#panel-groups .big').focus()")
        page.key("Home", "Enter")
        assert page("location.hash") == "#operators"
        mine = [s["name"] for s in one["steps"] if of(s) == largest[0]]
        assert set(column(page, "operator")) <= set(mine)
        assert text(page, ".found").startswith(f"{len(mine)} of {len(one['steps'])} rows")
        page("[...document.querySelectorAll('#panel-operators .link')].find(b => b.textContent === 'Show all').click()")
        assert text(page, ".found") == f"{len(one['steps'])} rows"
    quiet(page)


JOULES = {"J": 1.0, "mJ": 1e-3, "µJ": 1e-6, "nJ": 1e-9}


def joules(words):
    low, _, high = words.rpartition(" ")[0].partition(" to ")
    return [float(v) * JOULES[words.rpartition(" ")[2]] for v in (low, high or low)]


def test_energy_of_operators_and_groups_adds_up(shown, one, tmp_path):
    """A group takes what its operators do, all groups what the program does; a chip that says nothing has no such
    column."""
    page = opened(shown, tmp_path, one)
    found = one["energy"]
    assert found["per_sample"] is None or "Energy: a sample takes" in text(page, "")
    tab(page, "groups")
    choose(page, "Group by", "op")
    groups = [joules(words) for words in column(page, "energy")]
    on_tiles = [sum(found["categories"][name][end] for name in ("arithmetic", "tile memory", "exchange"))
                for end in (0, 1)]
    assert len(groups) > 3
    np.testing.assert_allclose(np.sum(groups, 0), on_tiles, rtol=0.01)
    tab(page, "operators")
    first = [joules(words) for words in column(page, "energy")[:3]]
    by_cycles = sorted(range(len(one["steps"])), key=lambda i: (-one["steps"][i]["cycles_per_update"], i))[:3]
    wanted = [[sum(v[end] for v in found["steps"][i].values()) for end in (0, 1)] for i in by_cycles]
    np.testing.assert_allclose(first, wanted, rtol=0.01)
    quiet(page)
    without = opened(shown, tmp_path, {**one, "energy": None})
    tab(without, "groups")
    assert "energy" not in text(without, ".big")
    quiet(without)


@pytest.mark.exhaustive
def test_operators_of_the_execution_by_keys(shown, several, tmp_path):
    page = opened(shown, tmp_path, several)
    tab(page, "execution")
    page("document.querySelector('#panel-execution .trace').focus()")
    names = [s["name"] for s in several["steps"] if s["cycles"]]
    for keys, k in ((".", 0), (".", 1), ("..", 3), (",", 2), ("." * 20, 22)):
        page.key(*keys)
        assert text(page, "div > .card h2") == names[k]
    assert page("[...document.querySelectorAll('.trace rect')].some(r => r.getAttribute('fill') === 'var(--accent)')")
    page.key("-", "-")
    low, high = span(page)
    box = page("(b => [b.x, b.y, b.width, b.height])(document.querySelector('.trace').getBoundingClientRect())")
    start = box[0] + box[2] * 0.5, box[1] + 20
    drag(page, "#panel-execution .trace", start, (start[0] - 100, start[1]))
    moved = span(page)
    assert moved[1] - moved[0] == pytest.approx(high - low, abs=2)
    assert moved[0] > low
    page.key("Enter")
    assert page("location.hash") == "#operators"
    quiet(page)


def span(page):
    """First and last cycle that the execution shows."""
    return tuple(number(n) for n in re.match(r"Cycles ([\d,]+) to ([\d,]+) of", text(page, ".choices p")).groups())


@pytest.mark.exhaustive
def test_hostile_names_and_large_numbers(shown, one, tmp_path):
    """Names are texts in the new views, too; no number is written with an exponent; what has no shares yet says so."""
    found = {**one, "steps": [dict(s) for s in one["steps"]]}
    for s in found["steps"]:
        s["name"], s["op"], s["sources"], s["flops"] = f"{s['index']} {HOSTILE}", HOSTILE, [HOSTILE], s["flops"] * 1e7
    page = opened(shown, tmp_path, found)
    for name in VIEWS:
        tab(page, name.lower())
        assert page("document.querySelectorAll('main img, main b b').length") == 0
        assert not page("/\\d(\\.\\d+)?e[+-]?\\d/.test(document.querySelector('main').innerText)"), name
    tab(page, "graph")
    names = page("[...document.querySelectorAll('#panel-graph svg text')].map(t => t.textContent)")
    assert names
    assert all(HOSTILE.endswith(name.removeprefix("…")) for name in names)
    bare = {**one, "steps": [{k: v for k, v in s.items() if k not in ("points", "received")} for s in one["steps"]]}
    page = opened(shown, tmp_path, report.validate(bare, "it"))
    for name in ("balance", "exchange", "roofline"):
        tab(page, name)
        assert "This report does not say" in text(page, ".card")
    for name in VIEWS:
        tab(page, name.lower())
    quiet(page)
