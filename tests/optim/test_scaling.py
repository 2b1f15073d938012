"""Loss scaling: the scale is a state, which micro-batches read and nobody compiles in."""
from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import paths
import pytest
from peers import needs
from places import ROOT
from said import Said

import tileflow
from tileflow import exact, nn, optim
from tileflow.optim.scaling import LOSS_SCALE
from tileflow.options.needs import With
from tileflow.options.options import declarations
from tileflow.runtime.callbacks.progress import epoch_line
from tileflow.system.errors import OptionError, TrainingError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileOptions

RNG = np.random.default_rng(0)
X = RNG.standard_normal((48, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 48)


def network() -> nn.Module:
    nn.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def model(optimizer: optim.Optimizer, **options: Any) -> Any:
    return tileflow.training_model(network(), optimizer=optimizer, gradient_accumulation=2, **options)


def bits(tensors: Any) -> dict[str, bytes]:
    return {name: a.tobytes() for name, a in tensors.items()}


# ---- by hand

def test_an_assigned_scale_counts_from_the_next_call_on_without_compiling():
    optimizer = optim.SGD(lr=0.1, momentum=0.9, loss_scaling=3.0)
    trained = model(optimizer)
    session = trained.source.session
    trained(X, Y)
    compiled = trained.engine
    assert session[LOSS_SCALE] == 3.0
    optimizer.loss_scaling = 7.0
    trained(X, Y)
    assert session[LOSS_SCALE] == 7.0
    assert trained.engine is compiled
    other = model(optim.SGD(lr=0.1, momentum=0.9))
    other(X, Y)
    other(X, Y)
    for name, w in other.state_dict().items():
        np.testing.assert_allclose(trained.state_dict()[name], w, rtol=1e-5, atol=1e-6)
    assert bits(trained.state_dict()) != bits(other.state_dict())          # a factor of three is rounded: it was really there


def test_the_optimizers_scale_goes_before_the_options():
    trained = model(optim.SGD(lr=0.1, loss_scaling=8.0), loss_scaling=4.0)
    trained(X, Y)
    assert trained.source.session[LOSS_SCALE] == 8.0
    plain = model(optim.SGD(lr=0.1), loss_scaling=4.0)
    plain(X, Y)
    assert plain.source.session[LOSS_SCALE] == 4.0


@pytest.mark.parametrize("scale", [0, 0.0])
def test_zero_is_refused(scale: float):
    with pytest.raises(OptionError, match=r"^Loss scaling cannot be 0\.$"):
        optim.Adam(loss_scaling=scale)
    optimizer = optim.Adam(lr=0.1)
    trained = model(optimizer)
    trained(X, Y)
    before = bits(trained.source.session.lasting())
    with pytest.raises(OptionError, match=r"^Loss scaling cannot be 0\.$"):
        optimizer.loss_scaling = scale
    with pytest.raises(OptionError, match="finite number above 0"):
        optimizer.loss_scaling = float("nan")
    assert optimizer.loss_scaling is None
    assert bits(trained.source.session.lasting()) == before


def test_a_resumed_run_keeps_the_scale_and_takes_a_new_one(tmp_path: Path):
    settings: dict[str, Any] = dict(data=(X, Y), out=str(tmp_path), micro_batch_size=8, shuffle=False)
    optimizer = optim.AdamW(lr=0.01, loss_scaling=16.0)
    result = tileflow.train(network(), optimizer=optimizer, epochs=1, **settings)
    assert result._trainer.session[LOSS_SCALE] == 16.0
    again = tileflow.train(network(), optimizer=optim.AdamW(lr=0.01, loss_scaling=16.0), epochs=2, resume=True, **settings)
    assert again._trainer.session[LOSS_SCALE] == 16.0
    said = Said()
    other = tileflow.train(network(), optimizer=optim.AdamW(lr=0.01, loss_scaling=64.0), epochs=3, resume=True,
                           callbacks=[said], **settings)
    assert other._trainer.session[LOSS_SCALE] == 64.0
    assert any("loss_scaling = 64 in place of 16" in sentence for sentence in said.sentences)


# ---- updates that are skipped, scales that adapt

BAD = X.copy()
BAD[3] = np.inf


def normal(n: int = 2, **options: Any) -> Any:
    """Batch statistics, momentum and a step count: all that a skip must keep, and what it must not."""
    nn.manual_seed(2)
    net = nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    return tileflow.training_model(net, optimizer=optim.AdamW(lr=0.01), gradient_accumulation=n, **options)


OWN = {f"optimizer.{role}" for role in ("loss_scale", "growth_tracker", "skipped", "skipped_in_a_row", "scale_updates", "used_scale")}


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("options", [dict(skip_non_finite=True), dict(automatic_loss_scaling="dynamic")], ids=lambda o: next(iter(o)))
def test_a_skip_keeps_every_bit_but_that_of_statistics(micro_batches: int, options: dict[str, Any]):
    model = normal(micro_batches, **options)
    session = model.source.session
    model(X, Y)
    before = bits(session.lasting())
    model(BAD, Y)
    after = bits(session.lasting())
    changed = {name for name in before if before[name] != after[name]}
    assert changed - OWN == {name for name in before if "running" in name or "num_batches" in name}
    assert (session.updates, model.skipped_updates, float(session["optimizer.step"])) == (2, 1, 1.0)
    model(X, Y)
    assert (session.updates, model.skipped_updates, float(session["optimizer.step"])) == (3, 1, 2.0)
    assert float(session["optimizer.skipped_in_a_row"]) == 0
    assert all(np.isfinite(session[name]).all() for name in session.names("parameter", "optimizer"))


OPTIMIZERS = [
    optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.1, use_combined_accum=True), optim.SGD(lr=0.1, momentum=0.9, dampening=0.1),
    optim.SGD(lr=0.1, accum_type="float16", max_grad_norm=1.0), optim.Adam(lr=0.01, max_grad_norm=1.0), optim.RMSprop(lr=0.01, centered=True),
    optim.RMSprop(lr=0.01, momentum=0.9, use_tf_variant=True), optim.LAMB(lr=0.01)]


