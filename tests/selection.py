"""Which tests run; what a run skipped: said at its end, kept for `--last-skipped`. The hooks of `conftest.py`, which need no tileflow."""
from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import pytest

SKIPPED = "tileflow/skipped"
"""Key of pytest's cache: the tests (or whole files) that the last run skipped."""
TURNS = 5
"""Of a test with at least so many exhaustive cases, `--turn` runs one case in so many, others at the next turn."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--last-skipped", action="store_true", help="run only what the last run skipped, for example after installing a peer")
    parser.addoption("--exhaustive", action="store_true", help="run (with --last-skipped: as well) the tests marked exhaustive")
    parser.addoption("--turn", type=int, metavar="N",
                     help=f"of exhaustive tests with {TURNS} cases or more, run those whose turn it is at N: each case "
                          f"has one in {TURNS} numbers that follow each other")


def asked(config: pytest.Config) -> bool:
    """Whether exhaustive tests run."""
    return config.getoption("--exhaustive") or any("::" in name for name in config.args)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parameters of exhaustive tests, thousands, make no items where those do not run. One is left where there are no others: it is deselected."""
    if not asked(metafunc.config):
        calls = metafunc._calls
        calls[:] = [call for call in calls if all(mark.name != "exhaustive" for mark in call.marks)] or calls[:1]


def waits(case: str, turn: int | None) -> bool:
    """Whether one of many things that a test goes through, by its name, is for another turn."""
    return turn is not None and bool((zlib.crc32(case.encode()) - turn) % TURNS)


def test_of(item: pytest.Item) -> str:
    """The test that an item is a case of."""
    return item.nodeid.partition("[")[0]


def waiting(items: list[pytest.Item], turn: int | None) -> set[str]:
    """The ids of exhaustive cases that are for other turns: of each test with many all but every fifth, in the order of
    a hash of their ids. Cases that ask for the fixture `turn` all run: what they go through takes turns, and would
    else meet each case at one of them only."""
    cases: dict[str, list[str]] = {}
    for item in items:
        if item.get_closest_marker("exhaustive") and "turn" not in getattr(item, "fixturenames", ()):
            cases.setdefault(test_of(item), []).append(item.nodeid)
    found: set[str] = set()
    for several in cases.values():
        if turn is not None and len(several) >= TURNS:
            found.update(several)
            found.difference_update(sorted(several, key=lambda case: zlib.crc32(case.encode()))[turn % TURNS::TURNS])
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is exhaustive, unless it is asked for, by the option or by its name; and what did not skip, where only that is asked for."""
    cache = getattr(config, "cache", None)                                          # there is none with -p no:cacheprovider
    again = config.getoption("--last-skipped") and cache is not None
    skipped = set(cache.get(SKIPPED, [])) if again else set()                       # type: ignore[union-attr]

    exhaustive, later = asked(config), waiting(items, config.getoption("--turn"))

    def runs(item: pytest.Item) -> bool:
        if item.get_closest_marker("exhaustive"):
            return exhaustive and item.nodeid not in later
        return not again or item.nodeid in skipped or item.nodeid.partition("::")[0] in skipped

    kept = [item for item in items if runs(item)]
    config.hook.pytest_deselected(items=[item for item in items if not runs(item)])
    items[:] = kept


class Skips:
    """The skips of a run: by the id of the test or file, why."""

    def __init__(self) -> None:
        self.why: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.why[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in Counter(self.why.values()).most_common():
            terminalreporter.write_line(f"skipped {count}: {reason}")
        if self.why:
            terminalreporter.write_line("Once they can run, `python -m pytest --last-skipped` runs only these.")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker of pytest-xdist skipped: of files that skip for the same reason it reports the first only."""
        self.why |= getattr(node, "workeroutput", {}).get("skips", {})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["skips"] = self.why
        elif (cache := getattr(session.config, "cache", None)) is not None:
            cache.set(SKIPPED, sorted(self.why))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Skips(), "tileflow-skips")
