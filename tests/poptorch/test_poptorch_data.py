"""`poptorch.DataLoader` and its modes: the same rows in the same order, whoever reads them; data sets and samplers of
PyTorch's as they are."""
from __future__ import annotations

import os
import signal

import pytest
from peers import needs

torch = needs("torch")
poptorch = pytest.importorskip("tileflow.poptorch", reason="needs torch, which is not installed: pip install torch")
MODE = poptorch.DataLoaderMode
ROWS = torch.utils.data.TensorDataset(torch.arange(23.0), torch.arange(23))


def options() -> poptorch.Options:
    made = poptorch.Options().deviceIterations(2)
    made.Training.gradientAccumulation(2)
    return made


def epochs(mode, count: int = 2, **given) -> list:
    torch.manual_seed(3)
    loader = poptorch.DataLoader(options(), ROWS, batch_size=2, mode=mode, **given)
    return [[(x.tolist(), y.tolist()) for x, y in loader] for _ in range(count)]


def test_all_modes_give_the_same():
    wanted = epochs(MODE.Sync, shuffle=True)
    assert [len(x) for epoch in wanted for x, _ in epoch] == [8] * 4
    assert wanted[0] != wanted[1]
    for mode, given in ((MODE.Async, {}), (MODE.AsyncRebatched, {}),
                        (MODE.Async, {"async_options": {"buffer_size": 1}})):
        assert epochs(mode, shuffle=True, **given) == wanted
    plain = epochs(MODE.Sync, 1)
    for size in (1, 3, 8):
        assert epochs(MODE.AsyncRebatched, 1, rebatched_worker_size=size) == plain


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", list(MODE))
def test_worker_processes(mode):
    """Of PyTorch's own, which stay between epochs, give the same rows."""
    assert epochs(mode, 2, num_workers=2) == epochs(MODE.Sync, 2)


def test_sizes():
    loader = poptorch.DataLoader(options(), ROWS, batch_size=2)
    assert (loader.combinedBatchSize, loader.combined_batch_size, len(loader)) == (8, 8, 2)
    said = r"The number of elements in the dataset \(23\) is not divisible .* will have a batch size of 7"
    with pytest.warns(UserWarning, match=said):
        loader = poptorch.DataLoader(options(), ROWS, batch_size=2, drop_last=False, mode=MODE.AsyncRebatched,
                                     rebatched_worker_size=3)
    assert [len(x) for x, _ in loader] == [8, 8, 7]
    assert len(loader) == 3
    grouped = poptorch.Options().replicationFactor(4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert poptorch.DataLoader(grouped, ROWS, batch_size=3).combinedBatchSize == 6
    assert poptorch.DataLoader(options(), ROWS, batch_size=None).combinedBatchSize is None


def test_structures_and_samplers():
    """Dicts, iterable data sets, lists of row numbers."""
    class Named(torch.utils.data.IterableDataset):
        def __iter__(self):
            return ({"x": torch.tensor([float(i)]), "pair": (i, i + 1)} for i in range(9))
    made = poptorch.Options().deviceIterations(2)
    for mode in MODE:
        found = list(poptorch.DataLoader(made, Named(), batch_size=2, mode=mode))
        assert [b["x"].flatten().tolist() for b in found] == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
        assert found[1]["pair"][1].tolist() == [5, 6, 7, 8]
    batches = [[5, 4], [3, 2], [1, 0]]
    loader = poptorch.DataLoader(made, ROWS, batch_sampler=batches)
    assert [x.tolist() for x, _ in loader] == [[5.0, 4.0, 3.0, 2.0]]
    assert len(loader) == 1
    loader = poptorch.DataLoader(made, ROWS, batch_sampler=batches, drop_last=False)
    assert [x.tolist() for x, _ in loader] == [[5.0, 4.0, 3.0, 2.0], [1.0, 0.0]]


def test_errors_of_data_come_to_the_reader():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i == 5:
                raise OSError("row 5 is gone")
            return torch.tensor(float(i))
    for mode in MODE:
        with pytest.raises(OSError, match="row 5 is gone"):
            list(poptorch.DataLoader(poptorch.Options(), Broken(), batch_size=2, mode=mode))


class Killing(torch.utils.data.Dataset):
    """Kills whoever reads its row 5 for the first time."""

    def __init__(self, mark):
        self.mark = mark

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 5 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(float(i))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", list(MODE))
def test_a_killed_worker_says_how_to_go_on(mode, tmp_path):
    rows = Killing(tmp_path / "killed")
    loader = poptorch.DataLoader(poptorch.Options(), rows, batch_size=2, num_workers=1, mode=mode)
    with pytest.raises(poptorch.RecoverableError, match="DataLoader worker") as found:
        list(loader)
    assert found.value.recovery_action == "RESTART_WORKERS"
    loader.terminate()
    assert [x.tolist() for x in loader] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]


@pytest.mark.parametrize(("given", "says"), [
    ({"batch_sampler": [[1]], "shuffle": True}, "mutually exclusive with batch_size, shuffle"),
    ({"rebatched_worker_size": 3}, "is for mode=poptorch.DataLoaderMode.AsyncRebatched"),
    ({"mode": MODE.AsyncRebatched, "rebatched_worker_size": 5},
     r"The rebatched_worker_size \(5\) must be <= to the combined batch size \(4\)"),
    ({"mode": "async"}, r"must be a poptorch\.DataLoaderMode"), ({"batch_size": 0}, "at least 1"),
    ({"async_options": {"buffers": 3}}, "async_options has no buffers")])
def test_refused(given, says):
    with pytest.raises((poptorch.Error, AssertionError), match=says):
        poptorch.DataLoader(options(), ROWS, **given)
    with pytest.raises(AssertionError, match=r"takes poptorch\.Options first"):
        poptorch.DataLoader(ROWS, ROWS)


def test_accessor():
    """Fresh items, epochs one after the other, and an early end."""
    rows = poptorch.DataLoader(poptorch.Options(), ROWS, batch_size=4)
    accessor = poptorch.AsynchronousDataAccessor(rows, early_preload=True)
    assert len(accessor) == 5
    kept = [x for x, _ in accessor]
    assert [x[0].item() for x in kept] == [0.0, 4.0, 8.0, 12.0, 16.0]
    assert next(iter(accessor))[0].tolist() == [0.0, 1.0, 2.0, 3.0]
    accessor.terminate()
    assert len(list(accessor)) == 5
    assert [len(x) for x, _ in poptorch.AsynchronousDataAccessor(rows, rebatched_size=6)] == [6, 6, 6]
    with pytest.raises(poptorch.Error, match="already uses an AsynchronousDataAccessor internally"):
        poptorch.AsynchronousDataAccessor(poptorch.DataLoader(poptorch.Options(), ROWS, mode=MODE.Async))
    with pytest.raises(poptorch.Error, match="The Dataset is empty"):
        list(poptorch.AsynchronousDataAccessor([]))
