"""Bytes per tile over the schedule: what is always live, what lives from its birth to its last reader, what a running step needs.

Tensors that are not live together share memory. An element-wise result takes over the memory of an input that dies with it and lies
on the same tiles. All vectors are int64[tiles].
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...graph.work import Map, Work
from ..hardware.chip import Chip
from ..hardware.vertex import CODE_BYTES as CONTRACTION_CODE
from ..plans.plan import OpPlan, TileStep
from ..plans.spread import VERTEX_CODE
from ..program.schedule import MemorySchedule, Storage

ALWAYS_LIVE = ("weights", "optimizer", "buffers", "constants", "code")
CATEGORIES = (*ALWAYS_LIVE, "activations", "temporaries", "exchange")


@dataclass
class Memory:
    """What analysis found. `peak` is each tile's worst total; `categories` add up to it at the step `peak_step` of each tile."""

    always_live: np.ndarray
    peak: np.ndarray
    peak_step: np.ndarray
    categories: dict[str, np.ndarray]
    liveness: np.ndarray
    """Bytes on the worst tile during each step, everything included; int64[steps]."""
    fullest: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The worst tile of each step, int64[steps]."""
    at_steps: dict[str, np.ndarray] = field(default_factory=dict)
    """By category, what is on that tile: int64[steps]; they add up to `liveness`."""
    storages: Sequence[Storage] = ()
    """The tensors that were counted."""
    heirs: dict[Storage, Storage] = field(default_factory=dict)
    """Of a tensor that dies as an element-wise operator reads it: the result that takes its memory over at that step."""


def tiles_of(plan: OpPlan, chip: Chip) -> np.ndarray:
    """Tiles that a plan computes on, bool[tiles]."""
    if plan.layout is not None:
        return np.asarray(plan.layout.elements_per_tile() > 0)
    used = np.zeros(chip.tiles, bool)
    start, count = plan.start_tile % chip.tiles, min(plan.tiles, chip.tiles)
    used[start:start + count] = True
    used[:max(0, start + count - chip.tiles)] = True
    return used


def always_live(made: MemorySchedule, steps: Sequence[TileStep], chip: Chip) -> dict[str, np.ndarray]:
    """Weights, optimizer state, buffers, constants and code per tile."""
    found = {name: np.zeros(chip.tiles, np.int64) for name in ALWAYS_LIVE}
    for storage in made.storages:
        if storage.always_live and storage.mapping is not None:
            found[storage.kind] += storage.mapping.bytes_per_tile(storage.itemsize)
    found["code"] += code(steps, chip)
    return found


def code(steps: Sequence[TileStep], chip: Chip) -> np.ndarray:
    """Bytes of code per tile.

    The code of a vertex is there once, for all operators of the kind. Steps that do the same work by the same plan share their
    control and exchange code, as repeated layers do on the device; loops over micro-batches are rolled.
    """
    total = np.zeros(chip.tiles, np.int64)
    vertices: dict[tuple[object, ...], np.ndarray] = {}
    seen: set[tuple[object, ...]] = set()
    for step in steps:
        plan = step.plan
        if not plan.code_bytes:
            continue
        key = (step.work, plan.vertex, tuple(plan.splits.items()), tuple(plan.serial.items()), plan.start_tile, plan.layout)
        if key in seen:
            continue
        seen.add(key)
        tiles = tiles_of(plan, chip)
        own = plan.code_bytes
        for kind, nbytes in vertex_code(step.work, plan):
            own -= nbytes
            known = vertices.get(kind)
            fresh = tiles if known is None else tiles & ~known
            vertices[kind] = tiles if known is None else tiles | known
            total += fresh * nbytes
        total += tiles * max(0, own)
    return total


def vertex_code(work: Work, plan: OpPlan) -> list[tuple[tuple[object, ...], int]]:
    """The vertices among a plan's code: what makes two of them the same, and their bytes."""
    if plan.vertex in VERTEX_CODE:
        return [((plan.vertex, work.functions or work.flops_per_point, work.outputs[0].dtype), VERTEX_CODE[plan.vertex])]
    found: list[tuple[tuple[object, ...], int]] = [((plan.vertex, work.outputs[0].dtype, plan.partials), CONTRACTION_CODE.get(plan.vertex, 0))]
    if plan.reduce_stages:
        found.append((("add partials", plan.partials), CONTRACTION_CODE["reduce"]))
    if plan.phases.transform:
        found.append((("copy",), CONTRACTION_CODE["copy"]))
    return found


