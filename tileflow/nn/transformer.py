"""Layers of transformers: embedding, layer normalisation, GELU, attention."""
from __future__ import annotations

import math

import numpy as np

from ..errors import OptionError, ShapeError
from .init import normal
from .layers import Dropout, Linear
from .module import Module
from .parameter import Parameter
from .tensor import Tensor


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


class GELU(Module):
    """x * Phi(x) with the normal distribution's Phi; `approximate="tanh"` for the formula with tanh."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y: Tensor = x.apply("Gelu", approximate=self.approximate)
        return y


class MultiheadAttention(Module):
    """softmax(Q K' / sqrt(d) + mask) V in `num_heads` heads of d = embed_dim / num_heads, batch first.

    query [N, L, embed_dim], key and value [N, S, embed_dim] (by default the query); mask broadcasts to [N, num_heads, L, S]
    and is added: 0 where a position may be seen, a large negative number where not. Result [N, L, embed_dim].
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise OptionError(f"MultiheadAttention: num_heads={num_heads} must divide embed_dim={embed_dim}.")
        self.heads, self.size = num_heads, embed_dim // num_heads
        self.query = Linear(embed_dim, embed_dim, bias)
        self.key = Linear(embed_dim, embed_dim, bias)
        self.value = Linear(embed_dim, embed_dim, bias)
        self.dropout = Dropout(dropout)
        self.out = Linear(embed_dim, embed_dim, bias)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,   # type: ignore[override]
                mask: Tensor | None = None) -> Tensor:
        if len(query.shape) != 3:
            raise ShapeError(f"MultiheadAttention takes [batch, positions, features], got {list(query.shape)}.")
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self._split(self.query(query)), self._split(self.key(key)), self._split(self.value(value))
        scores = q.apply("FusedMatMul", k, transB=1, alpha=1 / math.sqrt(self.size))
        if mask is not None:
            scores = scores + mask
        seen = self.dropout(scores.apply("Softmax", axis=-1)) @ v
        joined: Tensor = self.out(seen.transpose(0, 2, 1, 3).reshape(*query.shape))
        return joined

    def _split(self, x: Tensor) -> Tensor:
        """[N, L, heads * d] -> [N, heads, L, d]."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).transpose(0, 2, 1, 3)