@pytest.mark.parametrize(("optimizer", "precision"), [
    (pytest.param if precision == "32" or (i, precision) == (3, "16-true") else paths.rare)(
        optimizer, precision, id=f"{type(optimizer).__name__}{i}-{precision}")
    for i, optimizer in enumerate(OPTIMIZERS) for precision in ("32", "16-true", "bf16-mixed")])
def test_every_optimizer_skips_whole(optimizer: optim.Optimizer, precision: str):
    """Zero, huge and bad gradients: states stay finite, a bad update leaves all of them, and the next good one goes on as if it had not been."""
    def made() -> Any:
        nn.manual_seed(2)
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        return tileflow.training_model(net, optimizer=copy.deepcopy(optimizer), gradient_accumulation=2, precision=precision,
                                       skip_non_finite=True)
    with_bad, without = made(), made()
    for rows in (X, BAD, np.zeros_like(X), BAD, X):
        before = bits(with_bad.source.session.lasting())
        with_bad(rows, Y)
        if rows is BAD:
            after = bits(with_bad.source.session.lasting())
            assert {n for n in before if before[n] != after[n]} == {"optimizer.skipped", "optimizer.skipped_in_a_row"}
        else:
            without(rows, Y)
    assert with_bad.skipped_updates == 2
    assert bits(with_bad.state_dict()) == bits(without.state_dict())
    with_bad((1e4 * X).astype(np.float32), Y)
    session = with_bad.source.session
    assert all(np.isfinite(session[name].astype(np.float64)).all() for name in session.names("parameter", "optimizer"))


