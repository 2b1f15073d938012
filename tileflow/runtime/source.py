"""Where a model comes from: an ONNX file or a network of layers. Both give graphs for input types and own one session."""
from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .. import compiler
from ..compiler import CompileOptions
from ..graph import FLOATS, HALVES, Graph, TensorType, Value
from ..graph.copy import copied
from ..importers.onnx import Imported, OnnxModel, folded_norms, import_graph, input_types, open_sizes, resolved, unsupported_nodes, wrap_model
from ..importers.onnx.pieces import Cutter
from ..importers.onnx.refused import LISTED
from ..memory.tensor import kind_of
from ..nn import Buffer, Module, record
from ..options.options import Options
from ..passes.head import last_layer, split_head
from ..precision.types import Precision
from ..program.program import Batching, Program
from ..state import Session, declared, fitting
from ..system.errors import DataError, OptionError, UnsupportedError
from .data import Dataset
from .executable import Host, Progress
from .pieces import Pieces
from .training_cut import TrainingCut


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives for one micro-batch.

    inputs: types by name. outputs: values of a graph that nobody compiles, with what makes them: a loss looks at both.
    warnings: sentences on how the model was read.
    """

    inputs: Mapping[str, TensorType]
    outputs: tuple[Value, ...]
    warnings: tuple[str, ...] = ()


class Source(Protocol):
    """A model before its input types are known."""

    session: Session
    precision: Precision

    @property
    def input_count(self) -> int | None:
        """How many inputs the model has; None: it takes any number."""

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        """The graph for these input types, to be compiled, and the initial arrays of its states."""

    def pieces(self, host: Host, progress: Progress | None = None) -> Pieces | None:
        """How the model runs where its sizes follow from data; None where it has no such way."""

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        """What the model takes and gives for these input types; the graph that `graph` gives next is not made again for it."""

    def input_dtype(self, index: int, given: np.ndarray) -> str:
        """The element type that input `index` is converted to."""

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """The types of the inputs of a micro-batch, by name: its rows as the options say, the rest as the model declares it, or as data have it.

        Raises:
            ModelError: sizes stay open.
            DataError: it cannot be told which of the data are which input.
        """

    def names_for(self, data: Dataset) -> Sequence[str]:
        """The inputs that data are for, by name."""

    def attach(self) -> None:
        """The session has the states now: let the model's own parameters show it."""

    def parameter_names(self) -> Mapping[int, str]:
        """The names of the parameters by the identity of the model's own objects."""

    def state_dict(self, training: bool) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by name, all after the same whole update."""

    def load_state_dict(self, tensors: Mapping[str, Any], training: bool, strict: bool) -> None:
        """Overwrite parameters and buffers (DataError where they do not fit: then none is)."""


class OnnxSource:
    """A loaded ONNX model. The last import for training and the last one for inference are kept, so that a shape is imported once.

    `as_written`: for inference, too, batch normalisation and dropout are what the file says they are.
    """

    def __init__(self, model: OnnxModel, options: Options, session: Session | None = None, as_written: bool = False) -> None:
        self.options, self.as_written, self.precision = options, as_written, Precision.of(options)
        self.session = session or Session()
        self.model = resolved(model, *self._ties())
        self.session.trainable = tuple(dict.fromkeys((*self.session.trainable, *options.trainable)))
        self._imported: dict[bool, tuple[object, Imported]] = {}
        """By whether it is for training: what the last import was of, and what it gave; `graph` gives copies of it away."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the file and a session of its own; what was imported is imported again."""
        return _source_again, (self.model.proto, self.model.path, self.options.clone(), self.session, self.as_written)

    def _ties(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The options tie and untie, which say what the parameters are: the same for all models of a session."""
        given, known = (self.options.tie, self.options.untie), self.session.ties
        if known is None:
            self.session.ties = known = given
        elif any(given) and given != known:
            raise OptionError(f"The model is in use with tie={list(known[0])} and untie={list(known[1])}, which say what its parameters are; "
                              f"give the same to all models of it, or load the file anew.")
        return known

    @property
    def input_count(self) -> int | None:
        return len(self.model.inputs)

    def input_dtype(self, index: int, given: np.ndarray) -> str:
        if index >= len(self.model.inputs):
            return given.dtype.name
        declared = self.model.inputs[index].dtype
        return self.precision.float_dtype or declared if declared in FLOATS else declared

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        imported = self._import(inputs, training)
        return copied(imported.graph), imported.weights

    def pieces(self, host: Host, progress: Progress | None = None) -> Pieces:
        """A run in pieces (UnsupportedError, naming every operator that tileflow does not have)."""
        if refused := unsupported_nodes(self.model):
            raise UnsupportedError(f"{self.model.where} has what tileflow cannot take "
                                   f"({'; '.join(f'{name}: {why}' for name, why in refused[:LISTED])}): export the model with other operators.")

        def compile(graph: Graph) -> Program:
            return compiler.inference(graph, Batching(1), CompileOptions(self.precision)).program
        cutter = Cutter(self.model, None if self.as_written else False, self.precision.float_dtype, self._trainable(False), self.precision.stored)
        return Pieces(cutter, self.session, host, compile, progress)

    def training_cut(self, host: Host, progress: Progress | None = None) -> TrainingCut:
        """How the model is trained where sizes in it follow from data."""
        trainable, head = split_head(tuple(self._trainable(True)), list(self.model.tensors))
        if head:
            raise UnsupportedError(f"{self.model.where}: sizes in it follow from data, and which layer is the head is found in one program only; "
                                   f"name the parameters that are to be trained, as in trainable='classifier.*'.")
        cutter = Cutter(self.model, True, self.precision.float_dtype, trainable, self.precision.stored, self.options.frozen_patterns)
        return TrainingCut(self.pieces(host, progress), cutter, cutter.trained())

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        imported = self._import(inputs, training)
        folded = folded_norms(self.model) if training else None
        return Signature(imported.binding.types, tuple(imported.graph.outputs), (*imported.warnings, *filter(None, [folded])))

    def _import(self, inputs: Sequence[TensorType], training: bool) -> Imported:
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
        imported = import_graph(self.model, dims=self.options.dims, input_types=types, training=mode, float_dtype=self.precision.float_dtype,
                                freeze=self.options.frozen_patterns, trainable=trainable, stored=self.precision.stored)
        for state in last_layer(imported.graph) if head and training else ():
            state.trainable = True
        self._check_kept(imported)
        self._imported[training] = key, imported
        return imported

    def _check_kept(self, imported: Imported) -> None:
        """Raise OptionError for a pattern of keep_float32 without effect."""
        own = {s.name: self.precision.float_dtype or self.model.array(imported.names[s.name]).dtype.name
               for s in imported.graph.parameters} if self.precision.kept else {}
        own |= {name: own[s.name] for s in imported.graph.parameters for name in (s.known_as, *s.aliases) if self.precision.kept}
        self.precision.check_kept(own, self.model.where)

    def _trainable(self, training: bool) -> Sequence[str]:
        """Patterns of what is trained in any case; for inference those of all trained models of the session, as they made parameters of constants."""
        return self.options.trainable if training else self.session.trainable

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """As the file declares them; rows settle open sizes that the options do not. A batch that the file fixes gives way to rows, and to the
        options where they say one."""
        found = {} if data is None else open_sizes(self.model, data.samples(self.names_for(data)))
        dims = {**found, **self.options.dims}
        return input_types(self.model, dims=dims, batch=self.options.micro_batch_size, float_dtype=self.precision.float_dtype,
                           restated=data is not None or self.options.given("micro_batch_size"))

    def names_for(self, data: Dataset) -> list[str]:
        return [port.name for port in self.model.inputs]

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
        self.session.put(fitting({name: self.session[name] for name in self.session.names("parameter", "buffer")}, tensors, strict))

    def _declare(self, training: bool) -> None:
        """Let the session have the file's weights, if no compiled model of it has seen to that."""
        if not self.session.names("parameter", "buffer"):
            imported = self._import(list(self.input_types().values()), training)
            self.session.turn.change(lambda: self.session.declare(declared(imported.graph.states), imported.weights))


def _source_again(proto: Any, path: Any, options: Options, session: Session, as_written: bool) -> OnnxSource:
    """A file's source out of a pickle, or copied."""
    made = OnnxSource(wrap_model(proto, path), options, session, as_written)
    session.owner = made.model
    return made


class NetSource:
    """A network of layers. All models wrapped around one network share its session."""

    def __init__(self, net: Module, options: Options) -> None:
        self.net, self.options, self.precision = net, options, Precision.of(options)
        if options.tie or options.untie:
            raise OptionError(f"Options tie and untie are about the tensors of an ONNX file; the layers of {type(net).__name__} share what they "
                              f"share, so leave them out.")
        self.session = net.session
        parameters = inspect.signature(net.forward).parameters.values()
        self._open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.input_names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._required = sum(p.default is p.empty for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has a network, and with it a session, of its own."""
        return NetSource, (self.net, self.options.clone())

    @property
    def input_count(self) -> int | None:
        return self._required if not self._open and self._required == len(self.input_names) else None

    def input_dtype(self, index: int, given: np.ndarray) -> str:
        """Floats become what the first parameter is; 16-bit ones given to wider layers stay, so that products are computed in 16 bits."""
        if kind_of(given.dtype) != "f":
            return given.dtype.name
        own = self.dtype
        return given.dtype.name if given.dtype.name in HALVES and own == "float32" else own

    @property
    def dtype(self) -> str:
        """The floating type of the network's first parameter, in which its inputs arrive."""
        stored = (self.precision.stored(name, p.stored) for name, p in self.net.named_parameters() if p.is_float and not isinstance(p, Buffer))
        return next(stored, self.precision.weights)

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        names = self._names(len(inputs))
        if len(inputs) < self._required:
            raise DataError(f"{type(self.net).__name__}.forward() needs {self._required} inputs, got {len(inputs)} arrays.")
        graph = record(self.net, list(zip(names, inputs, strict=False)), training=training, dtype=self.dtype, stored=self.precision.stored,
                       upcast=self.precision.upcast)
        own = {name: p.stored or self.precision.weights for name, p in self.net.named_parameters() if p.is_float and not isinstance(p, Buffer)}
        self.precision.check_kept(own, type(self.net).__name__)
        self._choose_trained(graph)
        return graph, {name: p.data for name, p in self.net.named_parameters()}

    def _choose_trained(self, graph: Graph) -> None:
        """Apply the options frozen and trainable to the states (OptionError for a pattern that fits no parameter)."""
        parameters = [s for s in graph.states if s.kind == "parameter"]
        frozen, (trainable, head) = self.options.frozen, split_head(self.options.trainable, [s.name for s in parameters])
        last = {s.name for s in last_layer(graph)} if head else set()
        for pattern in (*frozen, *trainable):
            if not any(s.fits(pattern) for s in parameters):
                raise OptionError(f"The pattern {pattern!r} fits no parameter of {type(self.net).__name__}; they are "
                                  f"{', '.join(s.name for s in parameters)}.")
        for state in parameters:
            wanted = not (trainable or head) or state.name in last or any(state.fits(p) for p in trainable)
            chosen = wanted and not any(state.fits(p) for p in frozen)
            state.trainable = state.trainable and chosen

    def pieces(self, host: Host, progress: Progress | None = None) -> None:
        """Layers record programs of static shapes."""

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        graph, _ = self.graph(inputs, training)
        return Signature({v.name: v.type for v in graph.inputs}, tuple(graph.outputs))

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """A network takes the data's shapes in its precision; none without data."""
        rows = {} if data is None else data.for_inputs(self.names_for(data))
        return {name: TensorType(self.dtype if kind_of(field.array.dtype) in "fu" else field.array.dtype.name,
                                 (self.options.micro_batch_size, *field.sample)) for name, field in rows.items()}

    def _names(self, count: int) -> list[str]:
        """What `forward` calls its first `count` inputs."""
        return [*self.input_names, *(f"input{i}" for i in range(len(self.input_names), count) if self._open)][:count]

    def names_for(self, data: Dataset) -> list[str]:
        """The inputs of `forward` that data are for: up to the last one that a field is called like, else as many as there are fields."""
        last = max((self.input_names.index(name) for name in data.fields if name in self.input_names), default=-1)
        by_name = not data.nameless and all(name in self.input_names for name in data.fields)
        return self.input_names[:last + 1] if by_name else self._names(max(len(data.fields), self._required))

    def parameter_names(self) -> Mapping[int, str]:
        """The paths of the network's parameters by their identity."""
        return {id(p): name for name, p in self.net.named_parameters()}

    def attach(self) -> None:
        for name, p in self.net.named_parameters():
            p.attach(self.session, name)

    def state_dict(self, training: bool) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by path, all after the same whole update."""
        return self.net.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Any], training: bool, strict: bool) -> None:
        """Overwrite parameters and buffers (DataError where they do not fit: then none is)."""
        self.net.load_state_dict(tensors, strict)
