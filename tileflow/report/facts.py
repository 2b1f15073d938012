"""What a report says of memory: bytes over tiles and over steps, the variables, and how each lies on the tiles."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tiles.placing import balance
from ..tiles.placing.addresses import Addresses, lay_out
from ..tiles.placing.memory import ALWAYS_LIVE, Memory, brought, category, tiles_of
from ..tiles.plans.plan import TileStep
from ..tiles.program.schedule import Storage

if TYPE_CHECKING:
    from ..tiles.hardware.chip import Chip
    from ..tiles.machine import TileProgram

MOST_TILES, MOST_BLOCKS = 8, 2000
"""Of each IPU so many tiles are laid out at most, the fullest first, until there are so many blocks: some 40 us each."""


class Variables:
    """The tensors of a program, numbered; one that is on several IPUs has a number for each.

    rows: `variables` of the report. spreads: how elements lie on tiles, each once.
    """

    def __init__(self, tiled: TileProgram) -> None:
        self.rows: list[dict[str, Any]] = []
        self.spreads: list[list[int]] = []
        self._known: dict[Any, int] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._of = tiled.memory_schedule.of
        self._called = {s.state.name: s.state.called for _, m in memories(tiled) for s in m.storages if s.state is not None and s.state.called}
        for ipu, memory in memories(tiled):
            self._add(memory, ipu)

    def _add(self, memory: Memory, ipu: int) -> None:
        held = [s for s in memory.storages if s.mapping is not None]
        number = {s: len(self.rows) + i for i, s in enumerate(held)}
        for storage in held:
            self._numbers[storage.number, ipu] = number[storage]
            heir = memory.heirs.get(storage)
            self.rows.append(self._row(storage, ipu, None if heir is None else number[heir]))

    def _row(self, storage: Storage, ipu: int, heir: int | None) -> dict[str, Any]:
        mapping = storage.mapping
        assert mapping is not None
        spread = self._spread(mapping, mapping.elements_per_tile)
        each, always = storage.itemsize * storage.copies, storage.always_live
        return {"name": self._name(storage), "kind": storage.kind, "category": category(storage), "layer": storage.layer,
                "shape": list(storage.shape), "dtype": storage.dtype, "ipu": ipu,
                "bytes": int(mapping.elements_per_tile().sum()) * each, "largest": mapping.worst * each, "tiles": mapping.tiles_used,
                "spread": spread, "element_bytes": each, "copies": storage.copies,
                "birth": None if always else storage.birth, "death": None if always else storage.death, "heir": heir, "off_chip": storage.off_chip,
                "stays": [] if always else [list(span) for span in storage.spans]}

    def _name(self, storage: Storage) -> str:
        """As people know it: a parameter by the name that the network has for it, what belongs to one by that name, too."""
        owner = storage.state.owner or storage.state.name if storage.state is not None else ""
        return self._called[owner] + storage.name.removeprefix(owner) if owner in self._called and storage.name.startswith(owner) else storage.name

    def _spread(self, key: Any, made: Callable[[], np.ndarray]) -> int:
        """The number of a spread, made where its key is not known."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.spreads)
            self.spreads.append(runs(made()))
        return found

    def running(self, step: TileStep, moved: int, chip: Chip) -> dict[str, Any]:
        """What a step needs on its tiles while it runs, and which these are. moved: bytes that rearrangements bring to the worst tile."""
        plan = step.plan
        key = "on", plan.layout, plan.start_tile, plan.tiles
        return {"spread": self._spread(key, lambda: tiles_of(plan, chip).astype(np.int64)), "bytes": brought(plan, moved)}

    def points(self, step: TileStep, chip: Chip) -> int:
        """The number of the spread of a step's points."""
        return self._spread(balance.key(step.work, step.plan), lambda: balance.points(step.work, step.plan, chip.tiles))

    def received(self, step: TileStep, moved: int, chip: Chip) -> list[list[int]]:
        """Variables, or `balance.OWN`, and the bytes that the worst tile is sent of them."""
        found: dict[int, int] = {}
        for value, nbytes in balance.received(step, moved, chip):
            storage = None if value is None else self._of.get(value)
            number = balance.OWN if storage is None else self._numbers.get((storage.number, step.ipu), balance.OWN)
            found[number] = found.get(number, 0) + nbytes
        return [list(pair) for pair in found.items()]

    def number(self, storage: Storage | None, ipu: int) -> int | None:
        """The variable of a tensor on an IPU; None for none."""
        return None if storage is None else self._numbers[storage.number, ipu]

    def numbers(self, values: Any, ipu: int) -> list[int]:
        """The variables of values on an IPU, each once; what is on none has no number."""
        found = (self._numbers.get((self._of[v].number, ipu)) for v in values if v in self._of)
        return list(dict.fromkeys(n for n in found if n is not None))


