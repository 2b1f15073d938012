"""Data each element of which is a micro-batch: graphs, whose nodes and edges are of different numbers, trained as calls of a model train them."""
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
from tileflow.runtime.trainer import Trainer
from tileflow.system.errors import DataError, Interrupted, OptionError, ShapeError

draw = np.random.default_rng(3)
SIZES = [(5, 7), (4, 4), (9, 12), (5, 7), (3, 2), (9, 5), (6, 11)]
"""Nodes and edges."""


def graph(nodes: int, edges: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes [nodes, 3], where edges begin and end [edges, nodes], the nodes' classes [nodes]."""
    ends = np.zeros((edges, nodes), np.float32)
    ends[np.arange(edges), draw.integers(0, nodes, edges)] = 1
    ends[np.arange(edges), draw.integers(0, nodes, edges)] -= 1
    return draw.standard_normal((nodes, 3)).astype(np.float32), ends, draw.integers(0, 4, nodes)


GRAPHS = [graph(*size) for size in SIZES]
NAMED = [dict(zip(("ends", "y", "x"), (e, y, x), strict=True)) for x, e, y in GRAPHS]
OPTIONS: dict[str, Any] = dict(precision="float64", optimizer=optim.SGD(lr=0.1, momentum=0.9), loss="cross_entropy", shuffle=False, epochs=3,
                               whole_elements=True)


class Graphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(3, 6), nn.Linear(6, 4)

    def forward(self, x: Any, ends: Any) -> Any:
        return self.head((ends.transpose(0, 1) @ (ends @ self.message(x))).tanh())


def net() -> Graphs:
    made = Graphs()
    for i, p in enumerate(made.parameters()):
        p.data = np.random.default_rng(i).normal(size=p.shape).astype(np.float32)
    return made


def file() -> Any:
    weights = {n.replace("weight", "w"): np.ascontiguousarray(w.T) if w.ndim == 2 else w for n, w in net().state_dict().items()}
    return model_of([node("MatMul", ["x", "message.w"], ["p"], "product"), node("Add", ["p", "message.bias"], ["m"], "message"),
                     node("MatMul", ["ends", "m"], ["e"], "edges"), node("Transpose", ["ends"], ["t"], "turned", perm=[1, 0]),
                     node("MatMul", ["t", "e"], ["s"], "sums"), node("Tanh", ["s"], ["h"], "tanh"), node("MatMul", ["h", "head.w"], ["q"], "scores"),
                     node("Add", ["q", "head.bias"], ["y"], "head")],
                    [port("x", ["N", 3]), port("ends", ["E", "N"])], [port("y", ["N", 4])], weights)


def train(model: Any, out: Path, **more: Any) -> tileflow.TrainResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tileflow.TileflowWarning)
        return tileflow.train(model, out=out, **{"data": GRAPHS} | OPTIONS | more)


def by_calls(order: list[int]) -> dict[str, np.ndarray]:
    """A loop of one's own."""
    made = net()
    model = tileflow.training_model(made, precision="float64", optimizer=OPTIONS["optimizer"], loss="cross_entropy", on_new_shape="compile")
    for i in order:
        model(*GRAPHS[i])
    return made.state_dict()


@pytest.mark.parametrize("form", ["tuples", "names", "stream", "workers"])
@pytest.mark.parametrize("threads", [1, 3])
def test_as_a_loop_of_calls(form: str, threads: int, tmp_path: Path) -> None:
    data = {"tuples": GRAPHS, "names": NAMED, "stream": lambda: iter(GRAPHS), "workers": GRAPHS}[form]
    made = net()
    result = train(made, tmp_path, data=data, threads=threads, num_workers=2 if form == "workers" else 0)
    for name, w in by_calls(list(range(7)) * 3).items():
        assert made.state_dict()[name].tobytes() == w.tobytes()
    assert len(result.learning_rates) == 21
    assert [e.samples for e in result.epochs] == [sum(n for n, _ in SIZES)] * 3


