"""Lines longer than LENGTH: `line_lengths.txt` counts those that each file had when the limit came; there are to be no
more.

    python tests/line_lengths.py        # after such lines were broken: lowers the counts, and never raises one
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from house import files
from places import ROOT, TESTS

LENGTH = 120
RECORD = TESTS / "line_lengths.txt"


def sources() -> Iterator[Path]:
    """Every Python file of the checkout: the product's, tests, benches and examples."""
    yield from files()
    for room in ("bench", "examples", "tests"):
        yield from sorted((ROOT / room).rglob("*.py"))


def long_lines(path: Path) -> list[int]:
    """Numbers of a file's lines that are too long."""
    return [i for i, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1) if len(line) > LENGTH]


def recorded() -> dict[str, int]:
    """How many such lines a file may have, by its path from the root; 0 where it is not there."""
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return {name: int(count) for count, name in (line.split() for line in lines)}


def grown(paths: Iterable[Path], root: Path, allowed: Mapping[str, int]) -> Iterator[str]:
    """Sentences about files with more long lines than they may have."""
    for path in paths:
        found, name = long_lines(path), path.relative_to(root).as_posix()
        if len(found) > allowed.get(name, 0):
            yield (f"{name} has {len(found)} lines over {LENGTH} characters, and {allowed.get(name, 0)} when that was "
                   f"last counted: break one of the lines {', '.join(map(str, found))}")


if __name__ == "__main__":
    before = recorded()
    now = {p.relative_to(ROOT).as_posix(): len(long_lines(p)) for p in sources()}
    kept = {name: min(count, now.get(name, 0)) for name, count in before.items()}
    RECORD.write_text("".join(f"{n} {name}\n" for name, n in sorted(kept.items()) if n), encoding="utf-8")
