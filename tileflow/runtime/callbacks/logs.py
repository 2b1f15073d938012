"""Figures as hooks are given them."""
from __future__ import annotations

from typing import Any

from ..history import Epoch


class Logs(dict[str, Any]):
    """Figures by name. What was measured on the test data is `test_loss` and so on, and `val_loss` is another name of
    it."""

    def __missing__(self, name: str) -> Any:
        if name.startswith("val_"):
            return self[measured_name(name)]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(measured_name(name))

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(measured_name(name), default)


def measured_name(name: str) -> str:
    """What a run calls a figure: `test_loss` where Keras and Lightning say `val_loss`."""
    return f"test_{name.removeprefix('val_')}" if name.startswith("val_") else name


def logs_of(record: Epoch, noise_scale: float | None = None) -> Logs:
    """An epoch as callbacks see it: what does not depend on the clock."""
    tested = {"loss": record.test_loss, "accuracy": record.test_accuracy, **record.test_metrics}
    figures = {"loss": record.loss, "accuracy": record.accuracy,
               **{f"test_{name}": x for name, x in tested.items()},
               "learning_rate": record.learning_rate, "loss_scale": record.loss_scale,
               "skipped": record.skipped or None, "gradient_noise_scale": noise_scale}
    return Logs({name: x for name, x in figures.items() if x is not None})
