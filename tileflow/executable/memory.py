"""The memory behind an Image's segments, and the Image's words in it."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..memory.alignment import aligned, padded
from ..state import Session
from .image import SEGMENT_BITS, WORDS, Image, Span, virtual


def layout(session: Session, states: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Of each state the number of the buffer it lies in, counted from 0 in order of first use, and the byte at which it
    does."""
    numbers: dict[int, int] = {}
    found = []
    for name in states:
        buffer, offset = session.place(name)
        found.append((numbers.setdefault(buffer, len(numbers)), offset))
    return tuple(found)


def lies_in(image: Image, session: Session) -> bool:
    """Whether a session's states lie as the Image has them."""
    return layout(session, (s.name for s in image.states)) == image.layout


class EngineMemory:
    """What an Engine has of its own (arenas, stashes, statistics that wait, hyper-parameters, words), and where the
    rest is.

    words: the Image's, relocated. segments: by number, the memory that is the engine's own or the Image's; None where
        it is somebody else's.
    """

    def __init__(self, image: Image, session: Session, kernels: Sequence[int], seed: int,
                 common: Callable[[int], np.ndarray | None] | None = None) -> None:
        """`kernels`: the addresses of `image.kernels`. `common`: gives so many bytes that processes have in common, or
        None where they have none."""
        self.segments: list[np.ndarray | None] = [None]
        self._bases = np.zeros(1 + len(image.segments), np.int64)
        buffers: dict[int, int] = {}
        for state, (buffer, offset) in zip(image.states, image.layout, strict=True):
            if buffer not in buffers:
                buffers[buffer] = int(session[state.name].ctypes.data) - offset
        elsewhere = {"state": iter(buffers[b] for b in range(len(buffers))), "kernel": iter(kernels)}
        constants = iter(image.constants)
        shared = [padded(s.nbytes) for s in image.segments if s.kind == "common"]
        memory = common(sum(shared)) if shared and common is not None else None
        pieces = iter([] if memory is None else np.split(memory, np.cumsum(shared)))
        for number, segment in enumerate(image.segments, WORDS):
            if segment.kind in elsewhere:
                self.segments.append(None)
                self._bases[number] = next(elsewhere[segment.kind])
                continue
            if segment.kind == "common" and memory is not None:
                own = next(pieces)
            else:
                own = next(constants) if segment.kind == "constant" else aligned(segment.nbytes)
            self.segments.append(own)
            self._bases[number] = own.ctypes.data
        words = self.segments[WORDS]
        assert words is not None
        self.words = words.view(np.int64)[:len(image.words)]
        self.words[:] = image.words
        at = image.relocations
        self.words[at] = self.real(image.words[at])
        self.words[image.seeds] = seed
        hyper = next(n for n, s in enumerate(image.segments, WORDS) if s.kind == "hyper")
        nbytes = 8 * image.iterations * max(1, len(image.scalars))
        self.hyper = self.bytes_at(Span(virtual(hyper), nbytes)).view(np.float64).reshape(image.iterations, -1)
        """[updates of a call, hyper-parameters]."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return sum(segment.nbytes for segment in self.segments if segment is not None)

    def real(self, addresses: np.ndarray) -> np.ndarray:
        """Virtual addresses (int64) as what they are here; 0 stays 0."""
        return self._bases[addresses >> SEGMENT_BITS] + (addresses & ((1 << SEGMENT_BITS) - 1))

    def bytes_at(self, span: Span, index: int = 0) -> np.ndarray:
        """What lies at a span of memory of the engine's own; `index`: the micro-batch's, counted from its call's
        first."""
        memory = self.segments[span.address >> SEGMENT_BITS]
        assert memory is not None
        at = (span.address & ((1 << SEGMENT_BITS) - 1)) + index % span.ring * span.stride
        return memory[at:at + span.nbytes]
