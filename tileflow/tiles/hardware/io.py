"""I/O tiles: tiles that are set aside for what comes from and goes to the host and streaming memory, so that it can pass while the others compute.

Without them tiles wait while a stream passes. With them a tensor may overlap: of the N micro-batches of an update all but two (PopART's
OverlapInnerLoop), or of those of M updates all but two (OverlapLoops), pass while the tiles compute; what takes longer than that is waited for.
I/O tiles hold each tensor that overlaps twice, one that comes and one that is read, and hand it on at what a tile can send a cycle.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ...program.batching import Batching
from .chip import Chip

LOOPS = ("accumulation_loop", "device_iteration_loop")
"""How transfers of the host may overlap, besides not at all."""


@dataclass(frozen=True)
class Transfer:
    """One stream between host and chip, which enters or leaves `part` of the program. `repeats` per weight update."""

    name: str
    to_chip: bool
    nbytes: int
    cycles: int
    repeats: int
    part: str = ""


@dataclass(frozen=True)
class HostIO:
    """What streams of the host take of an update.

    waits: cycles in which tiles wait for them. hidden: cycles of streams that pass meanwhile. shares: of each stream, the part of its transfers that
    overlap. tile_bytes: what each I/O tile holds for them.
    """

    waits: int = 0
    hidden: int = 0
    shares: Sequence[float] = ()
    tile_bytes: int = 0


def host_io(streams: Sequence[Transfer], cycles: int, batching: Batching, training: bool, modes: tuple[Mapping[str, str], Mapping[str, str]],
            io_tiles: int, chip: Chip) -> HostIO:
    """Price the streams of an update whose tiles compute for so many cycles.

    Args:
        modes: of inputs and of outputs, name pattern -> one of LOOPS; the first that fits counts.
    """
    chosen = [next((m for pattern, m in modes[not s.to_chip].items() if fnmatchcase(s.name, pattern)), "") for s in streams]
    shares = [_share(mode, batching, training) for mode in chosen]
    beside = sum(s.cycles * s.repeats * share for s, share in zip(streams, shares, strict=True))
    exposed = sum(s.cycles * s.repeats for s in streams) - beside + max(0.0, beside - cycles * max(shares, default=0.0))
    overlapping = [s for s, share in zip(streams, shares, strict=True) if share]
    handed = sum(hand_over(s.nbytes, io_tiles, chip) * s.repeats for s in overlapping)
    return HostIO(math.ceil(exposed) + handed, math.floor(min(beside, cycles * max(shares, default=0.0))), shares,
                  buffers((s.nbytes for s in overlapping), io_tiles))


def _share(mode: str, batching: Batching, training: bool) -> float:
    """Which part of a tensor's transfers overlap: all but two of those of a loop."""
    inner = batching.gradient_accumulation if training else 1
    turns = {LOOPS[0]: inner, LOOPS[1]: inner * batching.device_iterations}.get(mode, 0)
    return max(0, turns - 2) / turns if turns else 0.0


def computing(chip: Chip, io_tiles: int) -> Chip:
    """The chip of the tiles that compute."""
    return replace(chip, tiles=max(1, chip.tiles - io_tiles)) if io_tiles else chip


def hand_over(nbytes: int, io_tiles: int, chip: Chip) -> int:
    """Cycles in which I/O tiles give a tensor to the others, or take it from them."""
    return math.ceil(nbytes / (max(1, io_tiles) * chip.exchange_bytes_per_cycle))


def buffers(nbytes: Iterable[int], io_tiles: int) -> int:
    """Bytes of each I/O tile for tensors that are there twice."""
    return math.ceil(2 * sum(nbytes) / io_tiles) if io_tiles else 0
