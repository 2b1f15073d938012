"""What a run skips is said in words, and `--last-skipped` runs just that."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
HERE = Path(__file__).parent


def test_every_peer_says_how_to_get_it() -> None:
    """`needs` is the one way to a package that may be missing."""
    for path in sorted(HERE.rglob("*.py")):
        if path.name not in ("peers.py", "test_skips.py"):
            for call in re.findall(r"importorskip\([^)]*\)", path.read_text()):
                assert "reason=" in call or call in ('importorskip("resource")', 'importorskip("signal")'), f"{path.name}: {call}"


def test_last_skipped(pytester: pytest.Pytester) -> None:
    """Skips of single tests and of whole files, under one process and under two."""
    pytester.makeconftest((HERE / "conftest.py").read_text())
    pytester.makepyfile(
        test_a='import pathlib, pytest\nready = pathlib.Path("ready").exists()\n'
               '@pytest.mark.skipif(not ready, reason="needs the file ready")\ndef test_one(): pass\ndef test_two(): pass\n',
        test_b='import pathlib, pytest\nif not pathlib.Path("ready").exists():\n    pytest.skip("needs the file ready", allow_module_level=True)\n'
               'def test_three(): pass\ndef test_four(): pass\n')
    for workers in ([], ["-n", "2"]):
        first = pytester.runpytest_subprocess(*workers)
        first.assert_outcomes(passed=1, skipped=2)
        first.stdout.fnmatch_lines(["skipped 2: needs the file ready", "*--last-skipped*"])
        (pytester.path / "ready").touch()
        second = pytester.runpytest_subprocess("--last-skipped", *workers)
        second.assert_outcomes(passed=3, **({} if workers else {"deselected": 1}))
        (pytester.path / "ready").unlink()
