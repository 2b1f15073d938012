"""How gathered pixels meet the weights, a run of sums at a time: in bfloat16 tiles (tiled.py), or in vectors that sum in float32."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import cpu, tiled
from ..amx import SIDE, TERMS, closer, opener
from ..call import In, Out, Work
from ..half import stored, summed
from ..inner import register_jitable
from ..micro import TILES, columns, outer
from ..vector import itemsize
from .geometry import FLOPS_PER_NS, UNITS
from .last import weight_panels
from .panels import Panels, converted
from .sites import Sites, phase_taps, taps_before

SHORT = 256
"""Products of a run in vectors: a panel of them fills half of the first-level cache."""
PIXELS, COLUMNS = 96, 512
"""Pixels and output channels of a block in vectors, at most about."""


@dataclass(frozen=True)
class Way:
    """Products of gathered pixels of `dtype` ("f4", "f2" or "b2") with weights, on a CPU path, in `tiles` or in vectors."""

    dtype: str
    path: cpu.Cpu
    tiles: bool

    @property
    def element(self) -> str:
        """What pixels are gathered as: vectors want float32."""
        return self.dtype if self.tiles else summed(self.dtype)

    @property
    def side(self) -> int:
        """Output channels of a panel of weights."""
        return SIDE if self.tiles else columns("f4", self.path)

    @property
    def depth(self) -> int:
        """Products of a run."""
        return tiled.DEPTH if self.tiles else SHORT

    @property
    def row(self) -> int:
        """Bytes from one gathered pixel to the next."""
        return self.depth * itemsize(self.element) + tiled.SKEW

    @property
    def flops_per_ns(self) -> float:
        """Rough speed of one core."""
        return tiled.FLOPS_PER_NS[tiled.products(self.dtype, self.path)] if self.tiles else FLOPS_PER_NS[self.path.name]

    def blocks(self, s: Sites) -> tuple[int, int]:
        """Pixels and output channels of a unit of range."""
        if self.tiles:
            return tiled.blocks(s.phase_pixels, s.oc)
        tall, down = TILES[self.path.name].rows, max(1, -(-s.phase_pixels // PIXELS))
        across = max(-(-s.oc // COLUMNS), min(-(-UNITS // (down * s.groups * s.phases)), max(1, s.oc // (4 * self.side))))
        return -(-s.phase_pixels // (down * tall)) * tall, -(-s.oc // (across * self.side)) * self.side

    def scratch_bytes(self, pixels: int) -> int:
        """What a worker needs to multiply so many gathered pixels."""
        return -(-tiled.scratch_bytes(self.dtype, self.path, pixels) // 64) * 64 if self.tiles else 0

    def words(self, s: Sites) -> int:
        """float32 words of the laid-out weights. Each phase has panels of its own in tiles; vectors read a part of one panel."""
        panels = s.groups * -(-s.oc // self.side)
        if not self.tiles:
            return panels * s.taps * s.c * self.side
        return panels * sum(tiled.panel_bytes(self.dtype, self.path, taps * s.c) // 4 for taps in s.taps_of_phases if taps)

    def panels(self, s: Sites, order: tuple[int, int]) -> Panels:
        """How weights are laid out; `order`: as for `last.weight_panels`."""
        words, count = self.words(s), s.groups * s.oc * s.c * s.taps
        target = Out(0, (words,))
        if not self.tiles:
            wide = Work("wide", (count,), "f4")
            laid = weight_panels(s, "f4", self.path, order, self.side).onto(target, wide)
            return Panels(words, (converted(In(0, (count,)), self.dtype, wide, "f4"), *laid))
        plain, panels = weight_panels(s, self.dtype, self.path, order, SIDE), s.groups * -(-s.oc // SIDE)
        ordered = Work("ordered", (plain.elements,), stored(self.dtype))
        calls, first, into = plain.onto(ordered), 0, 0
        for taps in s.taps_of_phases:
            if taps:
                calls.append(tiled.pack_call(self.dtype, self.path, ordered, target, SIDE, taps * s.c, False, first * s.c * SIDE, SIDE,
                                             s.taps * s.c * SIDE, panels, into))
                into += panels * tiled.panel_bytes(self.dtype, self.path, taps * s.c)
                first += taps
        return Panels(words, tuple(calls))

    def code(self) -> tuple[Any, Any, Any, Any]:
        """The jitables `begin(0)`, `end(0)` around the work of a thread, `place` and `multiply`, for the current path.

        place(sites, phase, c, taps, panels) -> bytes before the first of the phase's `panels` panels, and from each to the next.
        multiply(count, width, k, p, deep, a, a_row, b, panel, c, c_row, adding, scratch): terms p .. p + deep, of k, of a block of sums
        C (float32); `a` is the address of these terms, `b` that of the panel of the first column.
        """
        return _tiles(self.dtype, self.path) if self.tiles else _vectors(self.path)


def _tiles(dtype: str, path: cpu.Cpu) -> tuple[Any, Any, Any, Any]:
    run, header = register_jitable(tiled.tile_run(dtype)), register_jitable(tiled.header_bytes)
    step, size, depth = tiled.step_bytes(dtype, path), itemsize(dtype), tiled.DEPTH

    @register_jitable
    def panel_bytes(k: int) -> int:
        return header(k) + (k + TERMS - 1) // TERMS * step if k else 0

    @register_jitable
    def place(sites, phase, c, taps, panels):                                                                               # type: ignore
        at = 0
        for before in range(phase):
            at += panels * panel_bytes(phase_taps(sites, before) * c)
        return at, panel_bytes(phase_taps(sites, phase) * c)

    @register_jitable
    def multiply(count, width, k, p, deep, a, a_row, b, panel, c, c_row, adding, scratch):                                  # type: ignore
        run(count, width, deep, a, a_row, size, b + header(k) + p // TERMS * step, b + 4 * (p // depth), panel, c, c_row, adding, scratch)

    return opener(), closer(), place, multiply


def _vectors(path: cpu.Cpu) -> tuple[Any, Any, Any, Any]:
    kernel, wide = outer("f4"), columns("f4", path)

    @register_jitable
    def nothing(_unused: int) -> None:
        pass

    @register_jitable
    def place(sites, phase, c, taps, panels):                                                                               # type: ignore
        return taps_before(sites, phase) * c * wide * 4, taps * c * wide * 4

    @register_jitable
    def multiply(count, width, k, p, deep, a, a_row, b, panel, c, c_row, adding, scratch):                                  # type: ignore
        for q in range(0, width, wide):
            kernel(count, min(wide, width - q), deep, a, a_row, 4, b + q // wide * panel + p * wide * 4, wide * 4, c + 4 * q, c_row, adding)

    return nothing, nothing, place, multiply
