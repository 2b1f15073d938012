"""Where a model comes from: an ONNX file or a network of layers. Both give graphs for input types and own one session."""
from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np

from .. import memory
from ..errors import DataError, OptionError, TypeMismatchError
from ..graph import CODES, Graph, TensorType, Value, kind_of
from ..graph.copy import copied
from ..importers.onnx import Imported, OnnxModel, folded_norms, import_graph, input_types, open_sizes, resolved
from ..nn import Module, record
from ..options import Options
from ..state import Session, fitting
from .data import Dataset


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

    @property
    def input_count(self) -> int | None:
        """How many inputs the model has; None: it takes any number."""

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        """The graph for these input types, to be compiled, and the initial arrays of its states."""

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

    def attach(self) -> None:
        """The session has the states now: let the model's own parameters show it."""

    def state_dict(self, training: bool) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by name, all after the same whole update."""

    def load_state_dict(self, tensors: Mapping[str, Any], training: bool, strict: bool) -> None:
        """Overwrite parameters and buffers (DataError where they do not fit: then none is)."""


class OnnxSource:
    """A loaded ONNX model. The last import for training and the last one for inference are kept, so that a shape is imported once.

    `as_written`: for inference, too, batch normalisation and dropout are what the file says they are.
    """

    def __init__(self, model: OnnxModel, options: Options, session: Session | None = None, as_written: bool = False) -> None:
        self.options, self.as_written = options, as_written
        self.session = session or Session()
        self.model = resolved(model, *self._ties())
        self.session.trainable = tuple(dict.fromkeys((*self.session.trainable, *options.trainable)))
        self._imported: dict[bool, tuple[object, Imported]] = {}
        """By whether it is for training: what the last import was of, and what it gave; `graph` gives copies of it away."""

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
        return self.options.precision if declared in ("float32", "float64") and self.options.precision == "float64" else declared

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        imported = self._import(inputs, training)
        return copied(imported.graph), imported.weights

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
        key = (tuple(inputs[:len(self.model.inputs)]), mode, tuple(trainable))
        kept = self._imported.get(training)
        if kept is not None and kept[0] == key:
            return kept[1]
        types = {port.name: t for port, t in zip(self.model.inputs, inputs, strict=False)}
        imported = import_graph(self.model, dims=self.options.dims, input_types=types, training=mode, float_dtype=self._float(),
                                freeze=self.options.frozen_patterns, trainable=trainable)
        self._imported[training] = key, imported
        return imported

    def _trainable(self, training: bool) -> Sequence[str]:
        """Patterns of what is trained in any case; for inference those of all trained models of the session, as they made parameters of constants."""
        return self.options.trainable if training else self.session.trainable

    def _float(self) -> str | None:
        return "float64" if self.options.precision == "float64" else None

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """As the file declares them; rows settle open sizes that the options do not."""
        found = {} if data is None else open_sizes(self.model, data.samples([port.name for port in self.model.inputs]))
        dims = {**found, **self.options.dims}
        return input_types(self.model, dims=dims, batch=self.options.micro_batch_size, float_dtype=self._float())

    def attach(self) -> None:
        """An ONNX model has no parameters of its own to show."""

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
            self.session.turn.change(lambda: self.session.declare(imported.graph.states, imported.weights))


class NetSource:
    """A network of layers. All models wrapped around one network share its session."""

    def __init__(self, net: Module, options: Options) -> None:
        self.net, self.options = net, options
        if options.tie or options.untie:
            raise OptionError(f"Options tie and untie are about the tensors of an ONNX file; the layers of {type(net).__name__} share what they "
                              f"share, so leave them out.")
        self.session = net.session
        parameters = inspect.signature(net.forward).parameters.values()
        self._open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.input_names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._required = sum(p.default is p.empty for p in parameters if p.kind is not p.VAR_POSITIONAL)

    @property
    def input_count(self) -> int | None:
        return self._required if not self._open and self._required == len(self.input_names) else None

    def input_dtype(self, index: int, given: np.ndarray) -> str:
        return self.options.precision if kind_of(given.dtype) == "f" else given.dtype.name

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        names = list(self.input_names)
        if self._open:
            names += [f"input{i}" for i in range(len(names), len(inputs))]
        if len(inputs) < self._required:
            raise DataError(f"{type(self.net).__name__}.forward() needs {self._required} inputs, got {len(inputs)} arrays.")
        graph = record(self.net, list(zip(names, inputs, strict=False)), training=training, dtype=self.options.precision)
        self._choose_trained(graph)
        return graph, {name: p.data for name, p in self.net.named_parameters()}

    def _choose_trained(self, graph: Graph) -> None:
        """Apply the options frozen and trainable to the states (OptionError for a pattern that fits no parameter)."""
        frozen, trainable = self.options.frozen, self.options.trainable
        parameters = [s for s in graph.states if s.kind == "parameter"]
        for pattern in (*frozen, *trainable):
            if not any(fnmatchcase(s.name, pattern) for s in parameters):
                raise OptionError(f"The pattern {pattern!r} fits no parameter of {type(self.net).__name__}; they are "
                                  f"{', '.join(s.name for s in parameters)}.")
        for state in parameters:
            chosen = not any(fnmatchcase(state.name, p) for p in frozen) and (not trainable or any(fnmatchcase(state.name, p) for p in trainable))
            state.trainable = state.trainable and chosen

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        graph, _ = self.graph(inputs, training)
        return Signature({v.name: v.type for v in graph.inputs}, tuple(graph.outputs))

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """A network takes the data's shapes in its precision; none without data."""
        rows = {} if data is None else dict(zip(self.input_names, data.fields.values(), strict=False))
        return {name: TensorType(self.options.precision if kind_of(field.array.dtype) in "fu" else field.array.dtype.name,
                                 (self.options.micro_batch_size, *field.sample)) for name, field in rows.items()}

    def attach(self) -> None:
        for name, p in self.net.named_parameters():
            dtype = self.session[name].dtype
            if p.data.dtype != dtype and dtype.name != self.options.precision:
                raise OptionError(f"{type(self.net).__name__} is already compiled for {dtype}; precision cannot change to {self.options.precision}.")
            p.attach(self.session, name)

    def state_dict(self, training: bool) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by path, all after the same whole update."""
        return self.net.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Any], training: bool, strict: bool) -> None:
        """Overwrite parameters and buffers (DataError where they do not fit: then none is)."""
        self.net.load_state_dict(tensors, strict)


def as_array(value: Any, dtype: str | None, what: str) -> np.ndarray:
    """An input as a C-contiguous array of `dtype` (None: its own).

    Raises:
        TypeMismatchError: not numeric, or a conversion that would lose more than precision.
    """
    array = np.asarray(value)
    if array.dtype.name not in CODES:
        raise TypeMismatchError(f"{what} has element type {array.dtype}; give numbers or booleans.")
    target = np.dtype(dtype) if dtype is not None else array.dtype
    if array.dtype != target:
        if kind_of(array.dtype) != kind_of(target) and not (array.dtype.kind in "iu" and target.kind in "iu"):
            raise TypeMismatchError(f"Data type mismatch for {what}: expected {target} but got {array.dtype}.")
        memory.require(array.size * target.itemsize, f"The conversion of {what} to {target}", f"give it as {target}, or give fewer rows")
        array = array.astype(target)
    if not array.flags.c_contiguous:
        memory.require(array.nbytes, f"A copy of {what} in row-major order", "give it in row-major order (np.ascontiguousarray), or give fewer rows")
    return np.ascontiguousarray(array).reshape(array.shape)
