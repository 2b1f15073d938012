"""From a Program to what runs, for models, the ONNX backend and tests: an Image that an earlier start has kept, or one
that is made (`lowering`)."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ..executable import store
from ..executable.engine import Engine
from ..executable.kernels import addresses
from ..executable.memory import lies_in
from ..kernels.machine import pool
from ..memory.budget import lanes_fit
from ..memory.types import TensorType
from ..state import Session
from ..system.environment import check_environment
from . import budget
from .host import Host, Progress
from .image_key import image_key, program_digest

if TYPE_CHECKING:
    from ..program.program import Program

MOST_PROGRAMS = 8
"""Programs that a model keeps, one for each set of input types; the least recently used goes first."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def kept_engine(program: str, session: Session, initial: Mapping[str, np.ndarray], host: Host,
                final: frozenset[str]) -> Engine | None:
    """An engine for an Image that an earlier start has kept of a program with this digest, whose kernels are in the
    cache; None where there is none that would run as it is. Arguments and errors are those of `make_engine`."""
    check_environment()
    if not keeps(host):
        return None
    image = store.load(image_key(program, pool.start_threads(host.threads), host.arithmetic, final))
    if image is None or (image.lane_bytes and lanes_fit(image.lane_bytes) != image.several):
        return None
    budget.require(budget.needs(image.needs, image.states, session), image.training, image.iterations)
    session.declare(image.states, initial)
    found = addresses(image.kernels) if lies_in(image, session) else None
    return None if found is None else Engine(image, session, found, host.seed)


def keeps(host: Host) -> bool:
    """Whether Images are looked for and kept: not of programs that detect anomalies, nor of one of several
    processes."""
    return store.enabled and not host.detect_anomaly and host.is_alone


def make_engine(program: Program, session: Session, initial: Mapping[str, np.ndarray] | None = None, host: Host | None = None, *,
                final: frozenset[str] = frozenset(), progress: Progress | None = None, kept: bool = True,
                digest: str | None = None) -> Engine:
    """An engine that can run: planned, with room for everything, its states in the session, its kernels compiled; or
    from an Image that an earlier start has kept.

    Args:
        initial: arrays of the states that the session does not have yet; states without one begin as zero.
        final: outputs of which a call keeps the last micro-batch only.
        kept: Images are looked for and kept: not for programs of one time.
        digest: the program's, where somebody has it already.

    Raises:
        OutOfMemoryError: it does not fit, which is known before kernels are compiled.
        OptionError: the session has a state with another type or shape, or the environment lets nothing be compiled.
    """
    check_environment()
    host, initial = host or Host(), initial or {}
    if digest is None and kept and keeps(host):
        digest = program_digest(program)
    found = None if digest is None else kept_engine(digest, session, initial, host, final)
    if found is not None:
        return found
    from .lowering import lowered_engine
    return lowered_engine(program, digest, session, initial, host, final, progress)


class CallTypes:
    """The types of a call's arrays, and whether arrays fit them as they are: so that a call in a loop asks nothing
    else."""

    def __init__(self, types: Sequence[TensorType]) -> None:
        self.types = tuple(types)
        self._wanted = [(t.numpy, t.shape) for t in self.types]

    def fits(self, arrays: Sequence[Any]) -> bool:
        """All are C-contiguous arrays of the very types."""
        if len(arrays) != len(self._wanted):
            return False
        for array, (dtype, shape) in zip(arrays, self._wanted):          # noqa: B905    (the lengths are known, and `strict` takes time)
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
                return False
        return True


class Recent(Generic[K, V]):
    """The things made last, by key: at most `most`, and more as long as all that are there hold `room` bytes at most;
    `held`: how many a thing holds."""

    def __init__(self, most: int = MOST_PROGRAMS, room: int = 0, held: Callable[[V], int] = lambda thing: 0) -> None:
        self._made: OrderedDict[K, V] = OrderedDict()
        self._most, self._room, self._held, self._bytes = most, room, held, 0

    def get(self, key: K, make: Callable[[], V]) -> V:
        """What belongs to the key, made if need be."""
        if key not in self._made:
            self._made[key] = made = make()
            self._bytes += self._held(made)
            while len(self._made) > self._most and (not self._room or self._bytes > self._room):
                self._bytes -= self._held(self._made.popitem(last=False)[1])
        self._made.move_to_end(key)
        return self._made[key]

    def clear(self) -> None:
        self._made.clear()
        self._bytes = 0

    def __contains__(self, key: object) -> bool:
        return key in self._made

    def __len__(self) -> int:
        return len(self._made)

    def values(self) -> Sequence[V]:
        """From the least to the most recently used."""
        return list(self._made.values())
