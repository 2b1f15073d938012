"""Attention, forward and backward: y = softmax(scale * q k^T + mask) v for each head, in blocks, without a quadratic array.

A block of scores lies transposed in the worker's scratch: keys go down, queries across, so that every statistic of a query is a
lane and keys and values are read where they lie. Blocks of keys are folded into a running largest score and sum (Milakov and
Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135). The forward pass leaves log(sum(exp(score))) of each query; the
backward pass computes the weights again from it, block by block.

Operands are [batch, heads, positions, size], or [batch, positions, heads, size] where their bit of `layout` is set. Query head h reads
key head h // (heads / key heads). A query that sees no key gets NaN, as softmax has it.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..gemm.micro import columns, copy, outer, transpose
from ..isa import cpu, mathlib
from ..isa.half import HALVES, widen_rows, widen_turned
from ..isa.vector import Emitter, inlined_code, itemsize, vector
from ..machine.leaf import Leaf, Numbers
from ..sums import block_dot

QUERIES, KEYS = 64, 256
"""Of one block of scores, at most. Two of them and the queries fit the second-level cache."""
SKEW = 64
"""Bytes added to the rows of scratch blocks: rows a power of two apart would fight for the same cache sets."""
NO_MASK, KEY_MASK, FULL_MASK = 0, 1, 2
"""How a mask is read: not at all; one number per key; one per query and key."""


@dataclass(frozen=True)
class AttentionSizes(Numbers):
    """What the leaves read beside arrays, the scale of scores and their cap: sizes, and how mask and operands lie."""

    heads: int
    group: int                    # heads per key head
    queries: int
    keys: int
    d: int                        # size of a query and a key
    e: int                        # and of a value
    causal: int                   # query i sees keys up to i + causal
    layout: int
    mode: int                     # of the mask
    mask_b: int                   # elements from one batch of the mask to the next
    mask_h: int                   # from head to head
    mask_t: int                   # from query to query


SIZES = "T, T, numbers, lo, hi"
"""scale, cap, the other sizes, and the range."""
FAR = 1 << 40
"""A causal offset under which nothing is hidden."""


def blocks(queries: int) -> int:
    """Blocks of so many queries: units of the forward leaf per head."""
    return -(-queries // QUERIES)


def width(queries: int, dtype: str) -> int:
    """Queries of a block, filled up to whole register blocks."""
    step = columns(dtype, cpu.current())
    return -(-min(queries, QUERIES) // step) * step


def row_elements(queries: int, dtype: str) -> int:
    """Elements from one row of a scratch block to the next."""
    return width(queries, dtype) + SKEW // itemsize(dtype)


def scratch_elements(queries: int, keys: int, size: int, value_size: int, dtype: str, backward: bool, capped: bool = False) -> int:
    """Scratch of one worker: transposed queries (backward: and gradients), blocks of scores and mask (and gradients), statistics."""
    rows = size + 2 * min(keys, KEYS) + 4
    if backward:
        rows += value_size + (2 if capped else 1) * min(keys, KEYS)
    return rows * row_elements(queries, dtype)


# ---- passes over a block of scores, in vectors of queries

def _each_strip(e: Emitter, dtype: str, count: Any, body: Callable[[Any], None]) -> None:
    """body(byte offset) for each vector of `count` queries."""
    lanes, size = e.path.lanes(itemsize(dtype)), itemsize(dtype)
    e.loop(0, count, lanes, [], lambda i, _state: body(e.times(i, size)))


def larger(e: Emitter, x: Any, y: Any) -> Any:
    """The larger of two scores; NaN in x gives y: a NaN score makes its weight NaN anyway."""
    return e.b.select(e.b.fcmp_ordered(">", x, y), x, y)


def _fold(dtype: str, path: cpu.Cpu) -> Any:
    """Scores to weights exp(score - largest so far); the running largest and sum, and what older sums are multiplied by."""
    kind = vector(dtype, path.lanes(itemsize(dtype)))
    nothing, zero = mathlib.constant(kind, -math.inf), mathlib.constant(kind, 0.0)

    def emit(e: Emitter, keys: Any, count: Any, scores: Any, row: Any, largest: Any, total: Any, factor: Any) -> None:
        def strip(at: Any) -> None:
            first = e.address(scores, at)
            old = e.load(e.address(largest, at), kind)

            def seek(_j: Any, state: list[Any]) -> list[Any]:
                return [larger(e, e.load(state[1], kind), state[0]), e.address(state[1], row)]
            best, _ = e.loop(0, keys, 1, [old, first], seek)
            e.store(best, e.address(largest, at))
            # Where all scores are -inf so far, 0 stands for the largest: the weights become 0 and not NaN.
            shift = e.b.select(e.b.fcmp_ordered("==", best, nothing), zero, best)
            scale = mathlib.exp(e, e.b.fsub(old, shift))

            def weigh(_j: Any, state: list[Any]) -> list[Any]:
                weight = mathlib.exp(e, e.b.fsub(e.load(state[1], kind), shift))
                e.store(weight, state[1])
                return [e.b.fadd(state[0], weight), e.address(state[1], row)]
            new, _ = e.loop(0, keys, 1, [zero, first], weigh)
            e.store(scale, e.address(factor, at))
            place = e.address(total, at)
            e.store(e.fma(e.load(place, kind), scale, new), place)
        _each_strip(e, dtype, count, strip)
    return emit


def _pull(dtype: str, path: cpu.Cpu) -> Any:
    """Scores to weights exp(score - lse); gradients of weights g to those of unscaled scores, weight * (g - level) * scale."""
    kind = vector(dtype, path.lanes(itemsize(dtype)))

    def emit(e: Emitter, keys: Any, count: Any, scores: Any, grads: Any, row: Any, lse: Any, level: Any, scale: Any) -> None:
        factor = e.splat(e.load(scale, kind.element), kind.count)

        def strip(at: Any) -> None:
            shift, middle = e.load(e.address(lse, at), kind), e.load(e.address(level, at), kind)

            def step(_j: Any, state: list[Any]) -> list[Any]:
                weight = mathlib.exp(e, e.b.fsub(e.load(state[0], kind), shift))
                e.store(weight, state[0])
                pulled = e.b.fmul(weight, e.b.fsub(e.load(state[1], kind), middle))
                e.store(e.b.fmul(pulled, factor), state[1])
                return [e.address(state[0], row), e.address(state[1], row)]
            e.loop(0, keys, 1, [e.address(scores, at), e.address(grads, at)], step)
        _each_strip(e, dtype, count, strip)
    return emit


def _cap(dtype: str, path: cpu.Cpu, sloped: bool = False) -> Any:
    """Scores s to cap * tanh(s / cap); `sloped`: the slope 1 - tanh^2 of each goes to `slopes`."""
    kind = vector(dtype, path.lanes(itemsize(dtype)))

    def emit(e: Emitter, keys: Any, count: Any, scores: Any, slopes: Any, row: Any, cap: Any) -> None:
        bound, one = e.splat(e.load(cap, kind.element), kind.count), mathlib.constant(kind, 1.0)

        def strip(at: Any) -> None:
            def step(_j: Any, state: list[Any]) -> list[Any]:
                turned = mathlib.tanh(e, e.b.fdiv(e.load(state[0], kind), bound))
                e.store(e.b.fmul(turned, bound), state[0])
                if sloped:
                    e.store(e.b.fsub(one, e.b.fmul(turned, turned)), state[1])
                return [e.address(state[0], row), e.address(state[1], row)]
            e.loop(0, keys, 1, [e.address(scores, at), e.address(slopes, at)], step)
        _each_strip(e, dtype, count, strip)
    return emit


_PASSES: dict[str, tuple[str, Callable[..., Any]]] = {
    "fold": ("keys, count, scores, row, largest, total, factor", _fold),
    "pull": ("keys, count, scores, grads, row, lse, level, scale", _pull),
    "cap": ("keys, count, scores, slopes, row, cap", _cap),
    "cap_sloped": ("keys, count, scores, slopes, row, cap", functools.partial(_cap, sloped=True)),
}


@functools.cache
def _block_pass(name: str, dtype: str, path: cpu.Cpu) -> Any:
    parameters, emitter = _PASSES[name]
    return inlined_code(f"tileflow_attention_{name}_{dtype}_{path.name}", parameters, path, emitter(dtype, path))


# ---- what both leaves do

@functools.cache
def _packer(dtype: str, path: cpu.Cpu) -> Any:
    """Rows of an array, transposed into scratch and multiplied; the columns that fill the last vectors up are zero."""
    turn, size = transpose(dtype), itemsize(dtype)

    def pack(scratch, at, row, count, filled, x, x_at, x_row, n, factor):  # type: ignore[no-untyped-def]
        turn(count, n, x.ctypes.data + x_at * size, x_row * size, scratch.ctypes.data + at * size, row * size)
        for i in range(n):
            line = scratch[at + i * row:at + i * row + filled]
            for c in range(count, filled):
                line[c] = 0
            if factor != 1:
                for c in range(filled):
                    line[c] *= factor
    return pack


@functools.cache
def masker(dtype: str, mask_dtype: str, path: cpu.Cpu) -> Any:
    """Add the mask to a block of scores and hide what comes after each query. A 16-bit mask is widened into `spare`, block by block."""
    half, size, wide = mask_dtype in HALVES, itemsize(mask_dtype), itemsize(dtype)
    turn, along = (widen_turned(mask_dtype), widen_rows(mask_dtype)) if half else (transpose(dtype), copy(dtype))

    def apply(scratch, scores, spare, row, keys, rows, mask, mode, mask_at, mask_row, first, limit):  # type: ignore[no-untyped-def]
        source, target = mask.ctypes.data + mask_at * size, scratch.ctypes.data + spare * wide
        if mode == KEY_MASK:
            along(1, keys, source, 0, target, 0)
            for j in range(keys):
                addend, line = scratch[spare + j], scratch[scores + j * row:scores + j * row + rows]
                for i in range(rows):
                    line[i] += addend
        elif mode == FULL_MASK:
            turn(rows, keys, source, mask_row * size, target, row * wide)
            for j in range(keys):
                line, addends = scratch[scores + j * row:scores + j * row + rows], scratch[spare + j * row:spare + j * row + rows]
                for i in range(rows):
                    line[i] += addends[i]
        # Query i of the block sees keys up to limit + i; key j of the block is first + j.
        for j in range(max(0, limit - first + 1), keys):
            line = scratch[scores + j * row:scores + j * row + min(rows, first + j - limit)]
            for i in range(line.shape[0]):
                line[i] = -math.inf
    return apply


@functools.cache
def _multiplier(dtype: str, path: cpu.Cpu) -> Any:
    """Multiply a block of scratch by another one."""
    def multiply(scratch, block, factors, row, keys, count):  # type: ignore[no-untyped-def]
        for j in range(keys):
            line, times = scratch[block + j * row:block + j * row + count], scratch[factors + j * row:factors + j * row + count]
            for i in range(count):
                line[i] *= times[i]
    return multiply


def _steps(swapped, heads, positions, size):  # type: ignore[no-untyped-def]
    """Elements from one batch, head and position to the next."""
    if swapped:
        return heads * positions * size, size, heads * size
    return heads * positions * size, positions * size, size


def geometry(s: Any) -> Any:
    """The steps of q, k, v and y of attention s (`AttentionSizes`)."""
    key_heads = s.heads // s.group
    return (_steps(s.layout & 1, s.heads, s.queries, s.d), _steps(s.layout & 2, key_heads, s.keys, s.d),
            _steps(s.layout & 4, key_heads, s.keys, s.e), _steps(s.layout & 8, s.heads, s.queries, s.e))


def attention_leaf(dtype: str, capped: bool = False) -> Leaf:
    """The forward leaf. A unit of range is a block of queries of a head. `capped`: a score s becomes cap * tanh(s / cap) before the mask."""
    return _forward_leaf(dtype, capped, cpu.current())


@functools.cache
def _forward_leaf(dtype: str, capped: bool, path: cpu.Cpu) -> Leaf:
    signature = "T[:], T[:], T[:], T[:], T[:], T[:], T[w,:], " + SIZES
    return Leaf(forward_body(dtype, dtype, capped, path), signature.replace("T", dtype), key=f"{path.name}-{capped}",
                numbers=AttentionSizes)


def forward_body(dtype: str, mask_dtype: str, capped: bool, path: cpu.Cpu) -> Callable[..., None]:
    """What the forward leaf does, over the views of its arguments. A mask may have 16 bits."""
    size, step = itemsize(dtype), columns(dtype, path)
    cap_scores = _block_pass("cap", dtype, path)
    product, fold, pack, apply_mask = outer(dtype), _block_pass("fold", dtype, path), _packer(dtype, path), masker(dtype, mask_dtype, path)

    def attention(q, k, v, mask, y, lse, scratch, scale, cap, s, lo, hi):  # type: ignore[no-untyped-def]
        heads, group, queries, keys, d, e, causal = s.heads, s.group, s.queries, s.keys, s.d, s.e, s.causal
        (q_b, q_h, q_t), (k_b, k_h, k_t), (v_b, v_h, v_t), (y_b, y_h, y_t) = geometry(s)
        block = min(queries, QUERIES)
        row = (block + step - 1) // step * step + SKEW // size
        blocks = (queries + block - 1) // block
        scores = d * row
        spare = scores + min(keys, KEYS) * row
        largest = spare + min(keys, KEYS) * row
        total, factor, number = largest + row, largest + 2 * row, largest + 3 * row
        base = scratch.ctypes.data
        scratch[number] = cap
        for unit in range(lo, hi):
            i0, h, b = unit % blocks * block, unit // blocks % heads, unit // (blocks * heads)
            rows = min(block, queries - i0)
            filled = (rows + step - 1) // step * step
            from_q, to = b * q_b + h * q_h + i0 * q_t, b * y_b + h * y_h + i0 * y_t
            from_k, from_v = b * k_b + h // group * k_h, b * v_b + h // group * v_h
            mask_at = b * s.mask_b + h * s.mask_h + i0 * s.mask_t
            pack(scratch, 0, row, rows, filled, q, from_q, q_t, d, scale)
            for i in range(filled):
                scratch[largest + i], scratch[total + i] = -math.inf, 0
            last = max(1, min(keys, i0 + rows + causal))        # at least one key, hidden or not: its NaN is the result then
            for j0 in range(0, last, KEYS):
                deep = min(KEYS, last - j0)
                product(deep, filled, d, k.ctypes.data + (from_k + j0 * k_t) * size, k_t * size, size,
                        base, row * size, base + scores * size, row * size, 0)
                if capped:
                    cap_scores(deep, filled, base + scores * size, 0, row * size, base + number * size)
                apply_mask(scratch, scores, spare, row, deep, rows, mask, s.mode, mask_at + j0, s.mask_t, j0,
                           i0 + causal)
                fold(deep, filled, base + scores * size, row * size, base + largest * size, base + total * size, base + factor * size)
                if j0 > 0:
                    for i in range(rows):
                        line, times = y[to + i * y_t:to + i * y_t + e], scratch[factor + i]
                        for c in range(e):
                            line[c] *= times
                product(rows, e, deep, base + scores * size, size, row * size, v.ctypes.data + (from_v + j0 * v_t) * size, v_t * size,
                        y.ctypes.data + to * size, y_t * size, j0)
            for i in range(rows):
                line, times = y[to + i * y_t:to + i * y_t + e], 1 / scratch[total + i]
                for c in range(e):
                    line[c] *= times
                lse[(b * heads + h) * queries + i0 + i] = scratch[largest + i] + math.log(scratch[total + i])

    return attention


def attention_grad_leaf(dtype: str, capped: bool = False) -> Leaf:
    """The backward leaf. A unit of range is a key head with its query heads, so that no sum is split between workers."""
    return _backward_leaf(dtype, capped, cpu.current())


@functools.cache
def _backward_leaf(dtype: str, capped: bool, path: cpu.Cpu) -> Leaf:
    signature = ", ".join(["T[:]"] * 10) + ", T[w,:], " + SIZES
    return Leaf(backward_body(dtype, dtype, capped, path), signature.replace("T", dtype), key=f"{path.name}-{capped}",
                numbers=AttentionSizes)


def backward_body(dtype: str, mask_dtype: str, capped: bool, path: cpu.Cpu) -> Callable[..., None]:
    """What the backward leaf does, over the views of its arguments. A mask may have 16 bits."""
    size, step = itemsize(dtype), columns(dtype, path)
    product, pull, pack, apply_mask = outer(dtype), _block_pass("pull", dtype, path), _packer(dtype, path), masker(dtype, mask_dtype, path)

    cap_scores, multiply = _block_pass("cap_sloped", dtype, path), _multiplier(dtype, path)

    def attention_grad(g, q, k, v, mask, y, lse, dq, dk, dv, scratch, scale, cap, s, lo, hi):  # type: ignore
        heads, group, queries, keys, d, e, causal = s.heads, s.group, s.queries, s.keys, s.d, s.e, s.causal
        (q_b, q_h, q_t), (k_b, k_h, k_t), (v_b, v_h, v_t), (y_b, y_h, y_t) = geometry(s)
        block = min(queries, QUERIES)
        row = (block + step - 1) // step * step + SKEW // size
        weights = (d + e) * row
        grads = weights + min(keys, KEYS) * row
        spare = grads + min(keys, KEYS) * row
        shift = spare + min(keys, KEYS) * row
        level, number, slopes = shift + row, shift + 2 * row, shift + 4 * row
        base = scratch.ctypes.data
        scratch[number], scratch[number + 1] = scale, cap
        for unit in range(lo, hi):
            b, kv = unit // (heads // group), unit % (heads // group)
            at_k, at_v = b * k_b + kv * k_h, b * v_b + kv * v_h
            for j in range(keys):
                dk[at_k + j * k_t:at_k + j * k_t + d] = 0
                dv[at_v + j * v_t:at_v + j * v_t + e] = 0
            for h in range(kv * group, kv * group + group):
                for i0 in range(0, queries, block):
                    rows = min(block, queries - i0)
                    filled = (rows + step - 1) // step * step
                    at_q, at_y, line = b * q_b + h * q_h + i0 * q_t, b * y_b + h * y_h + i0 * y_t, (b * heads + h) * queries + i0
                    mask_at = b * s.mask_b + h * s.mask_h + i0 * s.mask_t
                    pack(scratch, 0, row, rows, filled, q, at_q, q_t, d, scale)
                    pack(scratch, d * row, row, rows, filled, g, at_y, y_t, e, scratch.dtype.type(1))
                    for i in range(filled):
                        scratch[shift + i], scratch[level + i] = 0, 0
                    for i in range(rows):
                        scratch[shift + i] = lse[line + i]
                        scratch[level + i] = block_dot(g[at_y + i * y_t:at_y + i * y_t + e],
                                                       y[at_y + i * y_t:at_y + i * y_t + e])
                    last = max(1, min(keys, i0 + rows + causal))
                    for j0 in range(0, last, KEYS):
                        deep = min(KEYS, last - j0)
                        j_k, j_v = (at_k + j0 * k_t) * size, (at_v + j0 * v_t) * size
                        product(deep, filled, d, k.ctypes.data + j_k, k_t * size, size, base, row * size, base + weights * size, row * size, 0)
                        if capped:
                            cap_scores(deep, filled, base + weights * size, base + slopes * size, row * size, base + (number + 1) * size)
                        apply_mask(scratch, weights, spare, row, deep, rows, mask, s.mode, mask_at + j0, s.mask_t, j0,
                                   i0 + causal)
                        product(deep, filled, e, v.ctypes.data + j_v, v_t * size, size, base + d * row * size, row * size,
                                base + grads * size, row * size, 0)
                        pull(deep, filled, base + weights * size, base + grads * size, row * size, base + shift * size, base + level * size,
                             base + number * size)
                        if capped:
                            multiply(scratch, grads, slopes, row, deep, filled)
                        product(deep, e, rows, base + weights * size, row * size, size, g.ctypes.data + at_y * size, y_t * size,
                                dv.ctypes.data + j_v, v_t * size, 1)
                        product(deep, d, rows, base + grads * size, row * size, size, q.ctypes.data + at_q * size, q_t * size,
                                dk.ctypes.data + j_k, k_t * size, 1)
                        product(rows, d, deep, base + grads * size, size, row * size, k.ctypes.data + j_k, k_t * size,
                                dq.ctypes.data + at_q * size, q_t * size, j0)

    return attention_grad
