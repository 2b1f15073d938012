"""Optimizers against PyTorch's in float64, schedules, changed rates, loss scaling, checks."""
from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import Options, nn, optim
from tileflow.system.errors import OptionError

rng = np.random.default_rng(9)
X = rng.standard_normal((120, 4))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2], np.cos(X[:, 3])], 1)
STEPS = 12


class Net(nn.Module):
    """(tanh(x W + b)) V, with a weight of one element as well."""

    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        self.w, self.b = nn.Parameter(draw.standard_normal((4, 5))), nn.Parameter(draw.standard_normal(5))
        self.v, self.scale = nn.Parameter(draw.standard_normal((5, 3))), nn.Parameter(np.ones(1))

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return (x @ self.w + self.b).tanh() @ self.v * self.scale


def trained(optimizer: optim.Optimizer, steps: int = STEPS, precision: str = "float64", **options: Any) -> dict[str, np.ndarray]:
    """Weights after `steps` updates of 10 rows each, several per call."""
    net = Net()
    model = tileflow.training_model(net, optimizer=optimizer, loss="mse", precision=precision, **{"device_iterations": 4} | options)
    rows = 10 * model.options.device_iterations
    for start in range(0, 10 * steps, rows):
        model(X[start:start + rows], Y[start:start + rows])
    return net.state_dict()


def peer(make: Any, steps: int = STEPS, lr: Any = None, **options: Any) -> dict[str, np.ndarray]:
    """The same in PyTorch; `lr` gives the rate per update."""
    torch = needs("torch")
    weights = {n: torch.from_numpy(p.data.copy()).requires_grad_() for n, p in Net().named_parameters()}
    optimizer = make(weights.values(), **options)
    for i in range(steps):
        if lr is not None:
            optimizer.param_groups[0]["lr"] = lr(i)
        at = slice(10 * i, 10 * i + 10)
        optimizer.zero_grad()
        scores = torch.tanh(torch.from_numpy(X[at]) @ weights["w"] + weights["b"]) @ weights["v"] * weights["scale"]
        torch.nn.functional.mse_loss(scores, torch.from_numpy(Y[at])).backward()
        optimizer.step()
    return {n: w.detach().numpy() for n, w in weights.items()}


def agree(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], tolerance: float = 1e-12) -> None:
    for name, wanted in theirs.items():
        assert np.linalg.norm(ours[name] - wanted) <= tolerance * np.linalg.norm(wanted), name


SGD = [dict(), dict(weight_decay=0.1), dict(momentum=0.9), dict(momentum=0.9, weight_decay=0.1), dict(momentum=0.9, nesterov=True),
       dict(momentum=0.8, nesterov=True, weight_decay=0.05)]


@pytest.mark.parametrize("options", SGD, ids=str)
def test_sgd(options: dict[str, Any]):
    torch = needs("torch")
    agree(trained(optim.SGD(lr=0.1, **options)), peer(torch.optim.SGD, lr=lambda i: 0.1, **options))


@pytest.mark.parametrize("options", [dict(momentum=0.9, dampening=0.3), dict(dampening=0.5), dict(momentum=0.5, dampening=0.9, weight_decay=0.1)],
                         ids=str)
def test_sgd_with_dampening_as_pytorch_has_it(options: dict[str, Any]):
    torch = needs("torch")
    agree(trained(optim.SGD(lr=0.1, torch_compat=True, **options)), peer(torch.optim.SGD, lr=lambda i: 0.1, **options))


def reference_sgd(gradients: list[np.ndarray], w: np.ndarray, lr: float, mm: float, dm: float, wd: float) -> np.ndarray:
    """PopART's equations: the velocity starts at zero and dampening scales every step, with and without momentum."""
    v = np.zeros_like(w)
    for g in gradients:
        v = mm * v + (1 - dm) * (g + wd * w)
        w = w - lr * v
    return w


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_with_dampening_as_popart_has_it(momentum: float):
    class Line(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter(np.array([1.0, -2.0, 3.0]))

        def forward(self, x: nn.Tensor) -> nn.Tensor:              # type: ignore[override]
            return (x * self.w).sum()
    net = Line()
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=0.1, momentum=momentum, dampening=0.25, weight_decay=0.5), loss="identity",
                                    precision="float64", device_iterations=6)
    x = rng.standard_normal((6, 3))
    model(x)
    np.testing.assert_allclose(net.w.data, reference_sgd(list(x), np.array([1.0, -2.0, 3.0]), 0.1, momentum, 0.25, 0.5), rtol=1e-13)


