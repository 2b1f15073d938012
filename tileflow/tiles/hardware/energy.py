"""What operations, bytes and time cost in energy: as bounds, for hardly anything of it is published of a chip.

A chip's file says it in a table `energy`, each entry a number or [least, most]: joules of an operation by element
type (`operation.float16`), of a byte read or written in tile memory, received over the exchange, or sent over links,
to streaming memory and to the host; watts of an IPU that does nothing, and of one at work with its share of the
board. What is not said is not counted, and reports say so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ...system.errors import OptionError
from ...system.text import shown

Bounds = tuple[float, float]
"""The least and the most it may be."""
ENTRIES = ("tile_byte", "exchange_byte", "link_byte", "streaming_byte", "host_byte", "idle_watts", "board_watts")
"""Of the table, besides those of operations by type."""
MOST = 1e6
"""Joules and watts in a file are below it."""


@dataclass(frozen=True)
class Energy:
    """Joules and watts of an IPU as (least, most); None, or a type that `operation` has not: not known.

    operation: of one floating-point (or integer) operation by element type; a multiply-add is two. tile_byte: read
    from a tile's memory or written there. exchange_byte: received by a tile. link_byte: sent to another IPU.
    streaming_byte, host_byte: that pass either way. idle_watts: while nothing is done, which flows all the time.
    board_watts: of an IPU at work with all that it needs: its share of a card or machine.
    sources: by name, where it comes from.
    """

    operation: Mapping[str, Bounds] = field(default_factory=dict)
    tile_byte: Bounds | None = None
    exchange_byte: Bounds | None = None
    link_byte: Bounds | None = None
    streaming_byte: Bounds | None = None
    host_byte: Bounds | None = None
    idle_watts: Bounds | None = None
    board_watts: Bounds | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        operation = {str(k): _bounds(f"operation.{k}", v) for k, v in dict(self.operation).items()}
        object.__setattr__(self, "operation", MappingProxyType(operation))
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        for name in ENTRIES:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _bounds(name, value))

    def __hash__(self) -> int:
        return hash((tuple(self.operation.items()), *(getattr(self, name) for name in ENTRIES)))

    def __reduce__(self) -> Any:
        return _restored, (self.to_dict(), dict(self.sources))

    def rows(self) -> list[tuple[str, Bounds, str]]:
        """(name, bounds, source) of all that is known."""
        plain = self.to_dict()
        found = [(f"operation.{k}", v) for k, v in plain.pop("operation", {}).items()] + list(plain.items())
        return [(name, v, self.sources.get(name.partition(".")[0], "given")) for name, v in found]

    def without_board(self) -> Energy:
        """That of a chip whose tiles, memory or clock are others: what was said of the whole board no longer holds."""
        return dataclasses.replace(self, idle_watts=None, board_watts=None)

    def over(self, other: Energy) -> Energy:
        """What this says, and what the other says where this does not."""
        said = self.to_dict()
        merged = {**other.to_dict(), **said, "operation": {**other.operation, **self.operation}}
        kept = {name: source for name, source in other.sources.items() if name not in said}
        return Energy(**merged, sources=kept)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a chip's file holds them."""
        found: dict[str, Any] = {"operation": {k: list(v) for k, v in self.operation.items()}} if self.operation else {}
        return {**found, **{name: list(v) for name in ENTRIES if (v := getattr(self, name)) is not None}}

    @classmethod
    def from_dict(cls, table: Any, where: str) -> Energy:
        """From plain values; OptionError where a name or a value is wrong."""
        names = ("operation", *ENTRIES)
        if not isinstance(table, Mapping) or not isinstance(table.get("operation", {}), Mapping):
            raise OptionError(
                f"{where}: energy must be a table, and energy.operation a table by element type, not {shown(table)}."
            )
        for name in table:
            if name not in names:
                raise OptionError(f"{where}: energy has no entry {shown(name)}. It has {', '.join(names)}.")
        return cls(**table)


def _restored(table: Mapping[str, Any], sources: Mapping[str, str]) -> Energy:
    return Energy(**table, sources=sources)


def _bounds(name: str, value: Any) -> Bounds:
    """(least, most) from a number or a pair of them."""
    pair = (
        [value, value] if isinstance(value, (int, float)) else list(value) if isinstance(value, (list, tuple)) else []
    )
    numbers = [v for v in pair if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)]
    if len(pair) != 2 or len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1] < MOST:
        raise OptionError(f"energy.{name} must be a number of at least 0, or [least, most], not {shown(value)}.")
    return float(numbers[0]), float(numbers[1])


_HOROWITZ = "Horowitz, Computing's energy problem, ISSCC 2014 (45 nm, 0.9 V)"
_JOUPPI = "Jouppi et al., Ten lessons from three generations shaped Google's TPUv4i, ISCA 2021, table 2 (7 nm)"
_PICO = 1e-12
_STREAMED = (100 * _PICO, 2600 / 8 * _PICO)


def published(
    watts: Bounds, source: str, peaks: Mapping[str, float], exchange: float, nanometres: int, chip_watts: float
) -> Energy:
    """What can be said of a chip of which the power is published and nothing finer.

    An operation takes no less than the bare adders and multipliers of 7 nm do, and no more than all of the chip's
    power over its peak rate; so does a byte of the exchange, of which nothing is known (least: 0). Memory takes what
    memories of the sizes of a bank and above take in 7 nm, within a factor of two, as a tile's is none of those; in
    16 nm up to what one takes in 45 nm. Streaming memory is DDR4. Links, the host's bus and the idle chip have no
    published figure and are left out.

    Args:
        watts: of an IPU with its share of the board. peaks: operations per second by element type. exchange: bytes
        per second that all tiles receive.
        nanometres: of the process. chip_watts: that the chip takes at its peak, at most, as far as is published.
    """
    half = {"float16": (0.16 + 0.34) / 2, "float32": (0.38 + 1.31) / 2}
    operation = {dtype: (half[dtype] * _PICO, chip_watts / peaks[dtype]) for dtype in half}
    integers = {name: (least * _PICO, operation["float32"][1]) for name, least in (("int32", 0.03), ("int8", 0.007))}
    most = 2 * 14 if nanometres <= 7 else 100
    why = (
        f"at least the operators alone ({_JOUPPI}: half of a multiply and an add); "
        f"at most all of {chip_watts:g} W at the chip's peak rate"
    )
    return Energy(
        operation={**operation, **integers},
        tile_byte=(7.5 / 8 / 2 * _PICO, most / 8 * _PICO),
        exchange_byte=(0.0, chip_watts / exchange),
        streaming_byte=_STREAMED,
        board_watts=watts,
        sources={
            "operation": why,
            "tile_byte": "our estimate: half of what 64 bits of a memory of 8 KB take, to "
            + (f"those of 1 MB in 45 nm: {_HOROWITZ}; " if nanometres > 7 else "twice those of 1 MB: ")
            + _JOUPPI,
            "exchange_byte": f"not published: at most all of {chip_watts:g} W at the full rate",
            "streaming_byte": "from LPDDR4 (about 100 pJ a byte, by Arm's advice on mobile graphics) to the most of "
                              "DRAM, "
            f"2.6 nJ for 64 bits: {_HOROWITZ}",
            "board_watts": source,
        },
    )
