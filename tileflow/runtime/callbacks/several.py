"""Several callbacks as one: each is told of every moment, and what all have come to goes into checkpoints and out of
them."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...collective import alone
from ...system.errors import CheckpointError, OptionError
from ...system.text import one_line
from .base import HOOKS, Callback
from .run import TrainingRun

TENSOR = "callback"
"""What the names of arrays in checkpoints begin with that callbacks keep."""


class Callbacks:
    """The callbacks of a run in their order."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._all: dict[str, Callback] = {}
        self._heard: dict[str, list[Callback]] = {hook: [] for hook in HOOKS}
        self._asking: list[Callback] = []
        self._before: dict[str, dict[str, Any]] = {}
        self._run: TrainingRun | None = None
        self.add(*callbacks)

    def add(self, *callbacks: Callback, first: bool = False) -> None:
        """More of them, behind those that are there. first: each before them, for what others look at.

        Raises:
            OptionError: one is no Callback, or is there already.
        """
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise OptionError(f"callbacks takes objects of tileflow.callbacks.Callback, not {_kind(callback)}.")
            if any(callback is other for other in self._all.values()):
                raise OptionError(f"The callback {_kind(callback)} is given twice.")
            name = type(callback).__name__
            same = sum(key.partition(".")[0] == name for key in self._all)
            self._all[f"{name}.{same}" if same else name] = callback
            for hook, heard in self._heard.items():
                if hook in vars(callback) or getattr(type(callback), hook) is not getattr(Callback, hook):
                    heard.insert(0 if first else len(heard), callback)
            if type(callback).next_update is not Callback.next_update:
                self._asking.append(callback)

    def __iter__(self) -> Any:
        return iter(self._all.values())

    def attach(self, run: TrainingRun) -> None:
        """They are of this run."""
        self._run = run
        for name, callback in self._all.items():
            callback.run = run
            self._before[name] = {n: x for n, x in vars(callback).items() if n != "run"}

    def call(self, hook: str, *told: Any) -> None:
        """Tell each of a moment. One that fails keeps no other from being told, so that all have come equally far; the
        first error is raised then."""
        failed: Exception | None = None
        for callback in self._heard[hook]:
            if self._run is not None:
                self._run.at = callback
            try:
                with alone():                               # the others of a group do not do what callbacks do
                    getattr(callback, hook)(*told)
            except Exception as error:
                failed = failed or error
        if self._run is not None:
            self._run.at = None
        if failed is not None:
            raise failed

    def hear(self, hook: str) -> bool:
        """Somebody wants to know."""
        return bool(self._heard[hook])

    def say(self, sentence: str) -> None:
        """Tell the user something."""
        self.call("on_message", sentence)

    def compiling(self, kernel: str, done: int, total: int) -> None:
        """One more of a model's kernels is ready."""
        self.call("on_compile", kernel, done, total)

    def next_update(self, updates: int) -> int | None:
        """The first update after `updates` at which one of them is to have the word."""
        return min((at for c in self._asking if (at := c.next_update(updates)) is not None and at > updates),
                   default=None)

    # ---- in and out of checkpoints

    def state(self) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]:
        """What each has come to, by its name: in JSON's types, and arrays by the name of a tensor.

        Raises:
            OptionError: a state holds what checkpoints cannot.
        """
        plain: dict[str, dict[str, Any]] = {}
        arrays: dict[str, np.ndarray] = {}
        for key, callback in self._all.items():
            state = callback.state()
            if not isinstance(state, dict) or not all(isinstance(n, str) and _fits(x) for n, x in state.items()):
                raise OptionError(f"Callback {key}: state() must give a dict of numbers, texts, lists of these, None "
                                  f"or arrays by name, not {one_line(repr(state), 200)}.")
            plain[key] = {n: _plain(x) for n, x in state.items() if not isinstance(x, np.ndarray)}
            arrays |= {f"{TENSOR}.{key}.{n}": x for n, x in state.items() if isinstance(x, np.ndarray)}
        return plain, arrays

    def restore(self, where: Any, plain: Mapping[str, Mapping[str, Any]],
                tensors: Mapping[str, np.ndarray]) -> list[str]:
        """Take over what a checkpoint (`where` it is) holds; sentences on what does not go on.

        Raises:
            CheckpointError: a state is not one of its callback.
        """
        said = []
        for key, callback in self._all.items():
            start = f"{TENSOR}.{key}."
            state = {**plain.get(key, {}), **{n.removeprefix(start): x for n, x in tensors.items()
                                              if n.startswith(start)}}
            if key not in plain:
                if callback.state():
                    said.append(f"The checkpoint knows nothing of the callback {key}, which begins anew.")
                continue
            try:
                callback.restore(state)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                raise CheckpointError(f"{where} holds no state of the callback {key}; restore it from a copy or train "
                                      "anew.") from None
        gone = [one_line(key) for key, state in plain.items() if key not in self._all and state]
        return said + [f"The run goes on without the callback {key} that it had." for key in gone]

    def forgetful(self) -> list[str]:
        """Sentences on callbacks that have changed and give no state, so that a resumed run would differ."""
        found = []
        for key, callback in self._all.items():
            cls, before = type(callback), self._before.get(key)
            if before is None or cls.state is not Callback.state or cls.remembered:
                continue
            changed = [n for n, x in vars(callback).items() if n != "run" and n not in cls.transient
                       and _differs(before.get(n), x)]
            if changed:
                del self._before[key]
                given = ", ".join(map(repr, changed))
                found.append(f"Callback {key} changes {', '.join(changed)} and has no state(): where the run is "
                             f"resumed, it begins anew. Give it state() and restore(), or remembered = ({given},).")
        return found


def _kind(value: Any) -> str:
    return one_line(value.__name__ if isinstance(value, type) else type(value).__name__)


def _differs(before: Any, now: Any) -> bool:
    if before is now:
        return False
    try:
        return not bool(before == now)
    except (TypeError, ValueError):
        return True


def _fits(value: Any) -> bool:
    """A checkpoint can hold it."""
    if isinstance(value, (list, tuple)):
        return all(_fits(x) and not isinstance(x, np.ndarray) for x in value)
    return value is None or isinstance(value, (bool, int, float, str, np.generic, np.ndarray))


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return value.item() if isinstance(value, np.generic) else value
