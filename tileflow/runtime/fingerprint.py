"""What makes two runs the same run: model, data, scaling, settings. A checkpoint goes on with the ones it was made with only."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..options.options import Options, declarations, renamed
from ..system.errors import CheckpointError, OptionError, see
from ..system.version import VERSION
from .data import Dataset
from .training_model import TrainingModel

RATES = ("lr", "weight_decay")
"""Attributes of optimizers with which a run may go on at other values."""
REMEDY = "resume with the same settings, or start anew in another folder"


def fingerprint(model: TrainingModel, data: Dataset, options: Options) -> dict[str, Any]:
    """Everything that shapes the numbers, in JSON's types."""
    settings = {d.name: getattr(options, d.name) for d in declarations().values() if not d.free}
    scaling = {name: asdict(f.scaling) for name, f in data.fields.items()}
    found = {"version": VERSION, "settings": settings, "loss": model.loss_name, "optimizer": model.optimizer.describe(),
             "loss_scaling": model.loss_scaling, "epochs": options.epochs, "max_updates": options.max_updates,
             "model": model.fingerprint, "data": data.digest(), "rows": len(data), "scaling": scaling}
    return dict(json.loads(json.dumps(found, default=_plain)))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def differences(path: Path, made: Mapping[str, Any], now: Mapping[str, Any], model: TrainingModel, options: Options) -> list[str]:
    """What has changed since the checkpoint at `path` was made and may: sentences.

    Raises:
        CheckpointError: what has changed shapes the numbers, so that this would be another run.
    """
    defaults = json.loads(json.dumps({d.name: d.default for d in declarations().values()}, default=_plain))
    settings = renamed(_table(made, "settings"))
    for name, value in _table(now, "settings").items():
        if (old := _as_now(name, settings.get(name, defaults[name]))) != value:
            raise CheckpointError(f"{path} was made with {name} = {old}, this run has {value}; {REMEDY}.")
    if made.get("loss") != now["loss"]:
        raise CheckpointError(f"{path} was made with loss = {made.get('loss')}, this run has {now['loss']}; {REMEDY}.")
    if made.get("model") != now["model"]:
        other = "" if made.get("version") == now["version"] else f" tileflow {made.get('version')} wrote it, and another version may read a model " \
            "differently: go on with that one."
        raise CheckpointError(f"{path} belongs to another model: operators, attributes, names or sizes of its graph, or what of it is trained, "
                              "differ; give the model that the run began with, or start anew in another "
                              f"folder.{other}{see('schedules')}")
    said = _optimizer(path, _table(made, "optimizer"), _table(now, "optimizer"))
    if loss_scaling(made) != now["loss_scaling"]:
        said.append(f"Going on with loss_scaling = {now['loss_scaling']:g} in place of {loss_scaling(made):g}.")
    if made.get("scaling") != now["scaling"]:
        raise CheckpointError(f"{path} was made with {_scaling(made)}, this run has {_scaling(now)}; {REMEDY}.")
    if made.get("data") != now["data"]:
        if not options.allow_other_data:
            raise CheckpointError(f"{path} was made with other data ({made.get('rows')} rows, this run has {now['rows']}; shapes, types or values "
                                  "differ); give the data that the run began with, start anew in another folder, or go on all the same with "
                                  f"allow_other_data (--allow-other-data).{see('schedules')}")
        said.append(f"Going on with other data: {now['rows']} rows, {made.get('rows')} before.")
    longer = [name for name in model.optimizer.variable
              if getattr(getattr(model.optimizer, name), "follows_run", False)]
    for name, what in (("epochs", "epoch"), ("max_updates", "update")):
        if made.get(name) != now[name]:
            was, will = made.get(name), now[name]
            to = f"Going on to {what} {will}" if will is not None else f"Going on past {what} {was}"
            before = f"; the run was to end with {was}" if was is not None and will is not None else ""
            said.append(f"{to}{before}." + (f" The schedule of {' and '.join(longer)} now ends with it, so that what "
                                            "is left of it differs."
                                           if longer else ""))
    return said


def _as_now(name: str, value: Any) -> Any:
    """A setting in JSON's types as this version writes it: options learn other spellings of the same."""
    try:
        return json.loads(json.dumps(declarations()[name].check(value), default=_plain))
    except OptionError:
        return value


def loss_scaling(made: Mapping[str, Any]) -> float:
    """The loss scale that a run was asked to begin with; older files have it among the settings."""
    found = made.get("loss_scaling", _table(made, "settings").get("loss_scaling", 1.0))
    return float(found) if isinstance(found, int | float) else 1.0


def _optimizer(path: Path, made: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed of the optimizer: rates may, what is compiled in may not."""
    if made.get("name") != now["name"]:
        raise CheckpointError(f"{path} was made with the optimizer {made.get('name')}, this run has {now['name']}; {REMEDY}.")
    changed = [name for name in {**made, **now} if made.get(name) != now.get(name) and (made.get(name) or now.get(name))]
    for name in changed:
        if name not in RATES:
            raise CheckpointError(f"{path} was made with the optimizer's {name} = {made.get(name)}, this run has {now.get(name)}; {REMEDY}.")
    return [f"Going on with {name} = {now.get(name)} in place of {made.get(name)}." for name in changed]


def changed_attributes(made: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """The optimizer's attributes in which two runs differ."""
    before, after = _table(made, "optimizer"), _table(now, "optimizer")
    return {name for name in after if before.get(name) != after[name]}


def _scaling(found: Mapping[str, Any]) -> str:
    return "; ".join(", ".join(f"{what} {value}" for what, value in _table(_table(found, "scaling"), name).items()) + f" for input {name}"
                     for name in _table(found, "scaling"))


def _table(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a fingerprint that may come from anywhere."""
    part = found.get(name)
    return part if isinstance(part, dict) else {}
