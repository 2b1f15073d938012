"""Networks of the sizes that people train, by every optimizer and precision: processes give the bits of one."""
from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from groups import forked
from trained_networks import OPTIMIZERS, Sequence

import tileflow
from bench import files, models
from tileflow import nn

REPLICAS, MICRO, SEQUENCE = 4, 2, 16
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {}, "mixed": {"precision": "16-mixed", "loss_scaling": 1.0},
    "half": {"precision": "16-true", "loss_scaling": 2.0**18, "automatic_loss_scaling": "histogram"}}
"""The last one begins at a scale at which updates are skipped."""


def lines() -> nn.Module:
    """An LSTM over the lines of an image."""
    nn.manual_seed(1)
    return Sequence(28, 128, 10)


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mnist": (lambda: models.tutorial_cnn(models.initial_weights(0)), (1, 28, 28)),
    "bert-mini": (lambda: files.bert_mini(SEQUENCE), (SEQUENCE,)),
    "resnet18": (lambda: files.resnet18(10, 32), (3, 32, 32)),
    "lstm": (lines, (28, 28))}


def trained(network: str, optimizer: str, precision: str, folder: Path) -> tuple[dict[str, bytes], list[bytes], int]:
    """States after two calls of two updates, the last outputs, and the updates that were skipped."""
    make, shape = NETWORKS[network]
    source = make()
    if isinstance(source, onnx.ModelProto):
        onnx.save(source, folder / "model.onnx")
        source = folder / "model.onnx"
    model = tileflow.training_model(source, loss="cross_entropy", optimizer=OPTIMIZERS[optimizer](), threads=1,
                                    micro_batch_size=MICRO, gradient_accumulation=2, replication_factor=REPLICAS,
                                    device_iterations=2, **PRECISIONS[precision])
    draw, rows = np.random.default_rng(0), 4 * REPLICAS * MICRO
    for _ in range(2):
        x = draw.integers(0, 1000, (rows, *shape)) if len(shape) == 1 else draw.standard_normal((rows, *shape))
        x = x.astype(model.source.input_dtype(0, x))
        outputs = model(x, draw.integers(0, 2, rows))
    states = model.state_dict() | model.optimizer_state_dict()
    return ({n: np.ascontiguousarray(a).tobytes() for n, a in states.items()},
            [np.ascontiguousarray(o).tobytes() for o in outputs], model.skipped_updates)


CASES = [(n, o, p, 2 + (i + j + k) % 3) for i, n in enumerate(NETWORKS) for j, o in enumerate(OPTIMIZERS)
         for k, p in enumerate(PRECISIONS)]
CASES += [(n, "adamw", "float32", size) for n in NETWORKS for size in (2, 3, 4)]


@pytest.mark.parametrize(("network", "optimizer", "precision", "size"), [
    pytest.param(*case, marks=() if case == ("mnist", "adamw", "float32", 2) else pytest.mark.exhaustive)
    for case in sorted(set(CASES))])
def test_bits_are_those_of_one_process(network: str, optimizer: str, precision: str, size: int, tmp_path: Path) -> None:
    train = functools.partial(trained, network, optimizer, precision)
    (tmp_path / "alone").mkdir()
    alone = train(tmp_path / "alone")
    assert alone[2] < 4 or precision == "half"

    def work(rank: int) -> Any:
        folder = tmp_path / f"of{rank}"
        folder.mkdir()
        return train(folder)
    for found in forked(tmp_path / "group", size, work):
        assert found == alone
