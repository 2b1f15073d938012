"""Facts about the reference's optimizers that are easy to get wrong (poptorch.md, section 12), a test for each by its number.

Where tileflow is deliberately otherwise the test says so: 6, 9, 11, 12, 13, 14, 20, 21.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from optim_harness import agree, drawn, fed, feed, recorded, trainer
from twins import optimizers as twins

import tileflow
from tileflow import nn, optim
from tileflow.optim import schedules
from tileflow.system.errors import OptionError, TrainingError

W = {"w": np.array([1.0, -2.0, 3.0], np.float32)}


def once(optimizer: optim.Optimizer, gradient: Any, weights: dict[str, np.ndarray] = W, **options: Any) -> Any:
    """After one update with this gradient, of one micro-batch or several."""
    rows = np.asarray(gradient, np.float32)
    rows = rows[None] if rows.ndim == 1 else rows
    return fed(optimizer, weights, {"w": rows}, 1, gradient_accumulation=len(rows), **options)


# ---- 5

def test_5_mean_and_post_divides_once_by_loss_scale_and_count() -> None:
    """All of sum / (ls * af) is one factor at the update; accumulators hold the scaled sum."""
    rows = np.array([[1, 2, 3], [5, 6, 7], [3, 1, 2]], np.float32)
    found = once(optim.SGD(lr=1.0), rows, loss_scaling=64.0)
    np.testing.assert_array_equal(found["w"], W["w"] - rows.sum(0) * np.float32(1 / (64 * 3)) * 64)
    np.testing.assert_array_equal(found.session["w.grad"], 64 * rows.sum(0))


def test_5_a_running_mean_weighs_by_f_over_f_plus_1() -> None:
    rows = np.array([[1, 2, 3], [5, 6, 7], [3, 1, 2.5]], np.float32)
    found = once(optim.SGD(lr=1.0), rows, loss_scaling=64.0, mean_reduction_strategy="running")
    mean = np.zeros(3, np.float32)
    for f, g in enumerate(64 * rows):
        mean = np.float32(f / (f + 1)) * mean + np.float32(1 / (f + 1)) * g
    np.testing.assert_allclose(found.session["w.grad"], mean, rtol=2e-7)
    agree(found, twins.followed(twins.SGD0(W, lr=1.0, strategy="running"), {"w": rows}, 3))


def test_5_float16_accumulators_make_post_running() -> None:
    """The sum of these would be 120000, which float16 does not hold. What was asked for counts: post overflows, and is refused."""
    rows = np.full((3, 3), 40000, np.float32)
    found = once(optim.SGD(lr=1e-4, accum_type="float16"), rows)
    np.testing.assert_allclose(found["w"], W["w"] - 4, rtol=1e-3)
    assert found.session["w.grad"].dtype == np.float16
    for accum_type in (None, "float32"):
        assert once(optim.SGD(lr=1e-4, accum_type=accum_type), rows).session["w.grad"].tolist() == [120000.0] * 3
    with pytest.raises(TrainingError):
        once(optim.SGD(lr=1e-4, accum_type="float16"), rows, mean_reduction_strategy="post")
    assert once(optim.SGD(lr=1e-4, momentum=0.9, use_combined_accum=True), rows)["w"] == pytest.approx(W["w"] - 4, rel=1e-6)


def test_5_a_compiled_model_does_not_change_its_accumulators() -> None:
    model = trainer(optim.SGD(lr=0.1), W, gradient_accumulation=2)
    feed(model, {"w": np.ones((2, 3), np.float32)})
    with pytest.raises(OptionError, match="accum_type does not match"):
        model.set_optimizer(optim.SGD(lr=0.1, accum_type="float16"))


# ---- 6

@pytest.mark.parametrize("make", [lambda **o: optim.SGD(lr=0.1, **o), lambda **o: optim.SGD(lr=0.1, momentum=0.9, **o),
                                  lambda **o: optim.Adam(lr=0.1, weight_decay=0.1, **o), lambda **o: optim.AdamW(lr=0.1, **o)],
                         ids=["SGD", "momentum", "Adam", "AdamW"])
def test_6_clipping_sees_unscaled_gradients(make: Any) -> None:
    """Deliberately otherwise: the reference's SGD clips what is still scaled, so that its threshold depends on the loss scale."""
    g = {n: 3 * a for n, a in recorded(10, W).items()}
    plain, scaled = fed(make(max_grad_norm=0.5), W, g), fed(make(max_grad_norm=0.5), W, g, loss_scaling=1024.0)
    assert scaled.bits("parameter") == plain.bits("parameter")
    free = fed(make(), W, g)
    assert not np.array_equal(free["w"], plain["w"]) or isinstance(make(), optim.AdamW)


