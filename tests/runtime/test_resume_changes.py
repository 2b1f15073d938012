"""What a resumed run may change: rates, decay, schedule, loss scale and length, aloud; all else that shapes the numbers is refused in a sentence."""
from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from test_resume import Said, rows
from test_scheduled_runs import Net

import tileflow
from tileflow.options.options import declarations
from tileflow.system.errors import CheckpointError

BASE: dict[str, Any] = dict(micro_batch_size=4, gradient_accumulation=2, device_iterations=3, epochs=1, optimizer="lamb", learning_rate=0.01)
PURE = ("stochastic_rounding", "master_weights")
"""Of weights of 16 bits."""
ALOUD: dict[str, tuple[Any, str]] = {
    "learning_rate": (0.02, "Going on with lr = 0.02 in place of 0.01."),
    "weight_decay": (0.3, "Going on with weight_decay = 0.3 in place of 0.01."),
    "schedule": ("cosine", "Going on with lr = cosine(lr=0.01, total=None, end=0.0) in place of 0.01."),
    "warmup": (4, "Going on with lr = warmup(schedule=0.01, updates=4.0, start=None) in place of 0.01."),
    "loss_scaling": (4.0, "Going on with loss_scaling = 4 in place of 1."),
    "epochs": (2, "Going on to epoch 2; the run was to end with 1.")}
REFUSED: dict[str, tuple[Any, str]] = {
    "optimizer": ("adam", "was made with the optimizer LAMB, this run has Adam"),
    "betas": ((0.8, 0.9), r"the optimizer's betas = \[0\.9, 0\.999\], this run has \[0\.8, 0\.9\]"),
    "eps": (1e-4, "the optimizer's eps = 1e-08, this run has 0.0001"),
    "no_decay": ("auto", "the optimizer's no_decay = None, this run has .'auto'."),
    "param_groups": (({"params": "*.bias", "lr": 0.5},), "the optimizer's groups = None, this run has"),
    "max_grad_norm": (1.0, "the optimizer's max_grad_norm = None, this run has 1.0"),
    "bias_correction": (False, "the optimizer's bias_correction = True, this run has False"),
    "max_weight_norm": (3.0, "the optimizer's max_weight_norm = 65500.0, this run has 3.0"),
    "accum_type": ("bfloat16", "the optimizer's accum_type = None, this run has bfloat16"),
    "first_order_momentum_accum_type": ("bfloat16", "first_order_momentum_accum_type = None, this run has bfloat16"),
    "second_order_momentum_accum_type": ("bfloat16", "second_order_momentum_accum_type = None, this run has bfloat16"),
    "precision": ("64", "precision = 32, this run has 64"),
    "stochastic_rounding": (True, "stochastic_rounding = False, this run has True"),
    "master_weights": ("remainder", "master_weights = none, this run has remainder"),
    "mean_reduction_strategy": ("running", "mean_reduction_strategy = None, this run has running"),
    "accumulation_reduction": ("sum", "accumulation_reduction = mean, this run has sum"),
    "gradient_accumulation": (1, "gradient_accumulation = 2, this run has 1"),
    "seed": (4, "seed = 0, this run has 4")}
ALWAYS = ("learning_rate", "schedule", "optimizer", "betas", "accum_type", "param_groups", "precision")


def sometimes(names: Any) -> list[Any]:
    """A few at every change, all in `make check`."""
    return [pytest.param(n, marks=() if n in ALWAYS else pytest.mark.exhaustive) for n in names]


@functools.cache
def before(precision: str) -> dict[str, bytes]:
    """The files of a run to resume."""
    with tempfile.TemporaryDirectory() as made:
        tileflow.train(Net(), data=rows(), out=made, precision=precision, **BASE)
        return {path.name: path.read_bytes() for path in Path(made).iterdir()}


def laid(folder: Path, precision: str) -> None:
    """Such a run, in a folder of its own."""
    folder.mkdir()
    for name, content in before(precision).items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", sometimes(ALOUD))
def test_what_may_change_is_said(name: str, tmp_path: Path) -> None:
    value, says = ALOUD[name]
    laid(tmp_path / "run", "32")
    said = Said()
    tileflow.train(Net(), data=rows(), out=str(tmp_path / "run"), resume=True, callbacks=[said], **{name: value})
    assert [s for s in said.sentences if s.startswith("Going on")] == [says]


@pytest.mark.parametrize("name", sometimes(REFUSED))
def test_what_may_not_is_refused(name: str, tmp_path: Path) -> None:
    value, says = REFUSED[name]
    laid(tmp_path / "run", "bf16-true" if name in PURE else "32")
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=says):
        tileflow.train(Net(), data=rows(), out=str(tmp_path / "run"), resume=True, **{name: value})
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before


def test_an_option_that_is_not_listed_as_free_counts() -> None:
    """Those of the optimizer are compared as what they make; any other is compared itself, unless it is free."""
    for name in (*ALOUD, *REFUSED):
        assert name in declarations(), name
    assert {n for n in ALOUD if declarations()[n].free} == set(ALOUD)
    compared = {d.name for d in declarations().values() if d.group in ("training", "run") and not d.free}
    assert {"precision", "stochastic_rounding", "master_weights", "mean_reduction_strategy", "accumulation_reduction", "seed"} <= compared