def test_a_loss_that_is_not_finite_is_skipped_though_gradients_are():
    def loss(b: Any, outputs: Any) -> Any:
        bound = b.graph.inputs[0]
        return b.Add(b.ReduceMean(outputs[0], keepdims=0), b.ReduceMax(b.Log(bound), keepdims=0))
    nn.manual_seed(1)
    rows = np.abs(X) + 1
    model = tileflow.training_model(nn.Linear(6, 3), optimizer=optim.SGD(lr=0.1), loss=loss, skip_non_finite=True)
    model(rows)
    before = bits(model.state_dict())
    bad = rows.copy()
    bad[0] = -1.0                                              # its logarithm is NaN; the weights' gradients are the means of the inputs
    model(bad)
    assert model.skipped_updates == 1
    assert bits(model.state_dict()) == before


def test_without_bad_updates_skipping_changes_no_bit():
    plain, skipping = normal(), normal(skip_non_finite=True)
    for _ in range(3):
        plain(X, Y)
        skipping(X, Y)
    assert bits(plain.state_dict()) == bits(skipping.state_dict())


def test_the_scales_are_those_of_pytorchs_scaler():
    torch = needs("torch")
    good = np.random.default_rng(3).random(60) < 0.75
    model = normal(automatic_loss_scaling="dynamic", growth_interval=3, growth_factor=4.0, backoff_factor=0.25, loss_scaling=2.0 ** 18)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 18, growth_factor=4.0, backoff_factor=0.25, growth_interval=3)
    weight = torch.nn.Parameter(torch.zeros(2))
    peer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(torch.zeros(()))
    ours, theirs = [], []
    for is_good in good:
        model(X if is_good else BAD, Y)
        ours.append(model.loss_scale)
        weight.grad = torch.full((2,), 1.0 if is_good else float("nan"))
        scaler.step(peer)
        scaler.update()
        theirs.append(scaler.get_scale())
    assert ours == [min(max(x, 2.0 ** -24), 2.0 ** 24) for x in theirs]
    assert len(set(ours)) > 5
    assert model.skipped_updates == np.count_nonzero(~good)


def test_no_gradient_ever_finite_is_an_error_and_no_endless_loop():
    model = normal(automatic_loss_scaling="dynamic", loss_scaling=2.0 ** -22)
    before = bits(model.source.state_dict(True))
    model(BAD, Y)
    with pytest.raises(TrainingError, match=r"loss scale has fallen to 5\.96046e-08, its least value.*after 2 skipped updates"):
        model(BAD, Y)
    assert {n: before[n] for n in before if "running" not in n and "num" not in n} == {
        n: a.tobytes() for n, a in model.state_dict().items() if "running" not in n and "num" not in n}
    plain = normal(skip_non_finite=True)
    for _ in range(99):
        plain(BAD, Y)
    with pytest.raises(TrainingError, match="each of the last 100 updates"):
        plain(BAD, Y)


def tiny(b: Any, outputs: Any) -> Any:
    """A loss whose gradients a float16 cannot hold."""
    return b.Mul(b.ReduceMean(b.Mul(outputs[0], outputs[0]), keepdims=0), b.constant(np.float32(1e-7)))


@pytest.mark.parametrize(("options", "moves"), [
    (dict(automatic_loss_scaling="off"), False), (dict(automatic_loss_scaling="dynamic"), True), (dict(automatic_loss_scaling="histogram"), True),
    (dict(loss_scaling=2.0 ** 16), True), (dict(), True)], ids=["off", "dynamic", "histogram", "by hand", "auto"])
def test_underflow_loses_the_gradients_and_scaling_saves_them(options: dict[str, Any], moves: bool):
    nn.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=1e6), loss=tiny, precision="16-mixed", **options)
    losses = [float(model(X)[1]) for _ in range(30)]
    assert (losses[-1] < 0.5 * losses[0]) == moves
    if not moves:
        assert losses[-1] == losses[0]


