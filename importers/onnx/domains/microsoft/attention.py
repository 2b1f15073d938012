"""Attention as ONNX Runtime fuses it: with the products before it (Attention), without (MultiHeadAttention), and with key heads that queries
share (GroupQueryAttention); rotary embedding."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tileflow.graph import Value
from tileflow.system.errors import ShapeError

from ...attention import HEADS_FIRST, split_heads, weighted
from ...site import Site
from .form import fused

FILTER = -10000.0
"""What is added to the scores of keys that a mask hides, unless mask_filter_value says otherwise."""


@fused("Attention", "input:T, weights:T weight, bias?:T bias, mask_index?:M, past?:T, attention_bias?:T, past_sequence_length?:M "
                    "-> output:T, present?:T", num_heads=int, unidirectional=0, qkv_hidden_sizes=list[int] | None, mask_filter_value=float | None,
       scale=float | None, do_rotary=int | None, rotary_embedding_dim=int | None, past_present_share_buffer=int | None)
def attention(site: Site) -> Sequence[Value | None]:
    """Queries, keys and values are one product with weights next to each other; past and present hold keys and values on their first axis."""
    refuse(site, "do_rotary", "past_present_share_buffer", "rotary_embedding_dim")
    product = site.emit("MatMul", site.value(0), site.value(1))
    if site.has(2):
        product = site.emit("Add", product, site.value(2))
    return from_product(site, product, mask=3, past=4, bias=5)


def from_product(site: Site, product: Value, mask: int, past: int, bias: int) -> Sequence[Value | None]:
    """The outputs of an attention whose queries, keys and values lie in `product` [batch, positions, all of them]; operands by place."""
    heads = int(site.attrs["num_heads"])
    sizes = [int(n) for n in site.attrs.get("qkv_hidden_sizes") or [product.shape[-1] // 3] * 3]
    if product.type.rank != 3 or len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != product.shape[-1]:
        raise ShapeError(f"{site.title}: its input is {site.type(0)} and its weights {site.type(1)}, which do not give queries, keys and values of "
                         f"{sizes}")
    q, k, v = (split_heads(site, part, heads) for part in _cut(site, product, sizes))
    if site.has(past):
        earlier = [site.emit("Squeeze", part, axes=(0,)) for part in _cut(site, site.value(past), [1, 1], 0)]
        k, v = (site.emit("Concat", old, new, axis=2) for old, new in zip(earlier, (k, v), strict=True))
    y = _attended(site, q, k, v, mask=mask, bias=bias)
    present = None
    if site.wants(1):
        present = site.emit("Concat", *(site.emit("Unsqueeze", part, axes=(0,)) for part in (k, v)), axis=0)
    return _joined(site, y), present


@fused("MultiHeadAttention", "query:T, key?:T, value?:T, bias?:T bias, key_padding_mask?:M, attention_bias?:T, past_key?:T, past_value?:T, "
                             "past_sequence_length?:M, cache_indirection?:M -> output:T, present_key?:T, present_value?:T, qk?:U",
       num_heads=int, unidirectional=0, mask_filter_value=float | None, scale=float | None)
def multi_head_attention(site: Site) -> Sequence[Value | None]:
    """Queries, keys and values may be packed with each other, and keys and values may come with their heads first."""
    if site.has(8) or site.has(9) or site.wants(3):
        raise site.unsupported("past_sequence_length, cache_indirection or the output qk")
    heads = int(site.attrs["num_heads"])
    q, k, v = _operands(site, heads)
    if site.has(6) and site.has(7):
        k, v = (site.emit("Concat", site.value(i), part, axis=2) for i, part in ((6, k), (7, v)))
    return _joined(site, _attended(site, q, k, v, mask=4, bias=5)), k, v


def _operands(site: Site, heads: int) -> list[Value]:
    """Queries, keys and values, heads first, their biases added."""
    given = [site.value(0), *(site.value(i) for i in (1, 2) if site.has(i))]
    last = given[-1]
    if last.type.rank == 5:                                     # [batch, positions, heads, 2 or 3, size]
        count = 4 - len(given)
        if last.shape[3] != count or last.shape[2] != heads:
            raise ShapeError(f"{site.title}: {last.type} does not hold {count} of queries, keys and values for {heads} heads")
        packed = [site.emit("Squeeze", part, axes=(3,)) for part in _cut(site, last, [1] * count, 3)]
        given[-1:] = [site.emit("Reshape", part, shape=(*part.shape[:2], part.shape[2] * part.shape[3]), allowzero=1) for part in packed]
    if len(given) != 3:
        raise ShapeError(f"{site.title}: it has queries {given[0].type} without keys or values, which are not packed with them")
    sizes = [x.shape[2] if x.type.rank == 3 else x.shape[1] * x.shape[3] for x in given]
    biases = _cut(site, site.value(3), sizes, 0) if site.has(3) else [None] * 3
    result = []
    for x, bias in zip(given, biases, strict=True):
        flat = x.type.rank == 3
        if bias is not None and not flat:
            bias = site.emit("Reshape", bias, shape=(x.shape[1], 1, x.shape[3]), allowzero=1)
        y = x if bias is None else site.emit("Add", x, bias)
        result.append(split_heads(site, y, heads) if flat else y)
    return result


@fused("GroupQueryAttention", "query:T, key?:T, value?:T, past_key?:T, past_value?:T, seqlens_k:M, total_sequence_length:M, cos_cache?:T, "
                              "sin_cache?:T, position_ids?:L, attention_bias?:T, head_sink?:T, k_scale?:U, v_scale?:U, q_norm_weight?:T, "
                              "k_norm_weight?:T, query_seqlens?:M -> output:T, present_key?:T, present_value?:T, output_qk?:T",
       num_heads=int, kv_num_heads=int, scale=float | None, softcap=float | None, local_window_size=-1, do_rotary=int | None,
       rotary_interleaved=int | None, smooth_softmax=-1, qk_output=0, k_quant_type="NONE", v_quant_type="NONE", kv_cache_bit_width=int | None,
       sliding_window_cache=0, causal=1, qk_norm_epsilon=1e-6)
def group_query_attention(site: Site) -> Sequence[Value | None]:
    """Queries that share keys, behind a cache of earlier ones: `seqlens_k` [batch] is the number of keys that each row has by then, less one.

    A cache that is shorter than the total grows by the new keys; one that has room takes them where the row's keys end.
    """
    _check_group(site)
    heads, shared = int(site.attrs["num_heads"]), int(site.attrs["kv_num_heads"])
    q, k, v = _group_operands(site, heads, shared)
    count, total = q.shape[2], int(site.scalar(6))
    b = site.builder
    ends = site.emit("Add", site.emit("Cast", site.value(5), to="int64"), b.constant(np.array(1, np.int64)))
    ends = site.emit("Reshape", ends, shape=(q.shape[0], 1), allowzero=1)
    start = b.constant(np.zeros((q.shape[0], 1), np.int64)) if count == total else site.emit("Sub", ends, b.constant(np.array(count, np.int64)))
    places = site.emit("Add", start, b.constant(np.arange(count, dtype=np.int64)[None]))                 # [batch, count]
    if site.attrs.get("do_rotary"):
        positions = site.value(9) if site.has(9) else places
        q, k = (_rotated(site, x, positions, site.value(7), site.value(8), bool(site.attrs.get("rotary_interleaved"))) for x in (q, k))
    if site.has(3) and site.type(3).shape[2]:
        grows = site.type(3).shape[2] < total
        k, v = (site.emit("Concat", site.value(i), x, axis=2) if grows else _written(site, site.value(i), x, start) for i, x in ((3, k), (4, v)))
    y = weighted(site, q, k, v, _group_masks(site, places, ends, k.shape[2], q))
    return _joined(site, y), k, v


PLAIN = {"smooth_softmax": (-1, 0), "qk_output": (0,), "k_quant_type": ("NONE",), "v_quant_type": ("NONE",), "kv_cache_bit_width": (None, 0),
         "sliding_window_cache": (0,), "causal": (1,)}
"""What attributes of GroupQueryAttention may be."""


def _check_group(site: Site) -> None:
    """Refuse by name what is not served."""
    attrs = site.attrs
    said = [f"{name}={attrs.get(name)!r}" for name, plain in PLAIN.items() if attrs.get(name) not in plain]
    said += [f"the input {site.schema.inputs[i].name}" for i in range(11, 17) if site.has(i)] if site.schema else []
    if said or site.wants(3):
        raise site.unsupported(", ".join(said) or "the output output_qk")


def _group_operands(site: Site, heads: int, shared: int) -> list[Value]:
    """Queries, keys and values, heads first; they may be one operand."""
    x = site.value(0)
    if heads < 1 or shared < 1 or heads % shared or x.type.rank != 3:
        raise ShapeError(f"{site.title}: {heads} query heads and {shared} key heads do not fit queries of {x.type}")
    if site.has(1) and site.has(2):
        return [split_heads(site, site.value(i), n) for i, n in ((0, heads), (1, shared), (2, shared))]
    if x.shape[2] % (heads + 2 * shared):
        raise ShapeError(f"{site.title}: {x.type} does not hold {heads} query heads and twice {shared} key heads")
    size = x.shape[2] // (heads + 2 * shared)
    counts = (heads, shared, shared)
    return [split_heads(site, part, n) for part, n in zip(_cut(site, x, [n * size for n in counts]), counts, strict=True)]


def _written(site: Site, cache: Value, new: Value, start: Value) -> Value:
    """The cache [batch, heads, length, size] with `new` from each row's start [batch, 1] on."""
    b, length, count = site.builder, cache.shape[2], new.shape[2]
    at = site.emit("Sub", b.constant(np.arange(length, dtype=np.int64)[None]), start)                        # place among the new ones
    inside = site.emit("And", site.emit("GreaterOrEqual", at, b.constant(np.array(0, np.int64))),
                       site.emit("Less", at, b.constant(np.array(count, np.int64))))
    at = site.emit("Min", site.emit("Max", at, b.constant(np.array(0, np.int64))), b.constant(np.array(count - 1, np.int64)))
    rows = b.constant((np.arange(cache.shape[0], dtype=np.int64) * count)[:, None])
    by_place = site.emit("Reshape", site.emit("Transpose", new, perm=HEADS_FIRST), shape=(new.shape[0] * count, new.shape[1], new.shape[3]),
                         allowzero=1)
    spread = site.emit("Transpose", site.emit("Gather", by_place, site.emit("Add", rows, at), axis=0), perm=HEADS_FIRST)
    return site.emit("Where", site.emit("Reshape", inside, shape=(cache.shape[0], 1, length, 1), allowzero=1), spread, cache)


