"""Attention as one operator, and its gradient: what the host runs in place of the products and the softmax between them."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Operand, Reduce, Work
from ..kernels.attention import pairs
from ..kernels.attention.float32 import (
    FAR,
    FULL_MASK,
    KEY_MASK,
    NO_MASK,
    AttentionSizes,
    attention_grad_leaf,
    attention_leaf,
    blocks,
    scratch_elements,
)
from ..kernels.attention.half import attention_half_grad_leaf, attention_half_leaf, half_scratch_elements
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.move import fill_call, strides
from ..memory.types import TensorType, broadcast_shapes
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .shape import Shape, present
from .softmax import softmax

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu
    from ..kernels.machine.leaf import Leaf

LEAVES: dict[bool, tuple[Callable[..., Leaf], Callable[..., Leaf], Callable[..., Leaf]]] = {
    False: (attention_leaf, attention_half_leaf, pairs.attention_pairs_leaf),
    True: (attention_grad_leaf, attention_half_grad_leaf, pairs.attention_pairs_grad_leaf)}
"""Forward and backward: of float32 and float64, of 16 bits, of bfloat16 by products of pairs."""
HEADS_FIRST, HEADS_INSIDE = (0, 1, 2, 3), (0, 2, 1, 3)
"""The permutation that brings an operand to [batch, heads, positions, size]; it is its own inverse."""


@dataclass(frozen=True)
class AttentionShape:
    """AttentionShape of an attention: key heads divide the heads, `d` is the size of queries and keys, `e` of values
    and results."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    d: int
    e: int

    @property
    def flops(self) -> float:
        """Of the two products and the softmax."""
        return self.batch * self.heads * self.queries * self.keys * (2.0 * (self.d + self.e) + 5.0)


