"""What the links between IPUs take: one tensor from IPU to IPU, and what replicas do together (all-reduce and its halves).

Collectives are PopLibs' (popops, Collectives.cpp): an all-reduce is a reduce-scatter and an all-gather around the ring of the R IPUs that
hold the same tensors, one of each replica, by one of three methods:

    one way         the tensor in R fragments, R - 1 steps, in each of which every IPU gives a fragment to the next
    both ways       halves of it go round in either direction at once: 2 R fragments, R - 1 steps
    half way round  R fragments, half of them go half way in one direction, half in the other: floor(R / 2) steps

A step is bulk-synchronous: all of it crosses, then tiles add it (reduce-scatter only). Fragments are of ceil(bytes / fragments).
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ...graph.work import Map, Operand
from ..hardware.chip import ITEMSIZE, Chip
from ..plans.spread import worker_cycles

Kind = Literal["all-reduce", "reduce-scatter", "all-gather"]
When = Literal["before", "after"]
Method = Literal["one way", "both ways", "half way round"]

MANY = 16
"""Replicas above which the reference always goes half way round."""
REDUCE_SCATTER = ((2, 1_245_184), (4, 4_980_736), (8, 39_845_888))
"""Of more IPUs than the first number, fewer bytes than the second go half way round (popops, pickReduceScatterMethod; all-gather: half of them)."""


@dataclass(frozen=True)
class Collective:
    """What an IPU of every replica does together with its like.

    replicas: how many do it with each other. ipu: its number in a replica. part, when: the part of the program before or after which it happens.
    methods: of its one or two halves. bytes: of the tensors on each IPU. sent: bytes that each IPU gives to its neighbours. steps: rounds of
    exchange. cycles: of all.
    """

    kind: Kind
    replicas: int
    ipu: int
    part: str
    when: When
    methods: tuple[Method, ...]
    bytes: int
    sent: int
    steps: int
    cycles: int


def crossing_cycles(nbytes: int, chip: Chip) -> int:
    """Cycles that bytes take from one IPU to its neighbour, the barrier of both included."""
    return chip.link_sync_cycles + math.ceil(nbytes / chip.neighbour_bytes_per_second * chip.clock_hz)


def collective(kind: Kind, nbytes: int, replicas: int, chip: Chip, *, dtype: str = "float32", ipus: int = 1, ipu: int = 0, part: str = "update",
               when: When = "before") -> Collective:
    """Price what `replicas` IPUs, each with `nbytes`, do together: all of it is summed over them (all-reduce), each gets the sum of its share
    (reduce-scatter), or each gives its share to all (all-gather, `nbytes` being what all have then).

    Args:
        dtype: what is added.
        ipus: IPUs of a replica, by which the reference chooses its method.
    """
    halves: tuple[Kind, ...] = ("reduce-scatter", "all-gather") if kind == "all-reduce" else (kind,)
    if replicas < 2 or not nbytes:
        return Collective(kind, replicas, ipu, part, when, (), nbytes, 0, 0, 0)
    methods = tuple(_method(half, nbytes, replicas, ipus) for half in halves)
    sent = steps = cycles = 0
    for half, method in zip(halves, methods, strict=True):
        rounds = replicas // 2 if method == "half way round" else replicas - 1
        fragment = -(-nbytes // (2 * replicas if method == "both ways" else replicas))
        arriving = fragment if method == "one way" else 2 * fragment
        added = _adding(arriving, dtype, chip) if half == "reduce-scatter" else 0
        steps += rounds
        sent += fragment * (2 * rounds if method == "both ways" else replicas - 1)
        cycles += rounds * (crossing_cycles(fragment, chip) + added)
    return Collective(kind, replicas, ipu, part, when, methods, nbytes, sent, steps, cycles)


def _method(half: Kind, nbytes: int, replicas: int, ipus: int) -> Method:
    """As the reference chooses (popops, pickReduceScatterMethod and pickAllGatherMethod, for IPUs whose links are no torus)."""
    if ipus > 1 or replicas <= 2:
        return "one way"
    share = 1 if half == "reduce-scatter" else 2
    few = any(replicas > least and share * nbytes < most for least, most in REDUCE_SCATTER)
    return "half way round" if few or replicas > MANY else "both ways"


def _adding(nbytes: int, dtype: str, chip: Chip) -> int:
    """Cycles in which tiles add what has arrived to their own, spread over all of them."""
    itemsize = ITEMSIZE[dtype]
    elements = -(-nbytes // (itemsize * chip.tiles))
    operand = Operand(("i",), dtype)
    return worker_cycles(Map((), (operand, operand), (operand,), 1.0), elements, itemsize, chip)


def waits(collectives: Iterable[Collective]) -> Mapping[tuple[str, When], int]:
    """Cycles that the parts of an update wait for what replicas do together: those of the slowest IPU, as IPUs have links of their own."""
    own: dict[tuple[str, When], dict[int, int]] = {}
    for c in collectives:
        of_ipu = own.setdefault((c.part, c.when), {})
        of_ipu[c.ipu] = of_ipu.get(c.ipu, 0) + c.cycles
    return {key: max(of_ipu.values()) for key, of_ipu in own.items()}