def _group_masks(site: Site, places: Value, ends: Value, keys: int, q: Value) -> list[Value]:
    """What is added to the scores: keys behind the query, beyond the row's end or before its window are hidden."""
    b = site.builder
    nothing, never = b.scalar(0.0, q), b.scalar(-math.inf, q)
    key = b.constant(np.arange(keys, dtype=np.int64)[None, None])
    at = site.emit("Unsqueeze", places, axes=(2,))
    seen = site.emit("LessOrEqual", key, at)
    window = int(site.attrs["local_window_size"])
    if window > 0:
        seen = site.emit("And", seen, site.emit("Greater", key, site.emit("Sub", at, b.constant(np.array(window, np.int64)))))
    found = [site.emit("Unsqueeze", site.emit("Where", seen, nothing, never), axes=(1,))]
    return [*found, *([site.value(10)] if site.has(10) else [])]


# ---- shared -------------------------------------------------------------------------------------------------------------

def refuse(site: Site, *names: str) -> None:
    """Refuse attributes that ask for what is not served."""
    for name in names:
        if site.attrs.get(name):
            raise site.unsupported(f"the attribute {name}={site.attrs[name]!r}"[:120])


def _cut(site: Site, x: Value, sizes: Sequence[int], axis: int = -1) -> list[Value]:
    """Parts of these sizes along an axis."""
    axis %= x.type.rank
    if sum(sizes) != x.shape[axis]:
        raise ShapeError(f"{site.title}: dimension {axis} of {x.type} does not come to parts of {list(sizes)}")
    starts = np.cumsum([0, *sizes]).tolist()
    return [site.emit("Slice", x, starts=(a,), ends=(a + n,), axes=(axis,), steps=(1,)) for a, n in zip(starts, sizes, strict=False)]


