"""Batches of sequences without the padding behind them, and with it again."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileflow.graph import Value
from tileflow.system.errors import ShapeError

from ...site import Site
from .form import fused


@fused("RemovePadding", "input:T, sequence_token_count:M -> output:T, token_offset:M, cumulated_seq_len:M, max_seq_len:M")
def remove_padding(site: Site) -> Sequence[Value | np.ndarray]:
    """The tokens of [batch, length, size] that are no padding, [tokens, size]; where they were, those of the padding behind them [batch, length];
    where each sequence begins and the last one ends [batch + 1]; and the longest one [1]. The counts [batch] decide sizes, so they must be known:
    models in pieces compile them in."""
    x = site.value(0)
    counts = site.static(1).reshape(-1).astype(np.int64)
    if x.type.rank != 3 or counts.size != x.shape[0] or (counts.size and (counts.min() < 0 or counts.max() > x.shape[1])):
        raise ShapeError(f"{site.title}: the counts {counts.tolist()[:8]} do not fit {x.type}, which is [batch, length, size]")
    batch, length, size = x.shape
    kept = np.arange(length)[None] < counts[:, None]
    places = np.concatenate([np.flatnonzero(kept), np.flatnonzero(~kept)])
    total = int(counts.sum())
    flat = site.emit("Reshape", x, shape=(batch * length, size), allowzero=1)
    y = site.emit("Gather", flat, site.builder.constant(places[:total]), axis=0)
    longest = np.array([counts.max() if counts.size else 0])
    return [y, *(a.astype(np.int32) for a in (places.reshape(batch, length), np.concatenate([[0], np.cumsum(counts)]), longest))]


@fused("RestorePadding", "input:T, token_offset:M -> output:T")
def restore_padding(site: Site) -> Sequence[Value]:
    """Tokens [tokens, size] in their places of [batch, length, size], by the first so many of `token_offset` [batch, length]; zeros elsewhere."""
    x, offset, b = site.value(0), site.value(1), site.builder
    if x.type.rank != 2 or offset.type.rank != 2 or x.shape[0] > offset.type.size:
        raise ShapeError(f"{site.title}: tokens {x.type} do not fit the offsets {offset.type}")
    count, size = x.shape
    flat = site.emit("Reshape", site.emit("Cast", offset, to="int64"), shape=(offset.type.size, 1), allowzero=1)
    places = site.emit("Slice", flat, starts=(0,), ends=(count,), axes=(0,), steps=(1,))
    empty = b.constant(np.zeros((offset.type.size, size), x.type.numpy))
    return site.finish("Reshape", site.emit("ScatterND", empty, places, x), shape=(*offset.shape, size), allowzero=1)
