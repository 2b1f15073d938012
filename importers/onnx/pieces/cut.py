"""The next piece of a model: everything that can be compiled with what is known, in one graph; what Python runs then; what stays for later."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper

from tileflow.graph import Graph, State, TensorType, Value, verify
from tileflow.graph.collector import without_collector
from tileflow.graph.op import plain_domain
from tileflow.system.errors import TileflowError, UnsupportedError
from tileflow.system.text import one_line

from ..bind import Binding, check_inputs
from ..functions import body_of, inlined
from ..hosted import hosted_form, is_hosted
from ..importer import NESTED, Importer
from ..model import title
from ..parameters import ResolvedModel
from ..refused import refusal, unsupported
from ..scope import Scope, StoredAs
from ..site import DynamicOperandError, Site
from ..tensors import elements_bytes, text_array
from ..unfold import graphs_of
from ..weights import ImportedStates
from .steps import MOST_KEPT, Frame, Step, branch_steps, frame_of

FEW = 64
"""Elements of whole numbers or truth values that are compiled in where shapes follow from them; where they follow from more, the model is cut."""
STREAMS = 1 << 10
"""Random streams that are kept for a piece."""
MOST_STEPS = 200_000
LIGHT = 1 << 20
"""Bytes of weights of which every piece of several turns may have a layout of its own."""


@dataclass(frozen=True)
class Piece:
    """What is done next with data of certain types, by name: the graph is run, then Python runs `hosted` in order, then `rest` is to be done.

    inputs: the names that the graph's inputs stand for. results: for each name that the graph makes its place among the outputs, or the places of
    a sequence's parts. known: names whose data are known already. weights: the elements of the graph's states. rest: None where all is done.
    deciding: for hosted steps with graphs of their own the model's inputs from which sizes in these follow.
    apart: states that only programs of hosted steps have, if these ever are; `weights` has their elements, too.
    """

    graph: Graph | None
    inputs: tuple[str, ...]
    results: Mapping[str, int | tuple[int, ...]]
    known: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    hosted: tuple[Step, ...]
    rest: Frame | None
    deciding: Mapping[Step, frozenset[str]] = field(default_factory=dict)
    apart: tuple[State, ...] = ()


class _Again(Exception):
    """Names that are to be compiled in were found: the cut begins anew."""


def decides(arrays: Iterable[np.ndarray]) -> bool:
    """Few whole numbers or truth values, as shapes are: they may be compiled in."""
    arrays = list(arrays)
    return all(a.dtype.kind in "iub" for a in arrays) and sum(a.size for a in arrays) <= FEW


@dataclass
class Cutter:
    """Cuts frames of one model. The fields are what `import_graph` takes of the same names."""

    model: ResolvedModel
    training: bool | None = None
    float_dtype: str | None = None
    trainable: Sequence[str] = ()
    stored: StoredAs | None = None
    freeze: Sequence[str] = ()
    warnings: list[str] = field(default_factory=list)

    def main(self) -> Frame:
        """All of the model."""
        return frame_of([Step(node, self.model.opset) for node in self.model.nodes], [port.name for port in self.model.outputs])

    def trained(self) -> list[str]:
        """The names of the tensors that are trained."""
        weights = ImportedStates(self.model, self.freeze, self.trainable)
        return [name for name in self.model.tensors if weights.trains(name)]

    def texts(self) -> dict[str, np.ndarray]:
        """The initializers that are texts."""
        return {name: text_array(t) for name, t in self.model.initializers.items() if t.data_type == TensorProto.STRING}

    def check(self, types: Mapping[str, TensorType]) -> None:
        """Compare the types of inputs with what the file declares (ShapeError, TypeMismatchError)."""
        check_inputs(self.model, types)

    @without_collector
    def cut(self, frame: Frame, types: Mapping[str, TensorType], others: Iterable[str], values: Mapping[str, np.ndarray]) -> Piece:
        """The next piece of a frame.

        Args:
            types: of the tensors that are there, by name. others: names of what is there and is no tensor of numbers.
            values: of tensors that are there; those of `frame.baked` are compiled in, and more are added to that where need be.

        Raises:
            UnsupportedError: naming every node that stops the model.
        """
        while True:
            try:
                return _Cut(self, frame, types, frozenset(others), values).piece()
            except _Again:
                continue
            except TileflowError as error:
                message = str(error)
                if not message.startswith(self.model.where):
                    error.args = (one_line(f"{self.model.where}: {message}"),)
                raise


def _chooses(step: Step) -> bool:
    """Of its inner graphs one is taken."""
    return step.node.op_type == "If" and plain_domain(step.node.domain) == ""


class _Cut:
    """One attempt: a walk over a frame's steps with the importer."""

    def __init__(self, cutter: Cutter, frame: Frame, types: Mapping[str, TensorType], others: frozenset[str],
                 values: Mapping[str, np.ndarray]) -> None:
        self.cutter, self.frame, self.types, self.others, self.values = cutter, frame, types, others, values
        binding = Binding({n: self._graph_type(t) for n, t in types.items()})
        self.scope = Scope(cutter.model, binding, cutter.training, cutter.float_dtype, cutter.freeze, cutter.trainable, stored=cutter.stored,
                           stream=frame.number * STREAMS)
        self.scope.depth = 0
        self.importer = Importer(self.scope)
        self.makers: dict[str, Step] = {}
        self.left: list[Step] = []
        self.blocked: dict[Step, UnsupportedError] = {}
        self.late: set[str] = set()
        """Names that come later: made by steps that are left."""
        for name in types:
            if name in frame.baked:
                self.scope.enter(name, self.scope.converted(values[name]), "the caller")
            else:
                self.scope.awaited.add(name)

    def _graph_type(self, t: TensorType) -> TensorType:
        return t.with_dtype(self.cutter.float_dtype) if t.is_float and self.cutter.float_dtype is not None else t

    def piece(self) -> Piece:
        self._walk()
        self._bake()
        hosted = self._hosted()
        chosen = set(hosted)
        rest = [step for step in self.left if step not in chosen]
        if any(self._is_hopeless(step, error) for step, error in self.blocked.items()) or (rest and not hosted and not self._progress(rest)):
            self._refuse(rest)
        return self._finished(hosted, rest)

    # ---- the walk

    def _walk(self) -> None:
        queue = deque((step, 0) for step in self.frame.steps)
        done = 0
        while queue:
            step, depth = queue.popleft()
            done += 1
            if done > MOST_STEPS or depth > NESTED:
                raise UnsupportedError(f"functions and branches come to more than {MOST_STEPS} nodes, or are nested more than {NESTED} deep; "
                                       f"flatten the model with onnx.inliner")
            wait = any(name in self.late or name in self.others for name in step.reads)
            self.importer.depends(step.node, step.reads)
            error = None if wait else self.importer.attempt(step.node, step.opset)
            if not wait and error is None:
                self.makers.update(dict.fromkeys(step.writes, step))
                continue
            inner = self._expansion(step, wait, error)
            if inner is not None:
                queue.extendleft((s, depth + 1) for s in reversed(inner))
                continue
            self.left.append(step)
            self.late.update(step.writes)
            if error is None and _chooses(step) and step.node.input[0] not in self.late | self.others:
                error = DynamicOperandError("its condition is computed", frozenset(step.node.input[:1]))         # all else may come later
            if error is not None:
                self.blocked[step] = error

    def _expansion(self, step: Step, wait: bool, error: UnsupportedError | None) -> list[Step] | None:
        """The steps that a step stands for, where that is known: a branch that is taken, a function's body."""
        if _chooses(step):
            condition = self._known(step.node.input[0])
            return None if condition is None or condition.size != 1 else branch_steps(step, "then_branch" if condition.item() else "else_branch")
        own = (step.node.domain, step.node.op_type) in self.importer.functions
        if not own and (wait or is_hosted(step.node) or self._is_waiting(step, error)):
            return None
        types = () if own else tuple(self.scope.type(name) if name else None for name in step.node.input)
        if len(step.expansions) >= MOST_KEPT:
            step.expansions.clear()
        if types not in step.expansions:
            site = Site(self.scope, step.node, step.opset)
            body = body_of(step.node, step.opset, self.importer.functions, types)
            if body is None:
                return None
            nodes, outputs, opset = inlined(body, site)
            steps = [Step(node, opset) for node in nodes]
            for name, output in zip(outputs, step.node.output, strict=False):
                if output and name != output:
                    steps.append(Step(helper.make_node("Identity", [name], [output]), {**opset, "": step.opset.get("", 0)}))
            step.expansions[types] = steps
        return step.expansions[types]

    def _known(self, name: str) -> np.ndarray | None:
        return None if name in self.late or name in self.others else self.scope.static(name)

    def _is_waiting(self, step: Step, error: UnsupportedError | None) -> bool:
        """The step waits for the value of an operand of its own."""
        return isinstance(error, DynamicOperandError) and any(name in step.reads and self._known(name) is None for name in error.names)

    # ---- what must be known first

    def _bake(self) -> None:
        """Compile in what steps wait for, where it is there or follows from a few whole numbers that are."""
        found: set[str] = set()
        for step, error in self.blocked.items():
            for name in self._awaited(step, error):
                sources = {name} if name in self.types else self._sources(name)
                if name in self.types or (sources and decides(self.values[n] for n in sources)):
                    found |= sources
        if found - self.frame.baked:
            self.frame.baked |= found
            raise _Again

    def _awaited(self, step: Step, error: UnsupportedError) -> list[str]:
        """Names of the step's operands that are made in this piece or there and must be known."""
        if is_hosted(step.node):
            return []
        names: Iterable[str] = error.names if isinstance(error, DynamicOperandError) else ()
        if _chooses(step):
            names = step.node.input[:1]
        return [n for n in step.reads if n in names and n not in self.late and n not in self.others and self._known(n) is None]

    def _sources(self, name: str) -> set[str]:
        """What is there on which a name depends, but for what is known from types alone."""
        seen, stack = {name}, [name]
        while stack:
            step = self.makers.get(stack.pop())
            for read in step.reads if step is not None else ():
                if read not in seen and self.scope.known(read) is None:
                    seen.add(read)
                    stack.append(read)
        return {n for n in seen if n in self.types}

    # ---- what Python runs after the graph

    def _hosted(self) -> list[Step]:
        """Steps for Python, in order: their operands are there once the graph was run, and those before them."""
        ready: set[str] = set()
        chosen: list[Step] = []
        for step in self.left:
            form = hosted_form(step.node.op_type, step.node.domain)
            if form is None or any(name in self.late and name not in ready for name in step.reads):
                continue
            if is_hosted(step.node) or any(name in self.others for name in step.reads):
                chosen.append(step)
                ready.update(step.writes)
        return chosen

    def _is_hopeless(self, step: Step, error: UnsupportedError) -> bool:
        """Nothing that may become known helps, and Python has no such operator."""
        return not is_hosted(step.node) and not self._awaited(step, error)

    def _progress(self, rest: Sequence[Step]) -> bool:
        """Something that a step waits for becomes known by this piece."""
        return any(self._awaited(step, error) for step, error in self.blocked.items() if step in set(rest))

    def _refuse(self, rest: Sequence[Step]) -> None:
        refused = [(title(step.node), error) for step, error in self.blocked.items()]
        for step in rest:
            why = None if step in self.blocked else unsupported(step.node, step.opset, self.importer.functions, hosted=True)
            if why is not None:
                refused.append((title(step.node), UnsupportedError(why)))
        refused = refused or [(title(step.node), UnsupportedError("it waits for what nothing makes")) for step in rest]
        raise refusal(self.cutter.model.where, refused, lambda errors: frozenset())

    # ---- the piece

    def _finished(self, hosted: Sequence[Step], rest: Sequence[Step]) -> Piece:
        following = self.frame.after(rest) if rest else None
        for step, error in self.blocked.items():
            if following is not None and step in following.steps:
                following.baked.update(self._awaited(step, error))
        own = {step: self._own(step) for step in hosted}
        wanted = [*self.frame.wanted, *(name for step in hosted for name in step.reads if name not in own[step]),
                  *(name for name in (following.reads if following is not None else ()) if name in self.makers)]
        named: list[tuple[str, Value]] = []
        results: dict[str, int | tuple[int, ...]] = {}
        known: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(wanted):
            if name in self.late or name in self.others or (name in self.types and name not in self.makers):
                continue
            if name in self.scope.sequences:
                results[name] = tuple(range(len(named), len(named) + len(self.scope.sequences[name])))
                named += [(f"{name}[{i}]", value) for i, value in enumerate(self.scope.sequences[name])]
            elif (array := self.scope.known(name)) is not None:
                known[name] = array
            else:
                results[name] = len(named)
                named.append((name, self.scope.value(name)))
        apart = self._states(dict.fromkeys(name for names in own.values() for name in sorted(names)))
        kept = {state.name: self.scope.weights.arrays[state.name] for state in apart}
        graph, weights = self._graph(named)
        self.cutter.warnings += [w for w in self.scope.warnings if w not in self.cutter.warnings]
        inputs = tuple(self.scope.inputs[v] for v in graph.inputs) if graph is not None else ()
        errors = {step: self.blocked[step] for step in hosted if step in self.blocked and any(True for _ in graphs_of(step.node))}
        deciding = {step: error.names for step, error in errors.items() if isinstance(error, DynamicOperandError)}
        return Piece(graph, inputs, results, known, kept | weights, tuple(hosted), following, deciding, apart)

    def _own(self, step: Step) -> set[str]:
        """Light weights that only the body of a loop reads, several turns of which are a piece. They are not handed to
        it: they are states of those pieces, as of any other."""
        together = step.turns() if step.node.op_type == "Loop" else None
        if together is None or not together[0].guessed:
            return set()
        own = {name for name in step.reads if name not in step.node.input and name not in self.types
               and name not in self.makers and name in self.scope.weights}
        light = sum(elements_bytes(self.scope.model.tensors[name]) for name in own) <= LIGHT
        return own if light else set()

    def _states(self, names: Iterable[str]) -> tuple[State, ...]:
        """The states that weights are."""
        values = [self.scope.value(name) for name in names]
        return tuple(state for state in self.scope.graph.states if state.input in values)

    def _graph(self, named: list[tuple[str, Value]]) -> tuple[Graph | None, dict[str, np.ndarray]]:
        if not named:
            return None, {}
        scope = self.scope
        graph = scope.graph
        graph.outputs = scope.named(named)
        order = {name: i for i, name in enumerate(self.cutter.model.tensors)}
        graph.states.sort(key=lambda s: order[s.name])
        graph.prune()
        scope.drop_unread_states()
        read = graph.uses()
        graph.inputs = [v for v in graph.inputs if v in read]
        verify(graph)
        return graph, {s.name: scope.weights.arrays[s.name] for s in graph.states}