def test_as_pytorch(tmp_path: Path) -> None:
    torch = needs("torch")
    w = {n: torch.from_numpy(a.astype(np.float64)).requires_grad_() for n, a in net().state_dict().items()}
    steps = torch.optim.SGD(w.values(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for x, ends, y in GRAPHS:
            steps.zero_grad()
            x, ends = torch.from_numpy(x).double(), torch.from_numpy(ends).double()
            h = (ends.T @ (ends @ (x @ w["message.weight"].T + w["message.bias"]))).tanh()
            torch.nn.functional.cross_entropy(h @ w["head.weight"].T + w["head.bias"], torch.from_numpy(y)).backward()
            steps.step()
    made = net()
    train(made, tmp_path / "net")
    path = tmp_path / "graphs.onnx"
    path.write_bytes(file().SerializeToString())
    found = train(str(path), tmp_path / "file", data=NAMED).weights
    for name, a in w.items():
        wanted = a.detach().numpy()
        np.testing.assert_allclose(made.state_dict()[name], wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found[name.replace("weight", "w")], wanted.T, rtol=1e-9, atol=1e-9)
    assert (tmp_path / "file" / "model.onnx").exists()


def test_losses_and_metrics_count_nodes(tmp_path: Path) -> None:
    """Not edges, and not graphs."""
    made = net()
    result = train(made, tmp_path, data=NAMED, test_data=NAMED[::-1], learning_rate=0.0, optimizer="sgd", momentum=0.0, epochs=1,
                   metrics="accuracy,f1")
    model = tileflow.inference_model(made, precision="float64", on_new_shape="compile")
    scores, labels = np.concatenate([model(x, e) for x, e, _ in GRAPHS]), np.concatenate([y for _, _, y in GRAPHS])
    loss = (np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]).mean()
    right = (scores.argmax(1) == labels).mean()
    for name, wanted in {"loss": loss, "test_loss": loss, "accuracy": right, "test_accuracy": right}.items():
        assert result.history[name][0] == pytest.approx(wanted, rel=1e-9)
    assert result.evaluate(NAMED[:3])["loss"] is not None


@pytest.mark.parametrize("data", [GRAPHS, lambda: iter(GRAPHS)])
def test_stopped_and_resumed(data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = net(), net()
    shuffle = not callable(data)
    train(whole, tmp_path / "whole", data=data, shuffle=shuffle)
    made = Trainer._call

    def until(self: Trainer, *args: Any) -> None:
        made(self, *args)
        if self.session.updates >= 10:
            self._stop.set()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_call", until)
        with pytest.raises(Interrupted):
            train(net(), tmp_path / "parts", data=data, shuffle=shuffle)
    train(resumed, tmp_path / "parts", data=data, shuffle=shuffle, resume=True)
    assert all(w.tobytes() == resumed.state_dict()[n].tobytes() for n, w in whole.state_dict().items())


@pytest.mark.parametrize("option", ["gradient_accumulation", "device_iterations", "replication_factor", "micro_batch_size"])
def test_one_element_is_one_call(option: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"^With whole_elements each element of the data is a micro-batch and an update: leave {option}=2 out"):
        train(net(), tmp_path, **{option: 2})
    train(net(), tmp_path / "one", **{option: 1}, epochs=1, data=GRAPHS[:1])


def test_data_that_have_no_elements(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^Option whole_elements is for data of elements, .* such as data in memory; a single element is"):
        train(net(), tmp_path / "a", data=(GRAPHS[0][0], GRAPHS[0][0], GRAPHS[0][2]))
    with pytest.raises(OptionError, match=r"^With whole_elements the data to measure with are elements, too, and no arrays or files"):
        train(net(), tmp_path / "b", test_data=(GRAPHS[0][0], GRAPHS[0][0], GRAPHS[0][2]))
    bad = (GRAPHS[3][0], GRAPHS[3][1], np.full(5, 7))
    with pytest.raises(DataError, match="7"):
        train(net(), tmp_path / "c", data=[*GRAPHS, bad])


class Pooled(Graphs):
    """Scores for a graph, [1, 4]."""

    def forward(self, x: Any, ends: Any) -> Any:
        return super().forward(x, ends).mean(0).reshape(1, 4)


def test_one_label_for_a_graph(tmp_path: Path) -> None:
    """A number, or an array of one, counts once; a share of the graphs is kept for measuring."""
    found = []
    for name, wrap in (("number", int), ("array", lambda y: np.array([y]))):
        nn.manual_seed(1)
        made = Pooled()
        result = train(made, tmp_path / name, data=[(x, e, wrap(i % 4)) for i, (x, e, _) in enumerate(GRAPHS)], validation_split=0.3)
        assert [e.samples for e in result.epochs] == [5] * 3
        assert np.isfinite(result.history["test_loss"]).all()
        found.append(made.state_dict())
    assert all(np.array_equal(w, found[1][n]) for n, w in found[0].items())


def test_a_loss_without_labels(tmp_path: Path) -> None:
    """The model's own loss of nodes and edges; there are no labels, so nodes are counted."""
    class Own(Graphs):
        def forward(self, x: Any, ends: Any) -> Any:
            return nn.identity_loss((super().forward(x, ends) ** 2).mean(), "none")
    data = [{"x": x, "ends": e} for x, e, _ in GRAPHS]
    result = train(Own(), tmp_path, data=data, test_data=data, loss="identity")
    assert [e.samples for e in result.epochs] == [sum(n for n, _ in SIZES)] * 3
    assert np.isfinite(result.history["test_loss"]).all()


def test_without_the_option(tmp_path: Path) -> None:
    """A sentence names it, where the model refuses rows and where rows cannot be put together."""
    with pytest.raises(ShapeError) as caught:
        train(net(), tmp_path, data=NAMED, whole_elements=False)
    assert caught.value.__notes__ == ["Elements of data list were taken for rows of micro-batches; where each is a micro-batch of its own, as a "
                                      "graph is, set whole_elements."]
    with pytest.raises(DataError, match=r"where each is a micro-batch of its own, as a graph is, set whole_elements\.$"):
        train(nn.Linear(3, 4), tmp_path, data=[{"x": x, "y": y} for x, _, y in GRAPHS], whole_elements=False)


def test_inference_has_no_elements() -> None:
    """Options of a run in another verb: what they would mean there is said."""
    with pytest.raises(OptionError, match=r"^Option whole_elements is for train; call the model from Python"):
        tileflow.infer(net(), tileflow.Options(whole_elements=True), data=NAMED)