@pytest.mark.parametrize("options", [dict(), dict(weight_decay=0.1), dict(betas=(0.5, 0.7), eps=1e-3)], ids=str)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam(name: str, options: dict[str, Any]):
    torch = needs("torch")
    agree(trained(getattr(optim, name)(lr=0.05, **options)), peer(getattr(torch.optim, name), lr=lambda i: 0.05, **options))


def test_adam_without_bias_correction():
    first = trained(optim.Adam(lr=0.01, bias_correction=False), steps=1, device_iterations=1)
    plain = trained(optim.Adam(lr=0.01), steps=1, device_iterations=1)
    start = {n: p.data for n, p in Net().named_parameters()}
    for name, w in first.items():
        ratio = (w - start[name]) / (plain[name] - start[name])    # (1 - b1) / sqrt(1 - b2) of the corrected step
        np.testing.assert_allclose(ratio, 0.1 / np.sqrt(0.001), rtol=1e-3)


# ---- rates

def test_a_schedule_is_read_per_update_within_a_call():
    torch = needs("torch")

    def rate(i: int) -> float:
        return 0.05 / (1 + i)
    agree(trained(optim.AdamW(lr=rate)), peer(torch.optim.AdamW, lr=rate))
    agree(trained(optim.AdamW(lr=rate), device_iterations=12), peer(torch.optim.AdamW, lr=rate))
    rates = np.linspace(0.1, 0.01, STEPS)
    agree(trained(optim.SGD(lr=rates.__getitem__, momentum=0.9)), peer(torch.optim.SGD, lr=rates.__getitem__, momentum=0.9))


def test_a_rate_set_by_hand_holds_for_the_whole_next_call():
    torch = needs("torch")
    net, optimizer = Net(), optim.AdamW(lr=0.1, weight_decay=0.01)
    model = tileflow.training_model(net, optimizer=optimizer, loss="mse", precision="float64", device_iterations=4)
    for call, (lr, decay) in enumerate([(0.1, 0.01), (0.01, 0.5), (0.0, 0.0)]):
        optimizer.lr, optimizer.weight_decay = lr, decay
        at = slice(40 * call, 40 * call + 40)
        before = net.state_dict()
        model(X[at], Y[at])
    assert {n: a.tobytes() for n, a in before.items()} == {n: a.tobytes() for n, a in net.state_dict().items()}
    rates = [0.1] * 4 + [0.01] * 4
    decays = [0.01] * 4 + [0.5] * 4

    def make(parameters: Any) -> Any:
        class Decaying(torch.optim.AdamW):
            def step(self) -> None:                                # type: ignore[override]
                self.param_groups[0]["weight_decay"] = decays.pop(0)
                super().step()
        return Decaying(parameters)
    agree(net.state_dict(), peer(make, steps=8, lr=rates.__getitem__))


# ---- loss scaling and accumulation

@pytest.mark.parametrize("optimizer", [optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.1), optim.AdamW(lr=0.01)], ids=lambda o: type(o).__name__)
def test_loss_scaling_cancels(optimizer: optim.Optimizer):
    plain = trained(optimizer, precision="float32")
    scaled = trained(optimizer, precision="float32", loss_scaling=100.0)
    for name, w in plain.items():
        np.testing.assert_allclose(scaled[name], w, rtol=1e-5, atol=1e-6)
    exact = trained(optimizer, precision="float32", loss_scaling=128.0)     # a power of two changes no bit
    assert {n: w.tobytes() for n, w in exact.items()} == {n: w.tobytes() for n, w in plain.items()}


def test_accumulation_by_sum_and_mean():
    one = trained(optim.SGD(lr=0.01, momentum=0.9), gradient_accumulation=2, accumulation_reduction="sum", device_iterations=2)
    other = trained(optim.SGD(lr=0.02, momentum=0.9), gradient_accumulation=2, device_iterations=2)
    agree(one, other, 1e-12)


# ---- checks, options

