"""Weights of rows and of classes, rows drawn by weights, and several labels with a loss each."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.options.losses import losses_by_output
from tileflow.runtime.data import DataLoader, open_data
from tileflow.runtime.data.sampling import WeightedSampler
from tileflow.system.errors import DataError, OptionError

rng = np.random.default_rng(4)
X, Y = rng.standard_normal((24, 3)), rng.integers(0, 3, 24)
Y[::4] = 0                                                     # one in each micro-batch
W = rng.random(24) * 2
EXACT: dict[str, Any] = {"precision": "float64", "micro_batch_size": 4, "learning_rate": 0.5, "optimizer": "sgd",
                         "shuffle": False}


class Linear(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        nn.manual_seed(3)
        self.linear = nn.Linear(3, outputs)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.linear(x)


class Heads(nn.Module):
    """Two outputs: numbers and scores."""

    def __init__(self) -> None:
        nn.manual_seed(3)
        self.boxes, self.kinds = nn.Linear(3, 2), nn.Linear(3, 3)

    def forward(self, x: nn.Tensor) -> Any:                        # type: ignore[override]
        return self.boxes(x), self.kinds(x)


def in_torch(loss: Any, outputs: int, batch: int) -> list[np.ndarray]:
    """Weight and bias of a linear layer after an epoch of PyTorch's SGD; `loss` of scores and rows."""
    torch = needs("torch")
    net = Linear(outputs)
    own = [torch.tensor(p.data.astype(np.float64), requires_grad=True) for p in (net.linear.weight, net.linear.bias)]
    for start in range(0, len(X), batch):
        rows = slice(start, start + batch)
        for p, g in zip(own, torch.autograd.grad(loss(torch.tensor(X[rows]) @ own[0].T + own[1], rows), own),
                        strict=True):
            p.data -= 0.5 * g
    return [p.detach().numpy() for p in own]


@pytest.mark.parametrize("setting", [{"gradient_accumulation": 2}, {"class_weights": (0.5, 2, 1), "ignore_index": 1},
                                     *(pytest.param(s, marks=pytest.mark.exhaustive) for s in (
                                         {}, {"loss": "mse"}, {"class_weights": (0.5, 2, 1)}, {"ignore_index": 1}))],
                         ids=str)
def test_the_weighted_loss_is_kerass(setting: dict[str, Any]):
    """Weight times loss of each row, over what the loss divides by without weights; accumulated or not."""
    torch = needs("torch")
    F, wanted, labels = torch.nn.functional, torch.tensor(W), torch.tensor(Y)
    numbers, rows = setting.get("loss") == "mse", 4 * setting.get("gradient_accumulation", 1)

    def loss(scores: Any, part: slice) -> Any:
        if numbers:
            return ((scores - labels[part, None].double()) ** 2 * wanted[part, None]).mean()
        weight = torch.tensor(setting["class_weights"],
                              dtype=torch.float64) if "class_weights" in setting else torch.ones(3, dtype=torch.float64)
        weight = weight[labels[part]] * (labels[part] != setting.get("ignore_index", -1))
        return (F.cross_entropy(scores, labels[part], reduction="none") * weight * wanted[part]).sum() / weight.sum()
    net, data = Linear(1 if numbers else 3), (X, Y[:, None].astype(np.float64) if numbers else Y)
    result = tileflow.train(net, data=data, test_data={"x": X, "y": data[1], "sample_weight": W}, sample_weight=W,
                            **EXACT, **setting)
    for p, q in zip((net.linear.weight, net.linear.bias), in_torch(loss, 1 if numbers else 3, rows), strict=True):
        np.testing.assert_allclose(p.data, q, atol=1e-12)
    scores = torch.tensor(X @ net.linear.weight.data.T + net.linear.bias.data)
    found = result.evaluate({"x": X, "y": data[1], "sample_weight": W})
    assert found["loss"] == pytest.approx(loss(scores, slice(None)).item(), rel=1e-9)
    plain = result.evaluate(data)["loss"]
    wanted = torch.ones(24, dtype=torch.float64)
    assert plain == pytest.approx(loss(scores, slice(None)).item(),
                                  rel=1e-9)                     # data without weights are measured without


