"""Schedules in whole runs: by option, by flag, by hand; their rates in history, metrics and progress; resumed runs; no recompilation."""
from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import needs
from test_resume import Said, rows, stop_at

import tileflow
from tileflow import cli, nn, optim
from tileflow.callbacks import LambdaCallback
from tileflow.kernels.machine import cache
from tileflow.optim import schedules as s
from tileflow.optim.schedules import Run, value_at
from tileflow.runtime.callbacks.progress import ProgressBar
from tileflow.runtime.checkpoint import load_tensors, save_tensors
from tileflow.runtime.run_folder import CHECKPOINT
from tileflow.system.errors import CheckpointError, Interrupted, OptionError

EPOCH = 12
"""Updates of an epoch: 96 rows in updates of 8."""


class Net(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(2)
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.two(self.one(x).relu())


def run(folder: Path, **options: Any) -> Any:
    """A small run of 96 rows, 3 updates per call."""
    own = {} if options.get("resume") else dict(micro_batch_size=4, gradient_accumulation=2, device_iterations=3, epochs=4)
    return tileflow.train(Net(), data=rows(), out=str(folder), **own | options)


def rates(schedule: Any, epochs: int = 4) -> np.ndarray:
    return np.array([value_at(schedule, t, Run(epochs * EPOCH, EPOCH)) for t in range(epochs * EPOCH)])


@pytest.mark.parametrize(("options", "schedule"), [
    (dict(), 0.02),
    (dict(schedule="cosine", warmup=5), s.warmup(s.cosine(0.02), 5)),
    (dict(schedule="cosine", schedule_end=1e-3, warmup=0.25), s.warmup(s.cosine(0.02, 36, 1e-3), 12)),
    (dict(schedule="cosine", schedule_epochs=2), s.cosine_restarts(0.02, 2 * EPOCH)),
    (dict(schedule="linear", schedule_end=0.01), s.linear(0.02, 48, end=0.5)),
    (dict(schedule="polynomial", schedule_power=2), s.polynomial(0.02, 48, 2)),
    (dict(schedule="one_cycle"), s.one_cycle(0.02, 48)),
    (dict(schedule="step", schedule_epochs=2, schedule_gamma=0.5), s.step(0.02, 24, 0.5)),
    (dict(schedule="step", schedule_epochs=(1, 3)), s.multi_step(0.02, [12, 36])),
    (dict(schedule="exponential", schedule_gamma=0.5), s.step(0.02, 12, 0.5)),
    (dict(warmup=4), s.warmup(0.02, 4)),
], ids=str)
def test_options_describe_schedules(options: dict[str, Any], schedule: Any) -> None:
    optimizer = optim.from_options(tileflow.Options(learning_rate=0.02, **options))
    np.testing.assert_allclose(rates(optimizer.lr), rates(schedule), rtol=1e-12, atol=1e-18)


def test_one_cycle_drives_the_momentum_as_well() -> None:
    torch = needs("torch")

    def peer(make: Any) -> list[tuple[float, Any]]:
        optimizer = make([torch.nn.Parameter(torch.zeros(1))])
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=48)
        found = []
        for _ in range(48):
            group = optimizer.param_groups[0]
            found.append((group["lr"], group["betas"][0] if "betas" in group else group["momentum"]))
            optimizer.step()
            scheduler.step()
        return found
    for options, make in ((dict(), torch.optim.AdamW), (dict(optimizer="sgd", momentum=0.9), lambda p: torch.optim.SGD(p, lr=1, momentum=0.9))):
        optimizer = optim.from_options(tileflow.Options(learning_rate=0.02, schedule="one_cycle", **options))
        values = [optimizer.values(t, Run(48, EPOCH)) for t in range(48)]
        np.testing.assert_allclose([(v["lr"], v.get("beta1", v.get("momentum"))) for v in values], peer(make), rtol=1e-12)
    assert "momentum" not in optim.from_options(tileflow.Options(optimizer="sgd", schedule="one_cycle")).variable
    assert optim.from_options(tileflow.Options(betas=(0.8, 0.9), schedule="one_cycle")).betas == (0.8, 0.9)


