"""What is known about one option, declared once: the source of its flag, checks, help, uses and pages; and all of them, found by any name."""
from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..system.errors import OptionError
from ..system.text import shown
from .kinds import Kind
from .needs import Need, With
from .registries import Registry
from .verbs import MODELS, RUNS, SIMULATED, TRAINING


@dataclass(frozen=True)
class Group:
    """Options that belong together, and what is true of those that do not say otherwise; the fields are those of a declaration."""

    title: str
    verbs: tuple[str, ...]
    for_training: bool = False
    free: bool = False
    of_machine: bool = False


GROUPS = {
    "batching": Group("Batching", ("train", "infer", *SIMULATED, *MODELS)),
    "training": Group("Training", TRAINING, for_training=True),
    "optimizer": Group("Optimizer", TRAINING, for_training=True, free=True),
    "data": Group("Data", ("train", "infer")),
    "execution": Group("Execution over several IPUs (what is computed does not depend on it)",
                       ("train", *SIMULATED, *MODELS), free=True),
    "machine": Group("Tile machine (what train computes does not depend on it, but for serialized_matmul)", SIMULATED,
                     free=True, of_machine=True),
    "run": Group("Run", RUNS),
}
"""Groups of options; an options file may use their names as tables. Free are those whose numbers do not follow from the option, or
from what is compared itself: the optimizer."""
MODEL_TABLE = "model"
"""A table that an options file may hold and that is no group: a run folder's file names the run's model there."""


