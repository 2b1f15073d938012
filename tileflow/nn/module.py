"""Modules: a network is a tree of modules; parameters are named by their path in it."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

import numpy as np

from ..graph import NOTHING, Graph, Hints, State, TensorType, Value
from ..precision.policy import Policy
from ..state import Session, fitting
from ..system.errors import TileflowError
from ..system.nested import PLAIN, Form, Results, TensorPlace, flatten
from .casting import casting
from .holding import held
from .in_place import refuse_old_views
from .mixed import Recorder
from .parameter import Buffer, Parameter
from .stored import StorageTypes
from .tensor import Tensor
from .trace import Trace, current_trace, recording, trace_under_way

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class _Forward(Protocol[P, R]):
    """Whatever has a `forward`: calling a module takes and gives what that does."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def _no_forward(self: Module, *_: Any, **__: Any) -> Any:
    raise NotImplementedError(f"{type(self).__name__} has no forward().")


def _with_rule(layer: type, hints: Hints) -> Hints:
    """The hints, with the set that a policy of casts puts modules of this class in."""
    if hints.casting is None or not isinstance(hints.casting.policy, Policy):
        return hints
    rule = hints.casting.policy.rule_of_layer(layer)
    return hints if rule is None else replace(hints, casting=replace(hints.casting, rule=rule))


class Module(StorageTypes):
    """Base of all layers and networks. Subclasses assign parameters and modules as attributes and define `forward`.

        class Net(nn.Module):
            def __init__(self) -> None:
                self.layers = {"in": nn.Linear(4, 8), "out": nn.Linear(8, 3)}

            def forward(self, x: nn.Tensor) -> nn.Tensor:
                return self.layers["out"](self.layers["in"](x).relu())

    Lists, tuples and dicts of them, nested in any way, count as attributes; names are paths: "layers.in.weight".
    """

    _hints: Hints = NOTHING

    forward: Callable[..., Any] = _no_forward
    """Record this module's operators: tensors in; a tensor, or a tuple of them, out."""

    def __call__(self: _Forward[P, R], *inputs: P.args, **named: P.kwargs) -> R:
        """Use this module inside another's `forward`. To compute with arrays, wrap it in a training or inference model."""
        trace = trace_under_way()
        kind = type(self).__name__
        if trace is None:
            raise TileflowError(f"{kind} records a graph and takes no arrays; wrap the network: tileflow.inference_model(net)(x).")
        path = trace.prefix + (getattr(self, "_path", "") or kind)
        begin = getattr(self, "_begin_block", None)
        if begin is not None:
            begin()
        asked = getattr(self, "_hints", NOTHING).over(trace.builder.origin.hints)
        with trace.builder.scope(_with_rule(type(self), asked), path):
            given = (Tensor(trace, trace.builder.constant(x)) if isinstance(x, np.ndarray) else x for x in inputs)
            return self.forward(*given, **named)          # type: ignore[arg-type]

    if not TYPE_CHECKING:                          # a checker would take any attribute
        def __setattr__(self, name: str, value: Any) -> None:
            known = vars(self).get(name)
            if isinstance(known, Parameter) and value is not known and trace_under_way() is not None:
                known.refuse_assignment()
            super().__setattr__(name, value)

    @property
    def training(self) -> bool:
        """Whether the network is recorded for training."""
        return current_trace("training").training

    def autocast(self, enabled: bool = True, dtype: str | None = None, policy: Policy | None = None) -> Self:
        """Cast the operators of this module and of all modules in it as a policy says, or with enabled=False leave them as they are written.

        A module within may say something else; so may blocks of code, see `tileflow.nn.autocast` for the arguments. Returns the module.

        Raises:
            OptionError: a value is of the wrong kind.
        """
        self._hints = Hints(casting=casting(enabled, dtype, policy)).over(self._hints)
        return self

    def register_buffer(self, name: str, array: Any) -> None:
        """Assign an array that belongs to the network's state and is not trained."""
        setattr(self, name, Buffer(array))

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        setattr(self, name, parameter)

    def add_module(self, name: str, module: Module | None) -> None:
        setattr(self, name, module)

    def members(self) -> Iterator[tuple[str, Module | Parameter]]:
        """Modules and parameters by attribute, those in lists and dicts by position and key."""
        for name, item in vars(self).items():
            if not name.startswith("_") or isinstance(item, (Module, Parameter)):
                yield from _found(name, item, set())

    def children(self) -> Iterator[tuple[str, Module]]:
        """Direct sub-modules with their names."""
        return ((name, item) for name, item in self.members() if isinstance(item, Module))

    def named_modules(self, prefix: str = "", _seen: set[int] | None = None) -> Iterator[tuple[str, Module]]:
        """This module and all below it, with their paths, each once: a shared one goes by the first."""
        seen = set() if _seen is None else _seen
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, child in self.children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Parameters and buffers by path, each once."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, item in module.members():
                if isinstance(item, Parameter) and id(item) not in seen:
                    seen.add(id(item))
                    yield f"{path}.{name}" if path else name, item

    def parameters(self) -> list[Parameter]:
        """Parameters (buffers not included)."""
        return [p for _, p in self.named_parameters() if not isinstance(p, Buffer)]

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers by path, all after the same whole update."""
        return self.session.turn.hold(lambda: {name: p.data.copy() for name, p in self.named_parameters()})

    def load_state_dict(self, tensors: Mapping[str, Any], strict: bool = True) -> None:
        """Overwrite all parameters and buffers; nothing changes unless every name, shape and type fits. Without `strict` those that are
        named on both sides.

        Raises:
            DataError: names, shapes or types differ.
        """
        own = dict(self.named_parameters())
        arrays = fitting({name: p.data for name, p in own.items()}, tensors, strict)

        def write() -> None:
            for name, array in arrays.items():
                own[name].data = array
        self.session.turn.change(write)

    @property
    def session(self) -> Session:
        """Where the weights live once a model of this network is compiled."""
        found: Session = self.__dict__.get("_session") or self.__dict__.setdefault("_session", Session())          # one, whoever asks first
        return found


def _found(name: str, item: Any, within: set[int]) -> Iterator[tuple[str, Module | Parameter]]:
    """Modules and parameters in an attribute; `within`: the containers around it, for one that contains itself."""
    if isinstance(item, (Module, Parameter)):
        yield name, item
    elif isinstance(item, (list, tuple, dict)) and id(item) not in within:
        parts = item.items() if isinstance(item, dict) else enumerate(item)
        for key, part in parts:
            yield from _found(f"{name}.{key}", part, within | {id(item)})


def _boxes(item: Any, within: set[int]) -> Iterator[list[Any] | dict[Any, Any]]:
    """The lists and dicts in an attribute, to any depth."""
    if isinstance(item, (list, tuple, dict)) and id(item) not in within:
        if not isinstance(item, tuple):
            yield item
        for part in item.values() if isinstance(item, dict) else item:
            yield from _boxes(part, within | {id(item)})


StoredAs = Callable[[str, str | None, bool], str]
"""The floating type of a parameter's state, from its name, the type that somebody gave it, if any, and whether it is a running statistic."""


