"""Schedules against PyTorch's over hundreds of steps; lengths that a run knows; plateaus and their state; bad settings."""
from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peers import needs
from places import ROOT

from tileflow.optim import schedules as s
from tileflow.optim.schedules import Run, value_at
from tileflow.system.errors import OptionError

STEPS = 400


def theirs(make: Callable[[Any, Any], Any], lr: float, steps: int = STEPS, attribute: str = "lr") -> np.ndarray:
    """The rates of a scheduler of PyTorch's: make(optimizer, torch.optim.lr_scheduler)."""
    torch = needs("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    scheduler = make(optimizer, torch.optim.lr_scheduler)
    rates = []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0][attribute]))
        optimizer.step()
        scheduler.step()
    return np.array(rates)


def ours(schedule: Any, steps: int = STEPS, run: Run | None = None) -> np.ndarray:
    return np.array([value_at(schedule, t, run or Run()) for t in range(steps)])


PAIRS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "constant": (s.constant(0.3, 0.25, 30), lambda o, t: t.ConstantLR(o, 0.25, 30)),
    "step": (s.step(0.3, 30, 0.5), lambda o, t: t.StepLR(o, 30, 0.5)),
    "multi_step": (s.multi_step(0.3, [30, 30, 80, 300], 0.2), lambda o, t: t.MultiStepLR(o, [30, 30, 80, 300], 0.2)),
    "exponential": (s.exponential(0.3, 0.97), lambda o, t: t.ExponentialLR(o, 0.97)),
    "linear": (s.linear(0.3, 120, 0.1, 0.7), lambda o, t: t.LinearLR(o, 0.1, 0.7, 120)),
    "linear_down": (s.linear(0.3, 120), lambda o, t: t.LinearLR(o, 1.0, 0.0, 120)),
    "polynomial": (s.polynomial(0.3, 150, 2.5), lambda o, t: t.PolynomialLR(o, 150, 2.5)),
    "cosine": (s.cosine(0.3, 90, 0.01), lambda o, t: t.CosineAnnealingLR(o, 90, 0.01)),
    "cosine_once": (s.cosine(0.3, 400), lambda o, t: t.CosineAnnealingLR(o, 400)),
    "restarts": (s.cosine_restarts(0.3, 35, 2, 0.01), lambda o, t: t.CosineAnnealingWarmRestarts(o, 35, 2, 0.01)),
    "restarts_equal": (s.cosine_restarts(0.3, 35), lambda o, t: t.CosineAnnealingWarmRestarts(o, 35)),
    "one_cycle": (s.one_cycle(0.3, 400), lambda o, t: t.OneCycleLR(o, 0.3, 400)),
    "one_cycle_linear": (s.one_cycle(0.3, 410, 0.4, 10, 1e3, "linear"),
                         lambda o, t: t.OneCycleLR(o, 0.3, 410, pct_start=0.4, div_factor=10, final_div_factor=1e3, anneal_strategy="linear")),
    "one_cycle_three": (s.one_cycle(0.3, 400, three_phase=True), lambda o, t: t.OneCycleLR(o, 0.3, 400, three_phase=True)),
    "warmup": (s.warmup(s.cosine(0.3, 300), 50, 0.1),
               lambda o, t: t.SequentialLR(o, [t.LinearLR(o, 0.1, 1.0, 50), t.CosineAnnealingLR(o, 300)], [50])),
    "warmup_default": (s.warmup(0.3, 50), lambda o, t: t.LinearLR(o, 1 / 51, 1.0, 50)),
    "sequential": (s.sequential([s.constant(0.3, 0.1, 20), s.exponential(0.3, 0.9), s.step(0.3, 50)], [20, 60]),
                   lambda o, t: t.SequentialLR(o, [t.ConstantLR(o, 0.1, 20), t.ExponentialLR(o, 0.9), t.StepLR(o, 50)], [20, 60])),
    "chained": (s.chained(0.3, s.constant(1, 0.1, 20), s.exponential(1, 0.99)),
                lambda o, t: t.ChainedScheduler([t.ConstantLR(o, 0.1, 20), t.ExponentialLR(o, 0.99)])),
    "function": (lambda i: 0.3 * 0.95 ** (i // 7), lambda o, t: t.LambdaLR(o, lambda i: 0.95 ** (i // 7))),
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", PAIRS)
def test_rates_are_pytorchs(name: str) -> None:
    """PyTorch multiplies the last rate in most of them, ours are in closed form: 400 roundings apart."""
    schedule, make = PAIRS[name]
    np.testing.assert_allclose(ours(schedule), theirs(make, 0.3), rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("three", [False, True])
def test_the_momentum_of_one_cycle_is_pytorchs(three: bool) -> None:
    wanted = theirs(lambda o, t: t.OneCycleLR(o, 0.3, 400, three_phase=three, base_momentum=0.8), 0.3, attribute="momentum")
    np.testing.assert_allclose(ours(s.one_cycle_momentum(0.8, total=400, three_phase=three)), wanted, rtol=1e-13)


@pytest.mark.parametrize("options", [dict(), dict(patience=2, cooldown=3), dict(patience=0, factor=0.5, threshold=0.05), dict(mode="max", patience=1),
                                     dict(patience=1, threshold=0.02, threshold_mode="abs"), dict(mode="max", threshold_mode="abs", patience=3),
                                     dict(patience=1, min_lr=0.02, factor=0.3)], ids=str)
def test_plateaus_are_pytorchs(options: dict[str, Any]) -> None:
    torch = needs("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    named = {"min_lr": "least", "threshold_mode": "relative"}
    own = s.plateau(0.3, **{named.get(k, k): v == "rel" if k == "threshold_mode" else v for k, v in options.items()})
    draw = np.random.default_rng(4)
    for t in range(STEPS):
        metric = float(np.exp(-t / 60) + 0.1 * draw.standard_normal()) if t % 97 else float("nan")
        own.observe(metric)
        peer.step(metric)
        assert own(t) == optimizer.param_groups[0]["lr"], t
        if t == 200:                                               # what a checkpoint keeps is all there is
            resumed = s.plateau(own.lr, own.factor, own.patience, own.threshold, own.relative, own.cooldown, own.least, own.mode)
            assert s.is_state(own.state())
            resumed.restore(own.state())
            own = resumed
    assert own.rate < 0.3


# ---- what a run knows

def test_a_length_that_is_not_given_is_the_runs() -> None:
    run = Run(400, 40)
    for schedule, same in ((s.cosine(0.3), s.cosine(0.3, 400)), (s.linear(0.3), s.linear(0.3, 400)),
                           (s.polynomial(0.3, power=2), s.polynomial(0.3, 400, 2)),
                           (s.one_cycle(0.3), s.one_cycle(0.3, 400)), (s.warmup(s.cosine(0.3), 50), s.warmup(s.cosine(0.3, 350), 50)),
                           (s.warmup(s.linear(0.3), 0.125), s.warmup(s.linear(0.3, 350), 50)),
                           (s.sequential([s.linear(0.3), s.cosine(0.3)], [100]), s.sequential([s.linear(0.3, 100), s.cosine(0.3, 300)], [100])),
                           (s.chained(2, s.cosine(1)), s.chained(2, s.cosine(1, 400))), (s.per_epoch(s.cosine(0.3)), s.per_epoch(s.cosine(0.3, 10)))):
        np.testing.assert_array_equal(ours(schedule, run=run), ours(same, run=run), err_msg=repr(schedule))
    assert s.cosine(0.3).at(500, run) == 0                         # longer than planned: it stays at its end


def test_epochs_are_counted_where_users_expect_them() -> None:
    rates = ours(s.per_epoch(s.step(0.1, 30)), 4000, Run(None, 40))
    np.testing.assert_allclose(rates, np.repeat(0.1 * 0.1 ** (np.arange(100) // 30), 40), rtol=1e-15)
    np.testing.assert_array_equal(ours(s.per_epoch(s.step(0.1, 30), 40), 4000), rates)
    warm = ours(s.warmup(s.per_epoch(s.step(0.1, 3)), 80), 400, Run(400, 40))
    assert warm[79] < warm[80] == 0.1 == warm[199]
    assert warm[200] == pytest.approx(0.01)


@pytest.mark.parametrize(("schedule", "says"), [
    (s.cosine(0.1), r"Schedule cosine is to last as long as the run.*cosine\(\.\.\., total=updates\)"),
    (s.warmup(s.one_cycle(0.1), 5), "Schedule one_cycle is to last"),
    (s.warmup(0.1, 0.25), "0.25 is a share of the run.*give a number of updates"),
    (s.per_epoch(s.step(0.1, 3)), "does not know how many updates"),
])
def test_a_run_of_unknown_length(schedule: s.Schedule, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        schedule(7)


def test_schedules_are_values() -> None:
    """They compare, print, copy and pickle: settings of an optimizer are kept in checkpoints and handed to other processes."""
    made = [s.warmup(s.cosine(0.1, 20), 5), s.chained(0.1, s.step(1, 3)), s.sequential([0.1, s.linear(0.3)], [4]), s.plateau(0.1, patience=3)]
    for schedule in made:
        assert pickle.loads(pickle.dumps(schedule)) == schedule == copy.deepcopy(schedule)
        assert s.described(schedule) == repr(schedule)
    assert repr(made[0]).startswith("warmup(schedule=cosine(lr=0.1, total=20")
    assert made[0] != s.warmup(s.cosine(0.2, 20), 5)
    inner = s.plateau(0.1)
    assert s.plateaus({"lr": s.warmup(inner, 5), "betas": (s.plateau(0.9), 0.9), "weight_decay": inner}).keys() == {"lr", "betas"}


def test_the_guide_names_every_schedule() -> None:
    guide = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    kinds = [name for name in s.__all__ if isinstance(getattr(s, name), type) and issubclass(getattr(s, name), s.Schedule) and name != "Schedule"]
    assert len(kinds) == 18
    assert [name for name in kinds if f"`{name}(" not in guide] == []


# ---- bad settings: a sentence each

@pytest.mark.parametrize(("make", "says"), [
    (lambda: s.cosine(-0.1), "Schedule cosine: lr must be a number >= 0, got -0.1"),
    (lambda: s.cosine(float("nan")), "cosine: lr must be a number"),
    (lambda: s.cosine("fast"), "cosine: lr must be a number"),                                      # type: ignore[arg-type]
    (lambda: s.cosine(0.1, 0), "cosine: total must be a number of updates >= 1, or None for the run's, got 0"),
    (lambda: s.cosine(0.1, 2.5), "cosine: total"),                                                  # type: ignore[arg-type]
    (lambda: s.linear(0.1, -3), "linear: total"),
    (lambda: s.step(0.1, 0), "step: every must be a number of updates >= 1, got 0"),
    (lambda: s.multi_step(0.1, []), "multi_step: milestones"),
    (lambda: s.multi_step(0.1, [3, 2]), "milestones must be numbers of updates >= 1 that do not fall"),
    (lambda: s.multi_step(0.1, 3), "multi_step: milestones"),                                       # type: ignore[arg-type]
    (lambda: s.exponential(0.1, -1), "exponential: gamma"),
    (lambda: s.constant(0.1, total=-1), "constant: total"),
    (lambda: s.polynomial(0.1, power=-1), "polynomial: power"),
    (lambda: s.cosine_restarts(0.1, 0), "cosine_restarts: first"),
    (lambda: s.cosine_restarts(0.1, 5, 0), "cosine_restarts: growth"),
    (lambda: s.one_cycle(0.1, rise=1.5), "one_cycle: rise must be a share between 0 and 1"),
    (lambda: s.one_cycle(0.1, anneal="square"), "one_cycle: anneal must be 'cos' or 'linear'"),
    (lambda: s.one_cycle(0.1, div=0), "one_cycle: div must be a number above 0"),
    (lambda: s.one_cycle_momentum(-1), "one_cycle_momentum: low"),
    (lambda: s.warmup(0.1, -5), "warmup: updates"),
    (lambda: s.warmup(0.1, 5.5), "warmup: updates must be a whole number"),
    (lambda: s.warmup(0.1, 5, 2), "warmup: start must be a share between 0 and 1"),
    (lambda: s.warmup("cosine", 5), "warmup: schedule must be a schedule, a function"),             # type: ignore[arg-type]
    (lambda: s.sequential([0.1], [5]), "sequential: schedules must be one more than its 1 milestones"),
    (lambda: s.sequential([0.1, 0.2], [0]), "sequential: milestones"),
    (lambda: s.chained(0.1), "chained: factors"),
    (lambda: s.per_epoch(s.step(0.1, 3), 0), "per_epoch: updates"),
    (lambda: s.plateau(0.1, factor=1.0), "plateau: factor must be a share below 1"),
    (lambda: s.plateau(0.1, patience=-1), "plateau: patience must be a number of epochs"),
    (lambda: s.plateau(0.1, mode="least"), "plateau: mode must be 'min' or 'max'"),
])
def test_bad_settings(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make()
