"""Fused attention: kernels against float64 and PyTorch, special values, gradients; where the host finds it in a graph."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import paths
import pytest
from evaluate import check_gradient, check_kernel, evaluate, run_kernel
from peers import needs

from tileflow import nn
from tileflow.graph import Builder, Graph, TensorType, Value
from tileflow.host.attention import causal_reach
from tileflow.host.rewrite import rewrite
from tileflow.kernels.attention import pairs
from tileflow.kernels.attention.float32 import KEYS, QUERIES, scratch_elements
from tileflow.kernels.attention.half import half_scratch_elements
from tileflow.kernels.isa import cpu
from tileflow.kernels.isa.paths import PATHS
from tileflow.nn.module import record
from tileflow.ops.attention import FusedAttention, FusedAttentionGrad
from tileflow.passes.autograd import gradients
from tileflow.system.errors import ShapeError, TypeMismatchError

rng = np.random.default_rng(11)
NONE = (False, False, False, False)


def operands(batch: int, heads: int, key_heads: int, queries: int, keys: int, d: int, e: int, inside: tuple[bool, ...] = NONE,
             dtype: str = "float32") -> list[np.ndarray]:
    """q, k, v and a gradient of the result."""
    shapes = [(batch, heads, queries, d), (batch, key_heads, keys, d), (batch, key_heads, keys, e), (batch, heads, queries, e)]
    return [rng.standard_normal([s[0], s[2], s[1], s[3]] if i else s).astype(dtype) for s, i in zip(shapes, inside, strict=True)]


def check(op: FusedAttention, q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, mask: np.ndarray | None = None,
          tolerance: float = 3e-6, spacing: float = 0) -> None:
    """Forward and backward kernels against the references in float64; results in 16 bits are rounded, `spacing` being that from 1 on."""
    extra = [] if mask is None else [mask]
    y, lse = check_kernel(op, q, k, v, *extra, rtol=1e-4 + spacing, atol=1e-5)
    wide = [np.float64(a) for a in (q, k, v, *extra)]
    wanted, wanted_lse = op.reference(*wide)
    np.testing.assert_allclose(np.float64(y), wanted, rtol=tolerance + 0.51 * spacing, atol=tolerance)
    np.testing.assert_allclose(lse, wanted_lse, rtol=tolerance, atol=tolerance)
    gradient = FusedAttentionGrad(**op.attributes())
    found = check_kernel(gradient, g, q, k, v, mask, y, lse, rtol=1e-3 + spacing, atol=1e-4)
    wanted = gradient.reference(np.float64(g), *wide[:3], wide[3] if extra else None, wanted, wanted_lse)
    for a, b in zip(found, wanted, strict=True):
        limit = (5 * tolerance + spacing) * max(1, abs(b).max(initial=0))
        np.testing.assert_allclose(np.float64(a), b, rtol=tolerance + spacing, atol=limit)


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize(("sizes", "reach", "inside", "masked"), [
    ((1, 1, 1, 1, 1, 1, 1), None, NONE, None), ((2, 3, 3, 7, 5, 13, 4), None, NONE, (2, 1, 1, 5)),
    ((1, 4, 2, QUERIES + 3, KEYS + 17, 16, 16), 0, NONE, None),
    ((2, 2, 1, 31, 2 * KEYS + 1, 5, 9), 240, (True, False, True, True), (1, 2, 31, 2 * KEYS + 1)),
    ((1, 2, 2, 2 * QUERIES, 3, 8, 8), None, (False, True, False, False), (1, 1, 1, 3)), ((2, 1, 1, 37, 149, 64, 64), 3, (True,) * 4, (2, 1, 37, 149)),
])
def test_kernels(path: str, sizes: Any, reach: int | None, inside: tuple[bool, bool, bool, bool], masked: tuple[int, ...] | None) -> None:
    with cpu.forced(path):
        mask = None if masked is None else rng.standard_normal(masked).astype("float32")
        check(FusedAttention(scale=sizes[5] ** -0.5, reach=reach, inside=inside), *operands(*sizes, inside), mask)


@paths.exhaustive
@pytest.mark.parametrize("path", cpu.available())
def test_softcap(path: str) -> None:
    with cpu.forced(path):
        for sizes, masked in (((1, 4, 2, QUERIES + 3, KEYS + 17, 16, 16), None), ((2, 1, 1, 7, 5, 3, 4), (2, 1, 7, 5))):
            mask = None if masked is None else rng.standard_normal(masked).astype("float32")
            check(FusedAttention(scale=0.9, softcap=1.5, reach=None if masked else 3), *operands(*sizes), mask, tolerance=5e-6)


@pytest.mark.parametrize(("path", "dtype", "softcap"),
                         [*(paths.on(path, "float16", 1.5) for path in cpu.available()), paths.on(cpu.available()[-1], "bfloat16", 0.0)])
@pytest.mark.parametrize("case", [0, paths.rare(1), paths.rare(2)])
def test_half(path: str, dtype: str, softcap: float, case: int) -> None:
    """16-bit memory: what is summed is float32, so that one rounding is all that is lost. Each way in which arrays lie is compiled by itself."""
    sizes, inside, masked = (((1, 4, 2, QUERIES + 3, KEYS + 17, 16, 12), NONE, (1, 4, QUERIES + 3, KEYS + 17)),
                             ((2, 2, 1, 31, 5, 5, 9), (True, False, True, True), (2, 1, 1, 5)), ((2, 1, 1, 3, 7, 8, 8), (True,) * 4, None))[case]
    kind, spacing = (np.dtype(ml_dtypes.bfloat16), 2.0 ** -7) if dtype == "bfloat16" else (np.dtype(dtype), 2.0 ** -10)
    with cpu.forced(path):
        mask = None if masked is None else rng.standard_normal(masked).astype("float32" if len(set(masked)) > 2 and masked[2] == 1 else kind)
        arrays = [a.astype(kind) for a in operands(*sizes, inside)]
        check(FusedAttention(scale=sizes[5] ** -0.5, softcap=softcap, reach=None if masked else 1, inside=inside), *arrays, mask, 5e-6, spacing)


def of_torch(torch: Any, kind: Any, q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray,
             causal: bool = False) -> list[np.ndarray]:
    """The result and the gradients of PyTorch's attention in a type."""
    x = [torch.tensor(np.float32(a)).to(kind).requires_grad_() for a in (q, k, v)]
    result = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal)
    result.backward(torch.tensor(np.float32(g)).to(kind))
    return [result.detach().double().numpy(), *(a.grad.double().numpy() for a in x)]


