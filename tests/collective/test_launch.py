"""`tileflow launch`: one that dies, stops or raises ends all within seconds, with the first cause; a restart goes on to
the same bits."""
from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from served import communicated, over, within

from tileflow.cli import main
from tileflow.collective import patience
from tileflow.runtime.checkpoint import load_checkpoint
from tileflow.system.packaged import PACKAGED_MODELS

SECONDS = 10


def command(folder: Path, *more: str, restarts: int = 0, epochs: int = 40) -> list[str]:
    return [sys.executable, "-m", "tileflow", "launch", "-n", "2",
            *(["--max-restarts", str(restarts)] if restarts else []), "train",
            PACKAGED_MODELS[0], "--data", "digits", "--replication-factor", "2", "--micro-batch-size", "4", "--epochs",
            str(epochs), "--save-every-updates", "20", "--out", str(folder), *more]


def processes(launcher: subprocess.Popen) -> list[int]:
    """The launcher's children by their ranks."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if re.search(rf"\) \S {launcher.pid} ", (entry / "stat").read_text()):
                    told = re.search(r"TILEFLOW_PROCESS=(\d+)/",
                                     (entry / "environ").read_bytes().decode(errors="replace"))
                    if told:
                        found[int(told[1])] = int(entry.name)
            except OSError:
                continue
    return [found[r] for r in sorted(found)]


def begun(launcher: subprocess.Popen, folder: Path) -> list[int]:
    """Wait until there is a checkpoint; the processes."""
    assert over(lambda: (folder / "checkpoint.safetensors").exists() or launcher.poll() is not None, 120)
    assert launcher.poll() is None, launcher.communicate()
    return processes(launcher)


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize(("number", "rank"), [
    (signal.SIGKILL, 1), pytest.param(signal.SIGKILL, 0, marks=pytest.mark.exhaustive),
    pytest.param(signal.SIGSTOP, 1, marks=pytest.mark.exhaustive),
    pytest.param(signal.SIGSTOP, 0, marks=pytest.mark.exhaustive)])
def test_one_that_dies_or_hangs_ends_all_with_its_cause(number, rank, tmp_path):
    launcher = subprocess.Popen(command(tmp_path / "run", epochs=100_000), stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)
    pids = begun(launcher, tmp_path / "run")
    assert len(pids) == 2
    os.kill(pids[rank], number)
    _, said = communicated(launcher, SECONDS)
    assert launcher.returncode == 1
    why = "it was ended by SIGKILL" if number == signal.SIGKILL else "it does not answer"
    assert f"Process {rank} of 2 failed: {why}." in said
    assert gone(pids)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_a_restart_goes_on_to_the_same_bits(seed, tmp_path):
    subprocess.run(command(tmp_path / "whole", epochs=3), check=True, stdout=subprocess.DEVNULL)
    launcher = subprocess.Popen(command(tmp_path / "run", restarts=2, epochs=3), stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)
    pids = begun(launcher, tmp_path / "run")
    draw = np.random.default_rng(seed)
    time.sleep(draw.random() * 0.3)
    if launcher.poll() is None and pids:
        os.kill(pids[seed % 2], signal.SIGKILL)
    _, said = communicated(launcher, 120)
    assert launcher.returncode == 0, said
    whole, found = (load_checkpoint(tmp_path / name / "checkpoint.safetensors").tensors for name in ("whole", "run"))
    assert whole.keys() == found.keys()
    assert all(np.array_equal(whole[name], found[name]) for name in whole)


@pytest.mark.exhaustive
def test_ctrl_c_saves_after_a_whole_update_and_the_run_goes_on(tmp_path):
    launcher = subprocess.Popen(command(tmp_path / "run", epochs=100_000), stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)
    pids = begun(launcher, tmp_path / "run")
    launcher.send_signal(signal.SIGTERM)
    _, said = communicated(launcher, SECONDS)
    assert launcher.returncode == 130
    assert re.search(r"Stopped after \d+ updates; saved", said)
    assert gone(pids)


SLOW = """import sys, time
import tileflow
from tileflow.callbacks import Callback

class Slow(Callback):
    def on_epoch_begin(self, epoch, logs=None):
        open(sys.argv[1] + f"/begun{epoch}", "w").close()

    def on_save(self, path):
        time.sleep(5)

try:
    tileflow.train(sys.argv[2], data="digits", out=sys.argv[1] + "/run", epochs=100_000, replication_factor=2,
                   micro_batch_size=4, checkpoint_every=0, callbacks=[Slow()])
except KeyboardInterrupt as stop:
    print(stop, file=sys.stderr)
    sys.exit(130)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("one_only", [False, True])
