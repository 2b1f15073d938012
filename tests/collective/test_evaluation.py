"""Test data measured by several processes: figures, findings and predictions are those of one process, to the bit."""
from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from groups import forked
from tileflow.errors import DataError, ProcessError

import tileflow
from tileflow import callbacks, collective, nn
from tileflow.collective import messages
from tileflow.runtime.evaluate import EvaluationModel

ROWS = 64 * 5 + 7
"""Five pieces of rows and a short one."""


def everything(outputs: np.ndarray, labels: np.ndarray) -> float:
    """A function of all rows in their order."""
    return float(np.cumsum(outputs[:, 0].astype(np.float64) * (labels.reshape(-1) + 1))[-1])


KINDS: dict[str, tuple[int, tuple[Any, ...]]] = {"classes": (3, ("accuracy", "f1", "auc", "perplexity", "top2", "miou",
                                                                 everything)),
                                                "numbers": (1, ("mae", "rmse", "r2", everything))}


def measured(kind: str, folder: Path, rows: int = ROWS, own: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """What a short run says of its test data, and what the trained model gives for others."""
    outputs, metrics = KINDS[kind]
    draw = np.random.default_rng(3)
    x = draw.standard_normal((rows + 24, 6)).astype(np.float32)
    if kind == "classes":
        y = draw.integers(0, 3, rows + 24)
    else:
        y = x[:, :1] * 2 + 0.1 * draw.standard_normal((rows + 24, 1)).astype(np.float32)
    nn.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, outputs))
    result = tileflow.train(net, data=(x[rows:], y[rows:]), test_data=(x[:rows], y[:rows]), metrics=metrics, epochs=2,
                            micro_batch_size=3, replication_factor=4, out=str(folder), threads=1, **more)
    findings = result._trainer.evaluator.findings
    assert findings is not None
    worst = [(r.number, r.loss, r.label, r.predicted, None if r.input is None else r.input.tobytes())
             for r in findings.worst]
    found = {"history": {n: c.tobytes() for n, c in result.history.items() if "second" not in n}, "worst": worst,
             "evaluated": result.evaluate((x[:70], y[:70])), "predicted": result.predict(x[:rows]).tobytes()}
    if kind == "classes":
        found["confusion"] = result.confusion_matrix((x[:100], y[:100])).tobytes()
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Any:
    return {kind: measured(kind, tmp_path_factory.mktemp("alone") / "run") for kind in KINDS}


CASES = [("classes", 3), ("numbers", 2)]


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
@pytest.mark.parametrize(("kind", "size"),
                         [*CASES, *(pytest.param(k, n, marks=pytest.mark.exhaustive) for k in KINDS for n in (2, 3, 4)
                                                      if (k, n) not in CASES)])
def test_figures_are_those_of_one_process(kind, size, alone, tmp_path):
    for found in forked(tmp_path / "group", size, lambda rank: measured(kind, tmp_path / "run")):
        assert found == alone[kind]


def stream() -> Any:
    """Rows that come one after the other, of which nobody knows how many."""
    draw = np.random.default_rng(4)
    for _ in range(300):
        x = draw.standard_normal(6).astype(np.float32)
        yield x, int(x[0] > 0)


def calls(rank: int, rows: int, folder: Path, source: Any = None) -> tuple[Any, int]:
    """The figures of a network that is not trained, and in how many calls this process had a part."""
    count = 0
    before = EvaluationModel.measure

    def counted(self: EvaluationModel, *arrays: np.ndarray) -> Any:
        nonlocal count
        count += 1
        return before(self, *arrays)
    EvaluationModel.measure = counted                                                # type: ignore[method-assign]
    draw = np.random.default_rng(3)
    x, y = draw.standard_normal((rows, 6)).astype(np.float32), draw.integers(0, 2, rows)
    nn.manual_seed(1)
    try:
        result = tileflow.train(nn.Linear(6, 2), data=(x[:24], y[:24]), test_data=(x, y) if source is None else source,
                                epochs=1, micro_batch_size=4, replication_factor=4, out=str(folder / "run"), threads=1)
    finally:
        EvaluationModel.measure = before                                             # type: ignore[method-assign]
    return {n: c.tobytes() for n, c in result.history.items() if n.startswith("test_")}, count


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_each_process_computes_its_part(tmp_path):
    figures, count = calls(0, 2000, tmp_path / "alone")
    assert count == 8
    assert forked(tmp_path, 2, lambda rank: calls(rank, 2000, tmp_path)) == [(figures, 4)] * 2


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_rows_that_come_one_after_the_other(tmp_path):
    figures, count = calls(0, 50, tmp_path / "alone", stream)
    found = forked(tmp_path, 2, lambda rank: calls(rank, 50, tmp_path, stream))
    assert [f for f, _ in found] == [figures] * 2
    assert sum(n for _, n in found) == count == 2


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_fewer_rows_than_processes(tmp_path):
    figures, _ = calls(0, 26, tmp_path / "alone")
    assert [f for f, _ in forked(tmp_path, 3, lambda rank: calls(rank, 26, tmp_path))] == [figures] * 3


