"""Which tensors of a file become states, and of which kind."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileflow.graph import State, Value
from tileflow.system.errors import OptionError

from .parameters import ResolvedModel, listed, matches, quantized_weights, verdicts
from .parameters.messages import BEFORE, HAS_NO_GRADIENT


class ImportedStates:
    """The states of one import: what the rules (`parameters/rules.py`) call a parameter or a buffer, and what the user wants trained.

    `freeze` and `trainable` are name patterns. A frozen parameter is not trained. What `trainable` fits is trained in any case; a pattern that
    fits constants and no parameter makes them parameters, Constant nodes included.
    """

    def __init__(self, model: ResolvedModel, freeze: Sequence[str] = (), trainable: Sequence[str] = ()) -> None:
        self.model, self.freeze, self.trainable = model, tuple(freeze), tuple(trainable)
        self.arrays: dict[str, np.ndarray] = {}
        """The elements of every state made so far, by name."""
        self.verdicts = verdicts(model, model.ties)
        self.views = model.ties.views
        self._forced = self._made_parameters()

    def _made_parameters(self) -> set[str]:
        kinds = {name: verdict.kind for name, verdict in self.verdicts.items()}
        forced = set()
        for pattern in self.trainable:
            fitting = [name for name in kinds if self.model.ties.fits(name, (pattern,))]
            if not any(kinds[name] == "parameter" for name in fitting):
                forced |= {name for name in fitting if kinds[name] == "constant"}
        return forced

    def __contains__(self, name: str) -> bool:
        """The tensor `name` of the file becomes a state where it is read as a value."""
        if name in self.views:
            return self.views[name].base in self
        verdict = self.verdicts.get(name)
        return verdict is not None and (verdict.kind != "constant" or name in self._forced)

    def is_buffer(self, name: str) -> bool:
        """The tensor `name` holds running statistics."""
        return self.verdicts[name].kind == "buffer"

    def trains(self, name: str) -> bool:
        """The tensor `name` becomes a parameter that is trained; of one that holds another's elements that is asked."""
        name = self.views[name].base if name in self.views else name
        fits = self.model.ties.fits
        return name in self and not self.is_buffer(name) and (fits(name, self.trainable) or not fits(name, self.freeze))

    def state(self, name: str, value: Value, array: np.ndarray, group: str = "") -> State:
        """The state for the tensor `name`, read through `value`, holding `array` at first, among others of its kind and `group`."""
        self.arrays[name] = array
        return State(name, "buffer" if self.is_buffer(name) else "parameter", value, trainable=self.trains(name), group=group,
                     called=self.model.ties.called.get(name, ""), aliases=self.model.ties.aliases.get(name, ()))

    def check_patterns(self) -> None:
        """Raise OptionError for a pattern that matches no weight."""
        for pattern in (*self.freeze, *self.trainable):
            if not any(self.model.ties.fits(name, (pattern,)) for name in self.arrays):
                self._check_quantized(pattern)
                names = [self.model.ties.called.get(n, n) for n in self.model.tensors if n in self.arrays and self.verdicts[n].kind != "buffer"]
                raise OptionError(f"the pattern '{pattern}' matches no weight; the weights are {listed(names)}.")

    def _check_quantized(self, pattern: str) -> None:
        """Raise OptionError where what a pattern names is stored as integers."""
        fitting = [one for one in quantized_weights(self.model) if matches(one.name, (pattern,))]
        if fitting:
            raise OptionError(f"the pattern '{pattern}' names weights that the file stores as {fitting[0].dtype}, which {HAS_NO_GRADIENT}: "
                              f"{listed([one.name for one in fitting])}. {BEFORE}")
