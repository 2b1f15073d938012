"""Loaders over data sets of one's own: rows by number and in order, worker processes and what befalls them, samplers, PyTorch's data sets."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import row_sets
from peers import needs
from places import PATH
from row_sets import Squares

import tileflow
from tileflow import AsynchronousDataAccessor, DataLoader, Options, nn, optim
from tileflow.runtime.trainer import Trainer
from tileflow.system.errors import DataError, Interrupted, OptionError


def loader(data: Any, micro: int = 4, options: dict[str, Any] | None = None, **more: Any) -> DataLoader:
    return DataLoader(Options(micro_batch_size=micro, **(options or {})), data, **more)


def labels(batches: Any) -> list[int]:
    return [int(y) for batch in batches for y in batch[1]]


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


# ---- rows by number, read here


def test_a_batch_is_micro_batch_times_replicas_times_accumulation_times_iterations():
    made = loader(Squares(100), 2, {"replication_factor": 4, "input_group_size": 2, "gradient_accumulation": 3, "device_iterations": 2},
                  shuffle=False)
    assert made.combined_batch_size == 24
    assert len(made) == 4
    assert made.options.is_frozen
    got = list(made)
    assert [x.shape for x, _ in got] == [(24, 2)] * 4
    np.testing.assert_array_equal(np.concatenate([x for x, _ in got])[:, 1], np.arange(96.0) ** 2)
    assert "100 rows in 4 batches of 24; the last 4 rows of an epoch are left out" in repr(made)


def test_the_last_rows():
    with pytest.warns(UserWarning, match="last batch of data Squares has 2 rows instead of 4"):
        made = loader(Squares(10), options={"drop_last": False})
    assert [len(y) for _, y in made] == [4, 4, 2]
    assert [len(y) for _, y in loader(Squares(10), drop_last=True)] == [4, 4]
    with pytest.raises(DataError, match="3 rows, fewer than one batch of 4"):
        loader(Squares(3))


def test_rows_that_are_dicts_give_dicts():
    for batch in loader(row_sets.Named(8), shuffle=False):
        assert list(batch) == ["x", "label"]
        assert batch["x"].shape == (4, 2)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_order_is_that_of_arrays(mode: str):
    """Seed and epoch say it alone, whatever the data are."""
    rows = np.arange(40)
    arrays = loader((np.stack([rows, rows], 1), rows))
    mine = loader(Squares(40), mode=mode)
    for _ in range(2):
        assert [int(x) for batch in mine for x in batch[0][:, 0]] == labels(arrays)
    mine.set_epoch(1, offset=8)
    arrays.set_epoch(1, offset=8)
    assert [int(x) for batch in mine for x in batch[0][:, 0]] == labels(arrays)


def test_samplers():
    class Backwards:
        epochs: list[int] = []                  # noqa: RUF012

        def __iter__(self) -> Iterator[int]:
            return iter(range(11, -1, -1))

        def __len__(self) -> int:
            return 12

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)
    made = loader(row_sets.WhoReads(40), sampler=Backwards())
    assert labels(made) == labels(made) == list(range(11, -1, -1))
    assert Backwards.epochs == [0, 1]
    pairs = [[5, 4], [1, 0], [9, 8], [3, 2], [7, 6]]
    made = loader(row_sets.WhoReads(40), options={"gradient_accumulation": 2}, batch_sampler=pairs)
    assert labels(made) == [5, 4, 1, 0, 9, 8, 3, 2]                     # two micro-batches a call; the incomplete tail is left out
    assert [len(y) for _, y in loader(row_sets.WhoReads(40), options={"gradient_accumulation": 2}, batch_sampler=pairs, drop_last=False)] == [4, 4, 2]
    with pytest.raises(DataError, match="batches of 2 rows and of 3"):
        list(loader(Squares(), batch_sampler=[[0, 1], [2, 3, 4], [5, 6]]))


@pytest.mark.parametrize(("more", "sentence"), [
    ({"batch_sampler": [[0]], "batch_size": 2}, "mutually exclusive"), ({"batch_sampler": [[0]], "shuffle": True}, "mutually exclusive"),
    ({"sampler": [0], "shuffle": True}, "exclude each other"), ({"mode": "fast"}, "mode must be one of sync, async, async_rebatched"),
    ({"num_workers": -1}, "at least 0"), ({"mode": "async_rebatched"}, "set num_workers"), ({"rebatched_worker_size": 2}, "no effect with the mode"),
    ({"mode": "async_rebatched", "num_workers": 2, "rebatched_worker_size": 5}, r"\(5\) must be <= to the combined batch size \(4\)")])
def test_arguments_that_do_not_go_together(more: dict[str, Any], sentence: str):
    with pytest.raises(OptionError, match=sentence):
        loader(Squares(), **more)


def test_rows_that_are_not_alike():
    with pytest.raises(DataError, match=r"number 0 of the data set's rows has shape \[2\] in one row and \[1\] in another"):
        list(loader(row_sets.Ragged(), shuffle=False))


# ---- rows in order


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_in_order(workers: int):
    made = loader(row_sets.InOrder(10), num_workers=workers)
    with pytest.raises(TypeError, match="no length"):
        len(made)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"last 2 rows .* are left out"):
            assert [int(v) for x, _ in made for v in x[:, 0]] == list(range(8))
    short = loader(row_sets.InOrder(10), num_workers=workers, drop_last=False)
    assert [len(y) for _, y in short] == [4, 4, 2]
    short.set_epoch(0, offset=4)
    assert [int(v) for x, _ in short for v in x[:, 0]] == list(range(4, 10))
    assert len(loader(row_sets.InOrderWithLength(12))) == 3


def test_generators():
    made = loader(iter(Squares(8)[i] for i in range(8)))
    assert [int(v) for x, _ in made for v in x[:, 0]] == list(range(8))
    with pytest.raises(DataError, match="can be gone through once"):
        list(made)
    again = loader(lambda: (Squares(8)[i] for i in range(8)))
    assert [len(list(again)) for _ in range(2)] == [2, 2]
    with pytest.raises(DataError, match="a generator cannot be sent to another process"):
        list(loader((row for row in ()), num_workers=1))
    with pytest.raises(DataError, match="gave 0 rows, fewer than one batch"):
        list(loader(row_sets.InOrder(0)))


def test_data_larger_than_memory(tmp_path: Path):
    """64 GB of rows that are made when they are read, and a file of a terabyte of zeros that is read where it lies."""
    class Endless:
        def __iter__(self) -> Iterator[Any]:
            return ((np.full(1 << 16, i, np.float32), i) for i in range(1 << 18))
    batches = iter(loader(Endless()))
    assert [int(next(batches)[0][0, 0]) for _ in range(5)] == [0, 4, 8, 12, 16]
    batches.close()                                                       # type: ignore[attr-defined]
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (1 << 22, 1 << 14))          # sparse: nothing is written
    del file
    first = next(iter(loader(str(tmp_path / "x.npy"))))
    assert first[0].shape == (4, 1 << 14)


# ---- worker processes


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    made = loader(row_sets.WhoReads(42))
    return [labels(made), labels(made)]


@pytest.mark.parametrize(("workers", "more"), [(1, {}), (3, {}), (2, {"mode": "sync"}), (2, {"mode": "async_rebatched"}),
                                               (3, {"mode": "async_rebatched", "rebatched_worker_size": 1}), (2, {"persistent_workers": False})])
def test_the_number_of_workers_does_not_show(workers: int, more: dict[str, Any], wanted: list[list[int]]):
    made = loader(row_sets.WhoReads(42), num_workers=workers, **more)
    assert [labels(made), labels(made)] == wanted
    made.set_epoch(1, offset=8)
    assert labels(made) == wanted[1][8:]
    made.terminate()


def test_random_rows_follow_from_the_seed_not_from_the_workers():
    def run(workers: int, seed: int = 0) -> np.ndarray:
        made = loader(row_sets.Random(24), num_workers=workers, seed=seed)
        found = np.concatenate([x for x, _ in made])
        made.terminate()
        return found
    one = run(1)
    np.testing.assert_array_equal(one, run(3))
    assert not np.array_equal(one, run(1, seed=1))
    assert len(np.unique(one)) == one.size


def test_workers_stay_and_go():
    made = loader(row_sets.WhoReads(8), num_workers=2, worker_init_fn=row_sets.numbered, shuffle=False)
    assert [int(v) for x, _ in made for v in x[:, 0]] == [0] * 4 + [1] * 4
    assert made._workers is not None
    pids = made._workers.pids
    list(made)
    assert made._workers.pids == pids                                      # persistent by default
    for batch in made:                                                     # an epoch that is left early ...
        assert len(batch[1]) == 4
        break
    assert labels(made) == list(range(8))                                  # ... does not reach into the next
    made.terminate()
    assert wait_for(lambda: not any(map(is_running, pids)))
    made = loader(Squares(8), num_workers=1, persistent_workers=False)
    epoch = iter(made)
    next(epoch)
    assert made._workers is not None
    pids = made._workers.pids
    list(epoch)
    assert wait_for(lambda: not any(map(is_running, pids)))
    made = loader(Squares(8), num_workers=1)
    list(made)
    pids = made._workers.pids                                              # type: ignore[union-attr]
    del made
    assert wait_for(lambda: not any(map(is_running, pids)))                # nobody holds the loader any more


def test_an_exception_in_a_worker_is_the_users():
    made = loader(row_sets.Failing(), num_workers=2)
    with pytest.raises(LookupError, match="row thirteen is missing") as caught:
        list(made)
    assert "in __getitem__" in caught.value.__notes__[0]
    assert "In worker process" in caught.value.__notes__[0]
    made.terminate()
    with pytest.raises(DataError, match="OwnError: 1 and 2") as strange:
        list(loader(row_sets.FailingStrangely(), num_workers=1))
    assert "in __getitem__" in strange.value.__notes__[0]
    with pytest.raises(LookupError, match="row thirteen"):
        list(loader(row_sets.Failing()))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("data", [
    row_sets.Leaving(SystemExit(0)), row_sets.Leaving(StopIteration()), row_sets.AllOf(row_sets.Leaving(SystemExit(0)))],
    ids=["exit", "stop", "exit in order"])
def test_what_would_end_a_process_or_an_epoch_is_an_error_of_the_data_set(data: Any, mode: str, workers: int):
    """exit(0) in a data set ended the run as a success, and a StopIteration came as a generator's RuntimeError."""
    with pytest.raises(DataError, match=r"The data set raised (SystemExit\(0\)|StopIteration\(\)) where it was to give rows") as caught:
        list(loader(data, mode=mode, num_workers=workers))
    if workers:
        assert "in __getitem__" in caught.value.__notes__[0]


