"""The page in a real browser, headless: filters, sorting, picking, comparison, keyboard; nothing is logged, nothing asked for from elsewhere."""
from __future__ import annotations

import copy

import browser as chromium
import numpy as np
import pytest
import report_pictures
from peers import needs
from report_pages import VIEWS, Net, column, compiled, long, opened, quiet, rows, several, shown, tab, text

import tileflow
from tileflow import report

__all__ = ["several", "shown"]
if chromium.found() is None:
    pytest.skip("needs a browser: apt-get install chromium (or CHROMIUM=its path)", allow_module_level=True)

EVIL = "</script><img src=x onerror=document.title='hacked'><b>fat"
ROW = ".big tr[data-row]"


@pytest.fixture(scope="module")
def one():
    """The report of a program on one IPU, with names that would like to be more than texts."""
    found = compiled(optimizer="adam")
    found["steps"][3]["name"] = EVIL
    found["steps"][3]["sources"] = [EVIL]
    found["variables"][2]["name"] = EVIL
    found["variables"][2]["layer"] = EVIL
    found["model"] = f"net {EVIL}"
    return report.validate(found, "it")


def others(one):
    """Reports that are not like most: replicas, inference, a search, no operator at all, everything in streaming
    memory."""
    yield compiled(replication_factor=4, gradient_accumulation=2)
    yield compiled(strategy="serial_phased", stages=("first", "second"), tensors_liveness="off_chip_after_each_phase")
    yield tileflow.compile(Net(), inputs=[(4, 3, 8, 8)], machine="gc200").report
    points = [{"label": f"{p:g}", "kind": "sweep", "proportion": p, "per_op": {}, "cycles": round(1e6 / (p + 0.1)), "bytes": round(4e5 * (1 + p)),
               "fits": p < 0.6, "best": p == 0.4} for p in (0.1, 0.2, 0.4, 0.8)]
    yield {**one, "frontier": points}
    empty = {**copy.deepcopy(one), "steps": [], "variables": [], "layouts": []}
    memory, empty["energy"]["steps"] = empty["memory"], []
    memory["peak_step"], memory["steps"] = [-1] * 96, {"fullest": [], "categories": {}}
    yield report.validate(empty, "it")
    yield {**one, "out_of_memory": {"message": "Out of tile memory: tile 3 needs more."}, "infeasible": ["much"],
           "levers": [{"name": "recompute", "fits": True, "bytes": 5, "cycles": 7, "slower": 1.25, "samples_per_second": 4.0, "ipus": 1,
                       "sentence": "Tried."}]}


def test_names_keep_their_end(shown, one, tmp_path):
    """Where there is no room for all of a name its end can be seen: there it differs from its neighbours'."""
    found = copy.deepcopy(one)
    slowest = max(found["steps"], key=lambda s: s["cycles_per_update"])
    slowest["name"] = "encoder.layers." * 12 + "(the end)/MatMul_1"
    page = opened(shown, tmp_path, found)
    where = """(name => {
      const box = name.closest('.link, td'), inside = name.getBoundingClientRect();
      const outside = box.getBoundingClientRect();
      return [inside.width > outside.width, Math.round(inside.right - outside.right) <= 1, name.textContent]; })"""
    cut, end, name = page(f"{where}(document.querySelector('.slowest .name bdi'))")
    assert (cut, end, name) == (True, True, slowest["name"])
    tab(page, "operators")
    cells = page(f"[...document.querySelectorAll('[role=tabpanel]:not([hidden]) .big td bdi')].map({where})")
    assert [slowest["name"]] == [name for cut, end, name in cells if cut and end and name == slowest["name"]]
    quiet(page)