@pytest.mark.parametrize(("make", "message"), [
    (lambda: optim.SGD(lr=-1.0), r"Negative learning rate \(-1\) in SGD, bailing as this might be a user error\."),
    (lambda: optim.SGD(weight_decay=float("nan")), "weight_decay must be a finite number"),
    (lambda: optim.SGD(momentum=-0.1), r"Negative momentum \(-0\.1\) in SGD, bailing"),
    (lambda: optim.Adam(weight_decay=-1), r"Negative weight decay \(-1\) in Adam, bailing"),
    (lambda: optim.SGD(dampening=-1), "Negative dampening"),
    (lambda: optim.SGD(momentum=0.9, use_combined_accum=True, velocity_scaling=0), r"Non-positive velocity scaling \(0\) in SGD"),
    (lambda: optim.RMSprop(alpha=-0.5), "Negative alpha"),
    (lambda: optim.Adam(betas=(-0.5, 0.9)), r"Negative beta1 \(-0\.5\) in Adam"),
    (lambda: optim.LAMB(max_weight_norm=-1), "Negative maximum weight norm"),
    (lambda: optim.SGD(lr="0.1"), "lr must be a number or a function of the update index, got str"),
    (lambda: optim.SGD([1.0]), "takes parameters or modules"),
    (lambda: optim.SGD(lr=[1.0]), r"got list; the weights are the model's, groups=\[\.\.\.\] names some of them"),
    (lambda: optim.SGD(groups=[{"params": "a", "name": "2"}, {"params": "b"}]), "two groups have one name among 2, 2"),
    (lambda: optim.SGD(groups=[{"params": []}]), "params of group 1 is empty"),
    (lambda: optim.SGD(groups=[{"params": 3}]), "name patterns, modules or parameters, not 3"),
    (lambda: optim.SGD(lr=True), "lr must be a number"),
    (lambda: optim.SGD(max_grad_norm=float("nan")), "Maximum norm of gradients cannot be NaN"),
    (lambda: optim.SGD(max_grad_norm=0), "max_grad_norm must be above 0"),
    (lambda: optim.Adam(accum_type="int8"), "Accumulation types must be either float32, float16 or bfloat16; accum_type is 'int8'"),
    (lambda: optim.Adam(amsgrad=True), "Only non-amsgrad Adam/AdamW optimizers are supported"),
    (lambda: optim.SGD(maximize=True), "maximize is not supported"),
    (lambda: optim.AdamW(fused=True), "fused chooses among PyTorch's implementations"),
    (lambda: optim.AdamW(lerning_rate=1), "AdamW has no argument 'lerning_rate'; it takes lr, weight_decay"),
    (lambda: optim.SGD(use_combined_accum=True), "without momentum there is none"),
    (lambda: optim.SGD(use_combined_accum=True, momentum=0.9, accum_type="float16"), "accum_type is for separate accumulators"),
    (lambda: optim.SGD(use_combined_accum=True, momentum=0.9, velocity_accum_type="float16"), "velocity_accum_type is for separate"),
    (lambda: optim.SGD(use_combined_accum=True, momentum=0.9, nesterov=True), "nesterov needs separate accumulators"),
    (lambda: optim.SGD(use_combined_accum=True, momentum=0.9, max_grad_norm=1.0), "max_grad_norm needs separate accumulators"),
    (lambda: optim.SGD(velocity_scaling=2.0), "velocity_scaling is for use_combined_accum"),
    (lambda: optim.RMSprop(use_tf_variant=True, torch_compat=True), "give one of them"),
    (lambda: optim.RMSprop(groups=[{"params": "a", "centered": True}]), "all groups must agree"),
    (lambda: optim.LAMB(torch_compat=True), "PyTorch has no LAMB"),
    (lambda: optim.AdamW(groups=[{"weight_decay": 0.0}]), "group 1 does not say which weights"),
    (lambda: optim.AdamW(groups=[{"params": "a", "bias_correction": False}]), "the same for all weights"),
    (lambda: optim.AdamW(groups=[{"params": "a", "wd": 0.0}]), "a group has no attribute 'wd'; there are lr, betas"),
    (lambda: optim.AdamW(groups={"params": "a"}), "groups is a list of tables"),
    (lambda: optim.SGD(momentum=0.9, nesterov=True, groups=[{"params": "a", "dampening": 0.5}]), "group 1: nesterov needs momentum"),
    (lambda: optim.SGD(nesterov=True), "nesterov needs momentum"),
    (lambda: optim.SGD(nesterov=True, momentum=0.9, dampening=0.1), "nesterov"),
    (lambda: optim.Adam(betas=(1.0, 0.9)), "Adam: beta1 must be below 1, got 1"),
    (lambda: optim.AdamW(betas=(0.9,)), "AdamW: betas"),              # type: ignore[arg-type]
    (lambda: optim.AdamW(eps=0.0), r"Non-positive eps \(0\) in AdamW, bailing as this might be a user error"),
])
def test_refused_values(make: Any, message: str):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize(("options", "wanted"), [
    (dict(), optim.AdamW()),
    (dict(optimizer="adamw", weight_decay=0.2, betas=(0.8, 0.9), eps=1e-4, learning_rate=0.3), optim.AdamW(0.3, 0.2, (0.8, 0.9), 1e-4)),
    (dict(optimizer="adam", learning_rate=0.3), optim.Adam(0.3, 0.0)),
    (dict(optimizer="sgd", momentum=0.9, nesterov=True, weight_decay=0.1), optim.SGD(1e-3, 0.1, 0.9, nesterov=True)),
    (dict(optimizer="sgd", momentum=0.9, dampening=0.5), optim.SGD(momentum=0.9, dampening=0.5)),
])
def test_from_options(options: dict[str, Any], wanted: optim.Optimizer):
    found = optim.from_options(Options(**options))
    assert type(found) is type(wanted)
    assert found == wanted


