"""Options of execution over several IPUs: what is computed does not depend on them."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..program.staging import PHASED, SEVERAL, Liveness, PipelineSchedule, Strategy
from .declaration import declared
from .kinds import COUNT, Choice, Flag, Names
from .needs import With
from .verbs import SIMULATED

_option = functools.partial(declared, "execution")
AutoStage = Literal["same_as_ipu", "auto_increment"]


@dataclass(frozen=True)
class _Rounded(With):
    """There are several IPUs; on the tile machine replicas make several, too."""

    def met(self, options: Any, verb: str) -> bool:
        return super().met(options, verb) or (verb in SIMULATED and options.replication_factor > 1)


@dataclass(kw_only=True, repr=False)
class ExecutionOptions:
    """Stages of a model, and the strategy that runs them."""

    strategy: Strategy = _option(
        "none", Choice(get_args(Strategy)), "how stages of the model run on several IPUs: overlapping micro-batches, "
        "one after the other, or in phases on one IPU or on two in turn", common=True)
    stages: tuple[str, ...] = _option(
        (), Names(), "blocks of each stage (or phase), joined by +, with its IPU after @, such as "
        "embed+layer0@0,layer1@1; stages of one phase are joined by |; of an ONNX file, name patterns of nodes",
        needs=(With("strategy", SEVERAL),))
    pipeline_splits: tuple[str, ...] = _option(
        (), Names(), "name patterns of layers or nodes at which a new stage begins, each on the next IPU",
        needs=(With("strategy", SEVERAL),))
    auto_pipeline: int | None = _option(
        None, COUNT, "find so many stages of about equal length, each on an IPU of its own", optional=True, common=True,
        needs=(With("strategy", SEVERAL),))
    auto_stage: AutoStage = _option(
        "same_as_ipu", Choice(get_args(AutoStage)),
        "where blocks, and no stages, are given: a stage for each IPU, or for each block",
        needs=(With("strategy", ("pipelined", "sharded")),))
    auto_round_num_ipus: bool = _option(
        False, Flag(), "reserve the next power of two where a model wants another number of IPUs",
        needs=(_Rounded("strategy", SEVERAL),))
    pipeline_schedule: PipelineSchedule = _option(
        "grouped", Choice(get_args(PipelineSchedule)), "how pipelined training goes: a forward and a backward pass of "
        "each IPU in every cycle (grouped), or one of the two in turn, which keeps half as many micro-batches waiting "
        "(1f1b)", needs=(With("strategy", ("pipelined",)),))
    pipeline_recompute: bool = _option(
        True, Flag(), "pipelined training keeps what enters a stage and computes the rest again for its backward pass",
        needs=(With("strategy", ("pipelined",)),))
    tensors_liveness: Liveness = _option(
        "always_live", Choice(get_args(Liveness)),
        "when tensors that later phases read leave the chip for streaming memory", needs=(With("strategy", PHASED),))
    separate_backward_phase: bool = _option(
        False, Flag(), "the last phase's backward pass is a phase of its own", needs=(With("strategy", PHASED),))
