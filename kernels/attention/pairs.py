"""Attention on bfloat16 memory by the CPU's products of pairs (`gemm/pairs.py`), forward and backward.

As in `float32.py` a block of scores lies with keys down and queries across, float32 as all sums are, and blocks of keys
are folded into a running largest score and sum. Rows of k and v are read as words, a pair of neighbours each, where
they lie; queries and gradients are laid out once a block of queries, values and keys once a head. Weights and the
gradients of scores are rounded to bfloat16 where the next product reads them, in the pass that makes them: by rows,
whose neighbours are queries, and by words of two keys. Sizes of heads are even.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ..gemm import pairs
from ..gemm.pairs import LANES, WIDTH
from ..isa import cpu, mathlib
from ..isa.half import narrow, narrow_rows, widen_rows
from ..isa.vector import Emitter, inlined_code, vector, word
from ..machine.leaf import Leaf
from ..machine.places import clear
from ..sums import block_dot
from .float32 import KEYS, NO_MASK, QUERIES, SIZES, SKEW, AttentionSizes, geometry, larger, masker

PANEL = 4 * WIDTH
"""Bytes from pair to pair of a panel."""


def serves(dtype: str, size: int, value_size: int, capped: bool, path: cpu.Cpu) -> bool:
    """Whether heads of queries and keys of `size` and values of `value_size` are attended to here."""
    return dtype == "b2" and path.pairs and not capped and size % 2 == 0 and value_size % 2 == 0


# ---- where things lie in the scratch, in float32 numbers: for Python, and for the leaves' bodies

def _filled(n: int) -> int:
    """Columns of whole panels."""
    return (n + WIDTH - 1) // WIDTH * WIDTH


def _row(queries: int) -> int:
    """From one row of a block of scores to the next."""
    return _filled(min(queries, QUERIES)) + SKEW // 4


def _forward_places(queries: int, keys: int, d: int, e: int) -> tuple[int, ...]:
    """Values, queries, scores, the mask, weights in words, sums, statistics; the end."""
    row, deep = _row(queries), min(keys, KEYS)
    of_queries = (keys + 1) // 2 * _filled(e)
    scores = of_queries + d // 2 * _filled(min(queries, QUERIES))
    mask = scores + deep * row
    weights = mask + deep * row
    sums = weights + (deep + 1) // 2 * row
    statistics = sums + min(queries, QUERIES) * _filled(e)
    return 0, of_queries, scores, mask, weights, sums, statistics, statistics + 4 * row


def _backward_places(queries: int, keys: int, d: int, e: int) -> tuple[int, ...]:
    """Keys; queries and gradients, turned and by pairs of rows each; scores, the gradients of weights, the mask;
    weights and gradients of scores by rows, the latter in words; sums of dk, dv and dq; two rows of a head;
    statistics; the end."""
    row, deep, block = _row(queries), min(keys, KEYS), min(queries, QUERIES)
    turned_q = (keys + 1) // 2 * _filled(d)
    turned_g = turned_q + d // 2 * _filled(block)
    paired_q = turned_g + e // 2 * _filled(block)
    paired_g = paired_q + (block + 1) // 2 * _filled(d)
    scores = paired_g + (block + 1) // 2 * _filled(e)
    grads = scores + deep * row
    mask = grads + deep * row
    weights = mask + deep * row
    pulled = weights + deep * (row // 2)
    words = pulled + deep * (row // 2)
    dk = words + (deep + 1) // 2 * row
    dv = dk + keys * _filled(d)
    dq = dv + keys * _filled(e)
    wide = dq + block * _filled(d)
    statistics = wide + 2 * e
    return (0, turned_q, turned_g, paired_q, paired_g, scores, grads, mask, weights, pulled, words, dk, dv, dq, wide,
            statistics, statistics + 4 * row)


def scratch_elements(queries: int, keys: int, size: int, value_size: int, backward: bool) -> int:
    """float32 numbers of one worker's scratch."""
    return (_backward_places if backward else _forward_places)(queries, keys, size, value_size)[-1]


# ---- passes over a block of scores, in vectors of queries, two keys at a time

def _strips(e: Emitter, count: Any, body: Callable[[Any], None]) -> None:
    """body(byte offset) for each vector of `count` queries."""
    e.loop(0, count, LANES, [], lambda i, _state: body(e.times(i, 4)))