def test_the_rate_of_every_update_is_told(tmp_path: Path) -> None:
    wanted = rates(s.warmup(s.cosine(0.02), 5))
    out = io.StringIO()
    result = run(tmp_path, learning_rate=0.02, schedule="cosine", warmup=5,
                 callbacks=ProgressBar(True, out, io.StringIO()))
    np.testing.assert_array_equal(result.learning_rates, wanted)
    np.testing.assert_array_equal(result.history["learning_rate"], wanted[EPOCH - 1::EPOCH])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert [rate for rate, times in metrics["learning_rates"] for _ in range(times)] == wanted.tolist()
    assert [e["learning_rate"] for e in metrics["epochs"]] == wanted[EPOCH - 1::EPOCH].tolist()
    assert f"lr {wanted[EPOCH - 1]:.3g}" in out.getvalue().splitlines()[0]
    bar = ProgressBar(True, io.StringIO(), io.StringIO())
    shown = []
    run(tmp_path / "shown", epochs=1, learning_rate=0.02, schedule="step", schedule_epochs=(1,),
        callbacks=[bar, LambdaCallback(on_train_batch_end=lambda batch, logs: shown.append(str(bar._bar)))])
    assert shown
    assert not any("lr " in text for text in shown)
    run(tmp_path / "shown", epochs=2, resume=True, learning_rate=0.02, schedule="step", schedule_epochs=(1,),
        callbacks=[bar, LambdaCallback(on_train_batch_end=lambda batch, logs: shown.append(str(bar._bar)))])
    assert "lr 0.002" in shown[-1]
    by_hand = tileflow.train(Net(), data=rows(), out=str(tmp_path / "hand"), micro_batch_size=4, gradient_accumulation=2, device_iterations=3,
                             epochs=4, optimizer=optim.AdamW(lr=s.warmup(s.cosine(0.02), 5)))
    assert all(np.array_equal(result.weights[n], w) for n, w in by_hand.weights.items())
    plain = run(tmp_path / "plain", epochs=1, callbacks=ProgressBar(True, out := io.StringIO(), io.StringIO()))
    assert "lr " not in out.getvalue()
    assert json.loads((tmp_path / "plain" / "metrics.json").read_text())["learning_rates"] == [[1e-3, EPOCH]]
    assert plain.learning_rates.tolist() == [1e-3] * EPOCH


def test_rows_at_the_end_of_an_epoch_count(tmp_path: Path) -> None:
    """96 rows are 3 calls of 30 and 6 rows more, which are an update of 5 and one of 1."""
    result = run(tmp_path, micro_batch_size=5, drop_last=False, schedule="linear", learning_rate=0.02, epochs=2)
    updates = len(result.learning_rates)
    assert updates == 2 * (3 * 3 + 2)
    np.testing.assert_allclose(result.learning_rates, 0.02 * (1 - np.arange(updates) / updates))


def test_no_schedule_compiles_anything_twice(tmp_path: Path) -> None:
    run(tmp_path / "plain", epochs=1)
    compiled: list[str] = []
    cache.on_compile.append(compiled.append)
    try:
        for name in ("cosine", "linear", "polynomial", "plateau"):
            run(tmp_path / name, epochs=1, schedule=name, learning_rate=0.3, warmup=2)
    finally:
        cache.on_compile.remove(compiled.append)
    assert compiled == []


def test_a_decay_may_be_scheduled_as_well(tmp_path: Path) -> None:
    """Against rates and decays that are set by hand before each update."""
    decays = rates(s.linear(0.5, 12), 1)
    result = tileflow.train(Net(), data=rows(), out=str(tmp_path), micro_batch_size=8, epochs=1, shuffle=False,
                            optimizer=optim.AdamW(lr=s.cosine(0.1), weight_decay=s.linear(0.5)))
    net, optimizer = Net(), optim.AdamW(weight_decay=0.1)
    model = tileflow.training_model(net, optimizer=optimizer, micro_batch_size=8)
    x, y = rows()
    for i in range(EPOCH):
        optimizer.lr, optimizer.weight_decay = rates(s.cosine(0.1, 12), 1)[i], decays[i]
        model(x[8 * i:8 * i + 8], y[8 * i:8 * i + 8])
    assert all(np.array_equal(result.weights[n], w) for n, w in net.state_dict().items())


# ---- plateaus

def test_a_plateau_looks_at_the_loss_of_the_test_data(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(schedule="plateau", schedule_epochs=0, schedule_gamma=0.5, learning_rate=0.3, epochs=8, validation_split=0.25)
    result = run(tmp_path, micro_batch_size=3, **options)
    peer = s.plateau(0.3, 0.5, 0)
    for record in result.epochs:
        assert record.learning_rate == peer.rate
        peer.observe(record.test_loss)
    assert peer.rate < 0.3


def test_a_plateau_that_looks_at_what_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"looks at the metric 'f1', which this run does not measure; it measures loss, accuracy\."):
        tileflow.train(Net(), data=rows(), out=str(tmp_path), micro_batch_size=8, optimizer=optim.AdamW(lr=s.plateau(0.1, metric="f1")))


# ---- resumed runs

@pytest.mark.parametrize("schedule", [dict(schedule="cosine", warmup=5), dict(schedule="plateau", schedule_epochs=0, schedule_gamma=0.5, warmup=3)],
                         ids=["cosine", "plateau"])
