"""Networks of layers stored in 16 bits, whole or in part: which types their states, inputs, operators and outputs have."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from images import rows_of

import tileflow
from tileflow import nn
from tileflow.graph import Graph, TensorType
from tileflow.nn import record
from tileflow.optim import SGD, AdamW
from tileflow.system.errors import DataError, OptionError, TypeMismatchError

Array = np.ndarray
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((16, 2, 6, 6)).astype(np.float32), RNG.integers(0, 3, 16)


class Net(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.head(self.norm(self.conv(x)).relu().flatten(1))


def model_of(net: nn.Module, **options: Any) -> Any:
    return tileflow.training_model(net, optimizer=options.pop("optimizer", AdamW(lr=1e-2)), output_mode="all", **options)


def types(net: nn.Module) -> dict[str, str]:
    return {name: a.dtype.name for name, a in net.state_dict().items()}


# ---- what is stored how

@pytest.mark.parametrize("how", ["float16", "bfloat16"])
def test_half_and_the_precision_say_the_same(how: str) -> None:
    """All parameters have 16 bits, running statistics float32; outputs 16, the loss float32. Training learns."""
    found = []
    for by_precision in (True, False):
        net = Net()
        options = dict(precision={"float16": "16-true", "bfloat16": "bf16-true"}[how]) if by_precision else {}
        if not by_precision:
            assert net.to(how) is net
        model = model_of(net, **options)
        results = [model(X, Y) for _ in range(30)]
        assert types(net) == {name: "float32" if "running" in name else how for name in types(net)}
        assert np.asarray(results[0][0]).dtype.name == how
        assert np.asarray(results[0][1]).dtype == np.float32
        losses = [float(np.mean(r[1])) for r in results]
        assert losses[-1] < 0.3 * losses[0]
        found.append(losses)
    assert found[0] == found[1]


def test_names_choose_what_stays_float32() -> None:
    for options, kept in (({"keep_float32": "norm.*", "precision": "16-true"}, ("norm.weight", "norm.bias")),
                          ({"keep_float32": ["*bias"], "precision": "bf16-true"}, ("conv.bias", "norm.bias", "head.bias"))):
        net = Net()
        model_of(net, **options)(X, Y)
        wide = {name for name, dtype in types(net).items() if dtype == "float32"}
        assert wide == {*kept, "norm.running_mean", "norm.running_var"}


def test_a_part_of_a_network_is_half() -> None:
    """The convolution has 16 bits; what follows reads its results and keeps its own weights; each type and group is one row of the update."""
    net = Net()
    net.conv.half()
    model = model_of(net)
    out, _ = model(X, Y)
    assert {name for name, dtype in types(net).items() if dtype == "float16"} == {"conv.weight", "conv.bias"}
    assert np.asarray(out).dtype == np.float16
    whole = model_of(Net())
    whole(X, Y)
    assert rows_of(model.engine, "update") <= rows_of(whole.engine, "update") + 1


def test_running_statistics_may_follow_the_weights() -> None:
    net = Net()
    model_of(net, precision="16-true", running_statistics_always_float=False)(X, Y)
    assert set(types(net).values()) == {"float16"}
    before = net.norm.running_var.data.copy()
    assert np.abs(before.astype(np.float32) - 1).max() > 1e-3


def test_statistics_of_large_activations_stay_finite() -> None:
    """Their variance is beyond float16: 3000 squared."""
    class Alone(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.BatchNorm2d(2)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.norm(x).mean()
    net, x = Alone(), (3000 * X).astype(np.float16)
    model_of(net, precision="16-true", loss="identity", optimizer=SGD(lr=0.1))(x)
    wanted = 0.9 + 0.1 * x.astype(np.float64).var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(net.norm.running_var.data, wanted, rtol=1e-3)
    assert wanted.min() > 65504


def test_float_and_double_are_types_like_others() -> None:
    net = Net().half().float()
    model_of(net)(X, Y)
    assert set(types(net).values()) == {"float32"}
    assert set(types(Net().double()).values()) == {"float64"}
    out, _ = model_of(nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).double())(X, Y)
    assert np.asarray(out).dtype == np.float64


@pytest.mark.parametrize(("made", "sentence"), [
    (lambda: model_of(Net(), keep_float32="head*")(X, Y), "keep_float32 has no effect: 'head\\*' fits no parameter of Net that has 16 bits"),
    (lambda: model_of(Net(), keep_float32="hat*", precision="16-true")(X, Y), "the pattern 'hat\\*' fits no parameter of Net; they are conv.weight"),
    (lambda: Net().to("int8"), "Parameters are stored as float16, bfloat16, float32, float64, not as int8"),
    (lambda: Net().to("complex"), "not as complex")])
def test_what_cannot_be_is_one_sentence(made: Any, sentence: str) -> None:
    with pytest.raises((OptionError, TypeMismatchError), match=sentence):
        made()


def test_a_compiled_network_keeps_its_types() -> None:
    net = Net()
    model_of(net)(X, Y)
    before = net.state_dict()
    with pytest.raises(OptionError, match=r"Net cannot become float16: a compiled model already has 'conv\.weight' in its type"):
        net.half()
    with pytest.raises(OptionError, match="use the same precision for all models of one network"):
        model_of(net, precision="16-true")(X, Y)
    assert all(np.array_equal(a, before[name]) for name, a in net.state_dict().items())
    assert net.float() is net


def test_numbers_beyond_the_reach_of_float16_are_refused_whole() -> None:
    net = Net()
    net.head.bias.data = np.array([1, 2, 70000], np.float32)
    with pytest.raises(DataError, match=r"'head\.bias' holds 7e\+04, which is beyond the reach of float16"):
        net.half()
    assert set(types(net).values()) == {"float32"}
    with pytest.raises(DataError, match=r"'head\.bias' holds"):
        model_of(net, precision="16-true")(X, Y)
    net.bfloat16()
    model = model_of(Net(), precision="16-true")
    model(X, Y)
    before = model.state_dict()
    with pytest.raises(DataError, match=r"'head\.bias' holds"):
        model.load_state_dict(before | {"head.bias": np.array([1, 2, 70000], np.float32)})
    assert all(np.array_equal(a, before[name]) for name, a in model.state_dict().items())
    with pytest.raises(TypeMismatchError, match="holds 1e\\+06, which is beyond the reach of float16"):
        model(np.full_like(X, 1e6), Y)


# ---- what is computed in which type (fact 21 of the reference)

class Mixed(nn.Module):
    """A parameter of each type and one operator."""

    def __init__(self, work: Any) -> None:
        self.wide, self.narrow, self.brain = (nn.Parameter(np.ones((4, 4), np.float32)) for _ in range(3))
        self.kernel = nn.Parameter(np.ones((4, 4, 1, 1), np.float32))
        self.scale = nn.Parameter(np.ones(4, np.float32))
        self.narrow.store_as("float16")
        self.brain.store_as("bfloat16")
        self.work = work

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.work(self, x)              # type: ignore[no-any-return]


def recorded(work: Any, x: str, upcast: bool, shape: tuple[int, ...] = (3, 4)) -> Graph:
    return record(Mixed(work), [("x", TensorType(x, shape))], training=True, dtype="float32", upcast=upcast)


@pytest.mark.parametrize(("work", "shape"), [
    (lambda n, x: nn.functional.linear(x, n.wide, n.scale), (3, 4)), (lambda n, x: nn.functional.linear(x, n.wide, n.scale), (2, 3, 4)),
    (lambda n, x: x @ n.wide, (3, 4)), (lambda n, x: nn.functional.conv2d(x, n.kernel, n.scale), (2, 4, 5, 5)),
    (lambda n, x: x.apply("LayerNormalization", n.scale, n.scale)[0], (3, 4))])
def test_products_follow_their_activation(work: Any, shape: tuple[int, ...]) -> None:
    """float16 rows by float32 weights are float16; with upcast float32."""
    for given in ("float16", "bfloat16", "float32"):
        assert recorded(work, given, False, shape).outputs[0].dtype == given
        assert recorded(work, given, True, shape).outputs[0].dtype == "float32"


def test_float32_rows_by_float16_weights_are_float32() -> None:
    graph = recorded(lambda n, x: nn.functional.linear(x, n.narrow), "float32", False)
    assert graph.outputs[0].dtype == "float32"
    assert [(n.op.name, n.outputs[0].dtype) for n in graph.nodes] == [("Cast", "float32"), ("Gemm", "float32")]


@pytest.mark.parametrize("upcast", [False, True])
def test_elementwise_operators_promote(upcast: bool) -> None:
    for work, given, wanted in ((lambda n, x: x[:1] + n.wide, "float16", "float32"), (lambda n, x: x[:1] * n.narrow, "float32", "float32"),
                                (lambda n, x: nn.where(x[:1] > 0, x[:1], n.brain), "float16", "float32"),
                                (lambda n, x: x[:1] - n.narrow, "float16", "float16"), (lambda n, x: x[:1] * 2.0, "float16", "float16"),
                                (lambda n, x: nn.cat([x, n.wide]), "float16", "float32"), (lambda n, x: x[:1] + n.wide, "float64", "float64")):
        assert recorded(work, given, upcast).outputs[0].dtype == wanted


@pytest.mark.parametrize(("casting", "wanted"), [("activation", "float16"), ("upcast", "float32")])
def test_float16_rows_are_computed_with_float32_weights_as_the_option_says(casting: str, wanted: str) -> None:
    """The reference's second way: float32 weights, updated in float32, and float16 activations."""
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model = tileflow.training_model(net, optimizer=SGD(lr=0.1), output_mode="all", half_float_casting=casting)
    x, y = RNG.standard_normal((8, 6)), RNG.integers(0, 3, 8)
    out, _ = model(x.astype(np.float16), y)
    assert np.asarray(out).dtype.name == wanted
    assert set(types(net).values()) == {"float32"}
    exact = x.astype(np.float16).astype(np.float64)
    assert np.isfinite(exact).all()


def test_buffers_follow_but_for_statistics() -> None:
    """A table of positions is half with the rest, so that adding it leaves activations half; what says that it is a statistic is not."""
    class Placed(nn.Module):
        def __init__(self) -> None:
            self.register_buffer("places", np.ones((1, 6), np.float32))
            self.seen, self.last = nn.Buffer(np.zeros(3, np.float32), statistic=True), nn.Linear(6, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.last(x + self.places) + self.seen.half()          # type: ignore[attr-defined,no-any-return]
    net = Placed().half()
    out = tileflow.inference_model(net)(X[:, 0, 0])
    assert np.asarray(out).dtype == np.float16
    assert types(net) == {"places": "float16", "seen": "float32", "last.weight": "float16", "last.bias": "float16"}
