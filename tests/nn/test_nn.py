"""The layer API: layers against PyTorch's, names of parameters, recording, what it refuses."""
from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import paths
import pytest
from our_layers import OurLayers
from peers import needs
from places import ROOT

import tileflow
from tileflow import nn, optim
from tileflow.graph import TensorType, verify
from tileflow.system.errors import DataError, OptionError, ShapeError, TileflowError, TypeMismatchError

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
        def forward(self, q: nn.Tensor, k: nn.Tensor, v: nn.Tensor) -> nn.Tensor:
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

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.shared(self.parts[1](self.parts[0](x))) + self.shift


def test_parameters_are_named_by_path_and_each_once():
    nn.manual_seed(1)                                    # no unit that is negative for all rows, whatever other tests have drawn
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
        def forward(self, x: nn.Tensor, y: nn.Tensor) -> Any:
            a = 2 - x / y + 3 * x - (-y) ** 2 + (1 + y.exp().log()).sqrt()
            return a, (x @ y.transpose(1, 0)).reshape(-1), x.sum(0, keepdim=True), y.mean(), x + np.ones(3), x.flatten(0), x.flatten()
    x, y = (rng.uniform(0.5, 2, (2, 3)).astype(np.float32) for _ in range(2))
    wanted = [2 - x / y + 3 * x - (-y) ** 2 + np.sqrt(1 + y), (x @ y.T).reshape(-1), x.sum(0, keepdims=True), y.mean(), x + 1, x.reshape(-1), x]
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

        def forward(self, rows: nn.Tensor) -> nn.Tensor:
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


# ---- modules in containers, typing, losses


def test_modules_are_found_in_lists_dicts_and_what_they_hold() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.parts = {"in": nn.Linear(3, 3), "more": [nn.Linear(3, 3), (nn.Linear(3, 2), {"scale": nn.Parameter(np.ones(2))})]}
            self.parts["itself"] = self.parts
            self.listed = nn.ModuleList([nn.Linear(3, 3)]).append(nn.Linear(3, 3))
            self.named = nn.ModuleDict({"a": nn.Linear(3, 3)})
            self.steps = nn.Sequential({"first": nn.Linear(3, 3), "then": nn.ReLU()})
            self.owner = self
            self.register_buffer("shift", np.zeros(3))

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            for layer in (self.parts["in"], *self.listed, self.named["a"], self.steps, self.parts["more"][0]):
                x = layer(x)
            last, more = self.parts["more"][1]
            return last(x + self.shift) * more["scale"]
    net = Net()
    assert [n for n, _ in net.named_parameters() if not n.endswith("bias")] == [
        "parts.more.1.1.scale", "shift", "parts.in.weight", "parts.more.0.weight", "parts.more.1.0.weight", "listed.0.weight", "listed.1.weight",
        "named.a.weight", "steps.first.weight"]
    assert sorted(net.state_dict()) == sorted(n for n, _ in net.named_parameters())
    x = rng.standard_normal((4, 3)).astype(np.float32)
    before = net.state_dict()
    tileflow.training_model(net, loss="mse", optimizer=optim.SGD(lr=0.5))(x, np.ones((4, 2), np.float32))
    after = net.state_dict()
    assert [n for n in after if np.array_equal(before[n], after[n])] == ["shift"]


def test_containers_are_sequences_and_mappings() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    assert len(net) == 3
    assert isinstance(net[1], nn.ReLU)
    assert [type(m).__name__ for m in net[:2]] == ["Linear", "ReLU"]
    named = nn.ModuleDict({"a": net})
    assert list(named) == ["a"]
    assert "a" in named
    for make, sentence in ((lambda: nn.Sequential(nn.ReLU), r"got the class ReLU; give it an object: ReLU\(...\)"),
                           (lambda: nn.ModuleList([1]), "holds modules, not int"), (lambda: nn.Sequential(nn.Linear(2, 2), np.tanh), "not ufunc")):
        with pytest.raises(TypeMismatchError, match=sentence):
            make()
    with pytest.raises(OptionError, match="a name is a text without dots"):
        nn.ModuleDict({"a.b": net})
    with pytest.raises(OptionError, match="has no module 'b'; it has a"):
        named["b"]


