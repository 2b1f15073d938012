"""Recurrent layers and cells against PyTorch in float64: outputs, states, gradients, AdamW; and the files that its two exporters make of them."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import exported_networks
import numpy as np
import paths
import pytest
from exported_networks import BATCH, CLASSES, EXPORTS, NETWORKS, Network, export, network, torch
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.importers.onnx import wrap_model
from tileflow.nn.functional.recurrent import ORDERS
from tileflow.system.errors import OptionError, ShapeError

rng = np.random.default_rng(5)
STEPS, ROWS, INPUTS, HIDDEN, UPDATES = 5, 4, 3, 6, 20
Arrays = dict[str, np.ndarray]
LAYERS = [("LSTM", {"num_layers": 2, "bidirectional": True}), ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
          ("RNN", {"nonlinearity": "relu", "bias": False}), paths.rare("LSTM", {"bias": False}),
          paths.rare("GRU", {}), paths.rare("RNN", {"num_layers": 3})]


def same_weights(theirs: Any, ours: nn.Module) -> None:
    """PyTorch's, rounded to float32 as ours are, on both sides. Names and their order are PyTorch's."""
    weights = {name: p.detach().float().double() for name, p in theirs.state_dict().items()}
    theirs.load_state_dict(weights)
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [(n, tuple(p.shape)) for n, p in weights.items()]
    ours.load_state_dict({name: p.numpy().astype(np.float32) for name, p in weights.items()})


class Stated(nn.Module):
    """A layer with first states."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def forward(self, x: nn.Tensor, *states: nn.Tensor) -> tuple[nn.Tensor, ...]:
        y, last = self.layer(x, states if len(states) == 2 else states[0])
        return (y, *last) if len(states) == 2 else (y, last)


@pytest.mark.parametrize(("kind", "options"), LAYERS)
def test_outputs_and_states_are_pytorchs(kind: str, options: dict[str, Any]) -> None:
    theirs, ours = getattr(torch.nn, kind)(INPUTS, HIDDEN, **options).double(), getattr(nn, kind)(INPUTS, HIDDEN, **options)
    same_weights(theirs, ours)
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    for rows in ((ROWS,), ()):
        first = (ROWS, STEPS) if options.get("batch_first") and rows else (STEPS, *rows)
        x, *states = (rng.standard_normal(shape) for shape in ((*first, INPUTS), *[(count, *rows, HIDDEN)] * (1 + (kind == "LSTM"))))
        with torch.no_grad():
            given = tuple(map(torch.from_numpy, states))
            y, last = theirs(torch.from_numpy(x), given if kind == "LSTM" else given[0])
        found = tileflow.inference_model(Stated(ours), precision="float64")(x, *states)
        for got, want in zip(found, (y, *(last if kind == "LSTM" else (last,))), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-9, atol=1e-10)


class TheirNet(torch.nn.Module):
    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(INPUTS, HIDDEN, **{**options, "batch_first": True})
        self.head = torch.nn.Linear(HIDDEN * (1 + options.get("bidirectional", False)), 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x)[0][:, -1])


class OurNet(nn.Module):
    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        self.layer = getattr(nn, kind)(INPUTS, HIDDEN, **{**options, "batch_first": True})
        self.head = nn.Linear(HIDDEN * (1 + options.get("bidirectional", False)), 2)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.head(self.layer(x)[0][:, -1])


