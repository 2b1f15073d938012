"""Fourier transforms: of a length at once by a product with its matrix, of longer ones in two steps (Cooley and Tukey 1965), of large primes by a
convolution (Bluestein 1970); and of frames of a signal."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise.expr import Var
from ..memory.types import TensorType
from ..system.errors import ShapeError
from .shape import check_float, normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value

DIRECT = 512
"""Elements up to which a transform is a product with its matrix."""
PRIME = 2048
"""The largest length that is not composite for which it still is."""
Complex = tuple["Value", "Value | None"]
"""Real and imaginary parts, [rows, n]; None is zero."""


# ---- transforms of rows --------------------------------------------------------------------------------------------------------------

def _roots(products: np.ndarray, n: int, sign: int) -> np.ndarray:
    """exp(sign * 2 pi i * products / n), of whole numbers, so that no angle is large."""
    return np.exp(sign * 2j * np.pi * (products % n) / n)


def _matrix(rows: int, n: int, columns: int, sign: int) -> np.ndarray:
    """What takes the first `rows` of n elements to the first `columns` of their transform."""
    return _roots(np.multiply.outer(np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)), n, sign)


def _constant(b: Builder, array: np.ndarray, like: Value) -> Value:
    return b.constant(np.ascontiguousarray(array).astype(like.type.numpy), "fourier")


def _by_matrix(b: Builder, x: Complex, matrix: np.ndarray) -> Complex:
    """Products of complex rows with a matrix."""
    re, im = x
    cos, sin = _constant(b, matrix.real, re), _constant(b, matrix.imag, re)
    if im is None:
        return b.MatMul(re, cos), b.MatMul(re, sin)
    return b.Sub(b.MatMul(re, cos), b.MatMul(im, sin)), b.Add(b.MatMul(re, sin), b.MatMul(im, cos))


def _times(b: Builder, x: Complex, factors: np.ndarray) -> Complex:
    """Elements times complex numbers."""
    re, im = x
    cos, sin = _constant(b, factors.real, re), _constant(b, factors.imag, re)
    if im is None:
        return b.Mul(re, cos), b.Mul(re, sin)
    r, i, c, s = (Var(k, re.dtype) for k in range(4))
    made = b.Map(re, im, cos, sin, exprs=(r * c - i * s, r * s + i * c))
    return made[0], made[1]


def _each(x: Complex, function: object) -> Complex:
    """A function of the parts."""
    return function(x[0]), None if x[1] is None else function(x[1])          # type: ignore[operator]


def _divisor(n: int) -> int:
    """The divisor of n nearest to its root from below; 1 for a prime."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def transformed(b: Builder, x: Complex, n: int, sign: int) -> Complex:
    """The n sums over j of x[j] exp(sign * 2 pi i j k / n) of each row [rows, n]."""
    rows, a = x[0].shape[0], _divisor(n)
    if n <= DIRECT or (a == 1 and n <= PRIME):
        return _by_matrix(b, x, _matrix(n, n, n, sign))
    if a == 1:
        return _by_convolution(b, x, n, sign)
    c = n // a

    def turned(v: Value, first: int, second: int) -> Value:
        """[rows, first * second] to [rows * second, first]."""
        v = b.Transpose(b.Reshape(v, shape=(rows, first, second), allowzero=1), perm=(0, 2, 1))
        return b.Reshape(v, shape=(rows * second, first), allowzero=1)

    inner = transformed(b, _each(x, lambda v: turned(v, a, c)), a, sign)                     # j = c j1 + j2: over j1, for each j2
    twiddles = _roots(np.multiply.outer(np.arange(c, dtype=np.int64), np.arange(a, dtype=np.int64)), n, sign)
    inner = _times(b, _each(inner, lambda v: b.Reshape(v, shape=(rows, c, a), allowzero=1)), twiddles)
    outer = transformed(b, _each(inner, lambda v: turned(v, c, a)), c, sign)                 # over j2, for each k1; k = k1 + a k2
    return _each(outer, lambda v: b.Reshape(turned(v, a, c), shape=(rows, n), allowzero=1))


