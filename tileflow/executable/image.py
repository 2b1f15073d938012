"""The Image: a program as the driver runs it, in addresses that are still to come, with nothing of the graph that it
was made from.

An address in an Image is virtual: the number of a segment and a byte offset in it. Whoever runs the Image has memory
for the segments, puts its address in their number's place, and sets the words that hold the seed. That is all there is
to do before a call.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..memory.tensor import Tensor
from ..state import StateDeclaration

SEGMENT_BITS = 40
"""Of an address: those of the offset in its segment, whose number stands above them. Number 0 is no segment: what lies
there is no address."""
WORDS = 1
"""The number of the segment that the Image's own words are."""
MICRO, UPDATE, DONE, LAST, DUE, NAMED = range(6)
"""The first words, which a call sets. MICRO and UPDATE count what it has done; DONE are the updates that it skips, LAST
those after which it ends; DUE says whether what depends on states only runs; from NAMED on they are addresses of the
caller's arrays."""
STREAMS = "\0micro-batches"
"""What the index of the call's first micro-batch is called among the caller's arrays: a name that no tensor has."""
Stage = Literal["step", "gradients", "check", "update"]
"""What rows do for a call, which says what their failing means."""
Kind = Literal["words", "constant", "arena", "stash", "common", "pending", "hyper", "state", "kernel"]
"""What a segment is for (`Segment`)."""


def virtual(segment: int, offset: int = 0) -> int:
    """The address `offset` bytes into a segment."""
    return (segment << SEGMENT_BITS) + offset


@dataclass(frozen=True)
class Segment:
    """Memory that an Image wants `nbytes` of.

    kind: words: the Image's own, relocated; the first. constant: read only, in the order of `Image.constants`. arena,
    stash: what parts compute in and hand on. common: a stash that all processes have, with every micro-batch of a
    turn. pending: a statistic until it is committed. hyper: float64 [updates of a
    call, hyper-parameters]. state: a buffer of the session's (`Image.layout`). kernel: machine code by its `name` in
    the cache.
    """

    kind: Kind
    nbytes: int = 0
    name: str = ""


@dataclass(frozen=True)
class Span:
    """Bytes in memory: from an address on, or from the slot on that a micro-batch has in a ring: address + (index %
    ring) * stride."""

    address: int
    nbytes: int
    stride: int = 0
    ring: int = 1


@dataclass(frozen=True)
class Judged:
    """An operator that is looked at for NaN and infinities: what sentences call it, what of it, and where it is said
    what it made."""

    operator: str
    output: str
    seen: Span


@dataclass(frozen=True)
class Owner:
    """Whose row it is: a part's, or nobody's; and which node's, by its operator and origin, both empty for the host's
    own rows. ahead: of the micro-batch counter."""

    stage: Stage
    part: str
    ahead: int
    operator: str = ""
    origin: str = ""
    judged: Judged | None = None

    def __str__(self) -> str:
        return f"{self.operator} ({self.origin})" if self.operator else "a kernel"


@dataclass(frozen=True)
class RowTable:
    """A table among the words: `count` rows from word `first` on, and whose each is (an index of `Image.owners`; -1:
    nobody's)."""

    first: int
    count: int
    owners: tuple[int, ...]


@dataclass
class Image:
    """A program for so many workers, of one set of input types.

    words: argument blocks, patches, counters and tables of rows. relocations: indices of the words that are addresses.
        seeds: of those that are the seed of random streams.
    constants: bytes, aligned as kernels want them.
    tasks: the tables of a call, the main one first. checks: rows of what refuses an update, each as a table of its own.
    names: the words that a call sets, by the caller's array. loops: words that a call that ended early has left half
        counted.
    kept: of each output, the micro-batches of a call that there is room for.
    states: what the session must have, as they follow each other there. layout: of each which buffer it lies in, and at
        which byte; rows over neighbours were made one on the strength of it.
    scalars: the optimizer's variable hyper-parameters in their order in memory: state -> what the optimizer calls it.
    lane_bytes: those that lanes have of their own, or would have if there were several (`several`); 0: it was no
        question.
    needs: bytes that it takes, by what they are for, but for the states.
    gradients: those that an update reads: called as the weight, the state that each is or "", and where it lies.
    """

    words: np.ndarray
    relocations: np.ndarray
    seeds: np.ndarray
    constants: tuple[np.ndarray, ...]
    segments: tuple[Segment, ...]
    tasks: tuple[RowTable, ...]
    checks: tuple[RowTable, ...]
    owners: tuple[Owner, ...]
    names: dict[str, int]
    loops: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kept: tuple[int, ...]
    states: tuple[StateDeclaration, ...]
    layout: tuple[tuple[int, int], ...]
    scalars: dict[str, str]
    gradients: tuple[tuple[Tensor, str, int], ...]
    workers: int
    several: bool
    lane_bytes: int
    needs: dict[str, int]
    per_update: int
    iterations: int
    training: bool

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one call."""
        return self.per_update * self.iterations

    @property
    def kernels(self) -> tuple[str, ...]:
        """What the cache calls the machine code that it runs."""
        return tuple(s.name for s in self.segments if s.kind == "kernel")
