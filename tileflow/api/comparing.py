"""compare: what a model computes here and in other runtimes, beside float64, and where they part."""
from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from ..importers.onnx import OnnxModel, wrap_model
from ..importers.onnx.exposed import NamedNode, constants, exposed, part, producers, steps, whole
from ..options.options import Options
from ..runtime.data import open_data
from ..runtime.inference_model import InferenceModel
from ..runtime.onnx_source import OnnxSource
from ..system.errors import CheckpointError, OptionError, TileflowError
from ..system.files import atomic_write_bytes
from .inference import measured, preprocessing_of
from .models import Modelish, load
from .peers import PEERS, run

OURS = "tileflow"
TOLERANCE = 1e-4
GROWN = 8
"""How often a part that does not show a departure grows by the nodes before it."""


@dataclass(frozen=True)
class Departure:
    """Where a runtime parts from float64: the first node whose value differs by more than the tolerance.

    node: how messages call it. value: the output's name. error: of that output, as a share of its largest magnitude.
    before: the largest error of what it reads. nodes: how many the part has that shows it; all of them where no smaller
    part does. model, inputs: that part, and the arrays that it is fed.
    """

    node: str
    value: str
    error: float
    before: float
    nodes: int
    model: ModelProto = field(repr=False)
    inputs: Mapping[str, np.ndarray] = field(repr=False)

    def save(self, folder: str | os.PathLike[str], name: str) -> Path:
        """Write the part as `<name>.onnx` and what it is fed as `<name>.npz` into a folder (made if need be); the path
        of the first."""
        where = Path(folder)
        try:
            where.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"Cannot make the folder {where}: {error.strerror or error}.") from None
        atomic_write_bytes(where / f"{name}.onnx", self.model.SerializeToString())
        np.savez(arrays := io.BytesIO(), **dict(self.inputs))           # type: ignore[arg-type]
        atomic_write_bytes(where / f"{name}.npz", arrays.getvalue())
        return where / f"{name}.onnx"


@dataclass(frozen=True)
class Compared:
    """What `compare` finds. errors: by runtime and output, the largest difference from float64 as a share of the
    output's largest magnitude (of what are no floats the share of elements that differ). departures: by runtime, where
    it parts; those that do not are left out. inputs: what was fed."""

    errors: Mapping[str, Mapping[str, float]]
    departures: Mapping[str, Departure]
    inputs: Mapping[str, np.ndarray] = field(repr=False)
    tolerance: float = TOLERANCE


def compare(model: Modelish, *, peers: str | Sequence[str] = "onnxruntime", data: Any = None, rows: int = 8,
            tolerance: float = TOLERANCE,
            dims: Mapping[str, int] | None = None, seed: int = 0) -> Compared:
    """Run an ONNX model here and in other runtimes, and compare what they compute with float64.

    Args:
        model: a file, or a loaded one.
        peers: names of runtimes: onnxruntime, openvino, or onnx, the format's own evaluator.
        data: what to feed, in any form that `train` takes; by default random numbers.
        rows: rows that are fed, where the file leaves that open.
        tolerance: a larger error of a value, as a share of its largest magnitude, is a departure.
        dims: sizes of the model's symbolic dimensions.

    Raises:
        OptionError: there is no such peer, or it is not installed.
        TileflowError: a runtime cannot run the model.
    """
    names = [peers] if isinstance(peers, str) else list(peers)
    for name in names:
        if name not in PEERS:
            raise OptionError(f"A model is compared with {', '.join(PEERS)}, not {name!r}.")
    if not tolerance > 0:
        raise OptionError(f"tolerance must be above 0, not {tolerance!r}.")
    loaded = model if isinstance(model, OnnxModel) else load(model)           # type: ignore[arg-type]
    first = loaded.inputs[0].dims if loaded.inputs else None
    options = Options(micro_batch_size=first[0] if first and isinstance(first[0], int) and first[0] > 0 else rows,
                      dims=dims or {}, seed=seed)
    proto = whole(loaded)
    arrays = _inputs(loaded, options, data)
    wanted = _ours(proto, arrays, options, "64")
    outputs = {name: run(name, proto, arrays) for name in names}
    outputs = {OURS: _ours(proto, arrays, options, "32"), **outputs}
    errors = {name: {n: error_of(found[n], x) for n, x in wanted.items() if n in found}
              for name, found in outputs.items()}
    departed = [name for name, found in errors.items() if any(not e <= tolerance for e in found.values())]
    departures = _Finder(proto, arrays, options, tolerance).find(departed) if departed else {}
    return Compared(errors, departures, arrays, tolerance)