@pytest.mark.exhaustive
def test_reports_that_are_not_like_most(shown, one, tmp_path):
    for found in others(one):
        page = opened(shown, tmp_path, found)
        for name in page("[...document.querySelectorAll('[role=tab]')].map(t => t.textContent.toLowerCase())"):
            tab(page, name)
            shapes = "[...document.querySelectorAll('svg path, svg rect, svg circle')]"
            assert page(shapes + ".every(e => !/NaN|Infinity|undefined/.test(e.outerHTML))"), name
            assert not page("/NaN|Infinity|undefined|null|\\[object/.test(document.querySelector('main').innerText)"), name
        quiet(page)


@pytest.mark.parametrize("dark", [False, True])
def test_every_view_opens(shown, one, several, tmp_path, dark):
    for found in (one, several):
        page = opened(shown, tmp_path, found, dark=dark)
        names = page("[...document.querySelectorAll('[role=tab]')].map(t => t.textContent)")
        assert names == list(VIEWS)
        for name in names:
            tab(page, name.lower())
            assert page("[...document.querySelectorAll('[role=tabpanel]')].filter(p => !p.hidden).map(p => p.id)") == [f"panel-{name.lower()}"]
            assert page("document.querySelector('[role=tabpanel]:not([hidden])').innerText.length") > 100
            assert page("[...document.querySelectorAll('svg path, svg rect')].every(e => !/NaN|Infinity|undefined/.test(e.outerHTML))")
            assert page("document.documentElement.scrollWidth") <= 1440, f"{name} is wider than the window"
        quiet(page)


def test_names_are_texts(shown, one, tmp_path):
    page = opened(shown, tmp_path, one)
    assert EVIL in page("document.querySelector('h1').textContent")
    for name in VIEWS:
        tab(page, name.lower())
    assert page("document.querySelectorAll('main img, main b b').length") == 0
    assert page("document.title") == f"net {EVIL}, training"
    quiet(page)


def test_a_page_may_not_run_what_was_put_into_it(shown, one, tmp_path):
    """The policy stops a script that somebody has added, and anything from elsewhere."""
    file = tmp_path / "page.html"
    added = "<script>document.title = 'hacked'</script><img src='https://example.org/x.png'>"
    file.write_text(report.page.render(one).replace("<main>", "<main>" + added), encoding="utf-8")
    page = shown.open(file)
    assert page("document.title") == f"net {EVIL}, training"
    assert any("Content Security Policy" in line for line in page.said)


@pytest.mark.exhaustive
def test_operators_are_filtered_and_sorted(shown, one, tmp_path):
    page = opened(shown, tmp_path, one)
    tab(page, "operators")
    most = sorted(one["steps"], key=lambda s: (-s["cycles_per_update"], s["index"]))
    assert column(page, "operator")[:8] == [s["name"] for s in most[:8]]
    page.click("input[aria-label='Filter operators']")
    page.type("weight backward")
    words = {s["index"]: f"{s['name']} {s['sources']} {s['limit']} {s['vertex']} {s['role']}".lower() for s in most}
    wanted = [s for s in most if "weight" in words[s["index"]] and "backward" in words[s["index"]]]
    assert column(page, "operator") == [s["name"] for s in wanted][:len(rows(page))]
    assert f"{len(wanted)} of {len(most)} rows" in text(page, ".found")
    page("(f => { f.value = ''; f.dispatchEvent(new Event('input')); })(document.querySelector(\"input[aria-label='Filter operators']\"))")
    page("(f => { f.value = 'update'; f.dispatchEvent(new Event('change')); })(document.querySelector(\"select[aria-label='all roles']\"))")
    assert set(column(page, "role")) == {"update"}
    page("(f => { f.value = ''; f.dispatchEvent(new Event('change')); })(document.querySelector(\"select[aria-label='all roles']\"))")
    head = "#panel-operators th:nth-child(1) button"
    page.click(head)
    assert column(page, "operator")[:5] == sorted(s["name"] for s in most)[:5]
    assert page("document.querySelector('#panel-operators th').ariaSort") == "ascending"
    page.click(head)
    assert column(page, "operator")[:5] == sorted((s["name"] for s in most), reverse=True)[:5]
    quiet(page)


