"""The handle on a run that callbacks have: what it has come to, and what may be asked of it."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...optim import remembered
from ...options.options import Options
from ...system.errors import OptionError
from ..averages import averages
from ..history import Epoch
from .logs import Logs

if TYPE_CHECKING:
    from ..training_model import TrainingModel

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,99}")
"""What a kept file may be called, without its ending."""
OWN = ("checkpoint", "model")
"""Names that the run itself has."""
RATE = "lr"


class Request(NamedTuple):
    """A file to keep, or to take away. name: without its ending; "" stands for the run's own checkpoint. onnx: the
    model as an ONNX file as well. gone: the files are to be removed."""

    name: str
    onnx: bool = False
    gone: bool = False


@dataclass
class TrainingRun:
    """A run as its callbacks see it.

    model: what is trained, a `TrainingModel`. folder: the run's. epochs: how many there are to be. epoch: the number of
    the epoch at hand, from 0. updates_per_epoch: None where data do not say how many rows they have. metrics: the
    newest figures by name.
    history: the figures of finished epochs.
    measures: names of the figures that epochs have.
    """

    model: TrainingModel
    folder: Path
    options: Options
    say: Callable[[str], None]
    epochs: int = 0
    epoch: int = 0
    updates_in_epoch: int = 0
    updates_per_epoch: int | None = None
    batches: int | None = None
    measures: tuple[str, ...] = ()
    metrics: Logs = field(default_factory=Logs)
    history: list[Epoch] = field(default_factory=list)
    partial: Epoch | None = None
    """The figures of an epoch in the middle of which the run ended early."""
    rates: list[float] = field(default_factory=list)
    """The learning rate of each update, NaN where it is not known."""
    stopped: str | None = None
    """Why the run ends early, once somebody has asked for it."""
    stopped_by: str = ""
    """The callback that asked, with its settings."""
    requests: list[Request] = field(default_factory=list)
    """What is asked for and not done yet."""
    chosen_rates: dict[str, float] = field(default_factory=dict)
    """Learning rates that were set on the way, by what updates call them."""
    tensors: Sequence[Any] = ()
    """The figures of gradients and weights that were measured last (`report.statistics.Tensor`)."""
    example: Callable[[int], np.ndarray] = lambda rows: np.zeros(0)
    """The first rows, so many, of the training data's first input."""
    at: object = None
    """The callback whose hook runs."""

    @property
    def updates(self) -> int:
        """Updates done since the run began."""
        return int(self.model.source.session.updates)

    def stop(self, reason: str) -> None:
        """Let the run end here, as one that has done all its epochs does: after this moment's callbacks, with a
        checkpoint. `reason` completes "The run ended early: …"."""
        if self.stopped is None:
            self.stopped, self.stopped_by = str(reason), repr(self.at) if self.at is not None else ""

    def save(self, name: str = "", onnx: bool = False) -> None:
        """Ask for a checkpoint, which is written once all callbacks of this moment have run, so that it holds all their
        states.

        Args:
            name: the file is `<folder>/<name>.safetensors`, which train(resume=path) goes on from; by default the run's
                own.
            onnx: write `<name>.onnx`, the model with these weights, as well.
        """
        self.requests.append(Request(kept_name(name) if name else "", onnx))

    def discard(self, name: str) -> None:
        """Ask for the files that `save(name)` wrote to be removed, after those that are asked for meanwhile are
        there."""
        self.requests.append(Request(kept_name(name), gone=True))

    @property
    def learning_rate(self) -> float:
        """The rate of the next update (of the first group of weights).

        Set, it holds from the next update on, and the rates of other groups change in proportion; a checkpoint keeps
        it.

        Raises:
            OptionError: it is set, and follows a schedule, which would set it again.
        """
        return float(self.model.optimizer.values(self.updates, self.model.run)[RATE])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        optimizer = self.model.optimizer
        numbers = remembered.numbers(optimizer)
        if RATE not in numbers:
            raise OptionError(f"The learning rate follows {remembered.shown(optimizer, RATE)}, so that nobody else can "
                              "set it: leave the schedule out, or what sets the rate.")
        before = numbers[RATE]
        for role, old in numbers.items():
            if role == RATE or role.endswith(f".{RATE}"):
                new = float(rate) if role == RATE or before == 0.0 else old * (float(rate) / before)
                optimizer.set_number(role, new)
                self.chosen_rates[role] = new

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the weights and buffers by name; averages in place of weights, where the optimizer keeps some."""
        session = self.model.source.session
        return {**session.snapshot("parameter", "buffer"), **averages(session)}

    def load_state_dict(self, tensors: dict[str, np.ndarray]) -> None:
        """Go on with other weights."""
        self.model.load_state_dict(tensors)


def kept_name(name: str) -> str:
    """A name that a kept file may have; OptionError where it may not."""
    if not NAME.fullmatch(name) or name in OWN or name.split(".")[0] in OWN:
        raise OptionError(f"A checkpoint cannot be called {name!r}: letters, digits, and _ . = - within, and not "
                          f"{' or '.join(OWN)}.")
    return name
