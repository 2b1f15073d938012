"""Machines as data: GC2, GC200, Bow and C600, and chips of the user's own from a TOML file or from `Chip.variant`.

Every constant of a chip says where it comes from: `chip.constants()` lists name, value, "documented", "estimate" or "user", and the source.
What nobody documents, or documents as a bound only, also has a range and its reason: `chip.ranges()`, and
`chip.at_worst()` and `chip.at_best()`.
"""
from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...graph import NARROW
from ...system.errors import OptionError
from ...system.reading import parsed, read_text
from ...system.text import shown
from .energy import Energy, published
from .fabric import Fabric

DEVICE_DTYPES = {"float64": "float32", "int64": "int32", "uint64": "uint32", "bfloat16": "float16"}
"""Element types the tiles do not have, and what they hold instead: bfloat16 takes the room and the time of float16."""

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4,
            "uint32": 4, "int64": 8, "uint64": 8, **dict.fromkeys(NARROW, 1)}


def device_dtype(dtype: str, precision: str = "32.32") -> str:
    """The element type a tensor has on the tiles: 64 bits become 32, bfloat16 float16; with precision "16.32" or "16.16" float32 becomes float16."""
    dtype = DEVICE_DTYPES.get(dtype, dtype)
    return "float16" if dtype == "float32" and precision.startswith("16") else dtype


@dataclass(frozen=True)
class MatrixUnit:
    """The multiply-accumulate array of a tile for one pair of input and partials types.

    A block of `k_grain` inputs by `units` output channels is loaded as coefficients; then each row of inputs takes
    `k_grain * units / macs_per_cycle` cycles.
    """

    macs_per_cycle: int
    units: int
    k_grain: int

    @property
    def cycles_per_row(self) -> float:
        return self.k_grain * self.units / self.macs_per_cycle


EIGHT_BIT_PRODUCTS = ("widened", "refused")
EIGHT_BIT_UNIT = "int8.int32"
"""The matrix unit of a chip that multiplies bytes, with or without signs, and adds in 32 bits."""


_SURROUNDINGS = ("name", "clock_hz", "link_sync_cycles", "link_bytes_per_second", "host_bytes_per_second", "streaming_bytes_per_second",
                 "reserved_bytes", "area_mm2", "cost")
"""Constants that count once plans are made."""
_PRICES = ("area_mm2", "cost")
"""What a chip need not say."""
_BY_HAND, _GIVEN = "changed by hand", "given or left at its default"


@dataclass(frozen=True)
class Range:
    """Between which shares of its value a constant lies, and how that is known."""

    low: float
    high: float
    reason: str


