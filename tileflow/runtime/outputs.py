"""What calls return: the micro-batches that the output mode shows, and values within the model, kept by name."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory.tensor import Tensor
from ..system.errors import OptionError, TileflowError
from ..system.text import one_line

if TYPE_CHECKING:
    from ..graph import Graph, Value
    from ..program.batching import Batching
    from ..program.program import Program

GRADIENT = "Gradient___"
"""What the name of a parameter has before it where its gradient is meant: `Gradient___fc2.bias`, of training alone."""
SHOWN = 1000
"""Characters of names in a sentence."""
Shown = Callable[[np.ndarray], Any]
"""What a call returns of one output: of [micro-batches, *micro-batch shape]."""


def kept_once(program: Program, mode: str) -> frozenset[str]:
    """Names of the outputs of which a call need keep the last micro-batch only."""
    once = shows_last(mode, program.batching)
    return frozenset(v.name for v in program.micro.outputs if v is not program.loss) if once else frozenset()


def shown(outputs: Sequence[Tensor], loss: str | None, kept: Sequence[int], batching: Batching, mode: str,
          period: int | None) -> list[Shown]:
    """What calls return of each output of a program (OptionError: a period that does not fit).

    Args:
        loss: the name of the one that is the loss. kept: how many micro-batches of each the engine keeps.
    """
    once, last = shows_last(mode, batching), batching.micro_batches - 1
    return [itemgetter(last % n) if once and v.name != loss else
            selection(mode, batching, period, (n, *v.shape)) for v, n in zip(outputs, kept, strict=True)]


def shows_last(mode: str, batching: Batching) -> bool:
    """Of an output that is not the loss nothing but a call's last micro-batch is shown."""
    return mode == "final" and batching.replicas == 1


def selection(mode: str, batching: Batching, period: int | None, shape: tuple[int, ...]) -> Shown:
    """What takes an output of a call as the output mode shows it.

    Args:
        shape: [micro-batches, *micro-batch shape], every micro-batch of the call.
        mode: all = concatenated along dimension 0 (a 0-d output becomes 1-d); final = the last one of each replica; sum
            = added over the micro-batches of each replica; every_n = all micro-batches of every `period`-th iteration.
    """
    replicas = batching.replicas
    if mode == "final":
        return itemgetter(-1) if replicas == 1 else partial(_last, replicas)
    if mode == "sum":
        return _sum if replicas == 1 else partial(_sums, replicas)
    if mode == "every_n":
        if period is None or period > batching.device_iterations or batching.device_iterations % period:
            raise OptionError("output_mode every_n needs an output_return_period that divides "
                              f"device_iterations={batching.device_iterations}, got {period}.")
        return partial(_every, batching.device_iterations, period)
    if len(shape) == 1:
        return itemgetter(0) if shape[0] == 1 else np.asarray
    return methodcaller("reshape", (shape[0] * shape[1], *shape[2:]))


def _sum(array: np.ndarray) -> Any:
    return np.add.reduce(array, axis=0, dtype=array.dtype)


def _joined(array: np.ndarray) -> np.ndarray:
    """Several micro-batches, concatenated along dimension 0."""
    return array if array.ndim == 1 else array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _last(replicas: int, array: np.ndarray) -> np.ndarray:
    return _joined(array[-replicas:])


def _sums(replicas: int, array: np.ndarray) -> np.ndarray:
    by_replica = array.reshape(len(array) // replicas, replicas, *array.shape[1:])
    return _joined(np.add.reduce(by_replica, axis=0, dtype=array.dtype))


def _every(iterations: int, period: int, array: np.ndarray) -> Any:
    """All micro-batches of every `period`-th of the iterations of a call, concatenated along dimension 0."""
    chosen = array.reshape(iterations, len(array) // iterations, *array.shape[1:])[period - 1::period]
    chosen = chosen.reshape(chosen.shape[0] * chosen.shape[1], *array.shape[1:])
    return chosen[0] if chosen.ndim == 1 and len(chosen) == 1 else _joined(chosen)


class Anchors:
    """Values within a model that its calls keep by name, beside what they return."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        """Names and patterns of the values; to be set before the model is compiled."""
        self.found: dict[str, Value] = {}
        """Those values of the graph that was built last."""
        self._kept: dict[str, Any] | None = None
        """What the last call kept."""

    @property
    def gradients(self) -> tuple[str, ...]:
        """The parameters whose gradients are kept, too, after those values."""
        return tuple(name.removeprefix(GRADIENT) for name in self.names if name.startswith(GRADIENT))

    @property
    def kept(self) -> tuple[str, ...]:
        """What is kept, in its order."""
        return (*self.found, *(GRADIENT + name for name in self.gradients))

    def find(self, graph: Graph, tensors_first: bool) -> None:
        """Look for them in a graph; OptionError for a name that it does not have."""
        from ..passes.anchors import anchored
        names = [name for name in self.names if not name.startswith(GRADIENT)]
        self.found = anchored(graph, names, tensors_first) if names else {}

    def take(self, names: Sequence[str], outputs: list[Any]) -> None:
        """Keep the last outputs of a call, which have these names, and leave the others."""
        begin = len(outputs) - len(names)
        self._kept = dict(zip(names, outputs[begin:], strict=True))
        del outputs[begin:]

    def get(self, name: str | None) -> Any:
        """What the last call kept of one, or of all by name.

        Raises:
            OptionError: the option anchored_tensors does not name it.
            TileflowError: the model has not been called.
        """
        if not self.names:
            raise OptionError("The model keeps no values for anchored(); name them in the option anchored_tensors.")
        if self._kept is None:
            raise TileflowError("Please call the model at least once before asking for anchored tensors.")
        if name is None:
            return dict(self._kept)
        if name not in self._kept:
            raise OptionError(f"The tensor {one_line(name)!r} is not anchored; the option anchored_tensors names "
                              f"{one_line(', '.join(self._kept), SHOWN)}.")
        return self._kept[name]
