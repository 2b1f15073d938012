"""What optimizers can be asked for: every rule against PyTorch or the reference's equations, groups, clipping, accumulator types, constants and
variables, another optimizer for a compiled model; the same on the simulated tiles."""
from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from optim_harness import Array, Fed, agree, drawn, fed, feed, pytorch, recorded, trainer
from peers import needs
from twins import optimizers as twins

import tileflow
from tileflow import exact, nn, optim
from tileflow.optim.schedules import linear
from tileflow.options.options import Options
from tileflow.system.errors import OptionError, TrainingError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze

W, UPDATES = drawn(), 20
G = recorded(UPDATES, W)

RMS: list[dict[str, Any]] = [dict(), dict(momentum=0.9, weight_decay=0.1), dict(centered=True),
                             dict(centered=True, momentum=0.5, alpha=0.9, eps=1e-4)]


@pytest.mark.parametrize("options", RMS, ids=str)
def test_rmsprop_is_pytorchs_and_poparts(options: dict[str, Any]) -> None:
    torch = needs("torch")
    found, bound = fed(optim.RMSprop(**options), W, G), 1e-4 if options.get("centered") else 1e-5
    agree(found, pytorch(torch.optim.RMSprop, W, G, **options), bound)
    agree(found, twins.followed(twins.RMSprop(W, **options), G), bound)


@pytest.mark.parametrize("options", RMS, ids=str)
def test_rmsprop_as_tensorflow_has_it(options: dict[str, Any]) -> None:
    found = fed(optim.RMSprop(use_tf_variant=True, **options), W, G)
    agree(found, twins.followed(twins.RMSprop(W, use_tf_variant=True, **options), G), 1e-4 if options.get("centered") else 1e-5)


def test_a_variance_is_never_less_than_zero() -> None:
    """Equal gradients have none, and rounding would make it negative: PyTorch's root of it is NaN then."""
    g = {n: np.repeat(a[:1], 3000, 0) for n, a in recorded(1, {"w": drawn()["dense.weight"]}).items()}
    found = fed(optim.RMSprop(centered=True, lr=1e-9, alpha=0.9), {"w": W["dense.weight"]}, g, 100)
    assert np.isfinite(found["w"]).all()


@pytest.mark.parametrize("options", [dict(), dict(bias_correction=False), dict(max_weight_norm=1.0), dict(weight_decay=0.2, betas=(0.8, 0.9))],
                         ids=str)
def test_lamb(options: dict[str, Any]) -> None:
    twin = dict(options)
    if "betas" in twin:
        twin["beta1"], twin["beta2"] = twin.pop("betas")
    agree(fed(optim.LAMB(lr=0.01, **options), W, G), twins.followed(twins.LAMB(W, lr=0.01, **twin), G))


def test_lamb_without_a_bound_and_without_the_ratio() -> None:
    big = {n: (1e5 * w).astype("f4") for n, w in W.items()}
    free, bounded = (fed(optim.LAMB(lr=0.01, max_weight_norm=m), big, G) for m in (None, 65500.0))
    agree(free, twins.followed(twins.LAMB(big, lr=0.01, max_weight_norm=np.inf), G))
    agree(bounded, twins.followed(twins.LAMB(big, lr=0.01), G))
    assert np.abs(free["dense.weight"] - bounded["dense.weight"]).max() > 1
    agree(fed(optim.LAMB(lr=0.01, max_weight_norm=0.0), W, G), twins.followed(twins.Adam(W, lr=0.01, weight_decay=0.01, decay_mode="decay"), G))


def test_lamb_of_a_weight_of_zeros_takes_the_plain_step() -> None:
    start = {"w": np.zeros((3, 4), np.float32), "v": W["dense.weight"]}
    g = recorded(3, start)
    g["v"][:] = 0                                                  # and a direction of nothing, with no decay
    found = fed(optim.LAMB(lr=0.1, weight_decay=0.0), start, g, 1)
    agree(found, twins.followed(twins.LAMB(start, lr=0.1, weight_decay=0.0), g))
    assert (found["v"] == start["v"]).all()


# ---- combined accumulators

