"""What PyTorch's exporters lose, and what the bridge makes of it: each row of the table in docs/pytorch.md."""
from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from peers import needs
from places import ROOT

torch = needs("torch")
needs("onnxscript")

from torch_networks import Sign  # noqa: E402

import tileflow.torch  # noqa: E402
from tileflow.graph import Annotation  # noqa: E402
from tileflow.system.errors import (  # noqa: E402
    OptionError,
    TileflowError,
    TileflowWarning,
    TypeMismatchError,
    UnsupportedError,
)

nn, F = torch.nn, torch.nn.functional
ask, begin, scope, exporting = tileflow.torch.ask, tileflow.torch.begin, tileflow.torch.scope, tileflow.torch.exporting
identity_loss, serialized_matmul = tileflow.torch.identity_loss, tileflow.torch.serialized_matmul
inference_model, training_model = tileflow.torch.inference_model, tileflow.torch.training_model
EXPORTERS = ("torch.export", "TorchScript")


@pytest.fixture(autouse=True)
def _weights_of_its_own() -> None:
    torch.manual_seed(0)


def floats(rows: int = 6) -> tuple[Any, ...]:
    return (torch.randn(rows, 4),)


def words() -> tuple[Any, ...]:
    return (torch.tensor([[0, 1, 2], [2, 0, 0], [3, 3, 1], [0, 4, 4]]),)


