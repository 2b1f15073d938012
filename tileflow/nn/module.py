"""Modules: a network is a tree of modules; parameters are named by their path in it."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import TileflowError
from ..graph import Graph, Hints, Origin, State, TensorType, Value
from ..state import Session, fitting
from .parameter import Buffer, Parameter
from .tensor import Tensor, Trace, recording


class Module:
    """Base of all layers and networks. Subclasses assign parameters and modules as attributes and define `forward`."""

    _hints: Hints | None = None

    def forward(self, *inputs: Tensor) -> Any:
        """Record this module's operators; tensors in, a tensor (or a tuple of them) out."""
        raise NotImplementedError(f"{type(self).__name__} has no forward().")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Use this module inside another's `forward`. To compute with arrays, wrap it in a training or inference model."""
        tensors = [x for x in (*inputs, *named.values()) if isinstance(x, Tensor)]
        if not tensors:
            raise TileflowError(f"{type(self).__name__} records a graph and takes no arrays; wrap the network: "
                                "tileflow.inference_model(net)(x).")
        trace = tensors[0].trace
        path = getattr(self, "_path", "") or type(self).__name__
        outer = trace.builder.origin.hints
        with trace.builder.at(Origin((path,), hints=self._hints.over(outer) if self._hints else outer)):
            return self.forward(*inputs, **named)

    def children(self) -> Iterator[tuple[str, Module]]:
        """Direct sub-modules with their attribute names; those in lists are numbered."""
        for name, item in vars(self).items():
            if isinstance(item, Module):
                yield name, item
            elif isinstance(item, (list, tuple)):
                for i, part in enumerate(item):
                    if isinstance(part, Module):
                        yield f"{name}.{i}", part

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, with their paths."""
        yield prefix, self
        for name, child in self.children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Parameters and buffers by path, each once."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, item in vars(module).items():
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


def record(net: Module, inputs: Sequence[tuple[str, TensorType]], *, training: bool, dtype: str) -> Graph:
    """Record a network's graph for inputs of these types; its parameters become states called by their paths."""
    graph = Graph(type(net).__name__)
    trace = Trace(graph, training, dtype)
    for path, module in reversed(list(net.named_modules())):   # a shared module goes by the first of its paths
        module._path = path                                    # type: ignore[attr-defined]
    for name, p in net.named_parameters():
        kind = "float64" if dtype == "float64" else "float32"
        t = TensorType(kind if p.data.dtype.kind == "f" else p.data.dtype.name, p.shape)
        state = State(name, "buffer" if isinstance(p, Buffer) else "parameter", Value(trace.builder.name(name), t),
                      trainable=p.trainable, group=p.kind)
        trace.states[id(p)] = state
        graph.states.append(state)
    tensors = [Tensor(trace, trace.builder.input(name, t)) for name, t in inputs]
    with recording(trace):
        result = net(*tensors)
    for i, tensor in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
        if not isinstance(tensor, Tensor):
            raise TileflowError(f"{type(net).__name__}.forward() must return tensors; output {i} is {type(tensor).__name__}.")
        own = tensor.value.producer is not None and tensor.value not in graph.outputs
        graph.outputs.append(tensor.value if own else trace.builder.Identity(tensor.value))
    return graph
