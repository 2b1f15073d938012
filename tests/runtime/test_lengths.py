"""Batches whose lengths change from one to the next: padded by a collate_fn or by somebody's loader, rounded up, trained as PyTorch does."""
from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.runtime.data.columns import rounded
from tileflow.runtime.trainer import Trainer
from tileflow.system.errors import DataError, Interrupted, OptionError

draw = np.random.default_rng(11)
LENGTHS = draw.integers(2, 30, 43)
TOKENS = [draw.integers(1, 20, n) for n in LENGTHS]
KINDS = draw.integers(0, 3, 43)
TAGS = [draw.integers(0, 4, n) for n in LENGTHS]
IGNORED = -100
OPTIONS: dict[str, Any] = dict(precision="float64", optimizer=optim.SGD(lr=0.2, momentum=0.9), loss="cross_entropy", shuffle=False, epochs=2,
                               drop_last=False)


class Texts:
    """Rows (tokens [length], label)."""

    def __init__(self, labels: Any) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(TOKENS)

    def __getitem__(self, i: int) -> tuple[np.ndarray, Any]:
        return TOKENS[i], self.labels[i]


def filled(rows: list[np.ndarray], value: int) -> np.ndarray:
    longest = max(map(len, rows))
    return np.array([np.pad(row, (0, longest - len(row)), constant_values=value) for row in rows])


def padded(rows: list[Any]) -> tuple[np.ndarray, ...]:
    """A collate_fn: tokens and mask [rows, longest], labels [rows] or [rows, longest]."""
    tokens, labels = [row[0] for row in rows], [row[1] for row in rows]
    per_token = np.ndim(labels[0]) > 0
    return (filled(tokens, 0), filled([np.ones(len(t)) for t in tokens], 0), filled(labels, IGNORED) if per_token else np.array(labels))


def by_name(rows: list[Any]) -> dict[str, np.ndarray]:
    return dict(zip(("tokens", "mask", "labels"), padded(rows), strict=True))


class Reader(nn.Module):
    """Attention with a mask; scores for the text, or for each token."""

    def __init__(self, per_token: bool) -> None:
        super().__init__()
        self.table, self.query, self.key = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.head, self.per_token = nn.Linear(6, 4 if per_token else 3), per_token

    def forward(self, tokens: Any, mask: Any) -> Any:
        x = self.table(tokens)
        scores = self.query(x) @ self.key(x).transpose(1, 2) + (mask.reshape(mask.shape[0], 1, mask.shape[1]) - 1.0) * 1e9
        x = scores.softmax(-1) @ x
        if self.per_token:
            return self.head(x)
        return self.head((x * mask.reshape(mask.shape[0], mask.shape[1], 1)).sum(1) / mask.sum(1).reshape(mask.shape[0], 1))


def reader(per_token: bool) -> Reader:
    net = Reader(per_token)
    for i, p in enumerate(net.parameters()):
        p.data = np.random.default_rng(i).normal(size=p.shape).astype(np.float32)
    return net


def reference(per_token: bool, updates: list[list[slice]], epochs: int = 2) -> dict[str, np.ndarray]:
    """PyTorch's own loop: micro-batches padded each to its own longest row, their mean losses divided by how many there are."""
    torch = needs("torch")

    class Twin(torch.nn.Module):                                       # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.query, self.key = torch.nn.Embedding(20, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
            self.head, self.per_token = torch.nn.Linear(6, 4 if per_token else 3), per_token

        forward = Reader.forward

    twin = Twin().double()
    twin.load_state_dict({n: torch.from_numpy(w.astype(np.float64)) for n, w in reader(per_token).state_dict().items()})
    steps = torch.optim.SGD(twin.parameters(), lr=0.2, momentum=0.9)
    data = Texts(TAGS if per_token else KINDS)
    for _ in range(epochs):
        for micro_batches in updates:
            steps.zero_grad()
            for at in micro_batches:
                tokens, mask, labels = map(torch.from_numpy, padded([data[i] for i in range(len(data))[at]]))
                scores = twin(tokens, mask.double())
                loss = torch.nn.functional.cross_entropy(scores.moveaxis(-1, 1), labels, ignore_index=IGNORED)
                (loss / len(micro_batches)).backward()
            steps.step()
    return {n: w.numpy() for n, w in twin.state_dict().items()}


def train(net: nn.Module, out: Path, data: Any, **more: Any) -> tileflow.TrainResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tileflow.TileflowWarning)
        return tileflow.train(net, data=data, out=out, **OPTIONS | more)