def squares_in_float16(b: Any, outputs: Any) -> Any:
    h = b.Cast(outputs[0], to="float16")
    return b.ReduceSum(b.Cast(b.Mul(h, h), to="float32"), keepdims=0)


def computed(graph: Any, given: dict[str, np.ndarray]) -> dict[Any, np.ndarray]:
    """All values of a graph by the operators' NumPy references."""
    values = dict(graph.constants) | {v: given[v.name] for v in graph.inputs} | {s.input: given[s.name] for s in graph.states}
    for node in graph.nodes:
        values.update(zip(node.outputs, node.op.reference(*[None if v is None else values[v] for v in node.inputs]), strict=True))
    return values


@pytest.mark.parametrize(("edge", "share", "period"), [(2.0 ** -9, 0.2, 1), (2.0 ** -9, 0.2, 3), (0.125, 1e-7, 1)])
def test_the_histogram_halves_and_doubles_as_the_reference(edge: float, share: float, period: int):
    """Fact 11. The counts are NumPy's, of the same values; an update works with the scale that the update before it found."""
    nn.manual_seed(1)
    model = tileflow.training_model(nn.Linear(6, 3), optimizer=optim.SGD(lr=0.0), loss=squares_in_float16, gradient_accumulation=2,
                                    automatic_loss_scaling="histogram", loss_scaling=64.0, bin_edge_location=edge,
                                    threshold_upper_count_proportion=share, loss_scaling_update_period=period)
    model.compile(X)
    program = model.program
    counted = [n.inputs[0] for graph in (program.parts["prologue"], program.micro) for n in graph.nodes if n.op.name == "CountLarge"]
    assert len(counted) >= 3
    assert all(v.dtype == "float16" for v in counted)
    scale, scales = 64.0, []
    for i in range(24):
        x = X * np.float32(1 + i % 5)
        large = total = 0
        states = {n: model.source.session[n] for n in model.source.session.names("parameter", "optimizer")}
        for rows in np.split(x, 2):
            before = computed(program.parts["prologue"], states)
            links = {v.name: before[program.links[v]] for v in program.micro.inputs if v in program.links}
            own = next(v.name for v in program.micro.inputs if v not in program.links)
            values = before | computed(program.micro, {**states, **links, own: rows})
            large += sum(int((~(np.abs(values[v].astype(np.float64)) < 65504 * edge)).sum()) for v in counted)
            total += sum(v.type.size for v in counted)
        model(x)
        if i % period == period - 1:
            scale = min(scale * (0.5 if large > share / (1 - share) * (total - large) else 2.0), 2.0 ** 24)
        assert model.loss_scale == scale, i
        scales.append(scale)
    assert len(set(scales)) > 1
    assert model.skipped_updates == 0


def test_a_scale_that_adapts_stays_within_bounds():
    """Fact 11, deliberately otherwise: where nothing is ever large the reference's scale doubles without end; ours stops."""
    def small(b: Any, outputs: Any) -> Any:
        return b.Mul(squares_in_float16(b, outputs), b.constant(np.float32(2.0 ** -12)))
    model = tileflow.training_model(nn.Linear(6, 3, bias=False), optimizer=optim.SGD(lr=0.0), loss=small, device_iterations=48,
                                    automatic_loss_scaling="histogram")
    model(np.zeros_like(X))
    assert model.loss_scale == 2.0 ** 24
    with pytest.raises(OptionError, match=r"stays within 2\^-24\.\.2\^24, and loss_scaling is 3\.35544e\+07"):
        normal(automatic_loss_scaling="dynamic", loss_scaling=2.0 ** 25)(X, Y)