@pytest.mark.exhaustive
def test_an_operator_says_why_it_has_its_plan(shown, one, tmp_path):
    page = opened(shown, tmp_path, one)
    tab(page, "operators")
    step = max((s for s in one["steps"] if s["choice"]), key=lambda s: s["cycles_per_update"])
    page.click(f"{ROW}[data-row='{step['index']}']")
    detail = text(page, "div > .card:last-child")
    assert report.format.why(step) in detail
    for n in step["inputs"]:
        assert one["variables"][n]["name"] in detail
    page("[...document.querySelectorAll('#panel-operators .card:last-child .link')].find(b => b.textContent.startsWith('What is live')).click()")
    page.frame()
    assert f"Step {step['index']}\n" in text(page, ".detail")
    quiet(page)


@pytest.mark.exhaustive
def test_variables_are_filtered_and_picked(shown, one, tmp_path):
    page = opened(shown, tmp_path, one)
    tab(page, "variables")
    most = sorted(range(len(one["variables"])), key=lambda i: (-one["variables"][i]["bytes"], i))
    assert column(page, "variable")[:6] == [one["variables"][i]["name"] for i in most[:6]]
    page("(f => { f.value = 'optimizer'; f.dispatchEvent(new Event('change')); })(document.querySelector(\"select[aria-label='all kinds']\"))")
    assert set(column(page, "kind")) == {"optimizer"}
    page.click("input[aria-label='Filter variables']")
    page.type("a.weight")
    assert all("a.weight" in name for name in column(page, "variable"))
    page.click(ROW)
    weight = next(v for v in one["variables"] if v["kind"] == "optimizer" and "a.weight" in v["name"])
    assert f"{weight['bytes']:,} bytes on {weight['tiles']} tiles" in text(page, "div > .card:last-child")
    quiet(page)


def holdings(found, tile):
    """What lies on a tile at its fullest step, by name."""
    step = found["memory"]["peak_step"][tile]
    held = {}
    for v in found["variables"]:
        spread = np.array(found["spreads"][v["spread"]]).reshape(-1, 2)
        nbytes = int(np.repeat(spread[:, 1], spread[:, 0])[tile]) * v["element_bytes"]
        live = v["birth"] is None or (v["birth"] <= step <= v["death"] and not (v["heir"] is not None and v["death"] == step))
        if live and nbytes:
            held[v["name"]] = held.get(v["name"], 0) + nbytes
    return held


@pytest.mark.exhaustive
def test_a_tile_is_picked_by_mouse_keys_and_number(shown, one, tmp_path):
    page = opened(shown, tmp_path, one)
    tab(page, "memory")
    assert page("document.querySelector('#panel-memory input[type=number]').value") == str(one["memory"]["worst_tile"])
    page.click("#panel-memory svg[role=slider]", at=(0.6, 0.6))
    tile = int(page("document.querySelector('#panel-memory input[type=number]').value"))
    assert 40 < tile < 70
    page.key("ArrowRight", "ArrowRight", "ArrowLeft")
    assert page("document.activeElement.getAttribute('aria-valuenow')") == str(tile + 1)
    for t in (tile + 1, 0, 95):
        page(f"(f => {{ f.value = {t}; f.dispatchEvent(new Event('change')); }})(document.querySelector('#panel-memory input[type=number]'))")
        page.frame()
        assert f"Tile {t}\n\n{one['memory']['peak'][t]:,} of {one['memory']['bytes_per_tile']:,} bytes" in text(page, ".detail")
        held = holdings(one, t)
        named = dict(zip(column(page, "variable"), column(page, "bytes here"), strict=True))
        assert named
        assert all(int(n.replace(",", "")) == held[name] for name, n in named.items() if name != EVIL)
    quiet(page)