class Module(nn.Module):
    """What a test says, with a linear layer and a table to train."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(4, 3), nn.Linear(3, 2)
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                self.register_buffer(name, part, persistent=name != "unsaved")
            else:
                setattr(self, name, part)
        self._forward = forward

    def forward(self, *args: Any) -> Any:
        return self._forward(self, *args)


def classes(m: Any, x: Any) -> Any:
    y = torch.arange(len(x)) % 3
    y[0] = -100
    return F.cross_entropy(m.f(x), y, label_smoothing=0.2) + F.cross_entropy(
        m.f(x), y, label_smoothing=0.1, reduction="sum"
    )


def mixed_classes(m: Any, x: Any) -> Any:
    """As when images are mixed: a probability of each class, with weights, smoothed, of rows and of planes."""
    of_each = torch.tensor([1.0, 2.0, 3.0])
    z, p = m.f(x), torch.softmax(x[:, :3], 1)
    planes = F.cross_entropy(z.T[None], p.T[None], of_each, label_smoothing=0.1)
    smooth = F.cross_entropy(z, p.argmax(1), of_each, ignore_index=1, label_smoothing=0.1)
    return F.cross_entropy(z, p) + planes + smooth + F.cross_entropy(z[0], p[0], reduction="sum")


def no_gradients(m: Any, x: Any) -> Any:
    h = m.f(x)
    with torch.no_grad():
        scale = m.g(h).abs().mean()
    return (m.g(h) * scale).square().mean()


def counts_in_place(m: Any, x: Any) -> Any:
    m.seen.add_(x.shape[0])
    m.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return (m.f(x - m.mean)).square().mean()


def counts_anew(m: Any, x: Any) -> Any:
    m.mean = m.mean * 0.9 + x.mean(0) * 0.1
    return m.f(x - m.mean).square().mean()


def doubles(m: Any, x: Any) -> Any:
    m.unsaved = m.unsaved * 1.5
    return (m.f(x) * m.unsaved).square().mean()


def by_python(m: Any, x: Any) -> Any:
    return m.f(x).square().mean() * (2.0 if float(x.mean()) > 0 else -1.0)


def hooked(m: Any, x: Any) -> Any:
    h = m.f(x)
    h.register_hook(lambda g: g * 0.1)
    return m.g(h).square().mean()


def penalised(m: Any, x: Any) -> Any:
    h = m.f(x)
    return h.mean() + torch.autograd.grad(h.sum(), m.f.weight, create_graph=True)[0].square().sum()


def checkpointed(reentrant: bool) -> Callable[..., Any]:
    kept = torch.utils.checkpoint.checkpoint
    return lambda m, x: m.g(kept(torch.tanh, m.f(x), use_reentrant=reentrant)).square().mean()


def statistics(m: Any, x: Any) -> Any:
    return (m.norm(m.f(x)) ** 3).mean()


Row = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], str, str]
ROWS: dict[str, Row] = {
    "label smoothing": (lambda: Module(classes), floats, "", ""),
    "`padding_idx` of embeddings": (
        lambda: Module(lambda m, x: m.f(m.table(x)).square().mean(), table=nn.Embedding(5, 4, padding_idx=-5)),
        words,
        "",
        "",
    ),
    "`scale_grad_by_freq` of embeddings": (
        lambda: Module(lambda m, x: m.f(m.table(x)).square().mean(), table=nn.Embedding(5, 4, scale_grad_by_freq=True)),
        words,
        "scale_grad_by_freq",
        "scale_grad_by_freq",
    ),
    "`max_norm` of embeddings": (
        lambda: Module(lambda m, x: m.f(m.table(x)).square().mean(), table=nn.Embedding(5, 4, max_norm=0.1)),
        words,
        "max_norm",
        "max_norm",
    ),
    "`detach()`": (
        lambda: Module(lambda m, x: (m.g(m.f(x)) - m.g(m.f(x).detach() * 2)).square().mean()),
        floats,
        "",
        "",
    ),
    "`torch.no_grad()`": (lambda: Module(no_gradients), floats, "", ""),
    "`backward()` of a `torch.autograd.Function`": (
        lambda: Module(lambda m, x: m.g(Sign.apply(m.f(x))).square().mean()), floats,
        r"Sign is a torch\.autograd\.Function with a backward\(\) of its own", r"Sign is a torch\.autograd\.Function"),
    "hooks on gradients": (lambda: Module(hooked), floats, r"a gradient \(register_hook\)", "hook on a gradient"),
    "`torch.autograd.grad` within `forward`": (lambda: Module(penalised), floats, *["computes gradients itself"] * 2),
    "`torch.utils.checkpoint`, `use_reentrant=True`": (
        lambda: Module(checkpointed(True)), floats, *["use_reentrant=False"] * 2),
    "`torch.utils.checkpoint`, `use_reentrant=False`": (lambda: Module(checkpointed(False)), floats, "", ""),
    "batch normalisation by the batch's statistics": (
        lambda: Module(statistics, norm=nn.BatchNorm1d(3)),
        floats,
        "",
        "",
    ),
    "batch normalisation that keeps no statistics": (
        lambda: Module(statistics, norm=nn.BatchNorm1d(3, track_running_stats=False)), floats, "", ""),
    "running variances, unbiased": (
        lambda: Module(statistics, norm=nn.BatchNorm1d(3, momentum=0.3)),
        lambda: floats(3),
        "",
        "",
    ),
    "buffers that `forward` writes in place": (
        lambda: Module(counts_in_place, seen=torch.tensor(0), mean=torch.zeros(4)),
        floats,
        "",
        "",
    ),
    "buffers that `forward` assigns anew": (lambda: Module(counts_anew, mean=torch.zeros(4)), floats, "", ""),
    "buffers that are written and not saved (`persistent=False`)": (
        lambda: Module(doubles, unsaved=torch.ones(1)),
        floats,
        "",
        "compiled in as a constant",
    ),
    "instance normalisation with running statistics": (
        lambda: Module(
            lambda m, x: m.norm(m.f(x)[None].mT).square().mean(), norm=nn.InstanceNorm1d(3, track_running_stats=True)
        ),
        floats,
        "computes something else|cannot be exported",
        "computes something else|cannot be exported",
    ),
    "Python values that `forward` computes from tensors": (
        lambda: Module(by_python),
        floats,
        "data-dependent",
        "decides by the value of a tensor",
    ),
    "probabilities of classes in a cross entropy": (lambda: Module(mixed_classes), floats, "", ""),
    "the look at variances in `gaussian_nll_loss`": (
        lambda: Module(lambda m, x: F.gaussian_nll_loss(m.f(x), x[:, :3], torch.exp(m.f(x)), full=True)
                       + F.gaussian_nll_loss(m.f(x), x[:, :3], torch.sigmoid(m.f(x)), eps=0.5, reduction="sum") / 9),
        floats,
        "",
        "",
    ),
    "inputs that nothing reads": (lambda: Module(lambda m, x, y: m.f(x).square().mean()), lambda: floats() * 2, "", ""),
    "dropout within `nn.LSTM`": (
        lambda: Module(lambda m, x: m.lstm(x[None])[0].square().mean(), lstm=nn.LSTM(4, 3, 2, dropout=1e-9)),
        floats,
        "",
        "dropout in training mode",
    ),
    "`nn.Bilinear`": (
        lambda: Module(lambda m, x: m.two(x, x).square().mean(), two=nn.Bilinear(4, 4, 2)),
        floats,
        "",
        "bilinear",
    ),
}
"""By what is lost: a module and inputs for it, and by which words the bridge refuses what either exporter made of it;
"": it trains as PyTorch does."""


def trains_as_pytorch_does(make: Callable[[], nn.Module], draw: Callable[[], tuple[Any, ...]], exporter: Any) -> None:
    net = make()
    twin = copy.deepcopy(net)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    model = training_model(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), exporter=exporter)
    for _ in range(3):
        inputs = draw()
        optimizer.zero_grad()
        loss = twin(*inputs)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(model(*inputs), loss.detach())
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, msg=name)


def test_label_smoothing_is_computed():
    make, draw, *_ = ROWS["label smoothing"]
    trains_as_pytorch_does(make, draw, "TorchScript")


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")     # PyTorch's own, where it runs without
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("row", ROWS)
def test_what_is_lost(row: str, exporter: str):
    make, draw, *refused = ROWS[row]
    words = refused[EXPORTERS.index(exporter)]
    if not words:
        return trains_as_pytorch_does(make, draw, exporter)
    net = make()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(UnsupportedError, match=words):
        training_model(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), exporter=exporter)(*draw())
    for name, tensor in net.state_dict().items():                         # as it was
        assert torch.equal(tensor, before[name])
    return None


def test_the_page_has_these_rows():
    text = (ROOT / "docs" / "pytorch.md").read_text()
    for row, (_, _, *refused) in ROWS.items():
        line = next((line for line in text.splitlines() if line.startswith(f"| {row} |")), "")
        assert line, row
        by_export, by_script = line.rstrip("| ").split(" | ")[-2:]
        assert [cell.startswith("refused") for cell in (by_export, by_script)] == [bool(words) for words in refused], (
            line
        )


@pytest.mark.exhaustive
def test_torchscript_writes_what_torch_export_writes_wrong():
    """A Range of numbers of two types, as `torch.arange(1.0, 4)` becomes one, is no operator."""
    net = Module(lambda m, x: m.f(x) * torch.arange(1.0, 4))
    x, = floats()
    with pytest.raises(TypeMismatchError, match="one element type"):
        inference_model(net, exporter="torch.export")(x)
    model = inference_model(net)
    with pytest.warns(TileflowWarning, match=r"is exported by TorchScript, for torch\.export: .* one element type"):
        torch.testing.assert_close(model(x), net(x).detach())
    assert model.exported_by == "TorchScript"


@pytest.mark.parametrize("decides", [
    lambda m, x: m.f(x) * 2 if m.f(x).sum() + 100 > 0 else m.f(x),
    lambda m, x: m.f(x) * 2 if m.f(x).sum().item() > -1e-3 else m.f(x) * 3,
    lambda m, x: m.f(x)[:, :int((x > -100).sum()) % 2 + 1],
], ids=["truth", "number", "size"])
def test_a_way_that_a_value_decides_is_refused_though_all_inputs_go_it(decides: Any) -> None:
    """The sentence has the line, and it is the value of an input or a parameter that decides."""
    net = Module(lambda m, x: decides(m, x).square().sum()).eval()
    with torch.no_grad():
        net.f.weight.zero_()
        net.f.bias.fill_(1.0)                               # inputs of either sign give the same values
    with pytest.raises(UnsupportedError, match=r"decides by the value of a tensor .*test_torch_export\.py:\d+"):
        inference_model(net, exporter="TorchScript")(*floats())


def test_arguments_may_be_checked_and_buffers_asked() -> None:
    """What only leads to an error, changes nothing, or follows from no input goes on as it is."""
    def checked(m: Any, x: Any) -> Any:
        if torch.isnan(x).any():
            raise ValueError("not a number")
        assert float(x.abs().max()) < 1e9
        h = m.f(x) * (2 if m.doubled else 1)
        return torch.clamp(h, -1e9, 1e9) if torch.isinf(h).any() else h

    net, (x,) = Module(checked, doubled=torch.tensor(True)).eval(), floats()
    torch.testing.assert_close(inference_model(net, exporter="TorchScript")(x), net(x).detach())


@pytest.mark.exhaustive
def test_torchscript_comes_where_torch_export_cannot_and_says_why():
    net = Module(lambda m, x: m.f(x) if x.sum().item() > 1e9 else m.f(x) * 2)
    x, = floats()
    model = inference_model(net)
    with pytest.warns(TileflowWarning, match=r"exported by TorchScript, for torch\.export: .*data-dependent"):
        found = model(x)
    torch.testing.assert_close(found, net(x))
    assert model.exported_by == "TorchScript"


@pytest.mark.exhaustive
def test_both_numbers_and_the_first_node_are_told(monkeypatch: pytest.MonkeyPatch):
    """As the exporter writes it: without what the bridge computes in its place."""
    from tileflow.torch import tracing
    monkeypatch.setattr(tracing, "INSTEAD_OF", {})
    net = Module(lambda m, x: F.cross_entropy(m.f(x), torch.arange(len(x)) % 3, label_smoothing=0.3))
    x, = floats()
    with torch.no_grad():
        plain, smooth = F.cross_entropy(net.f(x), torch.arange(6) % 3).item(), net(x).item()
    with pytest.raises(
        UnsupportedError, match=rf"{plain:.4f}.* PyTorch has {smooth:.4f}.*begins at the node cross_entropy_loss"
    ) as error:
        training_model(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))(x)
    assert "Nothing was compiled" in str(error.value)


@pytest.mark.exhaustive
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_module_is_put_back(exporter: Any):
    """What tracing moves: statistics, plain attributes, the mode, the state of random numbers."""
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop, self.calls = nn.BatchNorm1d(4), nn.Dropout(0.5), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.drop(self.norm(x))

    net = Counting()
    before, drawn = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    inference_model(net, exporter=exporter).compile(x)
    assert net.calls == 0
    assert net.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())


# ---- what forward() asks


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        with scope("annotation", Annotation("first", 0)):
            h = ask(self.a(x).relu(), "kept", True)
            with scope("available_memory_proportion", 0.3):
                h = h @ h.T @ h
        begin("annotation", Annotation("second", 1))
        h = serialized_matmul(self.b(h), self.c.weight.T, "output_channels", 3)
        return h, identity_loss(h.square(), "sum")


@pytest.mark.exhaustive
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_scopes_and_marks_reach_the_program(exporter: Any):
    net = Asking()
    x, = floats()
    model = training_model(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), exporter=exporter)
    model.compile(x)
    nodes = [n for n in model.compiled.program.micro.nodes if n.origin.role == "forward"]
    blocks = [n.origin.hints.annotation.block if n.origin.hints.annotation else None for n in nodes]
    assert [b for i, b in enumerate(blocks) if b and b != blocks[i - 1]] == ["first", "second"]
    inner = [n for n in nodes if n.origin.hints.available_memory_proportion == 0.3]
    assert len([n for n in inner if "MatMul" in n.op.name]) == 2
    assert {n.origin.hints.annotation.block for n in inner if n.origin.hints.annotation} == {"first"}
    assert any(n.origin.hints.kept for n in nodes)
    assert any(n.op.name.startswith("Serialized") for n in nodes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_blocks_are_stages_and_no_bit_depends_on_them(exporter: Any):
    nets = [Asking() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(32, 4)
    plain = tileflow.Options(gradient_accumulation=4)
    piped = tileflow.Options(gradient_accumulation=4, strategy="pipelined", stages=["first", "second"])
    for net, options in zip(nets, (plain, piped), strict=True):
        training_model(net, options, torch.optim.SGD(net.parameters(), lr=1e-3), exporter=exporter)(x)
    for name, tensor in nets[0].state_dict().items():
        assert torch.equal(tensor, nets[1].state_dict()[name])


def test_outside_of_an_export_nothing_is_asked():
    x = torch.ones(2, 3)
    assert exporting() is None
    with scope("available_memory_proportion", 0.3):
        assert ask(x, "kept", True) is x
    begin("annotation", Annotation("a"))
    assert identity_loss(x, "none") is x
    assert identity_loss(x).item() == 1
    assert identity_loss(x, "sum").item() == 6
    assert torch.equal(serialized_matmul(x, x.T, "none"), x @ x.T)
    with pytest.raises(OptionError, match="annotation"):
        scope("colour", 1)
    with pytest.raises(AssertionError, match="Unsupported reduction type!"):
        identity_loss(x, "max")


@pytest.mark.exhaustive
def test_which_loss_is_minimised():
    x, = floats()

    def trained(forward: Callable[..., Any]) -> Any:
        net = Module(forward)
        return net, training_model(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))(x)

    _, returned = trained(lambda m, x: (F.mse_loss(m.f(x), x[:, :3]), m.f(x))[1:])
    assert returned[0].shape == (6, 3)                                    # a loss need not be returned
    _, (first, second) = trained(lambda m, x: (identity_loss(m.f(x).square()), m.g(m.f(x)).mean()))
    assert first.shape == second.shape == ()
    net, _ = trained(lambda m, x: (identity_loss(m.f(x).square()), m.g(m.f(x)).mean().detach()))
    with pytest.raises(TileflowError, match="Multiple independent losses found in graph"):
        trained(lambda m, x: (F.mse_loss(m.f(x), x[:, :3]), F.l1_loss(m.g(m.f(x)), x[:, :2])))
    with pytest.raises(TileflowError, match="Couldn't find a loss in graph!"):
        trained(lambda m, x: m.f(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inference_model(net)(x)


def test_what_neither_exporter_takes_is_one_sentence_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return torch.linalg.eigvals(y[:3, :3]).real.sum() + y.sum()
    with pytest.raises(UnsupportedError, match=r"Odd cannot be exported: torch.export: .*; TorchScript: "):
        training_model(Odd())(*floats())
    said = capfd.readouterr()
    assert "graph(" not in said.out + said.err
