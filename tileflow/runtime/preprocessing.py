"""What a trained file says about the data it was trained on: as JSON texts in the model's metadata, parsed strictly, never executed.

    tileflow.input.<name>.scale         0.00392156862745098
    tileflow.input.<name>.mean          [0.1307]
    tileflow.input.<name>.std           [0.3081]
    tileflow.input.<name>.statistics    {"min": 0.0, "max": 1.0, "mean": 0.13, "std": 0.31, "rows": 4096}
    tileflow.inputs                     ["height", "width"]          names of arrays or columns
    tileflow.label                      "digit"
    tileflow.classes                    ["cat", "dog"]               in the order of their numbers
    tileflow.categories                 {"colour": ["blue", "red"]}  texts of a column in the order of their numbers,
                                        from 1 on
    tileflow.images                     [3, 224, 224]                what image files became: channels, height, width
"""
from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from ..system.errors import ModelError
from ..system.text import one_line
from .data import Dataset, Roles, Scaling, Statistics, WantedImages, roles_of, wanted_by
from .model_file import PREFIX, ModelFile

if TYPE_CHECKING:
    from ..importers.onnx import OnnxModel

INPUTS, LABEL, CLASSES, IMAGES, CATEGORIES = (PREFIX + name
                                              for name in ("inputs", "label", "classes", "images", "categories"))
LONGEST = 1 << 20
"""Characters of one text."""


@dataclass(frozen=True)
class Preprocessing:
    """By input of the model: its scaling, and statistics of what it was fed; the names of the arrays or columns in the data;
    the names of the classes in the order of their numbers."""

    scalings: Mapping[str, Scaling] = field(default_factory=dict)
    statistics: Mapping[str, Statistics] = field(default_factory=dict)
    roles: Roles = field(default_factory=Roles)
    classes: tuple[str, ...] | None = None

    @classmethod
    def of(cls, opened: Dataset, fitted: Dataset) -> Preprocessing:
        """What training on data leaves in the file: `opened`, and as it is fitted to the model."""
        statistics = fitted.statistics()
        return cls({name: fitted.fields[name].scaling for name in statistics}, statistics, roles_of(opened) or Roles(), fitted.classes)

    def renamed(self, names: Mapping[str, str]) -> Preprocessing:
        """The same of inputs that are called otherwise."""
        return replace(self, scalings={names.get(n, n): s for n, s in self.scalings.items()},
                       statistics={names.get(n, n): s for n, s in self.statistics.items()})

    def to_metadata(self) -> dict[str, str | None]:
        """The texts by key; None for what a file may say from an earlier training and that does not hold any more."""
        values: dict[str, Any] = {}
        for name, scaling in self.scalings.items():
            values |= {_key(name, "scale"): scaling.scale, _key(name, "mean"): scaling.mean or None, _key(name, "std"): scaling.std or None}
        values |= {_key(name, "statistics"): asdict(s) for name, s in self.statistics.items()}
        images = self.roles.images
        values |= {CATEGORIES: dict(self.roles.categories) or None}
        values |= {IMAGES: [images.channels, images.height, images.width] if images.channels else None}
        values |= {INPUTS: self.roles.inputs or None, LABEL: self.roles.label} | ({} if self.classes is None else {CLASSES: self.classes})
        texts = {key: None if value is None else json.dumps(value, ensure_ascii=False) for key, value in values.items()}
        return {key: None if text is None or len(text) > LONGEST else text for key, text in texts.items()}

    @classmethod
    def of_file(cls, model: OnnxModel | ModelFile) -> Preprocessing:
        """What a model's metadata say about its inputs; other entries are not looked at.

        Raises:
            ModelError: a text is not what its key stands for.
        """
        metadata, where = model.metadata, model.where
        scalings, statistics = {}, {}
        for name in (port.name for port in model.inputs):
            said = {what: _value(metadata, _key(name, what), where, check) for what, check in CHECKS.items()}
            if said["scale"] is not None:
                scalings[name] = Scaling(float(said["scale"]), *(tuple(map(float, said[what] or ())) for what in ("mean", "std")))
            if said["statistics"] is not None:
                statistics[name] = Statistics(rows=said["statistics"].pop("rows"), **{k: float(v) for k, v in said["statistics"].items()})
        images = (wanted_by(model.inputs[0].dims) if len(model.inputs) == 1 else None) or WantedImages()
        if (sizes := _value(metadata, IMAGES, where, _are_sizes)) is not None:
            images = WantedImages(images.channels or sizes[0], images.height or sizes[1], images.width or sizes[2],
                                  images.last)
        roles = Roles(tuple(_value(metadata, INPUTS, where, _are_names) or ()),
                      _value(metadata, LABEL, where, _is_name), images,
                      {name: tuple(words) for name, words in
                       (_value(metadata, CATEGORIES, where, _are_categories) or {}).items()})
        classes = _value(metadata, CLASSES, where, _are_classes)
        return cls(scalings, statistics, roles, None if classes is None else tuple(classes))

    def to_text(self) -> str:
        """What the file knows, a line each; empty where it knows nothing."""
        lines = [f"Input {one_line(name)} was fed with {scaling}" + (f", {self.statistics[name]}." if name in self.statistics else ".")
                 for name, scaling in self.scalings.items()]
        lines += [f"Column {one_line(name)}: its texts have the numbers from 1 to {len(words)}."
                  for name, words in self.roles.categories.items()]
        images = self.roles.images
        if images.channels and images.height and images.width and self.scalings:
            lines.append(f"Image files become {images.width} x {images.height} pixels of {images.channels} channels.")
        if self.roles.label is not None:
            lines.append(f"The labels were called {one_line(self.roles.label)}.")
        if self.classes is not None:
            lines.append(f"The classes are {one_line(', '.join(self.classes))}.")
        return "\n".join(["", "What it was trained on", *(f"  {line}" for line in lines)]) if lines else ""

    def foreign(self, data: Dataset) -> list[str]:
        """A sentence for each input whose data, fitted to the model, are far from those it was trained on."""
        found = data.statistics() if self.statistics else {}
        return [f"Input {one_line(name)}: the data that are fed range from {s}, the model was trained on {self.statistics[name]}; "
                "did you forget --scale, --mean or --std?"
                for name, s in found.items() if name in self.statistics and s.far_from(self.statistics[name])]


