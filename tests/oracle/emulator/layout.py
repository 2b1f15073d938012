"""Where the arguments of one call of a leaf lie: each array between pages that nobody may touch.

Memory is anything with `base` (the address of its first page as the leaf sees it), `arena` (its bytes as this process sees them) and
`show(spans)` (make these runs of pages accessible, all others not); the emulator's guest and `guard_pages.Memory` are two kinds.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tileflow.kernels.machine.leaf import Leaf

PAGE = 4096
GARBAGE = 0xA5
SIDES = ("before", "after")


class Fault(Exception):
    """A leaf did something that a processor or an operating system refuses, or changed what it must not."""


class Memory(Protocol):
    base: int
    arena: np.ndarray

    def show(self, spans: list[tuple[int, int, bool]]) -> None:
        """Of the arena, map these runs of pages (first, count, writable) and nothing else."""

    def hide(self) -> None:
        """Let this process write the arena."""


class Region:
    """Bytes of this process that the leaf sees at another address."""

    def __init__(self, start: int, end: int, names: list[str], writable: bool, scratch: bool = False) -> None:
        self.start, self.size, self.names, self.writable, self.scratch = start, end - start, names, writable, scratch
        self.first = self.offset = 0               # page of the arena, offset in the run of pages

    @property
    def count(self) -> int:
        return -(-self.size // PAGE)

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    def bytes(self) -> np.ndarray:
        """The region as this process sees it."""
        return np.frombuffer((ctypes.c_uint8 * self.size).from_address(self.start), np.uint8)

    def place(self, first: int, side: str) -> None:
        """Take pages from `first` on; the page on this side of the bytes is one that nobody may touch."""
        self.first = first
        if side == "after":
            room = self.size if len(self.names) == 1 else -(-self.size // 8) * 8        # shared bytes keep the alignment of words
            self.offset = self.count * PAGE - room


class Layout:
    """The arguments of one call, placed; `block` is the address of the argument block."""

    def __init__(self, memory: Memory, leaf: Leaf, args: Sequence[Any], side: str) -> None:
        self._memory, self._words = memory, leaf.block(*args)
        cuts = [p.cut for p in leaf.takes(args)]
        self.regions = _regions([(f"argument {i} ({a.dtype}{list(a.shape)})", a, cuts[i] == "w") for i, a in enumerate(args)
                                 if isinstance(a, np.ndarray)])
        own = Region(self._words.ctypes.data, self._words.ctypes.data + self._words.nbytes, ["the argument block"], False)
        page = 1
        for region in [*self.regions, own]:
            region.place(page, side)
            page += region.count + 1
        assert page * PAGE <= memory.arena.size, f"{leaf.name}: the arguments take {page} pages, more than the arena has"
        at = 0
        for p in leaf.takes(args):
            if p.is_array:
                self._words[at] = self._moved(int(self._words[at]))
            at += p.words
        self.block = self._address(own)
        memory.hide()
        for region in [*self.regions, own]:
            pages = self._pages(region)
            pages[:] = GARBAGE
            pages[region.offset:region.offset + region.size] = region.bytes()
        memory.show([(r.first, r.count, r.writable) for r in [*self.regions, own]])

    def _address(self, region: Region) -> int:
        return self._memory.base + region.first * PAGE + region.offset

    def _moved(self, address: int) -> int:
        for region in self.regions:
            if region.start <= address < region.end:
                return self._address(region) + address - region.start
        return self._memory.base                   # an empty array lies on a page that nobody may touch

    def _pages(self, region: Region) -> np.ndarray:
        return self._memory.arena[region.first * PAGE:(region.first + region.count) * PAGE]

    def results(self) -> list[bytes]:
        """The bytes of each region after the run.

        Raises:
            Fault: garbage beside one has changed.
        """
        found = []
        for region in self.regions:
            pages, end = self._pages(region), region.offset + region.size
            if not ((pages[:region.offset] == GARBAGE).all() and (pages[end:] == GARBAGE).all()):
                raise Fault(f"wrote beside {region.name}")
            found.append(pages[region.offset:end].tobytes())
        return found

    def copy_out(self, results: Sequence[bytes]) -> None:
        """Give the caller's arrays what the leaf wrote."""
        for region, data in zip(self.regions, results, strict=True):
            if region.writable:
                region.bytes()[:] = np.frombuffer(data, np.uint8)

    def where(self, address: int) -> str:
        """An address in words: how far outside of which argument."""
        if not 0 <= address - self._memory.base < self._memory.arena.size:
            return f"{address:#x}"
        for region in self.regions:
            start = self._address(region)
            if start - PAGE <= address < start:
                return f"{address:#x}, {start - address} bytes before {region.name}"
            if start <= address < start + region.size:
                return f"{address:#x}, byte {address - start} of {region.name}"
            if start + region.size <= address < start + region.size + PAGE:
                return f"{address:#x}, {address - start - region.size} bytes after the end of {region.name}"
        return f"{address:#x}, memory beside the arguments (that of an empty one?)"


def _regions(arrays: list[tuple[str, np.ndarray, bool]]) -> list[Region]:
    """The arrays (name, array, is it a worker's scratch?) as regions; arrays that share bytes share a region."""
    regions: list[Region] = []
    for name, array, scratch in sorted((a for a in arrays if a[1].nbytes), key=lambda item: item[1].ctypes.data):
        start, end, writable = array.ctypes.data, array.ctypes.data + array.nbytes, bool(array.flags.writeable)
        if regions and start < regions[-1].end:
            last = regions[-1]
            last.size, last.writable, last.scratch = max(last.end, end) - last.start, last.writable or writable, last.scratch and scratch
            last.names.append(name)
        else:
            regions.append(Region(start, end, [name], writable, scratch))
    return regions


def rows(leaf: Leaf, args: Sequence[Any], n: int | None) -> int:
    """The end of the range, by default all rows of the first `r` array, as `Leaf.__call__` has it."""
    if n is not None:
        return n
    arrays = [a for a, p in zip(args, leaf.takes(args), strict=True) if p.cut == "r"]
    return arrays[0].shape[0] if arrays else 1


def run_against(memory: Memory, leaf: Leaf, args: Sequence[Any], span: tuple[int, int], sides: Sequence[str],
                call: Callable[[Layout, str], int]) -> int:
    """Call a leaf once for each side of its arrays on which memory ends; all runs must give the same bytes. Its status.

    Raises:
        Fault: see above; the message names the leaf.
    """
    found = []
    for side in sides:
        what = f"{leaf.name}({leaf.signature}) over rows {span[0]}..{span[1]}, no memory {side} its arrays"
        layout = Layout(memory, leaf, args, side)
        try:
            found.append((call(layout, what), *layout.results()))
        except Fault as fault:
            raise Fault(f"{what}: {fault}") from None
    same = [i == 0 or not layout.regions[i - 1].scratch for i in range(len(found[0]))]         # scratch may hold addresses
    if any(a != b for a, b, must in zip(found[0], found[-1], same, strict=True) if must):
        raise Fault(f"{leaf.name}({leaf.signature}) over rows {span[0]}..{span[1]}: the result depends on where its arrays lie")
    layout.copy_out(found[0][1:])
    return found[0][0]
