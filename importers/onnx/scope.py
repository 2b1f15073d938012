"""What every tensor name of a file stands for while it is imported: a value of the graph, known elements, a weight, or nothing that there is."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import ml_dtypes
import numpy as np
from onnx import TensorProto

from tileflow.graph import FLOATS, OPS, Builder, Graph, State, TensorType, Value, type_of
from tileflow.memory.tensor import check_reach
from tileflow.ops.cast import Cast
from tileflow.ops.shape import Reshape, Transpose
from tileflow.system.errors import ModelError, UnsupportedError
from tileflow.system.text import one_line

from .bind import Binding
from .modes import Modes
from .parameters import ResolvedModel
from .tensors import DTYPES, SHOWN, excess, sparse_array, tensor_array
from .weights import ImportedStates

StoredAs = Callable[[str, "str | None", bool], str]
"""The floating type of a weight's state, from its name, its type in the file (None: files do not count) and whether it is a running statistic."""


class Scope:
    """The graph so far and the names in it: what a form sees of the import that its node is a part of.

    training: True turns Dropout and the training form of BatchNormalization on, False off, None leaves both as the file has them.
    depth: how many functions and branches the node at hand is nested in.
    """

    def __init__(self, model: ResolvedModel, binding: Binding, training: bool | None = False, float_dtype: str | None = None,
                 freeze: Sequence[str] = (), trainable: Sequence[str] = (), first: Scope | None = None, stored: StoredAs | None = None,
                 stream: int = 0) -> None:
        """`first` is that of the finished import with the batch that the file declares, where `binding` has another. `stored`: see `import_graph`.
        `stream`: the number of the first random stream."""
        self.model, self.binding, self.training = model, binding, training
        self._float, self.first, self._stored = float_dtype, first, stored
        self.graph = Graph(model.proto.graph.name or "model")
        self.builder = Builder(self.graph)
        self.warnings: list[str] = []
        self.weights = ImportedStates(model, freeze, trainable)
        self.sequences: dict[str, tuple[Value, ...]] = {}
        """What sequences of a known length hold."""
        self.absent: dict[str, str] = {}
        """Names that stand for nothing, and why."""
        self.inputs: dict[Value, str] = {}
        """What the graph's inputs stand for."""
        self.awaited: set[str] = set()
        """Names whose types `binding` has and that become inputs of the graph where they are read first."""
        self.folded_bytes = self.depth = 0
        self._values: dict[str, Value] = {}
        self._sparse = model.sparse
        self._known: dict[str, np.ndarray] = {}
        self._states: dict[Value, State] = {}
        self._whole: dict[str, Value] = {}
        self._streams = stream

    @property
    def rebatched(self) -> bool:
        """The file was written for another batch."""
        return self.first is not None

    @cached_property
    def modes(self) -> Modes:
        """How the file's batch normalisations normalise in training."""
        return Modes(self.model)

    # Names enter

    def enter_input(self, name: str) -> None:
        """An input of the model."""
        type = self.binding.types[name]
        self._check_type(f"the input '{name}'", type)
        self.awaited.discard(name)
        self._values[name] = value = self.builder.input(name, type)
        self.inputs[value] = name

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
        if name in self.awaited:
            self.enter_input(name)
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
        if name in self.awaited:
            return self.binding.types[name]
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
        if name in self.awaited:
            return None
        if name not in self._known and name not in self._values and name in self.model.initializers and name not in self.weights:
            self._known[name] = self.converted(self.model.array(name))
        if name not in self._known and name not in self._values and name in self._sparse:
            self._known[name] = self.converted(sparse_array(self._sparse[name], self.model.folders, self.model.where))
        return self._known.get(name)

    def static(self, name: str) -> np.ndarray | None:
        """The elements of the tensor `name` if the file holds them, weight or not."""
        known = self.known(name)
        if known is None and name in self.model.tensors and name not in self.awaited:
            return self.converted(self.model.array(name))
        return known

    # Weights

    def weight(self, name: str) -> Value:
        """A tensor of the file as a state, or as another state's elements."""
        view = self.weights.views.get(name)
        if view is not None:
            base = self.value(view.base)
            return self.builder.emit(Transpose(perm=(1, 0)), base, names=(name,))[0] if view.transposed else base
        array = self.model.array(name).reshape(self.model.shape(name))
        read = self.float_name(array.dtype.name)
        dtype = self._state_dtype(name, array.dtype.name)
        check_reach(array, dtype, name)
        value = Value(self.builder.name(name), type_of(array).with_dtype(dtype))
        state = self._states[value] = self.weights.state(name, value, array.astype(dtype, copy=False), "" if dtype == read else dtype)
        self.graph.states.append(state)
        if dtype != read:
            self._whole[name] = value
            value = self.builder.emit(Cast(to=read), value, names=(f"{name}.{read}",))[0]
            self._states[value] = state
        dims = tuple(self.model.tensors[name].dims)
        return value if value.shape == dims else self.builder.emit(Reshape(shape=dims, allowzero=1), value, names=(f"{name}.column",))[0]

    def _state_dtype(self, name: str, file: str) -> str:
        """What a weight is stored in; the graph reads it as the file's operators want it."""
        if file not in FLOATS or self._stored is None:
            return self.float_name(file)
        names = self.model.ties.names(name)
        found = {self._stored(n, None if self.changes_floats else file, self.weights.is_buffer(name)) for n in names}
        return "float32" if "float32" in found else found.pop()                # kept by any of its names

    def whole(self, name: str) -> Value:
        """The tensor `name` as a value; of a weight that is stored in another type than the file's operators read, as it is stored."""
        value = self.value(name)
        return self._whole.get(name, value)

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
        """The graph's outputs under their own names."""
        return self.named([(port.name, self.value(port.name)) for port in self.model.outputs])

    def named(self, wanted: Sequence[tuple[str, Value]]) -> list[Value]:
        """Values under these names: a copy where one is an input, a constant, a weight or has another name."""
        named = {v.name: v for v in [*self.graph.constants, *self._states, *(v for n in self.graph.nodes for v in n.outputs)]}
        results: dict[str, Value] = {}                      # a file may list an output twice
        for name, value in wanted:
            if name in results:
                continue
            result = value
            if value.producer is None or value.name != name:
                with self.builder.scope(source=name):
                    result = self.builder.emit(OPS["Identity"](), value, names=(name,))[0]
                if (other := named.get(name)) is not None:
                    other.name, result.name = result.name, name
            results[name] = result
        return [results[name] for name, _ in wanted]

    # Small services for the forms

    @property
    def changes_floats(self) -> bool:
        """Floating types are not those of the file."""
        return self._float is not None

    def float_name(self, dtype: str) -> str:
        """The engine's type for a floating type of the file."""
        return self._float if self._float is not None and dtype in FLOATS else dtype

    def converted(self, array: np.ndarray) -> np.ndarray:
        """An array of the file as the graph types it. What is finite stays so, and one number that is not zero stays none."""
        if array.dtype.name not in FLOATS or (dtype := np.dtype(self.float_name(array.dtype.name))) == array.dtype:
            return array
        if dtype.itemsize >= array.dtype.itemsize:
            return array.astype(dtype)
        limits = ml_dtypes.finfo(dtype)
        inside = np.where(np.isinf(array), array, np.clip(array, float(limits.min), float(limits.max))).astype(dtype)
        if array.size == 1 and (array != 0).all() and (inside == 0).all():
            inside = np.copysign(np.full(array.shape, limits.smallest_subnormal, dtype), np.sign(array).astype(dtype))
        return inside

    def tensor(self, tensor: TensorProto) -> np.ndarray:
        """A tensor's elements as the graph types them."""
        return self.converted(tensor_array(tensor, self.model.folders, self.model.where))

    def next_stream(self) -> int:
        """A number of its own for each operator that draws random numbers."""
        self._streams += 1
        return self._streams - 1
