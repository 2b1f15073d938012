"""A model's parameters and buffers, in and out: by name, of replicas that have their own, and as an ONNX file."""
from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..options.options import Options
from ..program.replicas import Grouping
from . import replica_state
from .host import Progress
from .programs import Programs
from .source import Source


class Weights:
    """The weights of a model, which are those of every other model of its source. `Model` says of each method what
    users need to know."""

    def __init__(self, source: Source, options: Options, training: bool, programs: Programs) -> None:
        self._source, self._options, self._training, self._programs = source, options, training, programs
        self._groupings = Grouping.named(options.groupings)

    def state_dict(self, replica: int = 0) -> dict[str, np.ndarray]:
        """Copies by name, as a replica has them."""
        if replica == 0:
            return self._source.state_dict(self._training)
        session, program = self._source.session, self._programs.required().program
        return session.turn.hold(
            lambda: replica_state.of_replica(program, session, self._source.state_dict(self._training), replica))

    def load_state_dict(self, tensors: Mapping[str, Any], strict: bool) -> None:
        """Overwrite them, by name."""
        self._source.load_state_dict(tensors, self._training, strict)

    def replica_state_dict(self) -> dict[str, np.ndarray]:
        """Copies of what replicas have of their own."""
        session, program = self._source.session, self._programs.required().program
        return session.turn.hold(lambda: replica_state.collect(program, session, self._groupings))

    def load_replica_state_dict(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite what replicas have of their own."""
        session = self._source.session
        session.put(replica_state.check(self._programs.required().program, session, self._groupings, tensors))

    def save_onnx(self, source: Source, path: Path, keep_training_mode: bool | None, inputs: Sequence[np.ndarray],
                  form: Mapping[str, Any], progress: Progress | None) -> None:
        """Write the model with them as an ONNX file, which is checked with `inputs`, arrays for one micro-batch.

        Args:
            source: the model for calls of their form.
        """
        from ..importers.onnx import FileForm
        from .trained_file import write_trained
        if self._options.replica_grouping:
            warnings.warn(replica_state.OF_REPLICA_0, stacklevel=3)
        options = self._options
        if keep_training_mode is not None:
            options = options.clone(keep_training_mode=keep_training_mode)
        write_trained(source, self.state_dict(), path, options, inputs, progress=progress,
                      form=FileForm.of(form) if form else None)