def notes(tiled: TileProgram) -> list[str]:
    """Sentences on tiles that are left idle, and on what replicas share out among them."""
    shares, said = tiled.shares, list[str]()
    if tiled.idle_tiles:
        said.append(f"So small a program takes the fewest cycles on {tiled.chip.tiles:,} of the tiles: "
                    f"{tiled.idle_tiles:,} of each IPU are idle, and no figure by tile counts them.")
    if tiled.options.optimizer_sharded and not shares.elements:
        said.append("No tensor is shared out over the replicas: none has as many elements as min_elements_sharded says, or updates need them whole.")
    if shares.elements:
        states = [s for s in tiled.memory_schedule.storages if s.state is not None and s.state.kind == "optimizer"]
        moments = [s for s in states if s.state is not None and s.state.owner in shares.elements]
        weights = f", and of {len(shares.weights):,} of these weights" if shares.weights else ""
        said.append(f"Each of the {shares.replicas} replicas keeps a share of the optimizer state of {len(shares.elements):,} weights "
                    f"({sum(s.nbytes for s in moments):,} bytes){weights}.")
    if tiled.gather_cycles:
        said.append(f"Putting shared weights together takes {tiled.gather_cycles:,} of the exchange cycles of an update.")
    return said


def memories(tiled: TileProgram) -> list[tuple[int, Memory]]:
    """The memory of each IPU, and its number."""
    if tiled.ipus:
        return [(ipu.number, ipu.memory) for ipu in tiled.ipus]
    return [] if tiled.measured is None else [(0, tiled.measured)]


def layouts(tiled: TileProgram, variables: Variables) -> list[dict[str, Any]]:
    """Addresses on the fullest tiles of each IPU; of tiles that hold as many bytes, one."""
    found = []
    for ipu, memory in memories(tiled):
        running = [(s, moved) for s, moved in zip(tiled.steps, tiled.rearranged, strict=True) if not tiled.ipus or s.ipu == ipu]
        _, first = np.unique(-memory.peak, return_index=True)
        blocks = 0
        for tile in first[:MOST_TILES]:
            laid = lay_out(memory, int(tile), running, tiled.chip)
            found.append(_layout(laid, ipu, variables))
            blocks += len(laid.blocks)
            if blocks > MOST_BLOCKS:
                break
    return found


def _layout(laid: Addresses, ipu: int, variables: Variables) -> dict[str, Any]:
    blocks = [{"variable": variables.number(b.storage, ipu), "category": b.category, "start": b.start, "bytes": b.nbytes, "first": b.first,
               "last": b.last} for b in laid.blocks]
    return {"ipu": ipu, "tile": laid.tile, "extent": laid.extent, "blocks": blocks}


def runs(counts: np.ndarray) -> list[int]:
    """A vector int[tiles] as runs: how many tiles, elements on each, and so on."""
    edges = np.flatnonzero(np.diff(counts, prepend=-1))
    lengths = np.diff(np.append(edges, len(counts)))
    return [int(n) for pair in zip(lengths, counts[edges], strict=True) for n in pair]


def memory(found: Memory) -> dict[str, Any]:
    """Bytes over tiles and over steps of one IPU."""
    return {"worst_tile": int(found.peak.argmax()), "worst": int(found.peak.max(initial=0)),
            "mean": float(found.peak.mean()) if found.peak.size else 0.0, "always_live": found.always_live,
            "peak": found.peak, "peak_step": found.peak_step, "categories": dict(found.categories),
            "steps": over_steps(found)}


def over_steps(found: Memory | None) -> dict[str, Any]:
    """By step: the fullest tile, and what it holds by category."""
    return {"fullest": [], "categories": {}} if found is None else {"fullest": found.fullest, "categories": dict(found.at_steps)}


def kinds(categories: Any) -> list[dict[str, Any]]:
    """The categories, in order."""
    return [{"name": name, "always_live": name in ALWAYS_LIVE} for name in categories]
