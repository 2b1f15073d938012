"""Normalisation kernels: batch statistics per channel of x[n, channels, inner], layer statistics per row, their gradients.

Statistics take two passes (the mean, then squares of differences from it), summed by blocks as in `reduce`, so a mean far
from zero costs no accuracy. All arrays are passed flat.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.half import borrowed
from ..isa.vector import Emitter, inlined_code, itemsize, word
from ..machine.call import Call, Work
from ..machine.leaf import Leaf
from ..machine.places import address_of
from ..rows import Rows
from ..sums import BLOCK

ROWS = 32                 # rows whose shares of the gradients of scale and shift are added in their own type
CHANNELS = 64             # neighbouring channels that one unit handles where inner is 1


UNROLL = 2                # independent sums of one block: enough for memory, and short rows leave less over


# ---- emitted passes over a channel or a row ------------------------------------------------------------------------------------------

Terms = Callable[[Any, Any], Sequence[Any]]


def add_blocks(e: Emitter, dtype: str, n: Any, totals: Sequence[Any], terms: Terms) -> list[Any]:
    """`totals` (float64 vectors, `nothing` at first) plus the sums over n elements of what terms(byte offset, mask) gives, blocks summed in their
    own type."""
    count, zero = len(totals), ir.Constant(Rows(e, dtype, n).kind, None)

    def block(start: Any, totals: list[Any]) -> list[Any]:
        r = Rows(e, dtype, e.minimum(e.b.sub(n, start), word(BLOCK)))

        def add(i: Any, mask: Any, sums: Sequence[Any]) -> list[Any]:
            found = terms(e.times(e.b.add(start, i), r.size), mask)
            return [e.b.fadd(s, v if mask is None else e.b.select(mask, v, zero)) for s, v in zip(sums, found, strict=True)]

        def many(i: Any, sums: list[Any]) -> list[Any]:
            parts = [add(e.address(i, u * r.lanes), None, sums[u * count:(u + 1) * count]) for u in range(UNROLL)]
            return [v for part in parts for v in part]

        whole = e.b.and_(r.n, word(-r.lanes * UNROLL))
        sums = e.loop(0, whole, r.lanes * UNROLL, [zero] * (count * UNROLL), many)
        sums = e.loop(whole, r.n, r.lanes, sums, lambda i, s: [*add(i, r.first(e.b.sub(r.n, i)), s[:count]), *s[count:]])
        wide = ir.VectorType(ir.DoubleType(), r.lanes)
        chains = [functools.reduce(e.b.fadd, sums[k::count]) for k in range(count)]
        return [e.b.fadd(t, v if dtype == "f8" else e.b.fpext(v, wide)) for t, v in zip(totals, chains, strict=True)]
    return e.loop(0, n, BLOCK, totals, block)


def nothing(r: Rows) -> Any:
    """What totals begin as: zeros, float64."""
    return ir.Constant(ir.VectorType(ir.DoubleType(), r.lanes), None)


def _sums(dtype: str, arrays: int, terms: Callable[..., Sequence[Any]], count: int) -> Any:
    """`count` sums over rows x n elements to float64 `out`; terms(Rows, mean, [address ...], byte offset, mask)."""
    def emit(e: Emitter, rows: Any, n: Any, step: Any, numbers: Any, out: Any, *addresses: Any) -> None:
        r = Rows(e, dtype, n)
        mean = r.splat(e.load(numbers, r.element))

        def row(_i: Any, state: list[Any]) -> list[Any]:
            at, totals = state[:arrays], state[arrays:]
            totals = add_blocks(e, dtype, n, totals, lambda offset, mask: terms(r, mean, at, offset, mask))
            return [*(e.address(a, step) for a in at), *totals]
        totals = e.loop(0, rows, 1, [*addresses, *[nothing(r)] * count], row)[arrays:]
        for k, total in enumerate(totals):
            e.store(r.fold(total, e.b.fadd), e.address(out, 8 * k))
    return emit


def centred(r: Rows, mean: Any, x: Any, offset: Any, mask: Any) -> Any:
    return r.b.fsub(r.load(x, offset, mask), mean)


def _square(r: Rows, mean: Any, at: list[Any], offset: Any, mask: Any) -> list[Any]:
    d = centred(r, mean, at[0], offset, mask)
    return [r.b.fmul(d, d)]


def _fetch(r: Rows, address: Any, offset: Any, mask: Any) -> None:
    """Ask for the next row of n elements: the pass that meets it first waits for memory, this one does not."""
    if mask is None:
        r.e.prefetch(r.e.address(address, r.e.times(r.n, r.size), offset), locality=2)


def _row_square(r: Rows, mean: Any, at: list[Any], offset: Any, mask: Any) -> list[Any]:
    _fetch(r, at[0], offset, mask)
    return _square(r, mean, at, offset, mask)


def _product(r: Rows, mean: Any, at: list[Any], offset: Any, mask: Any) -> list[Any]:
    g = r.load(at[0], offset, mask)
    return [g, r.b.fmul(g, centred(r, mean, at[1], offset, mask))]


def _scaled_product(r: Rows, mean: Any, at: list[Any], offset: Any, mask: Any) -> list[Any]:
    h = r.b.fmul(r.load(at[0], offset, mask), r.load(at[2], offset, mask))
    return [h, r.b.fmul(h, centred(r, mean, at[1], offset, mask))]


def _map(dtype: str, value: Callable[..., Any]) -> Any:
    """target = value(Rows, numbers, [address ...], byte offset, mask) over rows x n elements; the last address is the target's."""
    def emit(e: Emitter, rows: Any, n: Any, step: Any, numbers: Any, *addresses: Any) -> None:
        r = Rows(e, dtype, n)
        constants = [r.splat(e.load(e.address(numbers, k * r.size), r.element)) for k in range(4)]

        def row(_i: Any, at: list[Any]) -> list[Any]:
            r.map(at[-1], lambda offset, mask: value(r, constants, at, offset, mask), UNROLL)
            return [e.address(a, step) for a in at]
        e.loop(0, rows, 1, addresses, row)
    return emit


