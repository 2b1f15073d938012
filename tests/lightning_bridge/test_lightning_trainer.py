"""Lightning's Trainer over tileflow: beside Lightning on PyTorch, over devices, iterations, accumulation and precisions."""
from __future__ import annotations

import re
from typing import Any

import poptorch_scripts as scripts
import pytest
from peers import needs

torch = needs("torch")
needs("onnxscript")
pl = needs("lightning.pytorch")
pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings("ignore")]                 # Lightning's own, and those of what it imports


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
        found[accelerator] = module.state_dict(), made.callback_metrics, made.global_step, made.optimizers[0].param_groups[0]["lr"]
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
    made = trainer(tmp_path, accelerator="ipu", devices=2, strategy=strategy(device_iterations=2), accumulate_grad_batches=2)
    made.fit(module)
    assert isinstance(made.train_dataloader, poptorch.DataLoader)
    assert made.train_dataloader.combinedBatchSize == 8 * 2 * 2 * 2
    assert made.global_step == 3 * 8
    predicted = made.predict(module)
    assert [len(p) for p in predicted] == [32] * 16
    torch.testing.assert_close(torch.cat(predicted), module.net(module.rows().tensors[0]).detach(), rtol=1e-4, atol=1e-5)
    assert made.test(module, verbose=False)[0]["val_right"] > 0.6


def test_precisions_and_reports(tmp_path):
    module = Module()
    made = trainer(tmp_path, accelerator="ipu", precision=16, strategy=strategy(autoreport_dir=str(tmp_path / "reports")))
    made.fit(module)
    assert (tmp_path / "reports" / "training" / "report.json").is_file()
    assert made.callback_metrics["val_right"] > 0.85
    halved = Module().half()
    made = trainer(tmp_path, accelerator="ipu", precision=16)
    made.fit(halved)
    assert {p.dtype for p in halved.parameters()} == {torch.float16}
    assert made.callback_metrics["val_right"] > 0.8


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
            return [torch.optim.SGD(self.net[0].parameters(), lr=0.1), torch.optim.SGD(self.net[2].parameters(), lr=0.1)]

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
    monkeypatch.setattr(pl, "Trainer", lambda **given: plain(**given, max_epochs=2, logger=False, enable_checkpointing=False,
                                                             enable_progress_bar=False, default_root_dir=tmp_path))
    for block in blocks:
        text = re.sub(r"(?m)^    ", "", block).replace("from lightning.pytorch.strategies import", "from tileflow.lightning import")
        names = scripts.run(f"import tileflow.lightning\n{text}", tmp_path, monkeypatch, before={"MyLightningModule": Module})
        assert names["trainer"].strategy.replicas == 8
        assert names["trainer"].callback_metrics["val_right"] > 0.5
    assert (tmp_path / "report_dir" / "training" / "report.json").is_file()