@pytest.mark.parametrize("poll", [pytest.param(5, marks=pytest.mark.exhaustive), 40, pytest.param(73, marks=pytest.mark.exhaustive)])
def test_a_run_that_is_stopped_goes_on_with_the_same_rates(poll: int, schedule: dict[str, Any], tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(learning_rate=0.3, epochs=5) | schedule
    whole = run(tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        stop_at(patch, poll)
        with pytest.raises(Interrupted):
            run(tmp_path / "stopped", **options)
    result = run(tmp_path / "stopped", resume=True)                # the folder knows the rest
    assert all(np.array_equal(result.weights[n], w) for n, w in whole.weights.items())
    np.testing.assert_array_equal(result.learning_rates, whole.learning_rates)
    np.testing.assert_array_equal(result.history["learning_rate"], whole.history["learning_rate"])


def test_a_resumed_run_may_change_its_schedule_aloud(tmp_path: Path) -> None:
    run(tmp_path, learning_rate=0.1, schedule="plateau", schedule_epochs=1, epochs=2)
    said = Said()
    result = run(tmp_path, resume=True, epochs=3, learning_rate=0.02, schedule="cosine", schedule_epochs=(),
                 schedule_gamma=None, callbacks=[said])
    going = [sentence for sentence in said.sentences if sentence.startswith("Going on")]
    assert len(going) == 2
    assert going[0].startswith("Going on with lr = cosine(lr=0.02, total=None, end=0.0) in place of plateau(lr=0.1")
    assert going[1] == ("Going on to epoch 3; the run was to end with 2. The schedule of lr now ends with it, so that what is left of it differs.")
    np.testing.assert_array_equal(result.learning_rates[24:], rates(s.cosine(0.02), 3)[24:])
    np.testing.assert_array_equal(result.learning_rates[:24], 0.1)


def test_a_schedules_state_is_checked(tmp_path: Path) -> None:
    run(tmp_path, schedule="plateau", epochs=1)
    tensors, metadata = load_tensors(tmp_path / CHECKPOINT)
    save_tensors(tmp_path / CHECKPOINT, tensors | {"callback.PlateauSchedules.lr.schedule": np.full(4, np.nan)},
                 metadata)
    with pytest.raises(CheckpointError, match=r"holds no state of the callback PlateauSchedules"):
        run(tmp_path, epochs=2, resume=True, schedule="plateau")


# ---- flags, bad settings

def test_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "digits_cnn.onnx", "--data", "digits", "--out", str(tmp_path / "a"), "--max-batches", "8", "--schedule", "cosine",
                     "--warmup", "3", "--schedule-end", "1e-4"]) == 0
    metrics = json.loads((tmp_path / "a" / "metrics.json").read_text())
    wanted = [value_at(s.warmup(s.cosine(1e-3, end=1e-4), 3), t, Run(8, 8)) for t in range(8)]
    assert [rate for rate, _ in metrics["learning_rates"]] == wanted
    assert cli.main(["train", "--out", str(tmp_path / "b"), "digits_cnn.onnx", "--data", "digits", "--schedule", "linear", "--schedule-epochs",
                     "3"]) == 2
    assert "Option schedule_epochs (--schedule-epochs) has no effect with the schedule linear; it is for step, cosine and plateau." in \
        capsys.readouterr().err


@pytest.mark.parametrize(("options", "says"), [
    (dict(schedule="cosin"), "Option schedule must be one of 'constant'"),
    (dict(schedule="step"), r"Option schedule 'step' needs schedule_epochs.*30,60\), not \[\]"),
    (dict(schedule="step", schedule_epochs=(3, 2)), r"needs schedule_epochs.*not \[3, 2\]"),
    (dict(schedule="step", schedule_epochs=(0,)), "needs schedule_epochs"),
    (dict(schedule="cosine", schedule_epochs=(3, 4)), r"Option schedule 'cosine' takes one number of schedule_epochs, not \[3, 4\]"),
    (dict(schedule="cosine", schedule_epochs=0), "takes one number"),
    (dict(schedule="exponential"), "Option schedule 'exponential' needs schedule_gamma"),
    (dict(schedule="plateau", schedule_gamma=1.5), "Option schedule_gamma must be below 1"),
    (dict(warmup=2.5), "Option warmup must be a whole number of updates, or a share of the run below 1, not 2.5"),
    (dict(warmup=3, schedule="one_cycle"), "which begins with a rise of its own"),
    (dict(warmup=-1), "Option warmup must be a number, at least 0"),
    (dict(schedule_epochs="three"), "Option schedule_epochs must be whole numbers, each at least 0"),
    (dict(scheduler="cosine"), "There is no option 'scheduler'; did you mean schedule?"),
])
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tileflow.Options(**options)


def test_a_model_that_is_called_does_not_know_how_long_the_run_is() -> None:
    x, y = rows()
    net = Net()
    model = tileflow.training_model(net, micro_batch_size=8, schedule="cosine")
    before = net.state_dict()
    with pytest.raises(OptionError, match=r"Schedule cosine is to last as long as the run.*total=updates"):
        model(x[:8], y[:8])
    optimizer = optim.SGD(lr=lambda t: 0.1 if t < 2 else -1.0)
    model = tileflow.training_model(net, micro_batch_size=8, optimizer=optimizer)
    for i in range(2):
        model(x[8 * i:8 * i + 8], y[8 * i:8 * i + 8])
    middle = net.state_dict()
    with pytest.raises(OptionError, match=r"Negative learning rate \(-1\) in SGD.*schedule of lr gives -1.0 at update 2; weights are as after"):
        model(x[:8], y[:8])
    assert all(np.array_equal(w, middle[n]) for n, w in net.state_dict().items())
    assert any(not np.array_equal(w, before[n]) for n, w in middle.items())
