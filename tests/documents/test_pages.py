"""The documents' code and commands, run as they stand, page by page and in their order; what is missing before them is
in `stage.py`."""
from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import pytest
import stage
from pages import Block
from peers import needs
from places import PATH, ROOT

from tileflow import cli

ELSEWHERE = {
    ("CONTRIBUTING.md", ""): "tests/graph/test_registry.py",                # how an operator is declared
    ("docs/design.md", ""): "tests/graph/test_registry.py",
    ("docs/exporting.md", ""): "tests/importers/test_exporting.py",
    ("docs/loss-scaling.md", ""): "tests/optim/test_scaling.py",
    ("docs/optimizers.md", ""): "tests/optim/test_optimizers_page.py",
    ("docs/options.md", "# poptorch.conf"): "tests/options/test_options_pages.py",
    ("docs/pytorch.md", ""): "tests/torch_bridge/test_torch_page.py",
    ("docs/studies.md", ""): "tests/exploration/test_studies.py",
    ("docs/serving.md", "ThreadingHTTPServer"): "tests/documents/test_serving.py",
    ("examples/README.md", ""): "tests/api/test_examples.py",
    ("README.md", "make demo"): ".ci/run",
    ("README.md", "import tileflow.torch"): "tests/torch_bridge/test_torch_page.py",
}
"""By page and words of a block (none: all of them), the file that runs it."""
FAST = {f"docs/{name}.md" for name in ("batching", "options", "report", "schedules", "strategies")}
"""Pages that take a second or two; the others are for `make check`."""
UNTOUCHED = ("pip", "make", "git", "cd", "python")
"""Commands that change the environment, or that are run in processes of their own by other tests."""
PEERS = {"tensorboard": "tensorboardX"}
"""Modules that a word of a command stands for."""
PACKAGES = {"photos/": "PIL", ".parquet": "pyarrow"}
"""Modules that data are read with."""


def elsewhere(block: Block) -> str | None:
    return next((test for (page, words), test in ELSEWHERE.items() if page == block.page and words in block.text), None)


def runnable(page: str) -> list[Block]:
    return [block for block in pages.blocks(page, "python", "sh") if elsewhere(block) is None]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of a block's commands; what other programs do is left out."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "tileflow":
            yield words[1:]
        else:
            assert not words or words[0] in UNTOUCHED, f"{block.place}: {words[0]} is no command that a test runs"


def missing(block: Block) -> str | None:
    """A module that the block needs and that is not installed."""
    if block.language == "sh":
        words = {PEERS.get(w, w) for command in commands(block) for flag in ("--with", "--log") if flag in command
                 for w in command[command.index(flag) + 1].split(",")} - {"csv", "json"}
        words |= {package for name, package in PACKAGES.items() if name in block.text}
    else:
        words = {name for n in ast.walk(ast.parse(block.text)) if isinstance(n, (ast.Import, ast.ImportFrom))
                 for name in ([a.name for a in n.names] if isinstance(n, ast.Import) else [n.module or ""])}
        words |= {module for ours, module in (("tileflow.torch", "torch"), ("tileflow.poptorch", "torch"),
                                              ("tileflow.lightning", "lightning"))
                  if ours in words}
    return next((w for w in sorted(words) if importlib.util.find_spec(w.partition(".")[0]) is None), None)


def run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's blocks in one namespace, in a folder with what it takes for granted."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    stage.files(folder)
    before = stage.BEFORE.get(page, {})
    text = pages.PAGES[page].read_text("utf-8")
    for name, make in stage.MODELS.items():
        if name in text:
            make(folder / name)
    if page in stage.OTHER_MODELS:
        stage.OTHER_MODELS[page](folder / "model.onnx")
    names: dict[str, Any] = {"__name__": "page"}
    exec(stage.NAMES + before.get("", ""), names)
    for block in runnable(page):
        if (module := missing(block)) is not None:
            needs(module)
        for words, code in before.items():
            if words and words in block.text:
                exec(code, names)
        try:
            _run(block, folder, names)
        except Exception as error:
            error.add_note(f"{block.place} does not run; what a page takes for granted is made in "
                           "tests/documents/stage.py")
            raise


def _run(block: Block, folder: Path, names: dict[str, Any]) -> None:
    if block.language == "sh":
        for words in commands(block):
            assert cli.main(words) == 0, f"tileflow {shlex.join(words)}"
    elif '__name__ == "__main__"' in block.text:               # a script, which worker processes import
        (folder / "script.py").write_text(block.text, encoding="utf-8")
        subprocess.run([sys.executable, "-W", "ignore", "script.py"], cwd=folder, env={"PYTHONPATH": PATH}, check=True,
                       timeout=300)
        exec("from script import *", names)
    else:
        exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), names)


WITH_CODE = [page for page in pages.PAGES if runnable(page)]


@pytest.mark.filterwarnings("ignore:::lightning", "ignore:.*treespec")
@pytest.mark.parametrize("page", [page if page in FAST else pytest.param(page, marks=pytest.mark.exhaustive)
                                  for page in WITH_CODE])
def test_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", pages.PAGES)
def test_what_a_page_shows_can_be_read(page: str) -> None:
    """At every change: code compiles, commands and their flags exist, files of options are taken."""
    for block in pages.blocks(page):
        if block.language == "python" and elsewhere(block) != "tests/options/test_options_pages.py":
            compile("\n" * (block.line - 1) + block.text, page, "exec")
        elif block.language == "sh":
            for words in commands(block):
                cli.parse(words)
        elif block.language == "toml" and not block.text.startswith("name ="):
            tomllib.loads(block.text)
        command = re.search(r"^(?:tileflow (?!\w*:)|pip install|import )", block.text)
        assert block.language != "" or not command, f"{block.place}: say its language"


def test_what_runs_elsewhere_is_named_there() -> None:
    for (page, words), test in ELSEWHERE.items():
        assert any(words in block.text for block in pages.blocks(page)), f"{page} has no block with {words!r} any more"
        if not test.endswith("test_registry.py"):
            assert Path(page).name in (ROOT / test).read_text("utf-8"), f"{test} does not read {page}"