@dataclass(frozen=True)
class Chip:
    """One IPU and its surroundings. Bandwidths are per IPU and in bytes per second, cycles are tile clock cycles.

    matrix: units per "<input type>.<partials type>"; a pair that is missing has no matrix unit.
    vector_bytes: width of a tile's data path; vector instructions take vector_bytes / itemsize elements.
    coefficient_bytes_per_cycle: how fast the matrix unit's coefficients load.
    link_bytes_per_second: all links of an IPU to others, both directions together.
    exchange_bytes_per_cycle: what a tile receives; `tiles_per_bus` neighbours that receive the same data share their paths.
    copy_bytes_per_cycle, copy_call_cycles: rearranging data inside a tile.
    sync_cycles: barrier and set-up of one exchange step. launch_cycles: starting the vertices of one compute step.
    piece_cycles: exchange cycles on top of the bytes for each separate piece of a rearrangement.
    bank_conflict_factor: how much longer the matrix unit's vertices take than with operands in banks of memory that are
    read at once. link_sync_cycles: a barrier that takes several IPUs. energy: what operations, bytes and time cost, as
    bounds. links: how chips are joined; None: as the vendor's are, by `link_bytes_per_second`. area_mm2: of an IPU's
    silicon; cost: of an IPU, in any unit of money; None: not said. eight_bit_products: of 8-bit integers where `matrix`
    has no "int8.int32": "widened" (cast to float16, in which bytes and their zero points are
        exact, and multiplied as such) or "refused".
    """

    name: str
    tiles: int
    bytes_per_tile: int
    clock_hz: float
    matrix: Mapping[str, MatrixUnit]
    workers: int = 6
    vector_bytes: int = 8
    coefficient_bytes_per_cycle: int = 8
    exchange_bytes_per_cycle: float = 4.0
    tiles_per_bus: int = 2
    copy_bytes_per_cycle: float = 8.0
    copy_call_cycles: int = 288
    sync_cycles: int = 600
    launch_cycles: int = 11
    piece_cycles: int = 2
    bank_conflict_factor: float = 1.0
    link_sync_cycles: int = 1200
    link_bytes_per_second: float = 320e9
    host_bytes_per_second: float = 32e9
    streaming_bytes_per_second: float = 20e9
    reserved_bytes: int = 0
    eight_bit_products: str = "widened"
    energy: Energy = field(default_factory=Energy)
    links: Fabric | None = None
    area_mm2: float | None = None
    cost: float | None = None
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            left_out = f.name in ("name", "matrix", "sources", "eight_bit_products", "energy", "links")
            if not left_out and not (f.name in _PRICES and getattr(self, f.name) is None):
                object.__setattr__(self, f.name, _checked(self.name, f.name, getattr(self, f.name), f.type in ("int", int)))
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"A chip's name must be a text that is not empty, not {shown(self.name)}.")
        if self.eight_bit_products not in EIGHT_BIT_PRODUCTS:
            raise OptionError(f"Chip {self.name}: eight_bit_products must be {' or '.join(EIGHT_BIT_PRODUCTS)}, not "
                              f'{shown(self.eight_bit_products)}; a chip that multiplies bytes has a unit '
                              f'matrix."{EIGHT_BIT_UNIT}".')
        for name, kind in (("energy", Energy), ("links", Fabric | None)):
            if not isinstance(getattr(self, name), kind):
                raise OptionError(f"Chip {self.name}: {name} must be a table, or what tileflow.machine has for it, not "
                                  f"{shown(getattr(self, name))}.")
        if self.reserved_bytes >= self.bytes_per_tile:
            raise OptionError(f"Chip {self.name}: reserved_bytes {self.reserved_bytes} must be below bytes_per_tile {self.bytes_per_tile}.")
        object.__setattr__(self, "matrix", MappingProxyType({k: _unit(self.name, k, v) for k, v in dict(self.matrix).items()}))
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Any:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return _restored, ({**values, "matrix": dict(self.matrix), "sources": dict(self.sources)},)

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """All that decides a plan, hashable: chips that differ in their clock and surroundings only have the same plans."""
        return self._key()

    @functools.cached_property
    def key_of_cycles(self) -> tuple[Any, ...]:
        """All that decides what a given partition costs: `key` without the bytes of a tile, which only say what is
        looked at."""
        return self._key("bytes_per_tile")

    def _key(self, *without: str) -> tuple[Any, ...]:
        left_out = "matrix", "sources", "energy", "links", *_SURROUNDINGS, *without
        plain = tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in left_out)
        return (*plain, *((k, v.macs_per_cycle, v.units, v.k_grain) for k, v in self.matrix.items()))

    @property
    def usable_bytes(self) -> int:
        """Bytes of a tile that programs may use."""
        return self.bytes_per_tile - self.reserved_bytes

    @property
    def neighbour_bytes_per_second(self) -> float:
        """What passes from an IPU to one of its two neighbours in a pipeline or ring: half of the links go to each, and each has two directions.
        How many of an IPU's links go where is not published; this is the split that serves both neighbours alike."""
        return self.link_bytes_per_second / 4

    def vector(self, dtype: str) -> int:
        """Elements of a vector instruction."""
        return max(1, self.vector_bytes // ITEMSIZE[dtype])

    def unit(self, dtype: str, partials: str) -> MatrixUnit | None:
        """The matrix unit for these types; None where the chip has none."""
        return self.matrix.get(f"{dtype}.{partials}")

    def peak_macs_per_cycle(self, dtype: str) -> int:
        """Multiply-accumulates a tile does per cycle at best with inputs of `dtype`."""
        rates = [u.macs_per_cycle for k, u in self.matrix.items() if k.split(".")[0] == dtype]
        return max([*rates, self.vector(dtype)])

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s of the whole chip at best."""
        return 2.0 * self.peak_macs_per_cycle(dtype) * self.tiles * self.clock_hz

    def bound(self, proportion: float) -> int:
        """Bytes of a tile that one operator's temporaries may take. Raises OptionError outside 0 to 1."""
        if isinstance(proportion, bool) or not isinstance(proportion, (int, float)) or not 0 <= proportion <= 1:
            raise OptionError(f"available_memory_proportion must be a number from 0 to 1, not {proportion!r}.")
        return int(self.bytes_per_tile * proportion)

    def variant(self, **changes: Any) -> Chip:
        """This chip with some constants changed, for example `chip.variant(tiles=16)`. Raises OptionError."""
        _known(self.name, changes)
        changes.setdefault("name", f"{self.name}*")
        if isinstance(changes.get("links"), Mapping):
            changes["links"] = Fabric.from_dict(changes["links"], self.name)
        same = all(value == getattr(self, n)
                   for n, value in changes.items() if n not in ("name", "energy", "links", *_PRICES))
        kept = self.energy if same else self.energy.without_board()
        if not same:                                           # another chip's silicon and price are not this one's
            changes = {**dict.fromkeys(_PRICES), **changes}
        asked = changes.get("energy", kept)
        changes["energy"] = asked if isinstance(asked, Energy) else Energy.from_dict(asked, self.name).over(kept)
        changed = {name: ("user", _BY_HAND) for name in changes if name not in ("name", "energy")}
        return dataclasses.replace(self, sources={**self.sources, **changed}, **changes)

    def constants(self) -> list[tuple[str, Any, str, str]]:
        """(name, value, "documented" | "estimate" | "user", source) of every constant; matrix units as `matrix.<types>`."""
        rows: list[tuple[str, Any, str, str]] = []
        for f in dataclasses.fields(self):
            if f.name in ("name", "matrix", "sources", "energy", "links") or getattr(self, f.name) is None:
                continue
            rows.append((f.name, getattr(self, f.name), *self.sources.get(f.name, ("user", _GIVEN))))
        for types, unit in self.matrix.items():
            rows.append((f"matrix.{types}", unit, *self.sources.get("matrix", ("user", _GIVEN))))
        rows += [(f"links.{name}", value, "user", "given")
                 for name, value in (self.links.to_dict() if self.links else {}).items()]
        return rows + [(f"energy.{name}", list(bounds), "documented" if name == "board_watts" and source != "given" else
                        "user" if source == "given" else "estimate",
                        source) for name, bounds, source in self.energy.rows()]

    def ranges(self) -> dict[str, Range]:
        """Of the constants that are the built-in chips' own: between which shares of them the real ones lie."""
        return {name: found for name, found in RANGES.items() if self.sources.get(name, ("user", ""))[0] != "user"}

    def at_worst(self) -> Chip:
        """This chip with all its uncertain constants at the slow ends of their ranges at once."""
        return self._at_ends(slow=True)

    def at_best(self) -> Chip:
        """This chip with all its uncertain constants at the fast ends of their ranges at once."""
        return self._at_ends(slow=False)

    def _at_ends(self, slow: bool) -> Chip:
        ends: dict[str, Any] = {}
        for name, found in self.ranges().items():
            value = getattr(self, name) * (found.low if slow == name.endswith(_RATES) else found.high)
            ends[name] = round(value) if isinstance(getattr(self, name), int) else value
        return self.variant(**ends)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a chip file holds them."""
        plain = {f.name: value for f in dataclasses.fields(self)
                 if f.name not in ("matrix", "sources", "energy", "links")
                 and (value := getattr(self, f.name)) is not None}
        more: dict[str, Any] = {"energy": found} if (found := self.energy.to_dict()) else {}
        more |= {} if self.links is None else {"links": self.links.to_dict()}
        told = {name: source for name, (kind, source) in self.sources.items() if kind == "user"
                and source not in (_BY_HAND, _GIVEN)}
        more |= {"sources": told} if told else {}
        return {**plain, "matrix": {k: dataclasses.asdict(v) for k, v in self.matrix.items()}, **more}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], where: str = "chip") -> Chip:
        """A chip from plain values. `base` names a built-in chip whose constants hold where the table says nothing; without
        a base tiles, bytes_per_tile, clock_hz and matrix must be given. `sources` says of constants where they come
        from.

        Raises:
            OptionError: an unknown or missing field, a wrong value.
        """
        values = dict(table)
        base = values.pop("base", None)
        if base is not None and not (isinstance(base, str) and base.lower() in CHIPS):
            raise OptionError(f"{where}: there is no machine {shown(base)} to be the base; choose one of {', '.join(CHIPS)}.")
        values.setdefault("name", Path(where).stem)
        told = _told(where, values.pop("sources", {}))
        _known(where, values)
        if "matrix" in values:
            values["matrix"] = _units(where, values["matrix"])
        if base is not None:
            made = chip(base).variant(**values)
            return dataclasses.replace(made, sources={**made.sources, **told}) if told else made
        for name, kind in (("energy", Energy), ("links", Fabric)):
            if isinstance(values.get(name), Mapping) or (name in values and not isinstance(values[name], kind)):
                values[name] = kind.from_dict(values[name], where)                       # type: ignore[attr-defined]
        missing = [name for name in ("tiles", "bytes_per_tile", "clock_hz", "matrix") if name not in values]
        if missing:
            raise OptionError(f"{where}: {', '.join(missing)} must be given, or name a built-in chip as base ({', '.join(CHIPS)}).")
        return cls(**values, sources=told)

    @classmethod
    def load(cls, path: str | Path) -> Chip:
        """A chip from a TOML file, which is parsed and never executed.

        Raises:
            OptionError: the file cannot be read or is not a chip.
        """
        try:
            table = parsed(tomllib.loads, read_text(path))
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"The chip file {path} cannot be read: {error}.") from error
        except ValueError as error:
            raise OptionError(f"The chip file {path} is not valid TOML: {error}.") from error
        inner = table.get("chip", table)
        if not isinstance(inner, dict):
            raise OptionError(f"The chip file {path} must hold a table, not {shown(inner)}.")
        return cls.from_dict(inner, str(path))


def _restored(values: Mapping[str, Any]) -> Chip:
    """A chip that was pickled."""
    return Chip(**values)


_FIELDS = tuple(f.name for f in dataclasses.fields(Chip) if f.name != "sources")


def _known(where: str, values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, 1)
            raise OptionError(f"{where}: a chip has no constant {name!r}{f'; did you mean {near[0]}' if near else ''}. "
                              f"It has {', '.join(_FIELDS)}.")


def _told(where: str, table: Any) -> dict[str, tuple[str, str]]:
    """Where constants come from, as a file says it."""
    if not isinstance(table, Mapping) or not all(isinstance(text, str) for text in table.values()):
        raise OptionError(f"{where}: sources must be a table of texts by constant, not {shown(table)}.")
    _known(where, table)
    return {name: ("user", text) for name, text in table.items()}


MOST_TILES, MOST_WHOLE, MOST = 100_000, 10 ** 12, 10 ** 18
"""Bounds of a chip's constants, far beyond any machine: plans count tiles one by one, and in what is computed of the others nothing overflows."""
_MAY_BE_ZERO = ("copy_call_cycles", "sync_cycles", "launch_cycles", "piece_cycles", "link_sync_cycles", "reserved_bytes")


def _checked(where: str, name: str, value: Any, whole: bool) -> Any:
    least, most = (0 if name in _MAY_BE_ZERO else 1 if whole else 1e-9), (MOST_TILES if name == "tiles" else MOST_WHOLE if whole else MOST)
    kind = "a whole number" if whole else "a number"
    wrong = isinstance(value, bool) or not isinstance(value, (int,) if whole else (int, float))
    if wrong or not least <= value <= most:
        bound = f"of at most {most:,}" if not wrong and value > most else f"of at least {least}" if whole else "above 0"
        raise OptionError(f"Chip {where}: {name} must be {kind} {bound}, not {shown(value)}.")
    return value if whole else float(value)


def _unit(where: str, types: Any, unit: Any) -> MatrixUnit:
    parts = str(types).split(".")
    if len(parts) != 2 or any(p not in ITEMSIZE for p in parts):
        raise OptionError(f"Chip {where}: a matrix unit is named <input type>.<partials type>, for example float16.float32, not {types!r}.")
    if not isinstance(unit, MatrixUnit):
        raise OptionError(f"Chip {where}: matrix.{types} must be a MatrixUnit or a table with macs_per_cycle, units and k_grain, not {shown(unit)}.")
    for f in dataclasses.fields(unit):
        _checked(where, f"matrix.{types}.{f.name}", getattr(unit, f.name), True)
    return unit


def _units(where: str, table: Any) -> dict[str, MatrixUnit]:
    """Matrix units from tables; TOML's dotted keys may have nested the two types."""
    if not isinstance(table, Mapping):
        raise OptionError(f"{where}: matrix must be a table of tables, not {shown(table)}.")
    flat: dict[str, Any] = {}
    for name, value in table.items():
        nested = isinstance(value, Mapping) and value and all(isinstance(v, (Mapping, MatrixUnit)) for v in value.values())
        flat.update({f"{name}.{k}": v for k, v in value.items()} if nested else {name: value})
    wanted = {f.name for f in dataclasses.fields(MatrixUnit)}
    for name, value in flat.items():
        if isinstance(value, Mapping) and set(value) == wanted:
            flat[name] = MatrixUnit(**value)
    return {name: _unit(where, name, value) for name, value in flat.items()}


_MK1 = {"float16.float32": MatrixUnit(32, 8, 16), "float16.float16": MatrixUnit(32, 8, 16), "float32.float32": MatrixUnit(8, 8, 8)}
_MK2 = {"float16.float32": MatrixUnit(64, 16, 16), "float16.float16": MatrixUnit(64, 16, 16), "float32.float32": MatrixUnit(16, 16, 8)}

_JIA = "Jia et al., Dissecting the Graphcore IPU architecture via microbenchmarking, arXiv 1912.03413"
_POPLIBS = "PopLibs source (planner and cycle estimators)"
_TYPES = "Poplar and PopLibs User Guide, Supported types, Floating point types"
_NOTES = "third-party program notes for the C600"
_EMULATOR = ("counts of the vendor's own emulator "
             "(github.com/thorbenlouw/lbm-graphcore, experiments/halo-exchange-approaches)")
_COMMON: dict[str, tuple[str, str]] = {
    "workers": ("documented", "vendor: six worker contexts per tile"),
    "vector_bytes": ("documented", f"{_POPLIBS}: 64-bit data path"),
    "coefficient_bytes_per_cycle": ("documented", f"{_POPLIBS}: 8, 16 with the option use128BitConvUnitLoad"),
    "exchange_bytes_per_cycle": ("documented", f"{_JIA}; {_POPLIBS}"),
    "tiles_per_bus": ("documented", f"{_POPLIBS}: getTilesPerSharedExchangeBus"),
    "copy_bytes_per_cycle": ("estimate", _NOTES),
    "copy_call_cycles": ("estimate", _NOTES),
    "sync_cycles": ("estimate", _NOTES),
    "launch_cycles": ("estimate", _NOTES),
    "piece_cycles": ("estimate", "one send and one receive instruction per piece"),
    "bank_conflict_factor": ("estimate",
                             "as PopLibs' cycle estimators take it: operands lie in banks that are read at once"),
    "link_sync_cycles": ("estimate", "twice the barrier of one IPU"),
    "host_bytes_per_second": ("documented", "PCIe Gen4 x16, one direction"),
    "streaming_bytes_per_second": ("estimate", "no published figure; DDR4 shared by the four IPUs of a machine"),
    "reserved_bytes": ("estimate", "the system's own share of a tile is not published; none is set aside"),
    "eight_bit_products": ("documented", f"no unit for 8-bit integers: {_TYPES} has hardware for float and half only, "
                                         "and Poplar refuses binary operations on them (\"Please cast\")"),
    "matrix": ("documented", f"vendor peak rates; block sizes from {_POPLIBS}"),
}

_RATES = ("_per_second", "_per_cycle")
"""How constants end of which more is faster; of the others with a range less is."""
RANGES: Mapping[str, Range] = MappingProxyType({
    "exchange_bytes_per_cycle": Range(
        1 / 1.24, 1.0, f"{_JIA}: under load messages on the chip take 24 % longer; no congestion is simulated"),
    "copy_bytes_per_cycle": Range(
        0.5, 1.0, "8 bytes is the whole data path; strided copies store words of 4 bytes (DstStridedCopyDA32, of the "
                  f"vertices in the {_EMULATOR})"),
    "copy_call_cycles": Range(0.26, 1.25,
                              f"one measured figure, without a spread; short copies take 76 in the {_EMULATOR}"),
    "sync_cycles": Range(0.28, 1.25, f"one measured figure, without a spread; 166 a step in the {_EMULATOR}"),
    "launch_cycles": Range(0.5, 2.0, "one measured figure, without a spread"),
    "piece_cycles": Range(0.5, 3.0, "one to six instructions: a send, a receive, and setting the addresses of each"),
    "bank_conflict_factor": Range(
        1.0, 1.13, f"{_NOTES}: 16 columns take 1,063 cycles with operands in ordinary memory, 940 in interleaved"),
    "link_sync_cycles": Range(0.5, 2.0, "no published figure"),
    "link_bytes_per_second": Range(
        0.5, 1.0, "the sum of all links; which of them lead to a neighbour is not published, and headers are not "
                  "counted"),
    "host_bytes_per_second": Range(
        0.75, 1.0, "the raw rate; encoding (128 of 130 bits) and headers (24 of 280 bytes) alone take a tenth"),
    "streaming_bytes_per_second": Range(
        0.64, 1.28, "no published figure: from one channel of DDR4-3200 (25.6 GB/s) for an IPU to one for two"),
})
"""Of constants that are estimated, or documented as the most there can be; shares of their values. Frozen before
predictions are compared with published figures (docs/validation.md): to change one takes a source, never a line's
ratio."""


def _builtin(name: str, tiles: int, kib: int, clock: float, matrix: Mapping[str, MatrixUnit], clock_source: str, link: tuple[str, str],
             **more: Any) -> Chip:
    area, *whence = _AREAS.get(name, (None, "", ""))
    sources = {**_COMMON, "tiles": ("documented", "vendor data sheet"), "bytes_per_tile": ("documented", "vendor data sheet"),
               "clock_hz": ("documented", clock_source), "link_bytes_per_second": link, "area_mm2": tuple(whence),
               **more.pop("sources", {})}
    return Chip(name, tiles, kib * 1024, clock, matrix, sources=sources, energy=_POWER[name], area_mm2=area, **more)


_PEAKS = {"float16": 249.3e12, "float32": 62.3e12}
_HOT_CHIPS = ("Knowles, Hot Chips 33, 2021 "
              "(reported by eeNews Europe, GraphCore details power figures for Mk2 chip and AI system): ")
_AS_M2000 = "our estimate, as the IPU-M2000's typical power is to its envelope"
# A Bow does up to 1.4 times as much as a GC200 at up to 1.16 times the efficiency (data sheet of the Bow-2000).
_POWER = {
    "gc200": published((250, 375), _HOT_CHIPS + "an IPU-M2000 of four takes 1 kW in typical training, and has a "
                                                "thermal envelope of 1.5 kW",
                       _PEAKS, 1472 * 4 * 1.33e9, 7, 375),
    "bow": published((312.5, 468.75), "a Bow-2000 of four takes 1.25 kW on average (eeNews Europe, Graphcore details "
                                      "power for Bow AI unit); "
                     f"at most half again: {_AS_M2000}", {k: v * 1.85 / 1.33 for k, v in _PEAKS.items()},
                     1472 * 4 * 1.85e9, 7, 468.75),
    "c600": published((123, 185), "data sheet of the C600: a thermal design power of 185 W running typical workloads, "
                                  "as the cap is set by "
                      f"default; at least two thirds of it: {_AS_M2000}",
                      {k: v * 1.5 / 1.33 for k, v in _PEAKS.items()}, 1472 * 4 * 1.5e9, 7, 185),
    "gc2": published((105, 157.5), "a C2 card of two takes 315 W (eeNews Europe, Graphcore slashes power in first Dell "
                                   "server); at least two "
                     f"thirds of it: {_AS_M2000}", {"float16": 124.5e12, "float32": 31.1e12}, 1216 * 4 * 1.6e9, 16,
                     157.5),
}
_DIE = "823 mm2 in 7 nm (Knowles, Hot Chips 33, 2021)"
_AREAS = {
    "gc2": (800, "estimate", "about 800 mm2 in 16 nm (WikiChip, Colossus)"),
    "gc200": (823, "documented", _DIE),
    "bow": (823, "estimate", f"the processor's wafer, said to be compatible with the GC200: {_DIE}; the bonded wafer "
                             "is not counted"),
}
"""mm2, kind and source; of the C600's processor nothing is published."""
_LINKS = ("documented", "vendor data sheet: ten IPU-Links, 320 GB/s in total, both directions")
CHIPS: Mapping[str, Chip] = MappingProxyType({c.name: c for c in (
    _builtin("gc2", 1216, 256, 1.6e9, _MK1, _JIA, ("estimate", "ten links as on the GC200"), host_bytes_per_second=16e9,
             sources={"host_bytes_per_second": ("estimate", "PCIe Gen4 x16 shared by the two IPUs of a C2 card")}),
    _builtin("gc200", 1472, 624, 1.33e9, _MK2, "vendor: 250 TFLOP/s = 1,472 tiles x 128 x 1.33 GHz", _LINKS),
    _builtin("bow", 1472, 624, 1.85e9, _MK2, "vendor: 350 TFLOP/s = 1,472 tiles x 128 x 1.85 GHz", _LINKS),
    _builtin("c600", 1472, 624, 1.5e9, _MK2, "282.6 TFLOP/s = 1,472 tiles x 128 x 1.5 GHz",
             ("documented", "vendor's product table: 32 lanes of IPU-Links, 128 GB/s, both directions "
                            "(github.com/bytedance/ByteMLPerf, backends/IPU/README.md)"), link_bytes_per_second=128e9,
             sources={"eight_bit_products": ("documented", f"none of integers: {_TYPES}, and the tile vertex ISA for "
                                                           "Mk2 IPUs with FP8 support (IPU21), which adds 8-bit "
                                                           "floats; no operator of ONNX multiplies those")}),
)})
"""The built-in chips by name."""


def chip(machine: str | Path | Chip) -> Chip:
    """A chip by built-in name ("gc2", "gc200", "bow", "c600", any case), by path of a TOML file (ending in .toml), or itself.

    Raises:
        OptionError: no such chip.
    """
    if isinstance(machine, Chip):
        return machine
    name = str(machine)
    if name.endswith(".toml"):
        return Chip.load(name)
    if name.lower() not in CHIPS:
        raise OptionError(f"There is no machine {shown(name)}; choose one of {', '.join(CHIPS)}, or give a TOML file ending in .toml.")
    return CHIPS[name.lower()]
