"""Transformers (Vaswani et al., arXiv:1706.03762) with PyTorch's names: arguments, masks and parameters."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from ...system.errors import OptionError, ShapeError
from .. import functional as F
from ..functional.attention import attention
from ..init import xavier_uniform
from ..module import Module
from ..parameter import Parameter
from ..tensor import Tensor, where
from .containers import ModuleList
from .linear import Linear
from .normalization import LayerNorm
from .shape import Dropout

Activation = str | Callable[[Tensor], Tensor]
Mask = Any
"""Booleans (True: may not be seen) or numbers that are added; [L, S], [N heads, L, S], or of keys [N, S]."""
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


class InProjection(Module):
    """The attention of PyTorch's layers: queries, keys and values by one matrix in_proj_weight [3 width, width]."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool, batch_first: bool) -> None:
        if heads < 1 or width % heads:
            raise OptionError(f"nhead={heads} must divide d_model={width}.")
        self.heads, self.size, self.dropout, self.batch_first = heads, width // heads, dropout, batch_first
        self.in_proj_weight = Parameter(xavier_uniform((3 * width, width)))
        self.in_proj_bias = Parameter(np.zeros(3 * width, np.float32)) if bias else None
        self.out_proj = Linear(width, width, bias)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(np.zeros(width, np.float32))

    def forward(self, query: Tensor, key: Tensor, mask: Mask = None, padding: Mask = None, is_causal: bool = False) -> Tensor:
        """query [N, L, width], key (and value) [N, S, width]; [L, N, width] without batch_first."""
        if len(query.shape) != 3 or len(key.shape) != 3:
            raise ShapeError(f"A transformer takes [batch, positions, features], got {list(query.shape)} and {list(key.shape)}.")
        if not self.batch_first:
            query, key = query.transpose(0, 1), (query if key is query else key).transpose(0, 1)
        width = query.shape[2]
        q, k, v = (self._split(F.linear(x, self.in_proj_weight[i * width:(i + 1) * width],
                                        None if self.in_proj_bias is None else self.in_proj_bias[i * width:(i + 1) * width]))
                   for i, x in enumerate((query, key, key)))
        seen = attention(q, k, v, _added(q, k, mask, padding), is_causal=is_causal and mask is None, dropout=self.dropout)
        y: Tensor = self.out_proj(seen.permute(0, 2, 1, 3).reshape(*query.shape))
        return y if self.batch_first else y.transpose(0, 1)

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).permute(0, 2, 1, 3)


def _added(q: Tensor, k: Tensor, mask: Mask, padding: Mask) -> Tensor | None:
    """Both masks as numbers that are added to scores [N, heads, L, S]."""
    found = None
    if mask is not None:
        m = _numbers(q, mask)
        m = m.reshape(*q.shape[:3], k.shape[2]) if len(m.shape) == 3 else m
        found = m
    if padding is not None:
        p = _numbers(q, padding).reshape(q.shape[0], 1, 1, k.shape[2])
        found = p if found is None else found + p
    return found


def _numbers(like: Tensor, mask: Mask) -> Tensor:
    m = like.lift(mask)
    return where(m, like.lift(np.array(-np.inf)), 0) if m.dtype == "bool" else m.type_as(like)