def test_the_others_wait_until_a_slow_disk_has_the_state(one_only: bool, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    launcher = subprocess.Popen([sys.executable, "-m", "tileflow", "launch", "-n", "2", str(tmp_path / "slow.py"),
                                 str(tmp_path), PACKAGED_MODELS[0]], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)
    assert over(lambda: (tmp_path / "begun1").exists() or launcher.poll() is not None, 120)
    os.kill(processes(launcher)[1] if one_only else launcher.pid, signal.SIGTERM)
    said = communicated(launcher, 30)[1]
    updates = re.search(r"Stopped after (\d+) updates; saved", said)
    assert updates, said
    assert len(load_checkpoint(tmp_path / "run" / "checkpoint.safetensors").tensors["optimizer.lr.history"]) == int(
        updates[1])
    assert launcher.returncode == 130, said


@pytest.mark.exhaustive
def test_a_request_before_anybody_listens_is_an_interruption(tmp_path):
    (tmp_path / "idle.py").write_text("import sys, time\nopen(sys.argv[1] + '/there', 'w').close()\ntime.sleep(60)\n")
    launcher = subprocess.Popen([sys.executable, "-m", "tileflow", "launch", "-n", "2", str(tmp_path / "idle.py"),
                                 str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert over((tmp_path / "there").exists, 60)
    pids = processes(launcher)
    launcher.send_signal(signal.SIGTERM)
    said = communicated(launcher, SECONDS)[1]
    assert (launcher.returncode, said) == (130, "tileflow: error: The processes have ended, as they were asked to.\n")
    assert gone(pids)


@pytest.mark.exhaustive
def test_ctrl_c_at_a_terminal_asks_once(tmp_path):
    """A terminal tells all processes of its group: the launcher, and the others as well."""
    words = command(tmp_path / "run", epochs=100_000)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    said = b""

    def read() -> bytes:
        return os.read(terminal, 4096) if select.select([terminal], [], [], 0.1)[0] else b""
    try:
        for _ in within(120):
            said += read()
            if (tmp_path / "run" / "checkpoint.safetensors").exists():
                break
        os.write(terminal, b"\x03")
        for _ in within(SECONDS):
            said += read()
    except OSError:                                         # nobody has the terminal open any more
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130, said
    assert re.search(rb"Stopped after \d+ updates; saved", said), said


@pytest.mark.exhaustive
def test_the_launcher_itself_leaves_nobody_behind(tmp_path):
    launcher = subprocess.Popen(command(tmp_path / "run", epochs=100_000), stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
    pids = begun(launcher, tmp_path / "run")
    launcher.kill()
    launcher.wait()
    assert over(lambda: gone(pids), SECONDS)


@pytest.mark.exhaustive
def test_two_processes_predict_what_one_does(tmp_path):
    words = ["infer", PACKAGED_MODELS[0], "--data", "digits", "--micro-batch-size", "7", "--out"]
    said = []
    for name, launched in (("one", []), ("two", ["launch", "-n", "2"])):
        done = subprocess.run([sys.executable, "-m", "tileflow", *launched, *words, str(tmp_path / f"{name}.npz")],
                              capture_output=True, text=True, check=True)
        said.append(done.stdout.replace(f"{name}.npz", ""))
    assert said[0] == said[1]
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_what_cannot_be_launched_is_told(capsys):
    for words, sentence in ((["launch"], "runs a command"),
                            (["launch", "-n", "0", "train"], "must be 1 to 1024, not 0"),
                            (["launch", "--max-restarts", "1", "train", "m.onnx"], "with a folder --out")):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
def test_one_that_waits_for_a_processor_is_none_that_hangs():
    """Busy with little time since it was heard: it starves. Busy for long, asleep, stopped or gone: it hangs."""
    spins, sleeps = "print(1, flush=True)\nwhile True: pass", "print(1, flush=True)\nimport time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", spins], stdout=subprocess.PIPE) as busy, \
            subprocess.Popen([sys.executable, "-c", sleeps], stdout=subprocess.PIPE) as asleep:
        try:
            for child in (busy, asleep):
                assert child.stdout is not None
                child.stdout.readline()
            assert patience.starves(busy.pid, patience.used(busy.pid))
            assert not patience.starves(busy.pid, patience.used(busy.pid) - patience.STARVED)
            until = time.monotonic() + 60
            while patience.starves(asleep.pid, patience.used(asleep.pid)) and time.monotonic() < until:
                time.sleep(0.01)                                        # it is on its way to sleep
            assert time.monotonic() < until
            busy.send_signal(signal.SIGSTOP)
            while patience.starves(busy.pid, patience.used(busy.pid)) and time.monotonic() < until:
                time.sleep(0.01)
            assert time.monotonic() < until
        finally:
            for child in (busy, asleep):
                child.kill()
    assert not patience.starves(busy.pid, 0.0)


def test_who_could_not_listen_has_not_heard_silence(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    clock = patience.Clock()

    def wait(seconds: float) -> str:
        now[0] += seconds
        return "heard"
    assert clock.during(lambda: wait(0.25), 0.25) == "heard"
    assert clock.now() == 100.25
    clock.during(lambda: wait(9.5), 0.25)
    assert clock.now() == 100.75, "nine seconds in which it was not there"