def test_6_clipping_is_of_the_gradient_not_of_the_velocity() -> None:
    """Deliberately otherwise, as PyTorch's users have it. Adam's is of the gradient with its decay, as the reference's."""
    g = {n: 3 * a for n, a in recorded(10, W).items()}
    clip = dict(max_grad_norm=0.5)
    agree(fed(optim.SGD(lr=0.1, momentum=0.9, **clip), W, g), twins.followed(twins.SGD2(W, lr=0.1, momentum=0.9, **clip), g))
    agree(fed(optim.Adam(lr=0.1, weight_decay=0.5, **clip), W, g), twins.followed(twins.Adam(W, lr=0.1, weight_decay=0.5, **clip), g))


# ---- 7, 8

def test_7_the_velocity_starts_at_zero_and_dampening_scales_the_first_step() -> None:
    g = np.array([0.5, 1.0, -1.0])
    np.testing.assert_allclose(once(optim.SGD(lr=0.1, momentum=0.9, dampening=0.75), g)["w"], W["w"] - 0.1 * 0.25 * g, rtol=1e-6)
    np.testing.assert_allclose(once(optim.SGD(lr=0.1, momentum=0.9, dampening=0.75, torch_compat=True), g)["w"], W["w"] - 0.1 * g, rtol=1e-6)
    decayed = W["w"] * (1 - 0.1 * 0.25 * 0.5) - 0.1 * 0.25 * g                      # SGD0: the lr of gradient and decay
    np.testing.assert_allclose(once(optim.SGD(lr=0.1, dampening=0.75, weight_decay=0.5), g)["w"], decayed, rtol=1e-6)


def test_8_a_combined_accumulator_is_one_tensor_with_the_next_decay_applied() -> None:
    g = np.array([[0.5, 1.0, -1.0], [1.5, 0.0, 1.0]])
    found = once(optim.SGD(lr=0.1, momentum=0.9, dampening=0.25, weight_decay=0.5, use_combined_accum=True, velocity_scaling=8.0), g)
    mean, share = g.mean(0), 0.75 * 8.0
    v = share * 0.5 * W["w"] + share * mean
    w = W["w"] - 0.1 / 8 * v
    np.testing.assert_allclose(found["w"], w, rtol=1e-6)
    np.testing.assert_allclose(found.session["w.momentum_buffer"], 0.9 * v + share * 0.5 * w, rtol=1e-6)
    assert [n for n in found.session.snapshot() if n.startswith("w.")] == ["w.momentum_buffer"]


def test_8_a_changed_attribute_of_a_combined_velocity_lags_by_one_update() -> None:
    w, g = drawn(), recorded(6, drawn(), 2)

    def groups(name: str, update: int) -> dict[str, float]:
        return {"momentum": 0.9 if update < 3 else 0.5, "weight_decay": 0.1 if update < 4 else 0.3}
    twin = twins.SGD1(w, lr=0.1, velocity_scaling=2.0, groups=groups)
    optimizer = optim.SGD(lr=0.1, momentum=lambda t: groups("", t)["momentum"], weight_decay=lambda t: groups("", t)["weight_decay"],
                          use_combined_accum=True, velocity_scaling=2.0)
    agree(fed(optimizer, w, g, 2, gradient_accumulation=2), twins.followed(twin, g, 2))


