"""Lines that are too long to be read beside others become fewer."""
from __future__ import annotations

from pathlib import Path

import line_lengths
import pytest
from line_lengths import LENGTH, ROOT, grown


def test_lines_do_not_grow() -> None:
    said = list(grown(line_lengths.sources(), ROOT, line_lengths.recorded()))
    assert not said, "\n".join(said)


@pytest.mark.parametrize(("lengths", "allowed", "lines"), [
    ((LENGTH, LENGTH), {}, ""),
    ((LENGTH + 1, LENGTH), {}, "1"),
    ((LENGTH + 1, LENGTH), {"room/new.py": 1}, ""),
    ((LENGTH + 1, 5, 2 * LENGTH), {"room/new.py": 1}, "1, 3"),
    ((LENGTH + 1,), {"room/other.py": 1}, "1")])
def test_long_lines_are_found(lengths: tuple[int, ...], allowed: dict[str, int], lines: str, tmp_path: Path) -> None:
    path = tmp_path / "room" / "new.py"
    path.parent.mkdir()
    path.write_text("\n".join("ä" * n for n in lengths), encoding="utf-8")
    said = list(grown([path], tmp_path, allowed))
    assert [s.rpartition("lines ")[2] for s in said] == ([lines] if lines else [])
