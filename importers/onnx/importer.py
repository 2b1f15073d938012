"""ModelProto -> Graph: types inferred node by node, weights as states, shape arithmetic evaluated, everything unsupported named at once."""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, NodeProto

import tileflow.ops  # noqa: F401  (fills the registry)
from tileflow.graph import OPS, Graph, TensorType, Value, type_of, verify
from tileflow.graph.collector import without_collector
from tileflow.memory import budget
from tileflow.system.errors import ModelError, ShapeError, TileflowError, UnsupportedError
from tileflow.system.text import one_line

from . import attention as _attention  # noqa: F401  (registers its form)
from . import control as _control  # noqa: F401  (registers its forms)
from . import defined as _defined  # noqa: F401  (registers its forms)
from . import domains as _domains  # noqa: F401  (registers its forms)
from . import indexing as _indexing  # noqa: F401  (registers its forms)
from . import pool as _pool  # noqa: F401  (registers its form)
from . import random as _random  # noqa: F401  (registers its forms)
from . import rows as _rows  # noqa: F401  (registers its form)
from . import sequences as _sequences  # noqa: F401  (registers its forms)
from . import signal as _signal  # noqa: F401  (registers what it folds)
from . import training as _training  # noqa: F401  (registers its forms)
from .bind import Binding, bind_inputs
from .fold import FOLDERS, fold
from .functions import body_of, inlined
from .hosted import is_hosted
from .inner import Control, Inner
from .model import OnnxModel, label, title
from .parameters import ResolvedModel, Verdict, notes, quantized_weights, resolved
from .refused import HOSTED, DynamicOperandError, declared_for, refusal, unknown, unsupported
from .scope import Scope, StoredAs
from .site import Site
from .tensors import elements_bytes
from .versions import form_of

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
                 values: Mapping[str, np.ndarray] | None = None, stored: StoredAs | None = None) -> Imported:
    """Translate a model into a graph with static shapes.

    The rules of `parameters/rules.py` say which floating tensors become trainable parameters, buffers (running statistics) and constants;
    tensors that the exporter merged because their values are equal become parameters of their own (`parameters/ties.py`). The options are
    name patterns (`fc*.weight`): frozen parameters are not trained, `trainable` wins over `freeze` and makes parameters of constants that it
    names, `tie` and `untie` overrule what the file says of ties. A model that was resolved before keeps its ties.

    Args:
        dims, batch, input_types: sizes of what the file leaves open; see `bind_inputs`.
        training: True turns Dropout and the training form of BatchNormalization on, False off, None leaves both as the file has them.
        float_dtype: give every floating value this type ("float64": the engine that checks float32 training). Constants stay finite, and a
            single number that is not zero stays none.
        stored: the type of each weight's state; by default that in which it is computed with. Where it is another, the graph begins with a Cast.
        values: inputs taken as constants, for shapes that are data.

    Raises:
        UnsupportedError: naming all nodes tileflow has no operator for.
        ModelError, OptionError, ShapeError, TypeMismatchError: the file or the sizes do not fit together.
    """
    told = resolved(model, tie, untie)
    needed = sum(elements_bytes(t) for t in told.tensors.values())
    budget.require(needed, f"{model.where}: its weights and constants",
                   "use a smaller model, or a machine with more memory")
    types = {**dict(input_types or {}), **{name: type_of(np.asarray(a)) for name, a in (values or {}).items()}}
    binding = _bound(told, dims, batch, types, float_dtype)
    first = None
    if binding.rebatched:
        first = Scope(told, binding.as_declared(), training, float_dtype, stored=stored)
        Importer(first).run(values or {})
    return Importer(Scope(told, binding, training, float_dtype, freeze, trainable, first, stored)).run(values or {})


def input_types(model: OnnxModel, *, dims: Mapping[str, int] | None = None, batch: int | None = None,
                float_dtype: str | None = None, restated: bool = True) -> dict[str, TensorType]:
    """The types that the inputs of a model have by these sizes, by name, as `bind_inputs` finds them and with its errors."""
    return _bound(model, dims, batch, None, float_dtype, restated).types


def _bound(model: OnnxModel, dims: Mapping[str, int] | None, batch: int | None, types: Mapping[str, TensorType] | None,
           float_dtype: str | None, restated: bool = True) -> Binding:
    try:
        return bind_inputs(model, dims, batch, types, float_dtype, restated)
    except TileflowError as error:
        error.args = (one_line(error),)                       # names of dimensions can be of any length
        raise


