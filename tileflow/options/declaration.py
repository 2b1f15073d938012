"""What is known about one option, declared once: the source of its flag, checks, help, uses and pages; and all of them,
found by any name."""
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
class OptionGroup:
    """Options that belong together, and what is true of those that do not say otherwise, by a declaration's fields."""

    title: str
    verbs: tuple[str, ...]
    for_training: bool = False
    free: bool = False
    of_machine: bool = False


GROUPS = {
    "batching": OptionGroup("Batching", ("train", "infer", *SIMULATED, *MODELS)),
    "training": OptionGroup("Training", TRAINING, for_training=True),
    "optimizer": OptionGroup("Optimizer", TRAINING, for_training=True, free=True),
    "data": OptionGroup("Data", ("train", "infer")),
    "execution": OptionGroup("Execution over several IPUs (what is computed does not depend on it)",
                             ("train", *SIMULATED, *MODELS), free=True),
    "machine": OptionGroup("Tile machine (what train computes does not depend on it, but for serialized_matmul)",
                           SIMULATED, free=True, of_machine=True),
    "loop": OptionGroup("Training loop (but for overfit it changes when a run ends, not its numbers)", ("train",),
                        free=True),
    "run": OptionGroup("Run", RUNS),
}
"""Groups of options; an options file may use their names as tables. Free are groups that shape no number, and the one
that makes the optimizer, which a resumed run compares itself."""
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
    optional: bool = False
    """It may be None."""
    aliases: tuple[str, ...] = ()
    """Names that it had before, or has elsewhere too, taken wherever its name is."""
    known_as: tuple[str, ...] = ()
    """What other tools and people call it, for the sentence on a name that is none."""
    common: bool = False
    """Most runs set it, so that a command's --help shows it; the others stand in --help all."""
    verbs: tuple[str, ...] = ()
    """The verbs that use it."""
    commands: tuple[str, ...] = ()
    """Of these the ones whose command alone uses it: the function returns its results, and calls what it is given as
    progress."""
    for_training: bool = False
    """It says nothing about inference, where a verb has the choice."""
    of: Registry | None = None
    """The registry whose names it counts with where they say so; "{whose}" in its help stands for them."""
    needs: tuple[Need, ...] = ()
    """What else must be so for it to have an effect."""
    neutral: Any = None
    """A value that may be given to every verb, for it is so everywhere; None: there is none."""
    free: bool = False
    """A resumed run may change it: the numbers do not follow from it, or what follows from it is compared itself."""
    recorded: bool = True
    """A run's folder keeps it."""
    live: bool = False
    """An executable may be loaded with another: calls look at it, and what was compiled knows nothing of it."""
    of_machine: bool = False
    """It is about the tile machine, and to be given with one."""
    machine_alone: bool = False
    """A compiled program knows nothing of it: what differs in no more shares the program."""
    of_files: bool = False
    """It says how an ONNX file is read or written, and nothing of a network of layers."""

    @property
    def is_compiled(self) -> bool:
        """It shapes what a model compiles, or the numbers of its calls."""
        return not self.live and (self.of_files or not {*MODELS}.isdisjoint(self.verbs))

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


def declared(group: str, default: Any, kind: Kind, help: str, *, commands: tuple[str, ...] = (), **facts: Any) -> Any:
    """Declare an option as a field of a dataclass. `facts` are those of `Declaration` that are not as the group, or the
    class itself, has them; `verbs` among them without `commands`, which are added."""
    checked, its = default if default is None else kind.check(default), GROUPS[group]
    told = {"verbs": its.verbs, "for_training": its.for_training, "free": its.free, "of_machine": its.of_machine,
            **facts}
    told["verbs"] += commands
    made = Declaration("", group, checked, kind, help, commands=commands, **told)
    return field(default_factory=lambda: checked, metadata={"declaration": made})


def _named(field: dataclasses.Field[Any]) -> Declaration:
    """The declaration of a field, which knows its name now, and with it what a registry says."""
    made: Declaration = field.metadata["declaration"]
    if (of := made.of) is None:
        return dataclasses.replace(made, name=field.name)
    needs = made.needs if of.late else (With(of.option, of.having(field.name)), *made.needs)
    help = made.help.replace("{whose}", of.whose(field.name))
    return dataclasses.replace(made, name=field.name, help=help, needs=needs)


class Declarations(Mapping[str, Declaration]):
    """The declarations of a class's options by name, in its order."""

    def __init__(self, made: Iterable[Declaration]) -> None:
        self._by_name = {d.name: d for d in made}
        self._current = {old: d.name for d in self._by_name.values() for old in d.aliases}
        self._known_as = {other: d.name for d in self._by_name.values() for other in d.known_as}

    @classmethod
    def of(cls, options: type) -> Declarations:
        """Those of a dataclass whose fields are all `declared`."""
        return cls(map(_named, dataclasses.fields(options)))

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
            near = self.near(name)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(self)}."
            raise OptionError(f"There is no option {name!r}; {hint}")
        return found

    def near(self, name: str) -> list[str]:
        """Options that somebody may have meant by a name that is none: what others call it, else what is spelled
        alike."""
        known = self._known_as.get(name.lower())
        return [known] if known is not None else difflib.get_close_matches(name, self, n=3)

    def renamed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Options by what they are called now; names that are none stay as they are. OptionError where one is set by
        two of its names."""
        current: dict[str, Any] = {}
        for name, value in values.items():
            now = self.now(name)
            if now in current:
                raise OptionError(f"Option {now} is set twice: it is also called {', '.join(self[now].aliases)}.")
            current[now] = value
        return current
