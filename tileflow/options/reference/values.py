"""What stands in a line besides numbers and texts: words such as `poptorch.OutputMode.Sum`, and objects made by calls; and what they come to."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...system.errors import OptionError
from .enums import ENUMS, word


@dataclass(frozen=True)
class Word:
    """A name that stands for a value: `poptorch.OutputMode.Sum`, `torch.half`."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class WrittenCall:
    """`name(*args, **kwargs)`; the name with its dots."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.name}(…)"


@dataclass(frozen=True)
class Made:
    """What calls in a row make: `poptorch.Stage("B1").ipu(0)` is those of `poptorch.Stage` and of `ipu`."""

    calls: tuple[WrittenCall, ...]

    @property
    def kind(self) -> str:
        """The name of the class: Stage."""
        return self.calls[0].name.rpartition(".")[2]

    def __repr__(self) -> str:
        return ".".join(map(repr, self.calls))


def member(enum: str, value: Any) -> Any:
    """A member of an enum as tileflow's word: from the member itself, the word `poptorch.OutputMode.Sum`,
    "OutputMode.Sum", "Sum", "sum" or 3; OptionError for anything else."""
    members = ENUMS[enum]
    if isinstance(value, Enum):
        if isinstance(value, members):
            return word(value)
    elif isinstance(value, (Word, str)):
        *path, name = (value.text if isinstance(value, Word) else value).split(".")
        if not path or path[-1] == enum:
            for known in members:
                if name == known.name or (isinstance(value, str) and name in (known.name.lower(), word(known))):
                    return word(known)
    elif isinstance(value, int) and not isinstance(value, bool):
        for known in members:
            if known.value == value:
                return word(known)
    raise OptionError(f"needs a poptorch.{enum} ({', '.join(m.name for m in members)}), not {value!r}.")


TYPES = {"torch.half": "float16", "torch.float16": "float16", "torch.float": "float32", "torch.float32": "float32"}


def partials(value: Any) -> str:
    """The type of partial sums."""
    found = TYPES.get(value.text if isinstance(value, Word) else f"torch.{value}")
    if found is None:
        raise OptionError("parameter to setPartialsType should be either torch.float or torch.half.")
    return found


def settings(value: Any, kind: str) -> dict[str, Any]:
    """What the calls on `poptorch.TensorLocationSettings()` say, by name; OptionError for anything else or unknown calls.

    A call without an argument means True, as there.
    """
    known = ("minElementsForOffChip", "minElementsForReplicatedTensorSharding", "useOnChipStorage", "useReplicatedTensorSharding", "useIOTilesToLoad",
             "useIOTilesToStore")
    if not isinstance(value, Made) or value.kind != kind or value.calls[0].args or value.calls[0].kwargs:
        raise OptionError(f"needs a poptorch.{kind}(), not {value!r}.")
    found: dict[str, Any] = {}
    for call in value.calls[1:]:
        name = next((k for k in known if k.lower() == call.name.replace("_", "").lower()), None)
        given = [*call.args, *call.kwargs.values()]
        if name is None or len(given) > 1:
            raise OptionError(f"{kind} has {', '.join(known)}, each with one value, not {call.name} with {len(given)}.")
        if not given and name.startswith("minElements"):
            raise OptionError(f"{kind}().{name} needs a number.")
        found[name] = given[0] if given else True
    return found
