"""Transposed convolution: the gradient of a convolution by its input, as an operator of its own."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .shape import Shape, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value


@dataclass(frozen=True)
class _Sizes:
    """What is computed along one spatial axis.

    out: elements of the result. begin, end: how many of the full result, which all taps reach, are left out on either side (negative: zeros
    are added).
    """

    full: int
    out: int
    begin: int
    end: int


@op("ConvTranspose")
class ConvTranspose(Op):
    """Each element of x [n, c, *spatial] adds its multiple of weights [c, o / group, *kernel] to the output, `strides` apart; plus a bias [o].

    Output n along a spatial axis of m: strides * (m - 1) + output_padding + (kernel - 1) * dilations + 1 - pads, or `output_shape`, for which the
    padding is chosen.
    """

    roles = ("data", "weight", "bias")
    halves = True

    auto_pad: str = "NOTSET"
    dilations: Shape | None = None
    group: int = 1
    kernel_shape: Shape | None = None
    output_padding: Shape | None = None
    output_shape: Shape | None = None
    pads: Shape | None = None
    strides: Shape | None = None

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 5, 4), (4, 3, 3, 2), (3,), strides=(2, 1), pads=(1, 0, 0, 1)),
                sample((2, 4, 5), (4, 3, 3)),
                sample((2, 4, 3, 3), (4, 2, 3, 3), group=2, strides=(2, 2), dilations=(1, 2), output_padding=(1, 0)),
                sample((1, 2, 2, 3, 2), (2, 3, 2, 2, 3), (3,), strides=(2, 1, 2)),
                sample((1, 2, 3, 3), (2, 2, 2, 2), auto_pad="SAME_UPPER", strides=(2, 2)),
                sample((1, 2, 3, 3), (2, 2, 3, 3), output_shape=(10, 8), strides=(3, 2)),
                sample((1, 2, 3), (2, 2, 2), strides=(3,), output_padding=(2,))]

    def _per_axis(self, name: str, rank: int, default: int) -> Shape:
        given = getattr(self, name)
        values = (default,) * rank if given is None else tuple(given)
        if len(values) != rank or min(values) < min(default, 1):
            raise ShapeError(f"{name} {list(values)} must be {rank} numbers of at least {min(default, 1)}.")
        return values

    def sizes(self, x: Shape, w: Shape) -> list[_Sizes]:
        """What is computed along each spatial axis."""
        rank = len(x) - 2
        if self.kernel_shape is not None and tuple(self.kernel_shape) != tuple(w[2:]):
            raise ShapeError(f"kernel_shape {list(self.kernel_shape)} does not match the weights {list(w)}.")
        if self.auto_pad not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
            raise ShapeError(f"auto_pad is {self.auto_pad!r}; it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID.")
        strides, dilations, extra = (self._per_axis(*a) for a in (("strides", rank, 1), ("dilations", rank, 1), ("output_padding", rank, 0)))
        pads = (0,) * (2 * rank) if self.pads is None or self.auto_pad == "VALID" else tuple(self.pads)
        if len(pads) != 2 * rank:
            raise ShapeError(f"pads {list(pads)} must be {2 * rank} numbers.")
        wanted = None if self.output_shape is None else tuple(self.output_shape)[-rank:]
        same = self.auto_pad.startswith("SAME")
        found = []
        for i in range(rank):
            full = strides[i] * (x[2 + i] - 1) + (w[2 + i] - 1) * dilations[i] + 1
            if wanted is None and not same:
                begin, end = pads[i], pads[i + rank] - extra[i]
            else:
                out = x[2 + i] * strides[i] if wanted is None else wanted[i]
                total = max(0, full + extra[i] - out)
                begin = total // 2 if self.auto_pad != "SAME_LOWER" else total - total // 2
                end = full - out - begin
            if full - begin - end < 1:
                raise ShapeError(f"pads {list(pads)} leave nothing of the {full} elements along spatial axis {i}.")
            found.append(_Sizes(full, full - begin - end, begin, end))
        return found

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, w = present(types[0]), present(types[1])
        if x.dtype != w.dtype or not x.is_float:
            raise TypeMismatchError(f"the input is {x.dtype} and the weights {w.dtype}; both must be one float type.")
        if not 3 <= x.rank <= 5:
            raise UnsupportedError(f"a convolution over {max(0, x.rank - 2)} spatial axes (input {list(x.shape)}) is not supported; "
                                   f"1, 2 or 3 axes are.")
        if w.rank != x.rank or self.group < 1 or x.shape[1] != w.shape[0] or x.shape[1] % self.group or 0 in (*w.shape, *x.shape[2:]):
            raise ShapeError(f"the weights {list(w.shape)} do not fit the input {list(x.shape)} in {self.group} groups: they must be "
                             f"[channels of the input, channels of the output / groups, *kernel], and not empty.")
        bias = types[2] if len(types) > 2 else None
        channels = w.shape[1] * self.group
        if bias is not None and bias != x.with_shape((channels,)):
            raise ShapeError(f"the bias must be {x.with_shape((channels,))}, one element per output channel, not {bias}.")
        return (x.with_shape((x.shape[0], channels, *(s.out for s in self.sizes(x.shape, w.shape)))),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The convolution of which this is the gradient has the padding that is positive; what lies beyond all taps is zeros."""
        x, w = present(inputs[0]), present(inputs[1])
        sizes, rank = self.sizes(x.shape, w.shape), x.type.rank - 2
        begin, end = [max(0, s.begin) for s in sizes], [max(0, s.end) for s in sizes]
        shape = tuple(s.full - p - q for s, p, q in zip(sizes, begin, end, strict=True))
        y = b.ConvInputGrad(x, w, shape=shape, strides=self._per_axis("strides", rank, 1), dilations=self._per_axis("dilations", rank, 1),
                            pads=(*begin, *end), group=self.group)
        beyond = [max(0, -s.begin) for s in sizes], [max(0, -s.end) for s in sizes]
        if any(map(any, beyond)):
            y = b.Pad(y, pads=(0, 0, *beyond[0], 0, 0, *beyond[1]))
        if len(inputs) > 2 and inputs[2] is not None:
            y = b.Add(y, b.Reshape(inputs[2], shape=(y.shape[1], *[1] * rank), allowzero=1))
        return [y]
