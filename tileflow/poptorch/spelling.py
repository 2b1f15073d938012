"""Names in two spellings: the reference's camelCase, and the same in snake_case."""
from __future__ import annotations

import re
from typing import TypeVar

C = TypeVar("C", bound=type)


def snake_case(name: str) -> str:
    """A name in snake_case: `copyWeightsToHost` -> copy_weights_to_host, `numIOTiles` -> num_io_tiles."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def both_spellings(cls: C) -> C:
    """A class decorator: public methods in camelCase have their snake_case names as well."""
    for name, found in list(vars(cls).items()):
        other = snake_case(name)
        if not name.startswith("_") and other != name and other not in vars(cls):
            setattr(cls, other, found)
    return cls
