"""Parameters and buffers: the arrays a network owns."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ShapeError

if TYPE_CHECKING:
    from ..state import Session


class Parameter:
    """A trained array. Until a model is compiled it holds its own memory, then `data` is the session's."""

    kind = "parameter"

    def __init__(self, data: np.ndarray, trainable: bool = True) -> None:
        self._data = np.asarray(data)
        self.trainable = trainable
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

    def attach(self, session: Session, name: str) -> None:
        """From now on the session holds the values."""
        self._home = (session, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data.dtype}{list(self.shape)})"


class Buffer(Parameter):
    """An array that training updates without gradients, such as running statistics."""

    kind = "buffer"

    def __init__(self, data: np.ndarray) -> None:
        super().__init__(data, trainable=False)
