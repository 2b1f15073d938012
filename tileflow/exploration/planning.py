"""Options and the tile machine: the chip that they name, what is checked of them, a compiled program planned, files of
plans."""
from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..compiler import Compilation
from ..graph.work import Contraction
from ..options.machine import SHARDED_GROUPS, TENSOR_GROUPS
from ..options.options import Options, declarations
from ..program.replicas import Grouping, grouped
from ..program.staging import PHASED
from ..strategy.rules import ipus_for
from ..system.errors import OptionError, ReportError
from ..system.files import replace_by
from ..system.reading import read_text
from ..tiles.hardware.chip import Chip, chip
from ..tiles.machine import Analyses, TileProgram
from ..tiles.plans.plan import TileOptions, step_names
from ..tiles.plans.planner import export_plans, import_plans

DEFAULT_PROPORTION = declarations()["available_memory_proportion"].default


def machine(options: Options) -> Chip:
    """The chip that the options name (OptionError where there is none such)."""
    if options.machine is None:
        raise OptionError("The tile machine needs a chip: set machine to gc2, gc200, bow, c600 or a .toml file.")
    given = options.machine
    return Chip.from_dict(given, "machine") if isinstance(given, Mapping) else chip(given)


def bytes_per_ipu(options: Options) -> int:
    """What the tiles of one IPU hold."""
    chip = machine(options)
    return chip.tiles * chip.usable_bytes


def any_number(options: Options) -> bool:
    """Whether several chips need not be a power of two: those whose links are their own."""
    return options.strategy != "none" and machine(options).links is not None


_IPU = re.compile(r"IPU\d+")
"""How a proportion for all operators of one IPU is named."""


def tile_options(options: Options) -> TileOptions:
    """The options of the machine group as the tile machine takes them."""
    if options.machine_precision != "32.32" and options.precision not in ("32", "64"):
        raise OptionError(f"Option machine_precision {options.machine_precision} takes float16 for every float32 "
                          f"tensor of a program, and precision {options.precision} gives the program 16-bit types of "
                          "its own, which are what counts; leave one of them out.")
    if options.weights_sharded and not options.optimizer_sharded:
        raise OptionError("Option weights_sharded needs optimizer_sharded: a weight and its optimizer state are "
                          "updated together, so they are shared out alike.")
    _check_io(options)
    given = options.available_memory_proportion
    by_name = dict(given) if isinstance(given, Mapping) else {"*": given}
    default = by_name.pop("*", DEFAULT_PROPORTION)
    per_ipu = {name: by_name.pop(name) for name in [n for n in by_name if _IPU.fullmatch(n)]}
    if options.strategy == "none":
        _check_ipus(per_ipu, (0,))
        default = per_ipu.pop("IPU0", default)
    return TileOptions(available_memory_proportion=default, per_op=by_name, per_ipu=per_ipu,
                       precision=options.machine_precision, program=options.precision, serialized=options.serial_splits,
                       pinned=read_plans(options.tile_plans) if options.tile_plans else {},
                       joint_plans=options.joint_plans, recompute=options.recompute,
                       replicas=options.replication_factor,
                       weights_sharded=options.weights_sharded, optimizer_sharded=options.optimizer_sharded,
                       num_io_tiles=options.num_io_tiles, io_tiles_for=dict(options.io_tiles_for),
                       overlap_inputs=dict(options.overlap_inputs), overlap_outputs=dict(options.overlap_outputs),
                       min_elements_sharded=_by_group(options.min_elements_sharded, SHARDED_GROUPS),
                       same_rows=options.input_group_size, shared_by=_shared_by(options), **_locations(options))


def _shared_by(options: Options) -> dict[str, int]:
    """How many replicas share a parameter, by name pattern."""
    every = {"all": options.replication_factor, "no_grouping": 1}
    return {name: every.get(kind, size) for name, (kind, size, _) in options.groupings.items()}


def _locations(options: Options) -> dict[str, Any]:
    """Which groups of tensors leave the chip: those that are said, in phases all but activations, which leave as the
    liveness says (`tiles.system.away`)."""
    phased = options.strategy in PHASED
    by_default = {group: phased and group != "activations" for group in TENSOR_GROUPS}
    found: dict[str, Any] = {}
    for group in TENSOR_GROUPS:
        said = getattr(options, f"{group}_off_chip")
        found[f"{group}_off_chip"] = by_default[group] if said is None else said
    return {**found, "min_elements_off_chip": _by_group(options.min_elements_off_chip, TENSOR_GROUPS)}


def _check_io(options: Options) -> None:
    """OptionError where something is to pass through I/O tiles and cannot."""
    named = [name for name in ("overlap_inputs", "overlap_outputs")
             if {*getattr(options, name).values()} - {"no_overlap"}]
    if not options.num_io_tiles and (named or options.io_tiles_for):
        raise OptionError(f"Option {[*named, 'io_tiles_for'][0]}: No IO tiles allocated. You must allocate at least 32 "
                          "IO tiles using num_io_tiles.")
    if named and options.strategy == "pipelined":
        raise OptionError(f"Option {named[0]}: Overlapped IO is not supported with the strategy pipelined. If you are "
                          "using only one IPU, please leave the strategy out or switch to sharded.")
    for group in options.io_tiles_for:
        if not _locations(options)[f"{group}_off_chip"]:
            raise OptionError(f"Option io_tiles_for: {group} are kept on the tiles, so there is nothing to load or "
                              f"store; add {group}_off_chip.")
    chip_tiles = machine(options).tiles if options.machine is not None else 0
    if options.num_io_tiles and options.num_io_tiles >= chip_tiles:
        raise OptionError(f"Option num_io_tiles: {options.num_io_tiles} tiles are to be set aside for I/O, and the "
                          f"chip has {chip_tiles}.")


