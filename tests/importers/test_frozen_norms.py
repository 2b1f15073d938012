"""Batch normalisations that a file written for training has frozen, beside others by the batch: PyTorch's older exporter keeps each layer's mode."""
from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from peers import needs

torch = needs("torch")

import tileflow  # noqa: E402
from tileflow.importers.onnx import import_graph, wrap_model  # noqa: E402

nn = torch.nn
SAID = "is frozen in the file, where others use the batch's statistics: its running statistics stay as they are."


def network(frozen: tuple[str, ...]) -> Any:
    """In double precision, with statistics that are no batch's; `frozen` are in evaluation mode."""
    torch.manual_seed(0)
    net = nn.Sequential()
    for name, part in (("first", nn.Linear(4, 6)), ("a", nn.BatchNorm1d(6)), ("relu", nn.ReLU()), ("b", nn.BatchNorm1d(6)),
                       ("last", nn.Linear(6, 3))):
        net.add_module(name, part)
    net.double().train()
    for name in ("a", "b"):
        norm = net.get_submodule(name)
        norm.momentum = 0.0 if name not in frozen else 0.1        # others keep theirs: an export is a call, too
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    for name in frozen:
        net.get_submodule(name).eval()
    return net


def file_of(net: Any) -> onnx.ModelProto:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(copy.deepcopy(net), (torch.zeros(5, 4).double(),), buffer, dynamo=False, do_constant_folding=False, opset_version=17,
                          training=torch.onnx.TrainingMode.PRESERVE)
    return onnx.load_from_string(buffer.getvalue())


@pytest.mark.parametrize("frozen", [("a",), ("b",), ()], ids=str)
def test_training_is_pytorchs(frozen: tuple[str, ...]):
    """A frozen one normalises by its statistics, which stay, and its scale and shift are trained; the others by the batch."""
    net, rng = network(frozen), np.random.default_rng(1)
    before = {name: value.clone().numpy() for name, value in net.state_dict().items()}
    model = tileflow.training_model(wrap_model(file_of(net)), loss="cross_entropy", optimizer=tileflow.optim.SGD(lr=0.1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        x, y = rng.standard_normal((5, 4)), rng.integers(0, 3, 5)
        *_, loss = model(x, y)
        optimizer.zero_grad()
        theirs = nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y))
        theirs.backward()
        optimizer.step()
        np.testing.assert_allclose(loss, theirs.item(), rtol=1e-9)
    found = model.state_dict()
    for name, value in net.named_parameters():
        np.testing.assert_allclose(found[name], value.detach().numpy(), rtol=1e-9, atol=1e-11)
    for name in frozen:
        for what in ("running_mean", "running_var"):
            np.testing.assert_array_equal(found[f"{name}.{what}"], before[f"{name}.{what}"])


@pytest.mark.parametrize(("frozen", "count"), [(("a",), 1), ((), 0), (("a", "b"), 0)], ids=str)
def test_it_is_said(frozen: tuple[str, ...], count: int):
    """Where one is frozen and another is not. In a file with none by the batch, as those for inference are, nothing tells: all are trained."""
    model = wrap_model(file_of(network(frozen)))
    found = import_graph(model, training=True)
    assert [w for w in found.warnings if "frozen" in w] == [f"BatchNormalization node '/a/BatchNormalization' {SAID}"][:count]
    ops = [node.op for node in found.graph.nodes if type(node.op).__name__ == "BatchNormalization"]
    assert [bool(op.training_mode) for op in ops].count(False) == count
    assert not [w for w in import_graph(model, training=False).warnings if "frozen" in w]