@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("options", [dict(momentum=0.9), dict(momentum=0.5, dampening=0.3, weight_decay=0.1, velocity_scaling=32.0)], ids=str)
def test_combined_accumulators(options: dict[str, Any], accumulation: int) -> None:
    g = recorded(UPDATES, W, accumulation)
    found = fed(optim.SGD(lr=0.02, use_combined_accum=True, **options), W, g, gradient_accumulation=accumulation, loss_scaling=8.0)
    agree(found, twins.followed(twins.SGD1(W, lr=0.02, ls=8.0, **options), g, accumulation))


def test_a_call_that_ends_early_leaves_the_combined_velocity_as_it_was() -> None:
    g = recorded(4, W, 3)
    model = trainer(optim.SGD(lr=0.02, momentum=0.9, use_combined_accum=True), W, gradient_accumulation=3, device_iterations=2)
    feed(model, {n: a[:6] for n, a in g.items()})
    before = Fed(model).bits()
    bad = {n: a[6:12].copy() for n, a in g.items()}
    bad["gain"][2] = np.nan                                        # the third micro-batch of the first update
    with pytest.raises(TrainingError):
        feed(model, bad)
    assert Fed(model).bits() == before
    feed(model, {n: a[6:] for n, a in g.items()})
    agree(Fed(model), twins.followed(twins.SGD1(W, lr=0.02, momentum=0.9), g, 3))


def test_a_skipped_update_leaves_the_combined_velocity_as_it_was() -> None:
    g = recorded(3, W, 3)
    options: dict[str, Any] = dict(momentum=0.9, weight_decay=0.1)
    model = trainer(optim.SGD(lr=0.02, use_combined_accum=True, **options), W, gradient_accumulation=3, automatic_loss_scaling="dynamic",
                    loss_scaling=4.0)
    feed(model, {n: a[:3] for n, a in g.items()})
    bad = {n: a[3:6].copy() for n, a in g.items()}
    bad["gain"][1] = np.nan
    feed(model, bad)
    assert Fed(model).session["optimizer.skipped"] == 1
    feed(model, {n: a[3:] for n, a in g.items()})
    agree(Fed(model), twins.followed(twins.SGD1(W, lr=0.02, **options), g, 3))


def test_the_combined_velocity_has_the_type_of_its_weight() -> None:
    half = drawn("bfloat16")
    found = fed(optim.SGD(lr=0.02, momentum=0.9, use_combined_accum=True), half, recorded(4, half, 2), 2, gradient_accumulation=2)
    names = [n for n in found.session.names("optimizer", "accumulator") if "momentum_buffer" in n]
    assert len(names) == 2 * len(half)
    assert {found.session[n].dtype.name for n in names} == {"bfloat16"}


# ---- groups

def classed(name: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"lr": 0.01, "weight_decay": 0.1} | options


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_groups_are_pytorchs(name: str) -> None:
    torch = needs("torch")
    own: list[tuple[str, dict[str, Any]]] = [("*.bias", dict(weight_decay=0.0, lr=0.05)), ("norm.*", dict(lr=0.002))]
    if name == "SGD":
        own[1][1].update(momentum=0.9, nesterov=True)
    elif name.startswith("Adam"):
        own[1][1].update(betas=(0.5, 0.9))
    found = fed(getattr(optim, name)(lr=0.01, weight_decay=0.1, groups=[{"params": p, **o} for p, o in own]), W, G)
    fits = [lambda n: n.endswith(".bias"), lambda n: n.startswith("norm.")]
    theirs = pytorch(getattr(torch.optim, name), W, G, groups=[(f, o) for f, (_, o) in zip(fits, own, strict=True)], lr=0.01, weight_decay=0.1)
    agree(found, theirs)


