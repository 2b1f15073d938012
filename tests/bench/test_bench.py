"""The benchmark suite: the frozen cases against the issue's rows, comparison and table of small results, one real case end to end."""
from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import exhaustive, rare
from peers import needs
from places import ROOT

from bench import __main__ as bench
from bench import bridge, compare, operators, pairs, processes, real, rows, startup, steps_table, table
from bench.cases import cases
from bench.kinds import KINDS, Unsupported, problem
from bench.kinds.base import some
from bench.kinds.model import Model, away
from bench.kinds.network import Network
from bench.report import Result, load, to_json
from bench.side import Missing, Side
from bench.verdict import geometric_mean, verdicts
from tileflow import nn
from tileflow.graph import OPS
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine import cache

PROMISES = {
            "int8-matmul": (1.0, 1.0, None), "int8-conv": (1.0, 1.0, None), "forest": (1.0, 1.0, None),
            "gemm": (1.45, 0.92, 1.9), "gemm-small": (1.2, 1.0, 1.6), "half": (2.3, 1.0, 3.5), "conv3x3": (1.7, 0.85, 2.3),
            "conv-weight": (1.2, 0.85, 1.8), "conv1x1": (1.1, 0.8, 1.6), "depthwise": (1.6, 1.6, 2.7), "batchnorm": (3, 3, 5),
            "maxpool": (10, 10, 20), "elementwise": (1.3, 1.3, 2), "adamw-fused": (1.05, 1.05, 1.3), "adamw-default": (3, 3, 6),
            "sgd-fused": (1.05, 1.05, 1.3), "sgd-default": (1.4, 1.4, 2), "rmsprop": (2.5, 2.5, 4), "rmsprop-centered": (2.5, 2.5, 4),
            "lamb": (2, 2, 3),
            "mnist": (6, 4, 8), "resnet18": (1.5, 1.0, 2), "bert-mini": (1.5, 1.0, 2),
            "bert-mini-mixed": (1.0, 1.0, 1.3), "mixed-own": (1.0, 0.8, 1.3), "inference": (1.3, 1.0, 1.8),
            **dict.fromkeys(("lstm-forward", "lstm-training", "gru-forward", "gru-training"), (1.2, 1.2, 2.0))}
"""What is asked for: with AMX, without, and the stretch."""
LIMITS = {"startup-mnist-empty": 20, "startup-mnist-warm": 2, "startup-bert-mini-empty": 30, "startup-bert-mini-warm": 4, "empty-row": 1e-6,
          "two-loader-workers": 0.62, "wide-table": 3.0,
          "resnet18-memory": 1}


# ---- the frozen cases -------------------------------------------------------------------------------------------------------

def test_every_promise_is_there_with_its_bounds() -> None:
    assert {row.id: (row.amx, row.plain, row.stretch) for row in cases().rows if row.amx is not None} == PROMISES
    assert {limit.id: limit.most if limit.most is not None else limit.share for limit in cases().limits} == LIMITS
    assert cases().floor == 0.7
    assert cases().threads == (1, 2)


def test_rows_are_well_formed() -> None:
    rows = cases().rows
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.kind in KINDS
        assert row.peer.split()[0] in ("torch", "onnxruntime", "ours")
        names = [problem(row.kind, shape).name for shape in row.shapes]
        assert len(set(names)) == len(names), row.id
        assert row.kind == "network" or len(names) >= 3, f"{row.id} needs several shapes"
    words = {word for row in rows for word in row.case}
    assert words == {"gemm", "half", "conv", "pointwise", "update", "attention", "recurrent", "mnist", "resnet",
                     "transformer", "int8", "trees", "training"}


def test_a_row_has_the_bound_of_its_path() -> None:
    row = cases().row("gemm")
    assert (row.bound("amx"), row.bound("avx512"), row.bound("avx2"), row.bound("generic")) == (1.45, 0.92, 0.92, 0.92)


def test_small_shapes_have_operands_of_their_type_and_cost_something() -> None:
    for row in cases().rows:
        for subject in (problem(row.kind, shape) for shape in row.shapes):
            if row.kind not in ("network", "module", "update") and 0 < subject.nbytes() < 1 << 22:
                assert {a.dtype.name for a in subject.arrays().values() if a.dtype.kind not in "iu"} <= {subject.dtype}
            assert row.kind in ("network", "module") or max(subject.flops(), subject.nbytes()) > 0


