"""Functions over words: what LLVM makes of them is what Python makes of them; what they cannot say is refused by
line."""
from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tileflow.kernels.attention import float32 as attention
from tileflow.kernels.attention import pairs as attention_pairs
from tileflow.kernels.conv import depthwise, direct
from tileflow.kernels.conv.planar import blocks, correlate, product, transpose
from tileflow.kernels.conv.winograd import products as winograd
from tileflow.kernels.gemm import float32, pack, tiles
from tileflow.kernels.isa.cpu import Cpu
from tileflow.kernels.isa.paths import PATHS
from tileflow.kernels.isa.vector import WORD, Emitter, inlined_code
from tileflow.kernels.machine import words
from tileflow.kernels.machine.leaf import Leaf, Numbers
from tileflow.kernels.norm import channels_last as norm_last
from tileflow.kernels.norm import groups, planar, rms
from tileflow.kernels.pool import average, maximum
from tileflow.kernels.pool import channels_last as pool_last
from tileflow.kernels.pool.separable import FoldForm
from tileflow.kernels.quantized import conv as byte_conv
from tileflow.kernels.quantized import frames
from tileflow.kernels.quantized import product as byte_product
from tileflow.kernels.quantized.dots import way_of
from tileflow.kernels.recurrent import backward, forward, panels, shared
from tileflow.ops.cells import Cell, activations

LIMIT = 7
EVERY = True


def _store(e: Emitter, address: Any, value: Any) -> None:
    e.store(value, address)


store = inlined_code("test_words_store", "address, value", PATHS["generic"], _store)


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


def between(x: int, y: int) -> int:
    """Comparisons one after the other, a loop over a tuple, one that counts down, a tuple by a computed index."""
    total = 0
    for n in (x, y, 7):
        if n < 0:
            continue
        total += n * (2 if 0 <= n < 50 else 3)
    for i in range(9, x % 4, -2):
        total = total * 3 + (x, y, 5)[i % 3]
    return total


def run(function: Callable[..., int], x: int, y: int) -> int:
    """In compiled code."""
    out = np.zeros(1, np.int64)

    def body(to, x, y):  # type: ignore[no-untyped-def]
        store(to.ctypes.data, function(x, y))
    leaf = LEAVES.setdefault(function, Leaf(body, "i8[:], i8, i8"))
    assert leaf(out, x, y) == 0
    return int(out[0])


LEAVES: dict[Any, Leaf] = {}


@pytest.mark.parametrize("function", [arithmetic, quotients, least, truth, loops, several, early, between],
                         ids=lambda f: f.__name__)
def test_compiled_and_in_python(function: Callable[..., int]) -> None:
    rng = random.Random(3)
    pairs = [(0, 0), (1, -1), (-8, 8), *((rng.randint(-99, 99), rng.randint(-99, 99)) for _ in range(200))]
    assert [run(function, x, y) for x, y in pairs] == [function(x, y) for x, y in pairs]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_numbers_and_views(dtype: str) -> None:
    """What becomes of whole numbers and floats where they meet, slices, rows and fills: as Python has it over NumPy's
    arrays, with what it takes to be float32 rounded to it."""
    def body(x, y, table, scale, lo, hi):  # type: ignore[no-untyped-def]
        kind = x.dtype.type
        for r in range(y.shape[0]):
            row, best, total = x[lo + r], -math.inf, 0
            for i in range(1, x.shape[1]):
                best = max(best, row[i - 1:][0])
                total += row[i] / 3
            y[r, 0], y[r, 1] = best if total > 0 else math.sqrt(abs(total)), kind(total) * kind(scale)
            y[r, 2:4] = r / 2
            target = y[r, 4:]
            first, last = edges(row[:3], target) if table[r] > 0 else (0.0, 1.0)
            target[0] -= first + last
            table[r] += hi + int(total) + math.floor(scale)

    rng = np.random.default_rng(4)
    x, y, table = rng.normal(size=(5, 4)).astype(dtype), np.ones((3, 6), dtype), np.array([1, 0, 2])
    y0, table0 = y.copy(), table.copy()
    leaf = Leaf(body, f"{dtype}[:,:], {dtype}[r,:], i8[:], f8, lo, hi", key=dtype)
    assert leaf(x, y, table, -2.5) == 0
    body(x, y0, table0, -2.5, 0, 3)
    np.testing.assert_array_equal(table, table0)
    np.testing.assert_allclose(y, y0, rtol=1e-6 if dtype == "f4" else 1e-15)


