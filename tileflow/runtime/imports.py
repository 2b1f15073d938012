"""What the model of an ONNX file becomes: graphs for input types, of which the last for training and the last for
inference are kept, so that a shape is imported once; or pieces, where sizes in it follow from data."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .. import compiler
from ..compiler import CompileOptions
from ..graph import Graph
from ..graph.copy import copied
from ..importers.onnx import (
    Imported,
    folded_norms,
    import_graph,
    input_types,
    open_sizes,
    unsupported_nodes,
)
from ..importers.onnx.parameters import ResolvedModel
from ..importers.onnx.pieces import Cutter
from ..importers.onnx.refused import LISTED
from ..memory.types import TensorType
from ..options.options import Options
from ..passes.head import last_layer, split_head
from ..precision.types import Precision
from ..program.batching import Batching
from ..program.program import Program
from ..state import Session
from ..system.errors import DataError, UnsupportedError
from .data import Dataset
from .host import Host, Progress
from .pieces import Pieces
from .source import Signature
from .training_cut import TrainingCut


class Imports:
    """The graphs of one model by the options of one source; `OnnxSource` says of each method what it gives.

    as_written: for inference, too, batch normalisation and dropout are what the file says they are.
    """

    def __init__(self, model: ResolvedModel, options: Options, precision: Precision, session: Session,
                 as_written: bool) -> None:
        self.model, self.options, self.precision, self.session = model, options, precision, session
        self.as_written = as_written
        self._imported: dict[bool, tuple[object, Imported]] = {}
        """By whether it is for training: what the last import was of, and what it gave; `graph` gives copies of it
        away."""

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        imported = self.imported(inputs, training)
        return copied(imported.graph), imported.weights

    def pieces(self, host: Host, progress: Progress | None = None) -> Pieces:
        """A run in pieces (UnsupportedError, naming every operator that tileflow does not have)."""
        if refused := unsupported_nodes(self.model):
            shown = "; ".join(f"{name}: {why}" for name, why in refused[:LISTED])
            raise UnsupportedError(f"{self.model.where} has what tileflow cannot take ({shown}): export the model with "
                                   "other operators.")

        def compile(graph: Graph) -> Program:
            return compiler.inference(graph, Batching(1), CompileOptions(self.precision)).program
        cutter = Cutter(self.model, None if self.as_written else False, self.precision.float_dtype,
                        self._trainable(False), self.precision.stored)
        return Pieces(cutter, self.session, host, compile, progress)

    def training_cut(self, host: Host, progress: Progress | None = None) -> TrainingCut:
        """How the model is trained where sizes in it follow from data."""
        trainable, head = split_head(tuple(self._trainable(True)), list(self.model.tensors))
        if head:
            raise UnsupportedError(f"{self.model.where}: sizes in it follow from data, and which layer is the head is "
                                   "found in one program only; name the parameters that are to be trained, as in "
                                   "trainable='classifier.*'.")
        cutter = Cutter(self.model, True, self.precision.float_dtype, trainable, self.precision.stored,
                        self.options.frozen_patterns)
        return TrainingCut(self.pieces(host, progress), cutter, cutter.trained())

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        imported = self.imported(inputs, training)
        folded = folded_norms(self.model) if training else None
        return Signature.of(imported.binding.types, imported.graph.outputs,
                            (*imported.warnings, *filter(None, [folded])))

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """As the file declares them; rows settle open sizes that the options do not. A batch that the file fixes gives
        way to rows, and to the options where they say one."""
        names = [port.name for port in self.model.inputs]
        found = {} if data is None else open_sizes(self.model, data.samples(names))
        dims = {**found, **self.options.dims}
        return input_types(self.model, dims=dims, batch=self.options.micro_batch_size,
                           float_dtype=self.precision.float_dtype,
                           restated=data is not None or self.options.given("micro_batch_size"))

    def imported(self, inputs: Sequence[TensorType], training: bool) -> Imported:
        """What the file becomes for inputs of these types, imported if the last import was of something else."""
        if len(inputs) < len(self.model.inputs):
            names = ", ".join(p.name for p in self.model.inputs)
            raise DataError(f"The model has inputs {names}; got {len(inputs)} arrays.")
        mode, trainable = None if self.as_written and not training else training, self._trainable(training)
        trainable, head = split_head(tuple(trainable), list(self.model.tensors))
        key = (tuple(inputs[:len(self.model.inputs)]), mode, trainable, head)
        kept = self._imported.get(training)
        if kept is not None and kept[0] == key:
            return kept[1]
        types = {port.name: t for port, t in zip(self.model.inputs, inputs, strict=False)}
        imported = import_graph(self.model, dims=self.options.dims, input_types=types, training=mode,
                                float_dtype=self.precision.float_dtype, freeze=self.options.frozen_patterns,
                                trainable=trainable, stored=self.precision.stored)
        for state in last_layer(imported.graph) if head and training else ():
            state.trainable = True
        self._check_kept(imported)
        self._imported[training] = key, imported
        return imported

    def _check_kept(self, imported: Imported) -> None:
        """Raise OptionError for a pattern of keep_float32 without effect."""
        if not self.precision.kept:
            return
        parameters = imported.graph.parameters
        own = {s.name: self.precision.float_dtype or self.model.array(imported.names[s.name]).dtype.name
               for s in parameters}
        own |= {name: own[s.name] for s in parameters for name in (s.known_as, *s.aliases)}
        self.precision.check_kept(own, self.model.where)

    def _trainable(self, training: bool) -> Sequence[str]:
        """Patterns of what is trained in any case; for inference those of all trained models of the session, as they
        made parameters of constants."""
        return self.options.trainable if training else self.session.trainable