def test_a_parameter_in_forward_is_a_tensor() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter(np.arange(6, dtype=np.float32).reshape(2, 3))

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return x @ self.w.t() + self.w[0, 1:] * self.w.sum(dim=1) + (self.w > 2).float().mean()
    net, x = Net(), rng.standard_normal((4, 3)).astype(np.float32)
    w = net.w.data
    np.testing.assert_allclose(outputs(net, x), x @ w.T + w[0, 1:] * w.sum(1) + 0.5, rtol=1e-5)
    assert net.w in [net.w]
    assert net.w != nn.Parameter(w)
    with pytest.raises(TileflowError, match="belongs into a module's forward"):
        net.w.sum()


STRICT = """
import numpy as np

from tileflow import nn

class Net(nn.Module):
    def __init__(self) -> None:
        self.fc, self.norm, self.attend = nn.Linear(4, 8), nn.LayerNorm(8), nn.MultiheadAttention(8, 2)
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.ReLU()])
        self.seq = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.scale = nn.Parameter([1.0])

    def forward(self, x: nn.Tensor, mask: nn.Tensor | None = None) -> nn.Tensor:
        y = self.norm(self.fc(x).relu())
        for block in self.blocks:
            y = block(y)
        y = self.seq(self.attend(y, mask=mask, is_causal=True)) * self.scale
        if mask is not None:
            y = y.masked_fill(mask == 0, -1e9)
        return y.softmax(dim=-1)[:, 0] - nn.functional.gelu(y).mean(dim=(0, 1), keepdim=True)

class Seen(nn.Module):
    def __init__(self) -> None:
        self.count, self.mean = nn.Buffer(np.zeros((), np.int64)), nn.Buffer(np.zeros(4, np.float32))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        self.count += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.mean[0] = x[0, 0]
        return x - self.mean

class Both(nn.Module):
    def __init__(self) -> None:
        self.inner, self.loss = Net(), nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x: nn.Tensor, labels: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        y = self.inner(x)
        return y, nn.identity_loss(self.loss(y, labels))
"""


