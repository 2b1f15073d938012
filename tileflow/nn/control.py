"""Control flow in layers: loops and branches of the native loop, what Python computes between its rows, slices at
places that are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..graph import Builder, Graph, Region, TensorType, Value
from ..graph.region import closed, draws
from ..memory.types import type_of
from ..ops.control import INDEX, If, Loop
from ..ops.hosted import HostFunction, listed
from ..system.errors import OptionError, ShapeError, TileflowError, TypeMismatchError
from .mixed import Recorder
from .tensor import Tensor
from .trace import Trace, current_trace

Body = Callable[..., Any]


def for_loop(count: int | Tensor, body: Body, inputs: Sequence[Any]) -> list[Tensor]:
    """`body` of its own results, `count` times, the first time of `inputs`: a loop of the program, with gradients.

        x, = nn.for_loop(4, lambda x: [x * 2 + bias], [x])

    Args:
        count: a whole number, or a tensor of one, which is known when it runs; then there are no gradients.
        body: takes as many tensors as `inputs` and gives as many, of the same types: what it reads besides stays.

    Raises:
        OptionError: count or inputs are something else. TileflowError: the body draws random numbers, writes buffers or
            has a loss. ShapeError: it gives other types than it takes.
    """
    trace = current_trace("for_loop")
    if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(x, Tensor) for x in inputs):
        raise OptionError(f"for_loop takes a list of tensors for its inputs, not {inputs!r}.")
    known = not isinstance(count, Tensor)
    if known and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise OptionError(f"for_loop counts by a whole number from 0 on, or a tensor of one, not {count!r}.")
    graph, own, made = _recorded(trace, "for_loop", body, [x.value.type for x in inputs])
    if len(made) != len(inputs):
        raise ShapeError(
            f"The body of for_loop takes {len(inputs)} tensors and gives {len(made)}; it must give as many."
        )
    if any(draws(node.op) for node in graph.walk()):
        raise TileflowError(
            "The body of for_loop draws random numbers, which would be the same in every turn; take "
            "dropout and draws out of it."
        )
    captures = _captured([(graph, made)])
    turn = Value("turn", INDEX)
    region = _region(trace, graph, [turn, *own], captures, made)
    loop = Loop(region, len(inputs), 0, int(count) if known else -1)  # type: ignore[call-overload]
    turns = None if known else count.to("int64").reshape(()).value  # type: ignore[union-attr]
    found = trace.builder.emit(loop, turns, None, *[x.value for x in inputs], *captures)
    return [Tensor(trace, v) for v in found]


def cond(
    condition: Tensor, then_body: Body, then_inputs: Sequence[Any], else_body: Body, else_inputs: Sequence[Any]
) -> list[Tensor]:
    """What `then_body` gives of its inputs where `condition`, one truth value, holds, else what `else_body` gives of
    its own: a branch of the program, with gradients; the other one is not computed.

    Raises:
        OptionError: the condition is no tensor of one element. TileflowError: a branch writes buffers or has a loss.
        ShapeError: the branches give different numbers of tensors, or other types.
    """
    trace = current_trace("cond")
    if not isinstance(condition, Tensor) or condition.value.type.size != 1:
        raise OptionError(f"cond chooses by a tensor of one truth value, not {condition!r}.")
    branches = []
    for body, given in ((then_body, then_inputs), (else_body, else_inputs)):
        graph, _, made = _recorded(trace, "cond", lambda body=body, given=given: body(*given), [])
        branches.append((graph, made))
    counts = [len(made) for _, made in branches]
    if counts[0] != counts[1]:
        raise ShapeError(f"The branches of cond give {counts[0]} and {counts[1]} tensors; they must give as many.")
    captures = _captured(branches)
    then, other = (_region(trace, graph, [], captures, made) for graph, made in branches)
    word = condition.to("bool").reshape(()).value
    return [Tensor(trace, v) for v in trace.builder.emit(If(then, other), word, *captures)]


def _recorded(
    trace: Trace, what: str, body: Body, types: Sequence[TensorType]
) -> tuple[Graph, list[Value], list[Value]]:
    """A graph of what a body records: its inputs, and what it gives. It reads values of the graph around it."""
    outer = trace.builder, trace.graph, len(trace.writes)
    graph = Graph(what)
    b = Recorder(graph, getattr(trace.builder, "upcast", False))
    b.origin = trace.builder.origin
    own = [b.input(f"x{i}", t) for i, t in enumerate(types)]
    trace.builder, trace.graph = b, graph
    try:
        made = listed(body(*[Tensor(trace, v) for v in own]))
        values = [x.value for x in made if isinstance(x, Tensor)]
    finally:
        trace.builder, trace.graph = outer[:2]
    if len(values) != len(made):
        raise TypeMismatchError(f"The body of {what} must give tensors, not {made!r}.")
    if len(trace.writes) > outer[2]:
        raise TileflowError(f"The body of {what} writes a buffer, which would be lost; write it outside.")
    if graph.losses:
        raise TileflowError(
            f"The body of {what} has a loss in it, which is not what is minimised; give its value, and "
            "let nn.identity_loss take that outside."
        )
    return graph, own, values


def _captured(branches: Sequence[tuple[Graph, Sequence[Value]]]) -> list[Value]:
    """What recorded graphs read that they do not make, in the order in which they do."""
    found: dict[Value, None] = {}
    for graph, made in branches:
        own = {*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs)}
        read = [*(v for node in graph.nodes for v in node.operands), *made]
        found |= dict.fromkeys(v for v in read if v not in own)
    return list(found)


def _region(
    trace: Trace, graph: Graph, own: Sequence[Value], captures: Sequence[Value], made: Sequence[Value]
) -> Region:
    """A recorded graph as a region, whose inputs are its own, then one for each capture."""
    b = Builder(graph, trace.builder.origin)
    formals = {v: Value(b.name(v.name), v.type) for v in captures}
    graph.inputs = [*own, *formals.values()]
    graph.replace(formals)
    return closed(b, [formals.get(v, v) for v in made])


# ---- Python


class cpu:
    """A function of Python's in `forward`: called between two rows of the native loop, with arrays, whenever what it
    gives is computed.

        self.median = nn.cpu(lambda x: np.median(x, axis=-1, keepdims=True))
        y = self.median(x)                                                         # in forward

    Results must follow from the arrays alone. What it raises ends the call, as itself.

    Args:
        function: arrays in (not to be written), an array or a tuple of them out.
        infer: gives the outputs' types, `TensorType`s, of those of the inputs. By default the function is called with
            zeros once, while the network is recorded.
        gradient: of inputs, outputs and gradients of the outputs, gives one gradient (or None) for each input; without
            it what needs one is refused.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        infer: Callable[..., Any] | None = None,
        gradient: Callable[..., Any] | None = None,
    ) -> None:
        if not callable(function):
            raise OptionError(f"cpu takes a function, not {function!r}.")
        self.function, self.infer, self.gradient = function, infer, gradient

    def __call__(self, *inputs: Any) -> Any:
        """Record a call of the function; of a tensor for each array, a tensor or a tuple of them."""
        trace = current_trace("cpu")
        first = next((x for x in inputs if isinstance(x, Tensor)), None)
        if first is None:
            raise OptionError("A function of nn.cpu is called on tensors.")
        types = [first.lift(x).value.type for x in inputs]
        if self.infer is not None:
            results = listed(self.infer(*types))
        else:
            results = [
                type_of(np.asarray(a)) for a in listed(self.function(*[np.zeros(t.shape, t.numpy) for t in types]))
            ]
        if not all(isinstance(t, TensorType) for t in results):
            raise TypeMismatchError(f"infer of nn.cpu must give TensorTypes, not {results!r}.")
        with trace.builder.scope(source=getattr(self.function, "__name__", None)):
            return first.applied(HostFunction(self.function, tuple(results), self.gradient), inputs)