def test_an_epoch_ends_with_its_iterator_only():
    with pytest.raises(DataError, match="raised StopIteration"):
        list(loader(Squares(), collate_fn=row_sets.leaves_on_read))
    rows = iter([Squares()[i] for i in range(10)])
    assert labels(loader(lambda: rows, drop_last=False)) == [i % 4 for i in range(10)]
    with pytest.raises(DataError, match="The data set raised SystemExit"):
        list(AsynchronousDataAccessor(row_sets.AllOf(row_sets.Leaving(SystemExit(1)))))


def test_a_worker_that_hangs_has_a_timeout(tmp_path: Path):
    """All end; what is read again is read by others."""
    made = loader(row_sets.Patient(str(tmp_path / "pids"), 8), num_workers=2, timeout=5.0, shuffle=False)
    for _ in range(2):
        epoch = iter(made)
        assert labels([next(epoch), next(epoch)]) == [0, 1, 2, 3] * 2
        wanted = r"Worker process 0 \(pid \d+\) that reads data Patient gave nothing for 5 s \(the timeout\)"
        with pytest.raises(DataError, match=wanted):
            next(epoch)
        assert made._workers is not None
        assert not any(map(is_running, made._workers.pids))
    assert len(list(loader(Squares(seconds=0.01), num_workers=1, timeout=5.0))) == 10
    with pytest.raises(OptionError, match="about worker processes: set num_workers"):
        loader(Squares(), timeout=5.0)
    with pytest.raises(OptionError, match="a number of seconds, or 0 for any time, not -1"):
        loader(Squares(), num_workers=1, timeout=-1)


