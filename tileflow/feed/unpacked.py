"""Contents of a table's cells, such as image files, one after the other in a temporary file: any process reads any of
them, and they take no memory."""
from __future__ import annotations

import errno
import io
import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from ..system.errors import DataError
from ..system.reading import open_regular

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Content(NamedTuple):
    """Bytes of a file, from `start` on. name: what sentences call them."""

    file: str
    start: int
    size: int
    name: str

    def opened(self) -> io.BytesIO:
        """As a file of its own."""
        with open_regular(self.file) as file:
            file.seek(self.start)
            return io.BytesIO(file.read(self.size))


class Unpacked(Sequence[Content]):
    """The contents by their number. The file is there as long as this object, or the process that made it."""

    def __init__(self, contents: Iterable[tuple[Any, str]]) -> None:
        """contents: the bytes of each, and what it is called.

        Raises:
            DataError: the folder of temporary files has no room.
        """
        handle, self.file = tempfile.mkstemp(prefix="tileflow-", suffix=".unpacked")
        weakref.finalize(self, _remove, self.file, os.getpid())
        ends, names = [0], []
        try:
            with os.fdopen(handle, "wb") as file:
                for content, name in contents:
                    file.write(content)
                    ends.append(file.tell())
                    names.append(name)
        except OSError as error:
            if error.errno not in FULL:                      # of reading
                raise
            raise DataError(f"Images of a table are written into a temporary file, and {os.path.dirname(self.file)} "
                            f"does not take them: {error.strerror}; the environment variable TMPDIR names another "
                            "folder.") from None
        self.ends, self.names = np.array(ends, np.int64), tuple(names)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, i: int) -> Content: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Content]: ...

    def __getitem__(self, i: int | slice) -> Content | Sequence[Content]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        name = self.names[i]
        start, end = self.ends[i % len(self)].item(), self.ends[i % len(self) + 1].item()
        return Content(self.file, start, end - start, name)


def _remove(path: str, maker: int) -> None:
    """Remove a file, unless this is a copy of the process that made it."""
    if os.getpid() == maker and os.path.exists(path):
        os.unlink(path)