class _Layer(Module):
    """What encoder and decoder layers share."""

    def __init__(self, d_model: int, dim_feedforward: int, dropout: float, activation: Activation, bias: bool) -> None:
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise OptionError(f"activation {activation!r} is unknown; it is {' or '.join(ACTIVATIONS)}, or a function of tensors.")
        self.linear1, self.dropout, self.linear2 = Linear(d_model, dim_feedforward, bias), Dropout(dropout), Linear(dim_feedforward, d_model, bias)
        self._activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation

    def _feed(self, x: Tensor, last: Dropout) -> Tensor:
        return last(self.linear2(self.dropout(self._activation(self.linear1(x)))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and two linear layers, each added to its input and normalised: [L, N, d_model], or [N, L, d_model] with batch_first.

    norm_first: the normalisation comes before each of them. src_mask [L, L] or [N nhead, L, L] and src_key_padding_mask [N, L]: True may not be seen;
    numbers are added.
    """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
                 layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True) -> None:
        self.self_attn = InProjection(d_model, nhead, dropout, bias, batch_first)
        super().__init__(d_model, dim_feedforward, dropout, activation, bias)
        self.norm_first = norm_first
        self.norm1, self.norm2 = (LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in range(2))
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)

    def forward(self, src: Tensor, src_mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.dropout1(self.self_attn(x, x, src_mask, src_key_padding_mask, is_causal))
        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + self._feed(self.norm2(x), self.dropout2)
        x = self.norm1(src + attend(src))
        return self.norm2(x + self._feed(x, self.dropout2))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to what an encoder made (`memory`), and two linear layers; arguments as of
    `TransformerEncoderLayer`. tgt [L, N, d_model] and memory [S, N, d_model], with batch_first the batch first; result
    as tgt.
    """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
                 layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True) -> None:
        self.self_attn = InProjection(d_model, nhead, dropout, bias, batch_first)
        self.multihead_attn = InProjection(d_model, nhead, dropout, bias, batch_first)
        super().__init__(d_model, dim_feedforward, dropout, activation, bias)
        self.norm_first = norm_first
        self.norm1, self.norm2, self.norm3 = (LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in range(3))
        self.dropout1, self.dropout2, self.dropout3 = (Dropout(dropout) for _ in range(3))

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Mask = None, memory_mask: Mask = None, tgt_key_padding_mask: Mask = None,
                memory_key_padding_mask: Mask = None, tgt_is_causal: bool = False, memory_is_causal: bool = False) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.dropout1(self.self_attn(x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))

        def look(x: Tensor) -> Tensor:
            return self.dropout2(self.multihead_attn(x, memory, memory_mask, memory_key_padding_mask, memory_is_causal))
        if self.norm_first:
            x = tgt + attend(self.norm1(tgt))
            x = x + look(self.norm2(x))
            return x + self._feed(self.norm3(x), self.dropout3)
        x = self.norm1(tgt + attend(tgt))
        x = self.norm2(x + look(x))
        return self.norm3(x + self._feed(x, self.dropout3))


class TransformerEncoder(Module):
    """Copies of an encoder layer one after another, and a last normalisation, if one is given."""

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
                 mask_check: bool = True) -> None:
        self.layers, self.norm = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers)), norm

    def forward(self, src: Tensor, mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)          # type: ignore[no-any-return]


class TransformerDecoder(Module):
    """Copies of a decoder layer one after another, and a last normalisation, if one is given; shapes as of the
    layer."""

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None) -> None:
        self.layers, self.norm = ModuleList(copy.deepcopy(decoder_layer) for _ in range(num_layers)), norm

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Mask = None, memory_mask: Mask = None, tgt_key_padding_mask: Mask = None,
                memory_key_padding_mask: Mask = None, tgt_is_causal: bool = False, memory_is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)          # type: ignore[no-any-return]


class Transformer(Module):
    """Encoder and decoder: src [S, N, d_model] and tgt [L, N, d_model], with batch_first the batch first; result as
    tgt.

    Every matrix is drawn by Glorot and Bengio's rule, as in PyTorch; arguments as of `TransformerEncoderLayer`.
    """

    def __init__(self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6, dim_feedforward: int = 2048,
                 dropout: float = 0.1, activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True) -> None:
        settings = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        self.encoder = TransformerEncoder(TransformerEncoderLayer(*settings), num_encoder_layers, LayerNorm(d_model, layer_norm_eps, bias=bias))
        self.decoder = TransformerDecoder(TransformerDecoderLayer(*settings), num_decoder_layers, LayerNorm(d_model, layer_norm_eps, bias=bias))
        for p in self.parameters():
            if len(p.shape) > 1:
                p.data = xavier_uniform(p.shape)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Mask = None, tgt_mask: Mask = None, memory_mask: Mask = None,
                src_key_padding_mask: Mask = None, tgt_key_padding_mask: Mask = None, memory_key_padding_mask: Mask = None) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> np.ndarray:
        """float32 [sz, sz]: 0 where a position may be seen, -inf above the diagonal."""
        return np.triu(np.full((sz, sz), -np.inf, np.float32), 1)
