"""Collectives over links of a chip's own (`hardware.fabric`), priced step by step by the algorithm that does them.

R chips, one of each replica, each with n bytes. A step costs its barrier, the latency, the bytes over the busiest link,
and of a reduce-scatter the adding of what has arrived:

    ring                R - 1 steps of n / R bytes each (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for
                        clusters of workstations, JPDC 2009: (R - 1) / R n bytes for each half). Where chips have links
                        on both sides half of the bytes go each way.
    mesh                the same along rows, then with what is left along columns (Chan, Heimlich, Purkayastha and van
                        de Geijn, Collective communication: theory, practice, and experience, 2007: bucket algorithms;
                        in a row without a link around, the message back to the first passes against the others on
                        links that send both ways, so the row is a ring of one direction)
    recursive halving   log2 R steps of n / 2, n / 4 ... bytes; all-gather by recursive doubling the same in reverse
                        (Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
                        IJHPCA 2005). Where R is no power of two, the chips beyond the next smaller one first give all
                        of their bytes to a neighbour and at last get their share back (as their reduce-scatter does).

An all-reduce is a reduce-scatter and an all-gather (Rabenseifner's algorithm with recursive halving).

Replicas lie one after the other along a ring or along the rows of a mesh, so that stages of a replica are neighbours.
Chips that do something together are then as far apart as a replica has IPUs, and as many groups of them share each
link: a step's bytes count as often. A switch has no such distance.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

from ..hardware.fabric import Fabric

Half = str
"""reduce-scatter or all-gather."""


@dataclass(frozen=True)
class Step:
    """One bulk-synchronous step: bytes over the busiest link in one direction, those that a chip gives, those that are
    added to what it has."""

    link: int
    sent: int
    added: int


def steps_of(half: Half, nbytes: int, replicas: int, ipus: int, fabric: Fabric) -> dict[str, list[Step]]:
    """The steps of a reduce-scatter or all-gather by algorithm: those that the links allow; the cheapest is done.

    Args:
        nbytes: what each chip has (reduce-scatter), or all have at last (all-gather).
        replicas: chips that do it with each other, at least 2. ipus: of a replica.
    """
    if fabric.topology == "switch":
        found = {
            "ring": _ring(half, nbytes, replicas, 1, both=False),
            "recursive halving": _halving(half, nbytes, replicas),
        }
        return found if fabric.algorithm == "auto" else {fabric.algorithm: found[fabric.algorithm]}
    if fabric.topology == "ring":
        return {"ring": _ring(half, nbytes, replicas, ipus, both=True)}
    assert fabric.columns is not None
    across = fabric.columns // ipus  # replicas side by side in a row
    if across < 1 or fabric.columns % ipus or replicas % across or replicas == across:
        return {"ring": _ring(half, nbytes, replicas, ipus, both=False)}  # along the rows, to and fro
    along = _ring(half, nbytes, across, ipus, both=False) if across > 1 else []
    down = _ring(half, -(-nbytes // across), replicas // across, 1, both=False)
    return {"mesh": along + down if half == "reduce-scatter" else down + along}


def _ring(half: Half, nbytes: int, chips: int, shared: int, both: bool) -> list[Step]:
    ways = 2 if both and chips > 2 else 1  # two chips have one link
    piece = -(-nbytes // (chips * ways))
    return [Step(piece * shared, piece * ways, piece * ways if half == "reduce-scatter" else 0)] * (chips - 1)


def _halving(half: Half, nbytes: int, chips: int) -> list[Step]:
    rounds = chips.bit_length() - 1
    adds = half == "reduce-scatter"
    steps = [Step(piece, piece, piece if adds else 0) for piece in (-(-nbytes // 2**i) for i in range(1, rounds + 1))]
    if chips != 1 << rounds:
        share = -(-nbytes // chips)
        steps = [Step(nbytes, nbytes, nbytes if adds else 0), *steps, Step(share, share, 0)]
    return steps if adds else steps[::-1]


def hop_cycles(link: int, fabric: Fabric, clock_hz: float, sync_cycles: int) -> int:
    """Cycles of a step whose busiest link has so many bytes."""
    return sync_cycles + math.ceil((fabric.latency_seconds + link / fabric.bytes_per_second) * clock_hz)
