"""The layer API: layers against PyTorch's, names of parameters, recording, what it refuses."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.errors import DataError, OptionError, ShapeError, TileflowError, TypeMismatchError
from tileflow.graph import TensorType, verify

rng = np.random.default_rng(13)


def outputs(net: nn.Module, *x: np.ndarray, **options: Any) -> Any:
    return tileflow.inference_model(net, **options)(*x)


LAYERS = [
    (lambda n: n.Linear(12, 5), (3, 12)), (lambda n: n.Linear(12, 5, bias=False), (3, 2, 12)),
    (lambda n: n.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)), (lambda n: n.Conv2d(4, 6, (3, 2), dilation=(1, 2), bias=False), (2, 4, 7, 8)),
    (lambda n: n.Conv2d(4, 6, 3, padding=(1, 0), groups=2), (2, 4, 7, 8)),
    (lambda n: n.MaxPool2d(3, stride=2, padding=1), (2, 3, 7, 8)), (lambda n: n.MaxPool2d((2, 3)), (2, 3, 7, 8)),
    (lambda n: n.MaxPool1d(2), (2, 3, 7)),
    (lambda n: n.AvgPool2d(3, stride=1, padding=1), (2, 3, 7, 8)), (lambda n: n.Flatten(), (2, 3, 4, 5)), (lambda n: n.ReLU(), (3, 4)),
    (lambda n: n.LeakyReLU(0.2), (3, 4)), (lambda n: n.Sigmoid(), (3, 4)), (lambda n: n.Tanh(), (3, 4)),
    (lambda n: n.Softmax(dim=1), (3, 4, 2)), (lambda n: n.LogSoftmax(dim=-1), (3, 4)), (lambda n: n.Dropout(0.5).eval(), (3, 4)),
    (lambda n: n.RMSNorm(4), (3, 4)), (lambda n: n.RMSNorm((3, 4), eps=1e-4), (2, 3, 4)),
    (lambda n: n.BatchNorm2d(3, eps=1e-3).eval(), (2, 3, 4, 4)), (lambda n: n.BatchNorm1d(3).eval(), (5, 3)),
]


class OurLayers:
    """Our layers, with PyTorch's `eval` (ours are in that mode whenever they are not trained)."""

    def __getattr__(self, name: str) -> Any:
        layer = getattr(nn, name)

        def make(*args: Any, **kwargs: Any) -> Any:
            made = layer(*args, **kwargs)
            made.eval = lambda: made
            return made
        return make


@pytest.mark.parametrize("index", range(len(LAYERS)))
def test_layers_are_pytorchs(index: int):
    torch = needs("torch")
    make, shape = LAYERS[index]
    theirs, ours = make(torch.nn).double(), make(OurLayers())
    wanted = theirs.state_dict()
    for name, p in ours.named_parameters():
        assert p.shape == tuple(wanted[name].shape)
        value = rng.uniform(0.5, 1.5, p.shape) if "var" in name else rng.standard_normal(p.shape)
        p.data = value.astype(np.float32)
        wanted[name] = torch.from_numpy(value.astype(np.float32).astype(np.float64))
    theirs.load_state_dict(wanted)
    x = rng.standard_normal(shape)
    with torch.no_grad():
        y = theirs(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(outputs(ours, x, precision="float64"), y, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("key_heads", "causal", "masked"), [(4, False, True), (2, True, True), (1, True, False)])
def test_attention_is_pytorchs(key_heads: int, causal: bool, masked: bool):
    torch = needs("torch")
    q, k, v = rng.standard_normal((2, 4, 5, 6)), *rng.standard_normal((2, 2, key_heads, 7, 6))
    mask = rng.standard_normal((2, 4, 5, 7)).astype(np.float32) if masked else None

    class Net(nn.Module):
        def forward(self, q: nn.Tensor, k: nn.Tensor, v: nn.Tensor) -> nn.Tensor:      # type: ignore[override]
            return nn.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=0.4)
    seen = torch.zeros(5, 7, dtype=torch.float64) if mask is None else torch.from_numpy(mask).double()
    if causal:
        seen = seen.masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(1), -np.inf)
    wanted = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), seen, scale=0.4, enable_gqa=True)
    np.testing.assert_allclose(outputs(Net(), q, k, v, precision="float64"), wanted, rtol=1e-9, atol=1e-10)


def test_multihead_attention_with_shared_keys():
    """Two heads with one key head are two heads whose key and value weights are the same."""
    shared, plain = nn.MultiheadAttention(8, 2, kv_heads=1), nn.MultiheadAttention(8, 2)
    weights = shared.state_dict()
    plain.load_state_dict({n: np.concatenate([a, a]) if n.startswith(("key", "value")) else a for n, a in weights.items()})
    x = rng.standard_normal((2, 5, 8))
    np.testing.assert_allclose(*(outputs(net, x, precision="float64") for net in (shared, plain)), rtol=1e-9, atol=1e-12)
    with pytest.raises(OptionError, match="kv_heads=3 must divide num_heads=4"):
        nn.MultiheadAttention(8, 4, kv_heads=3)


def test_global_average_pool():
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(outputs(nn.GlobalAvgPool(), x), x.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-6)


def test_initial_weights_follow_pytorchs_rule_and_the_seed():
    nn.manual_seed(4)
    one = nn.Conv2d(8, 40, 5)
    nn.manual_seed(4)
    other = nn.Conv2d(8, 40, 5)
    np.testing.assert_array_equal(one.weight.data, other.weight.data)
    bound = 1 / np.sqrt(8 * 25)
    assert np.abs(one.weight.data).max() <= bound
    assert one.weight.data.std() == pytest.approx(bound / np.sqrt(3), rel=0.03)
    assert np.abs(one.bias.data).max() <= bound
    assert one.weight.data.dtype == np.float32


