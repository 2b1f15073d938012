"""What several hosts cost by arithmetic: seconds for which an update waits for what travels between them.

`python -m bench.scaling docs/distributed.md` writes the table into the page.
"""
from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import numpy as np

from .processes import CASES

GBITS = (10, 100)
"""Networks: 10^9 bits a second that a host receives."""
HOSTS = (2, 4, 8, 16, 64, 256)
SHARE = 0.8
"""Of the time of an update, what computing has where hosts pay."""
ACCUMULATION = 4
"""Micro-batches of a replica in an update."""
EXCHANGES = {"after each step": (ACCUMULATION, 4, 4), "after each step, in 16 bits": (ACCUMULATION, 2, 4),
             "once an update": (1, 4, 4), "once, in 16 bits": (1, 2, 2)}
"""By its name in the table, how often an update's gradients are contributed, and bytes of an element of these and of
the sums (options `sync_each_batch` and `reduce_dtype`; the accumulators' type)."""
LARGER = {"25 million weights (ResNet-50)": 4 * 25_557_032, "110 million weights (BERT-base)": 4 * 109_482_240}
"""Bytes of networks' gradients in float32 that no bench trains."""


def gradients() -> dict[str, int]:
    """Bytes of an update's contributions of one micro-batch, by network."""
    found = {}
    for name, (_, make) in CASES.items():
        network, _ = make(np.random.default_rng(0), 1)
        found[name.partition(",")[0]] = sum(a.nbytes for a in network.state_dict().values())
    return found | LARGER


def waits(nbytes: int, sums: int, hosts: int, gbits: float, contributions: int = 1) -> float:
    """Seconds for which an update waits, one replica on each host: every host receives its slice of the contributions
    (`nbytes`) of all others, so often in an update, and then the others' slices of the sums (bytes). What starting a
    message costs is not counted."""
    return (contributions * nbytes + sums) * (hosts - 1) / hosts * 8 / (gbits * 1e9)


def table() -> str:
    """The page's table, as Markdown."""
    hosts = " | ".join(f"{n} hosts" for n in HOSTS)
    lines = [f"| network | Gbit/s | gradients travel | MB | {hosts} | an update computes for |",
             "|---|---|---|---|" + "---|" * (len(HOSTS) + 1)]
    for name, nbytes in gradients().items():
        for gbits, (how, (often, itemsize, summed)) in itertools.product(GBITS, EXCHANGES.items()):
            size = nbytes * itemsize // 4
            waited = [waits(size, nbytes * summed // 4, hosts, gbits, often) for hosts in HOSTS]
            seconds = " | ".join(f"{s:.2g}" for s in waited)
            lines.append(f"| {name} | {gbits} | {how} | {size / 1e6:.3g} | {seconds} | "
                         f"{SHARE / (1 - SHARE) * waited[-1]:.2g} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the table as it is now."""
    return re.sub(r"(?s)(<!-- the table: [^>]*-->\n).*?(<!-- end of the table -->)",
                  lambda found: found[1] + table() + "\n" + found[2], page)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(written(path.read_text("utf-8")), "utf-8")
