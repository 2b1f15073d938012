"""Work in a forked child, for tests whose scripts run in processes of their own."""
from __future__ import annotations

import os
from collections.abc import Callable


def child(work: Callable[[], bool]) -> int:
    """The exit status of a fork of this process that does the work: 0 where that gave true."""
    pid = os.fork()
    if pid == 0:
        ok = False
        try:
            ok = work()
        finally:
            os._exit(0 if ok else 1)
    return os.waitpid(pid, 0)[1]