def _joined(site: Site, y: Value) -> Value:
    """[batch, heads, positions, size] as [batch, positions, heads * size]."""
    y = site.emit("Transpose", y, perm=HEADS_FIRST)
    return site.finish("Reshape", y, names=site.outputs[:1], shape=(*y.shape[:2], y.shape[2] * y.shape[3]), allowzero=1)[0]


def _attended(site: Site, q: Value, k: Value, v: Value, mask: int, bias: int) -> Value:
    """The result, heads first, under the operands `mask` and `bias` and the limit that unidirectional sets."""
    b, queries, keys = site.builder, q.shape[2], k.shape[2]
    if not q.type.rank == k.type.rank == v.type.rank == 4 or q.shape[1] != k.shape[1] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ShapeError(f"{site.title}: queries {q.type}, keys {k.type} and values {v.type} do not fit each other")
    masks = [_padding(site, site.value(mask), q, keys)] if site.has(mask) else []
    if site.attrs.get("unidirectional"):
        later = np.arange(keys)[None, :] > np.arange(queries)[:, None] + keys - queries
        masks.append(b.constant(np.where(later, np.finfo(np.float32).min if q.type.itemsize > 2 else -65504.0, 0).astype(q.type.numpy)))
    if site.has(bias):
        masks.append(site.value(bias))
    return weighted(site, q, k, v, masks)