# ---- kinds: the float64 check tells right from wrong -----------------------------------------------------------------------------

SMALL: list[tuple[str, dict[str, Any]]] = [
    ("matmul", dict(m=5, n=7, k=3, ta=True)), ("matmul", dict(m=4, n=3, k=6, tb=True, bias=True, weights="update")),
    ("matmul", dict(m=4, n=5, k=6, batch=3, tb=True)),
    ("conv", dict({"pass": "forward"}, n=2, c=3, o=4, h=7, w=5, k=3, stride=2, weights="each")),
    ("conv", dict({"pass": "input"}, n=2, c=3, o=4, h=7, k=3, weights="once")),
    ("conv", dict({"pass": "weight"}, n=2, c=3, o=4, h=7, k=3, dilation=2)),
    ("conv", dict({"pass": "forward"}, n=2, c=12, h=6, k=3, depthwise=True)), ("conv", dict({"pass": "weight"}, n=2, c=12, h=6, k=3, depthwise=True)),
    ("batchnorm", dict({"pass": "forward"}, shape=[3, 2, 4, 5])), ("batchnorm", dict({"pass": "backward"}, shape=[3, 2, 4, 5])),
    ("upsample", dict({"pass": "training"}, n=2, c=3, h=4, w=5, times=2)), ("upsample", dict({"pass": "training"}, n=2, c=3, o=4, h=4, w=5, times=2)),
    ("pointwise", dict(function="argmax", shape=[5, 37])),
    ("pool", dict({"pass": "training"}, shape=[2, 3, 7, 7], k=3, stride=2, pad=1)),
    ("pool", dict({"pass": "training"}, shape=[2, 3, 7, 7], k=3, stride=2, pad=1, operator="AveragePool")),
    *[("pointwise", dict(function=f, shape=[6, 11])) for f in ("softmax", "log_softmax", "layernorm", "gelu", "sigmoid", "add")],
    ("pointwise", dict(function="transpose", shape=[6, 11], perm=[1, 0])), ("pointwise", dict(function="embedding", shape=[9, 4], rows=5)),
    *[("update", dict(optimizer=o, parameters=1000, tensors=3)) for o in ("AdamW", "SGD", "RMSprop", "LAMB")],
    ("update", dict(optimizer="RMSprop", options={"centered": True}, parameters=1000, tensors=3)),
    ("update", dict(optimizer="AdamW", max_grad_norm=0.05, parameters=1000, tensors=3)),
    ("update", dict(optimizer="AdamW", scaling=True, parameters=1000, tensors=3)),
    ("attention", dict({"pass": "training"}, batch=2, heads=2, queries=5, keys=7, size=4, mask=True)),
    ("attention", dict({"pass": "training"}, batch=2, heads=2, queries=5, size=4, causal=True))]
FOREST: dict[str, Any] = dict(trees=13, depth=5, features=4, batch=9)


def tolerance(kind: str) -> float:
    return 1e-3 if kind == "update" else 4e-6


@pytest.mark.parametrize(("kind", "shape"), [
    rare(*case) if case[0] in ("conv", "upsample") and case[1]["pass"] != "forward" else case for case in SMALL],
                         ids=lambda x: str(x)[:60])
def test_our_side_agrees_with_float64(kind: str, shape: dict[str, Any]) -> None:
    runner = problem(kind, shape).ours(1)
    runner.run(3)
    assert runner.error() <= tolerance(kind)


@pytest.mark.parametrize(("kind", "shape"), SMALL, ids=lambda x: str(x)[:60])
def test_pytorchs_side_agrees_with_float64(kind: str, shape: dict[str, Any]) -> None:
    needs("torch")
    if shape.get("optimizer") == "LAMB":
        pytest.skip("PyTorch has no LAMB; timm's is compared below")
    runner = problem(kind, shape).torch(1, "")
    runner.run(3)
    assert runner.error() <= tolerance(kind)


@pytest.mark.parametrize("side", [rare("ours"), "onnxruntime"])
def test_both_sides_of_a_forest_agree_with_float64(side: str) -> None:
    if side != "ours":
        needs(side)
    subject = problem("forest", FOREST)
    runner = getattr(subject, side)(1)
    runner.run(2)
    assert runner.error() <= 1e-6
    assert len(subject.nodes["tree"]) > 13 * 15
    subject.nodes["vote"][subject.nodes["feature"] < 0] += 0.01
    assert runner.error() > 1e-3