def stacked(found, laid, step):
    """What lies at the addresses of a tile at a step, with the gaps: (address, bytes)."""
    rows, end = [], 0
    for b in laid["blocks"]:
        if b["first"] is None or b["first"] <= step <= b["last"]:
            rows += [(end, b["start"] - end)] * (b["start"] > end) + [(b["start"], b["bytes"])]
            end = b["start"] + b["bytes"]
    bound = found["memory"]["bytes_per_tile"]
    return rows + [(end, bound - end)] * (end < bound)


@pytest.mark.exhaustive
def test_addresses_and_gaps_of_a_tile(shown, several, tmp_path):
    """A step is picked by mouse and keys; the table is what lies there, gaps included; a tile that was not laid out names those that were."""
    page = opened(shown, tmp_path, several)
    tab(page, "memory")
    fullest = max(several["ipus"], key=lambda i: i["worst"])
    laid = next(x for x in several["layouts"] if x["ipu"] == fullest["number"] and x["tile"] == fullest["memory"]["worst_tile"])
    lost = laid["extent"] - fullest["worst"]
    assert f"Laid out, it takes {laid['extent']:,} of" in page("document.querySelector('#panel-memory').innerText")
    assert f"{lost:,} more than it holds at most" in page("document.querySelector('#panel-memory').innerText")
    mine = [s["index"] for s in several["steps"] if s["ipu"] == fullest["number"]]

    def table():
        return [tuple(int(row[i].replace(",", "")) for i in (0, 1)) for row in rows(page, 1)]
    assert table() == stacked(several, laid, fullest["memory"]["peak_step"][laid["tile"]])[:len(table())]
    page("document.querySelectorAll('#panel-memory svg[role=slider]')[1].focus()")
    page.key("Home")
    assert table() == stacked(several, laid, mine[0])[:len(table())]
    page.key("End", "ArrowLeft")
    assert page("document.activeElement.getAttribute('aria-valuenow')") == str(len(mine) - 2)
    assert table() == stacked(several, laid, mine[-2])[:len(table())]
    gap = sum(n for (at, n) in stacked(several, laid, mine[-2])[:-1] if not any(b["start"] == at for b in laid["blocks"]))
    assert f"{gap:,} bytes are gaps" in text(page, ".lost")
    others = [t for t in range(96) if t not in {x["tile"] for x in several["layouts"] if x["ipu"] == fullest["number"]}]
    page(f"(f => {{ f.value = {others[-1]}; f.dispatchEvent(new Event('change')); }})(document.querySelector('#panel-memory input[type=number]'))")
    page.frame()
    assert f"Addresses of tile {others[-1]}" in page("document.querySelector('#panel-memory').innerText")
    quiet(page)


def drawn(page, ipu, tile):
    """Picks a tile; what it takes, laid out, as the page says it."""
    if page("!!document.querySelector('#panel-memory select')"):
        page(f"(s => {{ s.value = {ipu}; s.dispatchEvent(new Event('change')); }})(document.querySelector('#panel-memory select'))")
    page(f"(f => {{ f.value = {tile}; f.dispatchEvent(new Event('change')); }})(document.querySelector('#panel-memory input[type=number]'))")
    page.frame()
    return page("document.querySelector('#panel-memory').innerText").split("Laid out, it takes ")[1].split(" of")[0]


