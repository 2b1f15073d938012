"""Attention with its projections."""
from __future__ import annotations

from ...system.errors import OptionError, ShapeError
from ..functional.attention import attention
from ..module import Module
from ..tensor import Tensor
from .linear import Linear


class MultiheadAttention(Module):
    """Attention in `num_heads` heads of d = embed_dim / num_heads, batch first; see `tileflow.nn.scaled_dot_product_attention`.

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

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,
                mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if len(query.shape) != 3:
            raise ShapeError(f"MultiheadAttention takes [batch, positions, features], got {list(query.shape)}.")
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self._split(self.query(query), self.heads), self._split(self.key(key), self.kv_heads), self._split(self.value(value), self.kv_heads)
        seen = attention(q, k, v, mask, is_causal=is_causal, dropout=self.dropout)
        joined: Tensor = self.out(seen.permute(0, 2, 1, 3).reshape(*query.shape))
        return joined

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """[N, L, heads * d] -> [N, heads, L, d]."""
        return x.reshape(x.shape[0], x.shape[1], heads, self.size).permute(0, 2, 1, 3)
