"""Functions over words: what LLVM makes of them is what Python makes of them; what they cannot say is refused by
line."""
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tileflow.kernels.conv.planar import blocks, correlate, product, transpose
from tileflow.kernels.gemm import float32, pack, tiles
from tileflow.kernels.isa.paths import PATHS
from tileflow.kernels.isa.vector import WORD, Emitter, as_intrinsic
from tileflow.kernels.machine import words
from tileflow.kernels.machine.leaf import Leaf, Numbers
from tileflow.kernels.machine.worded import WordLeaf

LIMIT = 7
EVERY = True


def _store(e: Emitter, address: Any, value: Any) -> None:
    e.store(value, address)


store = as_intrinsic("test_words_store", "address, value", PATHS["generic"], _store)


def arithmetic(x: int, y: int) -> int:
    return (x + 3 * y - 1) ^ (x & 12) | (y << 2) ^ (x >> 1) ^ -y


def quotients(x: int, y: int) -> int:
    d = y if y != 0 else -5
    return x // d * 1000 + x % d + x // 8 + x % 8 + x // -3 + x % -3


def least(x: int, y: int) -> int:
    return min(x, y, 4) * 100 + max(x, y, -LIMIT)


def truth(x: int, y: int) -> int:
    inside = x >= 0 and y >= 0 and not (x == y or x == 3)
    far = x > 50 or y < -50 or inside
    return inside + 2 * far + 4 * (x <= y) + 8 * (not far) + 16 * bool(x)


def loops(x: int, y: int) -> int:
    total = 0
    for i in range(x % 20):
        if i == y % 5:
            continue
        for j in range(i, 30, 1 + y % 3):
            if j > 2 * LIMIT:
                break
            total += i * j
        total -= 1
    while True:
        total += 3
        if total % 11 == 0:
            break
    return total


def several(x: int, y: int) -> int:
    low, high = ordered(x, y)
    a, b = (low, high) if x % 2 == 0 else (high, low)
    return a * 31 + b


def ordered(x: int, y: int) -> tuple[int, int]:
    if x < y:
        return x, y
    return y, x


def early(x: int, y: int) -> int:
    """Ends in each of its ways, and calls itself."""
    if x > 40:
        return y
    elif x < -40:
        return early(-x, y + 1)
    else:
        if EVERY:
            return 5
        return missing(x)                                                     # type: ignore[name-defined] # noqa: F821


def run(function: Callable[..., int], x: int, y: int) -> int:
    """In compiled code."""
    out = np.zeros(1, np.int64)

    def body(to, x, y):  # type: ignore[no-untyped-def]
        store(to.ctypes.data, function(x, y))
    leaf = LEAVES.setdefault(function, WordLeaf(body, "i8[:], i8, i8"))
    assert leaf(out, x, y) == 0
    return int(out[0])


LEAVES: dict[Any, WordLeaf] = {}


@pytest.mark.parametrize("function", [arithmetic, quotients, least, truth, loops, several, early],
                         ids=lambda f: f.__name__)
def test_compiled_and_in_python(function: Callable[..., int]) -> None:
    rng = random.Random(3)
    pairs = [(0, 0), (1, -1), (-8, 8), *((rng.randint(-99, 99), rng.randint(-99, 99)) for _ in range(200))]
    assert [run(function, x, y) for x, y in pairs] == [function(x, y) for x, y in pairs]


@dataclass(frozen=True)
class Sizes(Numbers):
    first: int
    second: int


def test_a_leaf_reads_what_its_signature_says() -> None:
    """Arrays of two axes, a row for each worker, numbers with names, the range, a status."""
    def body(table, own, scale, s, lo, hi, worker):  # type: ignore[no-untyped-def]
        for i in range(lo, hi):
            store(table.ctypes.data + 8 * i, scale * i + s.second)
        store(own.ctypes.data, worker + s.first)
        return hi - lo
    leaf = WordLeaf(body, "i8[:,:], i8[w,:], i8, numbers, lo, hi, worker", numbers=Sizes, checked=True)
    table, own = np.zeros((2, 3), np.int64), np.zeros((2, 4), np.int64)
    assert leaf(table, own, 10, Sizes(100, 7), n=5, lo=2, worker=1) == 3
    np.testing.assert_array_equal(table, [[0, 0, 27], [37, 47, 0]])
    np.testing.assert_array_equal(own, [[0, 0, 0, 0], [101, 0, 0, 0]])


def half(x: int) -> float:
    return x * 0.5


def divided(x: int) -> float:
    return x / 2


def indexed(x: Any) -> Any:
    return x[0]


def walked(x: Any) -> int:
    for _ in x:
        return 1
    return 0


def printed(x: int) -> int:
    print(x)
    return x


def named(x: int) -> int:
    return arithmetic(x, y=2)


def between(x: int) -> bool:
    return 0 <= x < 9


def among(x: int) -> bool:
    return x in (1, 2)


def ended(x: int) -> int:
    while x > 3:
        x -= 1
    else:
        x = 9
    return x


def both(x: int) -> int:
    y = z = x
    return y + z


@pytest.mark.parametrize("function", [half, divided, indexed, walked, printed, named, between, among, ended, both],
                         ids=lambda f: f.__name__)
def test_what_is_nothing_over_words_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=f"{function.__name__}, line [0-9]+: .* is nothing over words"):
        words.define(ir.Module("refused"), function)


def _leaves(path: str) -> list[Leaf]:
    """All kinds of leaves over words that a path has, but for tiles: each factory with all that it tells apart."""
    on = PATHS[path]
    return [pack.pack_leaf("f4", on), *(float32._gemm(kind, "f4", on) for kind in ("outer", "panels", "dot")),
            *(blocks._leaf("f4", on, taps, 4) for taps in (0, 2, 3)),
            *(product._forward("f4", on, form, pooled) for form in (0, 1, 2) for pooled in (False, True)),
            *(make("f4", on, form) for make in (correlate._weight_gradient, transpose._input_gradient)
              for form in (0, 1, 2))]


@pytest.mark.parametrize("path", ["generic", "avx2", "avx512"])
def test_each_branch_is_over_words(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kind of leaf, those that its constants do not take included: no model and no processor is the first to
    find one that is not."""
    tiled = [tiles.pack_leaf(dtype, PATHS["amx"]) for dtype in tiles.LARGEST] if path == "avx512" else []
    monkeypatch.setattr(words._Writer, "_fixed", lambda self, test: None)
    for leaf in [*_leaves(path), *tiled]:
        leaf._entry().define(ir.Module(leaf.name))


def test_functions_are_made_once() -> None:
    module = ir.Module("once")
    made = words.define(module, several)
    assert words.define(module, several) is made
    assert [f.name.rpartition(".")[2] for f in module.functions] == ["several", "ordered"]
    assert list(made.function_type.args) == [WORD, WORD]