class Block(nn.Module):
    def __init__(self) -> None:
        self.parts = [nn.Linear(3, 3), nn.Linear(3, 3)]
        self.shared = self.parts[0]
        self.shift = nn.Parameter(np.zeros(3, np.float32))

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.shared(self.parts[1](self.parts[0](x))) + self.shift


def test_parameters_are_named_by_path_and_each_once():
    net = nn.Sequential(Block(), nn.ReLU(), nn.BatchNorm1d(3))
    assert sorted(n for n, _ in net.named_parameters()) == sorted(
        ["0.shift", "0.parts.0.weight", "0.parts.0.bias", "0.parts.1.weight", "0.parts.1.bias",
         "2.weight", "2.bias", "2.running_mean", "2.running_var"])
    assert len(net.parameters()) == 7
    x = rng.standard_normal((4, 3)).astype(np.float32)
    model = tileflow.training_model(net, loss="mse", optimizer=optim.SGD(lr=0.1))
    before = net.state_dict()
    model(x, x)
    assert sorted(model.source.session.names("parameter")) == sorted(n for n, p in net.named_parameters() if "running" not in n)
    assert all(not np.array_equal(before[n], a) for n, a in net.state_dict().items() if n != "0.parts.1.bias")


def test_operators_of_tensors():
    class Net(nn.Module):
        def forward(self, x: nn.Tensor, y: nn.Tensor) -> Any:      # type: ignore[override]
            a = 2 - x / y + 3 * x - (-y) ** 2 + (1 + y.exp().log()).sqrt()
            return a, (x @ y.transpose(1, 0)).reshape(-1), x.sum(0, keepdims=True), y.mean(), x + np.ones(3), x.flatten(0)
    x, y = (rng.uniform(0.5, 2, (2, 3)).astype(np.float32) for _ in range(2))
    wanted = [2 - x / y + 3 * x - (-y) ** 2 + np.sqrt(1 + y), (x @ y.T).reshape(-1), x.sum(0, keepdims=True), y.mean(), x + 1, x.reshape(1, -1)]
    for got, want in zip(outputs(Net(), x, y), wanted, strict=True):
        assert np.shape(got) == np.shape(want)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    first, _ = (m for _, m in net.children())
    first.weight.trainable = first.bias.trainable = False           # type: ignore[attr-defined]
    before = net.state_dict()
    tileflow.training_model(net, optimizer=optim.SGD(lr=0.5))(rng.standard_normal((4, 3)).astype(np.float32), np.array([0, 1, 1, 0]))
    after = net.state_dict()
    np.testing.assert_array_equal(after["0.weight"], before["0.weight"])
    np.testing.assert_array_equal(after["0.bias"], before["0.bias"])
    assert not np.array_equal(after["1.weight"], before["1.weight"])


def test_a_module_records_a_graph():
    graph = nn.record(Block(), [("x", TensorType("float32", (4, 3)))], training=False, dtype="float32")
    verify(graph)
    assert {n.op.name for n in graph.nodes} == {"Gemm", "Add"}
    assert {n.origin.sources for n in graph.nodes} == {("parts.0",), ("parts.1",), ("Block",)}


def test_whole_numbers_stay_whole():
    class Picked(nn.Module):
        def __init__(self) -> None:
            self.table = nn.Parameter(np.arange(12, dtype=np.float32).reshape(4, 3))

        def forward(self, rows: nn.Tensor) -> nn.Tensor:           # type: ignore[override]
            return nn.Tensor(rows.trace, rows.trace.state(self.table).input).apply("Gather", rows, axis=0)
    np.testing.assert_array_equal(outputs(Picked(), np.array([3, 0])), [[9, 10, 11], [0, 1, 2]])


# ---- what is refused

def test_modules_take_no_arrays():
    with pytest.raises(TileflowError, match="Linear records a graph and takes no arrays"):
        nn.Linear(2, 2)(np.ones((1, 2)))


def bad(forward: Any) -> nn.Module:
    class Net(nn.Module):
        pass
    Net.forward = forward                                          # type: ignore[method-assign]
    return Net()


def test_what_a_forward_must_not_do():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(TypeMismatchError, match="no value while the network is recorded"):
        outputs(bad(lambda self, x: x + 1 if x.sum() else x), x)
    with pytest.raises(TileflowError, match="must return tensors; output 0 is float"):
        outputs(bad(lambda self, x: 1.0), x)
    loose = nn.Parameter(np.ones(3, np.float32))
    with pytest.raises(TileflowError, match="not an attribute of any module"):
        outputs(bad(lambda self, x: x + loose), x)
    with pytest.raises(NotImplementedError, match="has no forward"):
        outputs(bad(nn.Module.forward), x)
    with pytest.raises(ShapeError, match="Linear"):
        outputs(nn.Linear(4, 2), x)


def test_numbers_of_inputs():
    net = bad(lambda self, x, y: x + y)
    with pytest.raises(DataError, match="needs 2 inputs, got 1"):
        outputs(net, np.ones(2, np.float32))
    with pytest.raises(DataError, match=r"takes 1 inputs \(x\) and got 2"):
        outputs(bad(lambda self, x: x + 1), np.ones(2, np.float32), np.ones(2, np.float32))
    both = bad(lambda self, *parts: parts[0] + parts[1])
    np.testing.assert_array_equal(outputs(both, np.ones(2, np.float32), np.ones(2, np.float32)), [2, 2])


def test_refused_arguments():
    with pytest.raises(OptionError, match="groups=3 must divide"):
        nn.Conv2d(4, 6, 3, groups=3)
    with pytest.raises(OptionError, match="p must be in"):
        nn.Dropout(1.0)
