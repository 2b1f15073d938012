"""Normalisations with the sums before them, and embeddings."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileflow.graph import Value
from tileflow.system.errors import ShapeError

from ...declared import declare
from ...site import Site
from ...versions import form
from .form import fused

declare("", "SimplifiedLayerNormalization", "X:V, scale:V scale -> Y:V, inv_std_var?:U", axis=-1, epsilon=1e-5, stash_type=1)
declare("", "LayerNormalization", "X:T, Scale:T scale, B?:T bias -> Y:T, Mean?:U, InvStdDev?:U", axis=-1, epsilon=1e-5, stash_type=1)
"""ONNX Runtime writes both into ONNX's own domain, the second one in opsets that do not have it yet."""


@form("SimplifiedLayerNormalization")
def simplified_layer_normalization(site: Site) -> Sequence[Value | None]:
    """scale * x / sqrt(mean(x^2) + epsilon)."""
    if site.attrs["stash_type"] != 1:
        raise site.unsupported(f"the attribute stash_type={site.attrs['stash_type']}")
    return _normalised(site, site.value(0), site.value(1), None, True, int(site.attrs["axis"]))


def _normalised(site: Site, x: Value, scale: Value, bias: Value | None, simplified: bool, axis: int = -1) -> Sequence[Value | None]:
    """y, and the statistics that have been asked for."""
    op = "RMSNormalization" if simplified else "LayerNormalization"
    axis %= max(x.type.rank, 1)
    operands = [v if v is None or v.shape == x.shape[axis:] else site.emit("Expand", v, shape=x.shape[axis:]) for v in (scale, bias)]
    return site.finish(op, x, *(operands[:1] if simplified else operands), axis=axis, epsilon=float(site.attrs["epsilon"]))


@fused("SkipLayerNormalization", "input:T, skip:T, gamma:T scale, beta?:T bias, bias?:T bias -> output:T, mean?:U, inv_std_var?:U, "
                                 "input_skip_bias_sum?:T", epsilon=1e-12)
def skip_layer_normalization(site: Site) -> Sequence[Value | None]:
    total = _sum(site, 4)
    return (*_normalised(site, total, site.value(2), site.optional(3), False)[:3], total)


@fused("SkipSimplifiedLayerNormalization", "input:T, skip:T, gamma:T scale, bias?:T bias -> output:T, mean?:U, inv_std_var?:U, "
                                           "input_skip_bias_sum?:T", epsilon=1e-12)
def skip_simplified_layer_normalization(site: Site) -> Sequence[Value | None]:
    total = _sum(site, 3)
    return (_normalised(site, total, site.value(2), None, True)[0], None, None, total)


def _sum(site: Site, bias: int) -> Value:
    """input + skip + bias, of the input's shape."""
    x = site.value(0)
    total = site.emit("Add", x, site.value(1))
    total = site.emit("Add", total, site.value(bias)) if site.has(bias) else total
    if total.shape != x.shape:
        raise ShapeError(f"{site.title}: the skip {site.type(1)} does not broadcast to the input {x.type}")
    return total


@fused("EmbedLayerNormalization", "input_ids:I, segment_ids?:I, word_embedding:T table, position_embedding:T table, segment_embedding?:T table, "
                                  "gamma:T scale, beta:T bias, mask?:I, position_ids?:I -> output:T, mask_index?:I, embedding_sum?:T",
       epsilon=1e-12, mask_index_type=int | None)
def embed_layer_normalization(site: Site) -> Sequence[Value | None]:
    """The sum of the embeddings of words, positions and segments, normalised. mask_index: how many elements of each row's mask are 1."""
    ids, b = site.value(0), site.builder
    if ids.type.rank != 2 or site.attrs.get("mask_index_type", 1) not in (0, 1):
        raise site.unsupported(f"ids of {ids.type}, or mask_index_type={site.attrs.get('mask_index_type')}")
    batch, count = ids.shape
    positions = site.value(8) if site.has(8) else b.constant(np.arange(count, dtype=np.int64))
    total = site.emit("Add", site.emit("Gather", site.value(2), ids, axis=0), site.emit("Gather", site.value(3), positions, axis=0))
    if site.has(1) and site.has(4):
        total = site.emit("Add", total, site.emit("Gather", site.value(4), site.value(1), axis=0))
    if site.has(7):
        index = site.emit("ReduceSum", site.emit("Cast", site.value(7), to="int32"), axes=(1,), keepdims=0)
    else:
        index = b.constant(np.zeros(batch, np.int32))
    return (_normalised(site, total, site.value(5), site.value(6), False)[0], index, total)


@fused("GroupNorm", "X:T, gamma:U scale, beta:U bias -> Y:T", epsilon=1e-5, groups=int, activation=int, channels_last=1)
@fused("SkipGroupNorm", "X:T, gamma:U scale, beta:U bias, skip:T, bias?:T bias -> Y:T, S?:T", epsilon=1e-5, groups=int, activation=int,
       channels_last=1)
def group_norm(site: Site) -> Sequence[Value | None]:
    """Groups of channels normalised, through SiLU if activation is 1; SkipGroupNorm adds `skip` and `bias` before."""
    x, groups, rank = site.value(0), int(site.attrs["groups"]), site.type(0).rank
    if site.attrs["activation"] not in (0, 1) or rank != 4:
        raise site.unsupported(f"activation={site.attrs['activation']} of {x.type}")
    for i in (3, 4):
        if site.has(i):
            added = site.value(i)
            if i == 3 and added.type.rank == 2:                 # [batch, channels]
                added = site.emit("Reshape", added, shape=(added.shape[0], 1, 1, added.shape[1]), allowzero=1)
            x = site.emit("Add", x, added)
    total = x
    if site.attrs["channels_last"]:
        x = site.emit("Transpose", x, perm=(0, 3, 1, 2))
    channels = x.shape[1]
    if groups < 1 or channels % groups:
        raise ShapeError(f"{site.title}: {groups} groups do not divide the {channels} channels of {site.type(0)}")
    own = (x.dtype, "float32") if x.type.is_half else (x.dtype,)
    scale, shift = (v if v.dtype in own else site.emit("Cast", v, to=x.dtype) for v in (site.value(1), site.value(2)))
    y = site.emit("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=float(site.attrs["epsilon"]))
    if site.attrs["activation"]:
        y = site.emit("Mul", y, site.emit("Sigmoid", y))
    if site.attrs["channels_last"]:
        y = site.emit("Transpose", y, perm=(0, 2, 3, 1))
    return (y, total)
