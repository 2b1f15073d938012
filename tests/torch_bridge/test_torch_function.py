"""An ONNX file as a function of PyTorch's: outputs, gradients by inputs and weights, steps of torch.optim."""
from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
from peers import needs

torch = needs("torch")
needs("onnxscript")

import tileflow  # noqa: E402
from tileflow.system.errors import DataError, ModelError, OptionError, UnsupportedError  # noqa: E402
from tileflow.torch import Function  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore:.*legacy TorchScript-based")


class Two(nn.Module):
    """Two inputs, two floating outputs, one of whole numbers, a normalisation; one output does not depend on the second
    input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head, self.table = (
            nn.Conv2d(1, 3, 3),
            nn.BatchNorm2d(3),
            nn.Linear(3, 2),
            nn.Embedding(5, 3),
        )

    def forward(self, x: Any, ids: Any) -> Any:
        h = self.norm(self.conv(x)).relu().mean((2, 3))
        y = self.head(h + self.table(ids))
        return y, h, y.argmax(1)


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    net = Two().eval()
    path = tmp_path / "two.onnx"
    torch.onnx.export(
        net,
        (torch.randn(4, 1, 6, 6), torch.zeros(4, dtype=torch.int64)),
        path,
        dynamo=False,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        input_names=["x", "ids"],
        output_names=["y", "h", "best"],
        dynamic_axes={"x": {0: "N"}, "ids": {0: "N"}},
    )
    return path, net


class Within(nn.Module):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.function = Function(path)

    def forward(self, x: Any, ids: Any) -> Any:
        return self.function(x, ids)[0]


def loss_of(outputs: Any) -> Any:
    y, h, best = outputs
    assert not best.is_floating_point()
    return y.square().sum() + h.sin().sum()


@pytest.mark.exhaustive
def test_it_trains_within_a_network_as_the_module_does(file: tuple[Path, nn.Module]):
    path, net = file
    function, after = Function(path), nn.Linear(6, 6)
    assert sorted(n for n, _ in function.named_parameters()) == sorted(n for n, _ in net.named_parameters())
    twin, twin_after = copy.deepcopy(net), copy.deepcopy(after)
    optimizers = [
        torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.05) for a, b in ((function, after), (twin, twin_after))
    ]
    for rows in (4, 4, 3):
        x, ids = torch.randn(rows, 1, 6, 6), torch.arange(rows) % 5
        found = []
        for optimizer, part, before in zip(optimizers, (function, twin), (after, twin_after), strict=True):
            optimizer.zero_grad()
            given = x.clone().requires_grad_()
            loss = loss_of(part(before(given), ids))
            loss.backward()
            optimizer.step()
            found.append((loss.detach(), given.grad))
        torch.testing.assert_close(found[0], found[1])
    for name, p in function.named_parameters():
        torch.testing.assert_close(p, dict(twin.named_parameters())[name], msg=name)
    torch.testing.assert_close(after.weight, twin_after.weight)


def test_only_what_is_asked_is_differentiated(file: tuple[Path, nn.Module]):
    path, net = file
    function = Function(path, tileflow.Options(threads=1))
    x = torch.randn(2, 1, 6, 6)
    ids = torch.tensor([1, 3])
    for p in function.parameters():
        p.requires_grad_(False)
    for part in (function, net):
        part.zero_grad()
    given, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    function(given, ids)[1].sum().backward()
    net(other, ids)[1].sum().backward()
    torch.testing.assert_close(given.grad, other.grad)
    assert all(p.grad is None for p in function.parameters())
    assert not function(x, ids)[0].requires_grad


@pytest.mark.exhaustive
def test_edits_are_seen_and_files_of_weights_fit(file: tuple[Path, nn.Module]):
    path, net = file
    function = Function(path)
    x, ids = torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 3])
    torch.testing.assert_close(function(x, ids)[0], net(x, ids)[0])
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(0.5)
    saved = io.BytesIO()
    torch.save({name: t for name, t in net.state_dict().items() if "batches" not in name}, saved)
    saved.seek(0)
    function.load_state_dict(torch.load(saved))
    torch.testing.assert_close(function(x, ids)[0], net(x, ids)[0])


def test_refusals(file: tuple[Path, nn.Module]):
    path, _ = file
    with pytest.raises(ModelError, match=r"other\.onnx"):
        Function(path.with_name("other.onnx"))
    with pytest.raises(OptionError, match="device_iterations"):
        Function(path, tileflow.Options(device_iterations=2))
    with pytest.raises(DataError, match=r"has 2 inputs \(x, ids\) and got 1"):
        Function(path)(torch.randn(4, 1, 6, 6))
    with pytest.raises(UnsupportedError, match="which no exporter can write into another model"):
        tileflow.torch.inference_model(Within(path))(torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 3]))


@pytest.mark.exhaustive
def test_copies_buffers_and_types(file: tuple[Path, nn.Module]):
    """A copy has weights of its own; an edit of a buffer alone is seen; other types are refused, not taken back."""
    path, net = file
    function = Function(path)
    x, ids = torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 3])
    before = function(x, ids)[0]
    other = copy.deepcopy(function)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(0.5)
    assert not torch.equal(other(x, ids)[0], before)
    assert torch.equal(function(x, ids)[0], before)
    means = [(name, b) for name, b in function.named_buffers() if name.endswith("running_mean")]
    assert means
    for name, b in means:
        b.add_(1)
        net.get_buffer(name).add_(1)
    torch.testing.assert_close(function(x, ids)[0], net(x, ids)[0])
    with pytest.raises(UnsupportedError, match="computes in the types of its file"):
        copy.deepcopy(function).double()(x, ids)
    torch.testing.assert_close(copy.deepcopy(function).double().float()(x, ids)[0], net(x, ids)[0])
