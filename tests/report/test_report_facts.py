"""report.json of programs that were really planned: its schema, every byte of every tile and step accounted for by variables, older versions."""
from __future__ import annotations

import copy
import itertools
import json

import numpy as np
import pytest
import report_fields
from peers import needs

import tileflow
from tileflow import nn, report
from tileflow.report import schema
from tileflow.system.errors import ReportError


class Net(nn.Module):
    def __init__(self):
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.a, self.b = nn.Linear(8 * 64, 96), nn.Linear(96, 10)

    def forward(self, x):
        with nn.Block("first", ipu_id=0):
            x = self.norm(self.conv(x)).relu()
        with nn.Block("second", ipu_id=1):
            return self.b(self.a(x.flatten(1)).relu())


CASES = {
    "training": {"optimizer": "adam"},
    "inference": {"training": False},
    "recomputed": {"optimizer": "adam", "recompute": True, "optimizer_off_chip": True},
    "off the chip": {"optimizer": "adam", "gradient_accumulation": 2, "optimizer_off_chip": True, "weights_off_chip": True,
                     "accumulators_off_chip": True, "activations_off_chip": True},
    "pipelined": {"strategy": "pipelined", "gradient_accumulation": 5},
    "pipelined, off the chip": {"strategy": "pipelined", "gradient_accumulation": 5, "weights_off_chip": True, "activations_off_chip": True},
    "sharded": {"strategy": "sharded", "gradient_accumulation": 2, "optimizer": "sgd"},
}


@pytest.fixture(scope="module", params=CASES)
def built(request):
    """A real report; through its file, as everybody else gets it."""
    options = {"training": True, "machine": {"name": "small", "base": "gc200", "tiles": 64}, "loss": "cross_entropy", **CASES[request.param]}
    if not options["training"]:
        del options["loss"]
    made = tileflow.compile(Net(), inputs=[(4, 3, 8, 8)], **options)
    return report.validate(json.loads(json.dumps(made.report)), "it")


def spread(built, number):
    """A spread as elements per tile."""
    runs = np.array(built["spreads"][number]).reshape(-1, 2)
    return np.repeat(runs[:, 1], runs[:, 0])


def per_tile(built, variable):
    return spread(built, variable["spread"]) * variable["element_bytes"]


def held(built, ipu, step):
    """Bytes per tile and category of the variables that are on an IPU at a step; -1: of those that always are."""
    found = {kind["name"]: np.zeros(built["chip"]["tiles"], int) for kind in built["memory"]["kinds"]}
    for v in built["variables"]:
        here = v["birth"] is None or any(first <= step <= last for first, last in v["stays"])
        inherited = v["heir"] is not None and v["death"] == step
        if v["ipu"] == ipu and here and not inherited:
            found[v["category"]] += per_tile(built, v)
    return found


def test_every_byte_of_every_tile_is_accounted_for(built):
    """Variables, code, and what the running operator needs are all there is: on each tile at its fullest step, at each step on its fullest tile."""
    ipus = [(i["number"], i["memory"]) for i in built["ipus"]] or [(0, built["memory"])]
    for number, memory in ipus:
        by_variables = {k["name"] for k in built["memory"]["kinds"]} - {"code", "temporaries", "exchange"}
        for step in sorted(set(memory["peak_step"])):
            tiles = [t for t, s in enumerate(memory["peak_step"]) if s == step]
            for name, bytes_ in held(built, number, step).items():
                if name in by_variables:
                    assert [bytes_[t] for t in tiles] == [memory["categories"][name][t] for t in tiles], (name, step)
        for t, peak in enumerate(memory["peak"]):
            assert sum(values[t] for values in memory["categories"].values()) == peak
        for step, tile in enumerate(memory["steps"]["fullest"]):
            for name, bytes_ in held(built, number, step).items():
                if name in by_variables:
                    assert bytes_[tile] == memory["steps"]["categories"][name][step], (name, step)


