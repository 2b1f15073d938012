"""What Python does in the native loop, in the place of a leaf: a HOST row. Whoever runs one needs no compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .call import In, Out


@dataclass(frozen=True)
class Moment:
    """When a HOST row is reached, and how it says something.

    update, micro_batch: those under way: updates counted since the session began (0 where nothing is trained),
    micro-batches from the first of the call.
    say: takes a text that is told in the order of the micro-batches, whatever order these are computed in.
    asked: whether somebody has asked the call to end early.
    """

    update: int
    micro_batch: int
    say: Callable[[str], None]
    asked: Callable[[], bool] = lambda: False


class GivenUp(Exception):
    """Raised by a HOST row: the call is given up here, as one that was asked to end early."""


class UpdateFailed(Exception):
    """Raised by a HOST row: another process has failed in this update. written: all have written it, as far as they
    came; else none has. counted: it counts as done here."""

    def __init__(self, written: bool, counted: bool) -> None:
        super().__init__()
        self.written, self.counted = written, counted


@dataclass(frozen=True)
class HostCall:
    """What Python does in the native loop: a HOST row, after the node's leaf calls.

    function: takes the moment and an array for each of `args`, in the node's own types and shapes; it writes those that
    are outputs and returns nothing. What it raises ends the call, as itself.
    """

    function: Callable[..., None]
    args: Sequence[In | Out]
