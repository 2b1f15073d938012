"""ONNX's Attention (opset 23 on) as products and a softmax: the host computes them as one operator, the tile machine plans them one by one."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tileflow.graph import Value
from tileflow.system.errors import ShapeError

from .site import Site
from .versions import form

FLOAT32, HALVES = TensorProto.FLOAT, (TensorProto.FLOAT16, TensorProto.BFLOAT16)
HEADS_FIRST = (0, 2, 1, 3)
"""[batch, positions, heads, size] to [batch, heads, positions, size], and back."""


@form("Attention")
def attention(site: Site) -> Sequence[Value | None] | None:
    """softmax(softcap(scale * Q K^T) + mask) V with heads, shared key heads, caches of keys, masks, windows and the causal limit.

    Left to ONNX's own definition: wanting the scores, and a softmax in more precision than the operands have (16-bit ones get float32).
    """
    q, k, v = (site.value(i) for i in range(3))
    precisions = (None, 0, FLOAT32, *(HALVES if q.type.is_half else ()))
    if site.wants(3) or site.attrs.get("softmax_precision") not in precisions or not q.type.is_float:
        return None
    flat = q.type.rank == 3
    if flat:
        heads = site.attrs.get("q_num_heads"), site.attrs.get("kv_num_heads")
        q, k, v = (split_heads(site, x, n) for x, n in ((q, heads[0]), (k, heads[1]), (v, heads[1])))
    if site.has(4) and site.has(5):
        k, v = site.emit("Concat", site.value(4), k, axis=2), site.emit("Concat", site.value(5), v, axis=2)
    if not q.type.rank == k.type.rank == v.type.rank == 4 or not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ShapeError(f"{site.title}: Q is {q.type}, K is {k.type}, V is {v.type}; each must have three dimensions (with q_num_heads and "
                         "kv_num_heads) or four, and the key heads divide the query heads.")
    masks, dead = _masks(site, q.shape[2], k.shape[2])
    y = weighted(site, q, k, v, masks)
    if dead is not None:
        y = site.emit("Where", dead, site.builder.scalar(0.0, y), y)
    if flat:
        y = site.emit("Transpose", y, perm=HEADS_FIRST)
        y = site.emit("Reshape", y, shape=(*y.shape[:2], y.shape[2] * y.shape[3]), allowzero=1)
    return site.finish("Identity", y, names=site.outputs[:1])[0], k, v


def split_heads(site: Site, x: Value, heads: int | None) -> Value:
    """[batch, positions, heads * size] with heads first."""
    if not heads or x.type.rank != 3 or x.shape[2] % heads:
        raise ShapeError(f"{site.title}: the number of heads, {heads}, must divide the last dimension of {x.type}.")
    return site.emit("Transpose", site.emit("Reshape", x, shape=(*x.shape[:2], heads, x.shape[2] // heads), allowzero=1), perm=HEADS_FIRST)


def weighted(site: Site, q: Value, k: Value, v: Value, masks: list[Value]) -> Value:
    """The result with heads first. Queries that share keys are one more dimension."""
    shape, groups = (*q.shape[:3], v.shape[3]), q.shape[1] // k.shape[1]
    scale = site.attrs.get("scale") or 1 / math.sqrt(q.shape[3])
    if groups > 1:
        q = site.emit("Reshape", q, shape=(q.shape[0], k.shape[1], groups, *q.shape[2:]), allowzero=1)
        masks = [_grouped(site, m, k.shape[1], groups) for m in masks]
        k, v = site.emit("Unsqueeze", k, axes=(2,)), site.emit("Unsqueeze", v, axes=(2,))
    scores = site.emit("FusedMatMul", q, k, transB=1, alpha=float(scale))
    if cap := float(site.attrs.get("softcap") or 0):
        bound = site.builder.scalar(cap, scores)
        scores = site.emit("Mul", site.emit("Tanh", site.emit("Div", scores, bound)), bound)
    for mask in masks:
        scores = site.emit("Add", scores, mask)
    y = site.emit("MatMul", site.emit("Softmax", scores, axis=-1), v)
    return site.emit("Reshape", y, shape=shape, allowzero=1) if groups > 1 else y


def _grouped(site: Site, mask: Value, key_heads: int, groups: int) -> Value:
    """A mask over [batch, heads, queries, keys] with the heads as [key heads, groups]."""
    shape = (1,) * (4 - mask.type.rank) + mask.shape
    heads = (1, 1) if shape[1] == 1 else (key_heads, groups)
    return site.emit("Reshape", mask, shape=(shape[0], *heads, *shape[2:]), allowzero=1)


def _masks(site: Site, queries: int, keys: int) -> tuple[list[Value], Value | None]:
    """What is added to the scores, and where a query sees no key (such a one gives 0)."""
    b, like = site.builder, site.value(0)
    nothing, never = b.scalar(0.0, like), b.scalar(-math.inf, like)
    found = [] if not site.has(3) else [_given_mask(site, keys, nothing, never)]
    rows, columns = np.arange(queries)[:, None], np.arange(keys)[None, :]
    distance = rows - columns                              # from a query back to a key, where no key comes before the queries
    if site.has(6):
        count = site.emit("Cast", site.emit("Reshape", site.value(6), shape=(-1, 1, 1, 1), allowzero=0), to="int64")
        moved = site.emit("Sub", count, b.constant(np.array(queries, np.int64)))
        seen = [site.emit("Less", b.constant(columns.astype(np.int64)), count)]
        seen += [site.emit(_RELATION[low], site.emit("Add", moved, b.constant(distance.astype(np.int64))), b.constant(np.array(bound, np.int64)))
                 for low, bound in _bounds(site)]
        found += [site.emit("Where", s, nothing, never) for s in seen]
    elif bounds := _bounds(site):
        distance += site.type(4).shape[2] if site.has(4) else 0
        hidden = np.any([distance < bound if low else distance > bound for low, bound in bounds], 0)
        limit = b.constant(np.where(hidden, -np.inf, 0).astype(like.type.numpy), "hidden")
        if not found and not hidden.all(1).any():
            return [limit], None
        found.append(limit)
    if not found:
        return [], None
    mask = found[0]
    for other in found[1:]:
        mask = site.emit("Add", mask, other)
    dead = site.emit("Equal", site.emit("ReduceMax", mask, axes=(mask.type.rank - 1,), keepdims=1), never)
    return [site.emit("Where", dead, nothing, mask)], dead


_RELATION = {True: "GreaterOrEqual", False: "LessOrEqual"}


def _bounds(site: Site) -> list[tuple[bool, int]]:
    """The least (True) and the largest (False) distance from a query back to a key that it sees."""
    left, right = (int(site.attrs.get(f"{side}_window_size", -1)) for side in ("left", "right"))
    return [*([(True, 0)] if site.attrs.get("is_causal") else []), *([(False, left)] if left >= 0 else []), *([(True, -right)] if right >= 0 else [])]


def _given_mask(site: Site, keys: int, nothing: Value, never: Value) -> Value:
    """The mask operand as an addend for all keys: those that it does not tell of are hidden."""
    mask = site.value(3)
    if not mask.shape or mask.shape[-1] > keys:
        raise ShapeError(f"{site.title}: the mask is {mask.type}; its last dimension must be the {keys} keys.")
    if mask.dtype == "bool":
        mask = site.emit("Where", mask, nothing, never)
    elif mask.dtype != nothing.dtype:
        mask = site.emit("Cast", mask, to=nothing.dtype)
    if mask.shape[-1] < keys:
        pads = (0,) * (2 * mask.type.rank - 1) + (keys - mask.shape[-1],)
        mask = site.emit("Pad", mask, pads=pads, value=-math.inf)
    return mask