def _key(name: str, what: str) -> str:
    return f"{PREFIX}input.{name}.{what}"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_name, value))


def _are_classes(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(v, str) for v in value) and len(set(value)) == len(value)


def _are_categories(value: Any) -> bool:
    return isinstance(value, dict) and all(words == [] or _are_classes(words) for words in value.values())


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(type(n) is int and 0 < n < 1 << 16 for n in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e300


def _are_statistics(value: Any) -> bool:
    return (isinstance(value, dict) and value.keys() == {"min", "max", "mean", "std", "rows"} and all(map(_is_number, value.values()))
            and type(value["rows"]) is int and value["min"] <= value["max"] and value["std"] >= 0)


CHECKS = {
    "scale": _is_number,
    "mean": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "std": lambda value: isinstance(value, list) and all(_is_number(v) and v > 0 for v in value),
    "statistics": _are_statistics,
}


def _value(metadata: Mapping[str, str], key: str, where: str, check: Any) -> Any:
    """The value of a text; None where there is none."""
    text = metadata.get(key)
    if text is None:
        return None

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)
    try:
        value = json.loads(text, parse_constant=refuse) if len(text) <= LONGEST else None
        if check(value):
            return value
    except (ValueError, OverflowError, RecursionError):
        pass
    raise ModelError(f"{where}: the metadata entry {one_line(key)} is '{one_line(text, 100)}', which is not what it stands for; "
                     "take the entry out of the file, or train again.")
