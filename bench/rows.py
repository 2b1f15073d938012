"""What the driver takes for a row without work that is shared out among workers: a table of such rows, over and over."""
from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

import numpy as np

from tileflow.kernels.isa import cpu
from tileflow.kernels.machine import job
from tileflow.kernels.machine.guard import clear
from tileflow.kernels.machine.table import CHUNK_NS, Table

from .report import Result

ROWS, TURNS = 1000, 20


def empty_rows(workers: int) -> Table:
    """Rows over a byte for each worker, which is all that a chunk does; said to be work enough to be shared out."""
    table, memory = Table(), np.zeros(max(2, workers), np.uint8)
    block = clear["u1"].block(memory)
    table.keep((memory, block))
    with table.main.repeat(TURNS):
        for _ in range(ROWS):
            table.main.leaf(clear["u1"].address, int(block.ctypes.data), len(memory), cost=CHUNK_NS * len(memory), parallel=workers > 1)
    table.seal()
    return table


def run(threads: int | None, runs: int) -> Iterator[Result]:
    """Seconds for each number of threads."""
    for workers in (threads,) if threads else tuple(n for n in (1, 2) if n <= (os.cpu_count() or 1)):
        table = empty_rows(workers)
        times = []
        for _ in range(max(3, runs)):
            began = time.perf_counter()
            job.run(table, workers)
            times.append((time.perf_counter() - began) / (ROWS * TURNS))
        yield Result("rows", "none", workers, cpu.current().name, statistics.median(times), None, None, row="empty-row" if workers > 1 else "",
                     shape=f"an empty row, {workers} workers")
