"""Arguments of types of one's own, under the reference's names: how their tensors are taken out and put back."""
from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree

from .errors import InvalidOption


class ICustomArgParser(abc.ABC):
    """How an object holds tensors; a subclass says it, and `registerCustomArgParser` gives it to a type."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """The tensors of an object, in an order of its own."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Any]) -> Any:
        """An object like the original one, with these tensors in that order."""


_registered: dict[type, ICustomArgParser | None] = {}
"""Types that were ever registered: PyTorch takes a type once."""


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Let models take, and give back, objects of a type; None takes that away.

    Raises:
        InvalidOption: it is no type, or no parser.
    """
    if not isinstance(arg_data_type, type):
        raise InvalidOption(f"registerCustomArgParser takes a type, not {arg_data_type!r}.")
    if arg_parser is not None and not isinstance(arg_parser, ICustomArgParser):
        raise InvalidOption(f"registerCustomArgParser takes an ICustomArgParser, not {type(arg_parser).__name__}.")
    known = arg_data_type in _registered
    _registered[arg_data_type] = arg_parser
    if arg_parser is None or known:
        return

    def flatten(held: Any) -> tuple[list[Any], Any]:
        parser = _registered[arg_data_type]
        if parser is None:
            raise InvalidOption(f"A {arg_data_type.__name__} has no parser any more; registerCustomArgParser gives it "
                                "one.")
        return list(parser.yieldTensors(held)), _Kept(held)

    def flatten_with_keys(held: Any) -> tuple[list[Any], Any]:
        tensors, kept = flatten(held)
        return [(pytree.SequenceKey(i), t) for i, t in enumerate(tensors)], kept

    def unflatten(tensors: Any, kept: _Kept) -> Any:
        parser = _registered[arg_data_type]
        assert parser is not None
        return parser.reconstruct(kept.original, iter(tensors))
    pytree.register_pytree_node(arg_data_type, flatten, unflatten,
                                serialized_type_name=f"{arg_data_type.__module__}.{arg_data_type.__qualname__}",
                                to_dumpable_context=repr, from_dumpable_context=str,
                                flatten_with_keys_fn=flatten_with_keys)


class _Kept:
    """An object without regard to its tensors: all of a type are alike."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and type(self.original) is type(other.original)

    def __hash__(self) -> int:
        return hash(type(self.original))
