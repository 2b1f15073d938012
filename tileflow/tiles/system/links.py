"""What the links between IPUs take: one tensor from IPU to IPU, and what replicas do together (all-reduce and its halves).

Collectives are PopLibs' (popops, Collectives.cpp): an all-reduce is a reduce-scatter and an all-gather around the ring of the R IPUs that
hold the same tensors, one of each replica, by one of three methods:

    one way         the tensor in R fragments, R - 1 steps, in each of which every IPU gives a fragment to the next
    both ways       halves of it go round in either direction at once: 2 R fragments, R - 1 steps
    half way round  R fragments, half of them go half way in one direction, half in the other: floor(R / 2) steps

Over links that a chip's file describes, they are priced by the algorithms of `collectives`.

A step is bulk-synchronous: all of it crosses, then tiles add it (reduce-scatter only). Fragments are of ceil(bytes / fragments).
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ...graph.work import Map, Operand
from ..hardware.chip import ITEMSIZE, Chip
from ..hardware.fabric import Fabric
from ..plans.spread import worker_cycles
from .collectives import hop_cycles, steps_of

Kind = Literal["all-reduce", "reduce-scatter", "all-gather"]
When = Literal["before", "after"]
Method = str
"""Of the vendor's: "one way", "both ways" or "half way round"; on links of a chip's own "ring", "mesh" or "recursive
halving"."""

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
    if chip.links is not None:
        return hop_cycles(nbytes, chip.links, chip.clock_hz, chip.link_sync_cycles)
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
    methods: list[Method] = []
    sent = steps = cycles = 0
    for half in halves:
        method, gives, rounds, takes = _vendors(half, nbytes, replicas, chip, dtype, ipus) if chip.links is None else \
            _own(half, nbytes, replicas, chip, chip.links, dtype, ipus)
        methods.append(method)
        sent, steps, cycles = sent + gives, steps + rounds, cycles + takes
    return Collective(kind, replicas, ipu, part, when, tuple(methods), nbytes, sent, steps, cycles)


Priced = tuple[Method, int, int, int]
"""Of a reduce-scatter or all-gather: how it is done, the bytes that each gives, steps, cycles."""


def _vendors(half: Kind, nbytes: int, replicas: int, chip: Chip, dtype: str, ipus: int) -> Priced:
    method = _method(half, nbytes, replicas, ipus)
    rounds = replicas // 2 if method == "half way round" else replicas - 1
    fragment = -(-nbytes // (2 * replicas if method == "both ways" else replicas))
    arriving = fragment if method == "one way" else 2 * fragment
    added = _adding(arriving, dtype, chip) if half == "reduce-scatter" else 0
    sent = fragment * (2 * rounds if method == "both ways" else replicas - 1)
    return method, sent, rounds, rounds * (crossing_cycles(fragment, chip) + added)


def _own(half: Kind, nbytes: int, replicas: int, chip: Chip, fabric: Fabric, dtype: str, ipus: int) -> Priced:
    """Over links of the chip's own: by the algorithm that takes fewest cycles of those that they allow."""
    priced = [(name, sum(s.sent for s in steps), len(steps),
               sum(crossing_cycles(s.link, chip) + _adding(s.added, dtype, chip) for s in steps))
              for name, steps in steps_of(half, nbytes, replicas, ipus, fabric).items()]
    return min(priced, key=lambda p: p[-1])


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
