"""Options of the simulated tile machine."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .batching import SEVERAL_REPLICAS
from .declaration import declared
from .kinds import Choice, Counts, FilePath, Flag, IoTiles, Machine, Proportions, SerialSplits, WordsByName
from .needs import Provided
from .verbs import RUNS, SIMULATED, UPDATING

_option = functools.partial(declared, "machine")
TENSOR_GROUPS = ("activations", "weights", "optimizer", "accumulators")
"""What tensors are told apart as where an option says where they are kept."""
SHARDED_GROUPS = ("weights", "optimizer")
"""Of these those that replicas may share out."""
OVERLAPS = ("no_overlap", "accumulation_loop", "device_iteration_loop")
SHARED_OUT = Provided(lambda options, verb: options.optimizer_sharded, "where nothing is shared out",
                      "optimizer_sharded")
MachinePrecision = Literal["32.32", "16.32", "16.16"]


@dataclass(kw_only=True, repr=False)
class MachineOptions:
    """The chip, what is planned for it, and what is kept where."""

    machine: Any = _option(
        None, Machine(), "simulated chip to compile for: gc2, gc200, bow, c600, or a .toml file that describes one",
        optional=True, common=True, machine_alone=True, known_as=("chip",))
    available_memory_proportion: float | Mapping[str, float] = _option(
        0.6, Proportions(),
        "share of a tile's memory that one operator's temporaries may take, for all operators or by name pattern",
        common=True, machine_alone=True)
    machine_precision: MachinePrecision = _option(
        "32.32", Choice(get_args(MachinePrecision)), "what if: bits of the simulated tensors that are float32 in the "
        "program, and of their partial sums; with a precision of 16 bits the program's own types count",
        machine_alone=True)
    serialized_matmul: Mapping[str, str] = _option(
        {}, SerialSplits(), "matmuls, by name pattern, to do in pieces one after the other",
        aliases=("serialised_matmul",), verbs=(*RUNS, *SIMULATED), free=False, of_machine=False)
    num_io_tiles: int = _option(
        0, IoTiles(), "tiles of each IPU that compute nothing and pass on what comes from the host and streaming "
        "memory, so that it can come while the others compute; 0, or an even number from 32 to 192")
    overlap_inputs: Mapping[str, str] = _option(
        {}, WordsByName("inputs by name pattern", OVERLAPS, '{"*" = "accumulation_loop"}'),
        "inputs that come through I/O tiles while the others compute: all but two of an update's micro-batches, or of "
        "those of all device iterations")
    overlap_outputs: Mapping[str, str] = _option(
        {}, WordsByName("outputs by name pattern", OVERLAPS, '{"*" = "accumulation_loop"}'),
        "outputs that go so")
    io_tiles_for: Mapping[str, str] = _option(
        {}, WordsByName("groups of tensors", ("load", "store", "both"), '{weights = "load"}', TENSOR_GROUPS),
        "groups of tensors that I/O tiles load from streaming memory, or store there, while the others compute")
    joint_plans: bool = _option(
        True, Flag(), "plan a layer's forward and backward passes together where that is cheaper", for_training=True,
        machine_alone=True)
    activations_off_chip: bool | None = _option(
        None, Flag(), "keep activations in streaming memory between the forward and the backward pass, and between "
        "phases; else tensors_liveness says of phases what leaves", optional=True, machine_alone=True)
    weights_off_chip: bool | None = _option(
        None, Flag(),
        "keep weights in streaming memory but for the passes that use them; by default in phased strategies",
        optional=True, machine_alone=True)
    optimizer_off_chip: bool | None = _option(
        None, Flag(),
        "keep optimizer state in streaming memory instead of on the tiles; by default in phased strategies",
        optional=True, common=True, for_training=True, machine_alone=True)
    accumulators_off_chip: bool | None = _option(
        None, Flag(), "keep accumulators of gradients in streaming memory but for the steps that use them; by default "
        "in phased strategies", optional=True, for_training=True, machine_alone=True)
    min_elements_off_chip: int | Mapping[str, int] = _option(
        2, Counts(TENSOR_GROUPS),
        "tensors of fewer elements stay on the tiles: one number, or numbers by group of tensors", machine_alone=True)
    optimizer_sharded: bool = _option(
        False, Flag(), "each replica keeps a share of the optimizer state, updates its share of the weights, and all "
        "put the weights together; where several processes train each process does, to the same bits",
        verbs=(*UPDATING, *SIMULATED), for_training=True, needs=(SEVERAL_REPLICAS,))
    weights_sharded: bool = _option(
        False, Flag(),
        "each replica keeps a share of the weights, too, and all put them together before each pass that uses them",
        for_training=True, needs=(SEVERAL_REPLICAS,))
    min_elements_sharded: int | Mapping[str, int] = _option(
        8192, Counts(SHARDED_GROUPS),
        "tensors of fewer elements are whole on every replica: one number, or numbers by group of tensors",
        for_training=True, needs=(SEVERAL_REPLICAS, SHARED_OUT))
    recompute: bool = _option(
        False, Flag(),
        "run parts of the forward pass again before the backward pass instead of keeping their results on the tiles",
        common=True, for_training=True, machine_alone=True)
    tile_plans: str | None = _option(
        None, FilePath(), "file of plans (JSON) to use instead of searching, as written by compile --report",
        optional=True, common=True, machine_alone=True)
