"""What Python learns of tensors while `forward` runs: truth values and numbers that follow from inputs and
parameters."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

TOLD: frozenset[Any] = frozenset({torch.Tensor.__bool__, torch.Tensor.item, torch.Tensor.__float__,
                                  torch.Tensor.__int__, torch.Tensor.__index__})


class Learning(TorchFunctionMode):
    """Follows tensors from where they come in to what Python learns of them, and tells one of these values otherwise.

    which: of the values, in their order; None: all as they are. otherwise: makes another value. learned: each value,
    and where it was asked for, as file and line.
    """

    def __init__(self, which: int | None = None, otherwise: Callable[[Any], Any] = lambda value: value) -> None:
        super().__init__()
        self.learned: list[tuple[Any, str]] = []
        self._which, self._otherwise = which, otherwise
        self._follow: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def begin(self, tensors: Iterable[torch.Tensor]) -> None:
        """Follow these, and what is computed from them."""
        for t in tensors:
            self._follow[t] = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not any(t in self._follow for t in _tensors((args, kwargs))):
            return result
        if func in TOLD:
            self.learned.append((result, _asked_at()))
            return self._otherwise(result) if len(self.learned) - 1 == self._which else result
        self.begin(_tensors((result, args[:1]) if func is torch.Tensor.__setitem__ else result))
        return result


def _tensors(nested: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def _asked_at() -> str:
    """The line of the user's, or of a library's over PyTorch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("tileflow.torch", "torch.")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
