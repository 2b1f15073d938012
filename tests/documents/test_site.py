"""The documentation's site: every page is in it, every public name in its reference, every link leads somewhere, and it
needs no network."""
from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import browser
import pages
import pytest
from browser import Browser
from peers import needs
from places import ROOT

import tileflow

REFERENCE = {module: page for page, path in pages.PAGES.items() if page.startswith("docs/reference/")
             for module in re.findall(r"^::: (\S+)", path.read_text("utf-8"), re.MULTILINE)}
"""The modules that the reference is made of, and their pages."""
REAL = {"tileflow.errors": "tileflow.system.errors"}
"""Public modules that lie elsewhere."""
NARROW = 400
"""Pixels of a telephone's width."""


# ---- what is there

@pytest.mark.parametrize("page", pages.PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Those to other sites are for whoever follows them."""
    here = pages.PAGES[page]
    for link in pages.links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = here.parent / name if name else here
        assert target.exists(), f"{page} links to {link}, which is not there"
        assert not page.startswith("docs/") or target.resolve().is_relative_to(pages.DOCS), \
            f"{page} links to {link}, which the site does not have"
        assert not anchor or anchor in pages.anchors(target), \
            f"{page} links to {link}; {name or page} has no such heading"


def test_links_that_lead_nowhere_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setitem(pages.PAGES, "page.md", page)
    (tmp_path / "other.md").write_text("# Other\n\n## A `word`, and more\n\n```sh\n# no heading\n```\n")
    for good in ("[a](other.md)", "[a](other.md#a-word-and-more)", "[a](#here)", "[a](https://example.com/gone)",
                 "`[a](gone.md)`"):
        page.write_text(f"# Here\n\n{good}\n")
        test_links_lead_somewhere("page.md")
    for bad in ("[a](gone.md)", "[a](other.md#gone)", "[a](other.md#no-heading)", "![a](gone.png)", "[`a`](#gone)"):
        page.write_text(f"# Here\n\n{bad}\n")
        with pytest.raises(AssertionError, match=r"gone|no-heading"):
            test_links_lead_somewhere("page.md")


def test_the_table_of_contents_names_pages_that_are_there() -> None:
    """Each once; what it does not name stands where its * is."""
    text = (pages.DOCS / ".nav.yml").read_text("utf-8")
    named = re.findall(r"^ *- (\S+\.md)$", text, re.MULTILINE)
    assert len(named) == len(set(named)), "docs/.nav.yml names a page twice"
    gone = [name for name in named if f"docs/{name}" not in pages.PAGES]
    assert not gone, "docs/.nav.yml names pages that are not there"
    assert '- "*.md"' in text
    assert "- reference/*" in text


def public() -> Iterator[tuple[str, list[str]]]:
    """Modules that users import, and their public names."""
    for module in ("tileflow",
                   *(f"tileflow.{name}" for name in tileflow._LAZY if tileflow._LAZY[name].rpartition(".")[2] == name),
                   "tileflow.errors", "tileflow.nn.functional", "tileflow.optim.schedules", "tileflow.lightning",
                   "tileflow.onnx_backend"):
        if module.split(".")[-1] not in ("torch", "poptorch", "lightning", "onnx_backend"):
            found = importlib.import_module(module)
            yield module, getattr(found, "__all__", [n for n, v in vars(found).items() if isinstance(v, type)
                                                     and v.__module__ == found.__name__])
        else:
            # for frameworks that may be missing: the page is asked for, and the sources say what is in it
            yield module, []


def test_every_public_module_has_a_page_of_the_reference() -> None:
    for module, names in public():
        real = REAL.get(module, module)
        assert real in REFERENCE, \
            f"the reference lacks {module}: add docs/reference/{module}.md with the line `::: {real}`"
        for name in names:
            if isinstance(getattr(importlib.import_module(module), name), types.ModuleType):
                assert f"{module}.{name}" in REFERENCE, f"the reference lacks {module}.{name}"


# ---- what is built

@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, elsewhere."""
    needs("zensical")
    needs("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("documents")
    shutil.copy(ROOT / "zensical.toml", folder)
    shutil.copytree(pages.DOCS, folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tileflow", "kernels", "importers"):
        (folder / name).symlink_to(ROOT / name)
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, capture_output=True,
                          text=True, check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""}, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert not re.findall(r"(?mi)^(?:warning|error|griffe).*", said), said
    return folder / "site"


@pytest.mark.exhaustive
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """objects.inv lists what other sites may link to."""
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ")[0] for line in zlib.decompress(data).decode().splitlines()}
    for module, names in public():
        modules = {name for name in names
                   if isinstance(getattr(importlib.import_module(module), name), types.ModuleType)}
        assert not [name for name in {*names} - modules if f"{REAL.get(module, module)}.{name}" not in known]
    assert {"tileflow.torch.training_model", "tileflow.poptorch.PipelinedExecution",
            "tileflow.lightning.IPUStrategy"} <= known


@pytest.mark.exhaustive
def test_every_page_is_built_and_asks_for_nothing_from_elsewhere(site: Path) -> None:
    for page in pages.PAGES:
        if page.startswith("docs/"):
            built = site / Path(page).relative_to("docs").with_suffix(".html")
            text = built.read_text("utf-8")
            foreign = r"<(?:script|img|iframe|source)[^>]+src=\"?https?:[^ >]*|<link[^>]+stylesheet[^>]*https?:[^ >]*"
            assert not re.findall(foreign, text), page
            assert f'href="{"../" * (page.count("/") - 1)}' in text
    assert 'href="batching.html' in (site / "index.html").read_text("utf-8")


@pytest.mark.exhaustive
def test_the_front_in_a_browser(site: Path) -> None:
    """Out of a folder: it fits a telephone, logs nothing, asks for nothing, and its search finds."""
    if browser.found() is None:
        pytest.skip("no browser: install Chromium")
    with Browser() as opened:
        for width in (1280, NARROW):
            page = opened.open(site / "index.html", width=width)
            assert page("document.documentElement.scrollWidth") <= width
            assert page("[...document.querySelectorAll('.grid.cards a')].map(a => a.textContent)") == [
                "My ONNX file", "From PyTorch", "From PopTorch", "What would it cost on a chip?"]
            assert not [url for url in page.asked if not url.startswith(("file:", "data:"))]
            assert not page.said
        page.click(".md-header [class*=search]")
        page.until("[...document.querySelectorAll('*')].some(e => e.shadowRoot?.activeElement)")
        page.type("gradient accumulation")
        page.until("[...document.querySelectorAll('*')].some(e => e.shadowRoot?.textContent.includes('How gradients "
                   "come together'))")