@pytest.mark.parametrize(("kind", "options"), LAYERS)
@pytest.mark.parametrize("optimizer", [paths.rare("SGD"), "AdamW"])
def test_training_follows_pytorch(kind: str, options: dict[str, Any], optimizer: str) -> None:
    """One update of SGD is the gradients of all parameters; then AdamW's path."""
    updates = UPDATES if optimizer == "AdamW" else 1
    theirs, ours = TheirNet(kind, options).double(), OurNet(kind, options)
    same_weights(theirs, ours)
    x, y = rng.standard_normal((updates * ROWS, STEPS, INPUTS)), rng.standard_normal((updates * ROWS, 2))
    stepped = getattr(torch.optim, optimizer)(theirs.parameters(), lr=0.01)
    for i in range(updates):
        rows = slice(i * ROWS, (i + 1) * ROWS)
        stepped.zero_grad()
        torch.nn.functional.mse_loss(theirs(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        stepped.step()
    model = tileflow.training_model(ours, optimizer=getattr(optim, optimizer)(lr=0.01), loss="mse", precision="float64", device_iterations=updates)
    model(x, y)
    found = ours.state_dict()
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(found[name], p.detach().numpy(), rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_are_pytorchs(kind: str) -> None:
    theirs, ours = getattr(torch.nn, kind)(INPUTS, HIDDEN).double(), getattr(nn, kind)(INPUTS, HIDDEN)
    same_weights(theirs, ours)

    class Twice(nn.Module):
        """From zeros, then from there."""

        def __init__(self) -> None:
            self.cell = ours

        def forward(self, x: nn.Tensor) -> Any:
            return self.cell(x, self.cell(x))
    x = rng.standard_normal((ROWS, INPUTS))
    with torch.no_grad():
        given = torch.from_numpy(x)
        wanted = theirs(given, theirs(given))
    found = tileflow.inference_model(Twice(), precision="float64")(x)
    for got, want in zip(found if kind == "LSTMCell" else [found], wanted if kind == "LSTMCell" else [wanted], strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-9, atol=1e-10)


def test_what_layers_refuse() -> None:
    with pytest.raises(OptionError, match="proj_size=2 is not served"):
        nn.LSTM(3, 4, proj_size=2)
    with pytest.raises(OptionError, match="'tanh' or 'relu'"):
        nn.RNN(3, 4, nonlinearity="gelu")
    with pytest.raises(OptionError, match="dropout must be in"):
        nn.GRU(3, 4, dropout=1.0)
    with pytest.raises(ShapeError, match="a state of"):
        tileflow.inference_model(Stated(nn.GRU(3, 4)))(np.zeros((5, 2, 3), np.float32), np.zeros((1, 3, 4), np.float32))


# ---- files

class Exported(torch.nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(8, HIDDEN, batch_first=True, **options)
        self.head = torch.nn.Linear(HIDDEN * (1 + options.get("bidirectional", False)), CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x)[0][:, -1])


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"LSTM": Network(lambda: Exported("LSTM", num_layers=2, bidirectional=True), shape=(20, 8)),
           "GRU": Network(lambda: Exported("GRU"), shape=(20, 8))}
    monkeypatch.setattr(exported_networks, "NETWORKS", {**NETWORKS, **own})


def packed(kind: str, weights: Arrays) -> Arrays:
    """PyTorch's weights, and what exporters pack of them into W, R and B of each layer."""
    found = dict(weights)
    suffixes = ["", "_reverse"] if "layer.weight_ih_l0_reverse" in weights else [""]
    order = ORDERS[kind]
    for layer in range(2 if "layer.weight_ih_l1" in weights else 1):
        def turned(name: str, suffix: str, layer: int = layer) -> np.ndarray:
            w = weights[f"layer.{name}_l{layer}{suffix}"]
            return np.concatenate([w[k * HIDDEN:(k + 1) * HIDDEN] for k in order])
        found[f"W{layer}"] = np.stack([turned("weight_ih", s) for s in suffixes])
        found[f"R{layer}"] = np.stack([turned("weight_hh", s) for s in suffixes])
        found[f"B{layer}"] = np.stack([np.concatenate([turned("bias_ih", s), turned("bias_hh", s)]) for s in suffixes])
    return found


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("how", [how if how == "dynamo evaluation" else paths.rare(how) for how in EXPORTS])
def test_exported_files_train_as_pytorch_does(kind: str, how: str, tmp_path: Path) -> None:
    """All weights are found and trained, packed or not; the trained file, read again, gives the trained network's outputs."""
    if how.startswith("dynamo"):
        needs("onnxscript")
    proto = export(kind, network(kind), how, "float64")
    x, y = exported_networks.NETWORKS[kind].data(BATCH * UPDATES, (BATCH, CLASSES), seed=1)
    x = x.astype(np.float64)
    model = tileflow.training_model(wrap_model(proto), optimizer=optim.AdamW(lr=1e-3), loss="cross_entropy", precision="float64",
                                    device_iterations=UPDATES)
    model(x, y)
    net = network(kind).double().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for i in range(UPDATES):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        optimizer.step()
    wanted = packed(kind, {n: p.detach().numpy() for n, p in net.state_dict().items()})
    states = {s.name: model.source.session[s.name] for g in model.program.graphs for s in g.states if s.kind == "parameter" and s.trainable}
    size = sum(p.numel() for p in net.parameters())
    assert sum(a.size for a in states.values()) == size
    for name, got in states.items():
        nearest = min((float(np.abs(w - got).max()) for w in wanted.values() if w.shape == got.shape), default=np.inf)
        assert nearest < 1e-9, name
    path = tmp_path / "trained.onnx"
    model.save_onnx(path)
    found = tileflow.inference_model(str(path), precision="float64")(x[:BATCH])
    with torch.no_grad():
        np.testing.assert_allclose(found, net.eval()(torch.from_numpy(x[:BATCH])).numpy(), rtol=1e-9, atol=1e-9)
