"""What ends a run in stages: an error of a data set, a killed worker, Ctrl-C while the pipeline drains or between two phases. Each time, whatever the
strategy, the run ends after a whole update, its last checkpoint is sound, and no process is left."""
from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import row_sets

import tileflow
from tileflow import nn, optim
from tileflow.executable import engine, image
from tileflow.lower.plan import Plan
from tileflow.program.schedule import Repeat, period
from tileflow.runtime import lowering
from tileflow.system.errors import DataError, Interrupted

STAGES: list[dict[str, Any]] = [{"strategy": "pipelined", "pipeline_splits": ("1", "2")},
                                {"strategy": "pipelined", "pipeline_splits": ("1", "2"), "pipeline_schedule": "1f1b"},
                                {"strategy": "serial_phased", "pipeline_splits": ("1", "2"), "tensors_liveness": "off_chip_after_each_phase"},
                                {"strategy": "sharded", "pipeline_splits": ("1", "2")},
                                {"strategy": "parallel_phased", "pipeline_splits": ("1", "2"), "separate_backward_phase": True}]
ACCUMULATION = 5


def network() -> nn.Module:
    nn.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 4))


def run(data: Any, out: Path, **more: Any) -> tileflow.TrainResult:
    """Two epochs of 4 updates of 5 micro-batches of 2 rows."""
    return tileflow.train(network(), data=data, optimizer=optim.SGD(lr=1e-4), epochs=2, micro_batch_size=2, gradient_accumulation=ACCUMULATION,
                          out=str(out), shuffle=False, save_every_updates=1, auto_round_num_ipus=True, threads=2, **more)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The weights of the run that nothing ends, on one IPU."""
    return dict(tileflow.train(network(), data=row_sets.Squares(), optimizer=optim.SGD(lr=1e-4), epochs=2, micro_batch_size=2,
                               gradient_accumulation=ACCUMULATION, out=str(tmp_path_factory.mktemp("whole")), shuffle=False).weights)


def goes_on(out: Path, wanted: dict[str, np.ndarray], stages: dict[str, Any]) -> None:
    """From its last checkpoint, with sound data, the run comes to the weights of the one that nothing ended."""
    resumed = run(row_sets.Squares(), out, resume=True, allow_other_data=True, **stages)
    for name, weight in wanted.items():
        np.testing.assert_array_equal(weight, resumed.weights[name])


def children() -> set[int]:
    """The processes that this one has started and that still run."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if "Z" not in (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]}


def none_is_left(before: set[int]) -> None:
    """Of the processes that were started since; a server that processes fork from may stay."""
    for _ in range(100):
        left = {pid for pid in children() - before if "forkserver" not in _command(pid) and "resource_tracker" not in _command(pid)}
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"processes are left: {[_command(pid) for pid in sorted(left)]}")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return "forkserver"                                                    # it has ended meanwhile


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are counted in /proc")
@pytest.mark.parametrize(("stages", "workers"), [(STAGES[0], 2), *((stages, 0) for stages in STAGES)])
def test_an_error_of_a_data_set_ends_the_run(tmp_path: Path, wanted: dict[str, np.ndarray], stages: dict[str, Any], workers: int):
    """Row 13 is of the second update: one update is done, and saved."""
    before = children()
    with pytest.raises(LookupError, match="row thirteen is missing"):
        run(row_sets.Failing(), tmp_path / "run", num_workers=workers, **stages)
    none_is_left(before)
    goes_on(tmp_path / "run", wanted, stages)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are counted in /proc")
@pytest.mark.parametrize("stages", [STAGES[0], *(pytest.param(stages, marks=pytest.mark.exhaustive) for stages in STAGES[1:])])
def test_a_killed_worker_ends_the_run(tmp_path: Path, wanted: dict[str, np.ndarray], stages: dict[str, Any]):
    before = children()
    with pytest.raises(DataError, match="ended with exit code 7"):
        run(row_sets.Dying(), tmp_path / "run", num_workers=2, **stages)
    none_is_left(before)
    goes_on(tmp_path / "run", wanted, stages)


@pytest.mark.parametrize("stages", STAGES)
def test_ctrl_c_within_an_update(tmp_path: Path, wanted: dict[str, np.ndarray], stages: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """A signal is sent in the third update, while its pipeline drains or, elsewhere, while its second micro-batches run: nothing of that update is
    done, and two are saved."""
    seen: list[int] = []
    plans: list[Plan] = []
    real, lowered = engine.Engine.drive, lowering.make_plan

    def planned(*args: Any) -> Plan:
        plans.append(lowered(*args))
        return plans[-1]

    def watched(self: engine.Engine, stop: Any = None) -> bool:
        main = next(r for r in period(plans[-1].program.schedule) if isinstance(r, Repeat) and r.by == 1)
        at = main.times if "pipelined" in stages.values() else 1
        assert 0 < at < ACCUMULATION

        def probe() -> bool:
            done = int(self._words[image.UPDATE]) + self.session.updates
            # all turns of the main part are done
            if done == 2 and at <= int(self._words[image.MICRO]) < ACCUMULATION and not seen:
                seen.append(done)
                os.kill(os.getpid(), signal.SIGINT)
            return stop() if stop is not None else False
        return real(self, probe)
    monkeypatch.setattr(engine, "SLICE_NS", 1)                                  # Python is asked after every row
    monkeypatch.setattr(engine.Engine, "drive", watched)
    monkeypatch.setattr(lowering, "make_plan", planned)
    with pytest.raises(Interrupted, match="Stopped after 2 updates"):
        run(row_sets.Squares(), tmp_path / "run", **stages)
    assert seen == [2]
    monkeypatch.undo()
    goes_on(tmp_path / "run", wanted, stages)
