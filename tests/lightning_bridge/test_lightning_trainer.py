"""Lightning's Trainer over tileflow: beside Lightning on PyTorch, over devices, iterations, accumulation and
precisions."""
from __future__ import annotations

import re
from typing import Any

import poptorch_scripts as scripts
import pytest
from peers import needs

torch = needs("torch")
needs("onnxscript")
pl = needs("lightning.pytorch")
# Lightning's own, and those of what it imports
pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings("ignore")]


class Module(pl.LightningModule):
    """Learns which signs two numbers have. Its batches come from itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        self.seen: list[dict[str, float]] = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        loss = torch.nn.functional.cross_entropy(scores, y)
        self.log("loss", loss)
        self.log_dict({"right": (scores.argmax(1) == y).float().mean()}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        scores = self.net(batch[0])
        self.log("val_right", (scores.argmax(1) == batch[1]).float().mean())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    def rows(self):
        draw = torch.Generator().manual_seed(1)
        x = torch.randn(512, 4, generator=draw)
        return torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.rows(), batch_size=8)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


def trainer(tmp_path, **given) -> Any:
    return pl.Trainer(**{"max_epochs": 3, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
                         "enable_model_summary": False, "default_root_dir": tmp_path, **given})


def strategy(**given) -> Any:
    from tileflow.lightning import IPUStrategy
    return IPUStrategy(**given)


def test_it_follows_lightning_on_pytorch(tmp_path):
    """Weights, logs, schedules, steps: as with `accelerator="cpu"`."""
    import tileflow.lightning  # noqa: F401
    found = {}
    for accelerator in ("cpu", "ipu"):
        module = Module()
        made = trainer(tmp_path, accelerator=accelerator)
        made.fit(module)
        rate = made.optimizers[0].param_groups[0]["lr"]
        found[accelerator] = module.state_dict(), made.callback_metrics, made.global_step, rate
    (ours, logged, steps, rate), (native, wanted, its, its_rate) = found["ipu"], found["cpu"]
    assert (steps, rate) == (its, its_rate)
    assert logged.keys() == wanted.keys() == {"loss", "right", "val_right"}
    for name in native:
        torch.testing.assert_close(ours[name], native[name], rtol=1e-3, atol=1e-4)
    for name in logged:
        assert abs(logged[name] - wanted[name]) < 1e-2, name


def test_devices_iterations_and_accumulation(tmp_path):
    """Loaders give the rows of whole calls; two replicas of half the rows are one batch."""
    from tileflow import poptorch
    module = Module()
    made = trainer(tmp_path, accelerator="ipu", devices=2, strategy=strategy(device_iterations=2),
                   accumulate_grad_batches=2)
    made.fit(module)
    assert isinstance(made.train_dataloader, poptorch.DataLoader)
    assert made.train_dataloader.combinedBatchSize == 8 * 2 * 2 * 2
    assert made.global_step == 3 * 8
    predicted = made.predict(module)
    assert [len(p) for p in predicted] == [32] * 16
    torch.testing.assert_close(torch.cat(predicted), module.net(module.rows().tensors[0]).detach(), rtol=1e-4,
                               atol=1e-5)
    assert made.test(module, verbose=False)[0]["val_right"] > 0.6


def test_precisions_and_reports(tmp_path):
    module = Module()
    made = trainer(tmp_path, accelerator="ipu", precision=16,
                   strategy=strategy(autoreport_dir=str(tmp_path / "reports")))
    made.fit(module)
    assert (tmp_path / "reports" / "training" / "report.json").is_file()
    assert made.callback_metrics["val_right"] > 0.85
    halved = Module().half()
    made = trainer(tmp_path, accelerator="ipu", precision=16)
    made.fit(halved)
    assert {p.dtype for p in halved.parameters()} == {torch.float16}
    assert made.callback_metrics["val_right"] > 0.8


@pytest.mark.parametrize(("precision", "near"), [("bf16-mixed", 3e-2), ("64-true", 1e-9), ("bf16-true", 5e-2)])
def test_precisions_are_lightnings(tmp_path, precision, near):
    """Beside Lightning on PyTorch; a Trainer's second run has the same."""
    import tileflow.lightning  # noqa: F401
    found = []
    for accelerator in ("cpu", "ipu"):
        module = Module()
        made = trainer(tmp_path, accelerator=accelerator, precision=precision, max_epochs=1, limit_train_batches=4,
                       limit_val_batches=1)
        made.fit(module)
        found.append((module.state_dict(), made.predict(module)[0]))
    (ours, predicted), (native, wanted) = found[1], found[0]
    for name, weight in native.items():
        assert ours[name].dtype == weight.dtype
        torch.testing.assert_close(ours[name], weight, rtol=near, atol=near)
    torch.testing.assert_close(predicted.to(wanted.dtype), wanted, rtol=near, atol=near)


def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    """With what the optimizer remembers: three epochs are one, and two after it."""
    from lightning.pytorch.callbacks import ModelCheckpoint
    whole, first, rest = Module(), Module(), Module()
    trainer(tmp_path, accelerator="ipu", limit_train_batches=8).fit(whole)
    trainer(tmp_path, accelerator="ipu", limit_train_batches=8, max_epochs=1, enable_checkpointing=True,
            callbacks=[ModelCheckpoint(tmp_path, save_last=True)]).fit(first)
    assert len(torch.load(tmp_path / "last.ckpt", weights_only=False)["optimizer_states"][0]["state"]) == 4
    trainer(tmp_path, accelerator="ipu", limit_train_batches=8).fit(rest, ckpt_path=tmp_path / "last.ckpt")
    torch.testing.assert_close(rest.state_dict(), whole.state_dict(), rtol=1e-6, atol=1e-7)