def test_whole_numbers_of_32_bits() -> None:
    """They are kept as such, by which loops take many at once of them, and computed with as words."""
    def body(x, y, at):  # type: ignore[no-untyped-def]
        total, best, far = np.int32(0), x[0], np.int32(7)
        for i in range(x.shape[0]):
            total = np.int32(total + x[i])
            best = max(best, x[i])
            far = x[i] * 4                               # no int32: of both kinds it is a word
        y[0], y[1], y[2] = total, best, far
        y[3], y[4] = -x[at[0]] if best > 0 else 5, x[0] / x[1]
        y[5], y[6] = wrapped(x[0], best), np.int32(2.75) + (x[1] >> 3)
    leaf = Leaf(body, "i4[:], i8[:], i4[:]")
    x, y = np.array([2**31 - 1, 2**31 - 5, -2**31, 2**30], np.int32), np.zeros(7, np.int64)
    assert leaf(x, y, np.array([2], np.int32)) == 0
    total = (int(x.sum(dtype=np.int64)) + 2**31) % 2**32 - 2**31
    assert y.tolist() == [total, 2**31 - 1, 2**32, 2**31, 1, -2, 2 + (2**31 - 5 >> 3)]
    kept = re.findall("= alloca (i32|i64)", str(leaf._entry().define(ir.Module("whole")).module))
    assert kept.count("i32") == 2 + 2                    # total and best, and what is called gets


def test_whole_numbers_without_sign() -> None:
    """uint64 compare, shift and become floats and words as what they are; beside words they are bits, and nothing
    else."""
    top, low = np.uint64(1 << 63), np.uint64(255)

    def body(x, y, z):  # type: ignore[no-untyped-def]
        best, least = x[0], x[0]
        for i in range(x.shape[0]):
            best, least = max(best, x[i]), min(least, x[i])
        y[0], y[1] = best, least
        y[2], y[3] = x[1] >> 60, np.uint64(x[2] ^ top)
        y[4] = x[1] + x[2] * x[1] if x[1] > x[0] else x[0]
        z[0], z[1], z[2] = x[1], int(x[1] >> 62) + 7, x[1] & low
    leaf = Leaf(body, "u8[:], u8[:], f8[:]")
    x, y, z = np.array([5, 2**64 - 3, 2**63 + 9], np.uint64), np.zeros(5, np.uint64), np.zeros(3)
    assert leaf(x, y, z) == 0
    assert y.tolist() == [2**64 - 3, 5, 15, 9, (2**64 - 3) * (1 + 2**63 + 9) % 2**64]
    assert z.tolist() == [float(2**64 - 3), 3 + 7, 253]


@pytest.mark.parametrize("text", ["x[0] + n", "x[0] * 1.5", "max(x[0], n)", "x[0] < n", "x[0] // x[1]", "x[0] % x[1]"])
def test_words_and_numbers_without_sign_do_not_mix(text: str) -> None:
    """No kind holds both, so that none is taken for the other."""
    names: dict[str, Any] = {}
    source = f"def body(x, y, n):\n    y[0] = {text}\n"
    exec(source, names)
    names["body"].__written__ = source
    with pytest.raises(TypeError, match=rf"line 2: .*{re.escape(text.split()[0][:4])}.* is nothing over words"):
        Leaf(names["body"], "u8[:], f8[:], i8", key=text).compile()


@pytest.mark.parametrize("given", ["to", "to, 1, 2", "to, (1, 2)"])
def test_what_is_inlined_takes_as_many_words_as_it_says(given: str) -> None:
    """Arrays are their addresses; a tuple is no word."""
    names: dict[str, Any] = {"store": store}
    source = f"def body(to):\n    store({given})\n"
    exec(source, names)
    names["body"].__written__ = source
    with pytest.raises(TypeError, match=r"line 2: store\(.*is nothing over words"):
        Leaf(names["body"], "i8[:]", key=given).compile()
    out = np.zeros(1, np.int64)
    assert Leaf(seven, "i8[:]")(out) == 0
    assert out[0] == 7


def seven(to):  # type: ignore[no-untyped-def]
    store(to, 7)


def wrapped(x: Any, y: Any) -> Any:
    """int32 in, int32 out."""
    return np.int32(x + y)


def edges(row: Any, target: Any) -> tuple[float, float]:
    """Of two kinds, and what is called writes, too."""
    target[1] = row[2]
    return row[0], row[1] * 2


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
    leaf = Leaf(body, "i8[:,:], i8[w,:], i8, numbers, lo, hi, worker", numbers=Sizes, checked=True)
    table, own = np.zeros((2, 3), np.int64), np.zeros((2, 4), np.int64)
    assert leaf(table, own, 10, Sizes(100, 7), n=5, lo=2, worker=1) == 3
    np.testing.assert_array_equal(table, [[0, 0, 27], [37, 47, 0]])
    np.testing.assert_array_equal(own, [[0, 0, 0, 0], [101, 0, 0, 0]])


