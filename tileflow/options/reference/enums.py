"""PopTorch's enums, with its names and numbers, and tileflow's word for each of their members."""
from __future__ import annotations

import enum
import re


class OutputMode(enum.IntEnum):
    """Which micro-batches' outputs a call returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ReductionType(enum.IntEnum):
    """How gradients of micro-batches and replicas become one."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(enum.IntEnum):
    """When a mean of gradients is divided."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class ConnectionType(enum.IntEnum):
    """When a device is attached to."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(enum.IntEnum):
    """Which IPUs synchronise with each other."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class HalfFloatCastingBehavior(enum.IntEnum):
    """What an operator of float16 and float32 operands computes in."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class AutoStage(enum.IntEnum):
    """How blocks become stages where no stages are given."""

    SameAsIpu = 0
    AutoIncrement = 1


class Liveness(enum.IntEnum):
    """When tensors that later phases read leave the chip."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class CommGroupType(enum.IntEnum):
    """Which replicas are a group."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(enum.IntEnum):
    """What of a group's weight comes back: one for each group, or one for each replica."""

    OnePerGroup = 0
    AllReplicas = 2


class DataLoaderMode(enum.IntEnum):
    """Whether batches are prepared when they are asked for, or ahead."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(enum.IntEnum):
    """How a process that prepares data hands it over."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class MultiConvPlanType(enum.IntEnum):
    """Whether convolutions of a MultiConv run side by side."""

    Parallel = 0
    Serial = 1


class MatMulSerializationMode(enum.Enum):
    """Along which axis a product is done in pieces."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(enum.Enum):
    """During what an input or output is passed on while others compute."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


ENUMS: dict[str, type[enum.Enum]] = {e.__name__: e for e in (
    OutputMode, ReductionType, MeanReductionStrategy, ConnectionType, SyncPattern, HalfFloatCastingBehavior, AutoStage,
    Liveness, CommGroupType,
    VariableRetrievalMode, DataLoaderMode, SharingStrategy, MultiConvPlanType, MatMulSerializationMode, OverlapMode)}
"""All of them by name."""
OTHER_WORDS: dict[str, str | None] = {
    "ReductionType.NoReduction": None, "MeanReductionStrategy.PostAndLoss": None,
    "HalfFloatCastingBehavior.FloatDowncastToHalf": "activation",
    "HalfFloatCastingBehavior.Default": "activation", "HalfFloatCastingBehavior.HalfUpcastToFloat": "upcast",
    "MatMulSerializationMode.Disabled": None, "OverlapMode.OverlapAccumulationLoop": "accumulation_loop",
    "OverlapMode.OverlapDeviceIterationLoop": "device_iteration_loop"}
"""Members whose word is not their name in snake_case, by name, for members of two enums may be equal; None where
tileflow has none."""


def word(member: enum.Enum) -> str | None:
    """What tileflow calls a member; None where it has no such thing."""
    name = f"{type(member).__name__}.{member.name}"
    return OTHER_WORDS[name] if name in OTHER_WORDS else re.sub(r"(?<!^)(?=[A-Z])", "_", member.name).lower()
