"""Layers of products and lookups."""
from __future__ import annotations

import numpy as np

from ...system.errors import OptionError
from .. import functional as F
from ..init import normal, uniform
from ..module import Module
from ..parameter import Parameter
from ..tensor import Tensor


class Linear(Module):
    """y = x W^T + b; x [..., in_features], W [out_features, in_features], b [out_features].

    serialization: (mode, factor) does the product and its gradients in pieces, see `tileflow.nn.serialized_matmul`.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, serialization: tuple[str, int] | None = None) -> None:
        self.pieces = {} if serialization is None else dict(zip(("mode", "factor"), serialization, strict=True))
        self.weight = Parameter(uniform((out_features, in_features), in_features))
        self.bias = Parameter(uniform((out_features,), in_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if not self.pieces:
            return F.linear(x, self.weight, self.bias)
        if len(x.shape) == 2:
            return x.apply("SerializedGemm", self.weight, self.bias, transB=1, **self.pieces)
        y: Tensor = x.apply("SerializedMatMul", self.weight, transB=1, **self.pieces)
        return y if self.bias is None else y + self.bias.type_as(y)


class Bilinear(Module):
    """x1^T W x2 + b; W [out_features, in1_features, in2_features], b [out_features]."""

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = Parameter(uniform((out_features, in1_features, in2_features), in1_features))
        self.bias = Parameter(uniform((out_features,), in1_features)) if bias else None

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.bilinear(x1, x2, self.weight, self.bias)


class Embedding(Module):
    """Rows of a table by number: whole numbers [...] -> [..., embedding_dim]. The table is drawn from N(0, 1).

    padding_idx: a row that begins as zeros and is not trained.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        self.padding_idx = padding_idx
        table = normal((num_embeddings, embedding_dim), 1.0)
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise OptionError(f"Embedding: padding_idx={padding_idx} is no row of a table of {num_embeddings}.")
            table = np.array(table)
            table[padding_idx] = 0
        self.weight = Parameter(table)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight, self.padding_idx)


class EmbeddingBag(Module):
    """The sum, mean or maximum of rows of a table: bags of whole numbers [N, bag] -> [N, embedding_dim]; see `nn.functional.embedding_bag`."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, mode: str = "mean", padding_idx: int | None = None) -> None:
        self.mode, self.padding_idx = mode, padding_idx
        self.weight = Embedding(num_embeddings, embedding_dim, padding_idx).weight

    def forward(self, ids: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(ids, self.weight, mode=self.mode, per_sample_weights=per_sample_weights, padding_idx=self.padding_idx)
