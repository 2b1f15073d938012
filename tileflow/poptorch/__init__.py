"""PopTorch's names over tileflow: `import tileflow.poptorch as poptorch` in a script for the reference system.

docs/poptorch.md has all of them: what works, and what is said of what does not.
"""
from __future__ import annotations

import sys
from typing import Any, NoReturn

try:
    import torch as _torch
except ImportError:
    raise ImportError("tileflow.poptorch needs PyTorch: pip install 'tileflow-engine[torch]'.") from None

from ..options.reference import enums
from ..options.reference.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from ..system.version import VERSION
from . import autocasting, ops, optim, options, popdist, profiling, testing
from . import errors as poptorch_core
from .autocasting import autocast
from .blocks import BeginBlock, Block, BlockFunction, module_repr, removeBlocks
from .data import AsynchronousDataAccessor, DataLoader
from .errors import ConfigFileError, Error, RecoverableError, UnrecoverableError
from .executor import PoplarExecutor, inferenceModel, load, trainingModel
from .hooks import registerPostCompileHook, registerPreCompileHook
from .ops import *  # noqa: F403
from .options import Options, TensorLocationSettings
from .parsers import ICustomArgParser, registerCustomArgParser
from .strategies import (
    BlockId,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from .system import heed_environment, ipuHardwareIsAvailable, ipuHardwareVersion, setLogLevel

__all__ = [
    "AsynchronousDataAccessor", "AutoStage", "BeginBlock", "Block", "BlockFunction", "BlockId", "CommGroupType",
    "ConfigFileError",
    "ConnectionType", "DataLoader", "DataLoaderMode", "Error", "HalfFloatCastingBehavior", "ICustomArgParser",
    "Liveness",
    "MatMulSerializationMode", "MeanReductionStrategy", "MultiConvPlanType", "Options", "OutputMode", "OverlapMode",
    "ParallelPhasedExecution",
    "Phase", "PipelinedExecution", "PoplarExecutor", "RecoverableError", "ReductionType", "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy", "Stage", "SyncPattern", "TensorLocationSettings", "UnrecoverableError", "VariableRetrievalMode",
    "autocast", "autocasting",
    "enums", "inferenceModel", "ipuHardwareIsAvailable", "ipuHardwareVersion", "load", "module_repr", "ops", "optim",
    "options", "popdist",
    "poptorch_core", "profiling", "registerCustomArgParser", "registerPostCompileHook", "registerPreCompileHook",
    "removeBlocks", "setLogLevel", "testing", "trainingModel", "__version__", *ops.__all__,
]
__version__ = VERSION
"""tileflow's own."""
INSTEAD = {
    "experimental": "its IPUScope and IPUContext ran single functions; give a torch.nn.Module to inferenceModel",
    "eager": "PyTorch itself runs operations one by one; give a torch.nn.Module to inferenceModel",
    "Compiler": "there is one compiler",
    "hasMLIRSupportOnPlatform": "there is one compiler",
    "registerGeometricCustomArgParsers": "registerCustomArgParser takes types of torch_geometric one by one",
    "accessAttributes": "custom operators of compiled C++ are not there, so none has attributes to read",
    "getIpuTensorId": "tensors are PyTorch's own, on this computer",
    "importPoptorchMetadataFromFile": "executables of the reference system are not read",
    "LegacyBeginBlockFn": "use BeginBlock",
    "createPoptorchError": "raise poptorch.Error(message)",
    "poptorchAtExit": "nothing has to be ended",
}
"""Names that the reference has or had, and what to do without them."""

for _name, _module in (("enums", enums), ("poptorch_core", poptorch_core)):
    sys.modules[f"{__name__}.{_name}"] = _module  # also the reference's: `from poptorch.poptorch_core import ...`
heed_environment()


def print(m: Any) -> None:
    """Print a module with the blocks that begin in it, or anything else as it is."""
    sys.stdout.write(f"{module_repr(m) if isinstance(m, _torch.nn.Module) else m}\n")


def __getattr__(name: str) -> NoReturn:
    if name in INSTEAD:
        raise AttributeError(f"poptorch.{name} is not there: {INSTEAD[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; docs/poptorch.md lists all names of the "
                         "reference system.")