def rest(x: float) -> float:
    return (x * 0.5) % 1.0


def told(x: int) -> str:
    return f"{x}"


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


def uneven(x: int) -> Any:
    return (x, x, x) if x > 0 else (x, x)


@pytest.mark.parametrize("function", [rest, told, indexed, walked, printed, named, among, ended, both, uneven],
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
              for form in (0, 1, 2)),
            *(make("f4", capped, on) for make in (attention._forward_leaf, attention._backward_leaf)
              for capped in (False, True)),
            *(depthwise._leaf("f4", on, along, asks)
              for along, asks in ((None, False), ((3, 1), False), ((3, 1), True))),
            direct._leaf("f4", on, on.tile.rows),
            winograd._panels("f4", on), winograd._leaf("f4", on), *_pools(on), *_norms(on), *_quantised(on),
            *_recurrent(on)]


def _pools(on: Cpu) -> list[Leaf]:
    forms, made = (FoldForm(0, 0, 0), FoldForm(3, 3, 2)), pool_last
    return [*(make("f4", form, on) for make in (average._average_pool, average._gradient_planes, maximum._max_pool)
              for form in forms),
            maximum._max_winners("f4", "u1", on), maximum._max_plane("f4", on), maximum._unpool("f4", "u1"),
            *(maximum._max_halves("f4", code, on) for code in ("", "u1")), maximum._unpool_halves("f4", on),
            maximum._indices("u1"), *(made._max_pool("f4", on, winners) for winners in (False, True)),
            made._max_unpool("f4", on), made._average_pool("f4", on), made._average_gradient("f4", on),
            made._counts("f4")]


def _norms(on: Cpu) -> list[Leaf]:
    names = ("batch_norm", "batch_norm_flat", "batch_norm_grad", "batch_norm_grad_flat", "inverse_std", "layer_norm")
    return [*(planar._norm_leaf(name, "f4", on) for name in names),
            *(planar._layer_norm_grad_leaf("f4", own, on) for own in (("", "", ""), ("b2", "", "b2"))),
            groups._group_norm("f4", on), groups._group_norm_grad("f4", on), groups._samples_leaf("f4"),
            *(rms.rms_leaf("f4", back) for back in (False, True)),
            *(make("f4", on) for make in (norm_last._batch_moments, norm_last._batch_normalise,
                                          norm_last._batch_products, norm_last._batch_pull)),
            *(norm_last._per_channel(kind, "f4") for kind in ("statistics", "slopes"))]


def _quantised(on: Cpu) -> list[Leaf]:
    way = way_of(on)
    return [*(byte_product._lay_leaf(way, signed) for signed in (False, True)),
            *(byte_product._product_leaf(way, signed, True) for signed in (False, True)),
            byte_conv._weights_leaf(way, True, 4), byte_conv._conv_leaf(way, False, True, 4, 2),
            *(frames.frame_leaf(way, False, stride) for stride in (1, 2))]


def _recurrent(on: Cpu) -> list[Leaf]:
    cells = [Cell(kind, activations(kind, 1, None, None, None, None)[0], False, after)
             for kind, after in (("RNN", False), ("LSTM", False), ("GRU", False), ("GRU", True))]
    return [*(panels.panels_leaf(dtype, 16, on) for dtype in ("f4", "b2")),
            *(forward._leaf("f4", tuple(p.form for p in cell.forward("float32", True, False, True)), on)
              for cell in cells),
            *(shared._leaf("f4", cell.forward("float32", True, False, True)[0].form, on)
              for cell in cells if cell.phases == 1),
            *(backward._leaf("f4", tuple(p.form for p in cell.backward("float32", False, True)), on)
              for cell in cells)]


@pytest.mark.parametrize("path", ["generic", "avx2", "avx512"])
def test_each_branch_is_over_words(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kind of leaf, those that its constants do not take included: no model and no processor is the first to
    find one that is not."""
    tiled = [tiles.pack_leaf(dtype, PATHS["amx"]) for dtype in tiles.LARGEST] if path == "avx512" else []
    paired = [make("f4", PATHS["bf16"]) for make in (attention_pairs._forward_leaf, attention_pairs._backward_leaf)]
    monkeypatch.setattr(words._Writer, "_fixed", lambda self, test: None)
    for leaf in [*_leaves(path), *tiled, *(paired if path == "avx512" else [])]:
        leaf._entry().define(ir.Module(leaf.name))


def test_functions_are_made_once() -> None:
    module = ir.Module("once")
    made = words.define(module, several)
    assert words.define(module, several) is made
    assert [f.name.rpartition(".")[2] for f in module.functions] == ["several", "ordered"]
    assert list(made.function_type.args) == [WORD, WORD]