def slices(size: int, *per_update: int) -> list[list[slice]]:
    """Micro-batches of so many rows, so many of them in each update."""
    found, first = [], 0
    for count in per_update:
        found.append([slice(first + i * size, first + (i + 1) * size) for i in range(count)])
        first += count * size
    return found


PLANS = [({}, slices(5, *[1] * 9)), ({"gradient_accumulation": 3}, [*slices(5, 3, 3, 2), [slice(40, 43)]]),
         ({"device_iterations": 2, "gradient_accumulation": 2, "threads": 3}, [*slices(5, 2, 2, 2, 2), [slice(40, 43)]])]


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan[0]))
def test_a_collate_fn_trains_as_pytorch(per_token: bool, plan: Any, tmp_path: Path) -> None:
    """Only what is no padding counts, in calls of one and of several micro-batches and in what is left at the end."""
    more, updates = plan
    net = reader(per_token)
    ignore = {"ignore_index": IGNORED, "class_axis": -1} if per_token else {}
    train(net, tmp_path, Texts(TAGS if per_token else KINDS), collate_fn=padded, micro_batch_size=5, **ignore, **more)
    for name, w in reference(per_token, updates).items():
        np.testing.assert_allclose(net.state_dict()[name], w, rtol=1e-9, atol=1e-9)


def forms(per_token: bool) -> dict[str, Any]:
    """The same rows in other hands: the data, and what else `train` is told."""
    data = Texts(TAGS if per_token else KINDS)
    rows = [data[i] for i in range(len(data))]
    return {"rows": (data, {"collate_fn": padded}), "list": (rows, {"collate_fn": padded}), "names": (data, {"collate_fn": by_name}),
            "stream": (lambda: iter(rows), {"collate_fn": padded}), "workers": (data, {"collate_fn": padded, "num_workers": 2}),
            "pieces": (data, {"collate_fn": padded, "num_workers": 2, "data_loader_mode": "async_rebatched"})}


