"""Parameters and buffers: the arrays a network owns."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from ..graph import WRITTEN, Value
from ..memory.tensor import kind_of
from ..system.errors import ShapeError, TileflowError
from .in_place import InPlace, Write
from .tensor import Tensor
from .trace import Trace, current_trace, trace_under_way

if TYPE_CHECKING:
    from ..state import Session


class Parameter(InPlace):
    """A trained array. Until a model is compiled it holds its own memory, then `data` is the session's.

    In `forward` it is a tensor like any other.
    """

    kind = "parameter"

    def __init__(self, data: Any, trainable: bool = True) -> None:
        self._data = np.asarray(data)
        self.trainable = trainable
        self.stored: str | None = None
        """The floating type that somebody gave it by `half()` and the like; None: that of the precision."""
        self._home: tuple[Session, str] | None = None

    @property
    def data(self) -> np.ndarray:
        """The current values. Assign to it to change them; writing into it is not noticed by compiled models."""
        if self._home is not None:
            session, name = self._home
            return session[name]
        return self._data

    @data.setter
    def data(self, array: np.ndarray) -> None:
        if trace_under_way() is not None:
            raise TileflowError(f"{self._called()}: forward() is recorded once, so that data it assigns would be there once. {self._remedy()}")
        array = np.asarray(array)
        if array.shape != self.data.shape:
            raise ShapeError(f"This parameter has shape {list(self.data.shape)}; cannot assign {list(array.shape)}.")
        if self._home is not None:
            session, name = self._home
            session.set(name, array)
        else:
            self._data = array.astype(self._data.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> str:
        """Of the tensor while a network is recorded, else of the data."""
        return self.data.dtype.name if trace_under_way() is None else self.value.dtype

    @property
    def trace(self) -> Trace:
        return current_trace(f"Computing with {self!r}")

    @property
    def value(self) -> Value:
        """While a network is recorded: what was written last, else what it is when a micro-batch begins."""
        state = self.trace.state(self)
        return state.input if state.output is None else state.output

    def write(self, new: Tensor) -> Self:
        raise TileflowError(f"{self._called()} is written in forward(), and the optimizer writes parameters. {self._remedy()}")

    def refuse_assignment(self) -> NoReturn:
        """Raise TileflowError: `forward` assigned something else where this parameter is."""
        raise TileflowError(f"{self._called()} is assigned anew in forward(), where it would be lost. {self._remedy()}")

    def _called(self) -> str:
        return f"The {self.kind} {self.trace.state(self).name!r}"

    def _remedy(self) -> str:
        """What to do in place of assigning it."""
        return "Compute with it under another name (w = self.w * 0.5), or let it be a buffer (nn.Buffer), which forward() may write in place: " \
               "+=, add_(...), copy_(...)."

    @property
    def requires_grad(self) -> bool:
        """PyTorch's word for `trainable`."""
        return self.trainable

    @requires_grad.setter
    def requires_grad(self, trainable: bool) -> None:
        self.trainable = trainable

    def __eq__(self, other: Any) -> Any:
        """A tensor of booleans in `forward`; elsewhere whether both are one parameter."""
        return self is other if trace_under_way() is None else super().__eq__(other)

    def __ne__(self, other: Any) -> Any:
        return self is not other if trace_under_way() is None else super().__ne__(other)

    __hash__ = Tensor.__hash__

    def attach(self, session: Session, name: str) -> None:
        """From now on the session holds the values."""
        self._home = (session, name)

    @property
    def is_attached(self) -> bool:
        """A compiled model has it, in the type that it has now."""
        return self._home is not None

    @property
    def is_float(self) -> bool:
        return kind_of(self.data.dtype) == "f"

    def store_as(self, dtype: str) -> None:
        """Have the values in a floating type (of a running statistic: if the options let it). They fit, as `fits` finds."""
        self.stored = dtype
        if self._home is None:
            self._data = self._data.astype(dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data.dtype}{list(self.shape)})"


class Buffer(Parameter):
    """An array that belongs to a network's state and has no gradient. `statistic`: training keeps it, as running statistics, which stay float32
    where weights have 16 bits.

    What `forward` writes into it in place (+=, add_, copy_, [...] =) is there for the next micro-batch, kept between calls and saved; gradients do
    not reach back to the micro-batch before.
    """

    kind = "buffer"

    def __init__(self, data: Any, statistic: bool = False) -> None:
        super().__init__(data, trainable=False)
        self.statistic = statistic

    def write(self, new: Tensor) -> Self:
        """Let this be `new`, of its type and shape, from here on: in this `forward`, and for the next micro-batch."""
        state = self.trace.state(self)
        self.trace.writes.append(Write(state.name, self.value, len(self.trace.graph.nodes)))
        self.follow(new)
        state.role = WRITTEN
        return self

    def follow(self, new: Tensor) -> None:
        """`write` for running statistics: replicas share them, as all of them contribute and none needs to know another's."""
        state = self.trace.state(self)
        state.output, state.when = new.value, "micro"

    def _remedy(self) -> str:
        return "Write it in place: +=, add_(...), copy_(...)."