class NameScope:
    """Operators recorded in the block are called by this name, then a slash and their layer, in errors, reports and
    patterns of names. Nothing is computed otherwise.

        with nn.NameScope("encoder"):
            x = self.layer(x)

    Raises:
        OptionError: the name is no text, or empty.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise OptionError(f"NameScope takes a name, a text, not {name!r}.")
        self.name = name
        self._scopes = ExitStack()

    def __enter__(self) -> NameScope:
        trace = current_trace("NameScope")
        before, around = trace.prefix, ", ".join(trace.builder.origin.sources)
        trace.prefix = f"{before}{self.name}/"
        self._scopes.callback(setattr, trace, "prefix", before)
        self._scopes.enter_context(trace.builder.scope(source=f"{self.name}/{around}" if around else self.name))
        return self

    def __exit__(self, *what: object) -> None:
        self._scopes.close()


# ---- places that are computed


def nop(tensor: Tensor) -> Tensor:
    """The tensor itself. (Where the reference keeps its compiler from looking over it, nothing needs to be kept.)"""
    return tensor


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int = 1) -> Tensor:
    """`tensor[start:start + size:step]` along `dim`, where `start` is a tensor of one whole number, known when it runs.

    Raises:
        OptionError: an argument is of another kind, or step does not divide size.
    """
    _whole(dynamic_slice.__name__, dim=dim, size=size, step=step)
    if step < 1 or size < 1 or size % step:
        raise OptionError(f"step of dynamic_slice must be at least 1 and divide size {size}, not {step}.")
    places = _places(tensor, start, range(0, size, step))
    found: Tensor = tensor.apply("Gather", places, axis=dim)
    return found


def dynamic_update(tensor: Tensor, source: Any, dim: int, start: Tensor, size: int) -> Tensor:
    """The tensor with `source` in place of its rows from `start` on, `size` of them, along `dim`.

    Raises:
        OptionError: an argument is of another kind. ShapeError: source has another rank, or not `size` rows.
    """
    _whole(dynamic_update.__name__, dim=dim, size=size)
    new = tensor.lift(source)
    if len(new.shape) != len(tensor.shape) or new.shape[dim] != size:
        raise ShapeError(
            f"dynamic_update puts {size} rows along axis {dim} into {list(tensor.shape)}, and source has "
            f"shape {list(new.shape)}."
        )
    places = _places(tensor, start, range(size))
    shape = [1] * len(tensor.shape)
    shape[dim] = size
    found: Tensor = tensor.apply("ScatterElements", places.reshape(*shape).expand(*new.shape), new, axis=dim)
    return found


def _whole(what: str, **numbers: Any) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise OptionError(f"{name} of {what} must be a whole number, not {number!r}.")


def _places(tensor: Tensor, start: Any, after: range) -> Tensor:
    """The places `after` a start."""
    if not isinstance(start, Tensor) or start.value.type.size != 1 or start.value.type.is_float:
        raise OptionError(
            f"start must be a tensor of one whole number, not {start!r}; a slice of Python's takes a number."
        )
    return start.to("int64").reshape(1) + np.array(list(after), np.int64)
