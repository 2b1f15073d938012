"""What a run skips is said in words, and `--last-skipped` runs just that."""
from __future__ import annotations

import ast
import re

import house
import pytest
import selection
from places import TESTS

pytest_plugins = ["pytester"]
ONE_WORKER = ["-p", "xdist", "-n", "1"]


@pytest.fixture(autouse=True)
def lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs within a test bring no plugin that they do not name: each would import all of them anew."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_every_peer_says_how_to_get_it() -> None:
    """`needs` is the one way to a package that may be missing."""
    for path in sorted(TESTS.rglob("*.py")):
        if path.name not in ("peers.py", "test_skips.py"):
            for call in re.findall(r"importorskip\([^)]*\)", path.read_text()):
                assert "reason=" in call or call in ('importorskip("resource")', 'importorskip("signal")'), f"{path.name}: {call}"


def test_last_skipped(pytester: pytest.Pytester) -> None:
    """Skips of single tests and of whole files, in this process and in a worker of pytest-xdist, which reports one of
    several skips at one place."""
    pytester.makeconftest((TESTS / "selection.py").read_text())
    pytester.makepyfile(
        need='import pathlib, pytest\ndef ready():\n    if not pathlib.Path("ready").exists():\n'
             '        pytest.skip("needs the file ready", allow_module_level=True)\n',
        test_a='import pathlib, pytest\nready = pathlib.Path("ready").exists()\n'
               '@pytest.mark.skipif(not ready, reason="needs the file ready")\ndef test_one(): pass\ndef test_two(): '
               'pass\n',
        test_b="import need\nneed.ready()\ndef test_three(): pass\ndef test_four(): pass\n",
        test_c="import need\nneed.ready()\ndef test_five(): pass\n")
    for workers in ([], ONE_WORKER):
        first = pytester.runpytest(*workers)
        first.assert_outcomes(passed=1, skipped=2 if workers else 3)
        first.stdout.fnmatch_lines(["skipped 3: needs the file ready", "*--last-skipped*"])
        (pytester.path / "ready").touch()
        second = pytester.runpytest("--last-skipped", *workers)
        second.assert_outcomes(passed=4, **({} if workers else {"deselected": 1}))
        (pytester.path / "ready").unlink()


def test_exhaustive_tests_run_when_they_are_asked_for(pytester: pytest.Pytester) -> None:
    """By the option or by name; together with `--last-skipped` they complete what an earlier run skipped or left
    out."""
    pytester.makeconftest((TESTS / "selection.py").read_text())
    pytester.makeini("[pytest]\nmarkers = exhaustive: long")
    pytester.makepyfile(
        test_a='import pathlib, pytest\nready = pathlib.Path("ready").exists()\n'
               '@pytest.mark.skipif(not ready, reason="needs the file ready")\ndef test_one(): '
               'pass\n@pytest.mark.exhaustive\ndef test_two(): pass\n'
               '@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.exhaustive)])\ndef test_three(n): '
               'pass\n')
    pytester.runpytest().assert_outcomes(passed=1, skipped=1, deselected=1)
    (pytester.path / "ready").touch()
    pytester.runpytest("--last-skipped").assert_outcomes(passed=1, deselected=2)
    (pytester.path / "ready").unlink()
    pytester.runpytest(*ONE_WORKER).assert_outcomes(passed=1, skipped=1)
    (pytester.path / "ready").touch()
    pytester.runpytest("--last-skipped", "--exhaustive").assert_outcomes(passed=3, deselected=1)
    pytester.runpytest("--exhaustive").assert_outcomes(passed=4)
    pytester.runpytest("test_a.py::test_two").assert_outcomes(passed=1)


