"""Blocks: which layers run on which IPU. Stages, in the options, say how blocks are put together; results do not depend on either."""
from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ..graph import NOTHING, Annotation, Hints
from ..system.errors import OptionError
from .module import Module
from .trace import current_trace

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Module)


def _block(name: str, user_id: str | int | None, ipu_id: int | None) -> Hints:
    """A block as it begins; one without a name goes by its number among these.

    Raises:
        TileflowError: no network is being recorded.
    """
    trace = current_trace(name)
    if user_id is None:
        user_id = trace.unnamed
        trace.unnamed += 1
    return Hints(annotation=Annotation(str(user_id), ipu_id))


def _check(name: str, user_id: str | int | None, ipu_id: int | None) -> None:
    if user_id is not None and (isinstance(user_id, bool) or not isinstance(user_id, (str, int)) or str(user_id) == ""):
        raise OptionError(f"{name}: user_id must be a name or a number, not {user_id!r}.")
    if ipu_id is not None and (isinstance(ipu_id, bool) or not isinstance(ipu_id, int) or ipu_id < 0):
        raise OptionError(f"{name}: ipu_id must be a number of an IPU, from 0 on, not {ipu_id!r}.")


class Block:
    """A scope in `forward()` whose operators belong to one block:

        with nn.Block("encoder", ipu_id=1):
            x = self.encoder(x)

    Args:
        user_id: a name or a number; by default blocks are counted, from "0" on, in each recording.
        ipu_id: the IPU, where no Stage says another.
    """

    def __init__(self, user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        _check("Block", user_id, ipu_id)
        self.user_id, self.ipu_id = user_id, ipu_id
        self._outer: list[Hints] = []

    def __enter__(self) -> Block:
        self._outer.append(current_trace("Block").builder.begin(_block("Block", self.user_id, self.ipu_id)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        outer = self._outer.pop()
        current_trace("Block").builder.begin(Hints(annotation=Annotation(None)) if outer is NOTHING else outer)

    @staticmethod
    def start(user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        """From here on operators belong to this block, until another begins."""
        _check("Block.start", user_id, ipu_id)
        current_trace("Block.start").builder.begin(_block("Block.start", user_id, ipu_id))

    @staticmethod
    def use_auto_id() -> None:
        """Count blocks without a name from "0" on again."""
        current_trace("Block.use_auto_id").unnamed = 0

    def __repr__(self) -> str:
        return f"Block(user_id={self.user_id!r}, ipu_id={self.ipu_id!r})"


def block_function(user_id: str | int | None = None, ipu_id: int | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: what the function records is a block."""
    _check("block_function", user_id, ipu_id)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def within(*args: P.args, **named: P.kwargs) -> R:
            with Block(user_id, ipu_id):
                return function(*args, **named)
        return within
    return decorate


def begin_block(module: M, user_id: str | int | None = None, ipu_id: int | None = None) -> M:
    """From the call of this layer on operators belong to a block, until another begins; returns the layer. What comes before the first such
    layer of a network is of stage 0.

        nn.begin_block(net.layer2, "second half", ipu_id=1)

    Raises:
        OptionError: it is no layer, or has a block already.
    """
    _check("begin_block", user_id, ipu_id)
    if not isinstance(module, Module):
        raise OptionError("module is not an instance of tileflow.nn.Module.")
    if getattr(module, "_begin_block", None) is not None:
        raise OptionError("module has already been assigned to a block.")
    module._begin_block = _Begin(user_id, ipu_id)                          # type: ignore[attr-defined]
    return module


def remove_blocks(module: Module) -> None:
    """Take away what `begin_block` gave this layer and all layers in it."""
    for inner in module.modules():
        vars(inner).pop("_begin_block", None)


class _Begin:
    """What a layer does when it is called: an object, so that networks can be copied and pickled."""

    def __init__(self, user_id: str | int | None, ipu_id: int | None) -> None:
        self.user_id, self.ipu_id = user_id, ipu_id

    def __call__(self) -> Any:
        current_trace("begin_block").builder.begin(_block("begin_block", self.user_id, self.ipu_id))
