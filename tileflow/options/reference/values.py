"""What stands in a line besides numbers and texts: words such as `poptorch.OutputMode.Sum`, and objects made by calls; and what they come to."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...system.errors import OptionError


@dataclass(frozen=True)
class Word:
    """A name that stands for a value: `poptorch.OutputMode.Sum`, `torch.half`."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Call:
    """`name(*args, **kwargs)`; the name with its dots."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.name}(…)"


@dataclass(frozen=True)
class Made:
    """What calls in a row make: `poptorch.Stage("B1").ipu(0)` is those of `poptorch.Stage` and of `ipu`."""

    calls: tuple[Call, ...]

    @property
    def kind(self) -> str:
        """The name of the class: Stage."""
        return self.calls[0].name.rpartition(".")[2]

    def __repr__(self) -> str:
        return ".".join(map(repr, self.calls))


ENUMS: dict[str, dict[str, tuple[int | str, Any]]] = {
    "OutputMode": {"Final": (0, "final"), "EveryN": (1, "every_n"), "All": (2, "all"), "Sum": (3, "sum"), "Default": (4, "default")},
    "ReductionType": {"Sum": (0, "sum"), "Mean": (1, "mean"), "NoReduction": (2, None)},
    "MeanReductionStrategy": {"Running": (0, "running"), "Post": (1, "post"), "PostAndLoss": (2, None)},
    "ConnectionType": {"Always": (0, "always"), "OnDemand": (1, "on_demand"), "Never": (2, "never")},
    "SyncPattern": {"Full": (0, "full"), "SinglePipeline": (1, "single_pipeline"), "ReplicaAndLadder": (2, "replica_and_ladder")},
    "HalfFloatCastingBehavior": {"FloatDowncastToHalf": (0, "activation"), "HalfUpcastToFloat": (1, "upcast"), "Default": (2, "activation")},
    "AutoStage": {"SameAsIpu": (0, "same_as_ipu"), "AutoIncrement": (1, "auto_increment")},
    "Liveness": {"AlwaysLive": (0, "always_live"), "OffChipAfterFwd": (1, "off_chip_after_fwd"),
                 "OffChipAfterFwdNoOverlap": (2, "off_chip_after_fwd_no_overlap"), "OffChipAfterEachPhase": (3, "off_chip_after_each_phase")},
    "CommGroupType": {"All": (0, "all"), "Consecutive": (1, "consecutive"), "Orthogonal": (2, "orthogonal"), "NoGrouping": (3, "no_grouping")},
}
"""Members of PopTorch's enums: the value that its files may hold as well, and tileflow's word."""


def member(enum: str, value: Any) -> Any:
    """A member of an enum as tileflow's word: from `poptorch.OutputMode.Sum`, "OutputMode.Sum", "Sum", "sum" or 3; OptionError for anything else."""
    members = ENUMS[enum]
    if isinstance(value, (Word, str)):
        *path, name = (value.text if isinstance(value, Word) else value).split(".")
        if not path or path[-1] == enum:
            for known, (_, word) in members.items():
                if name == known or (isinstance(value, str) and name in (known.lower(), word)):
                    return word
    elif isinstance(value, int) and not isinstance(value, bool):
        for number, word in members.values():
            if number == value:
                return word
    raise OptionError(f"needs a poptorch.{enum} ({', '.join(members)}), not {value!r}.")


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
