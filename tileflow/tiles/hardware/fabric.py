"""How chips are joined: ring, mesh or switch, any number of them, as a chip's file says in its table `links`.

Without that table chips are joined as IPUs of the vendor's pods are (`tiles.system.links`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...system.errors import OptionError
from ...system.text import shown

TOPOLOGIES = ("ring", "mesh", "switch")
ALGORITHMS = ("auto", "ring", "recursive halving")
MOST_CHIPS = 1_000_000


@dataclass(frozen=True)
class Fabric:
    """What joins chips.

    topology: "ring", each chip to the next, the last to the first; "mesh", rows and columns without links around the
    edge; "switch", each chip to one crossbar that slows nobody down.
    bytes_per_second: of one link in one direction; links send both ways at once. A chip of a ring has two, of a mesh
    four, of a switch one.
    latency_seconds: from a message's sending to its arrival, besides its bytes; the barrier of a step
    (`Chip.link_sync_cycles`) is the chip's.
    chips: how many there are; None: as many as are asked for. columns: of a mesh, whose rows are as many as are needed.
    algorithm: of collectives on a switch: "ring", "recursive halving", or "auto", the one that takes fewer cycles.
    """

    topology: str
    bytes_per_second: float
    latency_seconds: float = 0.0
    chips: int | None = None
    columns: int | None = None
    algorithm: str = "auto"

    def __post_init__(self) -> None:
        for name, words in (("topology", TOPOLOGIES), ("algorithm", ALGORITHMS)):
            if getattr(self, name) not in words:
                raise OptionError(
                    f"links.{name} must be {', '.join(words[:-1])} or {words[-1]}, not {shown(getattr(self, name))}."
                )
        for name, least in (("bytes_per_second", 1e-9), ("latency_seconds", 0)):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not math.isfinite(value)
                or not least <= value <= 1e18
            ):
                raise OptionError(
                    f"links.{name} must be a number {'above 0' if least else 'of at least 0'}, not {shown(value)}."
                )
        for name in ("chips", "columns"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CHIPS
            ):
                raise OptionError(f"links.{name} must be a whole number from 1 to {MOST_CHIPS:,}, not {shown(value)}.")
        if (self.columns is not None) != (self.topology == "mesh"):
            raise OptionError(
                "links.columns says how many columns a mesh has; "
                + ("give it." if self.columns is None else "other links have none.")
            )
        if self.algorithm == "recursive halving" and self.topology != "switch":
            raise OptionError(
                "links.algorithm recursive halving needs a switch: its partners are far from each other, and in a "
                f"{self.topology} their messages would share links."
            )

    @classmethod
    def from_dict(cls, table: Any, where: str) -> Fabric:
        """From plain values; OptionError where a name or a value is wrong."""
        names = [f.name for f in dataclasses.fields(cls)]
        if not isinstance(table, Mapping):
            raise OptionError(f"{where}: links must be a table, not {shown(table)}.")
        for name in table:
            if name not in names:
                raise OptionError(f"{where}: links has no entry {shown(name)}. It has {', '.join(names)}.")
        missing = [name for name in ("topology", "bytes_per_second") if name not in table]
        if missing:
            raise OptionError(f"{where}: links must say {' and '.join(missing)}.")
        return cls(**table)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a chip's file holds them."""
        return {f.name: v for f in dataclasses.fields(self) if (v := getattr(self, f.name)) is not None}

    def require(self, wanted: int) -> None:
        """OptionError where there are not so many chips."""
        if self.chips is not None and wanted > self.chips:
            raise OptionError(
                f"{wanted} chips are asked for, and links.chips says that there are {self.chips}; use fewer stages or "
                "replicas."
            )
