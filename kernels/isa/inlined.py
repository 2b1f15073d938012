"""What bodies of leaves call that Python has no code for: LLVM's, written where it is called."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir


@dataclass(frozen=True)
class Inlined:
    """`emit(builder, *values)` writes the code and gives its value, or None where it has none.

    words: how many whole words it takes, addresses of arrays among them; None: whatever values it is given.
    """

    name: str
    emit: Callable[..., Any]
    words: int | None = None

    def __call__(self, *_args: Any) -> Any:
        raise TypeError(f"{self.name} has code in leaves, and none in Python")


def over_words(count: int) -> Callable[[Callable[..., Any]], Inlined]:
    """A function `emit` of so many words as what bodies call."""
    def made(emit: Callable[..., Any]) -> Inlined:
        return Inlined(emit.__name__, emit, count)
    return made


def outside(module: ir.Module, kind: ir.FunctionType, name: str) -> ir.Function:
    """The module's declaration of a function that is elsewhere."""
    found: ir.Function | None = module.globals.get(name)
    return ir.Function(module, kind, name) if found is None else found