def test_half_against_torch() -> None:
    """No further from float64 than PyTorch's own 16-bit attention, forward and backward."""
    torch = needs("torch")
    q, k, v, g = (a.astype("float16") for a in operands(2, 2, 2, 70, 300, 32, 32))
    op = FusedAttention(scale=32 ** -0.5)
    y, lse = run_kernel(op, q, k, v)
    ours = [y, *run_kernel(FusedAttentionGrad(**op.attributes()), g, q, k, v, None, y, lse)]

    by_torch = [of_torch(torch, kind, q, k, v, g) for kind in (torch.float16, torch.float64)]
    for a, theirs, exact in zip(ours, *by_torch, strict=True):
        assert np.abs(np.float64(a) - exact).max() <= 1.1 * np.abs(theirs - exact).max()


PAIRED = [((1, 4, 2, QUERIES + 3, KEYS + 17, 16, 12), NONE, (1, 4, QUERIES + 3, KEYS + 17), None),
          ((2, 2, 1, 31, 5, 6, 34), (True, False, True, True), (2, 1, 1, 5), None),
          ((2, 2, 2, QUERIES + 1, QUERIES + 1, 64, 64), (True,) * 4, None, None),
          ((1, 2, 1, 2 * QUERIES, 2 * QUERIES, 32, 48), NONE, None, 0), ((1, 1, 1, 1, 1, 2, 2), NONE, None, None),
          ((1, 2, 2, 7, 2 * KEYS + 1, 10, 70), NONE, None, 2 * KEYS - 9)]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
with_pairs = pytest.mark.parametrize("path", [path for path in cpu.available() if PATHS[path].pairs])


