"""What a kernel's name in the cache depends on: two bodies that compute different things are never one name."""
from __future__ import annotations

import dataclasses
import itertools
import linecache
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import PATH, ROOT

from tileflow.kernels.isa.paths import PATHS
from tileflow.kernels.isa.target import Target
from tileflow.kernels.machine import content, driver, sources, stored
from tileflow.kernels.machine.leaf import Leaf

LOOP = "    for i in range(y.shape[0]):\n        y[i] = "
BODIES = {
    "constant": f"def body(x, y):\n{LOOP}x[i] * SCALE",
    "constant tuple": f"def body(x, y):\n{LOOP}x[i] * (1.0, SCALE)[1]",
    "default": f"def body(x, y, scale=SCALE):\n{LOOP}x[i] * scale",
    "default of an inner function": f"def inner(v, scale=SCALE):\n    return v * scale\ndef body(x, y):\n{LOOP}inner(x[i])",
    "closure": f"def make(scale):\n    def body(x, y):\n    {LOOP.replace('    ', '        ')}x[i] * scale\n    return body\nbody = make(SCALE)",
    "closure of an inner function": "def make(scale):\n    def inner(v):\n        return v * scale\n    return inner\n"
                                    f"inner = make(SCALE)\ndef body(x, y):\n{LOOP}inner(x[i])",
    "array in a closure": f"table = np.array([SCALE])\ndef body(x, y):\n{LOOP}x[i] * table[0]",
    "global": f"scale = SCALE\ndef body(x, y):\n{LOOP}x[i] * scale",
    "global tuple": f"scales = (1.0, SCALE)\ndef body(x, y):\n{LOOP}x[i] * scales[1]",
    "global of an inner function": f"scale = SCALE\n@njit\ndef inner(v):\n    return v * scale\ndef body(x, y):\n{LOOP}inner(x[i])",
}


def body_of(kind: str, scale: str) -> Any:
    """A body as in somebody's file: float64, y = x * scale."""
    made: dict[str, Any] = {"__name__": "a_file_of_somebody"}
    text = "import numpy as np\nfrom numba import njit\n" + BODIES[kind].replace("SCALE", scale)
    name = f"<somebody's {kind}, {scale}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name       # as of a notebook's cell
    exec(compile(text, name, "exec"), made)
    return made["body"]


def leaf(kind: str, scale: str) -> Leaf:
    return Leaf(body_of(kind, scale), "f8[r], f8[r]")


@pytest.mark.parametrize("kind", BODIES)
def test_bodies_that_differ_have_names_that_differ(kind: str) -> None:
    names = [leaf(kind, scale).stored_name for scale in ("2.0", "3.0", "2", "-2.0", "True", "2.0")]
    assert len(set(names)) == 5
    assert names[0] == names[-1]


@pytest.mark.parametrize("kind", ["constant", "constant tuple", "closure", "closure of an inner function", "global", "global tuple"])
def test_the_second_of_two_bodies_computes_what_it_says(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stored, "_linked", {})
    x, y = np.arange(5.0), np.empty(5)
    for scale, kept in itertools.product((2.0, 3.0), (False, True)):
        stored._linked.clear()                          # as in a process that has not run it
        made = leaf(kind, str(scale))
        assert made.load() == kept
        assert made(x, y) == 0
        assert (y == x * scale).all()


def test_names_are_the_same_in_every_process() -> None:
    """Else every start would compile anew."""
    script = "from test_content import BODIES, leaf\nfor kind in BODIES:\n    print(leaf(kind, '2.0').stored_name)\n"
    script += "from tileflow.kernels.rows import row_leaf\nfrom tileflow.kernels.attention.float32 import attention_leaf\n"
    script += "from tileflow.kernels.gemm.tiles import pack_leaf\nfrom tileflow.kernels.isa.paths import PATHS\n"
    script += "leaves = row_leaf('softmax', 'f4'), attention_leaf('f4'), pack_leaf('f4', PATHS['amx'])\n"
    script += "print(*(leaf.stored_name for leaf in leaves))\n"
    found = {subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True,
                            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": PATH}).stdout
             for seed in ("1", "2")}
    assert len(found) == 1
    assert len(next(iter(found)).split()) == len(BODIES) + 3


def test_functions_that_know_each_other_have_a_hash() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert content.digest(even) == content.digest(even) != content.digest(odd)


class Unknown:
    """Says nothing of what is in it."""


class Told:
    """Says what shapes code."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def content(self) -> str:
        return repr(self.scale)


@dataclasses.dataclass(frozen=True)
class Fields:
    scale: float


def test_what_nothing_is_known_of_has_no_name_and_what_says_its_content_has() -> None:
    def holding(value: Any) -> Any:
        def body(x, y):                                 # type: ignore[no-untyped-def]
            return value
        return body

    with pytest.raises(TypeError,
                       match=r"Unknown says nothing that names it in the cache; give its class a method content\(\)"):
        content.digest(holding(Unknown()))
    for kind in (Told, Fields):
        one, same, other = (content.digest(holding(kind(x))) for x in (1.0, 1.0, 2.0))
        assert one == same != other


def test_an_edit_recompiles_what_it_touches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(sources.ROOT, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    modules = [f"{sources.PACKAGE}.{name}"
               for name in ("reduce", "rows", "conv.direct", "gemm.float32", "machine.claim", "elementwise.loops")]
    target = Target.of(PATHS["generic"])

    def digests() -> list[str]:
        for function in (sources.digest, sources._text, sources._path, sources._imports):
            function.cache_clear()
        return [*(sources.digest(module) for module in modules), driver._key(target)]

    here = digests()
    monkeypatch.setattr(sources, "ROOT", tmp_path / "kernels")
    assert digests() == here
    for edited, touched in {"reduce.py": {0}, "rows.py": {0, 1}, "gemm/micro.py": {2, 3},
                            "machine/boards.py": {4, 6}, "machine/words.py": set(range(7)),
                            "isa/vector.py": set(range(7)), "machine/leaf.py": set(range(7)),
                            "machine/cache.py": set(), "isa/paths.py": set(range(7)), "conv/__init__.py": set(),
                            "norm/planar.py": set()}.items():
        before, file = digests(), tmp_path / "kernels" / edited
        file.write_text(file.read_text() + "\nANOTHER = 1\n")
        assert {i for i, (a, b) in enumerate(zip(before, digests(), strict=True)) if a != b} == touched, edited
    monkeypatch.undo()
    assert digests() == here
