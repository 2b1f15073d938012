"""Modules of PyTorch's called through the bridge: what a user holds afterwards."""
from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from peers import needs
from places import PATH

torch = needs("torch")
needs("onnxscript")

import tileflow  # noqa: E402
from tileflow.system.errors import DataError, OptionError, ShapeError, UnsupportedError  # noqa: E402
from tileflow.torch import inference_model, training_model  # noqa: E402

nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _weights_of_its_own() -> None:
    torch.manual_seed(0)


class Regression(nn.Module):
    """Keywords, a constant, a flag, None, a dict."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.net = inner or nn.Linear(4, 3)

    def forward(self, x: Any, y: Any, scale: float = 1.0, *, shifted: bool = False, none: Any = None) -> Any:
        z = self.net(x) * scale
        return {"z": z + 1 if shifted else z, "none": none, "loss": F.mse_loss(z, y)}


def pair(rows: int = 6, dtype: Any = None) -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(rows, 4, dtype=dtype), torch.randn(rows, 3, dtype=dtype)


def sgd(module: nn.Module, lr: float = 0.1) -> Any:
    return torch.optim.SGD(module.parameters(), lr=lr)


def step(module: nn.Module, x: Any, y: Any, **more: Any) -> Any:
    """One of PyTorch's own."""
    optimizer = sgd(module)
    optimizer.zero_grad()
    returned = module(x, y, **more)
    returned["loss"].backward()
    optimizer.step()
    return returned


def same(one: nn.Module, other: nn.Module, **how: Any) -> None:
    for name, a in one.state_dict().items():
        torch.testing.assert_close(a, other.state_dict()[name], msg=name, **how)


def test_weights_are_one_memory_for_the_module_the_trained_model_and_the_one_that_runs():
    """Edits of a user are seen, and files have what was trained; nothing is copied."""
    net = Regression()
    twin = copy.deepcopy(net)
    x, y = pair()
    model = training_model(net, optimizer=sgd(net))
    runs = inference_model(net.net)
    before = net.net.weight
    returned, expected = model(x, y), step(twin, x, y)
    torch.testing.assert_close(returned["z"], expected["z"])
    same(net, twin)
    assert net.net.weight is before
    torch.testing.assert_close(runs(x), twin.net(x))
    memory = net.net.weight.data_ptr()
    with torch.no_grad():                                                 # in place
        net.net.weight.mul_(2)
        twin.net.weight.mul_(2)
    torch.testing.assert_close(runs(x), twin.net(x))
    net.net.bias.data, twin.net.bias.data = torch.ones(3), torch.ones(3)  # other memory
    torch.testing.assert_close(runs(x), twin.net(x))
    net.net.weight = nn.Parameter(torch.full((3, 4), 0.5))                # another tensor
    twin.net.weight = nn.Parameter(torch.full((3, 4), 0.5))
    torch.testing.assert_close(runs(x), twin.net(x))
    model(x, y)
    step(twin, x, y)
    same(net, twin)
    net.load_state_dict(twin.state_dict())
    assert net.net.weight.data_ptr() == memory
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert torch.equal(torch.load(file)["net.weight"], net.net.weight)
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    model(x, y)
    average.update_parameters(net)
    assert torch.allclose(average.module.net.weight, (twin.net.weight + net.net.weight) / 2)


@pytest.mark.exhaustive
def test_edits_through_data_are_taken_over_when_asked():
    net = nn.Linear(4, 3)
    x, _ = pair()
    runs = inference_model(net)
    runs(x)
    net.weight.data.mul_(3)                                               # which no version counts
    runs.copy_weights_to_device()
    torch.testing.assert_close(runs(x), net(x))


