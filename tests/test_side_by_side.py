"""The two processes that tests run in: everything runs once, failures and a dead process are seen."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import side_by_side

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

TESTS = """
import os, signal, sys, time
from pathlib import Path
import pytest
FIRST = os.getpid()                    # collection happens in the first process

def note(tmp_path_factory, request):
    with open(tmp_path_factory.getbasetemp().parent / "ran", "a") as file:
        file.write(f"{request.node.name} {os.getpid() == FIRST}\\n")
    time.sleep(0.005)

@pytest.mark.parametrize("i", range(20))
def test_a(i, tmp_path_factory, request): note(tmp_path_factory, request)
"""


def run(folder: Path, more: str, *options: str) -> tuple[int, str, list[str]]:
    """Exit status and output of pytest over TESTS in several files and `more` in the last, and who ran what."""
    for i in range(4):
        (folder / f"test_{i}.py").write_text(TESTS)
    (folder / "test_9.py").write_text(TESTS + more)
    environment = {**os.environ, "PYTHONPATH": str(Path(side_by_side.__file__).parent)}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "side_by_side", "-p", "no:cacheprovider", "--processes", "2",
                           "--basetemp", str(folder / "temporary"), *options, str(folder)],
                          cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr, (folder / "ran").read_text().splitlines()


def test_each_test_runs_once_in_one_of_two_processes(tmp_path: Path) -> None:
    status, output, ran = run(tmp_path, "")
    assert status == 0, output
    assert "100 passed" in output
    assert len(ran) == 100
    assert {line.split()[1] for line in ran} == {"True", "False"}


def test_failures_of_the_second_process_are_shown(tmp_path: Path) -> None:
    status, output, _ = run(tmp_path, "def test_wrong():\n    print('said before')\n    assert os.getpid() == FIRST\n")
    assert status == 1
    assert "1 failed, 100 passed" in output
    assert "assert os.getpid() == FIRST" in output
    assert "said before" in output


def test_the_first_failure_ends_both(tmp_path: Path) -> None:
    status, output, ran = run(tmp_path, "def test_wrong():\n    assert os.getpid() == FIRST\n", "-x")
    assert status == 1
    assert "1 failed" in output
    assert len(ran) < 100


def test_a_dead_process_is_a_failure(tmp_path: Path) -> None:
    status, output, _ = run(tmp_path, "def test_deadly():\n    if os.getpid() != FIRST:\n        os.kill(os.getpid(), signal.SIGKILL)\n")
    assert status == 1
    assert "the second process of tests ended with -9 in test_9.py::test_deadly" in output
