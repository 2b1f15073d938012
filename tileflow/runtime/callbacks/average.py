"""The averages of weights that an optimizer keeps, at the end of a run."""
from __future__ import annotations

from ..averages import averages
from .base import Callback
from .logs import Logs


class AveragedWeights(Callback):
    """A run whose optimizer keeps averages of its weights ends with these: they are what is measured on the way, and
    what trained files and the result have. The run's checkpoint has the weights as well, to go on from."""

    def on_train_end(self, logs: Logs) -> None:
        session = self.run.model.source.session
        if found := averages(session):
            session.put(found)
            self.run.say("The weights are their averages; running statistics are those of the training.")
