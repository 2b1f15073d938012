"""Automatic casting under the reference's names: scopes, decorators, and policies of torch's functions and layers."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch

from ..graph import Casting
from ..torch.annotations import scope
from .errors import InvalidOption


class Policy:
    """Which functions and layers of torch compute in which type.

    Args: lists of functions (`torch.bmm`), layers (`torch.nn.Conv2d`) or their names.
        fp16: in float16. fp32: in float32. promote: where operands differ, in float32. demote: where they differ, in
        float16.

    Raises:
        InvalidOption: something else is in a list.
    """

    def __init__(self, fp16: Sequence[Any] | None = None, fp32: Sequence[Any] | None = None,
                 promote: Sequence[Any] | None = None, demote: Sequence[Any] | None = None) -> None:
        self.fp16, self.fp32, self.promote, self.demote = (list(given or []) for given in (fp16, fp32, promote, demote))
        self.names()

    def names(self) -> dict[str, list[str]]:
        """The lists as names."""
        return {kind: [_name(item) for item in getattr(self, kind)] for kind in ("fp16", "fp32", "promote", "demote")}

    def __repr__(self) -> str:
        return f"Policy({', '.join(f'{kind}={names!r}' for kind, names in self.names().items())})"


def _name(item: Any) -> str:
    found = item if isinstance(item, str) else getattr(item, "__name__", None)
    if not isinstance(found, str):
        raise InvalidOption(f"A Policy lists functions of torch, layers or their names, not {item!r}.")
    return found


class autocast:
    """A scope, or a decorator of a function, whose operators are cast as the policy says; with enabled=False they stay
    as they are.

        with poptorch.autocast():
            y = self.conv(x)
    """

    def __init__(self, enabled: bool = True) -> None:
        if not isinstance(enabled, bool):
            raise InvalidOption(f"autocast takes True or False, not {enabled!r}.")
        self.enabled = enabled
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> autocast:
        self._entered.append(scope("casting", Casting(self.enabled)))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self._entered.pop().__exit__(kind, error, where)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def within(*args: Any, **kwargs: Any) -> Any:
            with autocast(self.enabled):
                return func(*args, **kwargs)
        return within


class _Cast:
    """What a module does before and after its `forward`: objects, so that modules can be copied and pickled."""

    def __init__(self, enabled: bool) -> None:
        self.scope = autocast(enabled)

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        self.scope.__enter__()


class _CastEnds:
    def __init__(self, begun: _Cast) -> None:
        self.begun = begun

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self.begun.scope.__exit__(None, None, None)


def of_module(module: torch.nn.Module, enabled: bool = True) -> None:
    """`module.autocast()`: cast the operators of a module and of all in it; said again, the last word counts."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for number, hook in list(hooks.items()):
            if isinstance(hook, (_Cast, _CastEnds)):
                del hooks[number]
    begun = _Cast(enabled)
    module.register_forward_pre_hook(begun)
    module.register_forward_hook(_CastEnds(begun), always_call=True)


torch.nn.Module.autocast = of_module                                                # type: ignore[attr-defined]
