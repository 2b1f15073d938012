"""Options of rows, micro-batches and replicas."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from .declaration import declared
from .kinds import COUNT, Choice, Flag, Groupings
from .needs import Provided, With
from .verbs import COMMANDS, MODELS, RUNS, SIMULATED, TRAINING

_option = functools.partial(declared, "batching")
SEVERAL_REPLICAS = Provided(lambda options, verb: options.replication_factor > 1, "without replicas",
                            "a replication_factor above 1")
GROUPED = Provided(lambda options, verb: options.input_group_size > 1, "without groups", "an input_group_size above 1")
InputGroupType = Literal["consecutive", "orthogonal"]
OutputMode = Literal["default", "all", "final", "sum", "every_n"]


@dataclass(kw_only=True, repr=False)
class BatchingOptions:
    """How rows become calls and updates, and which replicas there are."""

    micro_batch_size: int = _option(
        16, COUNT, "rows that one operator sees at a time", common=True, verbs=(*COMMANDS, *MODELS),
        known_as=("batch_size", "batch"))
    gradient_accumulation: int = _option(
        1, COUNT, "micro-batches per weight update", common=True, verbs=(*TRAINING, "inference_model"),
        for_training=True, known_as=("accumulate",))          # inference_model: where it must be 1, and that is said
    device_iterations: int = _option(
        1, COUNT, "weight updates (inference: micro-batches) per call of the engine", common=True)
    replication_factor: int = _option(
        1, COUNT, "data-parallel copies of the model, each with micro-batches of its own; an update is that of all of "
        "them together", common=True, aliases=("devices",), verbs=(*RUNS, *SIMULATED), of_machine=True)
    input_group_size: int = _option(
        1, COUNT, "replicas that get the same rows; a factor of replication_factor", verbs=(*MODELS, *SIMULATED),
        of_machine=True, neutral=1, needs=(SEVERAL_REPLICAS,))
    input_group_type: InputGroupType = _option(
        "consecutive", Choice(get_args(InputGroupType)), "which replicas get the same rows: neighbours (0 and 1, 2 "
        "and 3 with a group size of 2), or those that lie apart (0 and 2, 1 and 3 of 4)", verbs=MODELS,
        needs=(SEVERAL_REPLICAS, GROUPED))
    broadcast_buffers: bool = _option(
        True, Flag(), "replicas share the buffers that training changes (running statistics), which take all their "
        "micro-batches in order; false: each replica has its own, and those of the first are saved; buffers that a "
        "network's forward() writes itself need false", verbs=("train", *MODELS), needs=(SEVERAL_REPLICAS,))
    replica_grouping: Mapping[str, str] = _option(
        {}, Groupings(), "which replicas share a parameter, by name pattern: groups of so many, consecutive or "
        "orthogonal as for input_group_type, or no_grouping, each replica for itself; parameters that no pattern "
        "names are everybody's. Of a group's parameter model.replica_state_dict() gives one array, or one for each "
        "replica", verbs=("train", *MODELS, *SIMULATED), for_training=True, of_machine=True,
        needs=(SEVERAL_REPLICAS,))
    output_mode: OutputMode = _option(
        "default", Choice(get_args(OutputMode)),
        "which micro-batches' outputs a call returns; default is all for inference, final for training", verbs=MODELS,
        free=True, live=True)
    output_return_period: int | None = _option(
        None, COUNT, "with output_mode every_n: return every n-th iteration", optional=True, verbs=MODELS, free=True,
        live=True, needs=(With("output_mode", ("every_n",)),))