@with_pairs
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("sizes", "inside", "masked", "reach"), PAIRED)
def test_pairs(sizes: Any, inside: tuple[bool, bool, bool, bool], masked: tuple[int, ...] | None, reach: int | None,
               sign: int, path: str) -> None:
    """bfloat16 by products of pairs, from one, two and five workers: its weights are rounded before they are
    multiplied, too, so an error is measured by the largest number of an array."""
    assert pairs.serves("b2", sizes[5], sizes[6], False, PATHS[path])
    with cpu.forced(path):
        check_pairs(sizes, inside, masked, reach, sign)


def check_pairs(sizes: Any, inside: tuple[bool, bool, bool, bool], masked: tuple[int, ...] | None, reach: int | None,
                sign: int) -> None:
    """Of one kind of operands, on the current path."""
    mask = None if masked is None else rng.standard_normal(masked).astype("float32" if masked[2] == 1 else BFLOAT16)
    q, k, v, g = (a.astype(BFLOAT16) for a in operands(*sizes, inside))
    op = FusedAttention(scale=sign * sizes[5] ** -0.5, reach=reach, inside=inside)
    gradient, extra = FusedAttentionGrad(**op.attributes()), [] if mask is None else [mask]
    wide = [np.float64(a) for a in (q, k, v, *extra)]
    exact, exact_lse = op.reference(*wide)
    y, lse = check_kernel(op, q, k, v, *extra, rtol=1e-4, atol=2.0 ** -7 * abs(exact).max())
    np.testing.assert_allclose(lse, exact_lse, rtol=3e-6, atol=3e-6)
    wanted = gradient.reference(np.float64(g), *wide[:3], wide[3] if extra else None, exact, exact_lse)
    largest = max(abs(b).max() for b in wanted)
    found = check_kernel(gradient, g, q, k, v, mask, y, lse, rtol=1e-4, atol=2.0 ** -6 * largest)
    for a, b in [(y, exact), *zip(found, wanted, strict=True)]:
        np.testing.assert_allclose(np.float64(a), b, rtol=0, atol=2.0 ** -7 * max(abs(b).max(), 1e-3))


@with_pairs
def test_special_values_of_pairs(path: str) -> None:
    with cpu.forced(path):
        check_special_values_of_pairs()
        check_spoiled_gradients()


def check_special_values_of_pairs() -> None:
    """As in float32: a score that is NaN or +inf spoils its query alone, and -inf hides a key, in whole blocks, too."""
    q, k, v, g = (a.astype(BFLOAT16) for a in operands(1, 1, 1, 20, 2 * KEYS + 9, 8, 8))
    mask = np.zeros((1, 1, 20, k.shape[2]), "float32")
    mask[..., 1, :], mask[..., 2, :KEYS], mask[..., 3, KEYS:] = -np.inf, -np.inf, -np.inf
    mask[..., 4, 5], mask[..., 5, 200], mask[..., 6, 3] = np.nan, np.inf, -np.inf
    spoiled = [1, 4, 5]
    y, lse = run_kernel(FusedAttention(scale=0.3), q, k, v, mask)
    assert np.isnan(np.float32(y[0, 0, spoiled])).all()
    assert np.isfinite(np.float32(np.delete(y[0, 0], spoiled, 0))).all()
    assert np.isneginf(lse[0, 0, 1])
    hidden = run_kernel(FusedAttention(scale=0.3), q, k[:, :, KEYS:], v[:, :, KEYS:])[0]
    np.testing.assert_allclose(np.float32(y[0, 0, 2]), np.float32(hidden[0, 0, 2]), rtol=2.0 ** -7)
    q, g = q[:, :, :19], g[:, :, :19]                   # an odd number: nothing stands beside the last one
    k[0, 0, 3], k[0, 0, 3, 0] = 0, -np.inf
    q[0, 0, :, 0] = abs(q[0, 0, :, 0])
    y, lse = run_kernel(FusedAttention(scale=0.3), q, k, v)
    dv = run_kernel(FusedAttentionGrad(scale=0.3), g, q, k, v, None, y, lse)[2]
    assert not np.float32(dv[0, 0, 3]).any()
    assert np.isfinite(np.float32(dv)).all()


