"""A run of several processes in which something fails: faulty_script.py OUT KIND RANK UPDATE (KIND none: nothing
does)."""
from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import tileflow
from tileflow import collective, nn

ROWS, MICRO, REPLICAS = 54, 3, 3


class Rows:
    """Rows by number, of which one cannot be read; and a disk that is full after so many writes."""

    def __init__(self, out: Path, kind: str, update: int) -> None:
        self.out, self.kind, self.last = out, kind, update * MICRO * REPLICAS
        self.left, self.fsync = update, os.fsync
        if kind == "disk":
            os.fsync = self.written

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        self.last -= 1
        time.sleep(0.001)
        if self.kind == "raise" and self.last < 0:
            self.fail(RuntimeError("the row is torn"))
        draw = np.random.default_rng(i)
        return draw.standard_normal(8).astype(np.float32), int(i % 2)

    def written(self, handle: Any) -> None:
        self.left -= 1
        if self.left < 0:
            self.fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        self.fsync(handle)

    def fail(self, error: Exception) -> NoReturn:
        if not (told := self.out.parent / "failed").exists():
            told.touch()
        raise error


def run(out: Path, kind: str = "none", rank: int = 0, update: int = 0) -> None:
    """Train, or go on with what is there."""
    group = collective.current()
    own = 0 if group is None else group.rank
    nn.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    tileflow.train(net, data=Rows(out, kind if own == rank else "none", update), epochs=8, micro_batch_size=MICRO,
                   replication_factor=REPLICAS,
                   optimizer="adamw", learning_rate=0.01, seed=3, loss="cross_entropy", save_every_updates=2,
                   out=str(out), resume=(out / "checkpoint.safetensors").exists(), threads=1)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
