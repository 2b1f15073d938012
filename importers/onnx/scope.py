"""What every tensor name of a file stands for while it is imported: a value of the graph, known elements, a weight, or nothing that there is."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tileflow.errors import ModelError, UnsupportedError
from tileflow.graph import FLOATS, OPS, Builder, Graph, Origin, State, TensorType, Value, type_of
from tileflow.ops.shape import Transpose
from tileflow.text import one_line

from .bind import Binding
from .parameters import ResolvedModel
from .tensors import DTYPES, SHOWN, excess, tensor_array
from .weights import Weights


class Scope:
    """The graph so far and the names in it: what a form sees of the import that its node is a part of.

    training: True turns Dropout and the training form of BatchNormalization on, False off, None leaves both as the file has them.
    depth: how many functions and branches the node at hand is nested in.
    """

    def __init__(self, model: ResolvedModel, binding: Binding, training: bool | None = False, float_dtype: str | None = None,
                 freeze: Sequence[str] = (), trainable: Sequence[str] = (), first: Scope | None = None) -> None:
        """`first` is that of the finished import with the batch that the file declares, where `binding` has another."""
        self.model, self.binding, self.training = model, binding, training
        self._float, self.first = float_dtype, first
        self.graph = Graph(model.proto.graph.name or "model")
        self.builder = Builder(self.graph)
        self.warnings: list[str] = []
        self.weights = Weights(model, freeze, trainable)
        self.sequences: dict[str, tuple[Value, ...]] = {}
        """What sequences of a known length hold."""
        self.absent: dict[str, str] = {}
        """Names that stand for nothing, and why."""
        self.folded_bytes = self.depth = 0
        self._values: dict[str, Value] = {}
        self._known: dict[str, np.ndarray] = {}
        self._states: dict[Value, State] = {}
        self._streams = 0

    @property
    def rebatched(self) -> bool:
        """The file was written for another batch."""
        return self.first is not None

    # Names enter

    def enter_input(self, name: str) -> None:
        """An input of the model."""
        type = self.binding.types[name]
        self._check_type(f"the input '{name}'", type)
        self._values[name] = self.builder.input(name, type)

    def enter(self, name: str, result: Value | np.ndarray, maker: str) -> None:
        """A value or known elements; branches may use a name again. `maker` is how messages call what made it."""
        if isinstance(result, np.ndarray):
            self._known[name] = result
            self._values.pop(name, None)
            return
        self._check_type(f"{maker} makes '{name}'", result.type)
        self._values[name] = result
        self._known.pop(name, None)

    def _check_type(self, what: str, type: TensorType) -> None:
        """Raise ModelError for a tensor that cannot be."""
        if (why := excess(type.shape, type.itemsize)) is not None:
            raise ModelError(f"{what}, {one_line(type, SHOWN)}: {why}")

    # Names are read

    def value(self, name: str) -> Value:
        """The tensor `name` as a value of the graph; weights and constants are entered at their first use."""
        if name not in self._values:
            known = self.known(name)
            if known is not None:
                self._values[name] = self.builder.constant(known, name)
            elif name in self.weights:
                self._values[name] = self.weight(name)
            else:
                raise UnsupportedError(self.absent.get(name) or f"it reads '{name}', which is not there")
        return self._values[name]

    def result(self, name: str) -> Value | np.ndarray:
        """The tensor `name` as it is known best."""
        known = self.known(name)
        return known if known is not None else self.value(name)

    def type(self, name: str) -> TensorType:
        """The type of the tensor `name`, without entering it into the graph."""
        if name in self._values:
            return self._values[name].type
        known = self.known(name)
        if known is not None:
            return type_of(known)
        if name in self.model.tensors:
            tensor = self.model.tensors[name]
            if tensor.data_type in DTYPES:
                return TensorType(self.float_name(DTYPES[tensor.data_type]), tuple(tensor.dims))
        return self.value(name).type

    def known(self, name: str) -> np.ndarray | None:
        """The elements of the tensor `name` if they are known and it is no weight."""
        if name not in self._known and name not in self._values and name in self.model.initializers and name not in self.weights:
            self._known[name] = self.converted(self.model.array(name))
        return self._known.get(name)

    def static(self, name: str) -> np.ndarray | None:
        """The elements of the tensor `name` if the file holds them, weight or not."""
        known = self.known(name)
        if known is None and name in self.model.tensors:
            return self.converted(self.model.array(name))
        return known

    # Weights

    def weight(self, name: str) -> Value:
        """A tensor of the file as a state, or as another state's elements."""
        view = self.weights.views.get(name)
        if view is not None:
            base = self.value(view.base)
            return self.builder.emit(Transpose(perm=(1, 0)), base, names=(name,))[0] if view.transposed else base
        array = self.converted(self.model.array(name))
        value = Value(self.builder.name(name), type_of(array))
        state = self._states[value] = self.weights.state(name, value, array)
        self.graph.states.append(state)
        return value

    def update(self, name: str, new: Value) -> None:
        """In training, let `new` replace the state behind the tensor `name` after every micro-batch."""
        if not self.training:
            return
        state = self._states.get(self.value(name))
        if state is not None and state.kind == "buffer":
            if state.output is not None:
                self.warnings.append(f"The running statistics '{state.name}' are shared by several normalisations; "
                                     f"the last one keeps them.")
            state.output, state.when = new, "micro"

    def drop_unread_states(self) -> None:
        """Weights of nodes that no result needs: training must not decay them."""
        read = self.graph.uses()
        self.graph.states = [s for s in self.graph.states if s.input in read]

    # Outputs

    def outputs(self) -> list[Value]:
        """The graph's outputs under their own names: a copy where the tensor is an input, a constant, a weight or has another name."""
        values = [self.value(port.name) for port in self.model.outputs]
        named = {v.name: v for v in [*self.graph.constants, *self._states, *(v for n in self.graph.nodes for v in n.outputs)]}
        results: dict[str, Value] = {}                      # a file may list an output twice
        for port, value in zip(self.model.outputs, values, strict=True):
            if port.name in results:
                continue
            result = value
            if value.producer is None or value.name != port.name:
                with self.builder.at(Origin((port.name,))):
                    result = self.builder.emit(OPS["Identity"](), value, names=(port.name,))[0]
                if (other := named.get(port.name)) is not None:
                    other.name, result.name = result.name, port.name
            results[port.name] = result
        return [results[port.name] for port in self.model.outputs]

    # Small services for the forms

    @property
    def changes_floats(self) -> bool:
        """Floating types are not those of the file."""
        return self._float is not None

    def float_name(self, dtype: str) -> str:
        """The engine's type for a floating type of the file."""
        return self._float if self._float is not None and dtype in FLOATS else dtype

    def converted(self, array: np.ndarray) -> np.ndarray:
        """An array of the file as the graph types it."""
        return array.astype(self.float_name(array.dtype.name), copy=False) if array.dtype.name in FLOATS else array

    def tensor(self, tensor: TensorProto) -> np.ndarray:
        """A tensor's elements as the graph types them."""
        return self.converted(tensor_array(tensor, self.model.folder, self.model.where))

    def next_stream(self) -> int:
        """A number of its own for each operator that draws random numbers."""
        self._streams += 1
        return self._streams - 1
