"""Models that compute gradients and change nothing."""
from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from .. import compiler
from ..compiler import CompileOptions
from ..graph import Builder, Graph, TensorType, Value
from ..loss import Loss
from ..options.options import Options
from ..passes.autograd import SHOWN, barriers, gradients, losses, reached, stops
from ..program.batching import Batching
from ..system.errors import DataError, UnsupportedError
from ..system.text import one_line
from .arrays import as_array
from .host import Progress
from .loss_model import LONGEST_NOTE, LossModel
from .model import Model
from .source import Source


class GradientModel(LossModel):
    """A model whose calls give gradients of one number: of a loss, of the sum of an output, or of an output times a given gradient.

    Args:
        wrt: name patterns of the inputs and parameters; None: all floating inputs.
        output: name or place of the output; None: the only one.
        loss: what becomes of the outputs; then labels follow the inputs of a call.
        upstream: an array of the output's shape follows the inputs of a call: the gradient of whatever is computed from the output.
    """

    def __init__(self, source: Source, options: Options, wrt: Sequence[str] | None, output: str | int | None = None,
                 loss: str | compiler.Loss | Loss | None = None, upstream: bool = False, progress: Progress | None = None) -> None:
        super().__init__(source, options, loss if loss is not None else "identity", progress)
        self.has_loss, self.upstream, self.wrt, self.output = loss is not None, upstream, wrt, output
        self.names: list[str] = []
        """Of what the gradients are by, in order; known once a program is compiled."""

    def _made_from(self) -> tuple[Any, ...]:
        return *super()._made_from(), self.wrt, self.output, self.loss if self.has_loss else None, self.upstream

    @property
    def mode(self) -> str:
        return "final"

    def _own_of(self, given: int, named: int = 0) -> int:
        if self.has_loss:
            return super()._own_of(given, named)
        return given - self.upstream

    def _arrays(self, arrays: Sequence[Any], own: int) -> list[np.ndarray]:
        if self.has_loss:
            return super()._arrays(arrays, own)
        return [*Model._arrays(self, arrays[:own], own),
                *(as_array(a, None, "the upstream gradient") for a in arrays[own:])]

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        place = self._place(graph)
        chosen = self._chosen(graph)
        loss = self._fitted(graph, more) if self.has_loss else None
        self.names = [v.name for v in chosen]

        def measure(b: Builder, outputs: Sequence[Value]) -> list[Value]:
            target = loss(b, outputs) if loss is not None else self._summed(b, b.graph.outputs[place], more)
            for value, name, found in zip(chosen, self.names, reached(b.graph, target, chosen), strict=True):
                if not found:
                    raise UnsupportedError(_why_not(b.graph, target, value, name, self._called(graph, place)))
            for sentence in losses(b.graph, target, chosen, self.names):
                warnings.warn(one_line(sentence, LONGEST_NOTE), stacklevel=2)
            return gradients(b.graph, target, chosen, between=f"{', '.join(self.names[:SHOWN])} and {self._called(graph, place)}")

        options = CompileOptions(self.source.precision, self.options.serial_splits, writes=False)
        return compiler.inference(graph, batching, options, measures=measure)

    def _summed(self, b: Builder, y: Value, more: tuple[TensorType, ...]) -> Value:
        """The number whose gradients are wanted, of an output without a loss."""
        if not self.upstream:
            return y
        if more[0].shape != y.shape:
            raise DataError(f"The upstream gradient {list(more[0].shape)} must have the shape of the output {one_line(y.name)}, {list(y.shape)}.")
        g = b.input("upstream", more[0])
        return b.ReduceSum(b.Mul(y, g if g.dtype == y.dtype else b.Cast(g, to=y.dtype)), keepdims=0)

    def _called(self, graph: Graph, place: int) -> str:
        return "the loss" if self.has_loss else f"the output {one_line(graph.outputs[place].name)}"

    def _place(self, graph: Graph) -> int:
        """Which output it is (DataError where that is not clear)."""
        names = [v.name for v in graph.outputs]
        shown = f"the outputs are {one_line(', '.join(names[:SHOWN]))}"
        if self.has_loss:
            return 0
        if self.output is None and len(names) > 1:
            raise DataError(f"The model has {len(names)} outputs; say of which the gradient is to be: {shown}.")
        place = names.index(self.output) if self.output in names else 0 if self.output is None else self.output
        if not isinstance(place, int) or not -len(names) <= place < len(names):
            raise DataError(f"The model has no output {one_line(self.output)!r}; {shown}.")
        value = graph.outputs[place]
        if not value.type.is_float:
            raise UnsupportedError(f"The output {one_line(value.name)} is {value.dtype}, and only floating numbers have gradients; {shown}.")
        return place % len(names)

    def _chosen(self, graph: Graph) -> list[Value]:
        """The inputs and parameters by whose elements is differentiated."""
        parameters = graph.parameters
        known = {v.name: v for v in graph.inputs} | {s.name: s.input for s in parameters}
        inputs = [v.name for v in graph.inputs if v.type.is_float]
        if self.wrt is None and not inputs:
            raise UnsupportedError("The model has no floating input to differentiate by; name parameters: wrt='*'.")
        found: dict[str, Value] = {}
        for pattern in inputs if self.wrt is None else self.wrt:
            fitting = [pattern] if pattern in known else [*(v.name for v in graph.inputs if fnmatchcase(v.name, pattern)),
                                                          *(s.name for s in parameters if s.fits(pattern))]
            floats = [name for name in fitting if known[name].type.is_float]
            if not fitting:
                raise DataError(f"wrt: {one_line(pattern)!r} is no input and no parameter of the model; there are "
                                f"{one_line(', '.join([*known][:SHOWN]))}{' ...' if len(known) > SHOWN else ''}.")
            if not floats:
                raise UnsupportedError(f"wrt: the input {one_line(fitting[0])} is {known[fitting[0]].dtype}, and only floating numbers have "
                                       "gradients; differentiate by what is computed from it, or by parameters.")
            found |= {name: known[name] for name in floats}
        return list(found.values())

    def __call__(self, *arrays: Any, **named: Any) -> dict[str, np.ndarray]:          # type: ignore[override]
        """The gradients by name, each of the shape of what it is by.

        Args:
            arrays, named: the model's inputs, then labels or the upstream gradient, where the model takes one.
        """
        shown, _ = self._call(arrays, named)
        names: Mapping[str, int] = {name: i for i, name in enumerate(self.names)}
        return {name: np.asarray(shown[i - len(names)]) for name, i in names.items()}


def _why_not(graph: Graph, target: Value, value: Value, name: str, called: str) -> str:
    """Why the target has no gradient by a value on which it does not depend by floating numbers."""
    found = barriers(graph, target, [value])
    if not found:
        return f"{_begins(called)} does not depend on {one_line(name)}."
    return f"{_begins(called)} has no gradient by {one_line(name)}: it ends at {stops(found, (0,))}."


def _begins(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]
