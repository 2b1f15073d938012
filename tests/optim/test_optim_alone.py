"""Optimizers alone, fed recorded gradients for 50 updates in float32: against PyTorch's, and against float64 twins of PopART's equations.

The bound is max |difference| <= 1e-5 * max |weight| for each tensor (1e-4 for centered RMSprop, whose variance is a small difference).
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from optim_harness import Array, agree, drawn, fed, pytorch, recorded
from peers import needs
from twins import optimizers as twins

from tileflow import optim
from tileflow.optim import schedules

UPDATES = 50
W = drawn()
G = recorded(UPDATES, W)

SGD = [dict(), dict(weight_decay=0.1), dict(momentum=0.9), dict(momentum=0.9, weight_decay=0.1), dict(momentum=0.9, nesterov=True),
       dict(momentum=0.8, nesterov=True, weight_decay=0.05), dict(momentum=0.9, dampening=0.3), dict(dampening=0.5),
       dict(momentum=0.5, dampening=0.9, weight_decay=0.1)]


@pytest.mark.parametrize("options", SGD, ids=str)
def test_sgd_is_pytorchs(options: dict[str, Any]) -> None:
    torch = needs("torch")
    agree(fed(optim.SGD(lr=0.02, torch_compat=True, **options), W, G), pytorch(torch.optim.SGD, W, G, lr=0.02, **options))


@pytest.mark.parametrize("options", SGD, ids=str)
def test_sgd_is_poparts(options: dict[str, Any]) -> None:
    """Separate accumulators; without momentum the dampening still counts, and with it the first velocity begins at zero."""
    if options.get("momentum"):
        twin: twins.Twin = twins.SGD2(W, lr=0.02, **options)
    else:
        twin = twins.SGD0(W, lr=0.02, **options)
    agree(fed(optim.SGD(lr=0.02, **options), W, G), twins.followed(twin, G))


ADAM = [dict(), dict(weight_decay=0.1), dict(betas=(0.5, 0.7), eps=1e-3)]


@pytest.mark.parametrize("options", ADAM, ids=str)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam_is_pytorchs(name: str, options: dict[str, Any]) -> None:
    torch = needs("torch")
    agree(fed(getattr(optim, name)(lr=0.01, **options), W, G), pytorch(getattr(torch.optim, name), W, G, lr=0.01, **options))


def betas(options: dict[str, Any]) -> dict[str, Any]:
    """The twin names the two betas."""
    options = dict(options)
    if "betas" in options:
        options["beta1"], options["beta2"] = options.pop("betas")
    return options


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("options", ADAM, ids=str)
@pytest.mark.parametrize(("name", "mode"), [("Adam", "l2"), ("AdamW", "decay")])
def test_adam_is_poparts(name: str, mode: str, options: dict[str, Any], correction: bool) -> None:
    options = {"weight_decay": 0.01 if name == "AdamW" else 0.0} | options
    found = fed(getattr(optim, name)(lr=0.01, bias_correction=correction, **options), W, G)
    agree(found, twins.followed(twins.Adam(W, lr=0.01, decay_mode=mode, bias_correction=correction, **betas(options)), G))


# ---- reduction, loss scale

@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("name", "options"), [("SGD", dict(momentum=0.9, weight_decay=0.1)), ("AdamW", dict(weight_decay=0.1))])
def test_accumulation_and_loss_scale(name: str, options: dict[str, Any], reduction: str, scale: float) -> None:
    w, g = W, recorded(UPDATES, W, 3)
    found = fed(getattr(optim, name)(lr=0.01, **options), w, g, gradient_accumulation=3, accumulation_reduction=reduction, loss_scaling=scale)
    kind: Any = twins.SGD2 if name == "SGD" else twins.Adam
    more = {} if name == "SGD" else dict(decay_mode="decay")
    agree(found, twins.followed(kind(w, lr=0.01, ls=scale, reduction=reduction, **options, **more), g, 3))


RMS = [dict(), dict(momentum=0.9), dict(weight_decay=0.1, alpha=0.9), dict(centered=True),
       dict(momentum=0.5, centered=True, weight_decay=0.1, alpha=0.9)]


@pytest.mark.parametrize("options", RMS, ids=str)
def test_rmsprop_is_pytorchs(options: dict[str, Any]) -> None:
    torch = needs("torch")
    found = fed(optim.RMSprop(lr=0.01, torch_compat=True, **options), W, G)
    agree(found, pytorch(torch.optim.RMSprop, W, G, lr=0.01, **options), 1e-4 if options.get("centered") else 1e-5)


@pytest.mark.parametrize("tf", [False, True])
@pytest.mark.parametrize("options", RMS, ids=str)
def test_rmsprop_is_poparts(options: dict[str, Any], tf: bool) -> None:
    found = fed(optim.RMSprop(lr=0.01, use_tf_variant=tf, **options), W, G)
    twin = twins.RMSprop(W, lr=0.01, use_tf_variant=tf, **options)
    agree(found, twins.followed(twin, G), 1e-4 if options.get("centered") else 1e-5)


@pytest.mark.parametrize("options", [dict(), dict(bias_correction=False), dict(weight_decay=0.1, max_weight_norm=1.5), dict(betas=(0.5, 0.7)),
                                     dict(eps=1e-3), dict(max_weight_norm=None), dict(max_weight_norm=0.0)], ids=str)
def test_lamb_is_poparts(options: dict[str, Any]) -> None:
    twin = twins.LAMB(W, lr=0.01, **betas(options) | ({"max_weight_norm": math.inf} if options.get("max_weight_norm", 0) is None else {}))
    agree(fed(optim.LAMB(lr=0.01, **options), W, G), twins.followed(twin, G))


def test_lamb_of_what_has_no_norm() -> None:
    """A weight, or a direction, of zeros has the ratio 1."""
    w = {"zero": np.zeros(5, np.float32), "still": np.ones(4, np.float32)}
    g = {"zero": recorded(UPDATES, {"zero": w["zero"]})["zero"], "still": np.zeros((UPDATES, 4), np.float32)}
    found = fed(optim.LAMB(lr=0.01, weight_decay=0.0), w, g)
    agree(found, twins.followed(twins.LAMB(w, lr=0.01, weight_decay=0.0), g))
    assert (found["still"] == 1).all()


def test_combined_accumulators_are_poparts() -> None:
    g = recorded(UPDATES, W, 3)
    for options in (dict(), dict(weight_decay=0.1, velocity_scaling=16.0), dict(dampening=0.5, weight_decay=0.05)):
        found = fed(optim.SGD(lr=0.02, momentum=0.9, use_combined_accum=True, **options), W, g, gradient_accumulation=3, loss_scaling=32.0)
        agree(found, twins.followed(twins.SGD1(W, lr=0.02, ls=32.0, momentum=0.9, **options), g, 3))


# ---- clipping, schedules, groups

OURS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "SGD": (optim.SGD, twins.SGD0, dict(weight_decay=0.1)), "momentum": (optim.SGD, twins.SGD2, dict(momentum=0.9, weight_decay=0.1)),
    "Adam": (optim.Adam, twins.Adam, dict(weight_decay=0.1)), "AdamW": (optim.AdamW, twins.Adam, dict(weight_decay=0.1)),
    "RMSprop": (optim.RMSprop, twins.RMSprop, dict(momentum=0.9, weight_decay=0.1)), "LAMB": (optim.LAMB, twins.LAMB, dict(weight_decay=0.1))}


def pair(name: str, **options: Any) -> tuple[Any, Any]:
    """The optimizer, and a function that makes its twin, with these settings in both."""
    ours, twin, own = OURS[name]
    kept = dict(decay_mode="decay") if name == "AdamW" else {}
    return ours(lr=0.01, **own | options), lambda **more: twin(W, lr=0.01, **kept | own | options | more)


@pytest.mark.parametrize("name", OURS)
def test_clipping_is_poparts(name: str) -> None:
    """One norm over all weights, of 0.1 to 30 here, so that some updates are clipped and others are not."""
    g = {n: a * np.exp(np.sin(np.arange(UPDATES)) * 3)[(...,) + (None,) * (a.ndim - 1)].astype("f4") for n, a in G.items()}
    ours, twin = pair(name, max_grad_norm=8.0)
    agree(fed(ours, W, g), twins.followed(twin(), g))
    with pytest.raises(AssertionError):                            # and it makes a difference
        agree(fed(pair(name)[0], W, g), twins.followed(twin(), g))


@pytest.mark.parametrize(("name", "options"), [("SGD", dict(momentum=0.9, weight_decay=0.1)), ("Adam", dict(weight_decay=0.1)), ("AdamW", dict())])
def test_clipping_is_pytorchs(name: str, options: dict[str, Any]) -> None:
    torch = needs("torch")
    found = fed(getattr(optim, name)(lr=0.01, torch_compat=True, max_grad_norm=5.0, **options), W, G)
    agree(found, pytorch(getattr(torch.optim, name), W, G, clip=5.0, lr=0.01, **options))


@pytest.mark.parametrize("name", OURS)
def test_scheduled_attributes_are_read_by_every_update(name: str) -> None:
    """Rate, decay and what else is a number, each by a schedule of its own; against the twin, which is told each update's numbers."""
    driven: dict[str, Any] = {"lr": schedules.cosine(0.03, UPDATES), "weight_decay": schedules.step(0.2, 20)}
    told = dict(driven)
    if name in ("momentum", "RMSprop"):
        driven["momentum"] = told["momentum"] = schedules.one_cycle_momentum(total=UPDATES)
    if name in ("Adam", "AdamW", "LAMB"):
        driven["betas"] = (schedules.one_cycle_momentum(total=UPDATES), schedules.linear(0.99, UPDATES, 1.0, 0.9))
        told["beta1"], told["beta2"] = driven["betas"]
    ours, twin, own = OURS[name]
    followed = twin(W, groups=lambda n, t: {k: f(t) for k, f in told.items()}, **(dict(decay_mode="decay") if name == "AdamW" else {}) | own)
    agree(fed(ours(**own | driven), W, G), twins.followed(followed, G))


