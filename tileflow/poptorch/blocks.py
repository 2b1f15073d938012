"""Blocks under the reference's names: which operators of a module's `forward` belong together, for stages to put on
IPUs."""
from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch

from ..graph import Annotation
from ..torch.annotations import begin, exporting, scope
from .errors import Error, InvalidOption

HOOK = "_poptorch_block"


def _checked(user_id: Any, ipu_id: Any) -> None:
    if user_id is not None and not isinstance(user_id, str):
        raise InvalidOption(f"Invalid user_id: expected a str but got {type(user_id).__name__}.")
    if ipu_id is not None and (isinstance(ipu_id, bool) or not isinstance(ipu_id, int) or ipu_id < 0):
        raise InvalidOption(f"Invalid ipu_id: expected the number of an IPU, from 0 on, but got {ipu_id!r}.")


def _annotation(user_id: str | None, ipu_id: int | None) -> Annotation:
    """A block as it begins; one without a name goes by its number among these."""
    export = exporting()
    if user_id is None and export is not None:
        user_id = str(export.unnamed)
        export.unnamed += 1
    return Annotation(user_id or "", ipu_id)


class Block(torch.nn.Module):
    """A scope in `forward` whose operators belong to one block:

        with poptorch.Block("B1", ipu_id=0):
            x = self.layer1(x)

    Args:
        user_id: its name; by default blocks are counted, from "0" on, in each export.
        ipu_id: the IPU, where no Stage says another.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        _checked(user_id, ipu_id)
        self._user_id, self._ipu_id = user_id, ipu_id
        self._entered: list[AbstractContextManager[None]] = []

    @staticmethod
    def useAutoId() -> None:
        """Count blocks without a name from "0" on again."""
        export = exporting()
        if export is not None:
            export.unnamed = 0

    use_auto_id = useAutoId

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """From here on operators belong to this block, until another begins."""
        _checked(user_id, ipu_id)
        begin("annotation", _annotation(user_id, ipu_id))

    def __enter__(self) -> Block:
        self._entered.append(scope("annotation", _annotation(self._user_id, self._ipu_id)))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self._entered.pop().__exit__(kind, error, where)
        export = exporting()
        if error is None and export is not None and export.current == 0:
            begin("annotation", Annotation(None))                     # what follows is after a block, and in none

    def __repr__(self) -> str:
        return f"Block(user_id={self._user_id!r}, ipu_id={self._ipu_id!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_entered": []}


class _Begin:
    """What a module does before its `forward`: an object, so that modules can be copied and pickled."""

    def __init__(self, user_id: str | None, ipu_id: int | None) -> None:
        self.user_id, self.ipu_id = user_id, ipu_id

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        begin("annotation", _annotation(self.user_id, self.ipu_id))

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self.user_id}, ipu_id={self.ipu_id})"


class _BeginFunction(torch.nn.Module):
    """A function that begins a block when it is called."""

    def __init__(self, function: Callable[..., Any], user_id: str | None, ipu_id: int | None) -> None:
        super().__init__()
        self._function, self._begin = function, _Begin(user_id, ipu_id)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._begin(self, args)
        return self._function(*args, **kwargs)


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> Any:
    """From the call of this module, or function, on operators belong to a block, until another begins; returns it. What
    comes before the first such module is of stage 0.

        model.layer2 = poptorch.BeginBlock(model.layer2, ipu_id=1)

    Raises:
        Error: it is neither, or has a block already.
    """
    _checked(user_id, ipu_id)
    if not isinstance(layer_to_call, torch.nn.Module):
        if not callable(layer_to_call):
            raise Error("module is not an instance of torch.nn.Module or function.")
        return _BeginFunction(layer_to_call, user_id, ipu_id)
    if hook_of(layer_to_call) is not None:
        raise Error("module has already been assigned to a block.")
    layer_to_call.register_forward_pre_hook(_Begin(user_id, ipu_id))
    return layer_to_call


def hook_of(module: torch.nn.Module) -> Any:
    """What `BeginBlock` gave a module; None where it has no block."""
    return next((hook for hook in module._forward_pre_hooks.values() if isinstance(hook, _Begin)), None)


def removeBlocks(module: torch.nn.Module) -> None:
    """Take away what `BeginBlock` gave this module and all in it (InvalidOption where it is none)."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidOption(f"removeBlocks takes a torch.nn.Module, not {type(module).__name__}.")
    for inner in module.modules():
        for number, hook in list(inner._forward_pre_hooks.items()):
            if isinstance(hook, _Begin):
                del inner._forward_pre_hooks[number]


def BlockFunction(user_id: str | None = None,
                  ipu_id: int | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the operators of a function are a block."""
    _checked(user_id, ipu_id)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)
        return within
    return decorate


def module_repr(m: torch.nn.Module) -> str:
    """The module as PyTorch shows it, with the blocks that begin in it."""
    lines = [torch.nn.Module.__repr__(m).splitlines()[0]] if not list(m.children()) else [f"{type(m).__name__}("]
    for name, child in m.named_children():
        inner = module_repr(child).splitlines()
        lines += [f"  ({name}): {inner[0]}", *(f"  {line}" for line in inner[1:])]
    if list(m.children()):
        lines.append(")")
    hook = hook_of(m)
    return "\n".join(lines if hook is None else [f"{hook} {lines[0]}", *lines[1:]])