def test_where_weights_come_from(tmp_path: Path):
    """An array, a dict's, a table's, a row's, or what the option names: the same run; ones change nothing."""
    table = tmp_path / "t.csv"
    table.write_text("a,b,c,kind,sample_weight\n" + "".join(f"{a!r},{b!r},{c!r},{y},{w!r}\n" for (a, b, c), y, w in
                                                            zip(X.tolist(), Y.tolist(), W.tolist(), strict=True)))
    rows = [{"x": x, "y": y, "sample_weight": w} for x, y, w in zip(X, Y, W, strict=True)]

    def weight(**setting: Any) -> np.ndarray:
        net = Linear()
        tileflow.train(net, **EXACT, **setting)
        return net.linear.weight.data.copy()
    wanted = weight(data=(X, Y), sample_weight=W)
    for data in ({"x": X, "y": Y, "sample_weight": W}, str(table), rows):
        np.testing.assert_array_equal(weight(data=data), wanted)
    np.testing.assert_array_equal(weight(data={"x": X, "y": Y, "w": W}, sample_weight="w"), wanted)
    np.testing.assert_allclose(weight(data=(X, Y), sample_weight=np.ones(24)), weight(data=(X, Y)), atol=1e-14)
    assert open_data(str(table)).train.columns == ("a", "b", "c")
    assert open_data({"x": X, "sample_weight": W, "y": Y},
                     tileflow.Options(inputs=("x", "sample_weight"))).train.more == {}
    kept = tileflow.train(Linear(), data=(X, Y), sample_weight=W, validation_split=0.25, **EXACT)
    assert kept.evaluate()["loss"] is not None


@pytest.mark.parametrize(("setting", "kind", "says"), [
    ({"sample_weight": W[:5]}, DataError, "5 weights in sample_weight and 24 rows"),
    ({"sample_weight": W - 1}, DataError, "of row [0-9]+ is not a finite number of at least 0"),
    ({"sample_weight": W[:, None] * [1, 2]}, DataError, r"shape \[2\] per row; one number for each"),
    ({"sample_weight": W, "loss": lambda b, outputs: b.ReduceMean(outputs[0], keepdims=0)}, OptionError,
     "has no value for each row"),
    ({"sampling": "weighted"}, DataError, "do not have; give sample_weight"),
    ({"class_weights": "often"}, OptionError, "or the word balanced"),
    ({"class_weights": "balanced", "data": (X, np.minimum(Y, 1))}, DataError, "class 2 of 3 has no rows"),
    ({"class_weights": "balanced", "data": [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]}, DataError,
     "have them one by one"),
    ({"sampling": "balanced", "data": (X, X)}, DataError, "one class number for each row"),
    ({"class_weights": "balanced", "loss": "mse", "data": (X, X)}, OptionError, "class_weights is for the loss"),
])
def test_what_is_refused(setting: dict[str, Any], kind: type[Exception], says: str):
    with pytest.raises(kind, match=says):
        tileflow.train(Linear(), **{"data": (X, Y), **EXACT, **setting})


def test_balanced_weights_are_scikit_learns(tmp_path: Path):
    compute = needs("sklearn.utils.class_weight").compute_class_weight
    wanted = compute("balanced", classes=np.arange(3), y=Y)
    names = np.array(["b", "a", "c"])[Y]
    for data in ((X, Y), (X, np.eye(3)[Y])):
        result = tileflow.train(Linear(), data=data, class_weights="balanced",
                                out=str(tmp_path / str(len(data[1].shape))), **EXACT)
        np.testing.assert_allclose(result.options.class_weights, wanted, rtol=1e-15)
    result = tileflow.train(Linear(), data=(X, names), class_weights="balanced", **EXACT)
    np.testing.assert_allclose(result.options.class_weights, wanted[[1, 0, 2]], rtol=1e-15)
    with pytest.raises(OptionError, match="balanced follows from the labels of a data set"):
        tileflow.training_model(Linear(), class_weights="balanced")


def test_rows_are_drawn_by_their_weights():
    weights = np.array([0.0, 1.0, 3.0, 0.0])
    sampler = WeightedSampler(np.tile(weights, 5000), 7)
    drawn = np.array(list(sampler)) % 4
    assert set(drawn) == {1, 2}
    assert np.mean(drawn == 2) == pytest.approx(0.75, abs=0.02)
    assert list(sampler) == list(sampler)
    sampler.set_epoch(1)
    assert np.mean(np.array(list(sampler)) % 4 == drawn) < 0.9
    seen = DataLoader(tileflow.Options(micro_batch_size=4), (X, Y), sampler=WeightedSampler((Y == 2).astype(float), 0))
    assert {int(y) for batch in seen for y in batch[1]} == {2}


