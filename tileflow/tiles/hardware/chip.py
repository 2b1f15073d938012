"""Machines as data: GC2, GC200, Bow and C600, and chips of the user's own from a TOML file or from `Chip.variant`.

Every constant of a chip says where it comes from: `chip.constants()` lists name, value, "documented", "estimate" or "user", and the source.
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
                 "reserved_bytes")
"""Constants that count once plans are made."""


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
    link_sync_cycles: a barrier that takes several IPUs.
    eight_bit_products: of 8-bit integers where `matrix` has no "int8.int32": "widened" (cast to float16, in which bytes and their zero points are
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
    link_sync_cycles: int = 1200
    link_bytes_per_second: float = 320e9
    host_bytes_per_second: float = 32e9
    streaming_bytes_per_second: float = 20e9
    reserved_bytes: int = 0
    eight_bit_products: str = "widened"
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if f.name not in ("name", "matrix", "sources", "eight_bit_products"):
                object.__setattr__(self, f.name, _checked(self.name, f.name, getattr(self, f.name), f.type in ("int", int)))
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"A chip's name must be a text that is not empty, not {shown(self.name)}.")
        if self.eight_bit_products not in EIGHT_BIT_PRODUCTS:
            raise OptionError(f"Chip {self.name}: eight_bit_products must be {' or '.join(EIGHT_BIT_PRODUCTS)}, not "
                              f'{shown(self.eight_bit_products)}; a chip that multiplies bytes has a unit matrix."{EIGHT_BIT_UNIT}".')
        if self.reserved_bytes >= self.bytes_per_tile:
            raise OptionError(f"Chip {self.name}: reserved_bytes {self.reserved_bytes} must be below bytes_per_tile {self.bytes_per_tile}.")
        object.__setattr__(self, "matrix", MappingProxyType({k: _unit(self.name, k, v) for k, v in dict(self.matrix).items()}))
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))

    def __hash__(self) -> int:
        return hash(self.key)

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """All that decides a plan, hashable: chips that differ in their clock and surroundings only have the same plans."""
        plain = tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("matrix", "sources", *_SURROUNDINGS))
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
        changed = {name: ("user", "changed by hand") for name in changes if name != "name"}
        return dataclasses.replace(self, sources={**self.sources, **changed}, **changes)

    def constants(self) -> list[tuple[str, Any, str, str]]:
        """(name, value, "documented" | "estimate" | "user", source) of every constant; matrix units as `matrix.<types>`."""
        rows: list[tuple[str, Any, str, str]] = []
        for f in dataclasses.fields(self):
            if f.name in ("name", "matrix", "sources"):
                continue
            rows.append((f.name, getattr(self, f.name), *self.sources.get(f.name, ("user", "given or left at its default"))))
        for types, unit in self.matrix.items():
            rows.append((f"matrix.{types}", unit, *self.sources.get("matrix", ("user", "given or left at its default"))))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a chip file holds them."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("matrix", "sources")}
        return {**plain, "matrix": {k: dataclasses.asdict(v) for k, v in self.matrix.items()}}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], where: str = "chip") -> Chip:
        """A chip from plain values. `base` names a built-in chip whose constants hold where the table says nothing; without
        a base tiles, bytes_per_tile, clock_hz and matrix must be given.

        Raises:
            OptionError: an unknown or missing field, a wrong value.
        """
        values = dict(table)
        base = values.pop("base", None)
        if base is not None and not (isinstance(base, str) and base.lower() in CHIPS):
            raise OptionError(f"{where}: there is no machine {shown(base)} to be the base; choose one of {', '.join(CHIPS)}.")
        values.setdefault("name", Path(where).stem)
        _known(where, values)
        if "matrix" in values:
            values["matrix"] = _units(where, values["matrix"])
        if base is not None:
            return chip(base).variant(**values)
        missing = [name for name in ("tiles", "bytes_per_tile", "clock_hz", "matrix") if name not in values]
        if missing:
            raise OptionError(f"{where}: {', '.join(missing)} must be given, or name a built-in chip as base ({', '.join(CHIPS)}).")
        return cls(**values)

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


_FIELDS = tuple(f.name for f in dataclasses.fields(Chip) if f.name != "sources")


def _known(where: str, values: Mapping[str, Any]) -> None:
    for name in values:
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, 1)
            raise OptionError(f"{where}: a chip has no constant {name!r}{f'; did you mean {near[0]}' if near else ''}. "
                              f"It has {', '.join(_FIELDS)}.")


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
    "link_sync_cycles": ("estimate", "twice the barrier of one IPU"),
    "host_bytes_per_second": ("documented", "PCIe Gen4 x16, one direction"),
    "streaming_bytes_per_second": ("estimate", "no published figure; DDR4 shared by the four IPUs of a machine"),
    "reserved_bytes": ("estimate", "the system's own share of a tile is not published; none is set aside"),
    "eight_bit_products": ("documented", f"no unit for 8-bit integers: {_TYPES} has hardware for float and half only, and Poplar refuses binary "
                                         "operations on them (\"Please cast\")"),
    "matrix": ("documented", f"vendor peak rates; block sizes from {_POPLIBS}"),
}


def _builtin(name: str, tiles: int, kib: int, clock: float, matrix: Mapping[str, MatrixUnit], clock_source: str, link: tuple[str, str],
             **more: Any) -> Chip:
    sources = {**_COMMON, "tiles": ("documented", "vendor data sheet"), "bytes_per_tile": ("documented", "vendor data sheet"),
               "clock_hz": ("documented", clock_source), "link_bytes_per_second": link, **more.pop("sources", {})}
    return Chip(name, tiles, kib * 1024, clock, matrix, sources=sources, **more)


_LINKS = ("documented", "vendor data sheet: ten IPU-Links, 320 GB/s in total, both directions")
CHIPS: Mapping[str, Chip] = MappingProxyType({c.name: c for c in (
    _builtin("gc2", 1216, 256, 1.6e9, _MK1, _JIA, ("estimate", "ten links as on the GC200"), host_bytes_per_second=16e9,
             sources={"host_bytes_per_second": ("estimate", "PCIe Gen4 x16 shared by the two IPUs of a C2 card")}),
    _builtin("gc200", 1472, 624, 1.33e9, _MK2, "vendor: 250 TFLOP/s = 1,472 tiles x 128 x 1.33 GHz", _LINKS),
    _builtin("bow", 1472, 624, 1.85e9, _MK2, "vendor: 350 TFLOP/s = 1,472 tiles x 128 x 1.85 GHz", _LINKS),
    _builtin("c600", 1472, 624, 1.5e9, _MK2, "282.6 TFLOP/s = 1,472 tiles x 128 x 1.5 GHz", ("estimate", "links as on the GC200"),
             sources={"eight_bit_products": ("documented", f"none of integers: {_TYPES}, and the tile vertex ISA for Mk2 IPUs with FP8 support "
                                                           "(IPU21), which adds 8-bit floats; no operator of ONNX multiplies those")}),
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
