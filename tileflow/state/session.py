"""The session owns what outlives a run: weights, running statistics, optimizer states. Plans own no memory."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory import budget
from ..memory.alignment import aligned, blocks
from ..memory.tensor import Tensor, check_reach
from ..system.errors import CheckpointError, OptionError, TileflowError, see
from .turns import Turn

if TYPE_CHECKING:
    from ..graph import State

LASTING = ("parameter", "buffer", "optimizer", "replica")
"""Kinds of states that a checkpoint must hold. replica: the weights and buffers that later replicas have of their own."""


@dataclass(frozen=True)
class StateDeclaration(Tensor):
    """What a session must know of a state to make memory for it; the words are those of `graph.State`."""

    kind: str
    role: str = ""
    owner: str = ""
    group: str = ""
    fill: float = 0.0


@dataclass(frozen=True)
class Part:
    """Of a state that several processes divide among them: its whole shape, the elements of each process, and which of
    them this one is."""

    shape: tuple[int, ...]
    cuts: tuple[slice, ...]
    rank: int


def declared(states: Iterable[State]) -> tuple[StateDeclaration, ...]:
    """A program's states but the hyper-parameters, for which nobody keeps memory between calls."""
    return tuple(StateDeclaration(s.name, s.input.type.dtype, s.input.type.shape, s.kind, s.role, s.owner, s.group,
                                  s.fill)
                 for s in states if s.kind != "scalar")


