"""Batch normalisations that a file written for training has frozen: PyTorch's exporters keep each layer's mode."""
from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import onnx
import pytest
from peers import needs

torch = needs("torch")

from exported_networks import quiet  # noqa: E402

import tileflow  # noqa: E402
from tileflow.importers.onnx import import_graph, wrap_model  # noqa: E402
from tileflow.importers.onnx.inspect_training import training_report  # noqa: E402
from tileflow.ops.norm import BatchNormalization  # noqa: E402

nn = torch.nn
FROZEN = "Frozen, for a file that was written for training has them for inference: the batch normalisation in "
STAY = ". The running statistics stay as they are; scale and shift are trained."
UNKNOWN = ("train by the batch's statistics: the file has them all for inference, and nothing in it tells whether the "
           "network froze some. The bridge keeps each layer's mode (docs/pytorch.md).")
Hows = pytest.mark.parametrize("how", ["older", "older, opset 13", "newer"])


def network(frozen: tuple[str, ...], *more: Any) -> Any:
    """In double precision, with statistics that are no batch's; `frozen` are in evaluation mode."""
    torch.manual_seed(0)
    net = nn.Sequential()
    for name, part in (("first", nn.Linear(4, 6)), ("a", nn.BatchNorm1d(6)), ("relu", nn.ReLU()),
                       ("b", nn.BatchNorm1d(6)),
                       ("last", nn.Linear(6, 3)), *((f"more{i}", part) for i, part in enumerate(more))):
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


def file_of(net: Any, how: str = "older") -> onnx.ModelProto:
    """Each module in the mode that it has."""
    buffer, x = io.BytesIO(), torch.zeros(5, 4).double()
    with quiet():
        if how == "newer":
            needs("onnxscript")
            torch.onnx.export(copy.deepcopy(net), (x,), buffer, dynamo=True, optimize=False, external_data=False,
                              verbose=False)
        else:
            torch.onnx.export(copy.deepcopy(net), (x,), buffer, dynamo=False, do_constant_folding=False,
                              opset_version=13 if "13" in how else 17, training=torch.onnx.TrainingMode.PRESERVE)
    return onnx.load_from_string(buffer.getvalue())


@Hows
@pytest.mark.parametrize("frozen", [("a",), ("b",), ()], ids=str)
def test_training_is_pytorchs(frozen: tuple[str, ...], how: str):
    """A frozen one normalises by its statistics, which stay, and its scale and shift are trained; the others by the
    batch."""
    net, rng = network(frozen), np.random.default_rng(1)
    before = {name: value.clone().numpy() for name, value in net.state_dict().items()}
    model = tileflow.training_model(wrap_model(file_of(net, how)), loss="cross_entropy",
                                    optimizer=tileflow.optim.SGD(lr=0.1))
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


def said(net: Any, how: str) -> tuple[list[str], list[bool]]:
    """What training the file says of modes, and which of its normalisations are by the batch."""
    model = wrap_model(file_of(net, how))
    found = import_graph(model, training=True)
    assert not [w for w in import_graph(model, training=False).warnings if w.startswith(FROZEN) or w.endswith(UNKNOWN)]
    sentences = [w for w in found.warnings if w.startswith(FROZEN) or w.endswith(UNKNOWN)]
    assert {*sentences} <= {*training_report(model, found).doubts}
    return sentences, [bool(node.op.training_mode)
                       for node in found.graph.nodes if isinstance(node.op, BatchNormalization)]


@Hows
@pytest.mark.parametrize("frozen", [("a",), ("a", "b"), ()], ids=str)
def test_it_is_said(frozen: tuple[str, ...], how: str):
    """A dropout that drops shows that all are frozen."""
    sentences, by_batch = said(network(frozen, nn.Dropout(0.25)), how)
    assert by_batch == [name not in frozen for name in ("a", "b")]
    assert len(sentences) == bool(frozen)
    for text in sentences:
        assert text.startswith(FROZEN)
        assert text.endswith(STAY)
        assert text.count(",") == len(frozen)


@Hows
def test_where_nothing_tells_it_is_said(how: str):
    """All frozen without a dropout, or written for inference: all are trained by the batch."""
    for net in (network(("a", "b")), network((), nn.Dropout(0.25)).eval()):
        sentences, by_batch = said(net, how)
        assert sentences == [f"2 batch normalisations {UNKNOWN}"]
        assert by_batch == [True, True]


@Hows
def test_one_without_running_statistics_is_no_sign(how: str):
    """It normalises by the batch in either mode, so that a file for inference with one is not one for training."""
    statistics = nn.BatchNorm1d(3, track_running_stats=False)
    assert said(network((), statistics).eval(), how) == ([f"2 batch normalisations {UNKNOWN}"], [True, True, True])
    assert said(network((), statistics), how) == ([], [True, True, True])
    assert said(network(("a",), statistics), how)[1] == [False, True, True]