def _normalised(r: Rows, numbers: list[Any], at: list[Any], offset: Any, mask: Any) -> Any:
    """(x - mean) * factor + shift."""
    mean, factor, shift, _ = numbers
    return r.e.fma(centred(r, mean, at[0], offset, mask), factor, shift)


def _affine(r: Rows, numbers: list[Any], at: list[Any], offset: Any, mask: Any) -> Any:
    """(x - mean) * inverse * scale + shift, the last two per column."""
    mean, inverse, *_ = numbers
    scaled = r.b.fmul(centred(r, mean, at[0], offset, mask), inverse)
    return r.e.fma(scaled, r.load(at[1], offset, mask), r.load(at[2], offset, mask))


def _pulled(r: Rows, numbers: list[Any], g: Any, x: Any, offset: Any, mask: Any) -> Any:
    """(g - (x - mean) * tilt - level) * factor."""
    mean, factor, tilt, level = numbers
    tilted = r.e.fma(r.b.fneg(centred(r, mean, x, offset, mask)), tilt, g)
    return r.b.fmul(r.b.fsub(tilted, level), factor)


def _batch_pull(r: Rows, numbers: list[Any], at: list[Any], offset: Any, mask: Any) -> Any:
    return _pulled(r, numbers, r.load(at[0], offset, mask), at[1], offset, mask)


def _layer_pull(r: Rows, numbers: list[Any], at: list[Any], offset: Any, mask: Any) -> Any:
    """dx, and this row's shares of the gradients of scale and shift added to those of the rows before it."""
    for address in at[:2]:
        _fetch(r, address, offset, mask)
    mean, inverse, *_ = numbers
    g = r.load(at[0], offset, mask)
    h = r.b.fmul(g, r.load(at[2], offset, mask))
    normal = r.b.fmul(centred(r, mean, at[1], offset, mask), inverse)
    for share, part in ((r.b.fmul(g, normal), at[3]), (g, at[4])):
        r.store(r.b.fadd(r.load(part, offset, mask), share), part, offset, mask)
    return _pulled(r, numbers, h, at[1], offset, mask)


