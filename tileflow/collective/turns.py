"""Work that processes of a group do in turns, and whose results all of them have in one order."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from .communicator import Communicator
from .messages import Parts


def in_turns(group: Communicator | None, own: Iterable[Parts], what: str) -> Iterator[Parts]:
    """What all processes have made, in order, in each of them: item i is made by process i modulo their number. The
    first process that has no item where its turn is ends it for all.

    Args:
        own: this process's items, made as they are wanted. what: what it is, for messages.

    Raises:
        ProcessError: another process has ended or failed, or is at another place of the program.
    """
    if group is None:
        yield from own
        return
    items = iter(own)
    while True:
        for parts in group.gathered(next(items, None), what):
            if parts is None:
                return
            yield parts