def test_what_runs_and_what_is_there_are_the_peak_of_every_tile(built):
    """From variables, code and `running` alone: what each tile holds at each step, so its fullest moment, and the fullest tile of each step."""
    ipus = [(i["number"], i["memory"]) for i in built["ipus"]] or [(0, built["memory"])]
    for number, memory in ipus:
        code, peak, at = np.array(memory["categories"]["code"]), np.array(memory["always_live"]), np.full(len(memory["peak"]), -1)
        for s in built["steps"]:
            if s["ipu"] != number and built["ipus"]:
                continue
            on = spread(built, s["running"]["spread"])
            assert set(on) <= {0, 1}
            assert on.sum() == s["tiles"]
            now = code + sum(held(built, number, s["index"]).values()) + on * sum(s["running"]["bytes"].values())
            assert now[memory["steps"]["fullest"][s["index"]]] == now.max()
            at[now > peak] = s["index"]
            peak = np.maximum(peak, now)
        assert peak.tolist() == memory["peak"]
        assert at.tolist() == memory["peak_step"]


def test_addresses_hold_every_byte_that_was_counted(built):
    """On the fullest tile of each IPU, and on others: at every step as many bytes as variables and what runs take, no two blocks in one place."""
    several = {i["number"]: i["memory"] for i in built["ipus"]} or {0: built["memory"]}
    assert {(laid["ipu"], laid["tile"]) for laid in built["layouts"]} >= {(k, memory["worst_tile"]) for k, memory in several.items()}
    for laid in built["layouts"]:
        number, tile, memory = laid["ipu"], laid["tile"], several[laid["ipu"]]
        mine = [s["index"] for s in built["steps"] if not built["ipus"] or s["ipu"] == number]
        assert max((b["start"] + b["bytes"] for b in laid["blocks"]), default=0) <= laid["extent"]
        assert memory["peak"][tile] <= laid["extent"] < 1.2 * memory["peak"][tile] + 64
        assert [b["start"] for b in laid["blocks"]] == sorted(b["start"] for b in laid["blocks"])
        assert all(b["start"] % 8 == 0 for b in laid["blocks"])
        most = 0
        for step in mine:
            live = [b for b in laid["blocks"] if b["first"] is None or b["first"] <= step <= b["last"]]
            for below, above in itertools.pairwise(live):
                assert below["start"] + below["bytes"] <= above["start"], (step, below, above)
            total = sum(b["bytes"] for b in live)
            most = max(most, total)
            of_tensors = {name: int(values[tile]) for name, values in held(built, number, step).items()}
            for name in of_tensors.keys() - {"code", "temporaries", "exchange"}:
                assert sum(b["bytes"] for b in live if b["category"] == name) == of_tensors[name], (step, name)
            if memory["steps"]["fullest"][step] == tile:
                for name, values in memory["steps"]["categories"].items():
                    assert sum(b["bytes"] for b in live if b["category"] == name) == values[step], (step, name)
        assert most == memory["peak"][tile]


def test_shares_of_cycles_are_of_what_all_operators_take(built):
    """The text says so where that is not what an update takes, and from which IPU the fullest tile is."""
    shown, cycles = report.text.render(built), built["totals"]["cycles"]
    operators = sum(s["cycles_per_update"] for s in built["steps"])
    apart = operators != cycles
    operators += built["host"]["waits"] * max(1, len(built["ipus"]))
    assert (f"Shares are of the {operators:,} cycles that all operators take and their IPUs wait for the host; an "
            f"update takes {cycles:,}: "
            in shown) == apart
    most = max(built["steps"], key=lambda s: s["cycles_per_update"])
    assert f"{most['cycles_per_update']:,}  {report.format.percent(most['cycles_per_update'] / operators)}" in " ".join(shown.split(" " * 3))
    if built["ipus"]:
        fullest = max(built["ipus"], key=lambda i: i["worst"])
        assert f"Worst tile {built['memory']['worst_tile']} of IPU {fullest['number']}: {fullest['worst']:,} of" in shown


def test_the_fullest_ipu_is_the_memory_of_all(built):
    over = [sum(values[i] for values in built["memory"]["steps"]["categories"].values()) for i in range(len(built["steps"]))]
    assert over == [s["tile_bytes"] for s in built["steps"]]
    assert max(over) == built["memory"]["worst"]
    if built["ipus"]:
        assert built["memory"]["worst"] == max(i["memory"]["worst"] for i in built["ipus"])


def test_variables_are_those_of_the_model(built):
    weights = {v["name"]: v for v in built["variables"] if v["kind"] == "weights"}
    assert weights["a.weight"]["shape"] in ([96, 512], [512, 96])
    assert weights["a.weight"]["bytes"] == 96 * 512 * 4
    for v in built["variables"]:
        tiles = per_tile(built, v)
        assert (tiles.sum(), tiles.max(initial=0), np.count_nonzero(tiles)) == (v["bytes"], v["largest"], v["tiles"])
        assert v["bytes"] == int(np.prod(v["shape"])) * v["element_bytes"]


