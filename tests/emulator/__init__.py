"""Runs compiled leaves in an x86 emulator, so that the paths this machine lacks are executed and checked as well.

    if emulator.available():
        status = emulator.run(leaf, a, b, c)           # as leaf(a, b, c), on an emulated Sapphire Rapids

The process must compile for that processor: `environment(path)` gives the variables to start it with. `python tests/emulator PATH tests/test_x.py …`
runs a test module like that, with every call of a leaf emulated; nothing that was compiled runs natively then. Each array lies against an unmapped
page, so that an access outside of the arguments is found. Tile (AMX) instructions are done by `tiles.py`, all others by Bochs.
"""
from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tileflow.kernels.leaf import Leaf

from .machine import ARENA, ARENA_PAGES, PAGE, Machine, installed
from .tiles import Fault

__all__ = ["Fault", "available", "environment", "machine", "run"]

GARBAGE = 0xA5
_AVX2 = "64bit adx aes avx avx2 bmi bmi2 cmov crc32 cx16 cx8 f16c fma fsgsbase fxsr lzcnt mmx movbe pclmul popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3 xsave"
_AVX512 = f"{_AVX2} avx512f avx512cd avx512vl avx512dq avx512bw"
_FP16 = f"{_AVX512} avx512vnni avx512vbmi avx512vbmi2 avx512bitalg avx512vpopcntdq avx512ifma avx512bf16 avx512fp16"
TARGETS: Mapping[str, tuple[str, str]] = {
    "avx512": ("skylake-avx512", _AVX512),
    "fp16": ("sapphirerapids", _FP16),
    "amx": ("sapphirerapids", f"{_FP16} amx-tile amx-bf16 amx-int8"),
}
"""Processor name and features the compiler targets, by emulated path."""


def available() -> bool:
    """Whether leaves can be emulated here: Linux on x86-64 with `bochscpu-python` and a C compiler."""
    return os.uname().machine == "x86_64" and installed()


def environment(path: str) -> dict[str, str]:
    """Environment variables under which a new process compiles for `path` (a key of `TARGETS`)."""
    name, features = TARGETS[path]
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in features.split())}


@functools.cache
def machine() -> Machine:
    """The process's guest."""
    return Machine()


def run(leaf: Leaf, *args: Any, n: int | None = None, lo: int = 0, worker: int = 0, against: str = "after", seconds: float = 30.0) -> int:
    """Run a leaf over rows lo..n as `Leaf.__call__` does, in the emulator.

    Args:
        against: on which side of each array the unmapped page lies: "after", "before", or "both" for two runs, which must agree.
            On the other side garbage fills the page and must stay.
        seconds: computing time after which the run is given up.

    Raises:
        Fault: the leaf touched memory outside of its arguments (the message names the argument), changed a read-only argument,
            or did something else that a processor refuses.
    """
    if n is None:
        arrays = [a for a, p in zip(args, (p for p in leaf.parameters if p.words), strict=True) if p.cut == "r"]
        n = arrays[0].shape[0] if arrays else 1
    guest = machine()
    results = []
    for side in ("before", "after") if against == "both" else (against,):
        layout = _Layout(leaf, args, side)
        layout.copy_in(guest)
        guest.where = layout.where
        try:
            status = guest.call(leaf.address, (layout.block, lo, n, worker), seconds)
            results.append((status, *layout.results(guest)))
        except Fault as fault:
            raise Fault(f"{leaf.name}({leaf.signature}) over rows {lo}..{n}, page {side} each array: {fault}") from None
    if results[0] != results[-1]:
        raise Fault(f"{leaf.name}({leaf.signature}) over rows {lo}..{n}: the result depends on where the arrays lie")
    layout.copy_out(results[0][1:])
    return results[0][0]


