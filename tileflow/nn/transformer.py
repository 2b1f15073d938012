"""Layers of transformers: embedding, normalisation of rows, GELU, attention."""
from __future__ import annotations

import math

import numpy as np

from ..errors import OptionError, ShapeError
from .init import normal
from .layers import Dropout, Linear
from .module import Module
from .parameter import Parameter
from .tensor import Tensor

SPACING = {"float32": 2.0 ** -23, "float64": 2.0 ** -52, "float16": 2.0 ** -10, "bfloat16": 2.0 ** -7}
"""From 1 to the next number of each element type."""


class Embedding(Module):
    """Rows of a table by number: whole numbers [...] -> [..., embedding_dim]. The table is drawn from N(0, 1)."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        self.weight = Parameter(normal((num_embeddings, embedding_dim), 1.0))

    def forward(self, ids: Tensor) -> Tensor:                  # type: ignore[override]
        looked_up: Tensor = ids.lift(self.weight).apply("Gather", ids, axis=0)
        return looked_up


class LayerNorm(Module):
    """weight * (x - mean) / sqrt(variance + eps) + bias over the last axes, which have the shape `normalized_shape`."""

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.weight = Parameter(np.ones(shape, np.float32))
        self.bias = Parameter(np.zeros(shape, np.float32))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y: Tensor = x.apply("LayerNormalization", self.weight, self.bias, axis=-len(self.weight.shape), epsilon=self.eps)[0]
        return y


class RMSNorm(Module):
    """weight * x / sqrt(mean(x^2) + eps) over the last axes, which have the shape `normalized_shape` (Zhang and Sennrich, arXiv:1910.07467).

    eps=None: the spacing of numbers at 1 in the element type, as PyTorch has it.
    """

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float | None = None) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.weight = Parameter(np.ones(shape, np.float32))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        eps = SPACING[x.dtype] if self.eps is None else self.eps
        y: Tensor = x.apply("RMSNormalization", self.weight, axis=-len(self.weight.shape), epsilon=eps)[0]
        return y


class GELU(Module):
    """x * Phi(x) with the normal distribution's Phi; `approximate="tanh"` for the formula with tanh."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y: Tensor = x.apply("Gelu", approximate=self.approximate)
        return y


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | np.ndarray | None = None, *, is_causal: bool = False,
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
    y: Tensor = Dropout(dropout)(scores.apply("Softmax", axis=-1)) @ value
    return y.reshape(*shape) if groups > 1 else y


def _grouped(mask: Tensor, key_heads: int, groups: int) -> Tensor:
    """A mask over [N, heads, L, S] with the heads as [key heads, groups]."""
    shape = (1,) * (4 - len(mask.shape)) + mask.shape
    return mask.reshape(shape[0], *((1, 1) if shape[1] == 1 else (key_heads, groups)), *shape[2:])


class MultiheadAttention(Module):
    """Attention in `num_heads` heads of d = embed_dim / num_heads, batch first; see `scaled_dot_product_attention`.

    query [N, L, embed_dim], key and value [N, S, embed_dim] (by default the query); mask broadcasts to [N, num_heads, L, S]
    and is added: 0 where a position may be seen, a large negative number where not. is_causal: position i sees those up to i.
    Result [N, L, embed_dim]. With fewer `kv_heads` several heads share keys and values (Ainslie et al., arXiv:2305.13245).
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, kv_heads: int | None = None) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise OptionError(f"MultiheadAttention: num_heads={num_heads} must divide embed_dim={embed_dim}.")
        kv_heads = num_heads if kv_heads is None else kv_heads
        if kv_heads < 1 or num_heads % kv_heads:
            raise OptionError(f"MultiheadAttention: kv_heads={kv_heads} must divide num_heads={num_heads}.")
        if not 0 <= dropout < 1:
            raise OptionError(f"MultiheadAttention: dropout must be in [0, 1), got {dropout}.")
        self.heads, self.kv_heads, self.size = num_heads, kv_heads, embed_dim // num_heads
        self.query = Linear(embed_dim, embed_dim, bias)
        self.key = Linear(embed_dim, kv_heads * self.size, bias)
        self.value = Linear(embed_dim, kv_heads * self.size, bias)
        self.dropout = dropout
        self.out = Linear(embed_dim, embed_dim, bias)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,   # type: ignore[override]
                mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if len(query.shape) != 3:
            raise ShapeError(f"MultiheadAttention takes [batch, positions, features], got {list(query.shape)}.")
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self._split(self.query(query), self.heads), self._split(self.key(key), self.kv_heads), self._split(self.value(value), self.kv_heads)
        seen = scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, dropout=self.dropout)
        joined: Tensor = self.out(seen.transpose(0, 2, 1, 3).reshape(*query.shape))
        return joined

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """[N, L, heads * d] -> [N, heads, L, d]."""
        return x.reshape(x.shape[0], x.shape[1], heads, self.size).transpose(0, 2, 1, 3)