class Session:
    """Named state memory, shared by the training and inference programs of one model.

    States of one group lie side by side in one buffer (each in whole blocks of elements), in the same order in every group, so
    that an update of many weights is one pass over memory.

    Threads take turns (`turn`): the calls of all models of a session, and everything here that copies or sets states, one at a time.
    """

    def __init__(self) -> None:
        self.version = 0          # changes whenever a weight does: programs rerun what they derived from the old ones
        self.updates = 0          # weight updates done
        self.micro_batches = 0    # training micro-batches done: random streams count them
        self.turn = Turn()
        self.owner: object = None  # what must live as long as the session
        self.ties: tuple[tuple[str, ...], tuple[str, ...]] | None = None   # options tie and untie, which say what the parameters are
        self.trainable: tuple[str, ...] = ()            # option trainable of all trainings, which may make parameters of constants
        self.assigned: dict[str, float] = {}      # what a user gave states that programs may change as well: only another value is written
        # the states of which this is one of several processes that each have a slice, flat
        self.parts: dict[str, Part] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._buffers = 0
        self._kinds: dict[str, str] = {}
        self.cleared: set[str] = set()  # states that weights which were set since the last update have set to zero
        self._rests: dict[str, str] = {}          # by weight, the state that holds the bits which the weight lacks: new weights have none
        self.averages: dict[str, str] = {}  # by weight, the state that holds its average: it begins as the weight is
        self._copies: dict[str, list[str]] = {}   # by weight or buffer, those of later replicas: they begin as what it is, and as what it is set to

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle has: states as arrays of their own, all after the same whole update; nothing that
        must live as long.

        Raises:
            TileflowError: processes divide states among them.
        """
        if self.parts:
            raise TileflowError("With option optimizer_sharded a process has slices of the optimizer's states, which "
                                "are no model to copy or to pickle: take state_dict and optimizer_state_dict in all "
                                "processes."
                                f"{see('distributed')}")
        held = dict(self.__dict__, owner=None)
        held["_arrays"] = self.turn.hold(lambda: {name: array.copy() for name, array in self._arrays.items()})
        return held

    def __setstate__(self, held: dict[str, Any]) -> None:
        """States lie side by side as they did: programs rely on it."""
        self.__dict__.update(held)
        ends: dict[int, int] = {}
        for name, (buffer, at) in self._places.items():
            a = self._arrays[name]
            ends[buffer] = max(ends.get(buffer, 0), at + blocks(a.size) * a.itemsize)
        memory = {buffer: aligned(size) for buffer, size in ends.items()}
        for name, (buffer, at) in self._places.items():
            a = self._arrays[name]
            self._arrays[name] = memory[buffer][at:at + a.nbytes].view(a.dtype).reshape(a.shape)
            self._arrays[name][...] = a

    def declare(self, states: Iterable[StateDeclaration], initial: Mapping[str, np.ndarray] | None = None) -> None:
        """Make memory for the states that have none yet: copied from `initial`, or full of what the state says it starts with.

        Raises:
            OptionError: a state exists with another element type or shape (models of one network share its weights).
            DataError: an initial number is beyond the reach of the state's type.
        """
        groups: dict[str, list[StateDeclaration]] = {}
        for state in states:
            if state.name in self._arrays:
                self._check(state)
            else:
                groups.setdefault(f"{state.group or state.kind}/{state.dtype}", []).append(state)
        for members in groups.values():
            buffer = aligned(sum(s.padded_nbytes for s in members))
            at = 0
            for s in members:
                self._arrays[s.name] = buffer[at:at + s.nbytes].view(s.numpy).reshape(s.shape)
                self._places[s.name] = self._buffers, at
                self._kinds[s.name] = "replica" if s.role == "replica" else s.kind
                if s.role == "remainder":
                    self._rests[s.owner] = s.name
                if s.role == "average":
                    self.averages[s.owner] = s.name
                at += s.padded_nbytes
                if initial is not None and s.name in initial:
                    check_reach(np.asarray(initial[s.name]), s.dtype, s.name)
                    self._arrays[s.name][...] = initial[s.name]
                elif s.fill:                              # the padding around it stays zero
                    self._arrays[s.name][...] = s.fill
            self._buffers += 1
        self._declare_copies(s for members in groups.values() for s in members if s.role == "replica")
        for s in (s for members in groups.values() for s in members if s.role == "average"):
            self._arrays[s.name][...] = self._arrays[s.owner]

    def _declare_copies(self, states: Iterable[StateDeclaration]) -> None:
        for s in states:
            self._copies.setdefault(s.owner, []).append(s.name)
            self._arrays[s.name][...] = self._arrays[s.owner]

    def divide(self, parts: Mapping[str, Part]) -> None:
        """Of these states, which are declared, this process has slices."""
        self.parts |= parts

    def whole_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a state, of which there may be a slice here."""
        return self.parts[name].shape if name in self.parts else self._arrays[name].shape

    def nbytes_of(self, name: str) -> int:
        """The bytes of a whole state."""
        return math.prod(self.whole_shape(name)) * self._arrays[name].itemsize

    def write(self, name: str, whole: np.ndarray) -> None:
        """Overwrite what there is of a state with that of a whole array. Within a turn."""
        part = self.parts.get(name)
        self.cleared.discard(name)
        self._arrays[name][...] = whole if part is None else whole.reshape(-1)[part.cuts[part.rank]]

    def clear(self, states: Iterable[str]) -> None:
        """What there is of these states is zero. Within a turn."""
        for name in states:
            self._arrays[name][...] = 0

    def _check(self, state: StateDeclaration) -> None:
        have = self._arrays[state.name]
        if have.dtype != state.numpy or have.shape != state.shape:
            what = "types of moments and optimizer_sharded" if state.kind == "optimizer" else "precision"
            raise OptionError(f"{state.name!r} is {have.dtype}{list(have.shape)} in another model of the same network "
                              f"and would be {state.dtype}{list(state.shape)} here; use the same {what} for all models "
                              "of one network, or load its file again with tileflow.load.")

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        """The live memory of a state: it changes as training goes on, in another thread even while it is read; `snapshot` copies."""
        return self._arrays[name]

    def place(self, name: str) -> tuple[int, int]:
        """Which of the session's buffers a state lies in, and at which byte of it."""
        return self._places[name]

    def names(self, *kinds: str) -> list[str]:
        """Names of the states, of these kinds only where given."""
        return [n for n, k in self._kinds.items() if not kinds or k in kinds]

    def with_rests(self, names: Iterable[str]) -> list[str]:
        """These weights, and the states that hold bits which they lack."""
        return [n for name in names for n in (name, self._rests.get(name)) if n is not None]

    def set(self, name: str, array: np.ndarray) -> None:
        """Overwrite a state.

        Raises:
            KeyError: no such state.
            ValueError: another shape.
            TileflowError: from within a call of this thread.
        """
        target = self._arrays[name]
        array = np.asarray(array)
        if array.shape != target.shape:
            raise ValueError(f"State {name!r} has shape {list(target.shape)}, got {list(array.shape)}.")

        self.put({name: array})

    def assign(self, name: str, value: float) -> None:
        """Let a state be what a user gave, unless that was given before: what programs made of it stays. Within a turn."""
        if self.assigned.get(name) != value:
            self._arrays[name][...] = value
            self.assigned[name] = value

    def put(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Overwrite states with arrays that fit, all between the same two calls.

        Raises:
            TileflowError: from within a call of this thread.
        """
        def write() -> None:
            for name, array in tensors.items():
                for one in (name, *(copy for copy in self._copies.get(name, ()) if copy not in tensors)):
                    self._arrays[one][...] = array
                    rest = self._rests.get(one)
                    if rest is not None and rest not in tensors:
                        self.clear([rest])
                        self.cleared.add(rest)
            self.version += 1
        self.turn.change(write)

    def lasting(self) -> dict[str, np.ndarray]:
        """Everything that a checkpoint must hold, as far as it is here (`parts`): the arrays themselves, which stand
        still within `turn.hold`."""
        return {n: self._arrays[n] for n in self.names(*LASTING)}

    def snapshot(self, *kinds: str) -> dict[str, np.ndarray]:
        """Copies of the states of these kinds (by default of all that a checkpoint must hold), all after the same whole update."""
        names = self.names(*(kinds or LASTING))
        budget.require(sum(self._arrays[n].nbytes for n in names), "A copy of the weights", "close other programs")
        return self.turn.hold(lambda: {n: self._arrays[n].copy() for n in names})

    def restore(self, tensors: Mapping[str, np.ndarray], *, updates: int, micro_batches: int) -> None:
        """Take a checkpoint's tensors over; nothing changes unless all of them fit.

        Raises:
            CheckpointError: a tensor is missing or has another shape or element type.
        """
        wanted = self.names(*LASTING)
        for name in wanted:
            if name not in tensors:
                raise CheckpointError(f"The checkpoint has no tensor {name!r}: it belongs to another model or optimizer; start without --resume.")
            have, dtype, shape = tensors[name], self._arrays[name].dtype, self.whole_shape(name)
            if have.shape != shape or have.dtype != dtype:
                raise CheckpointError(f"Checkpoint tensor {name!r} is {have.dtype}{list(have.shape)}, the model needs "
                                      f"{dtype}{list(shape)}: it belongs to another model or precision.")

        def write() -> None:
            for name in wanted:
                self.write(name, tensors[name])
            self.updates, self.micro_batches = updates, micro_batches
            self.version += 1
        self.turn.change(write)