def test_a_group_that_says_what_all_have_changes_no_bit() -> None:
    plain = fed(optim.AdamW(lr=0.01), W, G)
    grouped = fed(optim.AdamW(lr=0.01, groups=[{"params": ["*.bias", "gain"], "lr": 0.01}]), W, G)
    assert plain.bits("parameter") == grouped.bits("parameter")
    assert {s.name for s in grouped.model.program.states.values() if s.kind == "scalar"} == {"optimizer.lr", "optimizer.1.lr"}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_no_decay_in_one_word(accumulation: int) -> None:
    g = recorded(UPDATES, W, accumulation)
    word = fed(optim.AdamW(lr=0.01, weight_decay=0.3, no_decay="auto"), W, g, gradient_accumulation=accumulation)
    said = fed(optim.AdamW(lr=0.01, weight_decay=0.3, groups=[{"params": ["*.bias", "norm.weight", "gain"], "weight_decay": 0}]), W, g,
               gradient_accumulation=accumulation)
    agree(word, said, 1e-7)
    decayed = fed(optim.AdamW(lr=0.01, weight_decay=0.3), W, g, gradient_accumulation=accumulation)
    assert np.abs(word["dense.bias"] - decayed["dense.bias"]).max() > 1e-3


class Two(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(1)
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.head(self.body(x).tanh())


def test_groups_by_module_and_by_parameter() -> None:
    x, y = np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32)
    for chosen, moved in (("head.*", {"head.weight", "head.bias"}), ("module", {"head.weight", "head.bias"}), ("parameter", {"body.bias"})):
        net = Two()
        before = net.state_dict()
        params: Any = {"module": net.head, "parameter": [net.body.bias]}.get(chosen, chosen)
        tileflow.training_model(net, optimizer=optim.SGD(lr=0.0, groups=[{"params": params, "lr": 0.1}]), loss="mse")(x, y)
        assert {n for n, a in net.state_dict().items() if (a != before[n]).any()} == moved


@pytest.mark.parametrize(("groups", "message"), [
    ([{"params": "convolution.*"}],
     r"SGD: group 1 matches nothing: the pattern 'convolution\.\*' fits no parameter of this model, which has dense\.weight"),
    ([{"params": "*.bias"}, {"params": "dense.*", "name": "rest"}], r"SGD: 'dense\.bias' is in group 1 and in group rest; a parameter has one group"),
])
def test_groups_that_do_not_fit(groups: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fed(optim.SGD(groups=groups), W, G)


def test_a_module_of_another_network_is_in_no_group() -> None:
    with pytest.raises(OptionError, match="group 1 matches nothing: a Linear fits no parameter"):
        tileflow.training_model(Two(), optimizer=optim.SGD(groups=[{"params": Two().head}]), loss="mse")(np.ones((2, 4)), np.ones((2, 3)))


# ---- clipping

def pytorch_clipped(make: Any, clip: float, **options: Any) -> dict[str, Array]:
    return pytorch(make, W, G, clip=clip, **options)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("clip", [0.5, 20.0, 1e9])
def test_clipping_is_pytorchs(name: str, clip: float) -> None:
    torch = needs("torch")
    options = dict(lr=0.01, weight_decay=0.1)
    found = fed(getattr(optim, name)(max_grad_norm=clip, torch_compat=True, **options), W, G, loss_scaling=64.0)
    agree(found, pytorch_clipped(getattr(torch.optim, name), clip, **options))


def test_clipping_adds_nothing_to_the_norm_and_ignores_the_loss_scale() -> None:
    for scale in (1.0, 1024.0):
        found = fed(optim.SGD(lr=1.0, max_grad_norm=1e-6), W, {n: a[:1] for n, a in G.items()}, 1, loss_scaling=scale)
        norm = math.sqrt(sum(float(np.square(a[0].astype("f8")).sum()) for a in G.values()))
        for n, w in W.items():
            np.testing.assert_allclose(found[n], w - 1e-6 / norm * G[n][0], rtol=1e-6)


def test_adam_clips_the_gradient_with_its_decay() -> None:
    """As the reference does; the factor is of the unscaled sum g + wd w."""
    agree(fed(optim.Adam(lr=0.01, weight_decay=0.5, max_grad_norm=1.0), W, G, loss_scaling=4.0),
          twins.followed(twins.Adam(W, lr=0.01, weight_decay=0.5, max_grad_norm=1.0), G))


# ---- accumulator types

def test_a_running_mean_is_the_mean_and_float16_accumulators_keep_one() -> None:
    g = recorded(UPDATES, W, 5)
    post = fed(optim.AdamW(lr=0.01), W, g, gradient_accumulation=5)
    running = fed(optim.AdamW(lr=0.01), W, g, gradient_accumulation=5, mean_reduction_strategy="running")
    agree(running, post)
    agree(running, twins.followed(twins.Adam(W, lr=0.01, weight_decay=0.01, decay_mode="decay", strategy="running"), g, 5))
    large = {n: np.full_like(a[:5], 3e4) for n, a in g.items()}    # five of them exceed what float16 holds
    half = fed(optim.SGD(lr=1e-4, accum_type="float16"), W, large, 1, gradient_accumulation=5)
    agree(half, {n: w - 1e-4 * 3e4 for n, w in W.items()}, 1e-3)
    with pytest.raises(TrainingError, match=r"the gradient of dense\.weight, dense\.bias, norm\.weight and others is not"):
        fed(optim.SGD(lr=1e-4, accum_type="float16"), W, large, 1, gradient_accumulation=5, mean_reduction_strategy="post")
    with pytest.raises(OptionError, match="which is no running mean"):
        fed(optim.SGD(momentum=0.9, use_combined_accum=True), W, g, gradient_accumulation=5, mean_reduction_strategy="running")


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "types"), [("SGD", ("velocity_accum_type",)), ("AdamW", ("first_order_momentum_accum_type",)),
                                             ("LAMB", ("second_order_momentum_accum_type",)),
                                             ("RMSprop", ("first_order_momentum_accum_type", "second_order_momentum_accum_type"))])