def check_spoiled_gradients() -> None:
    """A query that is spoiled has no gradient, and no other's is spoiled."""
    q, k, v, g = (a.astype(BFLOAT16) for a in operands(1, 1, 1, 20, 2 * KEYS + 9, 8, 8))
    mask = np.zeros((1, 1, 20, k.shape[2]), "float32")
    mask[..., 1, :], mask[..., 4, 5], mask[..., 5, 200] = -np.inf, np.nan, np.inf
    spoiled = [1, 4, 5]
    y, lse = run_kernel(FusedAttention(scale=0.3), q, k, v, mask)
    dq = run_kernel(FusedAttentionGrad(scale=0.3), g, q, k, v, mask, y, lse)[0]
    assert np.isnan(np.float32(dq[0, 0, spoiled])).all()
    assert np.isfinite(np.float32(np.delete(dq[0, 0], spoiled, 0))).all()


@pytest.mark.parametrize("path", cpu.available())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_out_of_reach_are_not_read(path: str, dtype: str) -> None:
    """Of an odd number of keys in reach, too, the last of which is no pair, before other queries that see all."""
    q, k, v, g = (a.astype(BFLOAT16 if dtype == "bfloat16" else dtype)
                  for a in operands(1, 1, 1, QUERIES + 3, QUERIES + 9, 8, 8))
    k[:, :, QUERIES + 3:], v[:, :, QUERIES + 3:] = np.nan, np.nan
    op = FusedAttention(scale=0.3, reach=0)
    with cpu.forced(path):
        y, lse = run_kernel(op, q, k, v)
        dq, dk, dv = run_kernel(FusedAttentionGrad(**op.attributes()), g, q, k, v, None, y, lse)
        whole = run_kernel(FusedAttention(scale=0.3, reach=0), q, k[:, :, :QUERIES + 3], v[:, :, :QUERIES + 3])[0]
    for array in (y, lse, dq, dk, dv):
        assert np.isfinite(np.float64(array)).all()
    assert y.tobytes() == whole.tobytes()


@pytest.mark.skipif(not cpu.current().pairs, reason="this CPU has no products of pairs")
@pytest.mark.parametrize("causal", [False, True])
def test_pairs_against_torch(causal: bool) -> None:
    """No further from float64 than PyTorch's own attention in bfloat16, forward and backward."""
    torch = needs("torch")
    q, k, v, g = (a.astype(BFLOAT16) for a in operands(2, 2, 2, 130, 130, 32, 32))
    op = FusedAttention(scale=32 ** -0.5, reach=0 if causal else None)
    y, lse = run_kernel(op, q, k, v)
    ours = [y, *run_kernel(FusedAttentionGrad(**op.attributes()), g, q, k, v, None, y, lse)]

    by_torch = [of_torch(torch, kind, q, k, v, g, causal) for kind in (torch.bfloat16, torch.float64)]
    for a, theirs, exact in zip(ours, *by_torch, strict=True):
        assert np.linalg.norm(np.float64(a) - exact) <= 1.05 * np.linalg.norm(theirs - exact)


@pytest.mark.parametrize(("size", "capped", "path"), [(7, False, "bf16"), (8, True, "bf16"), (8, False, "avx512")])
def test_what_pairs_do_not_serve(size: int, capped: bool, path: str) -> None:
    """Heads of odd sizes, a softcap and other processors are left to float32's kernels."""
    assert not pairs.serves("b2", size, 8, capped, PATHS[path])
    assert not pairs.serves("f2", 8, 8, False, PATHS["bf16"])
    assert pairs.serves("b2", 8, 8, False, PATHS["bf16"])


@paths.exhaustive
def test_float64() -> None:
    q, k, v, g = operands(2, 2, 1, 19, 140, 6, 3, dtype="float64")
    check(FusedAttention(scale=0.4, reach=100), q, k, v, g, tolerance=1e-12)


@pytest.mark.parametrize("shape", [(0, 2, 2, 3, 4, 5, 6), (2, 2, 2, 0, 4, 5, 6), (2, 2, 2, 3, 0, 5, 6)])
def test_nothing_to_see(shape: Any) -> None:
    q, k, v, g = operands(*shape)
    y, lse = check_kernel(FusedAttention(), q, k, v)
    assert not y.any()
    check_kernel(FusedAttentionGrad(), g, q, k, v, None, y, lse)


