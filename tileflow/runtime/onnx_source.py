"""An ONNX file as a source of graphs. What it takes is known before the model in it is read; graphs are imported when
somebody needs them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..memory.types import FLOATS, TensorType
from ..options.options import Options
from ..precision.types import Precision
from ..state import Session, declared, fitting
from ..system.errors import OptionError
from .data import Dataset
from .front import answered
from .host import Host, Progress
from .model_file import Input, ModelFile
from .source import Flat, Signature, read_type, written_type
from .stored import Stored

if TYPE_CHECKING:
    from pathlib import Path

    from ..graph import Graph
    from ..importers.onnx import OnnxModel, Port
    from ..importers.onnx.parameters import ResolvedModel
    from .imports import Imports
    from .pieces import Pieces
    from .training_cut import TrainingCut


class OnnxSource(Flat):
    """An ONNX model, loaded or still in its file.

    as_written: for inference, too, batch normalisation and dropout are what the file says they are.
    """

    has_graph: ClassVar[bool] = True

    def __init__(self, model: OnnxModel | ModelFile, options: Options, session: Session | None = None,
                 as_written: bool = False) -> None:
        self.options, self.as_written, self.precision = options, as_written, Precision.of(options)
        self.session = session or Session()
        self.stored: tuple[Stored, ...] = ()
        self._given, self._tied = model, self._ties()
        self.session.trainable = tuple(dict.fromkeys((*self.session.trainable, *options.trainable)))
        if self.file is None or any(self._tied) or not self.file.known:
            _ = self.model                                  # what is wrong with it is said at once
            if self.file is not None and not any(self._tied):
                self.file.note()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the file and a session of its own; what was imported is imported again."""
        return _again, (self.model.proto, self.model.path, self.options.clone(), self.session, self.as_written,
                        self.stored)

    def with_options(self, options: Options) -> OnnxSource:
        return OnnxSource(self._given, options, self.session)

    @property
    def file(self) -> ModelFile | None:
        """The file, where the model may still be in it."""
        return self._given if isinstance(self._given, ModelFile) else None

    @property
    def path(self) -> Path | None:
        """Where the file is; None where the model came from none."""
        return self._given.path

    @property
    def unresolved(self) -> OnnxModel:
        """The model as it was given, read if need be."""
        return self._given.model if isinstance(self._given, ModelFile) else self._given

    @cached_property
    def model(self) -> ResolvedModel:
        """The model, read if need be, with the parameters that the options tie and untie."""
        from ..importers.onnx import resolved
        return resolved(self.unresolved, *self._tied)

    @cached_property
    def imports(self) -> Imports:
        """Graphs of it."""
        from .imports import Imports
        return Imports(self.model, self.options, self.precision, self.session, self.as_written)

    def _ties(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The options tie and untie, which say what the parameters are: the same for all models of a session."""
        given, known = (self.options.tie, self.options.untie), self.session.ties
        if known is None:
            self.session.ties = known = given
        elif any(given) and given != known:
            raise OptionError(f"The model is in use with tie={list(known[0])} and untie={list(known[1])}, which say "
                              "what its parameters are; give the same to all models of it, or load the file anew.")
        return known

    @property
    def described(self) -> OnnxModel | ModelFile:
        """What says how messages call the model, its inputs and its metadata."""
        return self._given.described if isinstance(self._given, ModelFile) else self._given

    @property
    def inputs(self) -> Sequence[Input | Port]:
        """The inputs by name and element type, as the file declares them."""
        return self._given.inputs

    @property
    def plain(self) -> bool:
        """All inputs and outputs are tensors of numbers."""
        return self._given.plain

    @property
    def input_count(self) -> int | None:
        return len(self.inputs)

    @property
    def parameters(self) -> list[str]:
        """The names of the inputs, in their order."""
        return [port.name for port in self.inputs]

    def input_dtype(self, index: int, given: np.ndarray) -> str:
        if index >= len(self.inputs):
            return given.dtype.name
        declared = self.inputs[index].dtype
        return self.precision.float_dtype or declared if declared in FLOATS else declared

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        return self.imports.graph(inputs, training)

    def pieces(self, host: Host, progress: Progress | None = None) -> Pieces:
        """A run in pieces (UnsupportedError, naming every operator that tileflow does not have)."""
        return self.imports.pieces(host, progress)

    def training_cut(self, host: Host, progress: Progress | None = None) -> TrainingCut:
        """How the model is trained where sizes in it follow from data."""
        return self.imports.training_cut(host, progress)

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        question = ["signature", [written_type(t) for t in inputs], training, *self.shaped_by()]
        return answered(self.file, self.options, question, lambda: self.imports.signature(inputs, training),
                        Signature.told, Signature.of_told)

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """As the file declares them; rows settle open sizes that the options do not. A batch that the file fixes gives
        way to rows, and to the options where they say one."""
        samples = None if data is None else data.samples([port.name for port in self.inputs])
        return answered(self.file, self.options, ["input types", samples, *self.shaped_by()],
                        lambda: self.imports.input_types(data),
                        lambda types: {name: written_type(t) for name, t in types.items()},
                        lambda told: {name: read_type(t) for name, t in told.items()})

    def shaped_by(self) -> list[Any]:
        """What else than file and options shapes what the importer makes of it."""
        return [self.as_written, self.session.ties, self.session.trainable]

    def names_for(self, data: Dataset) -> list[str]:
        return [port.name for port in self.inputs]

    def attach(self) -> None:
        """An ONNX model has no parameters of its own to show."""

    def parameter_names(self) -> Mapping[int, str]:
        """An ONNX model has no objects for its parameters."""
        return {}

    def state_dict(self, training: bool) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by name, all after the same whole update."""
        self._declare(training)
        return self.session.snapshot("parameter", "buffer")

    def load_state_dict(self, tensors: Mapping[str, Any], training: bool, strict: bool) -> None:
        """Overwrite parameters and buffers (DataError where they do not fit: then none is)."""
        self._declare(training)
        own = {name: self.session[name] for name in self.session.names("parameter", "buffer")}
        self.session.put(fitting(own, tensors, strict))

    def _declare(self, training: bool) -> None:
        """Let the session have the file's weights, if no compiled model of it has seen to that."""
        if not self.session.names("parameter", "buffer"):
            imported = self.imports.imported(list(self.input_types().values()), training)
            self.session.turn.change(
                lambda: self.session.declare(declared(imported.graph.states), imported.weights))


def _again(proto: Any, path: Any, options: Options, session: Session, as_written: bool,
           stored: tuple[Stored, ...] = ()) -> OnnxSource:
    """A file's source out of a pickle, or copied."""
    from ..importers.onnx import wrap_model
    made = OnnxSource(wrap_model(proto, path), options, session, as_written)
    session.owner = made.model
    made.stored = stored
    return made