def test_moments_of_16_bits(name: str, types: tuple[str, ...], kind: str) -> None:
    options = dict(momentum=0.9) if name in ("SGD", "RMSprop") else {}
    g = recorded(UPDATES, W, 2)
    settings: dict[str, Any] = {**options, "lr": 0.01, "accum_type": kind, **dict.fromkeys(types, kind)}
    found = fed(getattr(optim, name)(**settings), W, g, gradient_accumulation=2)
    wide = fed(getattr(optim, name)(lr=0.01, **options), W, g, gradient_accumulation=2)
    stored = {s.role: s.input.dtype for s in found.model.program.states.values() if s.kind in ("optimizer", "accumulator") and s.owner in W}
    slots = {"velocity_accum_type": "momentum_buffer", "first_order_momentum_accum_type": "momentum_buffer" if name == "RMSprop" else "exp_avg",
             "second_order_momentum_accum_type": "square_avg" if name == "RMSprop" else "exp_avg_sq"}
    assert {role for role, dtype in stored.items() if dtype == kind} == {"grad", *(slots[t] for t in types)}
    for n in ("dense.weight", "dense.bias", "norm.weight"):        # rounded once per update, not more; LAMB's step of one element is its size
        assert 0 < np.abs(found[n] - wide[n]).max() < (0.02 if kind == "float16" else 0.1) * np.abs(wide[n] - W[n]).max()


# ---- constants and variables

def test_what_is_given_is_variable_and_the_rest_constant() -> None:
    optimizer = optim.AdamW(betas=(0.8, 0.9))
    attrs = optimizer.variable_attrs
    assert {n: attrs.is_constant(n) for n in ("lr", "betas", "eps", "weight_decay", "loss_scaling")} == {
        "lr": False, "betas": False, "eps": True, "weight_decay": True, "loss_scaling": False}
    attrs.mark_as_constant("betas")
    attrs.mark_as_variable("eps")
    assert (attrs.is_constant("betas"), attrs.is_constant("eps")) == (True, False)
    with pytest.raises(OptionError, match=r"Unknown attribute beta, allowed values: \['lr', 'betas', 'eps', 'weight_decay', 'loss_scaling'\]"):
        attrs.mark_as_constant("beta")
    with pytest.raises(OptionError, match="Constant, zero learning rate in SGD, bailing as this might be a user error"):
        optim.SGD(lr=0.0).variable_attrs.mark_as_constant("lr")
    with pytest.raises(OptionError, match="cannot be constant"):
        optim.SGD(lr=linear(0.1, 5)).variable_attrs.mark_as_constant("lr")