PEERS: list[tuple[str, dict[str, Any]]] = [
    ("fused", dict(optimizer="AdamW")), ("fused", dict(optimizer="SGD", max_grad_norm=0.05)), ("default", dict(optimizer="RMSprop")),
    ("default", dict(optimizer="RMSprop", options={"centered": True})), ("default", dict(optimizer="AdamW", scaling=True)),
    ("fused", dict(optimizer="AdamW", scaling=True)), ("timm", dict(optimizer="LAMB"))]


@pytest.mark.parametrize(("variant", "shape"), PEERS, ids=lambda x: str(x)[:60])
def test_the_updates_of_peers_agree_with_float64(variant: str, shape: dict[str, Any]) -> None:
    needs("torch")
    try:
        runner = problem("update", dict(shape, parameters=1000, tensors=3)).torch(1, variant)
    except Unsupported as missing:
        pytest.skip(str(missing))
    runner.run(2)
    assert runner.error() <= tolerance("update")


def test_a_wrong_result_has_a_large_error() -> None:
    subject = problem("matmul", dict(m=5, n=7, k=3))
    arrays = subject.arrays()
    exact = arrays["a"] @ arrays["b"]
    assert subject.deviation(arrays, [exact]) < 1e-6
    exact[4, 6] += 0.01
    assert subject.deviation(arrays, [exact]) > 1e-3


def test_what_nobody_has_is_said_not_raised_as_a_bug() -> None:
    with pytest.raises(Unsupported, match="not supported yet"):
        problem("matmul", dict(m=5, n=7, k=3, dtype="complex64")).ours(1)