def test_reading_again_after_a_worker_that_ended(tmp_path: Path):
    names = iter("abc")

    def dying() -> row_sets.DyingOnce:
        return row_sets.DyingOnce(str(tmp_path / next(names)))
    numbered, in_order = loader(dying(), num_workers=1, shuffle=False), loader(row_sets.AllOf(dying()), num_workers=1)
    accessor = AsynchronousDataAccessor(row_sets.AllOf(dying()), early_preload=True)
    for data in (numbered, in_order, accessor):
        with pytest.raises(DataError, match="ended with exit code 7"):
            list(data)
    for again in (numbered, in_order):
        assert labels(again) == [i % 4 for i in range(40)]
        again.terminate()
    assert [y for _, y in accessor] == [i % 4 for i in range(40)]
    accessor.terminate()
    assert len(list(accessor)) == 40
    accessor.terminate()


def test_a_worker_that_ends_or_is_killed(tmp_path: Path):
    with pytest.raises(DataError, match=r"reads data Dying ended with exit code 7 before it gave"):
        list(loader(row_sets.Dying(), num_workers=2))
    path = tmp_path / "pids"
    made = loader(row_sets.Patient(str(path)), num_workers=1)

    def kill() -> None:
        assert wait_for(path.exists)
        os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(DataError, match=r"ended by signal 9 \(SIGKILL\).*not enough memory"):
        list(made)
    killer.join()


