"""What follows from an 8-bit number is looked up: which parts of expressions are, and that no bit changes."""
from __future__ import annotations

import numpy as np
import paths
import pytest
from test_elementwise import compute

from tileflow.kernels.elementwise.expr import Expr, Var, cast, draw, erf, maximum, minimum, round_, tanh
from tileflow.kernels.elementwise.loops import elementwise_call
from tileflow.kernels.elementwise.tabulated import tabulated
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import In, Out

q, row, scale = Var(0, "int8"), Var(1, "float32"), Var(2, "float32")
FIXED = frozenset([2])
"""The scale is one number."""


def quantised(x: Expr, by: Expr | float = 0.05, dtype: str = "int8") -> Expr:
    """As files say it: rounded to a multiple, saturated to 8 bits, which may lie in more."""
    return cast(cast(minimum(maximum(round_(x / by) + 3.0, -128.0), 127.0), "int32"), dtype)


def widened(n: Expr, by: Expr | float = 0.05) -> Expr:
    return cast(cast(n, "int32") - 3, "float32") * by


def gelu(n: Expr, by: Expr | float = 0.05, dtype: str = "int8") -> Expr:
    """Quantised after each step but the last."""
    def again(x: Expr) -> Expr:
        return widened(quantised(x, by, dtype), by)
    x = widened(n, by)
    return x * again(again(erf(again(x / 1.4142135))) + 1.0) * 0.5


def test_a_chain_of_quantised_functions_is_looked_up() -> None:
    found = tabulated((quantised(gelu(q)),), frozenset())
    assert found is not None
    assert (found.source, found.nodes) == (q, (quantised(gelu(q)),))
    inner = quantised(cast(Var(0, "int32"), "float32") * row)
    found = tabulated((gelu(inner, scale), widened(inner, scale)), FIXED)
    assert found is not None
    assert found.source is inner
    assert set(found.nodes) == {gelu(inner, scale), widened(inner, scale)}


def test_few_elements_are_computed() -> None:
    """A table has 256 entries: what 2047 elements take is no more than that."""
    def leaf(size: int) -> object:
        return elementwise_call([gelu(q)], [In(0, (size,))], [Out(0, (size,))]).leaf
    assert leaf(2047) is leaf(5)
    assert leaf(2048) is leaf(1 << 20)
    assert leaf(2047) is not leaf(2048)


def test_what_depends_on_more_is_computed() -> None:
    """What an element has besides the number is read outside of the table; a short function is quicker computed."""
    found = tabulated((gelu(q) + row,), FIXED)
    assert found is not None
    assert found.nodes == (gelu(q),)
    assert tabulated((gelu(q, row),), FIXED) is None, "a scale for each channel"
    assert tabulated((gelu(q, scale),), frozenset()) is None
    assert tabulated((gelu(q, cast(draw(0), "float32")),), FIXED) is None
    assert tabulated((gelu(Var(0, "int16"), dtype="int32"),), FIXED) is None
    assert tabulated((widened(q),), FIXED) is None
    assert tabulated((quantised(widened(q)),), FIXED) is None
    assert tabulated((tanh(row) * 2.0,), FIXED) is None


FORMS = [lambda n, dtype: gelu(n, scale, dtype), lambda n, dtype: quantised(gelu(n, scale, dtype), scale, dtype),
         lambda n, dtype: gelu(n, scale, dtype) + row]


@pytest.mark.parametrize("path", [paths.rare(p) if p != paths.FASTEST else p for p in cpu.available()])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_entries_are_what_would_have_been_computed(path: str, dtype: str) -> None:
    """Against the same function of 32-bit numbers, which has none of 8 bits; with scales that make NaN, too."""
    every = np.arange(256, dtype="uint8").view(dtype)
    with cpu.forced(path):
        for by in (0.05, 1e-38, float("nan"), -0.2):
            for values in (np.tile(every, 9)[:2051], np.tile(every, 9)[:2183].reshape(37, 59)):
                for form in FORMS:
                    made, wide = form(Var(0, dtype), "int8"), form(Var(0, "int32"), "int32")
                    assert tabulated((made,), FIXED) is not None
                    assert tabulated((wide,), FIXED) is None
                    others = (np.linspace(-3, 3, values.size, dtype="float32").reshape(values.shape),
                              np.full((1,) * values.ndim, by, "float32"))
                    got, = compute([made], values, *others)
                    want, = compute([wide], values.astype("int32"), *others)
                    assert got.tobytes() == want.astype(got.dtype).tobytes()