def test_indices_spread_over_all() -> None:
    assert some(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert some(1000, 3).tolist() == [0, 499, 999]


def test_weights_are_laid_out_once_per_update_or_in_each_call() -> None:
    """Ten micro-batches of a linear layer are one call; its bias and weights are the session's."""
    subject = problem("matmul", dict(m=4, n=3, k=6, tb=True, bias=True, weights="update"))
    assert subject.micro_batches == 10
    inputs, weights = subject._operands()
    assert inputs["a"].shape == (40, 6)
    assert set(weights) == {"b", "bias"}
    assert problem("matmul", dict(m=4, n=3, k=6, weights="each")).micro_batches == 1


# ---- verdicts, comparison, table ----------------------------------------------------------------------------------------------

def result(row: str, shape: str, threads: int, ratio: float | None, **more: Any) -> Result:
    ours, theirs = (None, None) if ratio is None else (0.002, 0.002 * ratio)
    return Result("gemm", cases().row(row).peer, threads, "avx2", ours, theirs, ratio, 1e-7, 2e-7, row, shape, **more)


def gemm_results(ratio: float) -> list[Result]:
    names = [problem("matmul", shape).name for shape in cases().row("gemm").shapes]
    return [result("gemm", name, threads, ratio * (2 if threads == 2 else 1)) for name in names for threads in (1, 2)]


def test_an_empty_row_is_measured() -> None:
    alone, shared = (next(rows.run(n, 3)) for n in (1, 2))
    assert 0 < alone.ours_s < 1e-3
    assert (alone.row, shared.row) == ("", "empty-row")
    assert table.limit_lines([shared])[0].startswith("| a row without work, shared out among two workers | ")


def test_a_verdict_is_the_geometric_mean() -> None:
    verdict, = verdicts(gemm_results(1.0))
    assert verdict.ratio == pytest.approx(math.sqrt(2))
    assert verdict.by_threads == pytest.approx({1: 1.0, 2: 2.0})
    assert verdict.failings == []
    assert math.isnan(geometric_mean([]))


def test_a_verdict_names_what_is_missed() -> None:
    results = gemm_results(0.5)
    results[3].ratio = 0.65
    verdict, = verdicts(results[:-1])
    said = " ".join(verdict.failings)
    assert "below 0.92" in said
    assert "0.50 below 0.7" in said
    assert "1 of 34 figures missing" in said


def file(folder: Path, name: str, results: list[Result]) -> str:
    path = folder / name
    path.write_text(to_json(results))
    return str(path)


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = [result("gemm", "a", 1, 1.5, fraction_of_peak=0.5, extra={"runs": 9, "memory_ours": 5}), result("gemm", "b", 1, None, note="no")]
    machine, again = load(file(tmp_path, "r.json", results))
    assert again == results
    assert {"features", "versions", "paths", "cores"} <= machine.keys()
    assert {"case", "peer", "threads", "path", "ours_s", "peer_s", "ratio", "error_ours", "error_peer"} <= json.loads(
        Path(tmp_path / "r.json").read_text())["results"][0].keys()


def test_comparison_goes_by_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [result("gemm", "a", 1, 1.0), result("gemm", "b", 1, 1.0), result("gemm", "gone", 1, 1.0)]
    after = [result("gemm", "a", 1, 1.3), result("gemm", "b", 1, 1.01)]
    compare.main([file(tmp_path, "a.json", before), file(tmp_path, "b.json", after)])
    said = capsys.readouterr().out
    assert "2 results in both, 1 moved" in said
    assert "1 only in the first" in said
    assert "ratio 1.00 -> 1.30" in said
    assert "gemm             avx2    1.00 -> 1.15" in said
    with pytest.raises(SystemExit):
        compare.main(["one.json"])


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    memory = result("resnet18", "resnet18 training batch 16", 1, 0.9, extra={"memory_ours": 3, "memory_peer": 2})
    first = Result("startup", "none", 2, "avx2", 12.0, None, None, row="startup-mnist-empty", shape="mnist, empty cache")
    path = file(tmp_path, "r.json", [*gemm_results(1.0), memory, first])
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.main([path, "--readme", str(readme)])
    text = readme.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n")
    assert text.endswith(f"{table.END}\nafter\n")
    assert "old" not in text
    assert "| 1.41 | 1.00 / 2.00 |" in text
    assert "0.92: kept" in text
    assert "**1: mean 0.90 below 1; 1 of 2 figures missing**" in text
    assert "| 12.0 s | 20: kept |" in text
    assert "| 1.50 | 1: **missed** |" in text
    table.main([path, "--readme", str(readme)])
    assert readme.read_text() == text
    readme.write_text("nothing")
    with pytest.raises(SystemExit, match="no place for the table"):
        table.main([path, "--readme", str(readme)])


def test_training_steps_have_a_table_of_their_own(tmp_path: Path) -> None:
    """A line each network, in the order of the cases, with what was measured; the other table stays as it is."""
    def step(row: str, network: str, threads: int, ratio: float | None, **more: Any) -> Result:
        return replace(result(row, network, threads, ratio, **more), case="training")
    path = file(tmp_path, "r.json", [
        step("modules", "ViT 6 x 192", 1, 1.25, fraction_of_peak=0.674),
        step("modules", "ViT 6 x 192", 2, 1.5, fraction_of_peak=0.6),
        step("modules-mixed", "ViT 6 x 192 bf16-mixed", 1, 1.75), step("modules", "LSTM", 2, None, note="no")])
    readme = tmp_path / "README.md"
    readme.write_text(f"{table.BEGIN}\nold\n{table.END}\n{steps_table.BEGIN}\nstale\n{steps_table.END}\nafter\n")
    table.main([path, "--readme", str(readme)])
    text = readme.read_text()
    assert text.startswith(f"{table.BEGIN}\nold\n{table.END}\n{steps_table.BEGIN}\n"
                           "Training steps of PyTorch's own modules on ")
    assert text.endswith(f"{steps_table.END}\nafter\n")
    assert "stale" not in text
    assert "| ViT 6 x 192 | 1.25 / 1.50 | - / - | 67 % / 60 % | 1.75 / - | - / - |" in text
    assert "| LSTM | - / - | - / - | - / - | - / - | - / - |" in text
    assert [line.split(" | ")[0][2:] for line in text.splitlines()[8:-2]] == [
        shape["network"] for shape in cases().row("modules").shapes]
    readme.write_text(f"{table.BEGIN}\n{table.END}")
    with pytest.raises(SystemExit, match="no place for the table"):
        table.main([path, "--readme", str(readme)])


def test_notes_are_about_rows() -> None:
    assert {name.split(".")[0] for name in table.notes()} <= {row.id for row in cases().rows}


def test_the_readme_has_a_place_for_the_table() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count(table.BEGIN) == text.count(table.END) == 1
    assert text.count(steps_table.BEGIN) == text.count(steps_table.END) == 1


# ---- end to end ---------------------------------------------------------------------------------------------------------------

def test_a_case_from_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Our side alone and against PyTorch where it is installed: both processes, turns, errors, peak."""
    bench.main(["gemm", "--threads", "1", "--runs", "1", "--only", "17x31x61", "--json"])
    data = json.loads(capfd.readouterr().out)
    found, = data["results"]
    assert found["row"] == "gemm-small"
    assert found["path"] == cpu.current().name
    assert found["ours_s"] > 0
    assert found["error_ours"] < 1e-6
    assert found["fraction_of_peak"] > 0
    if data["machine"]["versions"]["torch"]:
        assert found["ratio"] == pytest.approx(found["peer_s"] / found["ours_s"])
        assert found["error_peer"] < 1e-6


def test_what_the_bridge_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of a small network, and the promise that its size has; of a long step it is the ratio."""
    needs("torch")
    needs("onnxscript")
    monkeypatch.setattr(bridge, "SHAPES", bridge.SHAPES[:1])
    found, = bridge.run(1, 1)
    assert found.bridge > 0
    assert found.engine > 0
    assert (found.tensors, found.threads) == (6, 1)
    assert found.to_text().endswith("us (at most 100 us more)")
    assert replace(found, engine=0.006).to_text().endswith("us (at most 1.05)")


def test_what_operators_of_ones_own_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form beside the built-in one; afterwards nothing is declared any more."""
    monkeypatch.setattr(operators, "SHAPES", ((4, 8),))
    monkeypatch.setattr(operators, "ROUND", 0.0)
    found = operators.run(1, 1)
    assert [(own.form, own.most) for own in found] == [("expression", 1.1), ("Numba", 1.1), ("Python", None)]
    assert all(own.own > 0 and own.built_in > 0 for own in found)
    assert [own.to_text().endswith(end) for own, end in zip(found, ("(at most 1.1)", "(at most 1.1)", " us)"),
                                                            strict=True)] == [True] * 3
    assert not any(name.startswith(operators.DOMAIN) for name in OPS)


def test_what_one_of_several_processes_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "CASES",
                        {"small": (2, lambda rng, rows: (nn.Linear(3, 10), rng.random((rows, 3), np.float32)))})
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    processes._child("small", tmp_path / "seconds.json")
    found = json.loads((tmp_path / "seconds.json").read_text())
    assert len(found) == processes.CALLS
    assert min(found) > 0
    told = processes.Processes("small", 2, 0.25, 0.2, 0.8).to_text()
    assert told.endswith("2 processes: 250.00 ms beside 200.00 ms of one, 0.80 times its speed (at least 0.9)")


def test_a_missing_peer_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A module that cannot be imported lies in front of PyTorch."""
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Missing, match="torch is not installed, so there is nothing to compare with: pip install torch"):
        Side("torch", 1)


