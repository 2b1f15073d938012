"""A network of layers as a source of graphs: recorded for input types, with the network's session."""
from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..graph import Graph
from ..memory.tensor import kind_of
from ..memory.types import HALVES, TensorType
from ..nn import Buffer, Module
from ..nn.module import recorded
from ..options.options import Options
from ..passes.head import last_layer, split_head
from ..precision.types import Precision
from ..system.errors import DataError, OptionError, see
from ..system.nested import Form, Results, check_arguments
from .data import Dataset
from .forms import arranged
from .host import Host, Progress
from .source import Signature
from .stored import Stored


class NetSource:
    """A network of layers. All models wrapped around one network share its session.

    form: of the calls that graphs are wanted for. results: how what `forward` returned is nested.
    """

    has_graph: ClassVar[bool] = True

    def __init__(self, net: Module, options: Options) -> None:
        self.net, self.options, self.precision = net, options, Precision.of(options)
        if options.tie or options.untie:
            raise OptionError("Options tie and untie are about the tensors of an ONNX file; the layers of "
                              f"{type(net).__name__} share what they share, so leave them out.")
        self.session = net.session
        self.stored: tuple[Stored, ...] = ()
        self.form: Form | None = None
        self.results: Results | None = None
        parameters = inspect.signature(net.forward).parameters.values()
        self._open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.input_names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._needed = [p.name for p in parameters if p.default is p.empty
                        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self._required = sum(p.default is p.empty
                             for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has a network, and with it a session, of its own."""
        return NetSource, (self.net, self.options.clone())

    def with_options(self, options: Options) -> NetSource:
        return NetSource(self.net, options)

    @property
    def parameters(self) -> list[str]:
        """What `forward` calls its arguments."""
        return [*self.input_names, *self._by_name]

    def arranged(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Form | None, Sequence[Any]]:
        """A call's form and the arrays in it (DataError where a name is not known, or given twice, or an argument is
        missing)."""
        if named:
            check_arguments(f"{type(self.net).__name__}.forward()", args, named, self.input_names, self._needed,
                            self._by_name, self._takes_any)
        return arranged(args, named, self.input_names)

    def formed(self, form: Form | None) -> NetSource:
        """The network for calls of that form."""
        made = NetSource(self.net, self.options)
        made.form = form
        return made

    @property
    def input_count(self) -> int | None:
        return self._required if not self._open and self._required == len(self.input_names) else None

    def input_dtype(self, index: int, given: np.ndarray) -> str:
        """Floats become what the first parameter is; 16-bit ones given to wider layers stay, so that products are
        computed in 16 bits."""
        if kind_of(given.dtype) != "f":
            return given.dtype.name
        own = self.dtype
        return given.dtype.name if given.dtype.name in HALVES and own == "float32" else own

    @property
    def dtype(self) -> str:
        """The floating type of the network's first parameter, in which its inputs arrive."""
        stored = (self.precision.stored(name, p.stored)
                  for name, p in self.net.named_parameters() if p.is_float and not isinstance(p, Buffer))
        return next(stored, self.precision.weights)

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        names = self._names(len(inputs)) if self.form is None else self.form.names
        if self.form is None and len(inputs) < self._required:
            raise DataError(f"{type(self.net).__name__}.forward() needs {self._required} inputs, got {len(inputs)} "
                            "arrays.")
        graph, self.results = recorded(self.net, list(zip(names, inputs, strict=False)), training=training,
                                       dtype=self.dtype,
                                       stored=self.precision.stored, upcast=self.precision.upcast, form=self.form)
        own = {name: p.stored or self.precision.weights
               for name, p in self.net.named_parameters() if p.is_float and not isinstance(p, Buffer)}
        self.precision.check_kept(own, type(self.net).__name__)
        self._choose_trained(graph)
        return graph, {name: p.data for name, p in self.net.named_parameters()}

    def _choose_trained(self, graph: Graph) -> None:
        """Apply the options frozen and trainable to the states (OptionError for a pattern that fits no parameter)."""
        parameters = [s for s in graph.states if s.kind == "parameter"]
        frozen, (trainable, head) = self.options.frozen, split_head(self.options.trainable,
                                                                    [s.name for s in parameters])
        last = {s.name for s in last_layer(graph)} if head else set()
        for pattern in (*frozen, *trainable):
            if not any(s.fits(pattern) for s in parameters):
                raise OptionError(f"The pattern {pattern!r} fits no parameter of {type(self.net).__name__}; they are "
                                  f"{', '.join(s.name for s in parameters)}.{see('finetuning')}")
        for state in parameters:
            wanted = not (trainable or head) or state.name in last or any(state.fits(p) for p in trainable)
            chosen = wanted and not any(state.fits(p) for p in frozen)
            state.trainable = state.trainable and chosen

    def pieces(self, host: Host, progress: Progress | None = None) -> None:
        """Layers record programs of static shapes."""

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        graph, _ = self.graph(inputs, training)
        return Signature.of({v.name: v.type for v in graph.inputs}, graph.outputs)

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """A network takes the data's shapes in its precision; none without data."""
        rows = {} if data is None else data.for_inputs(self.names_for(data))
        return {name: TensorType(self.dtype if kind_of(field.array.dtype) in "fu" else field.array.dtype.name,
                                 (self.options.micro_batch_size, *field.sample)) for name, field in rows.items()}

    def _names(self, count: int) -> list[str]:
        """What `forward` calls its first `count` inputs."""
        return [*self.input_names, *(f"input{i}" for i in range(len(self.input_names), count) if self._open)][:count]

    def names_for(self, data: Dataset) -> list[str]:
        """The inputs of `forward` that data are for: up to the last one that a field is called like, else as many as
        there are fields."""
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
