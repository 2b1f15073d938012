"""Models that are no one program, as sizes, branches or turns follow from data: how they are called and trained."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..feed.items import array_of
from ..memory.types import TensorType, type_of
from ..options.options import Options
from ..system.errors import DataError, OptionError, UnsupportedError
from .arrays import as_array
from .host import Host, Progress
from .onnx_source import OnnxSource
from .outputs import Anchors
from .programs import Programs
from .rows import Rows
from .source import Source

if TYPE_CHECKING:
    from .pieces import Pieces
    from .training_cut import Ready, TrainingCut


class PieceCalls:
    """The calls of an inference model in pieces, once it is found to have no one program."""

    def __init__(self, source: Source, options: Options, programs: Programs, anchors: Anchors,
                 progress: Progress | None) -> None:
        self._source, self._options, self._progress = source, options, progress
        self._programs, self._anchors = programs, anchors
        self.forget()

    def forget(self) -> None:
        """Know nothing of earlier calls."""
        self.pieces: Pieces | None = None
        """How it runs; None: as one program, as far as is known."""
        self._seen: Mapping[str, TensorType] | None = None
        """The types of the calls so far."""
        self._asked = False

    def needed(self) -> bool:
        """The model is known to run in pieces: it was found to, or there is no other way, for inputs or outputs are
        sequences, optionals or texts."""
        if not self._asked:
            self._asked = True
            if isinstance(self._source, OnnxSource) and not self._source.plain:
                self.cut()
        return self.pieces is not None

    def cut(self) -> bool:
        """Run the model in pieces from now on; False where it has no such way.

        Raises:
            OptionError: options that need one program.
        """
        found = self._source.pieces(Host.of(self._options), self._progress)
        if found is None:
            return False
        why = "The model runs in pieces, because sizes in it follow from data"
        if self._anchors.names:
            raise OptionError(f"{why}, and values within pieces cannot be anchored: make them outputs of the file, or "
                              "leave anchored_tensors out.")
        if self._options.printed_tensors:
            raise OptionError(f"{why}, and values within pieces cannot be printed: leave printed_tensors out.")
        self._options.require_one(("device_iterations", "replication_factor"),
                                  f"{why}, and so one call is one iteration")
        self._programs.absent = f"{why}: there is no one program of it to look at."
        self.pieces = found
        return True

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """A call, within a turn."""
        from ..importers.onnx.hosted import is_plain
        from ..importers.onnx.model import OTHER_TYPES
        from .pieces import as_datum
        assert self.pieces is not None
        assert isinstance(self._source, OnnxSource)
        ports = self._source.model.inputs
        if len(arrays) != len(ports):
            names = ", ".join(port.name for port in ports)
            raise DataError(f"The model takes {len(ports)} inputs ({names}) and got {len(arrays)} arrays.")
        given = {port.name: as_datum(a, port) if port.dtype in OTHER_TYPES else
                 as_array(a, self._source.input_dtype(i, array_of(a)), f"input {i}")
                 for i, (a, port) in enumerate(zip(arrays, ports, strict=True))}
        kinds = {name: type_of(a) for name, a in given.items() if is_plain(a)}
        self._programs.check_kinds(kinds, self._seen)
        results = self.pieces.run(given)
        self._seen = kinds
        return results


class DecidingCalls:
    """What a training model compiles for a call: the whole of its source, or, where sizes follow from data, what is
    left once they are known."""

    def __init__(self, source: Source, options: Options, programs: Programs, progress: Progress | None) -> None:
        self._source, self._options, self._programs, self._progress = source, options, programs, progress
        self.forget()

    def forget(self) -> None:
        """Know nothing of earlier calls."""
        self.is_whole = not isinstance(self._source, OnnxSource)
        """The model was found to be one program."""
        self.ready: Ready | None = None
        """What is trained for the call at hand; None: the whole model."""
        self.seen: Mapping[str, TensorType] | None = None
        """The types of that call's inputs."""
        self._cut: TrainingCut | None = None

    def decide(self, arrays: Sequence[np.ndarray], own: int, rows: Rows) -> Sequence[np.ndarray]:
        """What the compiled program takes for a call's arrays, of which `own` are the model's inputs; within a turn."""
        source = self._source
        if self.is_whole or not isinstance(source, OnnxSource):
            return arrays
        micro = rows.micro_types([type_of(a) for a in arrays[:own]])
        if self._cut is None:
            try:
                source.signature(micro, True)
            except UnsupportedError as error:
                from ..importers.onnx import UnsupportedNodesError
                from .training_cut import is_cut
                if not isinstance(error, UnsupportedNodesError) or not is_cut(error):
                    raise
                self._cut = self._new_cut(source)
            else:
                self.is_whole = True
                return arrays
        names = [port.name for port in source.model.inputs]
        kinds = dict(zip(names, micro, strict=False))
        self._programs.check_kinds(kinds, self.seen)
        self.ready, self.seen = self._cut(dict(zip(names, arrays[:own], strict=True))), kinds
        return [*self.ready.inputs, *arrays[own:]]

    def _new_cut(self, source: OnnxSource) -> TrainingCut:
        why = "Sizes in the model follow from data, so that micro-batches differ, and a call trains one"
        self._options.require_one(("gradient_accumulation", "device_iterations", "replication_factor"), why)
        return source.training_cut(Host.of(self._options), self._progress)