def _padding(site: Site, mask: Value, q: Value, keys: int) -> Value:
    """The mask as an addend: lengths [batch], ends and starts [2 batch], 0 or 1 for keys [batch, keys] or for queries and keys."""
    b, (batch, _, queries, _) = site.builder, q.shape
    hidden = b.scalar(float(site.attrs.get("mask_filter_value", FILTER)), q)
    key = b.constant(np.arange(keys, dtype=np.int32)[None])
    if mask.shape in ((batch,), (2 * batch,)):
        parts = [site.emit("Reshape", part, shape=(batch, 1), allowzero=1) for part in _cut(site, mask, [batch] * (mask.shape[0] // batch), 0)]
        seen = site.emit("Less", key, parts[0])
        if len(parts) == 2:
            seen = site.emit("And", seen, site.emit("GreaterOrEqual", key, parts[1]))
        shape: tuple[int, ...] = (batch, 1, 1, keys)
    elif mask.shape in ((batch, keys), (batch, queries, keys)):
        seen = site.emit("Not", site.emit("Equal", mask, b.constant(np.array(0, np.int32))))
        shape = (batch, 1, *(1,) * (3 - mask.type.rank), *mask.shape[1:])
    else:
        raise site.unsupported(f"a mask of {mask.type} for {batch} rows, {queries} queries and {keys} keys")
    return site.emit("Where", site.emit("Reshape", seen, shape=shape, allowzero=1), b.scalar(0.0, q), hidden)


# ---- rotary embedding ---------------------------------------------------------------------------------------------------

@fused("RotaryEmbedding", "input:T, position_ids:L, cos_cache:T, sin_cache:T -> output:T", interleaved=int | None, num_heads=int | None,
       rotary_embedding_dim=int | None, scale=float | None, is_packed_batching=int | None)
def rotary_embedding(site: Site) -> Sequence[Value]:
    """Pairs of elements are rotated by the angles of their positions; position_ids are [batch, positions], or [1], where the first one stands."""
    if site.attrs.get("scale", 1.0) != 1:
        raise site.unsupported(f"the attribute scale={site.attrs['scale']}")
    refuse(site, "is_packed_batching")
    x, positions, cos = site.value(0), site.value(1), site.value(2)
    flat = x.type.rank == 3
    if flat:
        heads, rotary = int(site.attrs.get("num_heads") or 0), int(site.attrs.get("rotary_embedding_dim") or 0)
        if rotary and not heads:
            raise ShapeError(f"{site.title} has a rotary_embedding_dim and no num_heads; export the model again")
        x = split_heads(site, x, heads or x.shape[2] // max(2 * cos.shape[1], 1))
    if positions.shape == (1,) or not positions.shape:
        positions = site.emit("Add", site.emit("Reshape", positions, shape=(1, 1), allowzero=1),
                              site.builder.constant(np.arange(x.shape[2], dtype=np.int64)[None]))
    y = _rotated(site, x, positions, cos, site.value(3), bool(site.attrs.get("interleaved")))
    return (_joined(site, y) if flat else y,)


def _rotated(site: Site, x: Value, positions: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """x [batch, heads, positions, size] rotated by rows of the caches [most, half the rotated size]; the rest stays."""
    half = cos.shape[1]
    if 2 * half > x.shape[3] or cos.shape != sin.shape:
        raise ShapeError(f"{site.title}: caches of {cos.type} and {sin.type} do not fit heads of {x.shape[3]}")
    parts = _cut(site, x, [2 * half, x.shape[3] - 2 * half]) if 2 * half < x.shape[3] else [x]
    c, s = (site.emit("Unsqueeze", site.emit("Gather", cache, positions, axis=0), axes=(1,)) for cache in (cos, sin))
    rotated = parts[0]
    if interleaved:
        pairs = site.emit("Reshape", rotated, shape=(*rotated.shape[:3], half, 2), allowzero=1)
        left, right = (site.emit("Squeeze", part, axes=(4,)) for part in _cut(site, pairs, [1, 1], 4))
    else:
        left, right = _cut(site, rotated, [half, half])
    real = site.emit("Sub", site.emit("Mul", left, c), site.emit("Mul", right, s))
    imaginary = site.emit("Add", site.emit("Mul", left, s), site.emit("Mul", right, c))
    if interleaved:
        both = site.emit("Concat", *(site.emit("Unsqueeze", part, axes=(4,)) for part in (real, imaginary)), axis=4)
        y = site.emit("Reshape", both, shape=rotated.shape, allowzero=1)
    else:
        y = site.emit("Concat", real, imaginary, axis=3)
    return site.emit("Concat", y, parts[1], axis=3) if len(parts) > 1 else y
