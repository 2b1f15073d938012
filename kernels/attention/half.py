"""Attention on 16-bit memory: operands of one head are widened into the worker's scratch, where the float32 kernels do all the work.

Scores, weights and sums are float32 throughout, and so is the statistic of the queries; results are rounded once, when they are written.
Masks, of the operands' type or float32, are widened block by block, so that the scratch is linear in the number of positions. See `attention` for
the operands.
"""
from __future__ import annotations

import functools
from typing import Any

from ..isa import cpu
from ..isa.half import narrow_rows, widen_rows
from ..machine.leaf import Leaf
from .float32 import QUERIES, SIZES, AttentionSizes, backward_body, forward_body, geometry, scratch_elements

OneHead: Any = AttentionSizes.body()
"""What the float32 kernel reads: its operands are those of one key head."""


def half_scratch_elements(queries: int, keys: int, size: int, value_size: int, group: int, backward: bool, capped: bool) -> tuple[int, int]:
    """float32 numbers of one worker's scratch: of the float32 kernel, and in all with the widened operands and results."""
    inner = scratch_elements(queries, keys, size, value_size, "f4", backward, capped)
    if backward:
        return inner, inner + 2 * (group * queries + keys) * (size + value_size)
    return inner, inner + (min(queries, QUERIES) + keys) * (size + value_size)


def attention_half_leaf(dtype: str, mask: str, capped: bool = False) -> Leaf:
    """The forward leaf for "f2" or "b2" with a mask of that type or "f4". A unit of range is a block of queries of a head; the float32 kernel has
    `inner` numbers of scratch."""
    return _forward_leaf(dtype, mask, capped, cpu.current())


def attention_half_grad_leaf(dtype: str, mask: str, capped: bool = False) -> Leaf:
    """The backward leaf, likewise. A unit of range is a key head with its query heads."""
    return _backward_leaf(dtype, mask, capped, cpu.current())


def _converters(dtype: str, path: cpu.Cpu) -> tuple[Any, Any]:
    """widened(count, n, x, at, row, scratch, to): rows of x to rows in scratch; rounded(...) the other way."""
    widen, narrow = widen_rows(dtype), narrow_rows(dtype)

    def widened(count, n, x, at, row, scratch, to):  # type: ignore[no-untyped-def]
        widen(count, n, x.ctypes.data + 2 * at, 2 * row, scratch.ctypes.data + 4 * to, 4 * n)

    def rounded(count, n, scratch, at, x, to, row):  # type: ignore[no-untyped-def]
        narrow(count, n, scratch.ctypes.data + 4 * at, 4 * n, x.ctypes.data + 2 * to, 2 * row)
    return widened, rounded


