"""One run at a time in a folder: the second gets a sentence, whoever is killed gives the folder back, and reading a run needs no lock."""
from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import child
from places import PATH, ROOT
from said import Said

import tileflow
from tileflow import nn
from tileflow.callbacks import Callback
from tileflow.runtime import run_lock
from tileflow.runtime.run_folder import CHECKPOINT, run_folder
from tileflow.runtime.run_lock import LOCK
from tileflow.system.errors import CheckpointError

fcntl = pytest.importorskip("fcntl", reason="a system with flock has such locks")
RNG = np.random.default_rng(0)
DATA = RNG.standard_normal((32, 4)).astype(np.float32), RNG.integers(0, 3, 32)
HELD = r"Another run has the folder \S+ \(process {} on \S+, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\); wait for it to end, or choose another folder"


def net() -> nn.Module:
    nn.manual_seed(0)
    return nn.Linear(4, 3)


def train(folder: Path, **changes: Any) -> Any:
    return tileflow.train(net(), data=DATA, out=str(folder), micro_batch_size=8, **changes)


class Meanwhile(Callback):
    """Does something while the run goes on."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        self.work()


@pytest.mark.parametrize("second", [dict(), dict(resume=True), dict(resume=True, epochs=5)])
def test_a_second_run_in_the_folder(second: dict[str, Any], tmp_path: Path):
    """It gets a sentence, whatever it was to do, and the first one goes on as if alone; one in another folder runs."""
    said: list[str] = []

    def another() -> None:
        before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
        with pytest.raises(CheckpointError, match=HELD.format(os.getpid())) as told:
            train(tmp_path / "run", **second)
        said.append(str(told.value))
        assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
        train(tmp_path / f"other{len(said)}")
    found = train(tmp_path / "run", epochs=2, callbacks=Meanwhile(another))
    assert len(said) == 2
    alone = train(tmp_path / "alone", epochs=2)
    assert {n: w.tobytes() for n, w in found.weights.items()} == {n: w.tobytes() for n, w in alone.weights.items()}
    train(tmp_path / "run", epochs=3, resume=True)                         # it is given back


def test_a_run_that_fails_gives_the_folder_back(tmp_path: Path):
    def fail() -> None:
        raise RuntimeError("a callback's own")
    with pytest.raises(RuntimeError) as kept:                              # with all its frames
        train(tmp_path, callbacks=Meanwhile(fail))
    train(tmp_path)
    assert kept.value.args == ("a callback's own",)


def test_the_folder_by_another_name_is_the_same(tmp_path: Path):
    (tmp_path / "link").symlink_to("run")
    with run_folder(str(tmp_path / "run"), False, Said().on_message), \
            pytest.raises(CheckpointError, match="Another run has the folder"):
        train(tmp_path / "link")
    train(tmp_path / "link")
    assert (tmp_path / "run" / CHECKPOINT).exists()


def test_reading_a_run_needs_no_lock(tmp_path: Path):
    """Nor a file that could be written."""
    model = Path(tileflow.__file__).parent / "data" / "digits_cnn.onnx"
    tileflow.train(model, data="digits", out=str(tmp_path), max_batches=1)
    x = RNG.random((4, 1, 8, 8)).astype(np.float32)
    with run_folder(str(tmp_path), True, Said().on_message):
        tileflow.infer(tmp_path / "model.onnx", data=x)
        assert tileflow.load(tmp_path / "model.onnx")
        other = tileflow.train(model, data="digits", out=str(tmp_path / "other"), resume=str(tmp_path / CHECKPOINT), epochs=2, max_batches=1)
    assert len(other.epochs) == 2


def test_no_fork_holds_it(tmp_path: Path):
    """A child closes its copy, and does not give back what its parent has."""
    with ExitStack() as run:
        run.enter_context(run_folder(str(tmp_path), False, Said().on_message))

        def nothing_held() -> bool:
            names = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{n}")]
            run.close()
            return not any(name.endswith(LOCK) for name in names)
        if os.path.isdir("/proc/self/fd"):
            assert child(nothing_held) == 0
        with pytest.raises(CheckpointError, match="Another run"):
            train(tmp_path)


def test_the_parent_killed_with_a_forked_child_alive(tmp_path: Path):
    """The child lives on; the run is resumed at once."""
    script = ("import os, sys, time, numpy as np\n"
              f"sys.path += {PATH.split(os.pathsep)!r}\n"
              "from test_run_lock import train, Meanwhile\n"
              "from pathlib import Path\n"
              "class Forks(Meanwhile):\n"
              "    def on_epoch_end(self, epoch, logs):\n"
              "        if epoch == 2:\n"
              "            pid = os.fork()\n"
              "            if pid == 0:\n"
              "                time.sleep(300)\n"
              "                os._exit(0)\n"
              "            print(pid, flush=True)\n"
              "            time.sleep(300)\n"
              "train(Path(sys.argv[1]), epochs=4, checkpoint_every=1, callbacks=Forks(lambda: None))\n")
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    forked = int(process.stdout.readline())
    try:
        with pytest.raises(CheckpointError, match=HELD.format(process.pid)):
            train(tmp_path, epochs=4, resume=True)
        process.kill()
        process.wait()
        process.stdout.close()
        os.kill(forked, 0)                                                 # it is alive
        found = train(tmp_path, epochs=4, resume=True)
    finally:
        process.kill()
        os.kill(forked, signal.SIGKILL)
    assert len(found.epochs) == 4


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A sentence, once, and the run."""
    def none(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    sentence = f"The file system of {tmp_path} has no locks, so that a second run in this folder would go unnoticed: see that there is none."
    for broken in (lambda patch: patch.setattr(fcntl, "flock", none), lambda patch: patch.setattr(run_lock, "fcntl", None)):
        said = Said()
        with monkeypatch.context() as patch:
            broken(patch)
            train(tmp_path, resume=True, callbacks=[said])
        assert said.sentences.count(sentence) == 1


@pytest.mark.parametrize("content", [b"", b"process 12", b"\xff\0" * 2000, b"process 1 on a\x1b[2J, since 2026-01-01 00:00:00\n"])
def test_what_stands_in_the_file_is_no_matter(content: bytes, tmp_path: Path):
    """Of a run that is gone, or of somebody else; and in a sentence it is shown only if it is what we write."""
    (tmp_path / LOCK).write_bytes(content)
    train(tmp_path)
    with (tmp_path / LOCK).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(content)
        file.flush()
        with pytest.raises(CheckpointError, match=r"Another run has the folder \S+ \(.*process.*\)") as told:
            train(tmp_path, resume=True)
    assert str(told.value).isprintable()


def test_the_start_in_the_sentence(tmp_path: Path):
    began = time.strftime("%Y-%m-%d %H:%M")
    with run_folder(str(tmp_path), False, Said().on_message):
        text = (tmp_path / LOCK).read_text()
    assert text.startswith(f"process {os.getpid()} on ")
    assert began <= text.rsplit("since ", 1)[1][:16] <= time.strftime("%Y-%m-%d %H:%M")