def _by_two(e: Emitter, keys: Any, state: list[Any], body: Callable[[list[Any], bool], list[Any]]) -> list[Any]:
    """body(state, whether there are two keys) for two keys at a time, then for one that is left."""
    whole = e.b.and_(keys, word(-2))
    state = e.loop(0, whole, 2, state, lambda _j, now: body(now, True))
    return e.loop(whole, keys, 1, state, lambda _j, now: body(now, False))


def _joined(e: Emitter, low: Any, high: Any) -> Any:
    """Words of two vectors of 16-bit numbers."""
    kind = vector("i4", LANES)
    return e.b.or_(e.b.zext(low, kind), e.b.shl(e.b.zext(high, kind), ir.Constant(kind, [16] * LANES)))


def _fold(path: cpu.Cpu) -> Any:
    """As `float32._fold`, of scores that are multiplied by `scale` > 0 first; weights go to `words`, two keys each."""
    kind = vector("f4", LANES)
    nothing, zero = mathlib.constant(kind, -math.inf), mathlib.constant(kind, 0.0)

    def emit(e: Emitter, keys: Any, count: Any, scores: Any, row: Any, largest: Any, total: Any, factor: Any,
             words: Any, scale: Any) -> None:
        times = e.splat(e.load(scale, kind.element), LANES)

        def strip(at: Any) -> None:
            first = e.address(scores, at)
            old = e.load(e.address(largest, at), kind)
            best, _ = e.loop(0, keys, 1, [nothing, first],
                             lambda _j, now: [larger(e, e.load(now[1], kind), now[0]), e.address(now[1], row)])
            best = larger(e, e.b.fmul(best, times), old)
            e.store(best, e.address(largest, at))
            # Where all scores are -inf so far, 0 stands for the largest: the weights become 0 and not NaN.
            shift = e.b.select(e.b.fcmp_ordered("==", best, nothing), zero, best)
            of_older, moved = mathlib.exp(e, e.b.fsub(old, shift)), e.b.fneg(shift)

            def weigh(now: list[Any], two: bool) -> list[Any]:
                total, place, to = now
                weights = [mathlib.exp(e, e.fma(e.load(p, kind), times, moved))
                           for p in (place, e.address(place, row))[:1 + two]]
                for weight in weights:
                    total = e.b.fadd(total, weight)
                high = weights[1] if two else zero
                e.store(_joined(e, narrow(e, "b2", weights[0]), narrow(e, "b2", high)), to)
                return [total, e.address(place, e.times(row, 1 + two)), e.address(to, row)]
            new, *_ = _by_two(e, keys, [zero, first, e.address(words, at)], weigh)
            e.store(of_older, e.address(factor, at))
            place = e.address(total, at)
            e.store(e.fma(e.load(place, kind), of_older, new), place)
        _strips(e, count, strip)
    return inlined_code(f"tileflow_attention_pairs_fold_{path.name}",
                        "keys, count, scores, row, largest, total, factor, words, scale", path, emit)


def _pull(path: cpu.Cpu) -> Any:
    """As `float32._pull`, of scores that are multiplied by `times` first; weights and gradients of scores go to rows of
    bfloat16, half as long, the latter to `words`, too."""
    kind = vector("f4", LANES)

    def emit(e: Emitter, keys: Any, count: Any, scores: Any, grads: Any, row: Any, lse: Any, level: Any, scale: Any,
             times: Any, weights: Any, pulled: Any, words: Any) -> None:
        factor, multiple = (e.splat(e.load(x, kind.element), LANES) for x in (scale, times))
        short = e.b.lshr(row, word(1))

        def strip(at: Any) -> None:
            moved, middle = e.b.fneg(e.load(e.address(lse, at), kind)), e.load(e.address(level, at), kind)
            half = e.b.lshr(at, word(1))

            def step(now: list[Any], two: bool) -> list[Any]:
                score, grad, to_weights, to_pulled, to_words = now
                found = []
                for _ in range(1 + two):
                    weight = mathlib.exp(e, e.fma(e.load(score, kind), multiple, moved))
                    of_score = e.b.fmul(e.b.fmul(weight, e.b.fsub(e.load(grad, kind), middle)), factor)
                    e.store(narrow(e, "b2", weight), to_weights)
                    found.append(narrow(e, "b2", of_score))
                    e.store(found[-1], to_pulled)
                    score, grad = e.address(score, row), e.address(grad, row)
                    to_weights, to_pulled = e.address(to_weights, short), e.address(to_pulled, short)
                high = found[1] if two else ir.Constant(found[0].type, None)
                e.store(_joined(e, found[0], high), to_words)
                return [score, grad, to_weights, to_pulled, e.address(to_words, row)]
            _by_two(e, keys, [e.address(scores, at), e.address(grads, at), e.address(weights, half),
                              e.address(pulled, half), e.address(words, at)], step)
        _strips(e, count, strip)
    return inlined_code(f"tileflow_attention_pairs_pull_{path.name}",
                        "keys, count, scores, grads, row, lse, level, scale, times, weights, pulled, words", path, emit)


