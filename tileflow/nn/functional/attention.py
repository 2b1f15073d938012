"""Attention: products, masks and a softmax, which the host runs as one operator without an array of queries times keys."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...system.errors import ShapeError
from ..tensor import Tensor, where
from .normalization import dropout as dropped


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | np.ndarray | None = None, *, is_causal: bool = False,
              scale: float | None = None, softcap: float = 0.0, dropout: float = 0.0) -> Tensor:
    """softmax(softcap(scale * Q K') + mask) V for each head: what the host runs as one operator without an array of queries times keys.

    Args:
        query: [N, heads, L, d]. key: [N, key heads, S, d], value: [N, key heads, S, e]; the key heads divide the heads, and neighbouring
            query heads share one.
        mask: broadcasts to [N, heads, L, S] and is added: 0 where a position may be seen, a large negative number or -inf where not.
        is_causal: query i sees the keys up to i.
        scale: 1 / sqrt(d) by default.
        softcap: a scaled product s becomes softcap * tanh(s / softcap); 0: it stays.
        dropout: probability with which a weight is dropped while training; the weights are then held as an array.

    Returns [N, heads, L, e].

    Raises:
        ShapeError: the operands do not fit together.
    """
    if not len(query.shape) == len(key.shape) == len(value.shape) == 4 or not key.shape[1] or query.shape[1] % key.shape[1]:
        raise ShapeError(f"scaled_dot_product_attention takes [batch, heads, positions, size], the key heads dividing the heads, "
                         f"got {list(query.shape)}, {list(key.shape)} and {list(value.shape)}.")
    shape, groups = (*query.shape[:3], value.shape[3]), query.shape[1] // key.shape[1]
    masks = [] if mask is None else [query.lift(mask)]
    if is_causal:
        masks.append(query.lift(np.triu(np.full((shape[2], key.shape[2]), -np.inf, np.float32), 1)))
    if groups > 1:                                             # queries that share keys are one more dimension
        masks = [_grouped(m, key.shape[1], groups) for m in masks]
        query = query.reshape(shape[0], key.shape[1], groups, shape[2], query.shape[3])
        key, value = (x.reshape(*x.shape[:2], 1, *x.shape[2:]) for x in (key, value))
    scores = query.apply("FusedMatMul", key, transB=1, alpha=1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    for m in masks:
        scores = scores + m
    y: Tensor = dropped(scores.apply("Softmax", axis=-1), dropout) @ value
    return y.reshape(*shape) if groups > 1 else y


def _grouped(mask: Tensor, key_heads: int, groups: int) -> Tensor:
    """A mask over [N, heads, L, S] with the heads as [key heads, groups]."""
    shape = (1,) * (4 - len(mask.shape)) + mask.shape
    return mask.reshape(shape[0], *((1, 1) if shape[1] == 1 else (key_heads, groups)), *shape[2:])


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """`attention` with PyTorch's arguments: queries [..., L, d], keys [..., S, d], values [..., S, e].

    attn_mask: booleans (True: may be seen) or numbers to be added. dropout_p: in training models only. enable_gqa: neighbouring heads
    of [N, heads, L, d] may share keys.
    """
    if key.shape[:-2] != query.shape[:-2] and not enable_gqa:
        raise ShapeError(f"scaled_dot_product_attention: queries {list(query.shape)} and keys {list(key.shape)} have other numbers of heads; "
                         "enable_gqa=True lets neighbouring queries share keys.")
    mask = None if attn_mask is None else query.lift(attn_mask)
    if mask is not None and mask.dtype == "bool":
        mask = where(mask, 0, query.lift(np.array(-np.inf)))
    if len(query.shape) == 4:
        return attention(query, key, value, mask, is_causal=is_causal, scale=scale, dropout=dropout_p)
    lead = query.shape[:-2]
    if mask is not None and len(mask.shape) > 2:
        mask = _heads(mask.expand(*lead, *mask.shape[-2:]))
    y = attention(_heads(query), _heads(key), _heads(value), mask, is_causal=is_causal, scale=scale, dropout=dropout_p)
    return y.reshape(*lead, *y.shape[-2:])


def _heads(x: Tensor) -> Tensor:
    """[..., L, d] -> [all before, 1, L, d]."""
    return x.reshape(math.prod(x.shape[:-2]), 1, *x.shape[-2:])
