"""Custom: operators of a user's own, declared by `@tileflow.operator(domain, name)` (docs/custom-operators.md)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..memory.types import TensorType
    from . import functions
    from .declare import forget, operator
    from .marks import compiled, composition, expression, python

_LAZY = {
    "TensorType": "..memory.types",
    "compiled": ".marks",
    "composition": ".marks",
    "expression": ".marks",
    "forget": ".declare",
    "functions": ".functions",
    "operator": ".declare",
    "python": ".marks",
}
"""Where each name lives: whoever asks which operators are declared loads no graph."""
__all__ = ["TensorType", "compiled", "composition", "expression", "forget", "functions", "operator", "python"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name], __name__)
    found = module if name == "functions" else getattr(module, name)
    globals()[name] = found
    return found
