"""docs/executables.md is true: its code runs as it stands, and the options that it lists are those that may change."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

from tileflow.options.options import declarations
from tileflow.options.verbs import MODELS

PAGE = (ROOT / "docs" / "executables.md").read_text(encoding="utf-8")


def test_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "executables.md", "exec"), known)
    training, validation = known["training"], known["validation"]
    assert training.source.session is validation.source.session                         # type: ignore[attr-defined]
    assert np.isfinite(known["loss"]).all()                                             # type: ignore[call-overload]


def test_the_options_that_may_change_are_named() -> None:
    listed, = re.findall(r"## What may change on loading\n\n(.*?), and all options of", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == {d.name for d in declarations().values() if not d.is_compiled
                                                   and {*MODELS} & {*d.verbs}}
