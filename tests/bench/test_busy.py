"""`bench busy`: what its loads do to a process, and its verdict. What it measures is measured by hand."""
from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import busy
from bench.busy import Busy, Group, Neighbours, Stops, quota_of

WORK = """
import time
for _ in range(4):
    began, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < 0.1: pass
    print(time.perf_counter() - began, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs the clock of another process: Linux makes it run")
@pytest.mark.parametrize("make", [quota_of, Stops])
def test_a_quota_is_a_quota(make: type[Stops]):
    """A tenth of a core, by a control group where one can be made and by stopping: what takes 0.1 s takes many times as long."""
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        quota: Group | Stops = make(process.pid)
        quota.limit(0.1)
        took = [float(line) for line in process.stdout]
    quota.close()
    assert sorted(took)[1] > 0.4


def test_neighbours_are_busy_only_when_they_are_wanted():
    neighbours = Neighbours(1)
    clock = ((~neighbours._processes[0].pid) << 3) | 2
    try:
        used = []
        for count in (1, 0):
            neighbours.run(count)
            time.sleep(0.05)
            before = time.clock_gettime(clock)
            time.sleep(0.4)
            used.append(time.clock_gettime(clock) - before)
        assert used[0] > 10 * used[1]                        # to be stopped takes a little
    finally:
        neighbours.close()
    assert neighbours._processes[0].returncode is not None


def test_the_verdict():
    met = Busy("a", "2", "onnxruntime", ours_1=1.0, ours_2=1.05, peer_1=1.0, peer_2=1.5, ours_2_idle=0.75, peer_2_idle=1.0)
    assert (met.slowdown, met.loss, met.peer_loss) == (1.05, 1.05 / 0.75, 1.5)
    assert met.met
    assert not Busy(**{**vars(met), "ours_2": 1.06}).met
    assert not Busy(**{**vars(met), "peer_2": 1.3}).met
    assert Busy(**{**vars(met), "peer_1": None, "peer_2": None, "peer_2_idle": None}).met
    assert "not installed" in Busy(**{**vars(met), "peer_2": None}).to_text()


def test_a_load_that_is_not_known_and_a_folder_without_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        busy.main(["--models", str(tmp_path), "--loads", "3"])
    assert "no load is called 3" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"There is no .*mtcnn_onet\.onnx"):
        busy.main(["--models", str(tmp_path), "--only", "mtcnn"])