@pytest.mark.parametrize(("causal", "key_heads", "masked"), [(False, 4, False), (True, 4, False), (False, 2, True), (True, 1, False)])
def test_against_torch(causal: bool, key_heads: int, masked: bool) -> None:
    torch = needs("torch")
    q, k, v, g = operands(2, 4, key_heads, 150, 150, 24, 24)
    mask = np.where(rng.random((2, 1, 150, 150)) < 0.3, -np.inf, 0).astype("float32") if masked else None
    there = [torch.tensor(a, requires_grad=True) for a in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*there, None if mask is None else torch.tensor(mask), is_causal=causal,
                                                              enable_gqa=True)
    wanted.backward(torch.tensor(g))
    op = FusedAttention(scale=24 ** -0.5, reach=0 if causal else None)
    y, lse = run_kernel(op, q, k, v, *([] if mask is None else [mask]))
    np.testing.assert_allclose(y, wanted.detach(), rtol=1e-5, atol=2e-6)
    for ours, theirs in zip(run_kernel(FusedAttentionGrad(**op.attributes()), g, q, k, v, mask, y, lse), there, strict=True):
        np.testing.assert_allclose(ours, theirs.grad, rtol=1e-4, atol=2e-5)


def test_special_values() -> None:
    """NaN and +inf scores spoil their query alone; -inf hides a key, in whole blocks, too; a query without keys gets NaN."""
    q, k, v, _ = operands(1, 1, 1, 20, 2 * KEYS + 9, 8, 8)
    mask = np.zeros((1, 1, 20, k.shape[2]), "float32")
    mask[..., 1, :], mask[..., 2, :KEYS], mask[..., 3, KEYS:] = -np.inf, -np.inf, -np.inf
    mask[..., 4, 5], mask[..., 5, 200], mask[..., 6, 3] = np.nan, np.inf, -np.inf
    y, lse = check_kernel(FusedAttention(scale=0.3), q, k, v, mask, rtol=1e-4, atol=1e-6)
    assert np.isnan(y[0, 0, [1, 4, 5]]).all()
    assert np.isfinite(np.delete(y[0, 0], [1, 4, 5], 0)).all()
    assert np.isneginf(lse[0, 0, 1])
    big = check_kernel(FusedAttention(), q * 1e4, k * 1e4, v, rtol=1e-3, atol=1e-3)[0]
    assert np.isfinite(big).all()


def test_gradient_of_the_reference() -> None:
    for inside, reach, softcap in ((NONE, None, 0.0), ((True, False, True, True), 1, 0.0), (NONE, None, 0.8)):
        q, k, v, _ = operands(2, 4, 2, 3, 4, 3, 2, inside, "float64")
        op = FusedAttention(scale=0.7, softcap=softcap, reach=reach, inside=inside)
        check_gradient(op, q, k, v, rng.standard_normal((1, 4, 1, 4)), wrt=(0, 1, 2), outputs=(0,))


def test_scratch_is_not_quadratic() -> None:
    assert scratch_elements(8192, 8192, 64, 64, "f4", True) == scratch_elements(QUERIES, KEYS, 64, 64, "f4", True) < 100_000
    for backward in (False, True):
        one, two = (half_scratch_elements(n, n, 64, 64, 1, backward, True)[1] for n in (8192, 16384))
        assert two < 2.1 * one < 2.1 * 8192 * 600
        one, two = (pairs.scratch_elements(n, n, 64, 64, backward) for n in (8192, 16384))
        assert two < 2.1 * one < 2.1 * 8192 * 300


def test_errors() -> None:
    q, k = TensorType("float32", (2, 4, 3, 5)), TensorType("float32", (2, 3, 6, 5))
    with pytest.raises(ShapeError, match="the key heads divide the heads"):
        FusedAttention().infer(q, k, k)
    with pytest.raises(ShapeError, match=r"the mask is float32\[3, 6\]; it must have the 6 keys"):
        FusedAttention().infer(q, q.with_shape((2, 4, 6, 5)), q.with_shape((2, 4, 6, 5)), q.with_shape((3, 6)))
    with pytest.raises(TypeMismatchError, match="all must have the same float type"):
        FusedAttention().infer(q, q.with_dtype("float64"), q)


# ---- where the host finds it

