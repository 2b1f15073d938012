"""Where a model comes from: what a source of graphs is, be it an ONNX file or a network of layers. Each owns a
session."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from ..loss import Ending, Output
from ..memory.types import CODES, TensorType
from ..options.options import Options
from ..precision.types import Precision
from ..state import Session
from ..system.nested import Form, Results, check_arguments, positional
from .data import Dataset
from .host import Host, Progress
from .stored import Stored

if TYPE_CHECKING:
    from ..graph import Graph, Value
    from .pieces import Pieces


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives for one micro-batch.

    inputs: types by name. outputs: what a loss is chosen by. warnings: sentences on how the model was read.
    """

    inputs: Mapping[str, TensorType]
    outputs: tuple[Output, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, inputs: Mapping[str, TensorType], outputs: Sequence[Value], warnings: Sequence[str] = ()) -> Signature:
        """That of a graph with these outputs."""
        return cls(inputs, tuple(map(Output.of, outputs)), tuple(warnings))

    def told(self) -> list[Any]:
        """In JSON's types, of which `of_told` makes it again."""
        outputs = [[v.name, *written_type(v.type), v.ending and [v.ending.kind, v.ending.axis]] for v in self.outputs]
        return [{name: written_type(t) for name, t in self.inputs.items()}, outputs, self.warnings]

    @classmethod
    def of_told(cls, told: Any) -> Signature:
        inputs, outputs, warnings = told
        return cls({name: read_type(t) for name, t in inputs.items()},
                   tuple(Output(name, read_type((dtype, shape)), ending and Ending(*ending))
                         for name, dtype, shape, ending in outputs),
                   tuple(warnings))


def written_type(t: TensorType) -> list[Any]:
    """A type in JSON's types, of which `read_type` makes it again."""
    return [t.dtype, list(t.shape)]


def read_type(told: Sequence[Any]) -> TensorType:
    """ValueError where it is none."""
    dtype, shape = told
    if dtype not in CODES or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(told)
    return TensorType(dtype, tuple(shape))


class Flat:
    """What a source has whose calls are arrays one after the other."""

    results: Results | None = None

    @property
    def parameters(self) -> Sequence[str]:
        """What inputs are called, and may be given by in a call."""
        return ()

    def arranged(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Form | None, Sequence[Any]]:
        """The arrays of a call in their order (DataError where names do not fit)."""
        if named:
            check_arguments("The model", args, named, self.parameters, self.parameters)
            args, _ = positional(args, named, self.parameters)
        return None, args

    def formed(self, form: Form | None) -> Self:
        """It has one form."""
        return self


class Source(Protocol):
    """A model before its input types are known."""

    session: Session
    precision: Precision
    stored: tuple[Stored, ...]
    """Programs of executables, which need not be compiled."""
    has_graph: ClassVar[bool]
    """A graph is made in less time than a program is compiled: no exporter is asked for it."""

    def with_options(self, options: Options) -> Source:
        """The same model with other options, on the same session, for a model to be made of it."""

    @property
    def input_count(self) -> int | None:
        """How many inputs the model has; None: it takes any number."""

    @property
    def parameters(self) -> Sequence[str]:
        """What inputs are called, and may be given by in a call."""

    def arranged(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Form | None, Sequence[Any]]:
        """The form of a call's arguments (None: arrays one after the other) and the arrays among them (DataError where
        they do not fit)."""

    def formed(self, form: Form | None) -> Source:
        """The model for calls of that form."""

    @property
    def results(self) -> Results | None:
        """How results of the graph that was made last are nested; None: one, or several in a tuple."""

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