@pytest.mark.parametrize("workers", [[], ONE_WORKER], ids=["alone", "worker"])
def test_a_test_that_hangs_ends(pytester: pytest.Pytester, workers: list[str]) -> None:
    """The limit of `pyproject.toml`, which nobody has waited for: the place is printed, and with several processes the
    others' tests run."""
    assert float(pytester._request.config.getini("faulthandler_timeout"))
    assert pytester._request.config.getini("faulthandler_exit_on_timeout")
    pytester.makeini("[pytest]\nfaulthandler_exit_on_timeout = true")
    pytester.makepyfile(test_a="import time\ndef test_hangs():\n    time.sleep(600)\ndef test_after(): pass\n")
    ended = pytester.runpytest_subprocess("-o", "faulthandler_timeout=0.5", *workers, timeout=120)
    assert ended.ret
    ended.stderr.fnmatch_lines(["Timeout*", "*test_a.py*line 3 in test_hangs"])
    if workers:
        ended.assert_outcomes(passed=1, failed=1)
        ended.stdout.fnmatch_lines(["*crashed while running 'test_a.py::test_hangs'*"])


WHOLE = {"test_autocast_torch.py", "test_bits.py", "test_mnist.py", "test_precision_accuracy.py",
         "test_torch_networks.py", "test_trace_viewers.py"}
"""Files each of whose tests compares with somebody else's software, or with learning or compiling as a whole."""


def test_many_exhaustive_cases_take_turns_and_few_do_not(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((TESTS / "selection.py").read_text())
    pytester.makeini("[pytest]\nmarkers = exhaustive: long")
    pytester.makepyfile("import pytest\n"
                        '@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.exhaustive) for n in '
                        'range(90)])\n'
                        "def test_many(n): pass\n"
                        "def cases(last): return [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, "
                        "last))]\n"
                        '@pytest.mark.parametrize("n", cases(7))\ndef test_some(n): pass\n'
                        '@pytest.mark.parametrize("n", cases(5))\ndef test_few(n): pass\n'
                        "@pytest.fixture\n"
                        "def turn(): pass\n"
                        '@pytest.mark.exhaustive\n@pytest.mark.parametrize("n", range(9))\n'
                        "def test_of_parts_that_take_turns(n, turn): pass\n")
    many, some = [], []
    for turn in map(str, range(7, 7 + selection.TURNS)):
        said = pytester.runpytest("--exhaustive", "--turn", turn, "-v").stdout.str()
        for found, name in ((many, "test_many["), (some, "test_some[")):
            found.append({line.split()[0] for line in said.splitlines() if name in line and "PASSED" in line})
        assert said.count("test_few[") == 5
        assert said.count("test_of_parts_that_take_turns[") == 9
    assert len(set.union(*many)) == 90 == sum(map(len, many))
    assert {len(found) for found in many} == {90 // selection.TURNS}
    assert len(set.union(*some)) == 7
    assert sorted(map(len, some)) == [2, 2, 2, 2, 3], "six cases in turns, and in each the one that is not exhaustive"
    pytester.runpytest("--exhaustive").assert_outcomes(passed=111)


def test_what_is_exhaustive_has_something_like_it_at_every_change() -> None:
    """Exhaustive is more of what runs at every change: a file has tests that are not marked, or parameters that are
    not."""
    only = []
    for path in sorted(TESTS.rglob("test_*.py")):
        tests = [node for node in ast.walk(house.tree(path)) if isinstance(node, ast.FunctionDef)
                 and node.name.startswith("test_")]
        always = [t for t in tests if not any(ast.unparse(d).endswith("exhaustive") for d in t.decorator_list)]
        if tests and not always:
            only.append(path.name)
    assert set(only) <= WHOLE


def test_no_folder_of_tests_is_called_as_a_package_of_others():
    """Folders of tests are where modules are looked for: one called torch would be what `import torch` finds where
    PyTorch is not installed."""
    asked = {name.partition(".")[0] for path in TESTS.rglob("*.py") for name, _ in house.imported_names(path)}
    folders = {folder.name for folder in TESTS.iterdir() if folder.is_dir()}
    assert len(asked) > 20
    assert asked & folders <= {"bench"}                               # which is ours, and found before
