"""Which models an optimizer updates: what it remembers lies in their networks, and `optimizer.state_dict()` is theirs."""
from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import numpy as np

from ..system.errors import OptionError

_models: WeakSet[Any] = WeakSet()
"""Training models in use."""
_lock = threading.Lock()


def attach(model: Any) -> None:
    """A training model is there, whose `optimizer` may be any."""
    with _lock:
        _models.add(model)


class Bound:
    """What an optimizer has of the model that it updates."""

    def state_dict(self) -> dict[str, np.ndarray]:
        """All that it remembers in the model that it updates: that model's `optimizer_state_dict()`.

        Raises:
            OptionError: no training model has it, or models of several networks.
            TileflowError: the model was not called yet.
        """
        found: dict[str, np.ndarray] = self._model().optimizer_state_dict()
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave: `load_optimizer_state_dict` of the model that it updates.

        Raises:
            OptionError: no training model has it, or models of several networks.
            CheckpointError: the state is empty, PyTorch's own, or of another optimizer or model.
        """
        self._model().load_optimizer_state_dict(state)

    def _model(self) -> Any:
        """A model that it updates: of several of one network one that was compiled."""
        name = type(self).__name__
        with _lock:
            own = [model for model in _models if model.optimizer is self]
        if not own:
            raise OptionError(f"This {name} updates no model yet, so that it has no state: give it to tileflow.training_model first.")
        if len({id(model.source.session) for model in own}) > 1:
            raise OptionError(f"This {name} updates models of {len(own)} networks, each with a state of its own: ask one of them for its "
                              "optimizer_state_dict().")
        return max(own, key=lambda model: model.is_compiled)