@pytest.mark.parametrize(("options", "says"), [
    (dict(accum_type="float16"), "accum_type is for separate accumulators"), (dict(velocity_accum_type="float16"), "velocity_accum_type is for"),
    (dict(max_grad_norm=1.0), "max_grad_norm needs separate accumulators"), (dict(), "without momentum there is none"),
    (dict(nesterov=True), "nesterov needs separate accumulators"), (dict(use_combined_accum=False, velocity_scaling=2.0), "velocity_scaling is for"),
])
def test_8_what_does_not_go_with_a_combined_accumulator(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        optim.SGD(**{"use_combined_accum": True} | ({"momentum": 0.9} if options else {}) | options)


def test_8_a_combined_accumulator_needs_the_mean_at_the_end() -> None:
    with pytest.raises(OptionError, match="which is no running mean"):
        once(optim.SGD(momentum=0.9, use_combined_accum=True), np.ones((2, 3)), mean_reduction_strategy="running")


# ---- 9, 10

@pytest.mark.parametrize("name", ["Adam", "AdamW", "LAMB"])
def test_9_bias_correction_off_is_honoured(name: str) -> None:
    """Deliberately otherwise: the reference ignores AdamW's."""
    g = recorded(5, W)
    kind, more = (twins.LAMB, {}) if name == "LAMB" else (twins.Adam, dict(decay_mode="l2" if name == "Adam" else "decay", weight_decay=0.01))
    found = fed(getattr(optim, name)(lr=0.01, weight_decay=0.01, bias_correction=False), W, g, 5)
    agree(found, twins.followed(kind(W, lr=0.01, bias_correction=False, **more), g))
    with_correction = fed(getattr(optim, name)(lr=0.01, weight_decay=0.01), W, g, 5)
    assert not np.allclose(found["w"], with_correction["w"], rtol=1e-4)


def test_9_lambs_bound_of_none_bounds_nothing() -> None:
    """Deliberately otherwise: the reference says so and takes 65500, which is our default as well."""
    heavy, g = {"w": np.full(3, 1e5, np.float32)}, np.array([1.0, 2.0, -1.0])
    for bound, mwn in ((None, math.inf), (math.inf, math.inf), (65500.0, 65500.0), (10.0, 10.0), (0.0, 0.0)):
        twin = twins.LAMB(heavy, lr=0.1, max_weight_norm=mwn)
        agree(once(optim.LAMB(lr=0.1, max_weight_norm=bound), g, heavy), twins.followed(twin, {"w": g[None]}), 1e-6)
    agree(once(optim.LAMB(lr=0.1), g, heavy), twins.followed(twins.LAMB(heavy, lr=0.1, max_weight_norm=65500.0), {"w": g[None]}), 1e-6)


def test_10_where_eps_stands() -> None:
    g = np.array([1e-3, -2e-3, 1e-4])
    adam = once(optim.Adam(lr=0.1, eps=1e-2), g)["w"]
    np.testing.assert_allclose(adam, W["w"] - 0.1 * g / (np.abs(g) + 1e-2), rtol=1e-6)
    rms = once(optim.RMSprop(lr=0.1, alpha=0.9, eps=1e-2), g)["w"]
    np.testing.assert_allclose(rms, W["w"] - 0.1 * g / (np.sqrt(0.1 * g**2) + 1e-2), rtol=1e-6)
    tf = once(optim.RMSprop(lr=0.1, alpha=0.9, eps=1e-2, use_tf_variant=True), g)
    np.testing.assert_allclose(tf["w"], W["w"] - 0.1 * g / np.sqrt(0.9 + 0.1 * g**2 + 1e-2), rtol=1e-6)
    np.testing.assert_allclose(tf.session["w.square_avg"], 0.9 + 0.1 * g**2, rtol=1e-6)


def test_10_adam_decays_the_gradient_and_adamw_the_weight() -> None:
    """With a gradient of zero Adam's decay is a whole normalised step, AdamW's the product of rate, decay and weight."""
    zero = np.zeros(3)
    np.testing.assert_allclose(once(optim.Adam(lr=0.1, weight_decay=0.01), zero)["w"], W["w"] - 0.1 * np.sign(W["w"]), rtol=1e-5)
    np.testing.assert_allclose(once(optim.AdamW(lr=0.1, weight_decay=0.01), zero)["w"], W["w"] * (1 - 0.1 * 0.01), rtol=1e-6)


# ---- 11

EDGE = 65504 * 0.125


def automatic(shares: list[float], scale: float = 2.0 ** 8, **options: Any) -> tuple[list[float], Any]:
    """The loss scale after each update, whose scaled gradients lie beyond the edge in these shares of 1000 elements, else a half below it."""
    weights = {"w": np.ones(1000, np.float16)}
    chosen = dict(automatic_loss_scaling="histogram", loss_scaling=scale) | options
    model = trainer(optim.SGD(lr=2.0 ** -10), weights, **chosen)
    found = []
    for share in shares:
        now = found[-1] if found else scale
        g = np.full(1000, EDGE / 2 / now)
        g[:round(1000 * share)] = 2 * EDGE / now
        feed(model, {"w": g[None].astype(np.float16)})
        found.append(float(model.source.session["optimizer.loss_scale"]))
    return found, model


def test_11_the_scale_is_halved_or_doubled_by_a_histogram_of_two_bins() -> None:
    """Halved where upper / lower > t / (1 - t), with t = 1e-7 by default: one element is enough; else doubled."""
    assert automatic([0, 0, 0.001, 0, 1.0])[0] == [512, 1024, 512, 1024, 512]
    assert automatic([0, 0.05, 0.0999, 0.101, 0.3], threshold_upper_count_proportion=0.1)[0] == [512, 1024, 2048, 1024, 512]
    assert automatic([0, 0], bin_edge_location=0.03)[0] == [128, 64]                  # the edge lies below all of them


def test_11_every_so_many_updates() -> None:
    assert automatic([0] * 7, loss_scaling_update_period=3)[0] == [256, 256, 512, 512, 512, 1024, 1024]


def test_11_an_update_uses_the_scale_that_was_found_before_it() -> None:
    """Its gradients were made with that one: the weights are those of a run without any scale, bit for bit."""
    weights = {"w": np.ones(4, np.float16)}
    g = {"w": np.array([[1, 2, 3, 0.5], [4, 2, 1, 0.25], [8, 8, 2, 1]], np.float16)}
    plain = fed(optim.SGD(lr=2.0 ** -8), weights, g, 1)
    scaled = fed(optim.SGD(lr=2.0 ** -8), weights, g, 1, automatic_loss_scaling="histogram", loss_scaling=64.0)
    assert scaled.bits("parameter") == plain.bits("parameter")
    assert float(scaled.session["optimizer.loss_scale"]) == 512


def test_11_the_scale_stays_within_bounds() -> None:
    """Deliberately otherwise: the reference clamps nothing, so that a gradient of zeros doubles the scale until it is infinite."""
    weights = {"w": np.ones(8, np.float16)}
    model = trainer(optim.SGD(lr=0.1), weights, automatic_loss_scaling="histogram", device_iterations=30)
    feed(model, {"w": np.zeros((30, 8), np.float16)})
    assert float(model.source.session["optimizer.loss_scale"]) == 2.0 ** 24
    with pytest.raises(OptionError, match=r"stays within 2\^-24\.\.2\^24, and loss_scaling is 3\.35544e\+07"):
        feed(trainer(optim.SGD(lr=0.1), weights, automatic_loss_scaling="histogram", loss_scaling=2.0 ** 25), {"w": np.zeros((1, 8), np.float16)})


# ---- 12, 13, 14

def test_12_clipping_off_nan_refused_and_no_epsilon() -> None:
    """Deliberately otherwise: the reference's check of NaN has no effect."""
    g = np.array([3.0, 4.0, 0.0])
    np.testing.assert_array_equal(once(optim.SGD(lr=1.0, max_grad_norm=math.inf), g)["w"], W["w"] - g)
    np.testing.assert_array_equal(once(optim.SGD(lr=1.0, max_grad_norm=5.0), g)["w"], W["w"] - g)            # the norm itself: factor 1, exactly
    np.testing.assert_allclose(once(optim.SGD(lr=1.0, max_grad_norm=1.0), g)["w"], W["w"] - g / 5, rtol=1e-7)
    np.testing.assert_array_equal(once(optim.SGD(lr=1.0, max_grad_norm=1.0), np.zeros(3))["w"], W["w"])      # and no division by zero
    with pytest.raises(OptionError, match="Maximum norm of gradients cannot be NaN"):
        optim.SGD(max_grad_norm=math.nan)


def test_13_what_is_given_is_variable_and_the_rest_constant() -> None:
    """Deliberately otherwise: lr and the loss scale are variable whether they were given or not."""
    attributes = optim.AdamW(weight_decay=0.1).variable_attrs
    constant = {n: attributes.is_constant(n) for n in ("lr", "betas", "eps", "weight_decay", "loss_scaling")}
    assert constant == {"lr": False, "betas": True, "eps": True, "weight_decay": False, "loss_scaling": False}
    attributes.mark_as_constant("weight_decay")
    attributes.mark_as_variable("betas")
    assert attributes.is_constant("weight_decay")
    assert not attributes.is_constant("betas")
    with pytest.raises(OptionError, match=r"Unknown attribute alpha, allowed values: \['lr', 'betas'"):
        attributes.mark_as_constant("alpha")
    with pytest.raises(OptionError, match="loss_scaling is always variable"):
        attributes.mark_as_constant("loss_scaling")


def test_13_constants_and_variables_give_the_same_numbers() -> None:
    g = recorded(6, W)
    given = optim.AdamW(lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    assert set(given.variable) == {"lr", "betas", "eps", "weight_decay"}
    agree(fed(given, W, g, 3), fed(optim.AdamW(lr=0.01), W, g, 3), 1e-6)


def test_14_a_new_lr_needs_no_set_optimizer() -> None:
    """Deliberately otherwise: the reference goes on with the old one until it is told."""
    optimizer = optim.SGD(lr=1.0)
    model = trainer(optimizer, W)
    feed(model, {"w": np.ones((1, 3), np.float32)})
    optimizer.lr = 0.25
    feed(model, {"w": np.ones((1, 3), np.float32)})
    np.testing.assert_array_equal(model.source.session["w"], W["w"] - 1.25)
    optimizer.param_groups[0]["lr"] = 0.5                          # as PyTorch's schedulers do
    feed(model, {"w": np.ones((1, 3), np.float32)})
    np.testing.assert_array_equal(model.source.session["w"], W["w"] - 1.75)
    optimizer.lr = schedules.constant(0.125)
    feed(model, {"w": np.ones((1, 3), np.float32)})
    np.testing.assert_array_equal(model.source.session["w"], W["w"] - 1.875)


def test_14_what_a_compiled_model_refuses() -> None:
    model = trainer(optim.SGD(lr=1.0, momentum=0.5), W)
    feed(model, {"w": np.ones((1, 3), np.float32)})
    model.set_optimizer(optim.SGD(lr=0.5, momentum=0.25))
    feed(model, {"w": np.ones((1, 3), np.float32)})
    np.testing.assert_array_equal(model.source.session["w"], W["w"] - 1.0 - 0.5 * 1.25)
    for other, says in ((optim.AdamW(), "Can not replace optimizer of type SGD with new optimizer of type AdamW"),
                        (optim.SGD(lr=0.5), "non constant value with a constant value"),
                        (optim.SGD(lr=0.5, momentum=0.5, weight_decay=0.1), "Can not replace a constant value with a non constant value"),
                        (optim.SGD(lr=0.5, momentum=0.5, max_grad_norm=1.0), "max_grad_norm does not match")):
        with pytest.raises(OptionError, match=says):
            model.set_optimizer(other)


def test_14_a_constant_that_changes_is_an_error() -> None:
    optimizer = optim.SGD(lr=1.0)
    model = trainer(optimizer, W)
    feed(model, {"w": np.ones((1, 3), np.float32)})
    optimizer.weight_decay = 0.1
    before = model.source.session["w"].copy()
    with pytest.raises(OptionError, match="Values are constant but do not match"):
        feed(model, {"w": np.ones((1, 3), np.float32)})
    np.testing.assert_array_equal(model.source.session["w"], before)


# ---- 20, 21

def test_20_no_live_batch_is_written_again() -> None:
    """Deliberately otherwise: the reference's asynchronous accessor hands out shared memory that later batches overwrite."""
    x = np.arange(640, dtype=np.float32).reshape(64, 10)
    loader = tileflow.DataLoader(tileflow.Options(micro_batch_size=4, prefetch=3, shuffle=False), (x, np.arange(64)))
    kept = list(loader)
    for i, (rows, labels) in enumerate(kept):
        np.testing.assert_array_equal(rows, x[4 * i:4 * i + 4])
        np.testing.assert_array_equal(labels, np.arange(4 * i, 4 * i + 4))
    assert len({rows.ctypes.data for rows, _ in kept}) == len(kept)


def test_21_64_bit_types_are_kept() -> None:
    """Deliberately otherwise: on the reference's device int64 becomes int32 and float64 float32."""
    class Both(nn.Module):
        def forward(self, x: nn.Tensor, i: nn.Tensor) -> Any:                  # type: ignore[override]
            return x + 1.0, i + 1

    big = np.array([[2**53 + 1], [2**40 + 3]])
    y, i = tileflow.inference_model(Both(), precision="float64", micro_batch_size=2)(np.array([[1 + 2.0**-40], [1e300]]), big)
    assert (y.dtype, i.dtype) == (np.float64, np.int64)
    assert y[0, 0] == 2 + 2.0**-40
    assert i[0, 0] == 2**53 + 2


class MixedTypes(nn.Module):
    """A product and a convolution of float16 activations with float32 weights, and a sum of both types."""

    def __init__(self) -> None:
        nn.manual_seed(1)
        self.linear, self.conv = nn.Linear(6, 3), nn.Conv2d(1, 2, 3)

    def forward(self, x: nn.Tensor) -> Any:                                    # type: ignore[override]
        h = x.half()
        return self.linear(h), self.conv(h.reshape((-1, 1, 2, 3)).repeat(1, 1, 2, 1)), h + x


@pytest.mark.parametrize(("casting", "product"), [("activation", np.float16), ("upcast", np.float32)])
def test_21_products_follow_their_activation_and_sums_the_wider_type(casting: str, product: Any) -> None:
    """float16 activations x float32 weights -> float16; elementwise half + float -> float. `upcast` is PyTorch's promotion."""
    x = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
    found = tileflow.inference_model(MixedTypes(), micro_batch_size=4, half_float_casting=casting)(x)
    assert [a.dtype for a in found] == [product, product, np.float32]
