"""The optimizer of a training model: what of it is compiled in, and what it remembers, in and out."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..optim import Optimizer
from ..optim.optimizer import same_structure
from ..state import Session
from ..system.errors import OptionError
from . import optimizer_state
from .programs import Programs


class ModelOptimizer:
    """The optimizer in use, `current`: its variable attributes may change at any time, all else is compiled in."""

    def __init__(self, optimizer: Optimizer, session: Session, programs: Programs) -> None:
        self.current = optimizer
        self._session, self._programs = session, programs
        self.awaited: Mapping[str, Any] | None = None
        """A state that waits for the model to be compiled."""
        self.forget()

    def forget(self) -> None:
        """Nothing is compiled of one."""
        self._structure: Mapping[str, Any] | None = None
        """What is compiled in."""
        self._fits: tuple[Optimizer | None, int] = None, 0
        """The optimizer, and its changes so far, that was seen to fit that."""

    def compiled_in(self) -> Optimizer:
        """The optimizer, of which a program is now made; OptionError where it does not fit an earlier one's."""
        self.check(self.current)
        self._structure = self.current.structure()
        return self.current

    def replace(self, optimizer: Optimizer) -> None:
        """Use another one from now on (OptionError where it does not fit)."""
        if not isinstance(optimizer, Optimizer):
            raise OptionError("set_optimizer takes an optimizer such as tileflow.optim.SGD(lr=0.1), not "
                              f"{type(optimizer).__name__}.")
        self.check(optimizer)
        self.current = optimizer

    def check(self, optimizer: Optimizer) -> None:
        """OptionError where what is compiled in is not what an optimizer has: its constant attributes, its groups."""
        if self._structure is None or (self._fits[0] is optimizer and self._fits[1] == optimizer.changes):
            return
        same_structure(self._structure, optimizer.structure())
        self._fits = optimizer, optimizer.changes

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all that it remembers, by name (TileflowError before the model is compiled)."""
        states = self._remembered()

        def read() -> dict[str, np.ndarray]:
            self.take_awaited()
            return optimizer_state.collect(self._session, self.current, states)
        return self._session.turn.hold(read)

    def load_state_dict(self, tensors: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, once the model is compiled."""
        optimizer_state.check_form(tensors)
        if self._programs.current is None:
            self.awaited = {name: np.array(value) for name, value in tensors.items()}
        else:
            self._session.turn.change(optimizer_state.load, self._session, self.current, self._remembered(), tensors)

    def take_awaited(self) -> None:
        """The model is compiled: the state that waits for that takes effect."""
        if self.awaited is not None:
            optimizer_state.load(self._session, self.current, self._remembered(), self.awaited)
            self.awaited = None

    def _remembered(self) -> list[str]:
        """Names of its states in the compiled program."""
        return [s.name for s in self._programs.required().engine.image.states if s.kind == "optimizer"]