def record(net: Module, inputs: Sequence[tuple[str, TensorType]], *, training: bool, dtype: str, stored: StoredAs | None = None,
           upcast: bool = False) -> Graph:
    """The graph that `recorded` gives, for calls whose arguments are tensors one after the other."""
    return recorded(net, inputs, training=training, dtype=dtype, stored=stored, upcast=upcast)[0]


def recorded(net: Module, inputs: Sequence[tuple[str, TensorType]], *, training: bool, dtype: str,
             stored: StoredAs | None = None,
             upcast: bool = False, form: Form | None = None) -> tuple[Graph, Results | None]:
    """Record a network's graph for inputs of these types; its parameters become states called by their paths.

    Args:
        form: how the tensors and constants of the call are nested; None: tensors one after the other.
        dtype: of floats that nothing else has a type for. stored: of parameters; by default the one they were given, else `dtype`.
        upcast: floats of several types become the widest of them everywhere (see `mixed.Recorder`).

    Returns:
        the graph, whose outputs are the tensors that `forward` returns, in their order; and how these are nested (None:
        one, or several in a tuple or list).

    Raises:
        TileflowError: it returns no tensor, or something else than tensors, None, truth values, numbers and texts.
    """
    graph = Graph(type(net).__name__)
    trace = Trace(graph, training, dtype, Recorder(graph, upcast))
    for path, module in net.named_modules():
        module._path = path                                    # type: ignore[attr-defined]
    for name, p in net.named_parameters():
        kind = stored(name, p.stored, isinstance(p, Buffer) and p.statistic) if stored is not None else p.stored or dtype
        t = TensorType(kind if p.is_float else p.data.dtype.name, p.shape)
        state = State(name, "buffer" if isinstance(p, Buffer) else "parameter", Value(trace.builder.name(name), t),
                      trainable=p.trainable, group=p.kind if t.dtype == dtype else f"{p.kind}.{t.dtype}")
        trace.states[id(p)] = state
        graph.states.append(state)
    tensors = [Tensor(trace, trace.builder.input(name, t)) for name, t in inputs]
    boxes = (box for module in net.modules() for item in vars(module).values() for box in _boxes(item, set()))
    with recording(trace), held(boxes):
        args, named = (tensors, {}) if form is None else form.nested(tensors)
        result = net(*args, **named)
        trace.builder.begin(NOTHING)
        leaves, structure = flatten(result)
        for i, (_, leaf) in enumerate(leaves):
            if isinstance(leaf, Tensor):
                own = leaf.value.producer is not None and leaf.value not in graph.outputs
                graph.outputs.append(leaf.value if own else trace.builder.Identity(leaf.value))
            elif type(leaf) not in PLAIN:
                raise TileflowError(f"{type(net).__name__}.forward() must return tensors, beside them None, numbers "
                                    f"and texts, in tuples, lists and dicts; output {i} is {type(leaf).__name__}.")
        if not graph.outputs:
            first = leaves[0][1] if leaves else result
            raise TileflowError(f"{type(net).__name__}.forward() must return tensors; output 0 is "
                                f"{type(first).__name__}.")
    refuse_old_views(graph, trace.writes)
    if isinstance(result, Tensor) or (type(result) in (tuple, list) and all(isinstance(x, Tensor) for x in result)):
        return graph, None
    numbers = iter(range(len(graph.outputs)))
    places = [TensorPlace(next(numbers)) if isinstance(leaf, Tensor) else leaf for _, leaf in leaves]
    return graph, Results.of(structure.unflatten(places))
