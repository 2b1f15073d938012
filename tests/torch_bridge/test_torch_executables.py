"""Executables of PyTorch's modules: called as the module was, without it; nested arguments and results, weights by
name, PopTorch's names."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peers import needs

import tileflow
from tileflow.system.errors import ModelError, OptionError, UnsupportedError

torch = needs("torch")
needs("onnxscript")

import tileflow.poptorch as poptorch  # noqa: E402
import tileflow.torch as bridge  # noqa: E402


class Net(torch.nn.Module):
    """Takes a tuple and a flag, and returns a table with a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.loss = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3), torch.nn.CrossEntropyLoss()

    def forward(self, pair: Any, labels: Any = None, scaled: bool = False) -> Any:
        y = self.last(torch.relu(self.first(pair[0] + pair[1])))
        y = 2 * y if scaled else y
        return y if labels is None else {"scores": y, "more": [self.loss(y, labels), 7]}


def data() -> tuple[Any, Any]:
    drawn = torch.Generator().manual_seed(0)
    return (torch.randn(8, 6, generator=drawn), torch.randn(8, 6, generator=drawn)), torch.arange(8) % 3


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[Any]]:
    """A folder with the executables of a pair that shares a module, the module after two more updates, and what these
    gave."""
    torch.manual_seed(0)
    folder, net = tmp_path_factory.mktemp("torch"), Net()
    (x, y), optimizer = data(), torch.optim.AdamW(net.parameters(), lr=1e-2)
    training = bridge.training_model(net, optimizer=optimizer)
    training(x, labels=y, scaled=True)
    training.save(folder / "training.tileflow")
    bridge.inference_model(net).compile_and_export(folder / "inference.tileflow", x, export_model=False)
    return folder, net, [training(x, labels=y, scaled=True) for _ in range(2)]


def test_it_is_called_as_the_module_was(exported: Any) -> None:
    folder, net, expected = exported
    x, y = data()
    loaded = bridge.load_executable(folder / "training.tileflow", threads=1)
    for wanted in expected:
        found = loaded(x, labels=y, scaled=True)
        assert found.keys() == wanted.keys()
        assert torch.equal(found["scores"], wanted["scores"])
        assert torch.equal(found["more"][0], wanted["more"][0])
        assert found["more"][1] == 7
    weights = loaded.state_dict()
    assert weights.keys() == net.state_dict().keys()
    assert all(torch.equal(weights[name], w) for name, w in net.state_dict().items())
    inference = bridge.inference_model(loaded.model)
    inference.load_executable(folder / "inference.tileflow")
    torch.testing.assert_close(inference(x), net(x).detach())
    loaded(x, labels=y, scaled=True)
    assert not torch.allclose(inference(x), net(x), atol=1e-4), "they share weights, which went on"
    net.load_state_dict(loaded.state_dict())
    torch.testing.assert_close(inference(x), net(x).detach())


def test_what_it_cannot_do_is_said(exported: Any, tmp_path: Path) -> None:
    folder, net, _ = exported
    x, y = data()
    loaded = bridge.load_executable(folder / "training.tileflow")
    for call in (lambda: loaded(x, labels=y), lambda: loaded(x)):
        with pytest.raises(UnsupportedError,
                           match=r"the network Net was loaded from an executable, .* no code to compile for others"):
            call()
    with pytest.raises(ModelError, match=r"of no module of PyTorch's, and tileflow\.load_executable loads it"):
        bridge.load_executable(tileflow.training_model(tileflow.nn.Linear(6, 3)).compile_and_export(
            tmp_path / "layers.tileflow", x[0].numpy(), y.numpy()))
    with pytest.raises(ModelError, match="was written with export_model=False"):
        bridge.load_executable(folder / "inference.tileflow")
    with pytest.raises(OptionError, match="is of a TrainingModel, and this is a InferenceModel"):
        bridge.inference_model(net).load_executable(folder / "training.tileflow")
    with pytest.raises(OptionError, match="Option seed is compiled into"):
        bridge.load_executable(folder / "training.tileflow", seed=4)

    class Odd(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2, slice(1, 2)
    odd = bridge.inference_model(Odd())
    odd.compile(x[0])
    with pytest.raises(UnsupportedError, match="takes or returns a slice, which an executable cannot hold"):
        odd.save(tmp_path / "odd.tileflow")


def test_poptorchs_names(tmp_path: Path) -> None:
    """A folder gets `model.poptorch`; options are edited under the reference's names, those that are compiled in are
    refused under its own."""
    torch.manual_seed(0)
    x, y = data()
    model = poptorch.trainingModel(Net(), poptorch.Options().outputMode(poptorch.OutputMode.All))
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        model.save(tmp_path)
    model.compileAndExport(tmp_path, x, labels=y)
    loaded = poptorch.load(tmp_path, edit_opts_fn=lambda opts: opts.outputMode(poptorch.OutputMode.Final))
    assert (loaded.options.output_mode, model.options.output_mode) == (poptorch.OutputMode.Final,
                                                                       poptorch.OutputMode.All)
    wanted, found = model(x, labels=y), loaded(x, labels=y)
    assert torch.equal(found["more"][0], wanted["more"][0].reshape(()))
    assert loaded.isCompiled()
    assert loaded.isAttachedToDevice()
    assert all(torch.equal(w, loaded.state_dict()[name]) for name, w in model.state_dict().items())
    loaded.save(tmp_path / "again.poptorch")
    assert torch.equal(poptorch.load(tmp_path / "again.poptorch")(x, labels=y)["scores"], loaded(x, labels=y)["scores"])
    with pytest.raises(poptorch.Error, match="Option gradient_accumulation is compiled into executable"):
        poptorch.load(tmp_path, lambda opts: opts.Training.gradientAccumulation(2))
    with pytest.raises(poptorch.Error, match="cannot be read: No such file"):
        poptorch.load(tmp_path / "none.poptorch")