@pytest.mark.parametrize("form", ["list", "names", "stream", "workers", "pieces"])
@pytest.mark.parametrize("per_token", [False, True])
def test_whoever_gives_the_rows(form: str, per_token: bool, tmp_path: Path) -> None:
    more = {"micro_batch_size": 3, "gradient_accumulation": 2, "ignore_index": IGNORED}
    if per_token:
        more["class_axis"] = -1
    nets = [reader(per_token), reader(per_token)]
    for net, name in zip(nets, ("rows", form), strict=True):
        data, how = forms(per_token)[name]
        train(net, tmp_path / name, data, **more, **how)
    for name, w in nets[0].state_dict().items():
        np.testing.assert_allclose(nets[1].state_dict()[name], w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.exhaustive), 5, 7, pytest.param(64, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("per_token", [False, True])
def test_a_loader_of_pytorch(batch: int, per_token: bool, tmp_path: Path) -> None:
    """Its batches are of any size and length, and are put together anew."""
    torch = needs("torch")
    pad = torch.nn.utils.rnn.pad_sequence

    def tensors(rows: list[Any]) -> tuple[Any, ...]:
        tokens, labels = [torch.tensor(row[0]) for row in rows], [torch.tensor(row[1]) for row in rows]
        mask = pad([torch.ones(len(t)) for t in tokens], batch_first=True)
        return (pad(tokens, batch_first=True), mask,
                pad(labels, batch_first=True, padding_value=IGNORED) if per_token else torch.stack(labels))
    net = reader(per_token)
    ignore = {"ignore_index": IGNORED, "class_axis": -1} if per_token else {}
    loader = torch.utils.data.DataLoader(Texts(TAGS if per_token else KINDS), batch_size=batch, collate_fn=tensors)
    train(net, tmp_path, loader, micro_batch_size=5, gradient_accumulation=3, **ignore)
    for name, w in reference(per_token, PLANS[1][1]).items():
        np.testing.assert_allclose(net.state_dict()[name], w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rounds", [True, False])
def test_lengths_are_few(rounds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded up, so that programs are few; or as they come, in which nobody needs a mask."""
    seen: set[int] = set()
    made = Trainer._call

    def call(self: Trainer, model: Any, batch: tuple[np.ndarray, ...], *more: Any) -> None:
        seen.add(batch[0].shape[1])
        made(self, model, batch, *more)
    monkeypatch.setattr(Trainer, "_call", call)
    with pytest.warns(tileflow.TileflowWarning, match="change their length: " + (
            "it is rounded up to 8, 12, 16, 24, 32 and so on and filled with zeros" if rounds else "each length has a program of its own")):
        tileflow.train(reader(False), data=Texts(KINDS), out=tmp_path, collate_fn=padded, round_lengths=rounds, micro_batch_size=1, max_batches=8,
                       **OPTIONS | {"epochs": 1})
    assert seen == {n if not rounds or n == LENGTHS[0] else rounded(n) for n in LENGTHS[:8].tolist()}
    assert len(seen) > 3


def test_what_lengths_are_rounded_to() -> None:
    assert sorted({rounded(n) for n in range(1, 130)}) == [8, 12, 16, 24, 32, 48, 64, 96, 128, 192]
    assert all(n <= rounded(n) <= max(8, 1.5 * n) for n in range(1, 2000))


@pytest.mark.parametrize("form", ["rows", "stream", "workers", "loader"])
@pytest.mark.parametrize("stop", [3, 5, pytest.param(6, marks=pytest.mark.exhaustive), pytest.param(8, marks=pytest.mark.exhaustive),
                                  pytest.param(11, marks=pytest.mark.exhaustive)])
def test_stopped_and_resumed(form: str, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits: rows are padded as they would have been, within the calls and in what is left at the end (four updates in two calls, then one of
    two micro-batches, then one of three rows)."""
    if form == "loader":
        torch = needs("torch")
        data = torch.utils.data.DataLoader(Texts(KINDS), batch_size=4, collate_fn=padded)
        how: dict[str, Any] = {}
    else:
        data, how = forms(False)[form]
    how = how | {"micro_batch_size": 4, "gradient_accumulation": 2, "device_iterations": 2, "shuffle": form in ("rows", "workers")}
    whole, parts, resumed = reader(False), reader(False), reader(False)
    train(whole, tmp_path / "whole", data, **how)
    made = Trainer._call

    def until(self: Trainer, *args: Any) -> None:
        made(self, *args)
        if self.session.updates >= stop:
            self._stop.set()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_call", until)
        with pytest.raises(Interrupted):
            train(parts, tmp_path / "parts", data, **how)
    train(resumed, tmp_path / "parts", data, resume=True, **how)
    for name, w in whole.state_dict().items():
        assert w.tobytes() == resumed.state_dict()[name].tobytes()


@pytest.mark.parametrize("per_token", [False, True])
def test_measured_on_all_that_counts(per_token: bool, tmp_path: Path) -> None:
    """Loss, accuracy and F1 of the test data, as of each text alone."""
    labels = TAGS if per_token else KINDS
    how = {"micro_batch_size": 4, "ignore_index": IGNORED, "class_axis": -1} if per_token else {"micro_batch_size": 4}
    net = reader(per_token)
    result = train(net, tmp_path, Texts(labels), test_data=Texts(labels), collate_fn=padded, epochs=1, metrics="accuracy,f1,auc", **how)
    model = tileflow.inference_model(net, precision="float64", on_new_shape="compile")
    losses, right = [], []
    for i in range(len(labels)):
        tokens, mask, wanted = padded([Texts(labels)[i]])
        scores = model(tokens, mask).reshape(-1, 4 if per_token else 3)
        chosen = scores[np.arange(len(scores)), wanted.reshape(-1)]
        losses += (np.log(np.exp(scores).sum(1)) - chosen).tolist()
        right += (scores.argmax(1) == wanted.reshape(-1)).tolist()
    assert result.history["test_loss"][0] == pytest.approx(np.mean(losses), rel=1e-9)
    assert result.history["test_accuracy"][0] == pytest.approx(np.mean(right), rel=1e-12)
    assert np.isfinite([result.history["test_f1"][0], result.history["test_auc"][0]]).all()
    again = result.evaluate([Texts(labels)[i] for i in range(42, -1, -1)])                    # whose first row has another length
    assert again["loss"] == pytest.approx(np.mean(losses), rel=1e-9)


def test_labels_that_nothing_fills(tmp_path: Path) -> None:
    """Each in a sentence; with an ignore_index the same data train."""
    with pytest.raises(DataError, match=r"^The labels of the data, part 2, are of \[\d+\] per row in one batch and longer in another, and what they "
                                        r"are filled up with must not count: set ignore_index"):
        train(reader(True), tmp_path / "a", Texts(TAGS), collate_fn=padded, micro_batch_size=5, class_axis=-1)
    one_hot = [np.eye(4, dtype=np.int64)[t] for t in TAGS]
    with pytest.raises(DataError, match=r"The labels of the data, part 2, are of .*with class numbers as labels"):
        train(reader(True), tmp_path / "b", Texts(one_hot), collate_fn=lambda rows: (*padded([(t, 0) for t, _ in rows])[:2], np.array(
            [np.pad(y, ((0, max(len(r[0]) for r in rows) - len(y)), (0, 0)), mode="edge") for _, y in rows])), micro_batch_size=5, class_axis=-1,
            ignore_index=IGNORED)
    train(reader(True), tmp_path / "c", Texts(TAGS), collate_fn=padded, micro_batch_size=5, class_axis=-1, ignore_index=IGNORED, epochs=1)


@pytest.mark.parametrize(("make", "said"), [
    (lambda rows: np.array([1.0, 2.0]), r"The collate_fn made parts of shapes \[2\] of 1 rows"),
    (lambda rows: (), "The collate_fn made parts of shapes no kind of 1 rows"),
    (lambda rows: tuple(a.T for a in padded(rows)), r"of 1 rows; give one array, .* the rows as its first axis \(pad_sequence: batch_first=True\)"),
    (lambda rows: (padded(rows)[:2], [[1, 2], [3]]), "A part of a batch of the data cannot be made an array"),
])
def test_collate_fns_that_make_something_else(make: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        train(reader(False), tmp_path, Texts(KINDS), collate_fn=make, micro_batch_size=5)


def test_where_a_collate_fn_has_no_effect(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    x, y = np.zeros((20, 4), np.float32), np.arange(20) % 3
    with pytest.raises(OptionError, match=r"^collate_fn has no effect on arrays and files, whose rows are arrays already\.$"):
        train(net, tmp_path, (x, y), collate_fn=padded)
    torch = needs("torch")
    with pytest.raises(OptionError, match=r"^collate_fn has no effect on data DataLoader, which give whole batches: give it to that loader\.$"):
        train(net, tmp_path, torch.utils.data.DataLoader(list(zip(x, y, strict=True)), batch_size=5), collate_fn=padded)


def test_rows_that_must_be_alike(tmp_path: Path) -> None:
    """Without a collate_fn, and where a row's shape is changed or scaled by place."""
    with pytest.raises(DataError, match=r"rows of a batch must be alike: pad them in the data set, or give a collate_fn that does; where each is a "):
        train(nn.Embedding(20, 3), tmp_path / "a", Texts(KINDS), micro_batch_size=5, class_axis=-1)
    with pytest.raises(DataError, match=r"^A row of the data set has shape \[\d+\], the first has \[\d+\]; such rows must be alike\.$"):
        train(nn.Sequential(nn.Linear(int(LENGTHS[0]), 3)), tmp_path / "b", [(t.astype(np.float32), k) for t, k in zip(TOKENS, KINDS, strict=True)],
              collate_fn=lambda rows: (padded(rows)[0].astype(np.float32), padded(rows)[2]), micro_batch_size=5,
              mean=tuple(range(int(LENGTHS[0]))))


def test_a_loop_of_ones_own_joins_no_lengths() -> None:
    """It has no labels and no loss that would say what to fill up with; batches that need not be joined are given as they are."""
    torch = needs("torch")
    batches = torch.utils.data.DataLoader(Texts(KINDS), batch_size=4, collate_fn=padded)
    with pytest.raises(DataError, match=r"^Part 0 of the data has shape \[\d+\] behind the rows in one batch and \[\d+\] in another, so that they"):
        list(tileflow.DataLoader(tileflow.Options(micro_batch_size=8), batches))
    assert len({b[0].shape for b in tileflow.DataLoader(tileflow.Options(micro_batch_size=4), batches, drop_last=False)}) > 2


def test_a_metric_of_all_rows_together(tmp_path: Path) -> None:
    """A function gets arrays, which rows of several lengths are not; of outputs that have one length it is measured."""
    def share(outputs: np.ndarray, labels: np.ndarray) -> float:
        return float((outputs.argmax(-1) == labels).mean())
    how: dict[str, Any] = dict(collate_fn=padded, epochs=1, metrics=[share], micro_batch_size=1)
    result = train(reader(False), tmp_path / "a", Texts(KINDS), test_data=lambda: (Texts(KINDS)[i] for i in range(43)), **how)
    assert result.history["test_share"][0] == pytest.approx(result.evaluate()["accuracy"])
    with pytest.raises(DataError, match=r"^The metric share is a function of all rows together, and the outputs or labels of some are longer"):
        train(reader(True), tmp_path / "b", Texts(TAGS), test_data=lambda: (Texts(TAGS)[i % 43] for i in range(67)), **how, ignore_index=IGNORED,
              class_axis=-1)


def test_inference_over_lengths() -> None:
    """A loader of PyTorch whose batches change their length."""
    torch = needs("torch")
    net = reader(False)
    batches = torch.utils.data.DataLoader([Texts(KINDS)[i] for i in range(12)], batch_size=3, collate_fn=padded)
    found = tileflow.infer(net, data=batches, micro_batch_size=3)
    assert all(a.shape == (12, 3) for a in found.values())


def test_a_file_with_an_open_length(tmp_path: Path) -> None:
    """An ONNX file whose length is open trains on all of them, and is what computes the same at any length."""
    x = draw.standard_normal((20, 5)).astype(np.float32)
    path = tmp_path / "model.onnx"
    net = model_of([node("Gather", ["table", "tokens"], ["g"], "gather"), node("Unsqueeze", ["mask", "last"], ["m"], "unsqueeze"),
                    node("Mul", ["g", "m"], ["x"], "mul"), node("ReduceSum", ["x", "axis"], ["s"], "sum", keepdims=0),
                    node("Gemm", ["s", "w", "b"], ["y"], "head")],
                   [port("tokens", ["N", "L"], "int64"), port("mask", ["N", "L"])], [port("y", ["N", 3])],
                   {"table": x, "w": draw.standard_normal((5, 3)).astype(np.float32), "b": np.zeros(3, np.float32),
                    "last": np.array([2]), "axis": np.array([1])})
    path.write_bytes(net.SerializeToString())
    results = []
    for rounds in (True, False):
        result = train(str(path), tmp_path / str(rounds), Texts(KINDS), collate_fn=lambda rows: (
            (made := padded(rows))[0], made[1].astype(np.float32), made[2]), micro_batch_size=5, round_lengths=rounds, test_data=Texts(KINDS))
        results.append(result)
    for name, w in results[0].weights.items():
        np.testing.assert_allclose(results[1].weights[name], w, rtol=1e-11, atol=1e-12)
    assert results[0].history["test_loss"] == pytest.approx(results[1].history["test_loss"])
    assert (tmp_path / "True" / "model.onnx").exists()


def test_rows_that_were_shaped_anew(tmp_path: Path) -> None:
    """Where the rows of the first batch are reshaped for the model, the others must be alike; a raw error of NumPy's came of it."""
    flat = model_of([node("Gemm", ["x", "w"], ["y"], "fc")], [port("x", ["N", 12])], [port("y", ["N", 3])],
                    {"w": draw.standard_normal((12, 3)).astype(np.float32)})
    path = tmp_path / "model.onnx"
    path.write_bytes(flat.SerializeToString())
    x = [draw.standard_normal((n, 4)).astype(np.float32) for n in (3, 3, 3, 5, 3, 3)]
    rows = list(zip(x, [0, 1, 2, 0, 1, 2], strict=True))
    with pytest.raises(DataError, match=r"^A row of the data set has shape \[5, 4\], the first has \[3, 4\], and is fed as \[12\]; such rows"):
        train(str(path), tmp_path / "a", rows, collate_fn=lambda some: (filled_rows([r[0] for r in some]), np.array([r[1] for r in some])),
              micro_batch_size=1)


def filled_rows(rows: list[np.ndarray]) -> np.ndarray:
    longest = max(map(len, rows))
    return np.array([np.pad(row, ((0, longest - len(row)), (0, 0))) for row in rows])


@pytest.mark.parametrize("first", [False, True])
def test_a_loader_whose_first_axis_is_no_rows(first: bool, tmp_path: Path) -> None:
    """What pad_sequence gives where nobody says batch_first."""
    torch = needs("torch")

    def tensors(rows: list[Any]) -> tuple[Any, ...]:
        tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row[0]) for row in rows], batch_first=first)
        return tokens, (tokens > 0).float(), torch.tensor([row[1] for row in rows])
    loader = torch.utils.data.DataLoader(Texts(KINDS), batch_size=5, collate_fn=tensors)
    if first:
        assert train(reader(False), tmp_path, loader, micro_batch_size=5, epochs=1).epochs
        return
    with pytest.raises(DataError, match=r"^A batch of the data has parts of shapes \[\d+, 5\], \[\d+, 5\], \[5\]; the first axis of each"):
        train(reader(False), tmp_path, loader, micro_batch_size=5)
