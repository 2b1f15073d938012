"""ModelProto -> Graph: types inferred node by node, weights as states, shape arithmetic evaluated, everything unsupported named at once."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, NodeProto

import tileflow.ops  # noqa: F401  (fills the registry)
from tileflow import memory
from tileflow.errors import ModelError, ShapeError, TileflowError, UnsupportedError
from tileflow.graph import FLOATS, OPS, Builder, Graph, Origin, State, TensorType, Value, type_of, verify
from tileflow.graph.collector import without_collector
from tileflow.ops.shape import Transpose
from tileflow.text import one_line

from . import attention as _attention  # noqa: F401  (registers its form)
from . import gather as _gather  # noqa: F401  (registers its form)
from . import pool as _pool  # noqa: F401  (registers its form)
from . import sequences as _sequences  # noqa: F401  (registers its forms)
from .bind import Binding, bind_inputs
from .fold import FOLDERS, LIMIT, fold
from .functions import body_of, inlined
from .load import OnnxModel, label, schema_of, title
from .parameters import ResolvedModel, Verdict, notes, resolved
from .site import DynamicOperandError, Site
from .tensors import DTYPES, SHOWN, elements_bytes, excess, tensor_array
from .versions import form_of
from .weights import Weights

LISTED = 10
"""Unsupported nodes that a message names."""
LARGE = 1 << 24
"""Bytes: operators on larger constants stay in the graph where the engine has them."""
NESTED = 32
"""Depth of functions and branches within each other."""
MOST_NODES = 1_000_000
"""Nodes of one model, functions expanded: small files can unfold into endless ones."""
FROM_SHAPE = ("Shape", "Size")
"""Folded from the type of their input alone."""
FROM_VALUES = ("ConstantOfShape", "Range")
"""The values of their inputs decide the shape of their output."""


class UnsupportedNodesError(DynamicOperandError):
    """Nodes that cannot be imported: `refused` has (node, why) for all of them; with `names` known as `values` all of them could."""

    def __init__(self, message: str, refused: Sequence[tuple[str, str]], names: frozenset[str]) -> None:
        super().__init__(message, names)
        self.refused = tuple(refused)


@dataclass
class Imported:
    """What a model became.

    weights: the elements of every state by name, as the graph types them. names: state name -> the initializer of the file that it starts as.
    model: the file with its parameters told apart, which can take the weights back. verdicts: what became of every floating tensor, and why.
    """

    graph: Graph
    names: dict[str, str]
    weights: dict[str, np.ndarray]
    binding: Binding
    model: ResolvedModel
    verdicts: Mapping[str, Verdict]
    warnings: list[str] = field(default_factory=list)


@without_collector
def import_graph(model: OnnxModel, *, dims: Mapping[str, int] | None = None, batch: int | None = None, training: bool | None = False,
                 input_types: Mapping[str, TensorType] | None = None, float_dtype: str | None = None,
                 freeze: Sequence[str] = (), trainable: Sequence[str] = (), tie: Sequence[str] = (), untie: Sequence[str] = (),
                 values: Mapping[str, np.ndarray] | None = None) -> Imported:
    """Translate a model into a graph with static shapes.

    The rules of `parameters/rules.py` say which floating tensors become trainable parameters, buffers (running statistics) and constants;
    tensors that the exporter merged because their values are equal become parameters of their own (`parameters/ties.py`). The options are
    name patterns (`fc*.weight`): frozen parameters are not trained, `trainable` wins over `freeze` and makes parameters of constants that it
    names, `tie` and `untie` overrule what the file says of ties. A model that was resolved before keeps its ties.

    Args:
        dims, batch, input_types: sizes of what the file leaves open; see `bind_inputs`.
        training: True turns Dropout and the training form of BatchNormalization on, False off, None leaves both as the file has them.
        float_dtype: give every floating value this type ("float64": the engine that checks float32 training).
        values: inputs taken as constants, for shapes that are data.

    Raises:
        UnsupportedError: naming all nodes tileflow has no operator for.
        ModelError, OptionError, ShapeError, TypeMismatchError: the file or the sizes do not fit together.
    """
    told = resolved(model, tie, untie)
    needed = sum(elements_bytes(t) for t in told.tensors.values())
    memory.require(needed, f"{model.where}: its weights and constants", "use a smaller model, or a machine with more memory")
    types = {**dict(input_types or {}), **{name: type_of(np.asarray(a)) for name, a in (values or {}).items()}}
    try:
        binding = bind_inputs(told, dims, batch, types, float_dtype)
    except TileflowError as error:
        error.args = (one_line(error),)                       # names of dimensions can be of any length
        raise
    first = None
    if binding.rebatched:
        first = Importer(told, binding.as_declared(), training, float_dtype)
        first.run(values or {})
    return Importer(told, binding, training, float_dtype, freeze, trainable, first).run(values or {})


class Importer:
    """One import: the graph so far, and what every tensor name of the file stands for."""

    def __init__(self, model: ResolvedModel, binding: Binding, training: bool | None = False, float_dtype: str | None = None,
                 freeze: Sequence[str] = (), trainable: Sequence[str] = (), first: Importer | None = None) -> None:
        """`first` is the finished import with the batch that the file declares, where `binding` has another."""
        self._first = first
        self.model, self.binding, self.training, self._float = model, binding, training, float_dtype
        self.graph = Graph(model.proto.graph.name or "model")
        self.builder = Builder(self.graph)
        self.warnings: list[str] = []
        self._weights = Weights(model, freeze, trainable)
        self._values: dict[str, Value] = {}
        self._states: dict[Value, State] = {}
        self._known: dict[str, np.ndarray] = {}
        self._absent: dict[str, str] = {}
        self.sequences: dict[str, tuple[Value, ...]] = {}
        """What sequences of a known length hold."""
        self._poisoned: set[str] = set()
        self._count = self.folded_bytes = 0
        self._refused: list[tuple[str, UnsupportedError]] = []
        self._parents: dict[str, tuple[str, ...]] = {}
        self._streams = 0
        self._depth = 0
        self._functions = {(f.domain, f.name): f for f in model.proto.functions}

    def run(self, values: Mapping[str, np.ndarray]) -> Imported:
        """Import the whole graph."""
        try:
            return self._run(values)
        except TileflowError as error:
            message = str(error)
            if isinstance(error, ShapeError) and self._first is not None:
                message = (f"{message.rstrip('.')}; the file declares batch {self.binding.declared_batch} and {self.binding.batch} "
                           f"was asked for, so if this is why, export it with a symbolic batch")
            if not message.startswith(self.model.where):
                message = f"{self.model.where}: {message}"
            error.args = (one_line(message),)
            raise

    def _run(self, values: Mapping[str, np.ndarray]) -> Imported:
        for port in self.model.inputs:
            if port.name in values:
                self._known[port.name] = self.converted(np.asarray(values[port.name]))
            else:
                self._check_type(f"the input '{port.name}'", self.binding.types[port.name])
                self._values[port.name] = self.builder.input(port.name, self.binding.types[port.name])
        if self.binding.rebatched:
            self.warnings.append(f"The file declares batch {self.binding.declared_batch} for {', '.join(sorted(self.binding.rebatched))}; "
                                 f"it is imported with batch {self.binding.batch}.")
        for sparse in self.model.proto.graph.sparse_initializer:
            self._absent[sparse.values.name] = f"it reads the sparse initializer '{sparse.values.name}'; store it as a plain one"
        self.nodes(self.model.nodes, self.model.opset)
        self._raise_refused()
        self.graph.outputs = self._outputs()
        order = {name: i for i, name in enumerate(self.model.tensors)}
        self.graph.states.sort(key=lambda s: order[s.name])
        self.graph.prune()
        self._drop_unread_states()
        self._weights.check_patterns()
        verify(self.graph)
        names = [s.name for s in self.graph.states]
        if self.training:
            said = notes(self.model.ties, self._weights.verdicts, names)
            self.warnings += said.ties + said.doubts
        starts = self.model.ties.copies
        return Imported(self.graph, {n: starts.get(n, n) for n in names}, {n: self._weights.arrays[n] for n in names}, self.binding, self.model,
                        self._weights.verdicts, self.warnings)

    def _drop_unread_states(self) -> None:
        """Weights of nodes that no result needs: training must not decay them."""
        read = self.graph.uses()
        self.graph.states = [s for s in self.graph.states if s.input in read]

    # Nodes

    def nodes(self, nodes: Iterable[NodeProto], opset: Mapping[str, int]) -> None:
        """Import nodes in order; what is unsupported is remembered, and what depends on it is only checked for support."""
        for node in nodes:
            self._count += 1
            if self._count > MOST_NODES:
                raise ModelError(f"the model has more than {MOST_NODES} nodes once its functions are expanded; simplify it")
            outputs = [name for name in node.output if name]
            self._parents.update({name: tuple(node.input) for name in outputs})
            if any(name in self._poisoned for name in node.input):
                self._poisoned.update(outputs)
                why = unsupported(node, opset, self._functions)
                error = UnsupportedError(why) if why else None
            else:
                error = self._try(node, opset)
            if error is not None:
                self._refused.append((title(node), error))
                self._poisoned.update(outputs)

    def _try(self, node: NodeProto, opset: Mapping[str, int]) -> UnsupportedError | None:
        try:
            self._node(node, opset)
        except DynamicOperandError as error:
            return error
        except UnsupportedError as error:
            return UnsupportedError(str(error).removeprefix(f"{node.op_type} ({self._label(node)}): ").rstrip("."))
        return None

    def _node(self, node: NodeProto, opset: Mapping[str, int]) -> None:
        site = Site(self, node, opset)
        results: Sequence[Value | np.ndarray | None] | None = None
        with self.builder.at(Origin((self._label(node),))):
            if site.domain == "" and site.schema is not None:
                site.check()
                results = self._trained_constant(node) or self._evaluated(site)
                if results is None and (function := form_of(node.op_type, site.opset)) is not None:
                    results = function(site)
                if results is None and node.op_type in OPS and OPS[node.op_type].onnx:
                    results = site.generic()
        if results is None:
            results = self._expanded(site)
        self._bind_outputs(node, results)

    def _trained_constant(self, node: NodeProto) -> Sequence[Value] | None:
        """A Constant of the main graph that the user wants to train."""
        if node.op_type == "Constant" and not self._depth and node.output[0] in self._weights:
            return (self._weight(node.output[0]),)
        return None

    def _label(self, node: NodeProto) -> str:
        outer = self.builder.origin.sources
        return outer[0] if outer and self._depth else label(node)

    def _bind_outputs(self, node: NodeProto, results: Sequence[Value | np.ndarray | None]) -> None:
        for i, name in enumerate(node.output):
            if not name:
                continue
            result = results[i] if i < len(results) else None
            if result is None:
                self._absent[name] = f"it reads output {i} of {title(node)}, which tileflow does not compute"
                continue
            if isinstance(result, np.ndarray):
                self._known[name] = result
                self._values.pop(name, None)         # branches may use a name again
                continue
            self._check_type(f"{title(node)} makes '{name}'", result.type)
            self._values[name] = result
            self._known.pop(name, None)

    def _check_type(self, what: str, type: TensorType) -> None:
        """Raise ModelError for a tensor that cannot be."""
        if (why := excess(type.shape, type.itemsize)) is not None:
            raise ModelError(f"{what}, {one_line(type, SHOWN)}: {why}")

    def _evaluated(self, site: Site) -> list[np.ndarray] | None:
        """The node's outputs if they can be known now."""
        if site.op_type not in FOLDERS:
            return None
        if site.op_type in FROM_SHAPE:
            return fold(site, [np.broadcast_to(np.zeros((), np.int8), self.type(site.inputs[0]).shape)])
        arrays = [self.known(name) if name else None for name in site.inputs]
        if any(a is None and name for a, name in zip(arrays, site.inputs, strict=True)):
            return None
        if sum(a.nbytes for a in arrays if a is not None) > LARGE and site.op_type in OPS:
            return None
        return [self.converted(a) for a in fold(site, arrays) or []] or None

    def _expanded(self, site: Site) -> Sequence[Value | np.ndarray | None]:
        """The node as the nodes of its function: one of the model's own, or ONNX's definition of the operator."""
        if site.domain == "" and site.op_type in FROM_VALUES:
            raise DynamicOperandError("its output's shape is computed while the model runs; the operands must be constants", frozenset(site.inputs))
        body = body_of(site.node, site.opsets, self._functions, [self._proto_type(name) for name in site.inputs])
        if body is None and site.domain == "" and site.schema is not None and site.op_type in FOLDERS:
            raise UnsupportedError("tileflow has this operator for constant operands only")
        if body is None:
            raise UnsupportedError(_unknown(site.node, site.opsets))
        nodes, outputs, opset = inlined(body, site)
        with self.builder.at(Origin((self._label(site.node),))):
            self._nested(nodes, opset)
        return [self._result(name) if name else None for name in outputs]

    def inline_graph(self, graph: GraphProto, opset: Mapping[str, int]) -> Sequence[Value | np.ndarray]:
        """A subgraph in place of its node; its initializers are constants."""
        for tensor in graph.initializer:
            self._known[tensor.name] = self.converted(tensor_array(tensor, self.model.folder, self.model.where))
            self._values.pop(tensor.name, None)
        self._nested(graph.node, opset)
        return [self._result(v.name) for v in graph.output]

    def _nested(self, nodes: Iterable[NodeProto], opset: Mapping[str, int]) -> None:
        if self._depth >= NESTED:
            raise ModelError(f"functions and branches are nested more than {NESTED} deep; flatten the model with onnx.inliner")
        before, self._refused = self._refused, []
        self._depth += 1
        try:
            self.nodes(nodes, opset)
        finally:
            self._depth -= 1
            inner, self._refused = self._refused, before
        if inner:
            dynamic = self._ancestors([e for _, e in inner])
            why = f"in it: {', '.join(f'{name} ({error})' for name, error in inner[:3])}"
            raise DynamicOperandError(why, dynamic) if dynamic else UnsupportedError(why)

    def _result(self, name: str) -> Value | np.ndarray:
        known = self.known(name)
        return known if known is not None else self.value(name)

    def _raise_refused(self) -> None:
        if not self._refused:
            return
        shown = "; ".join(f"{name}: {error}" for name, error in self._refused[:LISTED])
        more = f"; and {len(self._refused) - LISTED} more" if len(self._refused) > LISTED else ""
        count = f"{len(self._refused)} nodes" if len(self._refused) > 1 else "a node"
        message = f"{self.model.where} has {count} that tileflow cannot take ({shown}{more}): export the model with other operators."
        errors = [e for _, e in self._refused]
        refused = [(name, str(error)) for name, error in self._refused]
        all_dynamic = all(isinstance(e, DynamicOperandError) for e in errors)
        raise UnsupportedNodesError(message, refused, self._ancestors(errors) if all_dynamic else frozenset())

    # Names

    def value(self, name: str) -> Value:
        """The tensor `name` as a value of the graph; weights and constants are entered at their first use."""
        if name not in self._values:
            known = self.known(name)
            if known is not None:
                self._values[name] = self.builder.constant(known, name)
            elif name in self._weights:
                self._values[name] = self._weight(name)
            else:
                raise UnsupportedError(self._absent.get(name) or f"it reads '{name}', which is not there")
        return self._values[name]

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
        if name not in self._known and name not in self._values and name in self.model.initializers and name not in self._weights:
            self._known[name] = self.converted(self.model.array(name))
        return self._known.get(name)

    def static(self, name: str) -> np.ndarray | None:
        """The elements of the tensor `name` if the file holds them, weight or not."""
        known = self.known(name)
        if known is None and name in self.model.tensors:
            return self.converted(self.model.array(name))
        return known

    def _ancestors(self, errors: Iterable[UnsupportedError]) -> frozenset[str]:
        """The graph inputs that the tensors depend on that had to be known."""
        seen = {name for error in errors if isinstance(error, DynamicOperandError) for name in error.names}
        stack = list(seen)
        while stack:
            for parent in self._parents.get(stack.pop(), ()):
                if parent and parent not in seen:
                    seen.add(parent)
                    stack.append(parent)
        return frozenset(p.name for p in self.model.inputs if p.name in seen)

    def _weight(self, name: str) -> Value:
        """A tensor of the file as a state, or as another state's elements."""
        view = self._weights.views.get(name)
        if view is not None:
            base = self.value(view.base)
            return self.builder.emit(Transpose(perm=(1, 0)), base, names=(name,))[0] if view.transposed else base
        array = self.converted(self.model.array(name))
        value = Value(self.builder.name(name), type_of(array))
        state = self._states[value] = self._weights.state(name, value, array)
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

    def _outputs(self) -> list[Value]:
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

    @property
    def is_nested(self) -> bool:
        """The node is a part of a function or of a branch, which can be there many times."""
        return self._depth > 0

    def claim(self, nbytes: int) -> bool:
        """Count memory for a folded result; False where it is too much."""
        self.folded_bytes += nbytes
        return self.folded_bytes <= LIMIT

    def next_stream(self) -> int:
        """A number of its own for each operator that draws random numbers."""
        self._streams += 1
        return self._streams - 1

    def declared_shape(self, site: Site, i: int) -> tuple[int, ...] | None:
        """The shape of input 0 with the batch that the file declares, if another was chosen, that shape differs, and input `i` is
        a constant that says the same with either."""
        if self._first is None:
            return None
        before, then, now = self._first.type(site.inputs[0]).shape, self._first.static(site.inputs[i]), self.static(site.inputs[i])
        same = then is not None and now is not None and np.array_equal(then, now)
        return before if same and before != self.type(site.inputs[0]).shape else None

    def restated(self, site: Site, target: Sequence[int], now: tuple[int, ...]) -> tuple[int, ...]:
        """Warn that a constant shape is taken as another one, and return that."""
        self.warnings.append(f"{site.title} has the constant shape {list(target)}; "
                             f"with batch {self.binding.batch} it is taken as {list(now)}.")
        return now

    def _proto_type(self, name: str) -> TensorType | None:
        return self.type(name) if name else None

def unsupported(node: NodeProto, opset: Mapping[str, int], functions: Mapping[tuple[str, str], object]) -> str | None:
    """Why a node's operator cannot be imported, judged by its name alone; None where it can."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if (node.domain, node.op_type) in functions:
        return None
    version = opset.get("", 0)
    if domain == "" and schema_of(node, version) is not None:
        known = node.op_type in OPS and OPS[node.op_type].onnx
        if known or node.op_type in FOLDERS or form_of(node.op_type, version) is not None or body_of(node, opset, {}, None) is not None:
            return None
    return _unknown(node, opset)


def _unknown(node: NodeProto, opset: Mapping[str, int]) -> str:
    if node.domain in ("", "ai.onnx") and schema_of(node, opset.get("", 0)) is None:
        return f"opset {opset.get('', 0)} has no such operator"
    return "tileflow has no such operator"