def test_operators_read_and_make_variables_that_are_there(built):
    named = built["variables"]
    for s in built["steps"]:
        for n in (*s["inputs"], *s["outputs"]):
            v = named[n]
            assert v["ipu"] == s["ipu"]
            # what is folded is added as soon as it is made, in its producer's step
            added = s["part"].startswith("fold")
            there = (first <= s["index"] <= last or (added and last < s["index"]) for first, last in v["stays"])
            assert v["birth"] is None or any(there), (s["name"], v["name"])
    assert any(named[n]["name"] == "conv.weight" for s in built["steps"] for n in s["inputs"] if s["op"] == "Conv")


def test_utilisation_and_choice(built):
    """No operator does more than the chip can; one that was bound by memory names the faster plan that it could not have."""
    assert all(0 <= s["utilisation"] <= 1 for s in built["steps"])
    total = sum(s["flops"] * s["repeats"] for s in built["steps"])
    assert total == pytest.approx(built["totals"]["flops"])
    chosen = [s for s in built["steps"] if s["choice"] is not None]
    assert chosen
    for s in chosen:
        faster, leaner = s["choice"]["faster"], s["choice"]["leaner"]
        assert (s["limit"] == "memory") == (faster is not None)
        assert faster is None or faster[1] > s["bound_bytes"]
        assert leaner is None or leaner[1] < s["temp_bytes"]


def test_the_schema_is_one_that_others_read_too(built):
    """jsonschema takes the schema for one, the real reports for valid, and refuses what our own checker refuses."""
    jsonschema = needs("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema.schema())
    checks = jsonschema.Draft202012Validator(schema.schema())
    checks.validate(built)
    for path, value in ((("totals", "cycles"), "1"), (("steps", 0, "choice"), 3), (("chip", "ipus"), 0), (("variables", 0, "birth"), "x"),
                        (("memory", "peak"), [1.5]), (("out_of_memory",), {}), (("schema_version",), 3)):
        wrong = copy.deepcopy(built)
        inner = wrong
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        assert not checks.is_valid(wrong)
        assert schema.checker()(wrong)


def test_every_rule_of_the_schema_is_checked():
    with pytest.raises(ValueError, match="the schema says pattern"):
        schema.compiled({"type": "object", "properties": {"a": {"pattern": "x"}}}, {})


def test_every_field_has_a_sentence():
    def walk(rule, at):
        rule = schema.resolved(rule, schema.schema()["$defs"])
        for name, inner in rule.get("properties", {}).items():
            assert schema.resolved(inner, schema.schema()["$defs"]).get("description"), f"{at}.{name}"
            walk(inner, f"{at}.{name}")
        for inner in (*rule.get("anyOf", []), *([rule["items"]] if "items" in rule else [])):
            walk(inner, at)
    walk(schema.schema(), "")


def test_the_page_of_the_fields_is_current():
    """`python tests/report_fields.py` writes it."""
    assert report_fields.page() == report_fields.PAGE.read_text(encoding="utf-8")


def test_the_script_of_the_guide(built, tmp_path, monkeypatch, capsys):
    """It adds up to what the fullest tile holds, of a program on one IPU."""
    if built["ipus"]:
        return
    code = report_fields.PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    report.write(built, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    printed = sum(int(line.split()[-2]) for line in capsys.readouterr().out.splitlines())
    tile, categories = built["memory"]["worst_tile"], built["memory"]["categories"]
    running = sum(categories[name][tile] for name in ("code", "temporaries", "exchange"))
    assert printed + running == built["memory"]["worst"]
    assert printed == sum(held_bytes[tile] for held_bytes in held(built, 0, built["memory"]["peak_step"][tile]).values())


@pytest.mark.parametrize("version", [3, 5, 7, "6", None])
def test_reports_of_other_versions_are_refused_by_their_version(built, tmp_path, version):
    (tmp_path / "report.json").write_text(json.dumps({**built, "schema_version": version}))
    with pytest.raises(ReportError,
                       match=f"schema_version {version!r}, and this tileflow reads version 6; compile the model again"):
        report.load(tmp_path)
