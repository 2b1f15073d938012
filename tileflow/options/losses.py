"""Kinds of options about losses: one by its name or one for each output, and weights of classes."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .kinds import Choice, Number, Numbers, Range


@dataclass(frozen=True)
class ClassWeights(Numbers):
    """Weights of classes, or the word balanced."""

    metavar = "X,X|balanced"

    @property
    def expected(self) -> str:
        return f"{super().expected}, or the word balanced"

    def check(self, value: Any) -> Any:
        return value if value == "balanced" else super().check(value)

    def parse(self, text: str) -> Any:
        return text if text == "balanced" else super().parse(text)

    def text(self, value: Any) -> str:
        return value if isinstance(value, str) else super().text(value)


@dataclass(frozen=True)
class LossNames(Choice):
    """A loss by name; or a mapping (as text: OUTPUT=LOSS,OUTPUT=LOSS*FACTOR) from outputs to theirs."""

    @property
    def metavar(self) -> str:          # type: ignore[override]
        return f"{super().metavar}|OUTPUT=LOSS,..."

    @property
    def expected(self) -> str:
        return f"{super().expected}, or a table of outputs and their losses, such as boxes=l1,classes=cross_entropy*0.5"

    def check(self, value: Any) -> str:
        if isinstance(value, str) and "=" not in value:
            return super().check(value)
        pairs = value.items() if isinstance(value,
                                            Mapping) else (word.rpartition("=")[::2] for word in str(value).split(","))
        found = {}
        for output, loss in pairs:
            if not isinstance(output, str) or not isinstance(loss, str):
                raise ValueError
            if not (output := output.strip()) or output in found or "," in output:
                raise ValueError
            name, factor, times = loss.partition("*")
            number = Number(Range(above=0)).check(float(times)) if factor else 1.0
            found[output] = super().check(name.strip()) + (f"*{number!r}" if number != 1 else "")
        if not found or "auto" in "".join(found.values()):
            raise ValueError
        return ",".join(f"{output}={loss}" for output, loss in found.items())


def losses_by_output(text: str) -> dict[str, tuple[str, float]]:
    """The losses of several outputs, and how much each counts, by the option's text; empty where it names a single
    loss."""
    pairs = (word.rpartition("=")[::2] for word in text.split(",") if "=" in text)
    return {output: (name, float(times or 1)) for output, loss in pairs for name, _, times in [loss.partition("*")]}
