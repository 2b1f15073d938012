"""Pages of reports for tests in a browser: small programs, their pages opened, and what stands in them."""
from __future__ import annotations

import copy
import json

import browser as chromium
import pytest

import tileflow
from tileflow import nn, report

VIEWS = ("Summary", "Insights", "Memory", "Liveness", "Variables", "Program", "Operators", "Groups", "Balance",
         "Exchange", "Roofline", "Graph", "Execution")


class Net(nn.Module):
    def __init__(self):
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b = nn.Linear(8 * 64, 96), nn.Linear(96, 10)

    def forward(self, x):
        with nn.Block("first", ipu_id=0):
            x = self.conv(x).relu()
        with nn.Block("second", ipu_id=1):
            return self.b(self.a(x.flatten(1)).relu())


def compiled(**options):
    machine = {"name": "small", "base": "gc200", "tiles": 96}
    return tileflow.compile(Net(), inputs=[(4, 3, 8, 8)], training=True, machine=machine, loss="cross_entropy",
                            **options).report


@pytest.fixture(scope="module")
def several():
    return compiled(strategy="pipelined", gradient_accumulation=6)


@pytest.fixture(scope="module")
def shown():
    with chromium.Browser() as running:
        yield running


def opened(shown, folder, *reports, **how):
    """A tab with the page of a report, or of two."""
    file = folder / "page.html"
    if len(reports) == 1:
        file.write_text(report.page.render(*reports), encoding="utf-8")
    else:
        file.write_text(report.page.render_both(*reports, report.compare.compare(*reports, ("left", "right"))),
                        encoding="utf-8")
    return shown.open(file, **how)


def quiet(page):
    """Nothing was logged or thrown, and nothing asked for."""
    assert page.said == []
    assert page.asked == []


def rows(page, grid=0):
    """Texts of the rows that exist of a table, in order."""
    return page(f"[...document.querySelectorAll('[role=tabpanel]:not([hidden]) .big')][{grid}]"
                ".querySelectorAll('tr[data-row]').values().map(r => [...r.cells].map(c => c.textContent)).toArray()")


def column(page, name, grid=0):
    heads = page("[...document.querySelectorAll('[role=tabpanel]:not([hidden]) "
                 f".big')][{grid}].querySelectorAll('th').values().map(h => h.textContent).toArray()")
    return [row[heads.index(name)] for row in rows(page, grid)]


def tab(page, name):
    page.click(f"#tab-{name}")
    page.frame()


def text(page, selector):
    return page(f"document.querySelector({json.dumps('[role=tabpanel]:not([hidden]) ' + selector)}).innerText")


def long(found, operators):
    """A report of so many operators: those of a real one again and again."""
    big = copy.deepcopy(found)
    times = operators // len(found["steps"])
    n, variables = len(found["steps"]), len(found["variables"])
    big["steps"] = [{**s, "index": i * n + s["index"], "name": f"{s['name']} of layer {i}",
                     "inputs": [k + i * variables for k in s["inputs"]],
                     "outputs": [k + i * variables for k in s["outputs"]]} for i in range(times)
                     for s in found["steps"]]
    if big["energy"]:
        big["energy"]["steps"] *= times
    for i, s in enumerate(big["steps"]):
        s["received"] = [[k if k < 0 else k + i // n * variables, nbytes] for k, nbytes in s["received"]]
    big["variables"] = [{**v, "name": f"{v['name']} of layer {i}",
                         "birth": v["birth"] if v["birth"] is None else v["birth"] + i * n,
                         "death": v["death"] if v["death"] is None else v["death"] + i * n,
                         "heir": v["heir"] if v["heir"] is None else
                         v["heir"] + i * variables} for i in range(times) for v in found["variables"]]
    big["layouts"] = [{**laid, "blocks": [
        {**b, "first": None if b["first"] is None else b["first"] + i * n,
         "last": None if b["last"] is None else b["last"] + i * n}
        for b in laid["blocks"] for i in range(times)]} for laid in big["layouts"][:1]]
    over = big["memory"]["steps"]
    over["fullest"] = over["fullest"] * times
    over["categories"] = {name: values * times for name, values in over["categories"].items()}
    return report.validate(big, "it")
