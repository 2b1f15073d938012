"""The settings of an exploration: every combination of its axes' values, checked before anything is compiled."""
from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..options.kinds import Choice, Range
from ..options.kinds import Integer as Whole
from ..options.options import Options, declarations
from ..options.uses import AXES, check_use
from ..system.errors import OptionError
from ..system.text import shown

MOST = 10_000
"""Settings of an exploration."""
CALLS = 8
"""Micro-batches for each IPU in a call of inference where device_iterations is not given: a pipeline has to be filled and drained."""
_IPUS = Whole(Range(least=1))


@dataclass(frozen=True)
class Setting:
    """One combination. values: of the axes, as tables show them, None where an axis has no effect; options: all that follows from them."""

    training: bool
    options: Options
    values: Mapping[str, Any]


def values_of(name: str, given: Any) -> list[Any]:
    """The values of an axis: those of a list, or the one that was given, each once; OptionError where there is none."""
    values = list(given) if isinstance(given, (list, tuple, range, np.ndarray)) else [given]
    if not values:
        raise OptionError(f"{name} has no value; give one, or several to compare.")
    try:
        return list(dict.fromkeys(values))
    except TypeError:                                                         # tables of constants have no hash
        return [v for i, v in enumerate(values) if v not in values[:i]]


def settings(base: Options, axes: Mapping[str, Any]) -> list[Setting]:
    """Every combination of the axes' values on top of `base`, in the order of AXES; equal ones once.

    Args:
        axes: a value or a list of values by name of AXES. `precision` takes machine_precision's values as well.

    Raises:
        OptionError: a value is wrong, or does not go with another.
    """
    lists = {name: values_of(name, axes[name]) for name in AXES if name in axes}
    count = 1
    for values in lists.values():
        count *= len(values)
    if count > MOST:
        sizes = " x ".join(f"{len(values)} {name}" for name, values in lists.items())
        raise OptionError(f"These are {count:,} settings ({sizes}), and at most {MOST:,} are explored at once; give fewer values.")
    trains = lists.get("training", [False])
    for value in trains:
        if not isinstance(value, bool):
            raise OptionError(f"training must be true, false or a list of both, not {shown(value)}.")
    found: list[Setting] = []
    seen: set[str] = set()
    for combination in itertools.product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        training = bool(chosen.get("training", False))
        if not training:
            chosen = {name: value for name, value in chosen.items()
                      if name not in declarations() or not declarations()[name].for_training}
        changes: dict[str, Any] = {}
        for name, value in chosen.items():
            changes |= _changes(name, value, base, training)
        setting = Setting(training, base.clone(**changes), {name: _shown(chosen.get(name)) for name in lists})
        key = repr((training, setting.options))
        if key not in seen:
            seen.add(key)
            found.append(setting)
    return found


def _changes(name: str, value: Any, base: Options, training: bool) -> dict[str, Any]:
    """The options that a value of an axis stands for."""
    if name == "training":
        return {}
    if name == "ipus":
        return _on_ipus(value, base, training)
    if name == "precision" and value in _words("machine_precision"):
        return {"machine_precision": value}
    if name == "precision":
        return {name: _checked(name, value, [*_words("machine_precision"), *_words(name)])}
    return {name: declarations()[name].check(value)}


def _on_ipus(value: Any, base: Options, training: bool) -> dict[str, Any]:
    try:
        count = _IPUS.check(value)
    except ValueError:
        raise OptionError(f"ipus must be {_IPUS.expected}, not {shown(value)}.") from None
    for name in ("stages", "pipeline_splits", "auto_pipeline"):
        if base.given(name, files=False):
            raise OptionError(f"Option {name} says on how many IPUs the model runs, and so does ipus; leave one of them out.")
    if count == 1:
        return {"strategy": "none", "auto_pipeline": None, "stages": (), "pipeline_splits": ()}
    calls = {} if base.given("device_iterations") else {"device_iterations": CALLS * count}
    return {"strategy": base.strategy if base.strategy != "none" else "pipelined", "auto_pipeline": count, "stages": (), "pipeline_splits": (),
            **({} if training else calls)}


def _words(name: str) -> tuple[str, ...]:
    kind = declarations()[name].kind
    assert isinstance(kind, Choice)
    return kind.words


def _checked(name: str, value: Any, words: Sequence[str]) -> Any:
    """A word of an option; the sentence on a wrong one names those of the axis."""
    try:
        return declarations()[name].check(value)
    except OptionError:
        raise OptionError(f"precision must be one of {', '.join(dict.fromkeys(words))}, not {shown(value)}.") from None


def _shown(value: Any) -> Any:
    """A value as a table, CSV or JSON can hold it."""
    if isinstance(value, Mapping):
        return value.get("name", "a table") if "tiles" in value or "base" in value else ",".join(f"{k}={v:g}" for k, v in value.items())
    return value.name if hasattr(value, "bytes_per_tile") else value


def check_effects(given: Sequence[str], found: Sequence[Setting], command: bool = False) -> None:
    """Refuse options that were written for this exploration and count in none of its settings; OptionError."""
    for name in given:
        refused = None
        for setting in found:
            try:
                check_use("explore", [name], setting.options, training=setting.training, command=command)
                break
            except OptionError as error:
                refused = refused or error
        else:
            if refused is not None:
                raise refused