@functools.cache
def norm_pass(name: str, dtype: str, path: cpu.Cpu) -> Any:
    """A function; sums: rows, n, step, numbers, out, arrays; maps: rows, n, step, numbers, arrays. `step`: bytes from row to row.

    numbers (elements): mean, then for batch_map factor, shift; layer_map inverse; the pulls factor, tilt, level.
    """
    emit, arrays = {
        "sum": (_sums(dtype, 1, lambda r, _mean, at, offset, mask: [r.load(at[0], offset, mask)], 1), "out, x"),
        "squares": (_sums(dtype, 1, _square, 1), "out, x"), "row_squares": (_sums(dtype, 1, _row_square, 1), "out, x"),
        "products": (_sums(dtype, 2, _product, 2), "out, g, x"),
        "scaled_products": (_sums(dtype, 3, _scaled_product, 2), "out, g, x, scale"),
        "batch_map": (_map(dtype, _normalised), "x, y"), "layer_map": (_map(dtype, _affine), "x, scale, shift, y"),
        "batch_pull": (_map(dtype, _batch_pull), "g, x, dx"), "layer_pull": (_map(dtype, _layer_pull), "g, x, scale, scales, shifts, dx"),
    }[name]
    return inlined_code(f"tileflow_norm_{name}_{dtype}_{path.name}", f"rows, n, step, numbers, {arrays}", path, emit)


# ---- leaves --------------------------------------------------------------------------------------------------------------------------

def _batch_norm(dtype: str, path: cpu.Cpu) -> Any:
    size, sums, squares, put = itemsize(dtype), *(norm_pass(name, dtype, path) for name in ("sum", "squares", "batch_map"))

    def batch_norm(x: Any, scale: Any, shift: Any, y: Any, means: Any, variances: Any, inverses: Any, numbers: Any, totals: Any,
                   lo: int, hi: int, n: int, inner: int, epsilon: float) -> None:
        """Normalise each channel by its own mean and (population) variance; a unit of range is a channel."""
        count, step = float(n * inner), scale.shape[0] * inner * size
        for c in range(lo, hi):
            at = c * inner * size
            sums(n, inner, step, address_of(numbers), address_of(totals), address_of(x) + at)
            numbers[0] = totals[0] / count
            squares(n, inner, step, address_of(numbers), address_of(totals), address_of(x) + at)
            variance = totals[0] / count
            inverse = 1.0 / math.sqrt(variance + epsilon)
            means[c], variances[c], inverses[c] = numbers[0], variance, inverse
            numbers[1], numbers[2] = inverse * scale[c], shift[c]
            put(n, inner, step, address_of(numbers), address_of(x) + at, address_of(y) + at)
    return batch_norm


def _batch_norm_flat(x: Any, scale: Any, shift: Any, y: Any, means: Any, variances: Any, inverses: Any, sums: Any,
                     lo: int, hi: int, n: int, epsilon: float) -> None:
    """The same with inner = 1; a unit of range is a strip of CHANNELS channels."""
    kind = x.dtype.type
    channels, count = scale.shape[0], float(n)
    for unit in range(lo, hi):
        first = unit * CHANNELS
        width = min(channels - first, CHANNELS)
        mean, total = means[first:first + width], sums[:width]
        for c in range(width):
            total[c] = 0.0
        for k in range(n):
            row = x[k * channels + first:k * channels + first + width]
            for c in range(width):
                total[c] += row[c]
        for c in range(width):
            mean[c] = kind(total[c] / count)
            total[c] = 0.0
        for k in range(n):
            row = x[k * channels + first:k * channels + first + width]
            for c in range(width):
                total[c] += (row[c] - mean[c]) * (row[c] - mean[c])
        factor, offset = inverses[first:first + width], shift[first:first + width]
        for c in range(width):
            variance = total[c] / count
            variances[first + c] = variance
            total[c] = 1.0 / math.sqrt(variance + epsilon)
            factor[c] = kind(total[c] * scale[first + c])
        for k in range(n):
            row = x[k * channels + first:k * channels + first + width]
            target = y[k * channels + first:k * channels + first + width]
            for c in range(width):
                target[c] = (row[c] - mean[c]) * factor[c] + offset[c]
        for c in range(width):
            factor[c] = kind(total[c])


