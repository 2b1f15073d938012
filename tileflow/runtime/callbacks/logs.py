"""Figures as hooks are given them."""
from __future__ import annotations

from typing import Any


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