@pytest.mark.exhaustive
def test_a_users_network_passes_strict_type_checks(tmp_path: Any) -> None:
    """No ignores, and a wrong call is found."""
    needs("mypy")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(STRICT)
    wrong.write_text(STRICT + "\nclass Wrong(nn.Module):\n    def forward(self, x: nn.Tensor) -> int:\n        return Both()(x)\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    found = subprocess.run([*command, str(right)], capture_output=True, text=True)
    assert not found.returncode, found.stdout + found.stderr
    found = subprocess.run([*command, str(wrong)], capture_output=True, text=True)
    assert "Missing positional argument" in found.stdout
    assert "Incompatible return value" in found.stdout


LABELLED = [(nn.CrossEntropyLoss(weight=[1.0, 2.0, 0.5], label_smoothing=0.1), "cross_entropy"), (nn.NLLLoss(), "nll"), (nn.MSELoss(), "mse"),
            (nn.BCEWithLogitsLoss(), "bce_with_logits"), (nn.HuberLoss(delta=0.3), "HuberLoss"), (nn.L1Loss(reduction="sum"), "L1Loss"),
            (nn.BCEWithLogitsLoss(pos_weight=[1.0, 2.0, 3.0]), "BCEWithLogitsLoss"), (nn.CrossEntropyLoss(reduction="sum"), "CrossEntropyLoss")]


@pytest.mark.parametrize(("loss", "name"), LABELLED, ids=[name for _, name in LABELLED])
def test_losses_train_models(loss: Any, name: str) -> None:
    """As `loss=` and as a part of `forward` they are the same."""
    class With(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            self.net, self.loss = net, loss

        def forward(self, x: nn.Tensor, labels: nn.Tensor) -> nn.Tensor:
            return nn.identity_loss(self.loss(self.net(x), labels))
    x = rng.standard_normal((6, 4)).astype(np.float32)
    labels: Any = rng.integers(0, 3, 6) if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) else rng.uniform(0, 1, (6, 3)).astype(np.float32)
    plain, within = nn.Linear(4, 3), nn.Linear(4, 3)
    within.load_state_dict(plain.state_dict())
    options: Any = dict(micro_batch_size=3, gradient_accumulation=2)
    one = tileflow.training_model(plain, loss=loss, optimizer=optim.SGD(lr=0.1), **options)
    other = tileflow.training_model(With(within), loss="identity", optimizer=optim.SGD(lr=0.1), **options)
    assert one.loss_name == name
    for _ in range(2):
        one(x, labels)
        other(x, labels)
        assert one.last_losses == pytest.approx(other.last_losses, rel=1e-5)
    for key, array in plain.state_dict().items():
        np.testing.assert_allclose(array, within.state_dict()[key], rtol=1e-4, atol=1e-6)


def test_losses_that_do_not_fit() -> None:
    net, x = nn.Linear(4, 3), np.ones((2, 4), np.float32)
    with pytest.raises(OptionError, match="reduction='none' gives a loss for each element"):
        tileflow.training_model(net, loss=nn.MSELoss(reduction="none"))
    with pytest.raises(OptionError, match="takes more than a prediction and labels; compute it in"):
        tileflow.training_model(net, loss=nn.TripletMarginLoss())
    with pytest.raises(OptionError, match="Option label_smoothing and the loss CrossEntropyLoss both say"):
        tileflow.training_model(net, loss=nn.CrossEntropyLoss(), label_smoothing=0.1)
    with pytest.raises(OptionError, match="must be finite"):
        nn.CrossEntropyLoss(weight=[np.nan])
    with pytest.raises(DataError, match=r"where forward\(\) computes its loss itself, set loss='identity'"):
        tileflow.training_model(net)(x)


def test_train_takes_a_loss_of_layers(tmp_path: Any) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = tileflow.train(net, data="digits", loss=nn.CrossEntropyLoss(label_smoothing=0.05), epochs=2, micro_batch_size=16, out=str(tmp_path),
                            learning_rate=1e-2, optimizer="adam")
    assert result.loss == "cross_entropy"
    assert result.history["test_accuracy"][-1] > 0.8


def the_readmes_transformer() -> dict[str, Any]:
    """What the code as it stands there defines."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = readme[readme.index("class Block(nn.Module):"):]
    code = code[:code.index("```")]
    nn.manual_seed(0)
    names: dict[str, Any] = {"nn": nn, "np": np, "tileflow": tileflow}
    exec(code, names)
    return names


def test_the_readmes_transformer_has_a_program() -> None:
    """In its own precision, without kernels: every weight is updated, and the products are in bfloat16."""
    net = the_readmes_transformer()["Transformer"]()
    program = tileflow.compile(net, inputs=[np.zeros((2, 9), np.int64)], loss="cross_entropy", training=True, precision="bf16-mixed").program
    assert {s.name for s in program.parts["update"].states if s.kind == "parameter"} == set(net.state_dict())
    products = [node for node in program.parts["micro"].nodes if node.op.name in ("Gemm", "MatMul", "FusedMatMul")]
    assert {v.dtype for node in products for v in node.outputs} == {"bfloat16"}


@pytest.mark.parametrize("precision", [paths.rare(None), paths.rare("32")], ids=["its own", "32"])
def test_the_readmes_transformer_learns(precision: str | None) -> None:
    """The code as it stands there, in its own precision, and its network in float32."""
    names = the_readmes_transformer()
    text = np.random.default_rng(0).integers(0, 96, 17)[np.arange(600) % 17].astype(np.int64)
    rows = text[np.arange(8)[:, None] + np.arange(65)]
    plain = precision and tileflow.training_model(names["Transformer"](), loss=nn.CrossEntropyLoss(label_smoothing=0.1), precision=precision)
    model = plain or names["model"]
    losses = [model(rows[:, :-1], rows[:, 1:])[1] for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]


def test_arrays_are_constants_for_modules() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.place = nn.Embedding(5, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return x + self.place(np.arange(4)) + nn.tensor([1.0, 2.0, 3.0]) * nn.tensor(2, dtype="float32")
    net, x = Net(), rng.standard_normal((2, 4, 3)).astype(np.float32)
    np.testing.assert_allclose(outputs(net, x), x + net.place.weight.data[:4] + [2, 4, 6], rtol=1e-5)