class Asking(callbacks.Callback):
    """Measures and predicts within a callback, which only the first process has."""

    found: Any = None
    transient = ("found",)

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        assert collective.current() is None
        self.found = next(iter(tileflow.infer(self.run.model.source.net,
                                              data=np.ones((5, 6), np.float32)).values())).tobytes()


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_what_a_callback_does_the_first_process_does_alone(tmp_path):
    def run(rank: int, folder: Path) -> Any:
        asking = Asking()
        measured("classes", folder, callbacks=[asking])
        return asking.found
    wanted = run(0, tmp_path / "alone")
    assert wanted is not None
    assert forked(tmp_path / "group", 2, lambda rank: run(rank, tmp_path / "run")) == [wanted, None]


def test_alone_a_process_waits_for_nobody(tmp_path):
    def work(rank: int) -> bool:
        group = collective.current()
        assert group is not None
        if group.is_first:
            with collective.alone():
                assert collective.current() is None
                assert collective.init() is None
        return collective.current() is group
    assert forked(tmp_path, 2, work) == [True, True]


def test_items_come_in_order_until_somebody_has_none(tmp_path):
    def work(rank: int) -> list[list[int]]:
        group = collective.current()
        found = []
        for counts in ([3, 2, 2], [2, 2, 2], [0, 0, 0], [1, 5, 5]):
            own = ([(np.array(3 * i + rank),)] for i in range(counts[rank]))
            found.append([int(part[0]) for (part,) in collective.in_turns(group, own, "items")])
        return found
    assert forked(tmp_path, 3, work) == [[[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5], [], [0, 1, 2]]] * 3


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_an_error_in_one_ends_all(tmp_path):
    def broken() -> Any:
        yield from list(stream())[:20]
        raise DataError("the disk is gone")

    def work(rank: int) -> Any:
        return calls(rank, 50, tmp_path, broken if rank else stream)
    first, second = forked(tmp_path / "group", 2, work)
    assert isinstance(first, ProcessError)
    assert "the disk is gone" in str(first)
    assert isinstance(second, DataError)


def arrays(draw: np.random.Generator) -> list[Any]:
    return [draw.standard_normal((3, 4)).astype(np.float32), np.zeros((0, 3)), np.array(7), draw.random((2, 5)) > 0.5,
            np.ones((2, 2), "bfloat16"), np.array(["a", "über", ""], object), np.array(["xy", "z"]),
            np.ones((3, 2), np.int8).T]


def test_arrays_travel_as_they_are():
    sent = arrays(np.random.default_rng(0))
    (found, nothing) = messages.unpacked(messages.packed([tuple(sent), ()]), 0)
    assert nothing == ()
    for a, b in zip(sent, found, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tolist() == b.tolist()


def test_what_is_no_message_is_refused():
    """Cut off anywhere, and with any byte of the header changed: a sentence, or arrays, and nothing else."""
    whole = messages.packed([tuple(arrays(np.random.default_rng(0)))])
    for n in range(len(whole)):
        with pytest.raises(ProcessError, match="Process 3 has sent what are no arrays"):
            messages.unpacked(whole[:n], 3)
    header = 8 + int(whole[:8].view(np.int64)[0])
    for at in range(header):
        for value in (0, ord("9"), ord("]"), 255):
            changed = whole.copy()
            changed[at] = value
            with contextlib.suppress(ProcessError):
                messages.unpacked(changed, 3)