class Importer:
    """One walk over the nodes of a file, which fills a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.model = scope, scope.model
        self._poisoned: set[str] = set()
        self._count = 0
        self._refused: list[tuple[str, UnsupportedError]] = []
        self._parents: dict[str, tuple[str, ...]] = {}
        self.functions = {(f.domain, f.name): f for f in self.model.proto.functions}

    def run(self, values: Mapping[str, np.ndarray]) -> Imported:
        """Import the whole graph."""
        try:
            return self._run(values)
        except TileflowError as error:
            message, binding = str(error), self.scope.binding
            if isinstance(error, ShapeError) and self.scope.rebatched:
                message = (f"{message.rstrip('.')}; the file declares batch {binding.declared_batch} and {binding.batch} "
                           f"was asked for, so if this is why, export it with a symbolic batch")
            if not message.startswith(self.model.where):
                message = f"{self.model.where}: {message}"
            error.args = (one_line(message),)
            raise

    def _run(self, values: Mapping[str, np.ndarray]) -> Imported:
        scope = self.scope
        self._enter_inputs(values)
        self.nodes(self.model.nodes, self.model.opset)
        if self._refused:
            raise refusal(self.model.where, self._refused, self._ancestors)
        graph = scope.graph
        graph.outputs = scope.outputs()
        order = {name: i for i, name in enumerate(self.model.tensors)}
        graph.states.sort(key=lambda s: order[s.name])
        graph.prune()
        scope.drop_unread_states()
        scope.weights.check_patterns()
        verify(graph)
        return self._imported([s.name for s in graph.states])

    def _enter_inputs(self, values: Mapping[str, np.ndarray]) -> None:
        scope, binding = self.scope, self.scope.binding
        for port in self.model.inputs:
            if port.name in values:
                scope.enter(port.name, scope.converted(np.asarray(values[port.name])), "the caller")
            else:
                scope.enter_input(port.name)
        if binding.rebatched:
            scope.warnings.append(f"The file declares batch {binding.declared_batch} for {', '.join(sorted(binding.rebatched))}; "
                                  f"it is imported with batch {binding.batch}.")

    def _imported(self, states: list[str]) -> Imported:
        scope, ties = self.scope, self.model.ties
        if scope.training:
            said = notes(ties, scope.weights.verdicts, states, quantized_weights(self.model))
            scope.warnings += [*said.ties, *said.doubts, *filter(None, [scope.modes.said()])]
        return Imported(scope.graph, {n: ties.tensor(n) for n in states}, {n: scope.weights.arrays[n] for n in states}, scope.binding,
                        self.model, scope.weights.verdicts, scope.warnings)

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
                why = unsupported(node, opset, self.functions)
                error = UnsupportedError(why) if why else None
            else:
                error = self.attempt(node, opset)
            if error is not None:
                self._refused.append((title(node), error))
                self._poisoned.update(outputs)

    def attempt(self, node: NodeProto, opset: Mapping[str, int]) -> UnsupportedError | None:
        """Import a node; why it cannot be, where it is unsupported or an operand must be known."""
        try:
            self._node(node, opset)
        except DynamicOperandError as error:
            return error
        except UnsupportedError as error:
            return UnsupportedError(str(error).removeprefix(f"{node.op_type} ({self._label(node)}): ").rstrip("."))
        return None

    def _node(self, node: NodeProto, opset: Mapping[str, int]) -> None:
        site = Site(self.scope, node, opset)
        results: Sequence[Value | np.ndarray | None] | GraphProto | Control | None = None
        declared = declared_for(node, opset)
        with self.scope.builder.scope(source=self._label(node)):
            if declared is not None:
                results = site.applied(declared)
            elif site.schema is not None and (site.domain == "" or (node.domain, node.op_type) not in self.functions):
                site.check()
                results = self._known(site)
        if results is None:
            results = self._expanded(site)
        elif isinstance(results, GraphProto):
            results = self._inlined(node, results, opset)
        elif callable(results):
            with self.scope.builder.scope(source=self._label(node)):
                results = results(self)
        self._enter_outputs(node, results)

    def _known(self, site: Site) -> Sequence[Value | np.ndarray | None] | GraphProto | Control | None:
        """What an operator that has a schema gives; None where only its definition may tell."""
        results: Sequence[Value | np.ndarray | None] | GraphProto | Control | None = None
        if site.domain == "":
            results = self._trained_constant(site.node) or self._evaluated(site)
        if results is None and (function := form_of(site.op_type, site.opset, site.domain)) is not None:
            results = function(site)
        if results is None and site.domain == "" and site.op_type in OPS and OPS[site.op_type].onnx:
            results = site.generic()
        return results

    def depends(self, node: NodeProto, names: Iterable[str]) -> None:
        """A node depends on more than its operands: on what its regions read, on what stands in its place."""
        for name in filter(None, node.output):
            self._parents[name] = (*self._parents.get(name, ()), *names)

    def _trained_constant(self, node: NodeProto) -> Sequence[Value] | None:
        """A Constant of the main graph that the user wants to train."""
        if node.op_type == "Constant" and not self.scope.depth and node.output[0] in self.scope.weights:
            return (self.scope.weight(node.output[0]),)
        return None

    def _label(self, node: NodeProto) -> str:
        outer = self.scope.builder.origin.sources
        return outer[0] if outer and self.scope.depth else label(node)

    def _enter_outputs(self, node: NodeProto, results: Sequence[Value | np.ndarray | None]) -> None:
        for i, name in enumerate(node.output):
            if not name:
                continue
            result = results[i] if i < len(results) else None
            if result is None:
                self.scope.absent.setdefault(name, f"it reads output {i} of {title(node)}, which tileflow does not compute")
            else:
                self.scope.enter(name, result, title(node))

    def _evaluated(self, site: Site) -> list[np.ndarray] | None:
        """The node's outputs if they can be known now."""
        if site.op_type not in FOLDERS:
            return None
        if site.op_type in FROM_SHAPE:
            return fold(site, [np.broadcast_to(np.zeros((), np.int8), self.scope.type(site.inputs[0]).shape)])
        arrays = [self.scope.known(name) if name else None for name in site.inputs]
        if any(a is None and name for a, name in zip(arrays, site.inputs, strict=True)):
            return None
        if sum(a.nbytes for a in arrays if a is not None) > LARGE and site.op_type in OPS:
            return None
        return [self.scope.converted(a) for a in fold(site, arrays) or []] or None

    def _expanded(self, site: Site) -> Sequence[Value | np.ndarray | None]:
        """The node as the nodes of its function: one of the model's own, or ONNX's definition of the operator."""
        if site.domain == "" and site.op_type in FROM_VALUES:
            for i in range(len(site.inputs)):
                site.check_length(i)
            raise DynamicOperandError("its output's shape is computed while the model runs; the operands must be constants", frozenset(site.inputs))
        body = body_of(site.node, site.opsets, self.functions, [self.scope.type(name) if name else None for name in site.inputs])
        if body is None and site.domain == "" and site.schema is not None and site.op_type in FOLDERS:
            raise UnsupportedError(HOSTED if is_hosted(site.node) else "tileflow has this operator for constant operands only")
        if body is None:
            raise UnsupportedError(unknown(site.node, site.opsets))
        nodes, outputs, opset = inlined(body, site)
        with self.scope.builder.scope(source=self._label(site.node)):
            self._nested(nodes, opset)
        return [self.scope.result(name) if name else None for name in outputs]

    def _inlined(self, node: NodeProto, graph: GraphProto, opset: Mapping[str, int]) -> Sequence[Value | np.ndarray]:
        """A branch in place of its node."""
        with self.scope.builder.scope(source=self._label(node)):
            self.walk(graph, opset)
        self.depends(node, [v.name for v in graph.output])
        return [self.scope.result(v.name) for v in graph.output]

    def walk(self, graph: GraphProto, opset: Mapping[str, int]) -> None:
        """Import an inner graph into the scope at hand; its initializers are constants."""
        for tensor in graph.initializer:
            self.scope.enter(tensor.name, self.scope.tensor(tensor), "the file")
        if graph.sparse_initializer:
            raise UnsupportedError("it holds sparse initializers; store them as plain ones")
        self._nested(graph.node, opset)

    # Regions

    def opened(self) -> Inner:
        """A new region within the graph at hand."""
        return Inner(self.scope)

    @contextlib.contextmanager
    def around(self, scope: Inner) -> Iterator[None]:
        """Nodes made within the block are the region's."""
        assert scope.outer is self.scope
        self.scope = scope
        try:
            yield
        finally:
            self.scope = scope.outer
            scope.leave()

    def fill(self, scope: Inner, graph: GraphProto, opset: Mapping[str, int]) -> Inner:
        """Import a branch or a body into a region."""
        with self.around(scope):
            self.walk(graph, opset)
        return scope

    def _nested(self, nodes: Iterable[NodeProto], opset: Mapping[str, int]) -> None:
        if self.scope.depth >= NESTED:
            raise ModelError(f"functions and branches are nested more than {NESTED} deep; flatten the model with onnx.inliner")
        before, self._refused = self._refused, []
        self.scope.depth += 1
        try:
            self.nodes(nodes, opset)
        finally:
            self.scope.depth -= 1
            inner, self._refused = self._refused, before
        if inner:
            dynamic = self._ancestors([e for _, e in inner])
            why = f"in it: {', '.join(f'{name} ({error})' for name, error in inner[:3])}"
            raise DynamicOperandError(why, dynamic) if dynamic else UnsupportedError(why)

    def _ancestors(self, errors: Iterable[UnsupportedError]) -> frozenset[str]:
        """The inputs that the tensors depend on that had to be known: the model's, or in a run in pieces what is there."""
        seen = {name for error in errors if isinstance(error, DynamicOperandError) for name in error.names}
        stack = list(seen)
        while stack:
            for parent in self._parents.get(stack.pop(), ()):
                if parent and parent not in seen and self.scope.known(parent) is None:
                    seen.add(parent)
                    stack.append(parent)
        return frozenset(seen.intersection(self.scope.binding.types))