def test_data_that_cannot_be_sent():
    with pytest.raises(DataError, match="cannot be sent to worker processes"):
        list(loader(row_sets.Unpicklable(), num_workers=1))
    with pytest.raises(DataError, match="cannot be sent to worker processes"):
        list(loader(Squares(), num_workers=1, worker_init_fn=lambda i: None))


SCRIPT = """
import os, sys, threading, time
sys.path[:0] = {paths!r}
import tileflow
from row_sets import Patient, Squares
{main}
"""


def script(tmp_path: Path, main: str) -> subprocess.Popen[str]:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(paths=PATH.split(os.pathsep), main=main))
    return subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                            start_new_session=True)


MAIN = """
if __name__ == "__main__":
    loader = tileflow.DataLoader(tileflow.Options(micro_batch_size=4, shuffle=False), Patient("pids", 8), num_workers=2)
    for batch in loader:
        print("batch", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_die_with_the_parent(tmp_path: Path, how: signal.Signals):
    process = script(tmp_path, MAIN)
    pids = tmp_path / "pids"
    try:
        assert wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        workers = [int(pid) for pid in pids.read_text().split()]
        assert all(map(is_running, workers))
        process.send_signal(how) if how == signal.SIGKILL else os.killpg(process.pid, how)          # a terminal's Ctrl-C reaches them all
        _, said = process.communicate(timeout=30)
        assert process.returncode != 0
        assert said.count("KeyboardInterrupt") <= 1                          # the workers say nothing
        assert wait_for(lambda: not any(map(is_running, workers)))
    finally:
        process.kill()


def test_a_script_without_the_guard_is_told_so(tmp_path: Path):
    process = script(tmp_path, "print(list(tileflow.DataLoader(tileflow.Options(micro_batch_size=4), Squares(), num_workers=1)))")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert 'must stand below `if __name__ == "__main__":`' in said


# ---- the accessor


@pytest.mark.parametrize("more", [{}, {"load_indefinitely": False}, {"early_preload": True}, {"buffer_size": 1}])
def test_accessor(more: dict[str, Any]):
    made = AsynchronousDataAccessor(row_sets.InOrderWithLength(7), **more)
    assert len(made) == 7
    kept = []
    for _ in range(2):
        kept.append([x for x, _ in made])
    assert [[int(x[0]) for x in epoch] for epoch in kept] == [list(range(7))] * 2          # fresh arrays: none overwrote another
    for x, _ in made:
        if x[0] == 3:
            break
    assert [int(x[0]) for x, _ in made] == list(range(7))                                 # begun anew in the middle of an epoch
    made.terminate()


def test_accessor_refuses():
    with pytest.raises(DataError, match="The Dataset is empty"):
        list(AsynchronousDataAccessor([]))
    with pytest.raises(OptionError, match="already reads ahead"):
        AsynchronousDataAccessor(loader(Squares()))
    with pytest.raises(OptionError, match="process of its own"):
        loader(AsynchronousDataAccessor([1]))
    with pytest.raises(DataError, match="takes an iterable"):
        AsynchronousDataAccessor(3)                                        # type: ignore[arg-type]


# ---- training


def network() -> nn.Module:
    nn.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))


def arrays(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rows = [Squares(n)[i] for i in range(n)]
    return np.stack([x for x, _ in rows]), np.array([y for _, y in rows])


def run(data: Any, folder: Path, **more: Any) -> tileflow.TrainResult:
    return tileflow.train(network(), data=data, optimizer=optim.SGD(lr=1e-4), epochs=2, micro_batch_size=4, gradient_accumulation=2,
                          out=str(folder), **more)


@pytest.mark.parametrize(("kind", "more"), [
    (Squares, {}), (row_sets.Named, {}), (Squares, {"num_workers": 2}),
    (row_sets.Named, {"num_workers": 2, "data_loader_mode": "async_rebatched", "rebatched_worker_size": 3})])
def test_training_on_rows_of_ones_own_is_training_on_arrays(tmp_path: Path, more: dict[str, Any], kind: Any):
    one, other = run(arrays(), tmp_path / "a", drop_last=False), run(kind(), tmp_path / "b", drop_last=False, **more)
    for name, weight in one.weights.items():
        np.testing.assert_array_equal(weight, other.weights[name])
    assert one.evaluate(arrays()) == other.evaluate(kind())


@pytest.mark.parametrize("workers", [0, 1])
def test_training_on_rows_in_order(tmp_path: Path, workers: int):
    wanted = run(arrays(), tmp_path / "a", shuffle=False).weights
    streams: list[tuple[Any, dict[str, Any]]] = [(row_sets.InOrderWithLength(40), {}), (row_sets.InOrder(1000), {"max_batches": 5}),
                                              (row_sets.InOrder(40), {})]
    for i, (data, more) in enumerate(streams):
        found = run(data, tmp_path / f"b{i}", num_workers=workers, **more)
        for name, weight in found.weights.items():
            np.testing.assert_array_equal(weight, wanted[name])


def test_a_loader_of_ours_is_no_data_set(tmp_path: Path):
    with pytest.raises(DataError, match="give the data set itself, and settings such as num_workers"):
        run(loader(Squares()), tmp_path)
    with pytest.raises(DataError, match="give the data set itself"):
        loader(loader(Squares()))


def test_resumed_training_on_rows_of_ones_own(tmp_path: Path):
    for i, (data, more) in enumerate([(Squares(), {}), (row_sets.InOrderWithLength(40), {})]):
        whole = run(data, tmp_path / f"whole{i}", save_every_updates=3, **more)
        tileflow.train(network(), data=data, optimizer=optim.SGD(lr=1e-4), epochs=1, micro_batch_size=4, gradient_accumulation=2,
                       out=str(tmp_path / f"parts{i}"))
        resumed = run(data, tmp_path / f"parts{i}", resume=True)
        for name, weight in whole.weights.items():
            np.testing.assert_array_equal(weight, resumed.weights[name])


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("kind", [row_sets.InOrder, row_sets.InOrderWithLength, Squares])
def test_stopped_at_the_end_of_an_epoch(kind: Any, iterations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of an epoch of five updates of eight rows, the last one alone where calls have two, then one micro-batch, then two rows."""
    data = kind(46)
    more: dict[str, Any] = {"drop_last": False, "device_iterations": iterations, "shuffle": False}
    whole = run(data, tmp_path / "whole", **more)
    updates = json.loads((tmp_path / "whole" / "metrics.json").read_text())["updates"]
    assert updates == 14
    for stop in (4, 5, 6, 7, 13):
        made = Trainer._call

        def until(self: Trainer, *args: Any, stop: int = stop, made: Any = made) -> None:
            made(self, *args)
            if self.session.updates >= stop:
                self._stop.set()
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_call", until)
            with contextlib.suppress(Interrupted):
                run(data, tmp_path / str(stop), **more)
        resumed = run(data, tmp_path / str(stop), resume=True, **more)
        assert [(e.loss, e.samples) for e in resumed.epochs] == [(e.loss, e.samples) for e in whole.epochs], stop
        for name, weight in whole.weights.items():
            np.testing.assert_array_equal(weight, resumed.weights[name])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_raises_ends_the_run_after_a_whole_update(tmp_path: Path, workers: int):
    """The error is the data set's; what was saved last stands, and going on with sound data is the run."""
    wanted = run(arrays(), tmp_path / "whole").weights
    with pytest.raises(LookupError, match="row thirteen"):
        run(row_sets.Failing(), tmp_path / "broken", num_workers=workers, save_every_updates=1)
    resumed = run(Squares(), tmp_path / "broken", resume=True, allow_other_data=True)
    for name, weight in wanted.items():
        np.testing.assert_array_equal(weight, resumed.weights[name])