def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def run(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The values of a rewritten graph by kernels. Its values are those of the graph it came from, so `verify` does not hold for them."""
    values: dict[Value, np.ndarray] = {**graph.constants, **{v: feeds[v.name] for v in graph.inputs}}
    for node in graph.nodes:
        values.update(zip(node.outputs, run_kernel(node.op, *[None if v is None else values[v] for v in node.inputs]), strict=True))
    return {v.name: a for v, a in values.items()}


def built(form: str, b: Builder, x: list[Value]) -> Value:
    """Attention as an exporter may write it, from q, k, v and a mask."""
    q, k, v, mask = x
    if form == "transposed":               # [batch, positions, heads, size]
        q, v = b.Transpose(q, perm=(0, 2, 1, 3)), b.Transpose(v, perm=(0, 2, 1, 3))
        scores = b.Div(b.MatMul(q, b.Transpose(k, perm=(0, 2, 3, 1))), b.scalar(3 ** 0.5, q))
        y = b.MatMul(b.Softmax(b.Add(scores, mask), axis=-1), v)
        return b.Transpose(y, perm=(0, 2, 1, 3))
    if form == "twice transposed":
        q, k, v = (b.Transpose(z, perm=(0, 2, 1, 3)) for z in (q, k, v))
        scores = b.Mul(b.scalar(0.5, q), b.MatMul(q, b.Transpose(k, perm=(0, 1, 3, 2))))
        return b.MatMul(b.Softmax(b.Add(mask, scores), axis=3), v)
    if form == "capped":
        cap, scores = b.scalar(0.7, q), b.FusedMatMul(q, k, transB=1, alpha=0.5)
        return b.MatMul(b.Softmax(b.Add(b.Mul(b.Tanh(b.Div(scores, cap)), cap), mask), axis=-1), v)
    if form == "grouped":                  # [batch, key heads, group, positions, size]
        scores = b.FusedMatMul(q, k, transB=1, alpha=0.5)
        return b.MatMul(b.Softmax(b.Add(scores, mask), axis=-1), v)
    return b.MatMul(b.Softmax(b.Add(b.FusedMatMul(q, k, transB=1, alpha=0.5), mask), axis=-1), v)


FORMS = {"capped": [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), (1, 3, 5, 6)],
         "transposed": [(2, 5, 3, 4), (2, 6, 3, 4), (2, 6, 3, 4), (2, 1, 1, 6)], "plain": [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), (1, 3, 5, 6)],
         "twice transposed": [(2, 5, 3, 4), (2, 6, 3, 4), (2, 6, 3, 4), (5, 6)], "three": [(3, 5, 4), (3, 6, 4), (3, 6, 4), (3, 1, 6)],
         "grouped": [(2, 2, 3, 5, 4), (2, 2, 1, 6, 4), (2, 2, 1, 6, 4), (2, 1, 1, 5, 6)],
         "shared": [(2, 3, 5, 4), (2, 1, 6, 4), (2, 1, 6, 4), (5, 6)]}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_found_and_equal(form: str, training: bool) -> None:
    graph = Graph(form)
    b = Builder(graph)
    x = [b.input(name, TensorType("float64", shape)) for name, shape in zip("qkvm", FORMS[form], strict=True)]
    y = built(form, b, x)
    graph.outputs.append(y)
    if training:
        loss = b.ReduceSum(b.Mul(y, b.constant(rng.standard_normal(y.shape))), keepdims=0)
        graph.outputs += gradients(graph, loss, x[:3])
    graph.prune()
    before = list(map(repr, graph.nodes))
    fused = rewrite(graph)
    assert list(map(repr, graph.nodes)) == before, "the graph itself was changed"
    assert names(fused).count("FusedAttention") == 1
    assert names(fused).count("FusedAttentionGrad") == int(training)
    assert not {"Softmax", "SoftmaxGrad", "Transpose", "FusedMatMul"} & set(names(fused))
    feeds = {v.name: rng.standard_normal(v.shape) for v in x}
    wanted, got = evaluate(graph, feeds), run(fused, feeds)
    for v in graph.outputs:
        np.testing.assert_allclose(got[v.name], wanted[v.name], rtol=1e-9, atol=1e-11)


@paths.exhaustive
def test_found_in_16_bits() -> None:
    """Forward and backward, with a softcap, in a graph of 16-bit numbers: their scales are rounded there."""
    for dtype in ("float16", "bfloat16"):
        graph = Graph("half")
        b = Builder(graph)
        x = [b.input(name, TensorType(dtype, shape)) for name, shape in zip("qkvm", FORMS["capped"], strict=True)]
        y = built("capped", b, x)
        graph.outputs.append(y)
        graph.outputs += gradients(graph, b.ReduceSum(b.Mul(y, y), keepdims=0), x[:3])
        graph.prune()
        found = names(rewrite(graph))
        assert (found.count("FusedAttention"), found.count("FusedAttentionGrad"), found.count("Softmax")) == (1, 1, 0)
        kind = graph.outputs[0].type.numpy
        feeds = {v.name: rng.standard_normal(v.shape).astype(kind) for v in x}
        wanted, got = evaluate(graph, feeds), run(rewrite(graph), feeds)
        for v in graph.outputs[1:]:
            a, wide = np.float64(got[v.name]), np.float64(wanted[v.name])
            assert np.abs(a - wide).max() < {"float16": 0.01, "bfloat16": 0.08}[dtype] * max(1, np.abs(wide).max())


@pytest.mark.parametrize(("dtype", "capped", "mask"), [
    paths.rare("float16", True, "float32"), paths.rare("bfloat16", False, "float32"), paths.rare("bfloat16", True, "bfloat16")])
def test_found_with_the_softmax_in_float32(dtype: str, capped: bool, mask: str) -> None:
    """As mixed precision casts it: products in 16 bits, their scores to float32 for the softmax, the weights back, and so the gradients."""
    graph = Graph("mixed")
    b = Builder(graph)
    q, k, v = (b.input(name, TensorType(dtype, shape)) for name, shape in zip("qkv", FORMS["capped"], strict=False))
    m = b.input("m", TensorType(mask, (1, 3, 5, 6)))
    scores = b.FusedMatMul(q, k, transB=1, alpha=0.5)
    if capped:
        scores = b.Mul(b.Tanh(scores), b.scalar(2.0, scores))
    scores = b.Add(b.Cast(scores, to="float32"), m) if mask == "float32" else b.Cast(b.Add(scores, m), to="float32")
    y = b.MatMul(b.Cast(b.Softmax(scores, axis=-1), to=dtype), v)
    graph.outputs.append(y)
    graph.outputs += gradients(graph, b.ReduceSum(b.Mul(y, y), keepdims=0), [q, k, v])
    graph.prune()
    fused = rewrite(graph)
    found = names(fused)
    assert (found.count("FusedAttention"), found.count("FusedAttentionGrad"), found.count("Softmax"), found.count("Cast")) == (1, 1, 0, 0)
    feeds = {x.name: rng.standard_normal(x.shape).astype(x.type.numpy) for x in (q, k, v, m)}
    wanted, got = evaluate(graph, feeds), run(fused, feeds)
    for value in graph.outputs:
        assert got[value.name].dtype == value.type.numpy
        a, wide = np.float64(got[value.name]), np.float64(wanted[value.name])
        assert np.abs(a - wide).max() < {"float16": 0.01, "bfloat16": 0.08}[dtype] * max(1, np.abs(wide).max())


def test_rounded_weights_that_are_wanted_stay() -> None:
    graph = Graph("wanted")
    b = Builder(graph)
    q, k, v = (b.input(name, TensorType("float16", shape)) for name, shape in zip("qkv", FORMS["plain"], strict=False))
    weights = b.Cast(b.Softmax(b.Cast(b.FusedMatMul(q, k, transB=1), to="float32"), axis=-1), to="float16")
    graph.outputs += [b.MatMul(weights, v), weights]
    assert rewrite(graph) is graph


def test_causal_mask_is_recognised() -> None:
    for fill in (-np.inf, np.finfo(np.float32).min):
        mask = np.triu(np.full((5, 7), fill, np.float32), 3)
        assert causal_reach(mask) == 2
        graph = Graph("causal")
        b = Builder(graph)
        q, k = (b.input(name, TensorType("float32", (2, 3, n, 4))) for name, n in (("q", 5), ("k", 7)))
        graph.outputs.append(b.MatMul(b.Softmax(b.Add(b.FusedMatMul(q, k, transB=1), b.constant(mask)), axis=-1), k))
        node, = rewrite(graph).nodes
        assert node.op == FusedAttention(reach=2)
        feeds = {"q": rng.standard_normal((2, 3, 5, 4)).astype("float32"), "k": rng.standard_normal((2, 3, 7, 4)).astype("float32")}
        name = graph.outputs[0].name
        np.testing.assert_allclose(run(rewrite(graph), feeds)[name], evaluate(graph, feeds)[name], rtol=1e-5, atol=1e-6)
    assert causal_reach(np.zeros((2, 2), np.float32)) == 1
    assert causal_reach(np.array([[0, 0], [-np.inf, 0]], np.float32)) is None
    assert causal_reach(np.array([[0, -1e4], [0, 0]], np.float32)) is None


@pytest.mark.parametrize("why", ["dropout", "mask gradient", "weights wanted", "other axis", "scaled mask", "capped mask", "capped scores wanted"])
def test_left_alone(why: str) -> None:
    graph = Graph(why)
    b = Builder(graph)
    q, k, v, mask = (b.input(name, TensorType("float32", shape)) for name, shape in zip("qkvm", FORMS["plain"], strict=True))
    scores = b.Add(b.FusedMatMul(q, k, transB=1), mask)
    if why == "scaled mask":
        scores = b.Mul(scores, b.scalar(0.5, scores))
    if why == "capped mask":
        scores = b.Tanh(scores)
    capped = b.Tanh(b.FusedMatMul(q, k, transB=1)) if why == "capped scores wanted" else None
    scores = scores if capped is None else b.Add(capped, mask)
    weights = b.Softmax(scores, axis=2 if why == "other axis" else -1)
    y = b.MatMul(b.Dropout(weights, ratio=0.1, training_mode=1) if why == "dropout" else weights, v)
    graph.outputs += [y, *([weights] if why == "weights wanted" else []), *([] if capped is None else [b.Relu(capped)])]
    if why == "mask gradient":
        graph.outputs += gradients(graph, b.ReduceSum(y, keepdims=0), [q, mask])
    assert rewrite(graph) is graph


def test_layer_of_a_training_graph_is_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, x: nn.Tensor) -> nn.Tensor:      # type: ignore[override]
            return self.attention(x).sum()
    graph = record(Net(), [("x", TensorType("float32", (2, 4, 8)))], training=True, dtype="float32")
    gradients(graph, graph.outputs[0], [s.input for s in graph.states])
    assert names(rewrite(graph)).count("FusedAttention") == 1


# ---- ONNX

@pytest.mark.parametrize(("attributes", "shapes", "mask"), [
    ({"is_causal": 1}, [(2, 3, 9, 8), (2, 3, 9, 8), (2, 3, 9, 5)], None),
    ({"q_num_heads": 4, "kv_num_heads": 2, "scale": 0.3}, [(2, 5, 24), (2, 7, 12), (2, 7, 12)], ("bool", (2, 1, 5, 7))),
    ({"is_causal": 1}, [(1, 4, 5, 8), (1, 2, 3, 8), (1, 2, 3, 8), None, (1, 2, 6, 8), (1, 2, 6, 8)], ("float32", (5, 9))),
])
def test_onnx_attention(attributes: dict[str, Any], shapes: list[Any], mask: Any) -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    from tileflow.onnx_backend import Backend
    arrays = {f"x{i}": rng.standard_normal(s).astype("float32") for i, s in enumerate(shapes) if s}
    if mask:
        drawn = rng.random(mask[1]) < 0.6
        drawn[..., 0, :] = False           # a query that sees nothing gives zeros
        arrays["x3"] = drawn if mask[0] == "bool" else np.where(drawn, rng.standard_normal(mask[1]), -np.inf).astype("float32")
    names_in = [f"x{i}" if f"x{i}" in arrays else "" for i in range(max(len(shapes), 4))]
    outputs = ["y", "k", "v"] if len(shapes) > 3 else ["y"]
    types = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()]
    node = onnx.helper.make_node("Attention", names_in, outputs, **attributes)
    graph = onnx.helper.make_graph([node], "attention", types, [onnx.helper.make_tensor_value_info(n, 1, None) for n in outputs])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
    prepared = Backend.prepare(model)
    for ours, theirs in zip(prepared.run(arrays), ReferenceEvaluator(model).run(None, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    engine, = prepared._engines.values()
    assert any(owner.operator == "FusedAttention" for owner in engine.image.owners)