def test_balanced_and_weighted_sampling_train():
    few = (np.arange(24) % 8 == 0).astype(np.int64)
    result = tileflow.train(Linear(2), data=(X, few), sampling="balanced", epochs=4, **EXACT)
    assert 0.35 < np.mean([int(few[i]) for e in range(4) for i in result._trainer.loader.order(e)]) < 0.65
    mixed = tileflow.train(Linear(2), data=(X, few), sampling="balanced", augment="mixup", epochs=4, **EXACT)
    mine, other = ([r._trainer.loader.order(e).tolist() for e in range(4)] for r in (mixed, result))
    assert mine == other
    result = tileflow.train(Linear(), data=(X, Y), sampling="weighted", sample_weight=(Y == 1).astype(float), epochs=2,
                            **EXACT)
    assert result.evaluate((X, np.full(24, 1)))["loss"] < result.evaluate((X, np.full(24, 0)))["loss"]


def test_a_loss_for_each_output():
    """Their sum by their factors, measured, too; labels are found by the outputs' names."""
    torch = needs("torch")
    boxes, F = rng.standard_normal((24, 2)), torch.nn.functional
    net = Heads()
    own = [torch.tensor(p.data.astype(np.float64), requires_grad=True) for p in
           (net.boxes.weight, net.boxes.bias, net.kinds.weight, net.kinds.bias)]
    data = {"x": X, "boxes": boxes, "classes": Y}
    result = tileflow.train(net, data=data, test_data=data, loss={"boxes": "l1", "classes": "cross_entropy*0.5"},
                            class_weights="balanced",
                            metrics=(), **(EXACT | {"micro_batch_size": 24}))

    def loss() -> Any:
        weight = torch.tensor(24 / (3 * np.bincount(Y)))
        return F.l1_loss(torch.tensor(X) @ own[0].T + own[1], torch.tensor(boxes)) + 0.5 * F.cross_entropy(
            torch.tensor(X) @ own[2].T + own[3], torch.tensor(Y), weight)
    for p, g in zip(own, torch.autograd.grad(loss(), own), strict=True):
        p.data -= 0.5 * g
    for p, q in zip((net.boxes.weight, net.boxes.bias, net.kinds.weight, net.kinds.bias), own, strict=True):
        np.testing.assert_allclose(p.data, q.detach().numpy(), atol=1e-12)
    assert result.evaluate()["loss"] == pytest.approx(loss().item(), rel=1e-6)
    weighted = tileflow.train(Heads(), data=data, loss="boxes=l1,classes=cross_entropy", sample_weight=W, **EXACT)
    assert np.isfinite(weighted.history["loss"]).all()


@pytest.mark.parametrize(("loss", "kind", "says"), [
    ({"boxes": "l1", "classes": "cross"}, OptionError, "Option loss must be one of"),
    ({"classes": "cross_entropy", "boxes": "identity"}, OptionError, "identity is the model's own loss"),
    ("boxes=l1,boxes=mse", OptionError, "must be one of"),
    ("boxes=l1*0", OptionError, "must be one of"),
])
def test_tables_of_losses_that_are_refused(loss: Any, kind: type[Exception], says: str):
    with pytest.raises(kind, match=says):
        tileflow.train(Heads(), data={"x": X, "boxes": X[:, :2], "classes": Y}, loss=loss, **EXACT)


def test_the_text_of_a_table_of_losses():
    with pytest.raises(OptionError, match="no output 'boxes'; it has gemm, gemm"):
        tileflow.train(Heads(), data={"x": X, "boxes": X[:, :2]}, loss={"boxes": "l1"}, **EXACT)
    assert tileflow.Options(loss={"a": "l1", "b": "kl * 0.5"}).loss == "a=l1,b=kl*0.5"
    assert losses_by_output("a=l1,b=kl*0.5") == {"a": ("l1", 1.0), "b": ("kl", 0.5)}
    assert losses_by_output("mse") == {}
    with pytest.raises(DataError, match="have no array 'classes'"):
        tileflow.train(Heads(), data={"x": X, "boxes": X[:, :2]}, loss="boxes=l1,classes=cross_entropy", **EXACT)