@functools.cache
def _forward_leaf(dtype: str, mask: str, capped: bool, path: cpu.Cpu) -> Leaf:
    attend = forward_body("f4", mask, capped, path)
    widened, rounded = _converters(dtype, path)

    def attention_half(q, k, v, mask, y, lse, scratch, inner, scale, cap, s, lo, hi):  # type: ignore[no-untyped-def]
        heads, group, queries, keys, d, e = s.heads, s.group, s.queries, s.keys, s.d, s.e
        (q_b, q_h, q_t), (k_b, k_h, k_t), (v_b, v_h, v_t), (y_b, y_h, y_t) = geometry(s)
        block = min(queries, QUERIES)
        blocks = (queries + block - 1) // block
        wide_v = inner + keys * d
        wide_q = wide_v + keys * e
        wide_y = wide_q + block * d
        here = -1
        for unit in range(lo, hi):
            i0, h, b = unit % blocks * block, unit // blocks % heads, unit // (blocks * heads)
            rows, line = min(block, queries - i0), unit // blocks * queries + i0
            if unit // blocks // group != here:            # other keys than the last unit's
                here = unit // blocks // group
                widened(keys, d, k, b * k_b + h // group * k_h, k_t, scratch, inner)
                widened(keys, e, v, b * v_b + h // group * v_h, v_t, scratch, wide_v)
            widened(rows, d, q, b * q_b + h * q_h + i0 * q_t, q_t, scratch, wide_q)
            seen = mask[b * s.mask_b + h * s.mask_h + i0 * s.mask_t:]
            own = OneHead(1, 1, rows, keys, d, e, s.causal + i0, 0, s.mode, 0, 0, s.mask_t)
            attend(scratch[wide_q:], scratch[inner:], scratch[wide_v:], seen, scratch[wide_y:], lse[line:], scratch,
                   scale, cap, own, 0, 1)
            rounded(rows, e, scratch, wide_y, y, b * y_b + h * y_h + i0 * y_t, y_t)

    signature = f"T[:], T[:], T[:], {mask}[:], T[:], f4[:], f4[w,:], i8, " + SIZES.replace("T", "f4")
    return Leaf(attention_half, signature.replace("T", dtype), key=f"{dtype}-{mask}-{path.name}-{capped}",
                numbers=AttentionSizes)


@functools.cache
def _backward_leaf(dtype: str, mask: str, capped: bool, path: cpu.Cpu) -> Leaf:
    pull = backward_body("f4", mask, capped, path)
    widened, rounded = _converters(dtype, path)

    def attention_half_grad(g, q, k, v, mask, y, lse, dq, dk, dv, scratch, inner, scale, cap, s,  # type: ignore
                            lo, hi):
        heads, group, queries, keys, d, e = s.heads, s.group, s.queries, s.keys, s.d, s.e
        (q_b, q_h, q_t), (k_b, k_h, k_t), (v_b, v_h, v_t), (y_b, y_h, y_t) = geometry(s)
        own = OneHead(group, group, queries, keys, d, e, s.causal, 0, s.mode, 0, s.mask_h, s.mask_t)
        wide_v = inner + keys * d
        wide_dk = wide_v + keys * e
        wide_dv = wide_dk + keys * d
        wide_q = wide_dv + keys * e
        wide_dq = wide_q + group * queries * d
        wide_g = wide_dq + group * queries * d
        wide_y = wide_g + group * queries * e
        for unit in range(lo, hi):
            b, kv = unit // (heads // group), unit % (heads // group)
            h, at_k, at_v = kv * group, b * k_b + kv * k_h, b * v_b + kv * v_h
            at_q, at_y = b * q_b + h * q_h, b * y_b + h * y_h
            widened(keys, d, k, at_k, k_t, scratch, inner)
            widened(keys, e, v, at_v, v_t, scratch, wide_v)
            for i in range(group):
                widened(queries, d, q, at_q + i * q_h, q_t, scratch, wide_q + i * queries * d)
                widened(queries, e, g, at_y + i * y_h, y_t, scratch, wide_g + i * queries * e)
                widened(queries, e, y, at_y + i * y_h, y_t, scratch, wide_y + i * queries * e)
            seen, line = mask[b * s.mask_b + h * s.mask_h:], (b * heads + h) * queries
            pull(scratch[wide_g:], scratch[wide_q:], scratch[inner:], scratch[wide_v:], seen, scratch[wide_y:],
                 lse[line:], scratch[wide_dq:], scratch[wide_dk:], scratch[wide_dv:], scratch, scale, cap, own, 0, 1)
            rounded(keys, d, scratch, wide_dk, dk, at_k, k_t)
            rounded(keys, e, scratch, wide_dv, dv, at_v, v_t)
            for i in range(group):
                rounded(queries, d, scratch, wide_dq + i * queries * d, dq, at_q + i * q_h, q_t)

    signature = f"T[:], T[:], T[:], T[:], {mask}[:], T[:], f4[:], T[:], T[:], T[:], f4[w,:], i8, " + SIZES.replace("T", "f4")
    return Leaf(attention_half_grad, signature.replace("T", dtype), key=f"{dtype}-{mask}-{path.name}-{capped}",
                numbers=AttentionSizes)
