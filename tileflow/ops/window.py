"""Sliding windows over spatial axes, as convolutions and pools have them: strides, dilations, padding, output sizes."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..system.errors import ShapeError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """Resolved windows, one entry per spatial axis. `out` windows of `kernel` taps; `begin` and `end` elements of padding.

    With ceil_mode the last window may reach past the padding: `end` then includes what it needs.
    """

    size: Shape
    out: Shape
    kernel: Shape
    strides: Shape
    dilations: Shape
    begin: Shape
    end: Shape

    @property
    def pads(self) -> Shape:
        """As the ONNX attribute: all begins, then all ends."""
        return self.begin + self.end

    def padding(self, ranges: Sequence[tuple[int, int]]) -> tuple[Shape, Shape]:
        """How far the windows lo..hi of each axis reach before the first and after the last element."""
        begin = tuple(max(0, p - lo * s) for (lo, _), s, p in zip(ranges, self.strides, self.begin, strict=True))
        reach = [(hi - 1) * s + (k - 1) * d + 1 - p - n for (_, hi), s, k, d, p, n in
                 zip(ranges, self.strides, self.kernel, self.dilations, self.begin, self.size, strict=True)]
        return begin, tuple(max(0, r) for r in reach)

    def tap(self, at: Sequence[int]) -> tuple[slice, ...]:
        """Where tap `at` of all windows lies in the padded axes."""
        return tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in
                     zip(at, self.dilations, self.out, self.strides, strict=True))


def _per_axis(name: str, given: Sequence[int] | None, rank: int, default: int, least: int) -> Shape:
    values = (default,) * rank if given is None else tuple(given)
    if len(values) != rank or any(v < least for v in values):
        raise ShapeError(f"{name} {list(values)} must be {rank} numbers of at least {least}.")
    return values


def windows(size: Sequence[int], kernel: Sequence[int], strides: Sequence[int] | None = None, pads: Sequence[int] | None = None,
            dilations: Sequence[int] | None = None, auto_pad: str = "NOTSET", ceil_mode: int = 0) -> Windows:
    """Windows of `kernel` taps over axes of `size`, by the rules of the ONNX operators Conv and MaxPool.

    Raises:
        ShapeError: an attribute has the wrong length or sign, or a window is larger than the padded axis.
    """
    rank = len(size)
    kernel = _per_axis("kernel_shape", kernel, rank, 1, 1)
    strides = _per_axis("strides", strides, rank, 1, 1)
    dilations = _per_axis("dilations", dilations, rank, 1, 1)
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = _same_pads(size, extent, strides, auto_pad)
    elif auto_pad in ("NOTSET", "", "VALID"):
        both = _per_axis("pads", None if auto_pad == "VALID" else pads, 2 * rank, 0, 0)
        begin, end = both[:rank], both[rank:]
    else:
        raise ShapeError(f"auto_pad is {auto_pad!r}; it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID.")
    out = []
    for i in range(rank):
        room = size[i] + begin[i] + end[i] - extent[i]
        if room < 0:
            raise ShapeError(f"a window of {extent[i]} elements (kernel {kernel[i]}, dilation {dilations[i]}) is larger than spatial "
                             f"axis {i} of {size[i]} elements with padding {begin[i]} and {end[i]}; use a smaller kernel or more padding.")
        count = -(-room // strides[i]) if ceil_mode else room // strides[i]
        if ceil_mode and count * strides[i] >= size[i] + begin[i]:
            count -= 1                                   # a window that starts in the end padding sees no element
        out.append(count + 1)
    reach = [(out[i] - 1) * strides[i] + extent[i] - size[i] - begin[i] for i in range(rank)]
    return Windows(tuple(size), tuple(out), kernel, strides, dilations, begin, tuple(max(e, r) for e, r in zip(end, reach, strict=True)))


def _same_pads(size: Sequence[int], extent: Shape, strides: Shape, auto_pad: str) -> tuple[Shape, Shape]:
    """Padding for ceil(size / stride) outputs; an odd element goes to the end (SAME_UPPER) or to the beginning."""
    total = [max(0, (-(-n // s) - 1) * s + e - n) for n, e, s in zip(size, extent, strides, strict=True)]
    small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)
