"""Groups of processes for tests: forks of this one with memory in common, so that kernels are there already."""
from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tileflow import collective
from tileflow.collective.control import FAILED, Control
from tileflow.collective.shared import SharedMemory


def forked(folder: Path, size: int, work: Callable[[int], Any], threads: int = 1,
           kind: type[SharedMemory] = SharedMemory) -> list[Any]:
    """What the work gives in each process of a group, by rank; an exception where it raised one."""
    folder.mkdir(parents=True, exist_ok=True)
    control = Control.create(folder / "control", size)
    children = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                collective.use(kind(control, rank))
                try:
                    found = work(rank)
                except Exception as error:
                    control.end(rank, FAILED, str(error))
                    found = error
                (folder / f"result{rank}").write_bytes(pickle.dumps(found))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(pid)
    ended = [os.waitpid(pid, 0)[1] for pid in children]
    assert not any(ended), ended
    return [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(size)]
