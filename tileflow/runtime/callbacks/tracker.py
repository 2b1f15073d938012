"""Tools that track runs, by the three functions that they have in common."""
from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from ...system.errors import OptionError
from .base import Callback
from .logs import Logs


class Tracker(Callback):
    """Tells a tool that has init, log and finish, as wandb and trackio have them, what a run comes to.

        Tracker(wandb, project="mnist", name="first")

    It gets the run's options as `config`, loss and learning rate after every so many updates, and all figures of
    evaluations and epochs, each with the update as `step`. What it was told stays with it: a run that goes on from a
    checkpoint tells later steps once more.

    Args:
        tool: the module, or any object with init(**settings), log(figures, step=...) and finish().
        every: updates between two losses.
        settings: for `init`, in place of or besides project (the folder above the run's) and config.
    """

    transient: ClassVar[tuple[str, ...]] = ("open",)

    def __init__(self, tool: Any, every: int = 50, **settings: Any) -> None:
        for name in ("init", "log", "finish"):
            if not callable(getattr(tool, name, None)):
                raise OptionError("Tracker takes what has the functions init, log and finish, as wandb and trackio "
                                  f"have; {tool!r} has no {name}.")
        self.tool, self.every, self.settings = tool, every, settings
        self.open = False

    def __repr__(self) -> str:
        return f"Tracker({getattr(self.tool, '__name__', type(self.tool).__name__)})"

    def on_train_begin(self, logs: Logs) -> None:
        folder = self.run.folder.resolve()
        self.tool.init(**{"project": folder.parent.name or "tileflow", "name": folder.name,
                          "config": self.run.options.to_dict(), **self.settings})
        self.open = True

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        first = self.run.updates - len(logs["losses"]) + 1
        for i in range(-first % self.every, len(logs["losses"]), self.every):
            self.tool.log({"update_loss": float(logs["losses"][i]), "learning_rate": float(logs["learning_rates"][i])},
                          step=first + i)

    def on_evaluate_end(self, logs: Logs) -> None:
        if self.run.updates_in_epoch:                           # at the end of an epoch its figures are all of them
            self.tool.log(dict(logs), step=self.run.updates)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.tool.log({"epoch": epoch + 1, **logs}, step=self.run.updates)

    def on_train_end(self, logs: Logs) -> None:
        self._finish()

    def on_exception(self, error: BaseException) -> None:
        self._finish()

    def _finish(self) -> None:
        if self.open:
            self.open = False
            self.tool.finish()


def _installed(name: str) -> Tracker:
    try:
        return Tracker(import_module(name))
    except ImportError:
        raise OptionError(f"Logs to {name} need its package: pip install {name}.") from None


def wandb() -> Tracker:
    """A tracker that tells Weights & Biases."""
    return _installed("wandb")


def trackio() -> Tracker:
    """A tracker that tells trackio."""
    return _installed("trackio")