@pytest.mark.exhaustive
@pytest.mark.parametrize("exporter", ["torch.export", "TorchScript"])
def test_arguments_and_results_are_the_modules(exporter: Any):
    net = Regression()
    x, y = pair()
    model = inference_model(net, exporter=exporter)
    for call in ({"scale": 3.0}, {"scale": 3.0, "shifted": True}, {"none": "kept"}):
        found, expected = model(x, y=y, **call), net(x, y, **call)
        assert list(found) == ["z", "none", "loss"]
        assert found["none"] == expected["none"]
        torch.testing.assert_close(found["z"], expected["z"])
        assert not found["z"].requires_grad
    torch.testing.assert_close(model(y=y, x=x)["loss"], net(x, y)["loss"])
    torch.testing.assert_close(model(x.numpy(), y.numpy())["z"], net(x, y)["z"])
    torch.testing.assert_close(model(x.T.contiguous().T, y)["z"], net(x, y)["z"])
    with pytest.raises(ShapeError, match=r"destroy\(\)"):
        model(x[:2], y[:2])
    model.destroy()
    assert not model.is_compiled()
    torch.testing.assert_close(model(x[:2], y[:2])["z"], net(x[:2], y[:2])["z"])
    assert model.exported_by == exporter


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_call_is_many_micro_batches(threads: int):
    net = Regression(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
    twin = copy.deepcopy(net)
    x, y = pair(12)
    options = tileflow.Options(gradient_accumulation=3, device_iterations=2, output_mode="all", threads=threads)
    returned = training_model(net, options, sgd(net))(x, y)
    assert returned["z"].shape == (12, 3)
    assert returned["loss"].shape == (6,)
    optimizer = sgd(twin)
    for update in range(2):
        optimizer.zero_grad()
        for i in range(3):
            rows = slice((update * 3 + i) * 2, (update * 3 + i + 1) * 2)
            (twin(x[rows], y[rows])["loss"] / 3).backward()
        optimizer.step()
    same(net, twin)


@pytest.mark.exhaustive
def test_the_mode_is_the_modules():
    """Each is compiled once: modules go to and fro."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    x, _ = pair(40)
    model = inference_model(net)
    net.eval()
    torch.testing.assert_close(model(x + 9), net(x + 9))
    first = model.compiled
    net.train()
    drawn = model(x + 9)
    assert not torch.allclose(drawn, net(x + 9))
    net.eval()
    torch.testing.assert_close(model(x + 9), net(x + 9))
    assert model.compiled is first
    net.train()
    net[2].eval()                                                         # as people freeze normalisations
    twin = copy.deepcopy(net)
    training_model(_Squared(net), optimizer=sgd(net))(x)
    assert torch.equal(net[2].running_mean, twin[2].running_mean)


class _Squared(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return (self.net(x) ** 2).mean()


@pytest.mark.exhaustive
def test_ties_stay_ties_and_what_is_frozen_stays():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.b.weight = self.a.weight
            self.c.bias.requires_grad_(False)

        def forward(self, x: Any, y: Any) -> Any:
            return {"loss": F.mse_loss(self.c(self.b(self.a(x))), y)}

    net = Tied()
    twin = copy.deepcopy(net)
    x, y = pair()
    model = training_model(net, optimizer=sgd(net))
    for _ in range(3):
        model(x, y)
        step(twin, x, y)
    same(net, twin)
    assert net.a.weight is net.b.weight
    net.c.bias.requires_grad_(True)                                       # what is compiled in is compiled anew
    twin.c.bias.requires_grad_(True)
    model(x, y)
    step(twin, x, y)
    same(net, twin)


@pytest.mark.exhaustive
def test_only_what_the_optimizer_has_is_trained():
    net = Regression(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))
    before = copy.deepcopy(net)
    x, y = pair()
    training_model(net, optimizer=sgd(net.net[1]))(x, y)
    same(net.net[0], before.net[0], rtol=0, atol=0)
    assert not torch.equal(net.net[1].weight, before.net[1].weight)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_the_type_is_the_modules(dtype: str):
    kind = getattr(torch, dtype)
    net = Regression().to(kind)
    twin = copy.deepcopy(net)
    x, y = pair(dtype=kind)
    returned, expected = training_model(net, optimizer=sgd(net))(x, y), step(twin, x, y)
    assert returned["z"].dtype == net.net.weight.dtype == kind
    near = {"rtol": 1e-2, "atol": 1e-2} if net.net.weight.element_size() == 2 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(returned["z"], expected["z"], **near)
    same(net, twin, **near)


@pytest.mark.exhaustive
def test_where_types_differ_weights_are_copied_when_they_are_looked_at():
    net = Regression()
    x, y = pair()
    before = net.net.weight.detach().clone()
    model = training_model(net, tileflow.Options(precision="16-true"), sgd(net))
    model(x, y)
    assert torch.equal(net.net.weight, before)                            # float32, and the trained ones have 16 bits
    assert not torch.equal(net.state_dict()["net.weight"], before)
    trained = net.net.weight.detach().clone()
    assert torch.equal(trained, trained.half().float())
    model(x, y)
    model.copy_weights_to_host()
    assert not torch.equal(net.net.weight, trained)
    assert torch.equal(pickle.loads(pickle.dumps(net)).state_dict()["net.weight"], net.net.weight)


@pytest.mark.exhaustive
def test_what_an_optimizer_remembers_goes_on():
    x, y = pair()
    nets = [Regression() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    one, other = (training_model(net, optimizer=torch.optim.Adam(net.parameters(), lr=0.1)) for net in nets)
    for _ in range(4):
        one(x, y)
    for _ in range(2):
        other(x, y)
    again = Regression()
    again.load_state_dict(nets[1].state_dict())
    third = training_model(again, optimizer=torch.optim.Adam(again.parameters(), lr=0.1))
    third.load_optimizer_state_dict(other.optimizer_state_dict())
    for _ in range(2):
        third(x, y)
    same(again, nets[0], rtol=0, atol=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_copies_go_on_by_themselves(copied: Any):
    net = Regression()
    x, y = pair()
    model = training_model(net, tileflow.Options(threads=1), torch.optim.Adam(net.parameters(), lr=0.1))
    model(x, y)
    twin = copied(model)
    assert twin.options.threads == 1
    assert not twin.is_compiled()
    found = [twin(x, y)["loss"] for _ in range(2)]
    assert [model(x, y)["loss"] for _ in range(2)] == found
    same(net, twin.model, rtol=0, atol=0)
    assert net.net.weight.data_ptr() != twin.model.net.weight.data_ptr()
    assert torch.equal(copied(net).net.weight, net.net.weight)


@pytest.mark.exhaustive
def test_modules_that_were_compiled_apart_have_no_common_memory():
    parts = nn.Linear(4, 4), nn.Linear(4, 3)
    x, _ = pair()
    for part in parts:
        inference_model(part)(x)
    with pytest.raises(UnsupportedError, match="model of the whole first"):
        inference_model(nn.Sequential(*parts))(x)
    assert inference_model(nn.Sequential(*copy.deepcopy(parts)))(x).shape == (6, 3)


def test_what_is_no_module_is_refused():
    with pytest.raises(OptionError, match=r"torch\.nn\.Module"):
        training_model(tileflow.nn.Linear(4, 3))                          # type: ignore[arg-type]
    with pytest.raises(OptionError, match="Options"):
        inference_model(nn.Linear(4, 3), {"threads": 1})                  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"compiled by torch\.jit.*the module that it was made of"):
        inference_model(torch.jit.script(nn.Linear(4, 3)))


@dataclass
class Rows:
    x: Any
    y: Any


def test_what_holds_no_tensor_that_is_seen_is_refused():
    model = inference_model(Regression())
    with pytest.raises(DataError, match="The argument x is a Rows, whose tensors are not seen"):
        model(Rows(*pair()), None)
    with pytest.raises(DataError, match="A call needs at least one tensor"):
        model(1, 2)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("i", torch.zeros(1))

    def forward(self):
        self.i += 1
        return self.i


def test_a_module_without_arguments_is_called_without_any():
    model = inference_model(Counter())
    assert [float(model()[0]) for _ in range(3)] == [1, 2, 3]


ALONE = """
import sys, numpy as np, tileflow
net = tileflow.nn.Sequential(tileflow.nn.Linear(4, 3))
model = tileflow.training_model(net, optimizer=tileflow.optim.SGD(lr=0.1))
model(np.ones((2, 4), np.float32), np.zeros(2, np.int64))
assert "torch" not in sys.modules, "the engine imports torch"
sys.modules["torch"] = None
try:
    tileflow.torch
except ImportError as error:
    print(error)
"""


def test_the_engine_never_imports_torch_and_the_bridge_says_how_to_get_it(tmp_path: Any):
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env=os.environ | {"PYTHONPATH": PATH.split(os.pathsep)[0]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'tileflow-engine[torch]'" in done.stdout


class Counting(nn.Module):
    """Counts its calls in a Python number, on which results depend or not."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.f, self.calls, self.reads = nn.Linear(4, 3), 0, reads

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.mse_loss(self.f(x) * (1 + 0.1 * self.calls if self.reads else 1), y)


@pytest.mark.parametrize("reads", [True, False])
def test_numbers_that_forward_changes_are_refused_where_results_depend_on_them(reads: bool):
    """An export has them as they were at the first call, at every call."""
    net = Counting(reads)
    model = tileflow.torch.training_model(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    x, y = torch.randn(8, 4), torch.randn(8, 3)
    if reads:
        with pytest.raises(UnsupportedError, match=r"forward\(\) changes calls, no tensors, .* keep them in buffers"):
            model(x, y)
        assert net.calls == 0
    else:
        first = model(x, y)
        assert model(x, y) < first


class Scoped(nn.Module):
    """Products in bfloat16 within PyTorch's own scope, the rest as it is; `whole`: the last one, too."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.first, self.last, self.whole = nn.Linear(4, 8), nn.Linear(8, 3), whole

    def forward(self, x: Any, y: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.relu(self.first(x))
            z = self.last(h) if self.whole else h
        z = z.float() if self.whole else self.last(z.float())
        return {"z": z, "loss": F.mse_loss(z, y)}


@pytest.mark.parametrize(("whole", "exporter"), [(False, "torch.export"), (True, "TorchScript")])
def test_scopes_of_autocast_are_pytorchs(whole: bool, exporter: str):
    net = Scoped(whole)
    other, (x, y) = copy.deepcopy(net), pair()
    model = training_model(net, optimizer=sgd(net), exporter=exporter)
    for _ in range(4):
        ours, theirs = model(x, y), step(other, x, y)
        torch.testing.assert_close(ours["z"], theirs["z"].detach(), rtol=2 ** -7, atol=2 ** -9)  # bfloat16 has 8 bits
        torch.testing.assert_close(ours["loss"], theirs["loss"].detach(), rtol=1e-4, atol=1e-6)
    types = [node.op.to for node in model.compiled.program.micro.nodes if type(node.op).__name__ == "Cast"]
    assert "bfloat16" in types                              # the scope was exported, and not left out
    for name, weight in net.named_parameters():
        torch.testing.assert_close(weight, other.get_parameter(name), rtol=2 ** -7, atol=1e-4)


def test_an_exporter_that_there_is_not_is_refused():
    with pytest.raises(OptionError, match=r"^exporter is 'torch.export' or 'TorchScript', not 'torchscript'\.$"):
        inference_model(nn.Linear(4, 3), exporter="torchscript")
    assert inference_model(nn.Linear(4, 3), exporter="TorchScript")(torch.ones(2, 4)).shape == (2, 3)