def _batch_norm_grad(dtype: str, path: cpu.Cpu) -> Any:
    size, products, put = itemsize(dtype), *(norm_pass(name, dtype, path) for name in ("products", "batch_pull"))

    def batch_norm_grad(g: Any, x: Any, scale: Any, means: Any, inverses: Any, dx: Any, dscale: Any, dshift: Any, numbers: Any, totals: Any,
                        lo: int, hi: int, n: int, inner: int) -> None:
        """dshift = sum g, dscale = sum g xhat, dx = scale inverse (g - mean(g) - xhat mean(g xhat)); a unit is a channel."""
        count, step = float(n * inner), scale.shape[0] * inner * size
        for c in range(lo, hi):
            at, inverse = c * inner * size, float(inverses[c])
            numbers[0] = means[c]
            products(n, inner, step, address_of(numbers), address_of(totals), address_of(g) + at, address_of(x) + at)
            total, product = totals[0], totals[1]
            dshift[c], dscale[c] = total, product * inverse
            numbers[1], numbers[2], numbers[3] = scale[c] * inverse, product * inverse * inverse / count, total / count
            put(n, inner, step, address_of(numbers), address_of(g) + at, address_of(x) + at, address_of(dx) + at)
    return batch_norm_grad


def _batch_norm_grad_flat(g: Any, x: Any, scale: Any, means: Any, inverses: Any, dx: Any, dscale: Any, dshift: Any, sums: Any,
                          products: Any, lo: int, hi: int, n: int) -> None:
    """The same with inner = 1; a unit of range is a strip of CHANNELS channels."""
    kind = x.dtype.type
    channels, count = scale.shape[0], float(n)
    for unit in range(lo, hi):
        first = unit * CHANNELS
        width = min(channels - first, CHANNELS)
        mean, total, product = means[first:first + width], sums[:width], products[:width]
        for c in range(width):
            total[c], product[c] = 0.0, 0.0
        for k in range(n):
            at = k * channels + first
            gradient, row = g[at:at + width], x[at:at + width]
            for c in range(width):
                total[c] += gradient[c]
                product[c] += gradient[c] * (row[c] - mean[c])
        for c in range(width):
            inverse = float(inverses[first + c])
            dshift[first + c], dscale[first + c] = total[c], product[c] * inverse
            total[c], product[c] = total[c] / count, product[c] * inverse * inverse / count
        for k in range(n):
            at = k * channels + first
            gradient, row, target = g[at:at + width], x[at:at + width], dx[at:at + width]
            for c in range(width):
                pulled = gradient[c] - (row[c] - mean[c]) * kind(product[c]) - kind(total[c])
                target[c] = pulled * (scale[first + c] * inverses[first + c])


def _inverse_std(variance: Any, y: Any, epsilon: float) -> None:
    """y = 1 / sqrt(variance + epsilon)."""
    for c in range(y.shape[0]):
        y[c] = 1.0 / math.sqrt(variance[c] + epsilon)


def _layer_norm(dtype: str, path: cpu.Cpu) -> Any:
    size, sums, squares, put = itemsize(dtype), *(norm_pass(name, dtype, path) for name in ("sum", "row_squares", "layer_map"))

    def layer_norm(x: Any, scale: Any, shift: Any, y: Any, means: Any, inverses: Any, numbers: Any, totals: Any, epsilon: float) -> None:
        """Normalise each row by its own mean and variance, then times `scale` plus `shift` per column."""
        n, count = x.shape[1], float(x.shape[1])
        for r in range(y.shape[0]):
            at = r * n * size
            sums(1, n, 0, address_of(numbers), address_of(totals), address_of(x) + at)
            numbers[0] = totals[0] / count
            squares(1, n, 0, address_of(numbers), address_of(totals), address_of(x) + at)
            numbers[1] = 1.0 / math.sqrt(totals[0] / count + epsilon)
            means[r], inverses[r] = numbers[0], numbers[1]
            put(1, n, 0, address_of(numbers), address_of(x) + at, address_of(scale), address_of(shift), address_of(y) + at)
    return layer_norm


