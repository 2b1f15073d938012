"""Errors under the reference's names, from tileflow's own, and what the environment says to scripts."""
from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from paths import exhaustive
from peers import needs
from places import ROOT

from tileflow.system import errors as own

torch = needs("torch")
needs("onnxscript")
poptorch = pytest.importorskip("tileflow.poptorch", reason="needs torch, which is not installed: pip install torch")
core = poptorch.poptorch_core


@pytest.mark.parametrize(("error", "action"), [
    (own.Interrupted("Interrupted; go on with resume=True."), "RESUME"),
    (own.OutOfMemoryError("A step needs 3 GB."), "FREE_MEMORY"),
    (own.WeightsLostError("A weight is infinite."), "RESTORE"),
    (own.DataError("A worker process that reads the data was killed."), "RESTART_WORKERS"),
    (OSError(errno.ENOSPC, "No space left on device"), "FREE_DISK"), (own.ShapeError("Shapes do not fit."), None),
    (own.DataError("Labels are out of range."), None)])
def test_errors_of_ours_are_the_references(error, action):
    """With what goes on, where something does; the original is the cause."""
    with pytest.raises(poptorch.Error) as found, core.translated():
        raise error
    assert found.value.__cause__ is error
    assert str(error) in found.value.message
    assert found.value.type == type(error).__name__
    assert "test_errors_of_ours_are_the_references" in found.value.location
    assert found.value.message not in found.value.location
    assert isinstance(found.value, poptorch.RecoverableError) == (action is not None)
    assert getattr(found.value, "recovery_action", None) == action
    again = pickle.loads(pickle.dumps(found.value))
    assert (type(again), again.message, again.location) == (type(found.value), found.value.message,
                                                            found.value.location)


def test_what_is_none_of_ours_passes():
    for error in (ZeroDivisionError("x"), OSError(errno.ENOENT, "gone"), poptorch.Error("already"),
                  core.InvalidOption("an option")):
        with pytest.raises(type(error)) as found, core.translated():
            raise error
        assert found.value is error


@pytest.mark.parametrize("kind", list(core.TestErrorType))
def test_errors_to_try_handlers_with(kind):
    with pytest.raises(poptorch.Error) as found:
        core._throwTestError(kind)
    recoverable = kind == core.TestErrorType.PoplarRecoverableFullReset
    assert isinstance(found.value, poptorch.RecoverableError) == recoverable
    assert isinstance(found.value, poptorch.UnrecoverableError) == (kind == core.TestErrorType.PoplarUnrecoverable)
    assert isinstance(found.value, RuntimeError)
    assert not recoverable or found.value.recovery_action == "FULL_RESET"


@exhaustive
def test_a_loss_that_is_not_finite_is_an_error():
    """Raised by a call, as the reference's; weights are as they were, and the model goes on."""
    class Logarithm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return poptorch.identity_loss((x * self.w).log(), reduction="mean")
    module = Logarithm()
    model = poptorch.trainingModel(module)
    model(torch.ones(2))
    before = module.w.detach().clone()
    with pytest.raises(poptorch.Error, match="not finite") as found:
        model(-torch.ones(2))
    assert found.value.type == "TrainingError"
    assert torch.equal(module.w, before)
    model(torch.ones(2))
    assert not torch.equal(module.w, before)


def test_levels_of_the_log(capsys):
    root = logging.getLogger("tileflow")
    before = list(root.handlers), root.level
    try:
        poptorch.setLogLevel("DEBUG")
        assert root.level == logging.DEBUG
        poptorch.setLogLevel(3)
        assert root.level == logging.WARNING
        poptorch.setLogLevel("OFF")
        poptorch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1, velocity_scaling=2.0)
        assert capsys.readouterr().err == ""
        with pytest.raises(ValueError, match="Level must be one of TRACE, DEBUG, INFO, WARN, ERR, OFF"):
            poptorch.setLogLevel("LOUD")
        with pytest.raises(ValueError, match="Invalid log level integer: 5"):
            poptorch.setLogLevel(5)
    finally:
        root.handlers[:], root.level = before


@exhaustive
def test_reports_and_marks_of_a_model(tmp_path: Path):
    """By enableProfiling and modelName, for this model alone; marks of a channel in a trace."""
    import tileflow
    options = poptorch.Options().enableProfiling(str(tmp_path)).modelName("mine")
    assert options.report == (str(tmp_path), "mine")
    channel = poptorch.profiling.Channel("data")
    with tileflow.trace(tmp_path / "trace.json"), channel.tracepoint("one"):
        poptorch.inferenceModel(torch.nn.Linear(3, 2), options)(torch.ones(2, 3))
    assert (tmp_path / "mine" / "report.json").is_file()
    assert '"data.one"' in (tmp_path / "trace.json").read_text()
    engine = poptorch.Options()
    engine._Popart.setEngineOptions({"autoReport.all": "true", "autoReport.directory": "there"})
    assert engine.report == ("there", None)
    assert poptorch.Options().report is None


@exhaustive
def test_what_the_environment_says(tmp_path: Path):
    """Reports, a trace, the log, the chip, the cache; and a sentence for what has no effect."""
    script = ("import os, torch, tileflow.poptorch as poptorch\nassert poptorch.Options().machine == 'bow'\n"
              "assert os.environ['TILEFLOW_CACHE_DIR'] == os.environ['POPTORCH_CACHE_DIR']\n"
              "poptorch.inferenceModel(torch.nn.Linear(3, 2))(torch.ones(2, 3))\n")
    environment = {k: v for k, v in os.environ.items() if k != "TILEFLOW_CACHE_DIR"} | {
        "PYTHONPATH": str(ROOT), "POPTORCH_LOG_LEVEL": "DEBUG", "POPTORCH_IPU_MODEL_VERSION": "ipu21",
        "POPTORCH_WAIT_FOR_IPU": "1",
        "POPTORCH_IPU_MODEL": "1",
        "POPTORCH_CACHE_DIR": os.environ.get("TILEFLOW_CACHE_DIR") or str(tmp_path / "cache"),
        "POPLAR_ENGINE_OPTIONS": '{"autoReport.all": "true", "autoReport.directory": "reports", "opt.level": "2"}',
        "PVTI_OPTIONS": '{"enable": "true", "directory": "traces"}'}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[tileflow.compile] [DEBUG]" in done.stderr
    assert "sets opt.level in POPLAR_ENGINE_OPTIONS, which has no effect" in done.stderr
    assert "POPTORCH_WAIT_FOR_IPU, which has no effect: there is no IPU to wait for" in done.stderr
    assert (tmp_path / "reports" / "inference" / "report.json").is_file()
    assert "inference call" in (tmp_path / "traces" / "trace.json").read_text()
