"""The pages that sentences of errors name are there, headings included."""
from __future__ import annotations

import ast
import re

import house
import pages
import pytest

from tileflow.system.errors import see

NAMED = re.compile(r"docs/([\w-]+\.md)(?:#([\w-]+))?")


def named() -> list[tuple[str, str]]:
    """Where a page is named in the product's texts, and how: by `see`, or written out."""
    found = []
    for path in house.files():
        if not re.search(r"\bsee\(|docs/", path.read_text("utf-8")):
            continue
        for node in ast.walk(house.tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "see":
                arg, = node.args
                assert isinstance(arg, ast.Constant)
                found.append((f"{path.name}:{node.lineno}", see(arg.value)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [(f"{path.name}:{node.lineno}", match[0]) for match in NAMED.finditer(node.value)]
    return found


def test_every_page_that_an_error_names_is_there() -> None:
    sites = named()
    assert len({page for _, page in sites}) >= 12
    for where, text in sites:
        match = NAMED.search(text)
        assert match, f"{where}: {text}"
        assert f"docs/{match[1]}" in pages.PAGES, f"{where} names {match[0]}, which is not there"
        assert match[2] is None or match[2] in pages.anchors(pages.DOCS / match[1]), \
            f"{where} names {match[0]}, which has no such heading"


@pytest.mark.parametrize(("page", "says"),
                         [("batching", " See docs/batching.md."), ("serving#rows", " See docs/serving.md#rows.")])
def test_how_a_page_is_named(page: str, says: str) -> None:
    assert see(page) == says