class _Region:
    """Bytes of this process that the guest sees at its own address."""

    def __init__(self, start: int, end: int, names: list[str], writable: bool) -> None:
        self.start, self.end, self.names, self.writable = start, end, names, writable
        self.first = self.offset = 0               # page of the arena, offset in the page run

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def count(self) -> int:
        return -(-self.size // PAGE)

    @property
    def address(self) -> int:
        return ARENA + self.first * PAGE + self.offset


class _Layout:
    """Where in the arena the arguments of one call lie: each between unmapped pages."""

    def __init__(self, leaf: Leaf, args: tuple[Any, ...], against: str) -> None:
        self.words = leaf.block(*args)
        parameters = [p for p in leaf.parameters if p.words]
        arrays = [(f"argument {i} ({parameters[i].dtype}{list(a.shape)})", a) for i, a in enumerate(args) if isinstance(a, np.ndarray)]
        self.regions = _regions(arrays)
        self.regions.append(_Region(self.words.ctypes.data, self.words.ctypes.data + self.words.nbytes, ["the argument block"], False))
        page = 1
        for region in self.regions:
            region.first = page
            if against == "after":
                room = region.size if len(region.names) == 1 else -(-region.size // 8) * 8        # shared bytes keep the alignment of words
                region.offset = region.count * PAGE - room
            page += region.count + 1
        assert page <= ARENA_PAGES, "the arguments are too large for the emulator's arena"
        at = 0
        for p in leaf.parameters:
            if p.is_array:
                self.words[at] = self._guest_address(int(self.words[at]))
            at += p.words
        self.block = self.regions[-1].address

    def _guest_address(self, host: int) -> int:
        for region in self.regions:
            if region.start <= host < region.end:
                return region.address + host - region.start
        return ARENA                                # an empty array: its address is a page that is never mapped

    def copy_in(self, guest: Machine) -> None:
        for region in self.regions:
            pages = self._pages(guest, region)
            pages[:] = GARBAGE
            pages[region.offset:region.offset + region.size] = _bytes(region)
        guest.show([(r.first, r.count, r.writable) for r in self.regions])

    def results(self, guest: Machine) -> list[bytes]:
        """The bytes of each region after the run."""
        found = []
        for region in self.regions[:-1]:
            pages, end = self._pages(guest, region), region.offset + region.size
            if not ((pages[:region.offset] == GARBAGE).all() and (pages[end:] == GARBAGE).all()):
                raise Fault(f"wrote beside {', '.join(region.names)}")
            found.append(pages[region.offset:end].tobytes())
        return found

    def copy_out(self, results: Sequence[bytes]) -> None:
        for region, data in zip(self.regions[:-1], results, strict=True):
            if region.writable:
                _bytes(region)[:] = np.frombuffer(data, np.uint8)

    def _pages(self, guest: Machine, region: _Region) -> np.ndarray:
        return guest.arena[region.first * PAGE:(region.first + region.count) * PAGE]

    def where(self, address: int) -> str:
        """An address in words: how far outside of which argument."""
        near = min(self.regions, key=lambda r: max(r.address - address, address - (r.address + r.size - 1), 0))
        names = ", ".join(near.names)
        if address < ARENA - PAGE or address > ARENA + ARENA_PAGES * PAGE or not near.size:
            return f"{address:#x}"
        if address < near.address:
            return f"{address:#x}, {near.address - address} bytes before {names}"
        if address >= near.address + near.size:
            return f"{address:#x}, {address - near.address - near.size} bytes after the end of {names}"
        return f"{address:#x}, byte {address - near.address} of {names}, which is read-only"


def _bytes(region: _Region) -> np.ndarray:
    """The region as this process sees it."""
    return np.frombuffer((ctypes.c_uint8 * region.size).from_address(region.start), np.uint8)


def _regions(arrays: list[tuple[str, np.ndarray]]) -> list[_Region]:
    """The arrays as regions; arrays that share bytes share a region."""
    regions: list[_Region] = []
    for name, array in sorted(arrays, key=lambda item: item[1].ctypes.data):
        if not array.nbytes:
            continue
        start, writable = array.ctypes.data, bool(array.flags.writeable)
        if regions and start < regions[-1].end:
            last = regions[-1]
            last.end, last.writable = max(last.end, start + array.nbytes), last.writable or writable
            last.names.append(name)
        else:
            regions.append(_Region(start, start + array.nbytes, [name], writable))
    return regions