@pytest.mark.exhaustive
def test_the_page_lays_out_any_tile_as_the_report_does(shown, one, several, tmp_path):
    """Its addresses are those of report.json where that has them, at every step; and those of any other tile hold what the tile holds then."""
    for found in (one, several, compiled(strategy="serial_phased", stages=("first", "second"), tensors_liveness="off_chip_after_each_phase")):
        page = opened(shown, tmp_path, found)
        tab(page, "memory")
        for laid in found["layouts"]:
            assert drawn(page, laid["ipu"], laid["tile"]) == f"{laid['extent']:,}"
            mine = [s["index"] for s in found["steps"] if s["ipu"] == laid["ipu"] or not found["ipus"]]
            page("document.querySelectorAll('#panel-memory svg[role=slider]')[1].focus()")
            for k in (0, len(mine) // 3, len(mine) // 2, len(mine) - 1):
                page.key("Home", *["ArrowRight"] * k)
                wanted = stacked(found, laid, mine[k])
                table = [tuple(int(row[i].replace(",", "")) for i in (0, 1)) for row in rows(page, 1)]
                assert table == wanted[:len(table)]
        quiet(page)


@pytest.mark.exhaustive
def test_tiles_side_by_side(shown, one, several, tmp_path):
    """Tiles are kept by button, by Shift and by Enter; the table has what each holds; any is left out again."""
    page = opened(shown, tmp_path, one)
    tab(page, "memory")
    side = "[...document.querySelectorAll('#panel-memory .card')].find(c => c.querySelector('h2').textContent === 'Tiles side by side')"
    assert not page(f"!!{side}")
    first = one["memory"]["worst_tile"]
    page("[...document.querySelectorAll('#panel-memory button')].find(b => b.textContent === 'Compare this tile').click()")
    page("document.querySelector('#panel-memory svg[role=slider]').focus()")
    page.key("End", "ArrowLeft", "Enter", "Enter")
    assert page("document.activeElement.getAttribute('role')") == "slider"
    page.key("ArrowLeft", "Enter")
    picked = [first, 94, 93]
    heads = page(f"[...{side}.querySelectorAll('.plain th')].map(t => t.textContent)")
    assert heads == ["category", *(f"tile {t} ×" for t in picked)]
    cells = page(f"[...{side}.querySelectorAll('.plain tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    by_name = {row[0]: row[1:] for row in cells}
    for kind in one["memory"]["kinds"]:
        assert by_name[kind["name"]] == [f"{one['memory']['categories'][kind['name']][t]:,}" for t in picked]
    assert by_name["all"] == [f"{one['memory']['peak'][t]:,}" for t in picked]
    held = [holdings(one, t) for t in picked]
    grid = rows(page)
    assert len(grid) > 3
    for name, _, apart, *bytes_ in grid:
        if name != EVIL:
            wanted = [h.get(name, 0) for h in held]
            assert [int(n.replace(",", "")) for n in bytes_] == wanted
            assert int(apart.replace(",", "")) == max(wanted) - min(wanted)
    page(f"{side}.querySelector('.drop').click()")
    page.frame()
    assert page(f"[...{side}.querySelectorAll('.plain th')].map(t => t.textContent)") == ["category", "tile 94 ×", "tile 93 ×"]
    page("document.querySelectorAll('.drop').forEach(() => document.querySelector('.drop').click())")
    assert not page(f"!!{side}")
    quiet(page)
    page = opened(shown, tmp_path, several)
    tab(page, "memory")
    for ipu in (0, 1):
        page(f"(f => {{ f.value = '{ipu}'; f.dispatchEvent(new Event('change')); }})(document.querySelector(\"select[aria-label='IPU']\"))")
        page("[...document.querySelectorAll('#panel-memory button')].find(b => b.textContent === 'Compare this tile').click()")
    names = [f"IPU {i['number']}, tile {i['memory']['worst_tile']} ×" for i in several["ipus"]]
    assert page(f"[...{side}.querySelectorAll('.plain th')].map(t => t.textContent)") == ["category", *names]
    quiet(page)


@pytest.mark.exhaustive
def test_what_is_always_live_can_be_left_out(shown, several, tmp_path):
    page = opened(shown, tmp_path, several)
    tab(page, "memory")
    layers = page("[...document.querySelectorAll('#panel-memory .legend span')].map(s => s.textContent)")
    assert layers == [k["name"] for k in several["memory"]["kinds"]]
    page.click("#panel-memory input[type=checkbox]")
    layers = page("[...document.querySelectorAll('#panel-memory .legend span')].map(s => s.textContent)")
    assert layers == [k["name"] for k in several["memory"]["kinds"] if not k["always_live"]]
    page("(f => { f.value = '0'; f.dispatchEvent(new Event('change')); })(document.querySelector(\"#panel-memory select[aria-label='IPU']\"))")
    page.frame()
    assert f"Tile {several['ipus'][0]['memory']['worst_tile']}\n\n{several['ipus'][0]['worst']:,} of" in text(page, ".detail")
    quiet(page)


@pytest.mark.exhaustive
def test_a_step_says_what_is_live(shown, several, tmp_path):
    page = opened(shown, tmp_path, several)
    tab(page, "liveness")
    page.click("#panel-liveness svg[role=slider]", at=(0.5, 0.6))
    page.key("Home")
    assert page("document.activeElement.getAttribute('aria-valuenow')") == "0"
    page.key("ArrowRight", "End", "ArrowLeft")
    ipu = next(i for i in several["ipus"] if i["worst"] == max(j["worst"] for j in several["ipus"]))
    mine = [s["index"] for s in several["steps"] if s["ipu"] == ipu["number"]]
    step = mine[-2]
    assert f"Step {step}\n" in text(page, ".detail")
    here = [v for v in several["variables"] if v["ipu"] == ipu["number"] and v["birth"] is not None and v["birth"] <= step <= v["death"]
            and not (v["heir"] is not None and v["death"] == step)]
    assert f"{len(here)} rows" in text(page, ".found")
    total = sum(values[step] for values in ipu["memory"]["steps"]["categories"].values())
    assert f"all\t{total:,}" in text(page, ".detail")
    quiet(page)


@pytest.mark.exhaustive
def test_views_tables_and_trees_by_keyboard(shown, several, tmp_path):
    page = opened(shown, tmp_path, several)
    page.key("Tab")
    assert page("document.activeElement.id") == "tab-summary"
    assert page("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.key("ArrowRight", "ArrowRight")
    assert page("document.activeElement.id") == "tab-memory"
    page.key("End", "ArrowLeft")
    assert page("location.hash") == "#graph"
    tab(page, "operators")
    page("document.querySelector('#panel-operators .big').focus()")
    page.key("End", "Home", "PageDown", "ArrowUp", "Enter")
    chosen = page("document.querySelector('#panel-operators tr[aria-selected=true]').dataset.row")
    assert several["steps"][int(chosen)]["name"] in text(page, "div > .card:last-child")
    assert page("document.activeElement.getAttribute('aria-activedescendant')") == page("document.querySelector('tr[aria-selected=true]').id")
    tab(page, "program")
    page("document.querySelector('[role=treeitem][tabindex=\"0\"]').focus()")
    page.key("End", "Home")
    while page("document.activeElement.ariaExpanded") != "false":
        before = page("document.activeElement.innerText")
        page.key("ArrowDown")
        assert page("document.activeElement.innerText") != before
    page.key("ArrowRight")
    assert page("document.activeElement.ariaExpanded") == "true"
    page.key("ArrowRight")
    assert page("document.activeElement.ariaLevel") == "3"
    page.key("ArrowLeft", "ArrowLeft")
    assert page("document.activeElement.ariaExpanded") == "false"
    quiet(page)


@pytest.mark.exhaustive
def test_the_tree_has_the_cycles_of_the_schedule(shown, several, tmp_path):
    page = opened(shown, tmp_path, several)
    tab(page, "program")
    numbers = page("[...document.querySelectorAll('.tree > li > .row .number')].map(n => n.textContent)")
    assert sum(int(n.replace(",", "").removesuffix(" cycles")) for n in numbers if n) == several["totals"]["cycles"]
    replicas = compiled(replication_factor=4, gradient_accumulation=2)
    page = opened(shown, tmp_path, replicas)
    tab(page, "program")
    lines = page("[...document.querySelectorAll('.tree > li .row')].map(n => [n.closest('li').ariaLevel, n.querySelector('.words').textContent, "
                 "n.querySelector('.number').textContent])")
    together = replicas["collectives"][0]
    assert any(words == f"{together['kind']} over 4 replicas" for _, words, _ in lines)
    assert sum(int(n.replace(",", "").removesuffix(" cycles")) for level, _, n in lines if level == "1" and n) == replicas["totals"]["cycles"]


@pytest.mark.exhaustive
def test_the_trace_is_zoomed_and_moved(shown, several, tmp_path):
    page = opened(shown, tmp_path, several)
    tab(page, "execution")
    # what is waited for the host included
    total = round(several["totals"]["seconds"] * several["chip"]["clock_hz"])

    def span():
        low, high = (int(n.replace(",", "")) for n in text(page, ".choices p").removeprefix("Cycles ").split(" of ")[0].split(" to "))
        return low, high
    assert span() == (0, total)
    assert page("[...document.querySelectorAll('.trace .tick')].map(t => t.textContent).filter(t => t.startsWith('IPU'))") == ["IPU 0", "IPU 1"]
    roles = {"forward", "backward", "fold", "update"}
    assert roles <= set(page("[...document.querySelectorAll('#panel-execution .legend span')].map(s => s.textContent)"))
    page.click("#panel-execution .trace", at=(0.5, 0.98))
    page.key("+", "+", "+", "ArrowRight")
    low, high = span()
    assert 0 < low < high < total
    page.key("0")
    box = page("(b => [b.x, b.y, b.width, b.height])(document.querySelector('.trace').getBoundingClientRect())")
    for _ in range(12):
        page.mouse(box[0] + box[2] * 0.4, box[1] + 20, "wheel", -100)
    low, high = span()
    assert high - low < total / 10
    operators = page("[...document.querySelectorAll('.trace .block rect')].filter(r => r.getAttribute('fill') === 'var(--op)').length")
    assert operators > 3
    page("[...document.querySelectorAll('.trace .block rect')].find(r => r.getAttribute('fill') === 'var(--op)')"
         ".dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert "cycles" in text(page, "div > .card")
    page.key("0")
    quiet(page)


@pytest.mark.exhaustive
def test_two_reports_side_by_side(shown, one, tmp_path):
    other = copy.deepcopy(one)
    other["steps"][5]["cycles_per_update"] += 5_000_000
    other["steps"][9]["cycles_per_update"] += 77
    other["variables"][4]["bytes"] += 1000
    other["model"] = "changed"
    page = opened(shown, tmp_path, one, other)
    assert page("document.querySelector('[role=tab]').textContent") == "Comparison"
    assert column(page, "operator") == [one["steps"][5]["name"], one["steps"][9]["name"]]
    assert column(page, "B − A") == ["+5,000,000", "+77"]
    before = one["steps"][5]["cycles_per_update"]
    assert column(page, "change")[0] == f"+{100 * 5_000_000 / before:.1f} %"
    assert column(page, "variable", 1) == [one["variables"][4]["name"]]
    page.click("#panel-comparison input[type=search]")
    page.type("no such thing")
    assert rows(page) == []
    page("document.querySelectorAll('#head input[type=radio]')[1].click()")
    page.frame()
    assert page("document.querySelector('h1').textContent") == "changed, training"
    for name in page("[...document.querySelectorAll('[role=tab]')].map(t => t.textContent.toLowerCase())"):
        tab(page, name)
    quiet(page)


@pytest.mark.exhaustive
def test_the_point_that_tuning_took_is_seen(shown, one, tmp_path):
    """Others may lie on the same place; it is drawn over them."""
    point = {"kind": "sweep", "proportion": 0.1, "per_op": {}, "cycles": 1000, "bytes": 400_000, "fits": True}
    points = [{**point, "label": "taken", "best": True}, {**point, "label": "the same", "best": False},
              {**point, "label": "slower", "cycles": 3000, "bytes": 300_000, "best": False}]
    page = opened(shown, tmp_path, {**one, "frontier": points})
    assert page("[...document.querySelectorAll('circle')].map(c => c.getAttribute('class'))") == ["point", "point", "best"]
    quiet(page)


@pytest.mark.exhaustive
def test_links_open_what_they_name(shown, one, tmp_path):
    page = opened(shown, tmp_path, one)
    tab(page, "insights")
    for title, panel in (("Slowest operators", "operators"), ("Fullest tiles", "memory"), ("Largest variables", "variables"),
                         ("What limits", "operators")):
        page(f"document.querySelector('#tab-insights').click(); [...document.querySelectorAll('#panel-insights .card')]"
             f".find(c => c.querySelector('h2').textContent === '{title}').querySelector('.link').click()")
        assert page("location.hash") == f"#{panel}"
    quiet(page)


@pytest.mark.exhaustive
def test_print_shows_all_views(shown, one, tmp_path):
    page = opened(shown, tmp_path, one)
    filled = "[...document.querySelectorAll('[role=tabpanel]')].filter(p => p.childElementCount).length"
    page(f"addEventListener('afterprint', () => {{ window.printed = {filled}; }})")
    page.send("Page.printToPDF")
    page.until(f"window.printed === {len(VIEWS)}")
    assert page("[...document.querySelectorAll('[role=tabpanel]')].filter(p => !p.hidden).length") == 1
    quiet(page)


@pytest.mark.exhaustive
def test_a_narrow_window(shown, several, tmp_path):
    page = opened(shown, tmp_path, several, width=420, height=800)
    for name in page("[...document.querySelectorAll('[role=tab]')].map(t => t.textContent.toLowerCase())"):
        tab(page, name)
        assert page("document.documentElement.scrollWidth") <= 420, name
    quiet(page)


@pytest.mark.exhaustive
def test_fifty_thousand_operators_open_in_two_seconds(shown, one, tmp_path):
    """Of the browser's own time, so that a busy machine changes nothing; and each view on its own."""
    page = opened(shown, tmp_path, long(one, 50_000))

    def seconds():
        return next(m["value"] for m in page.send("Performance.getMetrics")["metrics"] if m["name"] == "TaskDuration")
    page.send("Performance.enable", timeDomain="threadTicks")
    page.send("Page.reload")
    page.until("document.readyState === 'complete' && document.querySelectorAll('[role=tab]').length === 13")
    page.frame()
    assert seconds() < 2
    for name in map(str.lower, VIEWS[1:]):
        before = seconds()
        tab(page, name)
        assert seconds() - before < 2, name
    tab(page, "operators")
    assert page("document.querySelectorAll('#panel-operators tr[data-row]').length") < 80
    before = seconds()
    page.click("input[aria-label='Filter operators']")
    page.type("layer 77")
    assert seconds() - before < 1
    quiet(page)


@pytest.mark.exhaustive
def test_the_pictures_of_the_docs_are_taken(one, several, tmp_path):
    """`python tests/report_pictures.py` takes those of a larger network; none is empty, and no two are alike."""
    Image = needs("PIL.Image")
    taken = report_pictures.take(report_pictures.write([one, several, one], tmp_path), tmp_path, height=700)
    assert {f.name for f in taken} == {f"{name}.png" for name in report_pictures.PICTURES}
    assert len({f.read_bytes() for f in taken}) == len(taken)
    for file in taken:
        before = file.stat().st_size
        report_pictures.small(file)
        with Image.open(file) as picture:
            assert picture.size == (1320, 700)
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 20
        assert file.stat().st_size < before
        assert (report_pictures.DOCS / file.name).stat().st_size < 120_000
