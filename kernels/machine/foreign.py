"""Leaves whose bodies somebody else wrote, for an operator of their own: any function that Numba compiles.

They may take memory, call functions of Numba's and raise, which leaves of this package never do; so Numba's own code
generator compiles them, for this very processor, once for each process. Nothing of it is kept, so that what runs is
always what stands in the program.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from numba import cfunc, njit

from . import build
from .leaf import ENTRY, Leaf
from .status import RAISED

_numbers = itertools.count()


class ForeignLeaf(Leaf):
    """A leaf of a user's function. An exception in it is the status `RAISED`."""

    def __init__(
        self, function: Callable[..., Any], signature: str, texts: tuple[Any, ...] = (), boundscheck: bool = False
    ) -> None:
        """Args:
        function: plain, or compiled by numba.njit; takes the views of the signature, then the texts.
        texts: constants that no argument block holds: texts, and tuples of texts.
        boundscheck: an index that is out of range raises.
        """
        super().__init__(getattr(function, "py_func", function), signature, checked=True)
        self._function, self._texts, self._boundscheck = function, texts, boundscheck
        self._number = next(_numbers)
        self._made: Any = None

    @property
    def identity(self) -> str:
        """No other leaf of this process has it."""
        return f"{self._number}"

    @property
    def stored_name(self) -> str:
        """A name that the cache never has."""
        return f"foreign.{self.name}-{self._number}"

    def load(self) -> bool:
        """Compile it here and now: no other process could do it for this one."""
        self.compile()
        return True

    def compile(self) -> None:
        """Compile it, if that was not done before."""
        if self._made is None:
            self._made = cfunc(ENTRY, **build.OPTIONS)(self._entry())

    @property
    def address(self) -> int:
        """The C address of the compiled leaf (compiles it first)."""
        self.compile()
        return int(self._made.address)

    def _lines(self, arguments: list[str]) -> str:
        given = [*arguments, *(f"text{i}" for i in range(len(self._texts)))]
        return (
            "    try:\n"
            f"        body({', '.join(given)})\n"
            "    except Exception:\n"
            f"        return {RAISED}\n"
            "    return 0\n"
        )

    def _names(self) -> dict[str, Any]:
        compiled = (
            njit(boundscheck=self._boundscheck, **build.OPTIONS)(self.twin)
            if self._boundscheck or self.twin is self._function
            else self._function
        )
        return {"body": compiled, **{f"text{i}": text for i, text in enumerate(self._texts)}}


@functools.lru_cache(1024)
def foreign_leaf(
    function: Callable[..., Any], signature: str, texts: tuple[Any, ...] = (), boundscheck: bool = False
) -> ForeignLeaf:
    """The one leaf of a function, for arguments of these types and with these constants."""
    return ForeignLeaf(function, signature, texts, boundscheck)
