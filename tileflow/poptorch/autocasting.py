"""Automatic casting under the reference's names: scopes, decorators, and policies of torch's functions and layers."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import InvalidOption


class Policy:
    """Which functions and layers of torch compute in which type.

    Args: lists of functions (`torch.bmm`), layers (`torch.nn.Conv2d`) or their names.
        fp16: in float16. fp32: in float32. promote: where operands differ, in float32. demote: where they differ, in float16.

    Raises:
        InvalidOption: something else is in a list.
    """

    def __init__(self, fp16: Sequence[Any] | None = None, fp32: Sequence[Any] | None = None, promote: Sequence[Any] | None = None,
                 demote: Sequence[Any] | None = None) -> None:
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
