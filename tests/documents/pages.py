"""The documents as data: their pages, blocks of code, links and headings."""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from places import ROOT

DOCS = ROOT / "docs"
PAGES = {p.relative_to(ROOT).as_posix(): p for p in
         (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").glob("*.md")))}
"""All documents, by their paths in the repository."""
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: the line of its first line of text, its language ("" where it says none), its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.line}"


def blocks(page: str, *languages: str) -> list[Block]:
    """A page's blocks in these languages, or all."""
    text = PAGES[page].read_text(encoding="utf-8")
    found = [Block(page, text.count("\n", 0, match.start(3)) + 1, match[2],
                   re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE))
             for match in FENCE.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def links(page: str) -> Iterator[str]:
    """What a page links to, pictures included, outside of code."""
    yield from LINK.findall(CODE.sub("", FENCE.sub("", PAGES[page].read_text(encoding="utf-8"))))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as the site and GitHub make them; where these make others, none."""
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title.replace("`", ""))
              for title in HEADING.findall(FENCE.sub("", path.read_text("utf-8")))]
    plain = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles]
    return {re.sub(r"[-\s]+", "-", title) for title in plain} & {title.replace(" ", "-") for title in plain}