def test_settings_that_make_no_sense_are_sentences():
    with pytest.raises(OptionError, match="no tracked gradient tensors of type float16 or bfloat16 were found"):
        normal(automatic_loss_scaling="histogram")(X, Y)
    for name in ("bin_edge_location", "threshold_upper_count_proportion"):
        with pytest.raises(OptionError, match=rf"Out of range value for '{name}'\. The current value is 1\.5, .* in the range \[0, 1\]"):
            tileflow.Options(automatic_loss_scaling="histogram", **{name: 1.5})
    with pytest.raises(OptionError, match="finds the scale by the updates that it skips"):
        tileflow.Options(automatic_loss_scaling="dynamic", skip_non_finite=False)


@pytest.mark.parametrize("options", [dict(automatic_loss_scaling="dynamic"), dict(skip_non_finite=True)], ids=lambda o: next(iter(o)))
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_tiles_skip_what_the_host_skips(options: dict[str, Any], micro_batches: int):
    """The selects are part of the program: tile-exact execution of it keeps and changes the same states."""
    model = normal(micro_batches, **options)
    model(X, Y)
    session = model.source.session
    machine = analyze(model.program, chip("gc2").variant(name="small", tiles=8), TileOptions())
    assert exact.check(machine).ok
    plans = {step.node: step.plan for step in machine.steps}
    assert "Where" in {node.op.name for node in plans}
    for rows in (X, BAD):
        before = {n: a.copy() for n, a in session.lasting().items()}
        feeds = {v.name: a for v, a in zip(model.program.inputs, (rows, Y), strict=True)}
        with np.errstate(all="ignore"):
            found = exact.execute(machine.program, plans, feeds, before, exact.Tiles(8, 1 << 20), scalars=model.optimizer.values)
        model(rows, Y)
        for name, a in session.lasting().items():
            if rows is BAD and "running" not in name:
                assert found.states[name].tobytes() == a.tobytes(), name
            np.testing.assert_allclose(found.states[name], a, rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_run_counts_what_it_skips_and_goes_on_bit_for_bit(tmp_path: Path):
    """Skips in the middle of a run; stopped and resumed, scale and counters included."""
    rows = np.tile(X, (4, 1))
    rows[70] = np.nan
    settings: dict[str, Any] = dict(data=(rows, np.tile(Y, 4)), micro_batch_size=8, gradient_accumulation=2, shuffle=False, optimizer="adamw",
                                    automatic_loss_scaling="dynamic", growth_interval=5)
    whole = tileflow.train(network(), out=str(tmp_path / "whole"), epochs=4, **settings)
    tileflow.train(network(), out=str(tmp_path / "parts"), epochs=2, **settings)
    parts = tileflow.train(network(), out=str(tmp_path / "parts"), epochs=4, resume=True, **settings)
    assert bits(whole._trainer.session.lasting()) == bits(parts._trainer.session.lasting())
    assert [e.skipped for e in whole.epochs] == [1, 1, 1, 1] == [e.skipped for e in parts.epochs]
    assert [e.loss_scale for e in whole.epochs] == [e.loss_scale for e in parts.epochs]
    assert all(np.isfinite(e.loss) for e in whole.epochs)
    assert whole.history["skipped"].tolist() == [1.0] * 4
    assert whole.history["loss_scale"][-1] == whole.model.loss_scale
    assert "skipped 1 update" in epoch_line(whole.epochs[0], 4)
    assert "loss scale" in epoch_line(whole.epochs[0], 4)


def test_the_page_is_true():
    """docs/loss-scaling.md: its code runs, the options and flags that it names are there."""
    page = (ROOT / "docs" / "loss-scaling.md").read_text(encoding="utf-8")
    code, = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    known: dict[str, Any] = {}
    exec(compile(code, "loss-scaling.md", "exec"), known)
    assert known["model"].loss_scale == 65536.0
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?:=[^`]*)?`", page)) - {"loss_scale"}
    assert named <= set(declarations()), named - set(declarations())
    needing = {d.name for d in declarations().values() for n in d.needs
               if isinstance(n, With) and n.option == "automatic_loss_scaling"}
    assert needing
    assert all(name in page for name in needing)