@dataclass(frozen=True)
class Declaration:
    """One option."""

    name: str
    group: str
    default: Any
    kind: Kind
    help: str
    optional: bool
    """It may be None."""
    aliases: tuple[str, ...]
    """Names that it had before, or has elsewhere too, taken wherever its name is."""
    known_as: tuple[str, ...]
    """What other tools and people call it, for the sentence on a name that is none."""
    common: bool
    """Most runs set it, so that a command's --help shows it; the others stand in --help all."""
    verbs: tuple[str, ...]
    """The verbs that use it."""
    commands: tuple[str, ...]
    """Of these the ones whose command uses it, and whose function does not: it returns its results, and calls what it is given as progress."""
    for_training: bool
    """It says nothing about inference, where a verb has the choice."""
    needs: tuple[Need, ...]
    """What else must be so for it to have an effect."""
    neutral: Any
    """A value that may be given to every verb, for it is so everywhere; None: there is none."""
    free: bool
    """A resumed run may change it: the numbers do not follow from it, or what follows from it is compared itself."""
    recorded: bool
    """A run's folder keeps it."""
    of_machine: bool
    """It is about the tile machine, and to be given with one."""
    machine_alone: bool
    """A compiled program knows nothing of it: what differs in no more shares the program."""
    of_files: bool
    """It says how an ONNX file is read or written, and nothing of a network of layers."""

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return _flag(self.name)

    @property
    def old_flags(self) -> tuple[str, ...]:
        """The flags of the names that it had before."""
        return tuple(map(_flag, self.aliases))

    @property
    def expected(self) -> str:
        return self.kind.expected + (" or None" if self.optional else "")

    def check(self, value: Any) -> Any:
        """The value in its normal form; OptionError where it is not one."""
        if value is None and self.optional:
            return None
        try:
            return self.kind.check(value)
        except ValueError:
            raise OptionError(f"Option {self.name} must be {self.expected}, not {shown(value)}.") from None

    def parse(self, text: str) -> Any:
        """A command-line word to a checked value; OptionError where it is not one."""
        try:
            value = self.kind.parse(text)
        except ValueError:
            raise OptionError(f"Option {self.name} ({self.flag}) must be {self.kind.expected}, not {shown(text)}.") from None
        return self.check(value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def declared(group: str, default: Any, kind: Kind, help: str, *, optional: bool = False, common: bool = False,
             aliases: tuple[str, ...] = (), known_as: tuple[str, ...] = (), verbs: tuple[str, ...] | None = None,
             commands: tuple[str, ...] = (), of: Registry | None = None, needs: tuple[Need, ...] = (),
             for_training: bool | None = None, free: bool | None = None, of_machine: bool | None = None,
             neutral: Any = None, recorded: bool = True, machine_alone: bool = False, of_files: bool = False) -> Any:
    """Declare an option as a field of a dataclass: a `Declaration`, in which what is None is as the group says.

    Args:
        verbs: without `commands`, which are added.
        of: the registry whose names the option counts with where they say so; "{whose}" in the help stands for them.
    """
    checked, its = default if default is None else kind.check(default), GROUPS[group]
    return field(default_factory=lambda: checked, metadata={"of": of, "declaration": {
        "group": group, "default": checked, "kind": kind, "help": help, "optional": optional, "aliases": aliases,
        "known_as": known_as, "common": common, "verbs": (*(its.verbs if verbs is None else verbs), *commands),
        "commands": commands, "for_training": its.for_training if for_training is None else for_training, "needs": needs,
        "neutral": neutral, "free": its.free if free is None else free, "recorded": recorded,
        "of_machine": its.of_machine if of_machine is None else of_machine, "machine_alone": machine_alone,
        "of_files": of_files}})


def _made(field: dataclasses.Field[Any]) -> Declaration:
    """The declaration of a field, which knows its name now."""
    made, of = Declaration(field.name, **field.metadata["declaration"]), field.metadata["of"]
    if of is None:
        return made
    needs = made.needs if of.late else (With(of.option, of.having(made.name)), *made.needs)
    return dataclasses.replace(made, help=made.help.replace("{whose}", of.whose(made.name)), needs=needs)


_STOP = "train some epochs, look at result.history, and go on bit for bit with resume=True and more epochs, or stop there"
NOT_YET = dict.fromkeys(("early_stopping", "early_stopping_patience", "patience"), _STOP) | {
    "callbacks": f"reporter takes an object that is told of every call and epoch; to steer, {_STOP}"}
"""What other tools have and tileflow has not, and what to do without it."""


class Declarations(Mapping[str, Declaration]):
    """The declarations of a class's options by name, in its order."""

    def __init__(self, made: Iterable[Declaration]) -> None:
        self._by_name = {d.name: d for d in made}
        self._current = {old: d.name for d in self._by_name.values() for old in d.aliases}
        self._known_as = {other: d.name for d in self._by_name.values() for other in d.known_as}

    @classmethod
    def of(cls, options: type) -> Declarations:
        """Those of a dataclass whose fields are all `declared`."""
        return cls(map(_made, dataclasses.fields(options)))

    def __getitem__(self, name: str) -> Declaration:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def now(self, name: str) -> str:
        """What an option is called now, by any name that it has or had; a name that is none stays as it is."""
        return self._current.get(name, name)

    def find(self, name: str) -> Declaration:
        """The declaration of what is or was called `name`; OptionError with the nearest names where there is none."""
        found = self._by_name.get(self.now(name))
        if found is None:
            if name.lower() in NOT_YET:
                raise OptionError(f"There is no option {name!r} yet; {NOT_YET[name.lower()]}.")
            near = self.near(name)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(self)}."
            raise OptionError(f"There is no option {name!r}; {hint}")
        return found

    def near(self, name: str) -> list[str]:
        """Options that somebody may have meant by a name that is none: what others call it, else what is spelled alike."""
        known = self._known_as.get(name.lower())
        return [known] if known is not None else difflib.get_close_matches(name, self, n=3)

    def renamed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Options by what they are called now; names that are none stay as they are. OptionError where one is set by two of its names."""
        current: dict[str, Any] = {}
        for name, value in values.items():
            now = self.now(name)
            if now in current:
                raise OptionError(f"Option {now} is set twice: it is also called {', '.join(self[now].aliases)}.")
            current[now] = value
        return current