@pytest.mark.parametrize("name", OURS)
def test_groups_have_attributes_of_their_own(name: str) -> None:
    """By name pattern: no decay for biases, another rate for norms, one that is scheduled."""
    ours, twin = pair(name)
    kind, own = type(ours), OURS[name][2]
    norms = {"params": ["norm.*", "gain"], "lr": schedules.step(0.002, 10, 0.5)}
    grouped = kind(lr=0.01, groups=[{"params": "*.bias", "weight_decay": 0.0}, norms], **own)

    def groups(n: str, t: int) -> dict[str, float]:
        return {"weight_decay": 0.0} if n == "dense.bias" else {"lr": 0.002 * 0.5 ** (t // 10)} if n in ("norm.weight", "gain") else {}
    agree(fed(grouped, W, G), twins.followed(twin(groups=groups), G))
    small = kind(lr=0.01, no_decay="auto", **own)
    undecayed = twin(groups=lambda n, t: {} if n == "dense.weight" else {"weight_decay": 0.0})
    agree(fed(small, W, G), twins.followed(undecayed, G))


def test_groups_are_pytorchs() -> None:
    torch = needs("torch")
    found = fed(optim.AdamW(lr=0.01, torch_compat=True, groups=[{"params": "*.bias", "weight_decay": 0.0, "lr": 0.003, "betas": (0.8, 0.9)}]), W, G)
    agree(found, pytorch(torch.optim.AdamW, W, G, lr=0.01, groups=[(lambda n: n.endswith(".bias"),
                                                                   {"weight_decay": 0.0, "lr": 0.003, "betas": (0.8, 0.9)})]))


# ---- element types: what arithmetic says of each rounding, over 50 updates

TYPES = {"float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("reduction", ["post", "running"])
def test_accumulator_types(dtype: str, reduction: str) -> None:
    """Each micro-batch is rounded into the accumulator once: a step's error is at most their number times the type's, of the sum of sizes."""
    g = recorded(UPDATES, W, 4)
    options = dict(gradient_accumulation=4, mean_reduction_strategy=reduction)
    found = fed(optim.SGD(lr=0.02, accum_type=dtype), W, g, **options)
    assert found.session["dense.weight.grad"].dtype.name == dtype
    wanted = twins.followed(twins.SGD0(W, lr=0.02), g, 4)
    for n, w in wanted.items():
        steps = 0.02 * np.abs(g[n].reshape(UPDATES, 4, *w.shape)).sum((0, 1))
        assert (np.abs(found[n] - w) <= 4 * TYPES[dtype] * steps + 1e-5).all(), n
        assert not np.allclose(found[n], w, rtol=1e-6), n         # it is rounded


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("name", "types"), [("momentum", ("velocity_accum_type",)), ("Adam", ("first", "second")),
                                             *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in (
                                                 ("AdamW", ("first",)), ("RMSprop", ("first", "second")), ("LAMB", ("first", "second"))))])
def test_moment_types(name: str, types: tuple[str, ...], dtype: str) -> None:
    """A moment is a mean of what came in, rounded at each update: its relative error is that of its type times how long it remembers."""
    named = {t if "_" in t else f"{t}_order_momentum_accum_type": dtype for t in types}
    shorter = {"betas": (0.8, 0.9)} if name in ("Adam", "AdamW", "LAMB") else {"alpha": 0.9} if name == "RMSprop" else {}
    ours, _ = pair(name, **named, **shorter)
    _, twin = pair(name, **betas(shorter)) if name not in ("Adam", "AdamW", "LAMB") else (None, None)
    if twin is None:
        kept = dict(decay_mode="decay") if name == "AdamW" else {}
        wanted = twins.followed(OURS[name][1](W, lr=0.01, **kept | OURS[name][2] | betas(shorter)), G)
    else:
        wanted = twins.followed(twin(), G)
    found = fed(ours, W, G)
    assert dtype in {found.session[n].dtype.name for n in found.session.names("optimizer")}
    for n, w in wanted.items():
        moved = np.abs(w - W[n]).max()
        assert np.abs(found[n] - w).max() <= 40 * TYPES[dtype] * max(moved, 0.01 * UPDATES * 0.1), n


# ---- the twins themselves

@pytest.mark.parametrize("options", SGD[:6], ids=str)
def test_the_twins_of_sgd_are_pytorchs_where_the_two_agree(options: dict[str, Any]) -> None:
    """And the combined accumulator computes what the separate ones do while attributes stay."""
    torch = needs("torch")
    wanted = pytorch(torch.optim.SGD, W, G, lr=0.02, **options)
    twin = twins.SGD2(W, lr=0.02, ls=7.0, **{"momentum": 0.0} | options)
    agree(twins.followed(twin, G), wanted, 1e-12)
    if not options.get("nesterov"):
        agree(twins.followed(twins.SGD1(W, lr=0.02, ls=7.0, velocity_scaling=3.0, **{"momentum": 0.0} | options), G), wanted, 1e-12)


@pytest.mark.parametrize("options", ADAM, ids=str)
def test_the_twins_of_adam_are_pytorchs(options: dict[str, Any]) -> None:
    torch = needs("torch")
    agree(twins.followed(twins.Adam(W, lr=0.01, **betas(options)), G), pytorch(torch.optim.Adam, W, G, lr=0.01, **options), 1e-12)
    decayed = {"weight_decay": 0.01} | options
    twin = twins.Adam(W, lr=0.01, decay_mode="decay", **betas(decayed))
    agree(twins.followed(twin, G), pytorch(torch.optim.AdamW, W, G, lr=0.01, **decayed), 1e-12)


@pytest.mark.parametrize("options", [dict(), dict(momentum=0.9), dict(centered=True), dict(momentum=0.5, centered=True, weight_decay=0.1, alpha=0.9)],
                         ids=str)
def test_the_twin_of_rmsprop_is_pytorchs(options: dict[str, Any]) -> None:
    torch = needs("torch")
    agree(twins.followed(twins.RMSprop(W, lr=0.01, **options), G), pytorch(torch.optim.RMSprop, W, G, lr=0.01, **options), 1e-9)


def test_the_twins_reductions() -> None:
    g = recorded(3, W, 4)
    post = twins.followed(twins.SGD0(W, lr=0.1, ls=8.0), g, 4)
    agree(twins.followed(twins.SGD0(W, lr=0.1, strategy="running"), g, 4), post, 1e-14)
    agree(twins.followed(twins.SGD0(W, lr=0.025, reduction="sum", ls=3.0), g, 4), post, 1e-14)
    kept: dict[str, Array] = twins.SGD0(W, max_grad_norm=1e9).clipped({n: a[0].astype("f8") for n, a in g.items()})
    agree({n: a[0] for n, a in g.items()}, kept, 1e-7)
