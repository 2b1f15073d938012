"""Who watches processes over sockets: what it hears, whom it does not listen to, and what it says; which processors
processes get."""
from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tileflow.cli import main
from tileflow.collective import hosts, launch, patience, pinning
from tileflow.collective.frames import BEAT, END, EVERY, FAILED, HEAD, HELLO, LEFT, STOP, Line
from tileflow.collective.pulse import Pulse
from tileflow.collective.watch import Watch
from tileflow.system.errors import OptionError


def until(ready: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


LINES: list[Line] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while LINES:
        LINES.pop().close()


def connected(watch: Watch) -> Line:
    LINES.append(Line(socket.create_connection(("127.0.0.1", int(watch.told.split("/")[0])))))
    return LINES[-1]


def caller(watch: Watch, rank: int, token: str | None = None, host: str = "there") -> Line:
    own, line = watch.told.split("/")[1], connected(watch)
    line.send(HELLO, rank, f"{own if token is None else token} {host}")
    return line


def heard(line: Line) -> list[tuple[int, int, str]]:
    """All but beats, until there is something or the line is cut."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        frames = line.receive()
        if frames is None:
            return []
        if found := [frame for frame in frames if frame[0] != BEAT]:
            return found
    raise AssertionError("nothing was said")


def test_the_first_cause_reaches_all():
    said: list[str] = []
    watch = Watch(3, say=said.append)
    lines = [caller(watch, rank, host=f"host{rank}") for rank in range(3)]
    until(lambda: len(watch.members) == 3)
    lines[1].send(FAILED, 1, "the disk is full")
    sentence = "Process 1 of 3 (on host1) failed: the disk is full."
    for line in lines:
        assert heard(line) == [(END, 1, sentence)]
    lines[2].send(FAILED, 2, "another")
    lines[0].close()
    time.sleep(0.1)
    assert (watch.sentence(), said, watch.mute) == (sentence, [sentence], False)
    watch.close()


def test_one_that_goes_without_a_word_has_failed_and_one_that_says_so_has_not():
    watch = Watch(2)
    lines = [caller(watch, rank) for rank in range(2)]
    until(lambda: len(watch.members) == 2)
    lines[0].send(LEFT, 0)
    assert heard(lines[1]) == [(LEFT, 0, "")]
    lines[0].close()
    time.sleep(0.1)
    assert watch.first is None
    lines[1].close()
    until(lambda: watch.first)
    assert watch.sentence().startswith("Process 1 of 2 (on there) failed: it has ended without a word")
    assert watch.mute
    watch.close()


def test_one_that_goes_when_it_is_asked_to_has_not_failed():
    """Nobody there listens yet, or any longer: the request has ended it, and the others may save what they have."""
    watch = Watch(2)
    lines = [caller(watch, rank) for rank in range(2)]
    until(lambda: len(watch.members) == 2)
    watch.stop()
    assert [heard(line) for line in lines] == [[(STOP, 0, "")]] * 2
    lines[1].close()
    assert heard(lines[0]) == [(LEFT, 1, "")]
    assert (watch.first, watch.went) == (None, True)
    lines[0].send(FAILED, 0, "Process 1 has ended")
    until(lambda: watch.first)
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    end = hosts._watched(child, watch)
    assert (end.code, end.again, end.cause) == (130, False, "Process 0 of 2 (on there) failed: Process 1 has ended.")
    watch.close()


def test_a_process_has_not_ended_before_its_last_word_is_heard(monkeypatch: pytest.MonkeyPatch):
    """Else the system may drop that word, with what was on its way to the process."""
    watch = Watch(1)
    pulse = Pulse(watch.told, 0, "here", "the launcher")
    LINES.append(pulse._line)
    until(lambda: 0 in watch.members)
    told = Watch._tell

    def late(*word: Any) -> None:
        time.sleep(0.3)
        told(*word)
    monkeypatch.setattr(Watch, "_tell", late)
    pulse.leave()
    pulse.close()
    assert watch.members[0].left
    watch.close()


def test_a_request_to_end_reaches_who_works_and_nobody_who_leaves(monkeypatch: pytest.MonkeyPatch):
    """A process whose work is over would be killed by it, for nobody there listens to the signal any longer."""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        for leaves in (False, True):
            watch = Watch(1)
            pulse = Pulse(watch.told, 0, "here", "the launcher")
            LINES.append(pulse._line)
            until(lambda watch=watch: 0 in watch.members)
            if leaves:
                pulse.leave()
            watch.stop()
            time.sleep(2 * EVERY)
            if not leaves:
                pulse.leave()
            pulse.close()                      # who watches may go now: a process that it leaves alone ends itself
            watch.close()
            assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("code", "asked", "found"), [(15, True, 130), (143, True, 130), (15, False, 15), (0, True, 0),
                                                      (3, True, 3)])
def test_a_request_that_ends_a_process_is_an_interruption(code: int, asked: bool, found: int):
    watch = Watch(1)
    if asked:
        watch.stop()
    child = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    assert hosts._watched(child, watch).code == found
    watch.close()


def test_strangers_are_not_listened_to():
    watch = Watch(2)
    for line in (caller(watch, 0, "guess"), caller(watch, 0, ""), caller(watch, 2), caller(watch, 1, "é" * 32)):
        assert heard(line) == []
    for data in (b"GET / HTTP/1.0\r\n\r\n" * 400, HEAD.pack(FAILED, 0, 1) + b"x", struct.pack("!BIH", 255, 0, 0),
                 HEAD.pack(HELLO, 1, 9999)):
        line = connected(watch)
        line.socket.sendall(data)
        assert heard(line) == []
    own = caller(watch, 0)
    until(lambda: 0 in watch.members)
    assert heard(caller(watch, 0)) == [], "and each process calls once"
    assert watch.first is None
    own.close()
    until(lambda: watch.first)
    watch.close()


@pytest.mark.parametrize(("told", "seconds"), [(None, 6), ("30", 30)])
def test_how_long_nobody_may_be_silent(told, seconds, monkeypatch: pytest.MonkeyPatch):
    """As whoever watches was told, who tells the others."""
    monkeypatch.setenv(patience.PATIENCE, "") if told is None else monkeypatch.setenv(patience.PATIENCE, told)
    watch = Watch(1)
    monkeypatch.setenv(patience.PATIENCE, "1000")
    pulse = Pulse(watch.told, 0, "here", "the launcher")
    LINES.append(pulse._line)
    until(lambda: 0 in watch.members)
    assert (watch.silent, pulse._silent) == (seconds, seconds)
    pulse._over = True
    watch.close()


def test_silence_is_counted_against_what_was_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(patience.PATIENCE, "3000")
    watch = Watch(1)
    caller(watch, 0)
    until(lambda: 0 in watch.members)
    watch.members[0].heard -= 2000
    time.sleep(3 * EVERY)
    assert watch.first is None
    watch.members[0].heard -= 2000
    until(lambda: watch.first)
    assert watch.sentence() == ("Process 0 of 1 (on there) failed: it does not answer: it hangs, or there cannot be "
                                "reached.")
    watch.close()


def test_the_command_says_the_patience_to_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any):
    monkeypatch.setenv(patience.PATIENCE, "")
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nfrom tileflow.collective import current, patience\n"
                      "sys.exit(3 if current().is_first and patience.silent() == 45 else 0)\n")
    assert main(["launch", "-n", "2", "--patience", "45", str(script)]) == 3
    monkeypatch.setenv(patience.PATIENCE, "")
    capsys.readouterr()
    assert main(["launch", "-n", "2", "--patience", "0.5", str(script)]) == 2
    assert "TILEFLOW_PATIENCE must be 1 to 86400 seconds, not '0.5'" in capsys.readouterr().err


@pytest.mark.parametrize("told", ["0", "-1", "soon", "nan", "inf"])
def test_a_patience_that_is_none(told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(patience.PATIENCE, told)
    with pytest.raises(OptionError, match="TILEFLOW_PATIENCE must be 1 to 86400 seconds, not"):
        patience.silent()
    monkeypatch.setenv(patience.PATIENCE, "1")
    assert patience.silent() == 1


def test_frames_arrive_in_any_pieces():
    draw = np.random.default_rng(0)
    frames = [(int(draw.integers(0, 7)), int(draw.integers(0, 9)), "ü" * int(draw.integers(0, 300))) for _ in range(50)]
    ours, theirs = socket.socketpair()
    line, data = Line(ours), b"".join(HEAD.pack(k, r, len(t.encode())) + t.encode() for k, r, t in frames)
    found: list[tuple[int, int, str]] = []
    while data:
        n = int(draw.integers(1, 90))
        theirs.sendall(data[:n])
        data = data[n:]
        found += line.receive() or []
    assert found == frames
    assert line.receive() == []
    theirs.close()
    assert line.receive() is None
    line.close()


def test_processors_are_dealt_by_cores(tmp_path):
    for cpu in range(8):  # two packages, whose cores are 0 and 4, 1 and 5 ... by the system's numbers
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(str(cpu % 4 // 2))
        (folder / "physical_package_id").write_text(str(cpu % 2))
    assert pinning.parts(range(8), 2, tmp_path) == [{0, 2, 4, 6}, {1, 3, 5, 7}]
    assert pinning.parts(range(8), 4, tmp_path) == [{0, 4}, {2, 6}, {1, 5}, {3, 7}]
    assert [len(p) for p in pinning.parts(range(8), 3, tmp_path) or ()] == [2, 3, 3]
    assert pinning.parts(range(8), 9, tmp_path) is None
    assert pinning.parts({3, 5}, 2, tmp_path / "none") == [{3}, {5}]
    assert pinning.parts((), 1) is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not pin")
def test_processes_have_processors_of_their_own_unless_somebody_leaves_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nfrom tileflow.collective import current\nr = current().rank\n"
                      f"open(r'{tmp_path}/cpus' + str(r), 'w').write(repr(sorted(os.sched_getaffinity(0))))\n")

    def found(pin: bool) -> list[set[int]]:
        assert launch.run([sys.executable, str(script)], 2, pin=pin).code == 0
        return [set(eval((tmp_path / f"cpus{rank}").read_text())) for rank in range(2)]
    own = os.sched_getaffinity(0)
    if len(own) > 1:
        first, second = found(True)
        assert not first & second
        assert first | second == own
    assert found(False) == [own, own]
    assert os.sched_getaffinity(0) == own


@pytest.mark.parametrize("text", ["", "x", "-1"])
def test_what_the_system_does_not_tell_is_nothing(text, tmp_path: Path):
    folder = tmp_path / "cpu0" / "topology"
    folder.mkdir(parents=True)
    (folder / "core_id").write_text(text)
    assert pinning.parts([0, 1], 1, tmp_path) == [{0, 1}]
