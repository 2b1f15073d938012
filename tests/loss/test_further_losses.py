"""Losses beside cross entropy and squares: soft targets, divergence, focal, dice, Huber, each against PyTorch's formula
and its gradient."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.runtime.evaluate import EvaluationModel
from tileflow.system.errors import DataError, OptionError

torch = needs("torch")
F = torch.nn.functional
rng = np.random.default_rng(2)
EXACT: dict[str, Any] = {"precision": "float64", "threads": 1}
SOFT = rng.dirichlet(np.ones(4), 6)
SOFT[0] = [0, 1, 0, 0]
HARD = np.array([0, 3, 1, 1, 2, 0])


class Scores(nn.Module):
    """A linear layer over the last axis, with the softmax or the order of the axes that a test is about."""

    def __init__(self, outputs: int, then: str = "", swap: bool = False) -> None:
        nn.manual_seed(3)
        self.linear, self.then, self.swap = nn.Linear(3, outputs), then, swap

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        x = self.linear(x)
        if self.swap:
            x = x.apply("Transpose", perm=(0, 2, 1))
        return x.apply(self.then,
                       **({"axis": 1 if self.swap else -1} if "Softmax" in self.then else {})) if self.then else x


def focal(x: Any, t: Any, weight: Any = None, gamma: float = 2.0, ignore: int = -100) -> Any:
    each = F.cross_entropy(x, t, reduction="none", ignore_index=ignore)
    by = (torch.ones(x.shape[1], dtype=x.dtype) if weight is None else weight)[t.clamp(0)] * (t != ignore)
    return ((1 - torch.exp(-each)) ** gamma * each * by).sum() / by.sum()


def dice(x: Any, t: Any, ignore: int = -100) -> Any:
    counts = (t != ignore).unsqueeze(1)
    p = x.softmax(1) * counts
    t = F.one_hot(t.clamp(0), x.shape[1]).movedim(-1, 1) * counts
    p, t = p.flatten(2), t.flatten(2)
    return (1 - (2 * (p * t).sum(2) + 1e-5) / (p.sum(2) + t.sum(2) + 1e-5)).mean()


def binary_dice(x: Any, t: Any) -> Any:
    p, t = x.sigmoid().flatten(1), t.flatten(1)
    return (1 - (2 * (p * t).sum(1) + 1e-5) / (p.sum(1) + t.sum(1) + 1e-5)).mean()


MAPS = rng.integers(0, 4, (6, 5))
WEIGHTS = (0.5, 2.0, 1.0, 1.5)
CASES: dict[str, tuple[str, dict[str, Any], np.ndarray, Callable[[Any, Any], Any], dict[str, Any]]] = {
    "soft": ("soft_cross_entropy", {}, SOFT, F.cross_entropy, {}),
    "soft-weights": ("soft_cross_entropy", {"class_weights": WEIGHTS, "label_smoothing": 0.2}, SOFT,
                     lambda x, t: F.cross_entropy(x, t, torch.tensor(WEIGHTS, dtype=x.dtype), label_smoothing=0.2), {}),
    "soft-softmax": ("soft_cross_entropy", {}, SOFT, F.cross_entropy, {"then": "Softmax"}),
    "soft-places": ("soft_cross_entropy", {"class_axis": 1}, rng.dirichlet(np.ones(4), (6, 5)).transpose(0, 2, 1),
                    F.cross_entropy, {"swap": True}),
    "kl": ("kl", {}, SOFT, lambda x, t: F.kl_div(x.log_softmax(1), t, reduction="batchmean"), {}),
    "kl-logs": ("kl", {}, SOFT, lambda x, t: F.kl_div(x.log_softmax(1), t, reduction="batchmean"),
                {"then": "LogSoftmax"}),
    "focal": ("focal", {}, HARD, focal, {}),
    "focal-weights": ("focal", {"class_weights": WEIGHTS, "ignore_index": 1, "focal_gamma": 0.5}, HARD,
                      lambda x, t: focal(x, t, torch.tensor(WEIGHTS, dtype=x.dtype), 0.5, 1), {}),
    "focal-places": ("focal", {"class_axis": -1}, MAPS, lambda x, t: focal(x.movedim(-1, 1), t), {}),
    "huber": ("huber", {"huber_delta": 0.4}, rng.standard_normal((6, 4)), lambda x, t: F.huber_loss(x, t, delta=0.4),
              {}),
    "dice": ("dice", {"class_axis": 1}, MAPS, dice, {"swap": True}),
    "dice-last": ("dice", {"class_axis": -1, "ignore_index": 2}, MAPS, lambda x, t: dice(x.movedim(-1, 1), t, 2), {}),
    "dice-softmax": ("dice", {}, MAPS, dice, {"swap": True, "then": "Softmax"}),
}


FEW = ("soft-softmax", "kl", "focal-weights", "huber", "dice")


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FEW else pytest.mark.exhaustive) for c in CASES])
def test_value_gradient_and_measure_are_pytorchs(case: str):
    """Value and slopes of weight and bias in float64, and what a measuring program finds for each row."""
    name, setting, labels, reference, shape = CASES[case]
    x = rng.standard_normal((*labels.shape[:1], *([5] if labels.shape[1:] in ((5,), (4, 5)) else []), 3))
    net = Scores(4, **shape)
    weight, bias = (torch.tensor(p.data.astype(np.float64), requires_grad=True)
                    for p in (net.linear.weight, net.linear.bias))
    scores = torch.tensor(x) @ weight.T + bias
    wanted = reference(scores.movedim(-1, 1) if shape.get("swap") else scores, torch.tensor(labels))
    wanted.backward()
    before = [p.data.astype(np.float64).copy() for p in (net.linear.weight, net.linear.bias)]
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=1.0), loss=name, **EXACT, **setting)
    evaluation = EvaluationModel(model.source, model.options, model.loss)
    _, losses, weights = evaluation.measure(x, labels)
    assert losses.sum() / weights.sum() == pytest.approx(wanted.item(), rel=1e-11)
    _, loss = model(x, labels)
    assert loss == pytest.approx(wanted.item(), rel=1e-11)
    for p, was, slope in zip((net.linear.weight, net.linear.bias), before, (weight.grad, bias.grad), strict=True):
        np.testing.assert_allclose(was - p.data, slope.numpy(), atol=1e-10)


def test_dice_of_yes_and_no_and_what_training_says():
    """Labels of the output's shape are columns of yes and no; the metrics are those of such columns."""
    x, y = rng.standard_normal((8, 5, 3)), rng.integers(0, 2, (8, 5, 1)).astype(np.float32)
    net = Scores(1)
    weight, bias = (torch.tensor(p.data.astype(np.float64)) for p in (net.linear.weight, net.linear.bias))
    scores = torch.tensor(x) @ weight.T + bias
    result = tileflow.train(net, data=(x, y), test_data=(x, y), loss="dice", metrics="miou", micro_batch_size=8,
                            learning_rate=0.0,
                            precision="float64")
    assert result.evaluate()["loss"] == pytest.approx(binary_dice(scores, torch.tensor(y)).item(), rel=1e-6)
    hits, both = (scores.numpy()[..., 0] > 0) & (y[..., 0] == 1), (scores.numpy()[..., 0] > 0) | (y[..., 0] == 1)
    each = [h.sum() / b.sum() for h, b in zip(hits.T, both.T, strict=True) if b.any()]
    assert result.evaluate()["miou"] == pytest.approx(np.mean(each))