def measure(made: MemorySchedule, steps: Sequence[TileStep], rearranged: Sequence[int], chip: Chip) -> Memory:
    """Walk the schedule; also sets `live_bytes` of every step.

    Args:
        rearranged: per step the bytes that rearrangements bring to the worst tile.
    """
    fixed = always_live(made, steps, chip)
    floor = np.asarray(sum(fixed.values()), np.int64)
    births, deaths = _events(made, len(steps))
    live = np.zeros(chip.tiles, np.int64)
    peak, peak_step = floor.copy(), np.full(chip.tiles, -1)
    at_peak = {name: np.zeros(chip.tiles, np.int64) for name in ("activations", "temporaries", "exchange")}
    liveness, fullest = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    at_steps = {name: np.zeros(len(steps), np.int64) for name in at_peak}
    heirs: dict[Storage, Storage] = {}
    sizes: dict[Storage, np.ndarray] = {}
    for i, step in enumerate(steps):
        born, dead = births[i], list(deaths[i])
        if isinstance(step.work, Map):
            for storage, heir in _overwritten(born, dead).items():
                heirs[storage] = heir
                live -= sizes[storage]
                dead.remove(storage)
        for storage in born:
            sizes[storage] = nbytes = _bytes(storage)
            live += nbytes
        tiles, needs = tiles_of(step.plan, chip), brought(step.plan, rearranged[i])
        running = live + tiles * sum(needs.values())
        total = floor + running
        worst = fullest[i] = int(total.argmax())
        liveness[i], step.live_bytes = total[worst], int(running.max())
        at_steps["activations"][i] = live[worst]
        for name, n in needs.items():
            at_steps[name][i] = n * tiles[worst]
        higher = total > peak
        if higher.any():
            peak[higher], peak_step[higher] = total[higher], i
            at_peak["activations"][higher] = live[higher]
            for name, n in needs.items():
                at_peak[name][higher] = n * tiles[higher]
        for storage in dead:
            live -= sizes[storage]
    at_steps = {name: own[fullest] for name, own in fixed.items()} | at_steps
    return Memory(floor, peak, peak_step, fixed | at_peak, liveness, fullest, at_steps, made.storages, heirs)


def brought(plan: OpPlan, rearranged: int) -> dict[str, int]:
    """Bytes by category that a plan needs on its tiles while it runs, with what rearrangements bring."""
    sent = min(plan.temp_bytes, plan.exchange_bytes)
    return {"temporaries": plan.temp_bytes - sent, "exchange": sent + rearranged}


def _events(made: MemorySchedule, steps: int) -> tuple[list[list[Storage]], list[list[Storage]]]:
    """Storages that are born and that die at each step."""
    births: list[list[Storage]] = [[] for _ in range(steps)]
    deaths: list[list[Storage]] = [[] for _ in range(steps)]
    for storage in made.storages:
        if not storage.always_live and storage.mapping is not None and steps:
            for first, last in storage.spans:
                births[first].append(storage)
                deaths[last].append(storage)
    return births, deaths


def _overwritten(born: Sequence[Storage], dead: Sequence[Storage]) -> dict[Storage, Storage]:
    """Dying storages whose memory a new one takes over, and which."""
    taken: dict[Storage, Storage] = {}
    for fresh in born:
        match = next((d for d in dead if not d.result and not d.off_chip and d not in born and d not in taken and d.itemsize == fresh.itemsize
                      and d.mapping == fresh.mapping), None) if not fresh.loads else None
        if match is not None:
            taken[match] = fresh
    return taken


def _bytes(storage: Storage) -> np.ndarray:
    assert storage.mapping is not None
    return storage.mapping.bytes_per_tile(storage.itemsize) * storage.copies


def category(storage: Storage) -> str:
    """What a tensor counts in; off-chip state, while it is on the chip, is there for a time like an activation."""
    return storage.kind if storage.always_live else "activations"


def holdings(made: MemorySchedule, step: int, tile: int) -> list[tuple[Storage, int]]:
    """Tensors on a tile during a step (always-live ones included), with their bytes there."""
    found = []
    for storage in made.storages:
        if storage.mapping is not None and (storage.always_live or any(first <= step <= last for first, last in storage.spans)):
            nbytes = int(storage.mapping.elements_per_tile()[tile]) * storage.itemsize * storage.copies
            if nbytes:
                found.append((storage, nbytes))
    return found