def _layer_norm_grad(dtype: str, path: cpu.Cpu, letters: tuple[str, str, str] = ("", "", "")) -> Any:
    """`letters`: the 16-bit types in which g, x and dx lie, if they do."""
    products, put = (norm_pass(name, dtype, path) for name in ("scaled_products", "layer_pull"))
    (take_g, _, _), (take_x, _, _), (_, room, give) = (borrowed(dtype, letter) for letter in letters)

    def layer_norm_grad(g: Any, x: Any, scale: Any, means: Any, inverses: Any, dx: Any, scales: Any, shifts: Any, numbers: Any, totals: Any,
                        spare: Any, lo: int, hi: int) -> None:
        """dx = inverse (h - mean(h) - xhat mean(h xhat)) with h = g scale; scales, shifts: sums of g xhat and g over ROWS rows, a unit of range."""
        n, count = x.shape[1], float(x.shape[1])
        for unit in range(lo, hi):
            of_scale, of_shift = scales[unit], shifts[unit]
            for i in range(n):
                of_scale[i], of_shift[i] = 0.0, 0.0
            for r in range(unit * ROWS, min((unit + 1) * ROWS, x.shape[0])):
                at, inverse = r * n, float(inverses[r])
                gradient, row = take_g(g, at, n, spare, 0), take_x(x, at, n, spare, n)
                numbers[0] = means[r]
                products(1, n, 0, address_of(numbers), address_of(totals), gradient, row, address_of(scale))
                numbers[1], numbers[2], numbers[3] = inverse, totals[1] * inverse * inverse / count, totals[0] / count
                put(1, n, 0, address_of(numbers), gradient, row, address_of(scale), address_of(of_scale), address_of(of_shift),
                    room(dx, at, n, spare, 2 * n))
                give(dx, at, n, spare, 2 * n)
    return layer_norm_grad


def own_scratch(t: str) -> tuple[Work, Work]:
    """What the leaves that are not flat want per worker, after their arrays."""
    return Work("numbers", (4,), t), Work("totals", (2,), "f8")


def norm_leaf(name: str, t: str) -> Leaf:
    """A normalisation leaf for element type `t`; the names are those of the functions above."""
    return _norm_leaf(name, t, cpu.current())


@functools.cache
def _norm_leaf(name: str, t: str, path: cpu.Cpu) -> Leaf:
    flat, row, one, own = f"{t}[:]", f"{t}[r,:]", f"{t}[r]", [f"{t}[w,:]", "f8[w,:]"]
    signatures: dict[str, tuple[Any, list[str]]] = {
        "batch_norm": (_batch_norm, [*[flat] * 7, *own, "lo", "hi", "i8", "i8", "f8"]),
        "batch_norm_flat": (_batch_norm_flat, [*[flat] * 7, "f8[w,:]", "lo", "hi", "i8", "f8"]),
        "batch_norm_grad": (_batch_norm_grad, [*[flat] * 8, *own, "lo", "hi", "i8", "i8"]),
        "batch_norm_grad_flat": (_batch_norm_grad_flat, [*[flat] * 8, "f8[w,:]", "f8[w,:]", "lo", "hi", "i8"]),
        "inverse_std": (_inverse_std, [one, one, "f8"]),
        "layer_norm": (_layer_norm, [row, flat, flat, row, one, one, *own, "f8"]),
    }
    if name == "layer_norm_grad":
        return _layer_norm_grad_leaf(t, ("", "", ""), path)
    body, signature = signatures[name]
    if name in ("batch_norm", "batch_norm_grad", "layer_norm"):
        body = body(t, path)
    return Leaf(body, ", ".join(signature), key=path.name)


@functools.cache
def _layer_norm_grad_leaf(t: str, letters: tuple[str, str, str], path: cpu.Cpu) -> Leaf:
    """The gradient of layer normalisation with g, x and dx in 16-bit memory of these types, where they have one."""
    g, x, dx = (letter or t for letter in letters)
    flat = ", ".join([f"{t}[:]"] * 3)
    signature = f"{g}[:,:], {x}[:,:], {flat}, {dx}[:,:], {t}[:,:], {t}[:,:], {t}[w,:], f8[w,:], {t}[w,:], lo, hi"
    return Leaf(_layer_norm_grad(t, path, letters), signature, key=f"{path.name} {letters}",
                narrowed=_narrowed_layer_norm_grad if t == "f4" and not any(letters) else None)


def _narrowed_layer_norm_grad(call: Call, letters: Mapping[int, str]) -> Call | None:
    """`Leaf.narrowed` of it."""
    if not set(letters) <= {0, 1, 5}:
        return None
    args = list(call.args)
    args[10] = Work("rows in float32", (3 * args[1].shape[1],), "f4")
    own = (letters.get(0, ""), letters.get(1, ""), letters.get(5, ""))
    return replace(call, leaf=_layer_norm_grad_leaf("f4", own, cpu.current()), args=args)