def error_of(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference as a share of the largest magnitude; infinity where shapes, or places of NaN and infinity,
    differ."""
    if found.shape != wanted.shape:
        return math.inf
    if wanted.dtype.kind not in "fV" or not wanted.size:
        return float(np.mean(found != wanted)) if wanted.size else 0.0
    x, y = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(np.isnan(x), np.isnan(y)) or not np.array_equal(x[~finite & ~np.isnan(y)],
                                                                          y[~finite & ~np.isnan(y)]):
        return math.inf
    if not finite.any():
        return 0.0
    largest = float(np.abs(y[finite]).max())
    worst = float(np.abs(x[finite] - y[finite]).max())
    return 0.0 if worst == 0 else worst / largest if largest else math.inf


def _inputs(loaded: OnnxModel, options: Options, data: Any) -> dict[str, np.ndarray]:
    """What is fed, by name, in the file's own types."""
    source = OnnxSource(loaded, options)
    types = source.input_types()
    if data is None:
        draw = np.random.default_rng(options.seed)
        return {name: draw.standard_normal(t.shape).astype(t.numpy) if t.is_float else np.zeros(t.shape, t.numpy)
                for name, t in types.items()}
    known = preprocessing_of(source)
    dataset = measured(open_data(data, options, known.roles))
    fitted = dataset.images_as_bytes(types).adapt_to(types, None, options, known.scalings)
    return dict(zip(types, fitted.example(np.arange(options.micro_batch_size) % len(fitted)), strict=False))


def _ours(proto: ModelProto, arrays: Mapping[str, np.ndarray], options: Options,
          precision: str) -> dict[str, np.ndarray]:
    """Our outputs of a model by name."""
    own = options.clone(precision=precision)
    model = InferenceModel(OnnxSource(wrap_model(proto), own), own)
    model.rows.fixed = False
    found = model(*arrays.values())
    return dict(zip((v.name for v in proto.graph.output), found if isinstance(found, tuple) else (found,), strict=True))


class _Finder:
    """Finds where runtimes part from float64."""

    def __init__(self, proto: ModelProto, arrays: Mapping[str, np.ndarray], options: Options, tolerance: float) -> None:
        self.proto, self.arrays, self.options, self.tolerance = proto, arrays, options, tolerance
        self.steps, known = steps(proto)
        self.exposed = exposed(proto, known)
        self.values = _ours(self.exposed, arrays, options, "64")

    def find(self, names: Sequence[str]) -> dict[str, Departure]:
        """The departures of these runtimes."""
        return {name: found for name in names if (found := self._of(name)) is not None}

    def _run(self, name: str, proto: ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return _ours(proto, arrays, self.options, "32") if name == OURS else run(name, proto, arrays)

    def _of(self, name: str) -> Departure | None:
        """The first value that differs; None where none does once all are looked at, for what is looked at is not
        fused."""
        found = self._run(name, self.exposed, self.arrays)
        errors = {n: error_of(found[n], x) for n, x in self.values.items() if n in found}
        for step in self.steps:
            for value in step.outputs:
                if not errors.get(value, 0.0) <= self.tolerance:
                    before = max((errors.get(n, 0.0) for n in step.inputs), default=0.0)
                    return self._smallest(name, step, value, errors[value], before)
        return None

    def _smallest(self, name: str, step: NamedNode, value: str, error: float, before: float) -> Departure:
        """The part that shows it: the node alone, else with those before it."""
        types = {**self.arrays, **constants(self.proto), **self._as_declared()}
        nodes = {step.index}
        for _ in range(GROWN):
            try:
                made, inputs = part(self.proto, nodes, value, types)
                fed = {n: types[n] for n in inputs}
                wanted = _ours(made, fed, self.options, "64")[value]
                shown = not error_of(self._run(name, made, fed)[value], wanted) <= self.tolerance / 2
            except (TileflowError, KeyError):
                break                                           # a value within that nobody knows
            if shown:
                return Departure(step.called, value, error, before, len(nodes), made, fed)
            more = producers(self.steps, inputs)
            if not more:
                break
            nodes |= more
        return Departure(step.called, value, error, before, len(self.steps), self.proto, dict(self.arrays))

    def _as_declared(self) -> dict[str, np.ndarray]:
        """The values within, rounded to the types that the model has them in."""
        known = steps(self.proto)[1]
        return {n: x.astype(helper.tensor_dtype_to_np_dtype(known[n].type.tensor_type.elem_type))
                for n, x in self.values.items() if n in known}