def test_description_is_plain():
    assert optim.SGD(lr=lambda i: 0.1).describe() == {
        "name": "SGD", "lr": "<lambda>", "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": False}
    shown = optim.AdamW(groups=[{"params": ["*.bias", nn.Linear(2, 2)], "betas": (0.5, 0.9)}], max_grad_norm=2).describe()
    assert shown["groups"] == [{"params": ["*.bias", "Linear"], "betas": [0.5, 0.9]}]
    assert shown["max_grad_norm"] == 2.0
    assert json.loads(json.dumps(shown)) == shown


def test_states_per_weight():
    assert optim.SGD().slots == ()
    assert optim.SGD(momentum=0.1).slots == ("momentum_buffer",)
    net = Net()
    model = tileflow.training_model(net, optimizer=optim.AdamW(), loss="mse")
    model.compile(X[:10].astype(np.float32), Y[:10].astype(np.float32))
    assert set(model.source.session.names("optimizer")) == {
        "optimizer.step", "optimizer.loss_scale", *(f"{n}.exp_avg{s}" for n in net.state_dict() for s in ("", "_sq"))}


class WithUnused(nn.Module):
    """A linear layer that the loss reads, between two of which it does not: one is never called, the other's result is dropped."""

    def __init__(self) -> None:
        nn.manual_seed(5)
        self.never, self.used, self.dropped = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        self.dropped(x)
        return self.used(x)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_weights_without_gradient_stay(accumulation: int):
    """Decay and moments leave them alone, as in PyTorch and PopART; the weights around them are trained as ever."""
    torch = needs("torch")
    net = WithUnused()
    before = net.state_dict()
    weights = {n: torch.from_numpy(a.astype(np.float64)).requires_grad_() for n, a in before.items()}
    model = tileflow.training_model(net, optimizer=optim.AdamW(lr=0.05, weight_decay=0.3), loss="mse", precision="float64",
                                    gradient_accumulation=accumulation, device_iterations=3)
    model(X[:60], Y[:60])
    after = net.state_dict()
    peer = torch.optim.AdamW(weights.values(), lr=0.05, weight_decay=0.3)
    for i in range(0, 60, 20):
        peer.zero_grad()
        scores = torch.from_numpy(X[i:i + 20]) @ weights["used.weight"].T + weights["used.bias"]
        torch.nn.functional.mse_loss(scores, torch.from_numpy(Y[i:i + 20])).backward()
        peer.step()
    agree({n: a.astype(np.float64) for n, a in after.items()}, {n: w.detach().numpy() for n, w in weights.items()}, 1e-6)
    for name in before:
        assert np.array_equal(before[name], after[name]) == ("used" not in name), name


def test_a_loss_that_depends_on_no_weight_is_refused():
    class Constant(WithUnused):
        def forward(self, x: nn.Tensor) -> nn.Tensor:              # type: ignore[override]
            return x.mean(1, keepdim=True) * np.ones((1, 3))
    with pytest.raises(OptionError, match="depends on no weight that is trained"):
        tileflow.training_model(Constant(), loss="mse")(X[:10], Y[:10])