@exhaustive
def test_our_side_alone() -> None:
    """As with a peer that is missing: a time, an error, no ratio."""
    settings = pairs.Settings((1,), runs=1, against=(), only="17x31x61")
    found, = pairs.measure(cases().row("gemm-small"), "gemm", settings, pairs.Peaks())
    assert found.ours_s is not None
    assert found.ours_s > 0
    assert found.ratio is None
    assert found.error_ours is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two models: one that runs, with its inputs beside it, and one that nobody has the operator of."""
    import onnx
    from onnx import TensorProto, helper

    from bench.models import initial_weights, tutorial_cnn
    onnx.save(tutorial_cnn(initial_weights(0)), tmp_path / "cnn.onnx")
    np.savez(tmp_path / "cnn.npz", in0=np.random.default_rng(0).standard_normal((2, 1, 28, 28)).astype(np.float32))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    strange = helper.make_graph([helper.make_node("Strange", ["x"], ["y"], "odd", domain="nowhere")], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(strange, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)], ir_version=8),
              tmp_path / "strange.onnx")
    return tmp_path


def test_models_of_a_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    needs("onnxruntime")
    bench.main(["models", str(folder), "--threads", "1", "--runs", "1", "--json", "--profile", "--against", "onnxruntime"])
    printed = capfd.readouterr()
    cnn, strange = json.loads(printed.out)["results"]
    assert (cnn["shape"], strange["shape"]) == ("cnn", "strange")
    assert cnn["error_ours"] < 1e-5
    assert cnn["error_peer"] < 1e-5
    assert cnn["ratio"] == pytest.approx(cnn["peer_s"] / cnn["ours_s"])
    assert strange["ours_s"] is None
    assert "Strange" in strange["note"]
    shown = printed.err
    assert "does not run" in shown
    table = {words[0]: words[1:] for words in map(str.split, shown.splitlines()) if words}
    assert "-" not in table["Conv"], "both sides have convolutions, ours under that name though their rows end in an elementwise one"
    assert "conv1" in shown
    assert "fc2" in shown


def test_outputs_that_differ_are_listed_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("onnxruntime")
    monkeypatch.setattr(Model, "equal", 1e-12)
    side, subject = Side("ours", 1), Model({"file": str(folder / "cnn.onnx")})
    try:
        found, = real.measure(subject, [side], 1)
    finally:
        side.close()
    assert found.ours_s is None
    assert "away from ONNX Runtime's" in found.note


def test_a_side_that_fails_is_listed_with_its_reason() -> None:
    class Failing:
        name, threads, facts = "ours", 1, {"path": "generic"}

        def ask(self, **request: Any) -> dict[str, Any]:
            raise RuntimeError("the ours side failed: no such input")
    found, = real.measure(Model({"file": "cnn.onnx"}), [Failing()], 1)          # type: ignore[list-item]
    assert (found.ours_s, found.note) == (None, "the ours side failed: no such input")


def test_how_far_outputs_are_from_the_reference() -> None:
    right = np.array([4.0, -2.0, np.inf, np.nan], np.float32)
    assert away([right], [right]) == 0
    assert away([right + np.array([0.4, 0, 0, 0], np.float32)], [right]) == pytest.approx(0.1)
    assert away([np.array([1e-5], np.float32)], [np.array([0], np.float32)]) == pytest.approx(1e-4)
    for wrong in (right[:3], right.astype(np.float64), np.array([4, -2, np.inf, 0], np.float32), np.array([4, np.nan, np.inf, np.nan], np.float32)):
        assert away([wrong], [right]) == math.inf
    assert away([np.array([1, 2])], [np.array([1, 3])]) == math.inf


def test_models_are_chosen_by_manifest_and_name(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.onnx").touch()
    (tmp_path / "list.json").write_text('[{"id": "c"}, {"id": "b"}]')
    assert [p.stem for p in real.files(tmp_path, None, "")] == ["a", "b", "c"]
    assert [p.stem for p in real.files(tmp_path, tmp_path / "list.json", "")] == ["c", "b"]
    assert [p.stem for p in real.files(tmp_path, None, "c,a")] == ["a", "c"]
    with pytest.raises(SystemExit, match=r"no \.onnx file"):
        real.files(tmp_path, None, "z")


def test_unknown_cases_are_refused() -> None:
    for arguments in (["nonsense"], ["models"]):
        with pytest.raises(SystemExit):
            bench.main(arguments)


def test_bert_file_runs_and_agrees_with_onnxs_evaluator() -> None:
    """Two encoder layers' worth would do, but the file is the benchmark's own."""
    subject = problem("network", {"network": "bert-mini", "pass": "inference", "batch": 1, "sequence": 8})
    runner = subject.ours(1)
    runner.run(1)
    assert runner.error() < 1e-4


@exhaustive
def test_a_first_step_is_measured_to_its_end_or_says_why_not(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.zeros((16, 1, 8, 8), np.float32), y=np.zeros(16, np.int64))
    model = ["digits_cnn.onnx", "--data", str(tmp_path / "one.npz"), "--micro-batch-size", "16"]
    assert startup.first_step([*model, "--epochs", "1"], cache.root(), tmp_path / "run") > 0
    assert (tmp_path / "run" / "model.onnx").exists()
    with pytest.raises(RuntimeError, match=r"none\.npz"):
        startup.first_step(["digits_cnn.onnx", "--data", "none.npz", "--epochs", "1"], cache.root(), tmp_path / "other")


@pytest.mark.parametrize("shape", [{"batch": 4}, {"batch": 4, "accumulation": 2, "updates": 2}], ids=["one update a call", "several"])
def test_both_sides_check_the_same_updates(shape: dict[str, int]) -> None:
    """Their losses are compared one by one: there are as many."""
    needs("torch")
    error = Network({"network": "mnist", "pass": "training", **shape}).ours(1).error()
    assert error is not None
    assert error < 1e-5


def test_a_side_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.side.PATIENCE", 0.1)
    side = Side("ours", 1)
    side.ask(do="prepare", kind="matmul", shape={"m": 64, "n": 64, "k": 64})
    assert side._process.stdin is not None
    side._process.stdin.write(json.dumps({"do": "time", "times": 10 ** 9, "wall": True}) + "\n")
    side._process.stdin.flush()
    side.close()
    assert side._process.returncode == -signal.SIGKILL
