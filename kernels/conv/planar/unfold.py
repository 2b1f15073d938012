"""Moving between images and their unfolding, and the table of where each row of the im2col matrix lies in it."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir

from ...isa import cpu
from ...isa.vector import ELEMENTS, Emitter, inlined_code, itemsize, vector, word
from ...machine.call import Const
from ...machine.places import address_of, clear, within, word_at
from .geometry import Unfolding

KNOWN = 2
"""Steps up to which there is code of its own for each; longer ones are operands."""


def form_of(step: int) -> int:
    """What of a step shapes the code; 0: it serves any."""
    return step if step <= KNOWN else 0


def _copy_rows(dtype: str, path: cpu.Cpu, form: int) -> Any:
    """target[r, j] = source[r, start + j * step], j < width, zero where that is not in 0..limit."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit_vectors(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, _step: Any, source: Any,
                     source_row: Any, target: Any, target_row: Any) -> None:
        def chunk(j: Any, _state: list[Any]) -> None:
            first = e.b.add(start, e.times(j, form))
            inside = []
            for v in range(form):
                at = e.address(first, v * lanes)
                inside.append(e.b.and_(e.first(e.b.sub(limit, at), lanes), e.b.not_(e.first(e.b.sub(word(0), at), lanes))))
            wanted = e.first(e.b.sub(width, j), lanes)

            def row(_r: Any, state: list[Any]) -> list[Any]:
                found = [e.load(e.address(state[0], v * lanes * size), kind, inside[v]) for v in range(form)]
                value = found[0] if form == 1 else e.shuffle(found[0], found[1], range(0, 2 * lanes, 2))
                e.store(value, state[1], wanted)
                return [e.address(state[0], source_row), e.address(state[1], target_row)]

            e.loop(0, rows, 1, [e.address(source, e.times(first, size)), e.address(target, e.times(j, size))], row)
        e.loop(0, width, lanes, [], chunk)

    def emit_scalars(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, _step: Any, source: Any,
                     source_row: Any, target: Any, target_row: Any) -> None:
        zero = ir.Constant(ELEMENTS[dtype], 0.0)

        def row(_r: Any, state: list[Any]) -> list[Any]:
            def element(j: Any, position: list[Any]) -> list[Any]:
                inside = e.b.icmp_unsigned("<", position[0], limit)
                safe = e.b.select(inside, position[0], word(0))
                value = e.load(e.address(state[0], e.times(safe, size)), ELEMENTS[dtype])
                e.store(e.b.select(inside, value, zero), e.address(state[1], e.times(j, size)))
                return [e.address(position[0], form)]
            e.loop(0, width, 1, [start], element)
            return [e.address(state[0], source_row), e.address(state[1], target_row)]
        e.loop(0, rows, 1, [source, target], row)

    def emit_any(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, step: Any, source: Any, source_row: Any,
                 target: Any, target_row: Any) -> None:
        zero = ir.Constant(ELEMENTS[dtype], 0.0)

        def before(end: Any) -> Any:
            """How many of the elements lie before that one."""
            length = e.b.sub(end, start)
            length = e.b.select(e.b.icmp_signed(">", length, word(0)), length, word(0))
            return e.minimum(width, e.b.udiv(e.b.add(length, e.b.sub(step, word(1))), step))
        first, last = before(word(0)), before(limit)

        def row(_r: Any, state: list[Any]) -> list[Any]:
            def place(j: Any) -> Any:
                return e.address(state[1], e.times(j, size))

            def element(j: Any, at: list[Any]) -> list[Any]:
                e.store(e.load(at[0], ELEMENTS[dtype]), place(j))
                return [e.address(at[0], e.times(step, size))]
            e.loop(0, first, 1, [], lambda j, _: e.store(zero, place(j)))
            e.loop(first, last, 1, [e.address(state[0], e.times(e.b.add(start, e.b.mul(first, step)), size))], element)
            e.loop(last, width, 1, [], lambda j, _: e.store(zero, place(j)))
            return [e.address(state[0], source_row), e.address(state[1], target_row)]
        e.loop(0, rows, 1, [source, target], row)

    return emit_any if not form else emit_vectors if path.masked_moves else emit_scalars


