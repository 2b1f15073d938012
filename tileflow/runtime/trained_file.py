"""The trained ONNX file: written, read again as it stands, and kept if it computes what the engine does."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .. import compiler
from ..errors import ModelError
from ..graph import type_of
from ..importers.onnx import export_model, load_model
from ..options import Options
from ..program import Batching
from ..state import build
from .engine import Engine
from .executable import Host, Progress, make_engine
from .source import OnnxSource, Source, as_array

TOLERANCE = 1e-3
"""Largest difference of an output over its largest element. In float32 there is none at all where both files fold the same constants;
weights trained in float64 are rounded to the types of the file."""
HALF_TOLERANCE = 3e-2
"""The same for outputs of 16-bit floats."""
FLIPPED = 0.01
"""Share of whole-number outputs (the place of a maximum, say) that rounding may change."""


def write_trained(source: Source, weights: Mapping[str, np.ndarray], path: Path, options: Options, inputs: Sequence[np.ndarray],
                  metadata: Mapping[str, str | None] | None = None, progress: Progress | None = None) -> None:
    """Write the model of `source` with `weights` and `metadata` to `path`, in the form that `options.keep_training_mode` asks for, and check it.

    The new file is read again, and its outputs for `inputs` (a micro-batch) are compared with the engine's before it takes the place of an
    older one. In the form for inference it is imported as it stands: what is left in training mode would show.

    Raises:
        ModelError: the model did not come from a file, or the new file computes something else; nothing is written.
        CheckpointError: the file cannot be written.
    """
    if not isinstance(source, OnnxSource):
        raise ModelError("This network was built from layers and has no ONNX file to write back; use state_dict().")
    run = options.clone(gradient_accumulation=1, device_iterations=1, output_mode="all", frozen=(), trainable=(), tie=(), untie=())
    expected = _outputs(source, run, inputs, progress)

    def check(new: Path) -> None:
        written = OnnxSource(load_model(new), run, as_written=not options.keep_training_mode)
        for name, found in _outputs(written, run, inputs, progress).items():
            _compare(name, expected[name], found, path)
    export_model(source.model, weights, path, keep_training_mode=options.keep_training_mode, metadata=metadata, check=check)


def _outputs(source: OnnxSource, options: Options, inputs: Sequence[np.ndarray], progress: Progress | None) -> dict[str, np.ndarray]:
    """What the engine computes for one micro-batch, with the session's weights."""
    arrays = [as_array(a, source.input_dtype(i, np.asarray(a)), f"input {i}") for i, a in enumerate(inputs)]

    def made() -> Engine:
        graph, initial = source.graph([type_of(a) for a in arrays], False)
        program = compiler.inference(graph, Batching(1), serialized=options.serial_splits).program
        return make_engine(program, source.session, initial, Host.of(options), progress=progress)

    def run() -> dict[str, np.ndarray]:
        engine = build(made)
        return {v.name: a[0] for v, a in zip(engine.outputs, engine.call(arrays), strict=True)}
    return source.session.turn.call(run)


def _compare(name: str, expected: np.ndarray, found: np.ndarray, path: Path) -> None:
    """Raise ModelError where the outputs differ by more than rounding."""
    if found.dtype.kind in "biu":
        far = float(np.mean(found != expected)) if found.size else 0.0
        if far > FLIPPED:
            raise _mismatch(name, f"{far:.0%} of its elements differ", path)
        return
    a, b = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    scale = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
    largest = float(np.max(difference, initial=0.0))
    if not largest <= (HALF_TOLERANCE if found.dtype.itemsize == 2 else TOLERANCE) * scale:
        raise _mismatch(name, f"it differs by {largest:.3g}, and its largest element is {scale:.3g}", path)


def _mismatch(name: str, how: str, path: Path) -> ModelError:
    return ModelError(f"The trained file {path} was not written: read again, it does not compute what the engine does for the output '{name}' "
                      f"({how}). The trained weights are safe in the checkpoint; please report this with the model.")