def test_cross_entropy_takes_probabilities_as_they_come():
    """In `train` the labels say which of the two cross entropies it is; labels that are neither are refused."""
    x = rng.standard_normal((6, 3)).astype(np.float32)
    result = tileflow.train(Scores(4, "Softmax"), data=(x, SOFT), test_data=(x, SOFT), micro_batch_size=6)
    assert result.evaluate()["accuracy"] is not None
    assert result.confusion_matrix().sum() == 6
    for loss in ("cross_entropy", "kl", "soft_cross_entropy"):
        assert tileflow.train(Scores(4), data=(x, SOFT), loss=loss, micro_batch_size=6).history["loss"][0] > 0
    with pytest.raises(DataError, match="do not add up to one in each row"):
        tileflow.train(Scores(4), data=(x, (SOFT > 0.2).astype(float)), loss="kl", micro_batch_size=6)
    with pytest.raises(OptionError, match="loss focal takes class numbers, not their probabilities"):
        tileflow.train(Scores(4), data=(x, SOFT), loss="focal", micro_batch_size=6)
    with pytest.raises(OptionError, match="ignore_index is for labels that are class numbers"):
        tileflow.train(Scores(4), data=(x, SOFT), loss="cross_entropy", ignore_index=1, micro_batch_size=6)
    with pytest.raises(OptionError, match="focal_gamma is for the loss focal"):
        tileflow.train(Scores(4), data=(x, HARD), loss="cross_entropy", focal_gamma=1, micro_batch_size=6)
    with pytest.raises(DataError, match=r"\[4\] per row; the labels are \[\] per row"):
        tileflow.train(Scores(4), data=(x, HARD), loss="kl", micro_batch_size=6)
