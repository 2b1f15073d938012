"""How a model's output and its labels are read: what metrics see of them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..system.errors import DataError

Task = Literal["classes", "binary", "numbers"]
Form = Literal["scores", "probabilities", "log_probabilities"]


@dataclass(frozen=True)
class OutputMeaning:
    """What an output means.

    task: one class out of several per label | each column yes or no | numbers.
    form: what the output holds for each class or column.
    axis: the axis of the classes.
    ignore_index: labels of this number do not count.
    """

    task: Task
    form: Form = "scores"
    axis: int = 1
    ignore_index: int | None = None

    def read(self, output: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values [m, classes] and class numbers [m]; or values and targets [rows, columns]. In the output's own type."""
        if self.task != "classes":
            return output.reshape(len(output), -1), labels.reshape(len(labels), -1)
        values = np.moveaxis(output, self.axis, -1).reshape(-1, output.shape[self.axis])
        if labels.shape == output.shape:                             # probabilities, of which the largest is the label
            labels = labels.argmax(axis=self.axis)
        flat = labels.reshape(-1)
        if self.ignore_index is not None:
            counts = flat != self.ignore_index
            values, flat = values[counts], flat[counts]
        return values, flat

    def probabilities(self, values: np.ndarray) -> np.ndarray:
        """Values as probabilities, float64."""
        x = values.astype(np.float64)
        if self.form == "probabilities":
            return x
        if self.form == "log_probabilities":
            return np.exp(x)
        if self.task == "binary":
            small = np.exp(-np.abs(x))
            return np.where(x >= 0, 1.0, small) / (1.0 + small)
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def log_probabilities(self, values: np.ndarray) -> np.ndarray:
        """Values of classes as log-probabilities, float64."""
        x = values.astype(np.float64)
        if self.form == "log_probabilities":
            return x
        if self.form == "probabilities":
            with np.errstate(divide="ignore"):
                return np.log(x)
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    def chosen(self, values: np.ndarray) -> np.ndarray:
        """The class of the largest value (the first of equal ones) [m]; or whether each column is more likely than not [rows, columns]."""
        if self.task == "classes":
            return values.argmax(axis=1)
        return values > (0.5 if self.form == "probabilities" else 0.0)


def accuracy_counts(view: OutputMeaning, output: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """How many predictions are right, and how many there are. A row of several yes-or-no columns is right where all of them are.

    Raises:
        DataError: a yes-or-no target is neither 0 nor 1.
    """
    values, wanted = view.read(output, labels)
    if view.task == "binary":
        return int(np.count_nonzero((view.chosen(values) == truth(wanted)).all(axis=1))), len(wanted)
    return int(np.count_nonzero(view.chosen(values) == wanted)), len(wanted)


def truth(targets: np.ndarray) -> np.ndarray:
    """Targets 0 and 1 as booleans; DataError for others."""
    yes = targets == 1
    if not np.all(yes | (targets == 0)):
        raise DataError(f"Metrics of yes-or-no columns need targets of 0 and 1; there is {targets[~(yes | (targets == 0))][0]}.")
    return yes
