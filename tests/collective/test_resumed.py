"""A run that fails with one number of processes and goes on with another: each network, optimizer and precision has one
digest."""
from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from groups import forked
from tileflow.errors import ProcessError
from trained_networks import NETWORKS, OPTIMIZERS, PRECISIONS

import tileflow
from tileflow import callbacks, nn
from tileflow.runtime.checkpoint import load_checkpoint

ROWS, MICRO, REPLICAS, ACCUMULATION = 48, 2, 4, 2
NUMBERS = [(2, 3), (4, 1)]
"""Processes that fail, and those that go on."""
SCALE = {"loss_scaling": 2.0**17}
"""So that some updates of a run are skipped, and not all."""


class Torn(callbacks.Callback):
    """Fails after the third update."""

    def next_update(self, updates: int) -> int:
        return updates + 1

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        if self.run.updates == 3:
            raise RuntimeError("the wire is torn")


def run(folder: Path, network: str, optimizer: str, precision: str, torn: bool = False) -> None:
    """Train, or go on with what is there."""
    make, shape = NETWORKS[network]
    nn.manual_seed(1)
    x = np.random.default_rng(0).standard_normal((ROWS, *shape)).astype(np.float32)
    tileflow.train(make(), data=(x, np.arange(ROWS) % 5), epochs=2, micro_batch_size=MICRO, replication_factor=REPLICAS,
                   seed=3,
                   gradient_accumulation=ACCUMULATION, optimizer=OPTIMIZERS[optimizer](), loss="cross_entropy",
                   save_every_updates=1,
                   out=str(folder), resume=(folder / "checkpoint.safetensors").exists(), threads=1,
                   callbacks=[Torn()] if torn else [],
                   **{**PRECISIONS[precision], **(SCALE if precision == "half" else {})})


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for name, array in sorted(load_checkpoint(folder / "checkpoint.safetensors").tensors.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


CASES = [(n, o, list(PRECISIONS)[(i + j) % 3]) for i, n in enumerate(("cnn", "transformer", "resnet", "lstm"))
         for j, o in enumerate(OPTIMIZERS)]


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
@pytest.mark.parametrize("case", [CASES[0], *(pytest.param(case, marks=pytest.mark.exhaustive) for case in CASES[1:])],
                         ids="-".join)
def test_a_run_that_fails_and_goes_on_with_another_number_has_the_digest_of_one_process(case, tmp_path):
    run(tmp_path / "alone", *case)
    for failing, more in NUMBERS:
        folder = tmp_path / str(failing)
        found = forked(tmp_path / f"{failing}-fail", failing, lambda rank, folder=folder: run(folder, *case, torn=True))
        assert all(isinstance(error, ProcessError | RuntimeError) for error in found), found
        assert digest(folder) != digest(tmp_path / "alone")
        assert forked(tmp_path / f"{more}-on", more, lambda rank, folder=folder: run(folder, *case)) == [None] * more
        assert digest(folder) == digest(tmp_path / "alone")