def _by_convolution(b: Builder, x: Complex, n: int, sign: int) -> Complex:
    """With j k = (j^2 + k^2 - (k - j)^2) / 2 the sums are a convolution, which transforms of a power of two compute."""
    m = 1 << (2 * n - 2).bit_length()
    chirp = _roots(np.arange(n, dtype=np.int64) ** 2 % (2 * n), 2 * n, sign)
    response = np.zeros(m, np.complex128)
    response[:n] = chirp.conj()
    response[m - n + 1:] = chirp.conj()[:0:-1]
    padded = _each(_times(b, x, chirp), lambda v: b.Pad(v, pads=(0, 0, 0, m - n)))
    there = _times(b, transformed(b, padded, m, -1), np.fft.fft(response) / m)
    back = transformed(b, there, m, 1)
    cut = _each(back, lambda v: b.Slice(v, starts=(0,), ends=(n,), axes=(1,), steps=(1,)))
    return _times(b, cut, chirp)


# ---- the operators -------------------------------------------------------------------------------------------------------------------

def _sized(b: Builder, x: Value, axis: int, n: int) -> Value:
    """x cut, or filled up with zeros, to n elements along an axis."""
    size, rank = x.shape[axis], x.type.rank
    if size > n:
        return b.Slice(x, starts=(0,), ends=(n,), axes=(axis,), steps=(1,))                  # type: ignore[no-any-return]
    if size < n:
        return b.Pad(x, pads=(0,) * (rank + axis) + (n - size,) + (0,) * (rank - 1 - axis))  # type: ignore[no-any-return]
    return x


def _check(x: TensorType, what: str) -> None:
    check_float(x, f"the {what}")
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise ShapeError(f"the {what} is {x}; its last dimension must be 1 (real numbers) or 2 (real and imaginary parts).")