@dataclass(frozen=True, repr=False)
class _Attention(Op):
    """Base of attention and its gradient.

    scale: factor of the products of queries and keys.
    softcap: a scaled product s becomes softcap * tanh(s / softcap) before the mask is added; 0: it stays.
    reach: query i sees the keys up to i + reach; None: all of them. 0 is what "causal" means for as many keys as queries.
    inside: for q, k, v and the result, whether the operand is [batch, positions, heads, size] instead of [batch, heads, positions, size].
    """

    halves: ClassVar[bool] = True

    scale: float = 1.0
    softcap: float = 0.0
    reach: int | None = None
    inside: tuple[bool, bool, bool, bool] = (False, False, False, False)

    def order(self, i: int) -> Shape:
        """How operand i (q, k, v, result) is permuted to heads first, and back."""
        return HEADS_INSIDE if self.inside[i] else HEADS_FIRST

    def sizes(self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None) -> AttentionShape:
        """Raises ShapeError or TypeMismatchError where the operands do not fit together."""
        shown = f"the queries are {q}, the keys {k}, the values {v}"
        if not q.is_float or not q.dtype == k.dtype == v.dtype or (mask or q).dtype not in (q.dtype, statistic(q).dtype):
            raise TypeMismatchError(f"{shown}, the mask {mask or 'absent'}; all must have the same float type; beside 16-bit operands the "
                                    "mask may be float32.")
        if not q.rank == k.rank == v.rank == 4:
            raise ShapeError(f"{shown}; each must have four dimensions.")
        (batch, heads, queries, d), (b, key_heads, keys, dk), (*vs, e) = (tuple(t.shape[a] for a in self.order(i))
                                                                           for i, t in enumerate((q, k, v)))
        if b != batch or tuple(vs) != (batch, key_heads, keys) or dk != d or key_heads == 0 or heads % key_heads:
            raise ShapeError(f"{shown}; batches, keys and sizes must agree and the key heads divide the heads.")
        whole = (batch, heads, queries, keys)
        if mask is not None and (mask.rank != 4 or mask.shape[3] != keys or broadcast_shapes(mask.shape, whole) != whole):
            raise ShapeError(f"the mask is {mask}; it must have the {keys} keys as last dimension and broadcast to {list(whole)}.")
        return AttentionShape(batch, heads, key_heads, queries, keys, d, e)

    def hidden(self, queries: int, keys: int) -> np.ndarray | None:
        """[queries, keys]: True where a query does not see a key."""
        return None if self.reach is None else np.arange(keys)[None, :] > np.arange(queries)[:, None] + self.reach

    def whole(self, x: np.ndarray, i: int, heads: int) -> np.ndarray:
        """Operand i with heads first, each key head repeated for its queries."""
        x = x.transpose(self.order(i))
        return np.repeat(x, heads // x.shape[1], 1)

    def capped(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """scale * q k^T, capped."""
        scores = q.dtype.type(self.scale) * (q @ k.swapaxes(2, 3))
        cap = q.dtype.type(self.softcap)
        return cap * np.tanh(scores / cap) if self.softcap else scores

    def scores(self, q: np.ndarray, k: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """scale * q k^T, capped, + mask of operands with heads first."""
        scores = self.capped(q, k)
        if mask is not None:
            scores = scores + mask
        hidden = self.hidden(*scores.shape[2:])
        return scores if hidden is None else np.where(hidden, -np.inf, scores).astype(q.dtype)

    def numbers(self, s: AttentionShape, mask: TensorType | None) -> tuple[Any, ...]:
        """The leaf's arguments after the arrays."""
        steps: tuple[int, ...] = (0, 0, 0)
        mode = NO_MASK
        if mask is not None:
            steps = tuple(0 if n == 1 else step for n, step in zip(mask.shape[:3], strides(mask.shape)[:3], strict=True))
            mode = FULL_MASK if steps[2] else KEY_MASK
        layout = sum(1 << i for i, inside in enumerate(self.inside) if inside)
        reach = FAR if self.reach is None else self.reach
        group = s.heads // s.key_heads
        sizes = AttentionSizes(s.heads, group, s.queries, s.keys, s.d, s.e, reach, layout, mode, *steps)
        return self.scale, self.softcap, sizes

    def called(self, s: AttentionShape, q: TensorType, mask: TensorType | None, backward: bool,
               cpu: Cpu) -> tuple[Leaf, tuple[Any, ...]]:
        """The leaf for operands of this type and this mask, and its arguments between the arrays and the numbers."""
        capped, seen = self.softcap != 0, (mask or q).code
        plain, half, paired = LEAVES[backward]
        if pairs.serves(q.code, s.d, s.e, capped, cpu):
            return paired(seen), (Scratch("blocks", (pairs.scratch_elements(s.queries, s.keys, s.d, s.e, backward),), "f4"),)
        if not q.is_half:
            elements = scratch_elements(s.queries, s.keys, s.d, s.e, q.code, backward, capped)
            return plain(q.code, capped), (Scratch("blocks", (elements,), q.code),)
        inner, whole = half_scratch_elements(s.queries, s.keys, s.d, s.e, s.heads // s.key_heads, backward, capped)
        return half(q.code, seen, capped), (Scratch("blocks", (whole,), "f4"), inner)

    def describe(self, s: AttentionShape, q: TensorType,
                 mask: TensorType | None) -> tuple[tuple[Axis, ...], list[Operand | None], Operand, Operand]:
        """The axes; q, k, v and mask; the result; a statistic of the queries. Where heads share keys all key heads are needed."""
        dtype = q.dtype
        shared = "h" if s.heads == s.key_heads else None

        def operand(i: int, *dims: str | None) -> Operand:
            return Operand(tuple(dims[a] for a in self.order(i)), dtype)
        axes = (Axis("b", s.batch), Axis("h", s.heads), Axis("q", s.queries), Axis("k", s.keys, "whole"))
        seen = None if mask is None else Operand(tuple(None if n == 1 else a for n, a in zip(mask.shape, "bhqk", strict=True)), mask.dtype)
        return (axes, [operand(0, "b", "h", "q", None), operand(1, "b", shared, "k", None), operand(2, "b", shared, "k", None), seen],
                operand(3, "b", "h", "q", None), Operand(("b", "h", "q"), statistic(q).dtype))


def statistic(q: TensorType) -> TensorType:
    """The type of what is summed: float32 for 16-bit operands."""
    return q.with_dtype("float32") if q.is_half else q


def widened(*arrays: np.ndarray | None) -> list[np.ndarray | None]:
    """16-bit arrays as float32."""
    return [a.astype(np.float32) if a is not None and a.itemsize == 2 else a for a in arrays]


def flat(kind: Any, index: int, t: TensorType) -> Any:
    """An operand as one axis."""
    return kind(index, (t.size,))


@op("FusedAttention", onnx=False)
class FusedAttention(_Attention):
    """softmax(scale * q k^T + mask) v for each head without an array of queries times keys.

    Inputs: q [batch, heads, queries, d], k [batch, key heads, keys, d], v [batch, key heads, keys, e], optional mask that broadcasts to
    [batch, heads, queries, keys] and is added; axes in the order that `inside` says. Query head h reads key head h // (heads / key heads).
    Outputs: [batch, heads, queries, e], and log(sum(exp(score))) of each query, [batch, heads, queries], float32 for 16-bit operands. As
    softmax has it, a query gets NaN where a score is NaN or +inf, and where all scores are -inf. Keys out of reach are not read.
    16-bit operands are summed in float32 and rounded once, weights of bfloat16 before they are multiplied, too, where
    the CPU has products of pairs; their mask may be float32.
    """

    no_gradient = "its mask is data"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7), (1, 4, 1, 6)),
                sample((2, 3, 4, 5), (2, 4, 6, 5), (2, 6, 4, 5), reach=1, inside=(True, False, True, False))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        q, k, v = map(present, types[:3])
        s = self.sizes(q, k, v, types[3] if len(types) > 3 else None)
        shape = (s.batch, s.heads, s.queries, s.e)
        return q.with_shape(tuple(shape[a] for a in self.order(3))), statistic(q).with_shape(shape[:3])

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        dtype, inputs = present(inputs[0]).dtype, tuple(widened(*inputs))
        q = present(inputs[0]).transpose(self.order(0))
        k, v = (self.whole(present(inputs[i]), i, q.shape[1]) for i in (1, 2))
        scores = self.scores(q, k, inputs[3] if len(inputs) > 3 else None)
        largest = np.max(scores, 3, initial=-np.inf)
        with np.errstate(invalid="ignore", divide="ignore"):
            shift = np.where(np.isneginf(largest), 0, largest)
            lse = shift + np.log(np.sum(np.exp(scores - shift[..., None]), 3))
            y = softmax(scores, 3) @ v
        return y.transpose(self.order(3)).astype(dtype), lse.astype(q.dtype)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        if grads[1] is not None:
            raise UnsupportedError("The statistics of the queries have no gradient; only the result of attention has.")
        mask = inputs[3] if len(inputs) > 3 else None
        found = b.FusedAttentionGrad(grads[0], *inputs[:3], mask, *outputs, **self.attributes())
        return [*found, *[None] * (len(inputs) - 3)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        q, k, v = map(present, inputs[:3])
        mask = inputs[3] if len(inputs) > 3 else None
        s = self.sizes(q, k, v, mask)
        axes, operands, y, lse = self.describe(s, q, mask)
        axes = tuple(replace(a, kind="whole") if a.name == "h" and s.heads != s.key_heads else a for a in axes)
        return Reduce(axes, tuple(operands[:len(inputs)]), (y, lse), 2.0 * (s.d + s.e) + 5.0)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        return self if self.reach is None else replace(self, reach=self.reach + box["q"][0])

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        q, k, v = map(present, inputs[:3])
        mask = inputs[3] if len(inputs) > 3 else None
        s = self.sizes(q, k, v, mask)
        y, lse = outputs
        if not s.keys:
            nothing = int(np.array(-np.inf, lse.numpy).view(f"u{lse.itemsize}"))
            return [fill_call(Out(i, (t.size,)), bits, t.size, t.itemsize) for i, t, bits in ((0, y, 0), (1, lse, nothing)) if t.size]
        if not lse.size:
            return []
        leaf, scratch = self.called(s, q, mask, False, cpu)
        args = (flat(In, 0, q), flat(In, 1, k), flat(In, 2, v), flat(In, 0, q) if mask is None else flat(In, 3, mask),
                flat(Out, 0, y), flat(Out, 1, lse), *scratch, *self.numbers(s, mask))
        return [Call(leaf, args, s.batch * s.heads * blocks(s.queries), 1, s.flops * 1.5 / cpu.rates.products)]


@op("FusedAttentionGrad", onnx=False)
class FusedAttentionGrad(_Attention):
    """(g, q, k, v, mask or None, result, log-sum-exp) to the gradients of q, k and v of FusedAttention, each as its operand lies.

    The weights are computed again block by block. A mask has no gradient here.
    """

    no_gradient = "the host puts it in the place of operators that have one"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 3, 7), (2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7), (2, 1, 3, 6), (2, 4, 3, 7), (2, 4, 3), scale=0.5)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        q, k, v = map(present, types[1:4])
        s = self.sizes(q, k, v, types[4])
        lse = statistic(q).with_shape((s.batch, s.heads, s.queries))
        if present(types[6]) != lse:
            raise ShapeError(f"FusedAttentionGrad: the log-sum-exp of each query is {lse}, got {types[6]}.")
        return q, k, v

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        dtype, inputs = present(inputs[0]).dtype, tuple(widened(*inputs))
        g, q, k, v = (present(a).transpose(self.order(i)) for a, i in zip(inputs[:4], (3, 0, 1, 2), strict=True))
        wide_k, wide_v = (self.whole(present(inputs[i + 1]), i, q.shape[1]) for i in (1, 2))
        y, lse = present(inputs[5]).transpose(self.order(3)), present(inputs[6])
        with np.errstate(invalid="ignore"):
            weights = np.exp(self.scores(q, wide_k, inputs[4]) - lse[..., None])
            pulled = weights * (g @ wide_v.swapaxes(2, 3) - np.sum(g * y, 3, keepdims=True)) * q.dtype.type(self.scale)
            if self.softcap:
                pulled = pulled * (1 - (self.capped(q, wide_k) / q.dtype.type(self.softcap)) ** 2)
        groups = (*k.shape[:2], q.shape[1] // k.shape[1])
        dk = np.sum((pulled.swapaxes(2, 3) @ q).reshape(*groups, *k.shape[2:]), 2)
        dv = np.sum((weights.swapaxes(2, 3) @ g).reshape(*groups, *v.shape[2:]), 2)
        return tuple(a.transpose(self.order(i)).astype(dtype) for i, a in enumerate((pulled @ wide_k, dk, dv)))

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        q, k, v = map(present, inputs[1:4])
        s = self.sizes(q, k, v, inputs[4])
        axes, (dq, dk, dv, mask), y, lse = self.describe(s, q, inputs[4])
        whole = tuple(replace(a, kind="whole") if a.name == "q" or (a.name == "h" and s.heads != s.key_heads) else a for a in axes)
        return Reduce(whole, (y, dq, dk, dv, mask, y, lse), tuple(x for x in (dq, dk, dv) if x), 4.0 * s.d + 6.0 * s.e + 10.0)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, q, k, v, y, lse = (present(inputs[i]) for i in (0, 1, 2, 3, 5, 6))
        mask = inputs[4]
        s = self.sizes(q, k, v, mask)
        if not s.keys or not s.queries or not s.batch:
            return [fill_call(Out(i, (t.size,)), 0, t.size, t.itemsize) for i, t in enumerate(outputs) if t.size]
        leaf, scratch = self.called(s, q, mask, True, cpu)
        seen = flat(In, 1, q) if mask is None else flat(In, 4, mask)
        args = (flat(In, 0, g), flat(In, 1, q), flat(In, 2, k), flat(In, 3, v), seen, flat(In, 5, y), flat(In, 6, lse),
                *(flat(Out, i, t) for i, t in enumerate(outputs)), *scratch, *self.numbers(s, mask))
        return [Call(leaf, args, s.batch * s.key_heads, 1, s.flops * 3.5 / cpu.rates.products)]