def test_constants_and_variables_have_the_same_bits() -> None:
    settings: dict[str, Any] = dict(lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    variable, constant = fed(optim.AdamW(**settings), W, G), fed(optim.AdamW(lr=0.01), W, G)
    assert variable.bits("parameter") == constant.bits("parameter")
    scalars = {s.role for s in variable.model.program.states.values() if s.kind == "scalar"}
    assert scalars == {"lr", "beta1", "beta2", "eps", "weight_decay"}
    assert {s.role for s in constant.model.program.states.values() if s.kind == "scalar"} == {"lr"}


def test_variables_take_effect_without_compiling_and_constants_may_not_change() -> None:
    optimizer = optim.SGD(lr=0.1, momentum=0.9)
    model = trainer(optimizer, W)
    halves = [{n: a[i:i + 1] for n, a in G.items()} for i in range(4)]
    feed(model, halves[0])
    compiled = model.program
    optimizer.momentum, optimizer.lr = 0.5, 0.2
    feed(model, halves[1])
    assert model.program is compiled
    velocity = {n: 0.5 * G[n][0] + G[n][1] for n in W}
    agree(Fed(model), {n: w - 0.1 * G[n][0] - 0.2 * velocity[n] for n, w in W.items()})
    optimizer.weight_decay = 0.1
    before = Fed(model).bits()
    with pytest.raises(OptionError, match=r"SGD: Values are constant but do not match: weight_decay was compiled as 0\.0 and is 0\.1"):
        feed(model, halves[2])
    assert Fed(model).bits() == before
    optimizer.weight_decay = 0.0
    feed(model, halves[2])


def test_set_optimizer() -> None:
    model = trainer(optim.AdamW(lr=0.1), W)
    rows = [{n: a[i:i + 1] for n, a in G.items()} for i in range(2)]
    feed(model, rows[0])
    compiled = model.program
    model.set_optimizer(optim.AdamW(lr=0.0))
    before = {n: a.tobytes() for n, a in Fed(model).items()}
    feed(model, rows[1])
    assert model.program is compiled
    assert Fed(model).session["optimizer.step"] == 2
    decayed = {n: a.tobytes() for n, a in Fed(model).items()}
    assert decayed == before                                       # a rate of zero, decay included
    for other, message in ((optim.Adam(lr=0.1), "Can not replace optimizer of type AdamW with new optimizer of type Adam;"),
                           (optim.AdamW(lr=0.1, weight_decay=0.5),
                            "Can not replace a constant value with a non constant value: weight_decay was compiled"),
                           (optim.AdamW(lr=0.1, groups=[{"params": "*.bias"}]), "other parameter groups"),
                           (optim.AdamW(lr=0.1, max_grad_norm=1.0), "max_grad_norm does not match"),
                           (optim.AdamW(lr=0.1, second_order_momentum_accum_type="bfloat16"), "second_order_momentum_accum_type does not match")):
        with pytest.raises(OptionError, match=message):
            model.set_optimizer(other)
    constant = optim.AdamW(lr=0.1)
    constant.variable_attrs.mark_as_constant("lr")
    with pytest.raises(OptionError, match="Can not replace a non constant value with a constant value: lr"):
        model.set_optimizer(constant)
    with pytest.raises(OptionError, match="set_optimizer takes an optimizer"):
        model.set_optimizer("sgd")
    model.destroy()
    model.set_optimizer(optim.SGD(lr=0.1))                         # nothing is compiled any more
    feed(model, rows[0])


def test_attributes_that_there_are_not() -> None:
    optimizer = optim.SGD(lr=0.1)
    with pytest.raises(OptionError, match="SGD has no attribute 'learning_rate'; it has lr, weight_decay"):
        optimizer.learning_rate = 0.2
    with pytest.raises(OptionError, match="Negative learning rate"):
        optimizer.lr = -1.0
    assert optimizer.lr == 0.1
    with pytest.raises(OptionError, match="Negative momentum"):
        optim.SGD(momentum=lambda i: -1.0 if i else 0.9, lr=0.1).values(1)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_are_optimizers_of_their_own(how: Any) -> None:
    optimizer = optim.AdamW(lr=0.1, groups=[{"params": "*.bias", "lr": 0.5}])
    optimizer.variable_attrs.mark_as_variable("eps")
    other = how(optimizer)
    other.param_groups[1]["lr"], other.param_groups[0]["lr"] = 0.25, 0.2
    other.variable_attrs.mark_as_constant("eps")
    assert optimizer.values(0) == {"lr": 0.1, "eps": 1e-8, "1.lr": 0.5}
    assert other.values(0) == {"lr": 0.2, "1.lr": 0.25}


def test_a_constant_rate_of_zero_is_refused_later_too() -> None:
    optimizer = optim.SGD(lr=0.1)
    optimizer.variable_attrs.mark_as_constant("lr")
    with pytest.raises(OptionError, match="Constant, zero learning rate in SGD"):
        optimizer.lr = 0.0
    assert optimizer.lr == 0.1


def test_param_groups_as_pytorch_shows_them() -> None:
    optimizer = optim.AdamW(lr=0.1, groups=[{"params": "*.bias", "lr": 0.5}])
    first, second = optimizer.param_groups
    assert (first["lr"], second["lr"], second["weight_decay"]) == (0.1, 0.5, 0.01)
    first["lr"], second["lr"] = 0.2, 0.25
    assert optimizer.lr == 0.2
    assert optimizer.values(0) == {"lr": 0.2, "1.lr": 0.25}
    with pytest.raises(OptionError, match="a group has no attribute 'max_grad_norm'"):
        second["max_grad_norm"] = 1.0


# ---- options

def test_options_make_every_optimizer() -> None:
    made = optim.from_options(Options(optimizer="lamb", max_weight_norm=math.inf, no_decay="auto", bias_correction=False, max_grad_norm=2,
                                      param_groups=[{"params": "head.*", "learning_rate": 0.5}], accum_type="bfloat16"))
    assert made == optim.LAMB(max_weight_norm=math.inf, no_decay="auto", bias_correction=False, max_grad_norm=2.0, accum_type="bfloat16",
                              groups=({"params": ("head.*",), "lr": 0.5},))
    made = optim.from_options(Options(optimizer="rmsprop", alpha=0.9, centered=True, momentum=0.5, use_tf_variant=True))
    assert made == optim.RMSprop(lr=1e-3, alpha=0.9, centered=True, momentum=0.5, use_tf_variant=True)
    assert "momentum" in made.variable
    assert optim.from_options(Options(optimizer="rmsprop", momentum=0.0)).slots == ("square_avg",)


def test_groups_survive_a_file_of_options(tmp_path: Any) -> None:
    options = Options(param_groups=[{"params": ["*.bias", "n*"], "betas": (0.5, 0.9), "weight_decay": 0}, {"params": "h", "name": "head", "lr": 0.1}])
    options.save(tmp_path / "o.toml")
    assert Options.load(tmp_path / "o.toml").param_groups == options.param_groups
    (tmp_path / "p.toml").write_text('[[optimizer.param_groups]]\nparams = "*.bias"\nweight_decay = 0\n')
    assert Options.load(tmp_path / "p.toml").param_groups == ({"params": ("*.bias",), "weight_decay": 0.0},)


# ---- tiles

TILED: list[Any] = [
    lambda: optim.SGD(lr=0.1, momentum=0.9, use_combined_accum=True, weight_decay=0.1),
    lambda: optim.RMSprop(centered=True, use_tf_variant=True, momentum=0.5),
    lambda: optim.LAMB(max_grad_norm=1.0, no_decay="auto"), lambda: optim.AdamW(second_order_momentum_accum_type="bfloat16", accum_type="float16")]


@pytest.mark.parametrize("make", TILED)
def test_tiles_compute_every_rule(make: Any) -> None:
    model = trainer(make(), W, gradient_accumulation=3)
    feed(model, {n: a[:3] for n, a in G.items()})
    report = exact.check(analyze(model.program, chip("gc200")))
    assert report.ok, report.to_text()