# ---- PyTorch's


def test_torch_data_sets_and_loaders(tmp_path: Path):
    torch = needs("torch")
    x, y = arrays()
    tensors = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    wanted = loader((x, y))
    found = loader(tensors)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
    theirs = torch.utils.data.DataLoader(tensors, batch_size=7)
    mine = loader(theirs)
    assert len(mine) == 10
    np.testing.assert_array_equal(np.concatenate([a for a, _ in mine]), x)                 # batches of 7 put together anew as batches of 4
    one, other, third = (run(data, tmp_path / name, shuffle=False) for data, name in (((x, y), "a"), (tensors, "b"), (theirs, "c")))
    for name, weight in one.weights.items():
        np.testing.assert_array_equal(weight, other.weights[name])
        np.testing.assert_array_equal(weight, third.weights[name])
    with pytest.warns(UserWarning, match="one after the other, so one worker process reads them"):
        assert len(list(loader(theirs, num_workers=2))) == 10




def test_torch_iterable_data_set():
    torch = needs("torch")

    class Counting(torch.utils.data.IterableDataset):                     # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[Any]:
            return ((torch.full((3,), float(i)), i) for i in range(8))
    assert labels(loader(Counting())) == list(range(8))


# ---- what ends a run


RUN = """
import numpy as np
from tileflow import nn, optim

def network():
    nn.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))

if __name__ == "__main__":
    tileflow.train(network(), data={data}, optimizer=optim.SGD(lr=1e-4), epochs=2, micro_batch_size=4, gradient_accumulation=2, shuffle=False,
                   save_every_updates=1, out="run", num_workers={workers})
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_while_a_data_set_hangs(tmp_path: Path, workers: int):
    """The run ends after its last whole update, though nobody gives the next row; going on with sound data is the run."""
    process = script(tmp_path, RUN.format(data='Patient("pids", 24)', workers=workers))
    pids = tmp_path / "pids"
    try:
        assert wait_for(lambda: pids.exists() and len(pids.read_text().split()) >= max(workers, 1), 60)
        assert wait_for(lambda: (tmp_path / "run" / "metrics.json").exists(), 60)
        time.sleep(0.5)                                                    # the updates before the row that hangs are done
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert "Interrupted: Stopped after 3 updates" in said
        assert wait_for(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))
    finally:
        process.kill()
    resumed = run(Squares(), tmp_path / "run", resume=True, allow_other_data=True, shuffle=False)
    wanted = run(Squares(), tmp_path / "whole", shuffle=False)
    for name, weight in wanted.weights.items():
        np.testing.assert_array_equal(weight, resumed.weights[name])


def test_a_killed_worker_ends_the_run_and_the_last_checkpoint_stands(tmp_path: Path):
    with pytest.raises(DataError, match="ended with exit code 7"):
        run(row_sets.Dying(), tmp_path / "run", num_workers=2, save_every_updates=1, shuffle=False)
    resumed = run(Squares(), tmp_path / "run", resume=True, allow_other_data=True, shuffle=False)
    wanted = run(Squares(), tmp_path / "whole", shuffle=False)
    for name, weight in wanted.weights.items():
        np.testing.assert_array_equal(weight, resumed.weights[name])