def _by_group(given: int | Mapping[str, int], groups: Iterable[str]) -> dict[str, int]:
    """Numbers by group of tensors; where a table says nothing of a group, the reference's own holds."""
    return dict(given) if isinstance(given, Mapping) else dict.fromkeys(groups, given)


def _check_ipus(named: Iterable[str], ipus: Sequence[int]) -> None:
    """OptionError where a proportion is for an IPU that a replica has not."""
    have = sorted({*ipus})
    for name in named:
        if int(name.removeprefix("IPU")) not in have:
            where = "one IPU, IPU0" if have == [0] else f"the IPUs {', '.join(f'IPU{i}' for i in have)}"
            raise OptionError(f"available_memory_proportion names {name}, but the program runs on {where}; leave the "
                              "others out.")


def check_machine(compilation: Compilation, options: Options) -> None:
    """OptionError where the program and its replicas want IPUs that cannot be had, or a proportion is for an IPU that
    they do not have."""
    staging = compilation.program.staging
    ipus = (0,) if staging is None else staging.ipus
    links = machine(options).links
    if links is None:
        ipus_for(ipus, options.replication_factor, options.auto_round_num_ipus)
    else:
        links.require((max(ipus, default=0) + 1) * options.replication_factor)
    if options.replica_grouping and (options.weights_sharded or options.optimizer_sharded):
        raise OptionError("Option replica_grouping: weights that not all replicas share cannot be shared out over all "
                          "of them (weights_sharded, optimizer_sharded); leave one of the two out.")
    grouped(compilation.program.micro.parameters, Grouping.named(options.groupings), options.replication_factor)
    given = options.available_memory_proportion
    _check_ipus([name for name in given if _IPU.fullmatch(name)] if isinstance(given, Mapping) else [], ipus)


def analyzed(compilation: Compilation, options: Options, analyses: Analyses | None = None) -> TileProgram:
    """A compiled program on the options' chip; OptionError where a name in the options fits nothing.

    Args:
        analyses: those of the program, where there are others of it.
    """
    check_machine(compilation, options)
    tiled = (analyses or Analyses(compilation.program)).on(machine(options), tile_options(options))
    check_patterns(tiled, options)
    return tiled


def check_patterns(tiled: TileProgram, options: Options) -> None:
    """Refuse names that fit nothing: a proportion by a pattern of no operator, a file of plans of which none is used;
    OptionError."""
    own = step_names([s.node for s in tiled.steps])
    sources = dict.fromkeys(name for s in tiled.steps for name in s.node.origin.sources)
    named = options.available_memory_proportion if options.given("available_memory_proportion", files=False) else {}
    for pattern in named if isinstance(named, Mapping) else ():
        if pattern in tiled.options.per_op and not fnmatch.filter(sources, pattern):
            raise OptionError(f"available_memory_proportion: {pattern!r} matches no operator; the operators are "
                              f"{', '.join(sources) or 'none'}.")
    for option, to_chip, what in (("overlap_inputs", True, "a tensor input to"),
                                  ("overlap_outputs", False, "an output of")):
        names = [t.name for t in tiled.transfers if t.to_chip == to_chip]
        for pattern in getattr(tiled.options, option):
            if not fnmatch.filter(names, pattern):
                raise OptionError(f"Option {option}: {pattern!r} is not {what} the model; these are "
                                  f"{', '.join(names) or 'none'}.")
    pins = tiled.options.pinned
    if pins and not any(fnmatch.filter([*own.values(), *sources], pattern) for pattern in pins):
        raise OptionError(f"Plans file {options.tile_plans}: none of its plans is for an operator of this program; "
                          f"the operators are {', '.join(sources) or 'none'}.")


def read_plans(path: str | os.PathLike[str]) -> Mapping[str, Mapping[str, Any]]:
    """Pinned plans by name pattern from a JSON file; OptionError where it cannot be read or holds something else."""
    try:
        content = json.loads(read_text(path))
    except OSError as error:
        raise OptionError(f"Plans file {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"Plans file {path} is not valid JSON: {error}.") from None
    try:
        return import_plans(content)
    except OptionError as error:
        raise OptionError(f"Plans file {path}: {error}") from None


def write_plans(tiled: TileProgram, path: str | os.PathLike[str]) -> None:
    """Write the plan of every contraction, to be pinned with the option tile_plans; ReportError where it cannot be
    written."""
    names = step_names([s.node for s in tiled.steps])
    plans = {glob.escape(names[s.node]): s.plan
             for s in tiled.steps if isinstance(s.work, Contraction) and s.work.points}
    text = ",\n".join(f" {json.dumps(name)}: {json.dumps(plan)}" for name, plan in export_plans(plans).items())
    try:
        replace_by(path, [f"{{\n{text}\n}}\n".encode()])
    except OSError as error:
        raise ReportError(f"Cannot write the plans to {path} ({error.strerror or error}).") from None