def _add_rows(dtype: str, form: int) -> Any:
    """target[r, start + j * step] += source[r, j], j < width, where that is in 0..limit."""
    size = itemsize(dtype)

    def emit(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, step: Any, source: Any, source_row: Any,
             target: Any, target_row: Any) -> None:
        def row(_r: Any, state: list[Any]) -> list[Any]:
            def element(j: Any, position: list[Any]) -> list[Any]:
                with e.when(e.b.icmp_unsigned("<", position[0], limit)):
                    place = e.address(state[1], e.times(position[0], size))
                    value = e.load(e.address(state[0], e.times(j, size)), ELEMENTS[dtype])
                    e.store(e.b.fadd(e.load(place, ELEMENTS[dtype]), value), place)
                return [e.address(position[0], form or step)]
            e.loop(0, width, 1, [start], element)
            return [e.address(state[0], source_row), e.address(state[1], target_row)]
        e.loop(0, rows, 1, [source, target], row)
    return emit


def _fold_rows(dtype: str, path: cpu.Cpu) -> Any:
    """target[r, i] = sum over t < taps of source[t, r, i - start - t * dilation], i < limit, where that is in 0..width."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, dilation: Any, taps: Any, source: Any, source_row: Any,
             source_tap: Any, target: Any, target_row: Any) -> None:
        def chunk(i: Any, _state: list[Any]) -> None:
            wanted = e.first(e.b.sub(limit, i), lanes)

            def block(r: Any, count: int) -> None:
                """`count` rows, so that a mask serves them all."""
                def tap(t: Any, sums: list[Any]) -> list[Any]:
                    first = e.b.sub(e.b.sub(i, start), e.b.mul(t, dilation))
                    inside = e.b.and_(e.first(e.b.sub(width, first), lanes), e.b.not_(e.first(e.b.sub(word(0), first), lanes)))
                    place = e.address(source, e.b.mul(t, source_tap), e.b.mul(r, source_row), e.times(first, size))
                    return [e.b.fadd(total, e.load(e.address(place, e.times(source_row, n)), kind, inside)) for n, total in enumerate(sums)]

                sums = e.loop(0, taps, 1, [ir.Constant(kind, None)] * count, tap)
                place = e.address(target, e.b.mul(r, target_row), e.times(i, size))
                for n, total in enumerate(sums):
                    e.store(total, e.address(place, e.times(target_row, n)), wanted)

            whole = e.b.and_(rows, word(-4))
            e.loop(0, whole, 4, [], lambda r, _state: block(r, 4))
            e.loop(whole, rows, 1, [], lambda r, _state: block(r, 1))
        e.loop(0, limit, lanes, [], chunk)
    return emit


_ROWS = "rows, width, start, limit, step, source, source_row, target, target_row"


@functools.cache
def copy_rows(dtype: str, path: cpu.Cpu, form: int) -> Any:
    """A function, for steps of a form: target[r, j] = source[r, start + j * step] for j < width, zero where that is
    not in 0..limit."""
    return inlined_code(f"tileflow_copy_rows_{dtype}_{path.name}_{form}", _ROWS, path, _copy_rows(dtype, path, form))


@functools.cache
def add_rows(dtype: str, path: cpu.Cpu, form: int) -> Any:
    """A function, for steps of a form: target[r, start + j * step] += source[r, j] for j < width where that is in
    0..limit."""
    return inlined_code(f"tileflow_add_rows_{dtype}_{path.name}_{form}", _ROWS, path, _add_rows(dtype, form))


@functools.cache
def fold_rows(dtype: str, path: cpu.Cpu) -> Any:
    """The function `fold_rows(rows, width, start, limit, dilation, taps, source, source_row, source_tap, target, target_row)`:
    see `_fold_rows`; addresses, strides in bytes."""
    return inlined_code(f"tileflow_fold_rows_{dtype}_{path.name}",
                        "rows, width, start, limit, dilation, taps, source, source_row, source_tap, target, target_row", path,
                        _fold_rows(dtype, path))


def _numbers(table: Any) -> tuple[int, ...]:
    return (word_at(table, 0), word_at(table, 1), word_at(table, 2), word_at(table, 3), word_at(table, 4),
            word_at(table, 5), word_at(table, 6), word_at(table, 7), word_at(table, 8), word_at(table, 9),
            word_at(table, 10), word_at(table, 11), word_at(table, 12), word_at(table, 13))


def unfold(copy: Any, size: int, image: int, channels: int, first_row: int, u: Any, at: int, table: Any) -> None:
    """U of the channel planes at address `image` into u[at:], for output rows from `first_row` on."""
    h, w, ow, kw, sh, dh, dw, top, left, phases, depth, pitch, column, step = _numbers(table)
    base = address_of(u)
    for c in range(channels):
        plane = image + c * h * w * size
        for r in range(phases):
            row = first_row * sh + r * dh % sh - top
            if column != 0:
                copy(1, depth, row, h, step, plane, 0, base + (at + c * pitch + r * depth) * size, 0)
                continue
            q0, q1 = within(row, depth, sh, h)
            source = plane + (row + q0 * sh) * w * size
            for kx in range(kw):
                to = at + (c * kw + kx) * pitch + r * depth * ow
                clear(base + to * size, q0 * ow * size)
                clear(base + (to + q1 * ow) * size, (depth - q1) * ow * size)
                copy(q1 - q0, ow, kx * dw - left, w, step, source, sh * w * size, base + (to + q0 * ow) * size,
                     ow * size)


@functools.cache
def fold_planes(dtype: str, path: cpu.Cpu, form: int) -> Any:
    """`fold(image, channels, u, table)`: write to the channel planes at address `image` the sums of what `unfold` read from there."""
    size = itemsize(dtype)
    gather = fold_rows(dtype, path)
    add = add_rows(dtype, path, form)

    def gather_planes(image, channels, u, table):                                                                           # type: ignore
        h, w, ow, kw, sh, dh, dw, top, left, phases, depth, pitch, column, _step = _numbers(table)
        for c in range(channels):
            plane, base = image + c * h * w * size, address_of(u) + c * kw * pitch * size
            if column != 0:
                gather(1, depth, -top, h, 0, 1, base, 0, 0, plane, 0)
                continue
            for r in range(phases):
                row = r * dh % sh - top
                q0, q1 = within(row, depth, sh, h)
                gather(q1 - q0, ow, -left, w, dw, kw, base + (r * depth + q0) * ow * size, ow * size, pitch * size,
                       plane + (row + q0 * sh) * w * size, sh * w * size)

    def add_planes(image, channels, u, table):                                                                              # type: ignore
        h, w, ow, kw, sh, dh, dw, top, left, phases, depth, pitch, column, step = _numbers(table)
        for c in range(channels):
            plane, base = image + c * h * w * size, address_of(u) + c * kw * pitch * size
            for r in range(phases):
                row = r * dh % sh - top
                if column != 0:
                    add(1, depth, row, h, step, base + r * depth * size, 0, plane, 0)
                    continue
                q0, q1 = within(row, depth, sh, h)
                for kx in range(kw):
                    add(q1 - q0, ow, kx * dw - left, w, step, base + (kx * pitch + (r * depth + q0) * ow) * size,
                        ow * size, plane + (row + q0 * sh) * w * size, sh * w * size)

    return gather_planes if gathers(path, form) else add_planes


def gathers(path: cpu.Cpu, form: int) -> bool:
    """Folding writes every element of the rows it meets; else it adds to what is there."""
    return form == 1 and path.masked_moves


HEAD = 14
"""Numbers at the head of a table."""


@functools.lru_cache(1024)
def table(un: Unfolding, channels: int, size: int) -> Const:
    """`Unfolding.numbers`, then the byte offset in U of every row (channel, ky, kx) of the im2col matrix."""
    g = un.g
    channel, ky, kx = np.ogrid[:channels, :g.kh, :g.kw]
    within = (ky % g.phases * un.depth + ky * g.dh // g.sh) * g.ow
    return Const.of(np.concatenate([un.numbers, (((channel * g.kw + kx) * un.pitch + within) * size).ravel()]))