@op("DFT")
class DFT(Op):
    """The discrete Fourier transform along `axis` of x [..., 1 or 2], whose last dimension is real and imaginary parts.

    dft_length: elements transformed; x is cut or filled up with zeros. onesided: of real x only the first half, and one. inverse: with the
    positive sign, divided by the length; onesided as well, the real signal of such a half (NumPy's irfft), with the last dimension 1.
    """

    dft_length: int | None = None
    axis: int = -2
    inverse: int = 0
    onesided: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 5, 1)), sample((2, 6, 2), axis=1), sample((4, 3, 2), axis=0, inverse=1), sample((2, 6, 1), onesided=1, axis=1),
                sample((2, 4, 2), inverse=1, onesided=1, axis=1), sample((2, 5, 1), dft_length=8, axis=1), sample((2, 5, 2), dft_length=3, axis=1),
                sample((2, 3, 2), inverse=1, onesided=1, dft_length=7, axis=1)]

    def length(self, x: TensorType) -> tuple[int, int]:
        """The axis, and how many elements are transformed."""
        axis = normal_axis(self.axis, x.rank)
        if axis == x.rank - 1:
            raise ShapeError(f"axis {self.axis} of {x} holds the real and imaginary parts; it cannot be transformed.")
        back = self.inverse and self.onesided
        n = self.dft_length if self.dft_length is not None else 2 * (x.shape[axis] - 1) if back else x.shape[axis]
        if n < 1 or not x.shape[axis]:
            raise ShapeError(f"the transform of {x} along axis {axis} has {n} elements; it needs one at least.")
        return axis, n

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _check(x, "input")
        axis, n = self.length(x)
        if self.onesided and not self.inverse and x.shape[-1] == 2:
            raise ShapeError(f"the input {x} is complex; only the transform of a real signal is onesided.")
        size, parts = (n, 1) if self.onesided and self.inverse else (n // 2 + 1, 2) if self.onesided else (n, 2)
        return (x.with_shape((*x.shape[:axis], size, *x.shape[axis + 1:-1], parts)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Rows that end in the transformed axis; 16-bit numbers as float32."""
        x = present(inputs[0])
        y_type, = self.infer(x.type)
        if x.type.is_half:
            return [b.Cast(self.expand(b, [b.Cast(x, to="float32")])[0], to=x.dtype)]
        if not x.type.size:
            return [b.Expand(b.scalar(0.0, x), shape=y_type.shape)]
        axis, n = self.length(x.type)
        last = x.type.rank - 2
        x = _sized(b, x, axis, n // 2 + 1 if self.inverse and self.onesided else n)
        order = (*(i for i in range(last + 1) if i != axis), axis, last + 1)
        turned = b.Transpose(x, perm=order) if order != tuple(range(last + 2)) else x
        size, parts = x.shape[axis], x.shape[-1]
        rows = math.prod(turned.shape[:-2])
        flat = b.Reshape(turned, shape=(rows, size * parts), allowzero=1)
        kept = self.kept(n)
        if n <= DIRECT or (_divisor(n) == 1 and n <= PRIME):
            y = b.MatMul(flat, _constant(b, self.matrix(size, n, parts), x))
        else:
            y = self._long(b, b.Reshape(flat, shape=(rows, size, parts), allowzero=1), n, kept)
        y = b.Reshape(y, shape=(*turned.shape[:-2], *y_type.shape[axis:axis + 1], y_type.shape[-1]), allowzero=1)
        back = tuple(int(i) for i in np.argsort(order))
        return [b.Transpose(y, perm=back) if order != tuple(range(last + 2)) else y]

    def kept(self, n: int) -> int:
        """How many results are wanted."""
        return n // 2 + 1 if self.onesided and not self.inverse else n

    def matrix(self, size: int, n: int, parts: int) -> np.ndarray:
        """What takes `size` interleaved numbers to the interleaved results."""
        if self.onesided and self.inverse:                        # the signal of which this is half of the spectrum
            weights = np.where((np.arange(size) == 0) | (2 * np.arange(size) == n), 1, 2)[:, None] * _matrix(size, n, n, 1) / n
            return np.stack([weights.real, -weights.imag], 1).reshape(2 * size, n)[::3 - parts]
        whole = _matrix(size, n, self.kept(n), 1 if self.inverse else -1) / (n if self.inverse else 1)
        table = np.stack([np.stack([whole.real, whole.imag], 2), np.stack([-whole.imag, whole.real], 2)], 1)[:, :parts]
        return table.reshape(size * parts, -1)

    def _long(self, b: Builder, x: Value, n: int, kept: int) -> Value:
        """Transforms of rows [rows, size, parts], to the results with their parts behind each other."""
        rows, size, parts = x.shape
        split = b.Split(x, axis=2, sizes=(1, 1)) if parts == 2 else (x,)
        columns = [b.Reshape(v, shape=(rows, size), allowzero=1) for v in split]
        spectrum: Complex = (columns[0], columns[1] if parts == 2 else None)
        if self.onesided and self.inverse:                        # the other half is the first one's, turned and conjugated
            mirrored = np.concatenate([np.arange(n // 2 + 1), np.arange((n - 1) // 2, 0, -1)])
            signs = np.where(np.arange(n) <= n // 2, 1.0, -1.0)
            signs[0] = signs[n // 2 if n % 2 == 0 else 0] = 0.0
            spectrum = _each(spectrum, lambda v: b.Gather(v, b.constant(mirrored, "places"), axis=1))
            if spectrum[1] is not None:
                spectrum = spectrum[0], b.Mul(spectrum[1], _constant(b, signs, x))
        re, im = transformed(b, spectrum, n, 1 if self.inverse else -1)
        assert im is not None
        found = [re] if self.onesided and self.inverse else [re, im]
        if kept < n:
            found = [b.Slice(v, starts=(0,), ends=(kept,), axes=(1,), steps=(1,)) for v in found]
        if self.inverse:
            found = [b.Mul(v, b.scalar(1 / n, v)) for v in found]
        if len(found) == 1:
            return found[0]
        return b.Concat(*(b.Reshape(v, shape=(rows, kept, 1), allowzero=1) for v in found), axis=2)      # type: ignore[no-any-return]


@op("STFT")
class STFT(Op):
    """Fourier transforms of frames of a signal [n, elements, 1 or 2], `frame_step` apart, times `window`: [n, frames, bins, 2].

    frame_length: elements of a frame (absent: those of the window). onesided: the first half of the bins, and one. Operands: signal, window.
    """

    frame_step: int = 1
    frame_length: int | None = None
    onesided: int = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 12, 1), (6,), frame_step=2), sample((1, 11, 1), frame_step=3, frame_length=5),
                sample((1, 10, 2), (4,), frame_step=2, frame_length=4, onesided=0)]

    def frames(self, x: TensorType, window: TensorType | None) -> tuple[int, int]:
        """(frames, elements of one)."""
        length = self.frame_length if self.frame_length is not None else window.shape[0] if window is not None else x.shape[1]
        if window is not None and window != TensorType(x.dtype, (length,)):
            raise ShapeError(f"the window is {window}; for frames of {length} elements of {x} it must be {TensorType(x.dtype, (length,))}.")
        if self.frame_step < 1 or not 1 <= length <= x.shape[1]:
            raise ShapeError(f"frames of {length} elements, {self.frame_step} apart, cannot be taken from a signal of {x.shape[1]} elements.")
        return (x.shape[1] - length) // self.frame_step + 1, length

    def transform(self, length: int) -> DFT:
        return DFT(axis=-2, onesided=self.onesided, dft_length=length)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, window = present(types[0]), types[1] if len(types) > 1 else None
        _check(x, "signal")
        if x.rank != 3:
            raise ShapeError(f"the signal is {x}; it must be [n, elements, 1 or 2].")
        frames, length = self.frames(x, window)
        return self.transform(length).infer(x.with_shape((x.shape[0], frames, length, x.shape[2])))

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Frames are made of pieces as long as the longest that divides frames and steps."""
        x, window = present(inputs[0]), inputs[1] if len(inputs) > 1 else None
        (frames, length), (n, total, parts) = self.frames(x.type, None if window is None else window.type), x.shape
        piece = math.gcd(length, self.frame_step)
        used = (frames - 1) * self.frame_step + length
        if used < total:
            x = b.Slice(x, starts=(0,), ends=(used,), axes=(1,), steps=(1,))
        places = np.arange(frames)[:, None] * (self.frame_step // piece) + np.arange(length // piece)
        pieces = b.Reshape(x, shape=(n, used // piece, piece * parts), allowzero=1)
        met = b.Reshape(b.Gather(pieces, b.constant(places, "places"), axis=1), shape=(n, frames, length, parts), allowzero=1)
        if window is not None:
            met = b.Mul(met, b.Reshape(window, shape=(length, 1), allowzero=1))
        return self.transform(length).expand(b, [met])


def mel_weights(bands: int, length: int, rate: int, low: float, high: float) -> np.ndarray:
    """[length // 2 + 1, bands]: triangles evenly spaced on the mel scale, as ONNX's MelWeightMatrix defines them."""
    mels = np.linspace(_mel(low), _mel(high), bands + 3)[:-1]                     # steps of the range over bands + 2, as ONNX has them
    edges = ((length + 1) * 700 * (10 ** (mels / 2595) - 1) // rate).astype(np.int64)
    found = np.zeros((length // 2 + 1, bands))
    for i, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        if left == centre:
            found[centre, i] = 1
        else:
            found[left:centre + 1, i] = (np.arange(left, centre + 1) - left) / (centre - left)
        if right > centre:
            found[centre:right, i] = (right - np.arange(centre, right)) / (right - centre)
    return found


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)
