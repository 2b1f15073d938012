"""What the files that give tensors their methods build on: a tensor's shape and type, and the recording of an operator."""
from __future__ import annotations

from typing import Any, Generic, TypeVar

Made = TypeVar("Made")
"""The class of tensors."""


class Methods(Generic[Made]):
    """Methods of tensors over what the class itself has; they are named as torch.Tensor's."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        raise NotImplementedError

    def apply(self, operator: str, *others: Any, **attributes: Any) -> Any:
        raise NotImplementedError