def test_loaders_and_arguments(tmp_path):
    """Two loaders, of which one has rows left over; a step without the number of its batch."""
    import tileflow.lightning  # noqa: F401

    class Several(Module):
        def training_step(self, batch):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.log("mean", self.net(batch[0]).mean() + dataloader_idx)

        def val_dataloader(self):
            rows = torch.utils.data.Subset(self.rows(), range(20))
            return [self.train_dataloader(), torch.utils.data.DataLoader(rows, batch_size=8)]

        def predict_dataloader(self):
            return self.val_dataloader()[1]
    found = []
    for accelerator in ("cpu", "ipu"):
        module = Several()
        made = trainer(tmp_path, accelerator=accelerator, max_epochs=1)
        made.fit(module)
        found.append({name: float(value) for name, value in made.callback_metrics.items()})
        assert [len(p) for p in made.predict(module)] == [8, 8, 4]
    assert found[0].keys() == found[1].keys() == {"mean/dataloader_idx_0", "mean/dataloader_idx_1"}
    for name, value in found[0].items():
        assert abs(value - found[1][name]) < 1e-3
    from tileflow.system.errors import TileflowWarning
    made = trainer(tmp_path, accelerator="ipu", strategy=strategy(device_iterations=2))
    with pytest.warns(TileflowWarning, match="1 of 3 batches are left out"):
        assert [len(p) for p in made.predict(module)] == [16]


def test_what_is_about_gradients_is_refused(tmp_path):
    from tileflow.system.errors import OptionError, TileflowWarning

    class Manual(Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    class Backward(Module):
        def backward(self, loss):
            loss.backward()

    class Looks(Module):
        def on_before_optimizer_step(self, optimizer):
            raise AssertionError
    with pytest.raises(OptionError, match="do not support manual optimization"):
        trainer(tmp_path, accelerator="ipu").fit(Manual())
    for given, module in (({"gradient_clip_val": 1.0}, Module()), ({}, Backward())):
        with pytest.raises(OptionError, match="do not support clipping gradients, or a backward"):
            trainer(tmp_path, accelerator="ipu", **given).fit(module)
    with pytest.warns(TileflowWarning, match="on_before_optimizer_step of Looks is not called"):
        trainer(tmp_path, accelerator="ipu", fast_dev_run=True).fit(Looks())

    from tileflow import poptorch

    class Clipped(Module):
        def configure_optimizers(self):
            return poptorch.optim.AdamW(self.parameters(), lr=0.02, max_grad_norm=1.0)
    trainer(tmp_path, accelerator="ipu", fast_dev_run=True).fit(Clipped())


def test_options_and_old_names(tmp_path):
    from tileflow import poptorch
    from tileflow.lightning import IPUPlugin, IPUStrategy
    from tileflow.system.errors import OptionError
    assert IPUPlugin is IPUStrategy
    options = poptorch.Options().deviceIterations(4)
    made = trainer(tmp_path, accelerator="ipu", strategy=strategy(inference_opts=options))
    assert len(made.predict(Module())) == 16
    with pytest.raises(TypeError, match="ipus"):
        pl.Trainer(ipus=4)
    with pytest.raises(OptionError, match=r"are poptorch\.Options, not int"):
        strategy(training_opts=3)
    with pytest.raises(OptionError, match="devices is the number of replicas"):
        trainer(tmp_path, accelerator="ipu", devices="all")

    class Two(Module):
        def configure_optimizers(self):
            return [torch.optim.SGD(self.net[0].parameters(), lr=0.1),
                    torch.optim.SGD(self.net[2].parameters(), lr=0.1)]

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
    with pytest.raises(OptionError, match="IPUs currently only support one optimizer"):
        trainer(tmp_path, accelerator="ipu").fit(Two())


def test_scripts_of_the_documents(tmp_path, monkeypatch):
    """The three of Lightning's page on IPUs, the import of IPUStrategy replaced; eight devices are eight replicas."""
    where = scripts.folder()
    found = [] if where is None else sorted(where.glob("001_*.txt"))
    if not found:
        pytest.skip(scripts.MISSING)
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", found[0].read_text(encoding="utf-8"))
    assert len(blocks) == 3
    plain = pl.Trainer
    monkeypatch.setattr(pl, "Trainer",
                        lambda **given: plain(**given, max_epochs=2, logger=False, enable_checkpointing=False,
                                                             enable_progress_bar=False, default_root_dir=tmp_path))
    for block in blocks:
        text = re.sub(r"(?m)^    ", "", block).replace("from lightning.pytorch.strategies import",
                                                       "from tileflow.lightning import")
        names = scripts.run(f"import tileflow.lightning\n{text}", tmp_path, monkeypatch,
                            before={"MyLightningModule": Module})
        assert names["trainer"].strategy.replicas == 8
        assert names["trainer"].callback_metrics["val_right"] > 0.5
    assert (tmp_path / "report_dir" / "training" / "report.json").is_file()


@pytest.mark.parametrize("returned", [None, {"scores": None}])
def test_a_training_step_without_a_loss_is_refused_in_a_sentence(tmp_path, returned):
    class Without(Module):
        def training_step(self, batch, batch_idx):
            self.net(batch[0])
            return returned
    wanted = r"training_step\(\) must return its loss, a tensor or a dict with one under 'loss', not NoneType"
    with pytest.raises(Exception, match=wanted):
        trainer(tmp_path, accelerator="ipu").fit(Without())

    class Within(Module):
        def training_step(self, batch, batch_idx):
            return {"loss": torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])}
    trainer(tmp_path, accelerator="ipu", fast_dev_run=True).fit(Within())
