"""Metrics by name, and the collector that measures several of them in one pass over the data."""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..system.errors import DataError, OptionError
from .base import Metric, Part
from .classes import F1, Accuracy, Auc, MeanIoU, Perplexity, Top
from .numbers import R2, MeanAbsoluteError, RootMeanSquaredError
from .view import OutputMeaning, Task

Function = Callable[[np.ndarray, np.ndarray], Any]
"""A metric of the user's own: (the model's first output over all rows, the labels) -> a number."""


_ANY_CLASS: tuple[Task, ...] = ("classes", "binary")
METRICS: dict[str, tuple[tuple[Task, ...], Callable[[OutputMeaning], Metric]]] = {
    "accuracy": (_ANY_CLASS, Accuracy),
    "f1": (_ANY_CLASS, lambda v: F1(v, "")),
    "f1_binary": (_ANY_CLASS, lambda v: F1(v, "binary")),
    "f1_macro": (_ANY_CLASS, lambda v: F1(v, "macro")),
    "f1_micro": (_ANY_CLASS, lambda v: F1(v, "micro")),
    "f1_weighted": (_ANY_CLASS, lambda v: F1(v, "weighted")),
    "miou": (_ANY_CLASS, MeanIoU),
    "auc": (_ANY_CLASS, Auc),
    "perplexity": (("classes",), Perplexity),
    "mae": (("numbers",), MeanAbsoluteError),
    "rmse": (("numbers",), RootMeanSquaredError),
    "r2": (("numbers",), R2),
}
"""What each metric is for, and how it is made; `top5` and the like are further ones, of classes."""
BEST = {"loss": "min", "perplexity": "min", "mae": "min", "rmse": "min", "accuracy": "max", "auc": "max", "r2": "max"}
"""Whether the least or the greatest is the best; all of F1 and `top5` are shares, of which the greatest is."""
_TOP = re.compile(r"top_?([1-9]\d{0,5})")


class _Whole(Metric):
    """A user's function of everything: keeps outputs and labels."""

    def __init__(self, name: str, function: Function) -> None:
        self.name, self.function = name, function
        self.outputs: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []

    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        return output.copy(), labels.copy()

    def add(self, *part: np.ndarray) -> None:
        self.outputs.append(part[0])
        self.labels.append(part[1])

    @property
    def held(self) -> int:
        return sum(a.nbytes for a in [*self.outputs, *self.labels])

    def value(self) -> float:
        if len({(x.shape[1:], y.shape[1:]) for x, y in zip(self.outputs, self.labels, strict=True)}) > 1:
            raise DataError(f"The metric {self.name} is a function of all rows together, and the outputs or labels of some are longer than those of "
                            "others: choose metrics by name, or pad the data to measure with to one length.")
        result = np.asarray(self.function(np.concatenate(self.outputs), np.concatenate(self.labels)))
        if result.size != 1 or result.dtype.kind not in "biuf":
            raise OptionError(f"The metric {self.name} must return one number, not {result.dtype}{list(result.shape)}.")
        return float(result.reshape(-1)[0])


def best_is(name: str) -> str | None:
    """`min` or `max`: what is best of a figure by its name; None where nobody knows."""
    return BEST.get(name) or ("max" if name in METRICS or _TOP.fullmatch(name) else None)


def check_names(metrics: Sequence[str | Function], view: OutputMeaning | None, loss: str) -> None:
    """OptionError for a metric that does not exist, does not fit the loss, or comes twice."""
    names = [name_of(m) for m in metrics]
    for metric, name in zip(metrics, names, strict=True):
        if names.count(name) > 1:
            raise OptionError(f"The metric {name} is named twice.")
        if isinstance(metric, str):
            _maker(metric, view, loss)


def name_of(metric: str | Function) -> str:
    """What a metric is called in the results."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", "metric").strip("<>")


def _maker(name: str, view: OutputMeaning | None, loss: str) -> Callable[[OutputMeaning], Metric]:
    top = _TOP.fullmatch(name)
    tasks, make = (("classes",), lambda v: Top(v, int(top[1]))) if top else METRICS.get(name, ((), None))
    if make is None:
        raise OptionError(f"There is no metric {name!r}; choose from {', '.join(METRICS)} and top5 (or another number), "
                          "or give a function (outputs, labels) -> number.")
    if view is None or view.task not in tasks:
        fitting = [n for n, (t, _) in METRICS.items() if view is not None and view.task in t]
        hint = f"those that do are {', '.join(fitting)}" if fitting else "only functions (outputs, labels) do"
        raise OptionError(f"The metric {name} does not fit the loss {loss}; {hint}.")
    return make


def defaults(view: OutputMeaning | None) -> tuple[str, ...]:
    """What is measured without being asked for."""
    return ("accuracy",) if view is not None and view.task in _ANY_CLASS else ()


class Collector:
    """Measures several metrics in one pass."""

    def __init__(self, metrics: Sequence[str | Function], view: OutputMeaning | None, loss: str) -> None:
        check_names(metrics, view, loss)
        self.metrics: dict[str, Metric] = {}
        for m in metrics:
            if isinstance(m, str):
                assert view is not None
                self.metrics[m] = _maker(m, view, loss)(view)
            else:
                self.metrics[name_of(m)] = _Whole(name_of(m), m)

    def parts(self, output: np.ndarray, labels: np.ndarray) -> list[Part]:
        """What each metric has of a batch: the model's first output and the labels."""
        return [metric.part(output, labels) for metric in self.metrics.values()]

    def add(self, parts: Sequence[Part]) -> None:
        """The next batch has these parts."""
        for metric, part in zip(self.metrics.values(), parts, strict=True):
            metric.add(*part)

    def update(self, output: np.ndarray, labels: np.ndarray) -> None:
        """The next batch."""
        self.add(self.parts(output, labels))

    @property
    def held(self) -> int:
        """Bytes that are kept of the data so far."""
        return sum(metric.held for metric in self.metrics.values() if isinstance(metric, Auc | _Whole))

    def values(self) -> dict[str, float | None]:
        """The metrics by name; None where one is not defined for these data."""
        found = {name: metric.value() for name, metric in self.metrics.items()}
        return {name: None if math.isnan(x) else x for name, x in found.items()}