# ---- what both leaves do

@functools.cache
def _layers(path: cpu.Cpu) -> tuple[Any, Any]:
    """by_rows and turned, which lay rows out in panels."""
    weave, turn = pairs.weave(path), pairs.turned(path)

    def by_rows(count, n, source, source_row, target, panel):  # type: ignore[no-untyped-def]
        """Panels of `n` columns, `panel` bytes apart; a pair is two of `count` rows, beside an odd one are zeros."""
        for c in range(0, n, WIDTH):
            weave(count, min(WIDTH, n - c), source + 2 * c, source_row, target + c // WIDTH * panel, PANEL)

    def turned(count, n, source, source_row, target):  # type: ignore[no-untyped-def]
        """Panels of `count` columns, one a row, a pair being two of its `n` numbers; zeros after the last column."""
        for c in range(0, count, WIDTH):
            to = target + c * 2 * n
            if count - c < WIDTH:
                clear(to, n // 2 * PANEL)
            turn(min(WIDTH, count - c), n, source + c * source_row, source_row, to, PANEL)

    return by_rows, turned


@functools.cache
def _scorer(mask: str, path: cpu.Cpu) -> Any:
    """The function `score(s, k, at, k_t, scratch, queries, scores, spare, row, deep, rows, scale, mask, mask_at, first,
    limit)`: the scores of `deep` keys, from key `first` at element `at` on, and of `rows` queries, which lie turned.
    With a mask, or a scale that is not positive, they are scaled here."""
    multiply, apply_mask = pairs.across(path), masker("f4", mask, path)

    def score(s, k, at, k_t, scratch, queries, scores, spare, row, deep, rows, scale,  # type: ignore[no-untyped-def]
              mask, mask_at, first, limit):
        base = scratch.ctypes.data
        multiply(deep, rows, s.d // 2, k.ctypes.data + 2 * at, 2 * k_t, 4, base + 4 * queries, s.d // 2 * PANEL,
                 base + 4 * scores, 4 * row, 0)
        if s.mode != NO_MASK or scale <= 0:
            for j in range(deep):
                line = scratch[scores + j * row:scores + j * row + rows]
                for i in range(rows):
                    line[i] *= scale
        apply_mask(scratch, scores, spare, row, deep, rows, mask, s.mode, mask_at + first, s.mask_t, first, limit)
    return score


def _left(s, scale):  # type: ignore[no-untyped-def]
    """What is left to multiply scores by, where they are read."""
    return scale if s.mode == NO_MASK and scale > 0 else 1


def _paired(last: int, keys: int) -> int:
    """How many keys are laid out in pairs for queries that see `last` of them: beside an odd last one there are zeros,
    for nothing is multiplied by a key out of reach, not even zero."""
    return last if last % 2 != 0 else keys


def attention_pairs_leaf(mask: str) -> Leaf:
    """The forward leaf for bfloat16 with a mask of that type ("b2") or "f4". A unit of range is a block of queries of a
    head."""
    return _forward_leaf(mask, cpu.current())


def attention_pairs_grad_leaf(mask: str) -> Leaf:
    """The backward leaf, likewise. A unit of range is a key head with its query heads."""
    return _backward_leaf(mask, cpu.current())


@functools.cache
def _forward_leaf(mask: str, path: cpu.Cpu) -> Leaf:
    (by_rows, turned), multiply, score = _layers(path), pairs.across(path), _scorer(mask, path)
    fold, rounded = _fold(path), narrow_rows("b2")

    def attention_pairs(q, k, v, mask, y, lse, scratch, scale, _cap, s, lo, hi):  # type: ignore[no-untyped-def]
        heads, group, queries, keys, d, e, causal = s.heads, s.group, s.queries, s.keys, s.d, s.e, s.causal
        (q_b, q_h, q_t), (k_b, k_h, k_t), (v_b, v_h, v_t), (y_b, y_h, y_t) = geometry(s)
        block = min(queries, QUERIES)
        blocks = (queries + block - 1) // block
        row, wide, half_keys = _row(queries), _filled(e), (keys + 1) // 2
        values, of_queries, scores, spare, weights, sums, largest, _ = _forward_places(queries, keys, d, e)
        total, factor, number = largest + row, largest + 2 * row, largest + 3 * row
        base = scratch.ctypes.data
        scratch[number] = _left(s, scale)
        here, laid = -1, 0
        for unit in range(lo, hi):
            i0, h, b = unit % blocks * block, unit // blocks % heads, unit // (blocks * heads)
            rows = min(block, queries - i0)
            filled = (rows + LANES - 1) // LANES * LANES
            last = max(1, min(keys, i0 + rows + causal))    # at least one key: if hidden, its NaN is the result
            seen = _paired(last, keys)
            if unit // blocks // group != here or seen != laid:      # other keys than the last unit's
                here, laid = unit // blocks // group, seen
                by_rows(seen, e, v.ctypes.data + 2 * (b * v_b + h // group * v_h), 2 * v_t, base + 4 * values,
                        half_keys * PANEL)
            from_q, to = b * q_b + h * q_h + i0 * q_t, b * y_b + h * y_h + i0 * y_t
            from_k, mask_at = b * k_b + h // group * k_h, b * s.mask_b + h * s.mask_h + i0 * s.mask_t
            turned(rows, d, q.ctypes.data + 2 * from_q, 2 * q_t, base + 4 * of_queries)
            for i in range(filled):
                scratch[largest + i], scratch[total + i] = -math.inf, 0
            for j0 in range(0, last, KEYS):
                deep = min(KEYS, last - j0)
                score(s, k, from_k + j0 * k_t, k_t, scratch, of_queries, scores, spare, row, deep, rows, scale,
                      mask, mask_at, j0, i0 + causal)
                fold(deep, filled, base + 4 * scores, 4 * row, base + 4 * largest, base + 4 * total,
                     base + 4 * factor, base + 4 * weights, base + 4 * number)
                if j0 > 0:
                    for i in range(rows):
                        line, times = scratch[sums + i * wide:sums + i * wide + e], scratch[factor + i]
                        for c in range(e):
                            line[c] *= times
                multiply(rows, e, (deep + 1) // 2, base + 4 * weights, 4, 4 * row,
                         base + 4 * values + j0 // 2 * PANEL, half_keys * PANEL, base + 4 * sums, 4 * wide, j0)
            for i in range(rows):
                line, times = scratch[sums + i * wide:sums + i * wide + e], 1 / scratch[total + i]
                for c in range(e):
                    line[c] *= times
                lse[(b * heads + h) * queries + i0 + i] = scratch[largest + i] + math.log(scratch[total + i])
            rounded(rows, e, base + 4 * sums, 4 * wide, y.ctypes.data + 2 * to, 2 * y_t)

    signature = f"b2[:], b2[:], b2[:], {mask}[:], b2[:], f4[:], f4[w,:], " + SIZES.replace("T", "f4")
    return Leaf(attention_pairs, signature, key=f"{mask}-{path.name}", numbers=AttentionSizes)


@functools.cache
def _backward_leaf(mask: str, path: cpu.Cpu) -> Leaf:
    (by_rows, turned), multiply, score = _layers(path), pairs.across(path), _scorer(mask, path)
    pull, rounded, widened = _pull(path), narrow_rows("b2"), widen_rows("b2")

    def attention_pairs_grad(g, q, k, v, mask, y, lse, dq, dk, dv, scratch, scale, _cap, s, lo, hi):  # type: ignore
        heads, group, queries, keys, d, e, causal = s.heads, s.group, s.queries, s.keys, s.d, s.e, s.causal
        (q_b, q_h, q_t), (k_b, k_h, k_t), (v_b, v_h, v_t), (y_b, y_h, y_t) = geometry(s)
        block = min(queries, QUERIES)
        row, wide_d, wide_e, half_keys = _row(queries), _filled(d), _filled(e), (keys + 1) // 2
        (paired_k, turned_q, turned_g, paired_q, paired_g, scores, grads, spare, weights, pulled, words, sum_k, sum_v,
         sum_q, wide, shift, _) = _backward_places(queries, keys, d, e)
        level, number = shift + row, shift + 2 * row
        base = scratch.ctypes.data
        scratch[number], scratch[number + 1] = scale, _left(s, scale)
        for unit in range(lo, hi):
            b, kv = unit // (heads // group), unit % (heads // group)
            at_k, at_v = b * k_b + kv * k_h, b * v_b + kv * v_h
            laid = 0
            clear(base + 4 * sum_k, 4 * keys * wide_d)
            clear(base + 4 * sum_v, 4 * keys * wide_e)
            for h in range(kv * group, kv * group + group):
                for i0 in range(0, queries, block):
                    rows = min(block, queries - i0)
                    filled, half_rows = (rows + LANES - 1) // LANES * LANES, (rows + 1) // 2
                    at_q, at_y = b * q_b + h * q_h + i0 * q_t, b * y_b + h * y_h + i0 * y_t
                    line = (b * heads + h) * queries + i0
                    mask_at = b * s.mask_b + h * s.mask_h + i0 * s.mask_t
                    from_q, from_g = q.ctypes.data + 2 * at_q, g.ctypes.data + 2 * at_y
                    turned(rows, d, from_q, 2 * q_t, base + 4 * turned_q)
                    turned(rows, e, from_g, 2 * y_t, base + 4 * turned_g)
                    by_rows(rows, d, from_q, 2 * q_t, base + 4 * paired_q, half_rows * PANEL)
                    by_rows(rows, e, from_g, 2 * y_t, base + 4 * paired_g, half_rows * PANEL)
                    for i in range(filled):
                        scratch[shift + i], scratch[level + i] = 0, 0
                    for i in range(rows):
                        widened(1, e, from_g + 2 * i * y_t, 0, base + 4 * wide, 0)
                        widened(1, e, y.ctypes.data + 2 * (at_y + i * y_t), 0, base + 4 * (wide + e), 0)
                        scratch[shift + i] = lse[line + i]
                        scratch[level + i] = block_dot(scratch[wide:wide + e], scratch[wide + e:wide + 2 * e])
                    last = max(1, min(keys, i0 + rows + causal))
                    seen = _paired(last, keys)
                    if seen != laid:
                        laid = seen
                        by_rows(seen, d, k.ctypes.data + 2 * at_k, 2 * k_t, base + 4 * paired_k, half_keys * PANEL)
                    for j0 in range(0, last, KEYS):
                        deep = min(KEYS, last - j0)
                        score(s, k, at_k + j0 * k_t, k_t, scratch, turned_q, scores, spare, row, deep, rows, scale,
                              mask, mask_at, j0, i0 + causal)
                        multiply(deep, rows, e // 2, v.ctypes.data + 2 * (at_v + j0 * v_t), 2 * v_t, 4,
                                 base + 4 * turned_g, e // 2 * PANEL, base + 4 * grads, 4 * row, 0)
                        for j in range(deep if rows % 2 != 0 else 0):        # what pairs with the last query is nothing
                            scratch[scores + j * row + rows], scratch[grads + j * row + rows] = 0, 0
                        pull(deep, filled, base + 4 * scores, base + 4 * grads, 4 * row, base + 4 * shift,
                             base + 4 * level, base + 4 * number, base + 4 * (number + 1), base + 4 * weights,
                             base + 4 * pulled, base + 4 * words)
                        multiply(deep, e, half_rows, base + 4 * weights, 2 * row, 4, base + 4 * paired_g,
                                 half_rows * PANEL, base + 4 * (sum_v + j0 * wide_e), 4 * wide_e, 1)
                        multiply(deep, d, half_rows, base + 4 * pulled, 2 * row, 4, base + 4 * paired_q,
                                 half_rows * PANEL, base + 4 * (sum_k + j0 * wide_d), 4 * wide_d, 1)
                        multiply(rows, d, (deep + 1) // 2, base + 4 * words, 4, 4 * row,
                                 base + 4 * paired_k + j0 // 2 * PANEL, half_keys * PANEL, base + 4 * sum_q,
                                 4 * wide_d, j0)
                    rounded(rows, d, base + 4 * sum_q, 4 * wide_d, dq.ctypes.data + 2 * at_q, 2 * q_t)
            rounded(keys, d, base + 4 * sum_k, 4 * wide_d, dk.ctypes.data + 2 * at_k, 2 * k_t)
            rounded(keys, e, base + 4 * sum_v, 4 * wide_e, dv.ctypes.data + 2 * at_v, 2 * v_t)

    arrays = f"b2[:], b2[:], b2[:], b2[:], {mask}[:], b2[:], f4[:], b2[:], b2[:], b2[:], f4[w,:], "
    signature = arrays + SIZES.replace("T", "f4")
    return Leaf(attention_pairs_grad, signature, key=f"{mask}-{path.name}", numbers=AttentionSizes)
