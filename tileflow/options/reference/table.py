"""The one table of PopTorch's options: what each is in tileflow, or why it is none and what to do instead.

It serves options files (`taken`) and the page docs/poptorch.md, which `python tests/options_pages.py` makes from it.
"""
from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...system.errors import OptionError
from ..machine import SHARDED_GROUPS
from .strategies import execution
from .values import Made, Word, WrittenCall, member, partials, settings

Take = Callable[..., Mapping[str, Any]]
"""From the arguments of a call to options by name; OptionError for a value that tileflow has no counterpart of."""


@dataclass(frozen=True)
class Entry:
    """A name of PopTorch's.

    options: what it sets. says: what it comes to, or what to do instead: one or more sentences. take: None where nothing can be set by it.
    idle: it sets nothing and is taken all the same, for what is computed does not depend on it. script: what it does in
    `tileflow.poptorch`, if more.
    """

    name: str
    says: str
    options: tuple[str, ...] = ()
    take: Take | None = None
    idle: bool = False
    script: str = ""


def _is(name: str, option: str, says: str = "") -> Entry:
    """A call with one value, which is the option's."""
    def take(value: Any) -> Mapping[str, Any]:
        return {option: value}
    return Entry(name, says, (option,), take)


def _switch(name: str, option: str, says: str = "") -> Entry:
    """As `_is`, true where no value is given."""
    def take(enabled: Any = True) -> Mapping[str, Any]:
        return {option: enabled}
    return Entry(name, says, (option,), take)


def _none(name: str, says: str) -> Entry:
    return Entry(name, says)


def _idle(name: str, arguments: str, says: str, check: Callable[..., None] | None = None, script: str = "") -> Entry:
    """A call without effect here that harms nobody: taken, with a sentence. arguments: what it takes there, "log_dir" or "profile_dir=None".
    check: raises OptionError for values that are none, or that would change numbers."""
    def take(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
        if check is not None:
            check(*args, **kwargs)
        return {}
    parameters = []
    for word in filter(None, arguments.split(", ")):
        named, _, default = word.lstrip("*").partition("=")
        kind = inspect.Parameter.VAR_POSITIONAL if word[0] == "*" else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(named, kind, default=default or inspect.Parameter.empty))
    take.__signature__ = inspect.Signature(parameters)                              # type: ignore[attr-defined]
    return Entry(name, says, take=take, idle=True, script=script)


def _refuse(says: str) -> Mapping[str, Any]:
    raise OptionError(says)


# ---- conversions; the arguments are called as PopTorch calls them

def _output_mode(mode: Any, output_return_period: Any = None) -> Mapping[str, Any]:
    found = {"output_mode": member("OutputMode", mode)}
    if found["output_mode"] != "every_n":
        return found
    if not isinstance(output_return_period, int) or output_return_period < 1:
        raise OptionError("EveryN anchor must have output_return_period set to valid positive integer.")
    return {**found, "output_return_period": output_return_period}


def _grouping(input_group_size: Any, input_group_type: Any) -> Mapping[str, Any]:
    kind = member("CommGroupType", input_group_type)
    if kind == "all":
        raise OptionError("input_group_type cannot be All.")
    return {"input_group_size": 1} if kind == "no_grouping" else {"input_group_size": input_group_size, "input_group_type": kind}


def _proportions(available_memory_proportion: Any) -> Mapping[str, Any]:
    if not isinstance(available_memory_proportion, Mapping):
        raise OptionError(f"needs a table of IPUs and shares such as {{'IPU0': 0.5}}, not {available_memory_proportion!r}.")
    for name in available_memory_proportion:
        if not isinstance(name, str) or not name.startswith("IPU"):
            raise OptionError(f"the names of IPUs must start with 'IPU', not {name!r}.")
    return {"available_memory_proportion": dict(available_memory_proportion)} if available_memory_proportion else {}


def _io_tiles(num_tiles: Any) -> Mapping[str, Any]:
    if isinstance(num_tiles, bool) or not isinstance(num_tiles, int) or not 32 <= num_tiles <= 192 or num_tiles % 2:
        raise OptionError("numIOTiles must be an even number between 32 and 192.")
    return {"num_io_tiles": num_tiles}


def _anchor(short_name: Any, long_name: Any, output_mode: Any = None, output_return_period: Any = 1) -> Mapping[str, Any]:
    if output_mode is not None:
        return _refuse("anchored tensors follow the model's own output_mode; leave theirs out.")
    return {"anchored_tensors": [long_name]}


def _no_partials(value: Any) -> None:
    """Of options of Poplar's libraries only those of partial sums change numbers."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"needs a table of names and values, not {value!r}.")
    for name in value:
        if "partials" in name.lower():
            raise OptionError(f"{name} would change numbers; Precision.setPartialsType (the option partials) says what partial sums are.")


def _one_process(process_id: Any, num_processes: Any) -> None:
    if (process_id, num_processes) != (0, 1):
        raise OptionError(f"{NO_PROCESSES} Leave it out.")


def _false(says: str) -> Callable[[Any], None]:
    """A switch that is off here: what it would do changes numbers."""
    def check(value: Any) -> None:
        if value is not False:
            raise OptionError(says)
    return check


def _offline(ipu_version: Any = 2) -> Mapping[str, Any]:
    chips = {1: "gc2", 2: "gc200", 21: "bow"}
    if isinstance(ipu_version, bool) or not isinstance(ipu_version, int) or ipu_version not in chips:
        raise OptionError(f"ipu_version must be 1, 2 or 21, not {ipu_version!r}.")
    return {"machine": chips[ipu_version]}


def _ipu_model(use_model: Any) -> Mapping[str, Any]:
    if use_model is not True:
        return _refuse("there is no IPU to run on: numbers are computed on this computer, and the option machine names the chip to simulate.")
    return {"machine": "gc200"}


def _reduction(reduction_type: Any) -> Mapping[str, Any]:
    kind = member("ReductionType", reduction_type)
    if kind is None:
        raise OptionError("accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean or poptorch.ReductionType.Sum.")
    return {"accumulation_reduction": kind}


def _mean_strategy(mean_reduction_strategy: Any) -> Mapping[str, Any]:
    kind = member("MeanReductionStrategy", mean_reduction_strategy)
    return {"mean_reduction_strategy": kind} if kind is not None else _refuse("PostAndLoss was withdrawn; choose Post or Running.")


def _policy(policy: Any) -> Mapping[str, Any]:
    """`poptorch.autocasting.Policy(fp16=["conv2d"], fp32=[], promote=[], demote=[])`: tileflow's policy knows operators by either name."""
    sets = ("fp16", "fp32", "promote", "demote")
    if not isinstance(policy, Made) or policy.kind != "Policy" or len(policy.calls) > 1:
        raise OptionError(f"needs a poptorch.autocasting.Policy(...), not {policy!r}.")
    call = policy.calls[0]
    lists = {**dict(zip(sets, call.args, strict=False)), **call.kwargs}
    if len(call.args) > len(sets) or not set(lists) <= set(sets) or not all(isinstance(names, list) for names in lists.values()):
        raise OptionError(f"Policy takes lists of operators' names: {', '.join(sets)}.")
    rules = [(name, kind) for kind, names in lists.items() for name in names]
    for name, kind in rules:
        if not isinstance(name, str) or dict(rules)[name] != kind:
            raise OptionError(f"Policy: {name!r} must be the name of an operator, in one of the lists.")
    return {"autocast": dict(rules)}


def _location(group: str) -> Take:
    """From a TensorLocationSettings to the options of a group of tensors."""
    def take(location: Any) -> Mapping[str, Any]:
        found = settings(location, "TensorLocationSettings")
        options: dict[str, Any] = {}
        on_chip, least = found.pop("useOnChipStorage", None), found.pop("minElementsForOffChip", None)
        if on_chip is not None:
            if not isinstance(on_chip, bool):
                raise OptionError(f"TensorLocationSettings().useOnChipStorage needs True, False or None, not {on_chip!r}.")
            options[f"{group}_off_chip"] = not on_chip
        if least is not None:
            options["min_elements_off_chip"] = {group: least}
        sharded, least = found.pop("useReplicatedTensorSharding", None), found.pop("minElementsForReplicatedTensorSharding", None)
        if group not in SHARDED_GROUPS and (sharded or least is not None):
            warnings.warn(f"TensorLocationSettings().useReplicatedTensorSharding has no effect: {SHARDED}", stacklevel=2)
        if sharded is not None and group in SHARDED_GROUPS:
            options[f"{group}_sharded"] = sharded
        if least is not None and group in SHARDED_GROUPS:
            options["min_elements_sharded"] = {group: least}
        does = [word for name, word in (("useIOTilesToLoad", "load"), ("useIOTilesToStore", "store")) if found.get(name)]
        if does:
            options["io_tiles_for"] = {group: "both" if len(does) == 2 else does[0]}
        return options
    return take


def _located(name: str, group: str, what: str) -> Entry:
    sharded = (f"{group}_sharded", "min_elements_sharded") if group in SHARDED_GROUPS else ()
    return Entry(f"TensorLocations.{name}", f"`poptorch.TensorLocationSettings().useOnChipStorage(False)` keeps {what} in streaming memory "
                 "(`docs/tiles.md`).", (f"{group}_off_chip", "min_elements_off_chip", *sharded, "io_tiles_for"), _location(group))


SHARDED = "replicas share out weights and optimizer state, not activations or accumulators."


def _recomputation(value: Any) -> Mapping[str, Any]:
    kinds = {0: False, 1: True, 2: True, 3: True, 4: True}
    if isinstance(value, bool) or value not in kinds:
        raise OptionError(f"needs 0 (None), 1 (Standard), 2 (NormOnly), 3 (Pipeline) or 4 (RecomputeAll), not {value!r}.")
    return {"recompute": kinds[value]}


def _automatic(enabled: Any) -> Mapping[str, Any]:
    if not isinstance(enabled, bool):
        raise OptionError(f"needs True or False, not {enabled!r}.")
    return {"automatic_loss_scaling": "histogram" if enabled else "off"}


def _synthetic(enabled: Any = True) -> Mapping[str, Any]:
    if not isinstance(enabled, bool):
        raise OptionError(f"needs True or False, not {enabled!r}.")
    return {"synthetic_data": "normal" if enabled else "none"}


def _stable(enabled: Any) -> Mapping[str, Any]:
    if enabled is not True:
        return _refuse(STABLE)
    return {}


STABLE = "statistics always take the mean first and then the squares of what differs from it; there is no other form, so leave it out."
NO_HARDWARE = "there is no IPU to connect to. The option machine names the chip to simulate."
NO_PROCESSES = "processes that train together are started by `tileflow launch` or mpiexec, which tell each its number."
CYCLES = "`tileflow compile MODEL --machine gc200` always says the cycles of the simulated chip."
CONSECUTIVE = "groups of channels are consecutive, as in PyTorch and ONNX."
SOFTMAX = "softmax always subtracts the largest element; there is no other form."
SCHEDULER = "tileflow's planner has no scheduler of this kind."
STREAMS = "rows, weights and states lie in the computer's memory and are read where they are; nothing is streamed."

OPTIONS = (
    _is("deviceIterations", "device_iterations"),
    _is("replicationFactor", "replication_factor", "Replicas of one process."),
    Entry("inputReplicaGrouping", "NoGrouping is a size of 1.", ("input_group_size", "input_group_type"), _grouping),
    Entry("setExecutionStrategy", "`poptorch.PipelinedExecution(poptorch.Stage(\"B1\").ipu(0), ...)` and the other strategies; phases are "
          "`poptorch.Phase(...)`, stages, names of blocks, lists of these, or one list of all, and `.phase(i).ipus(0, 2)` after the strategy puts "
          "the stages of a phase on IPUs. Stages of one phase may read each other, both ways; see `docs/strategies.md`.",
          ("strategy", "stages", "auto_stage", "tensors_liveness", "separate_backward_phase"), execution),
    Entry("setAvailableMemoryProportion", "`{\"IPU0\": 0.3}`, or by name pattern of operators.", ("available_memory_proportion",), _proportions),
    Entry("outputMode", "The period counts with EveryN only.", ("output_mode", "output_return_period"), _output_mode),
    _is("randomSeed", "seed", "It is that of every random number: initial weights, dropout, shuffling."),
    _switch("autoRoundNumIPUs", "auto_round_num_ipus"),
    _switch("broadcastBuffers", "broadcast_buffers", "True works with running statistics, which replicas share; buffers that forward() writes need "
                                                 "False, as there."),
    _idle("connectionType", "connection_type", "the simulated machine is always there; `tileflow.compile(model, machine=...)` compiles without "
          "running.", lambda connection_type: member("ConnectionType", connection_type)),
    _idle("syncPattern", "sync_pattern", "the tile machine synchronises all tiles of an IPU at every exchange, as `Full` does.",
          lambda sync_pattern: member("SyncPattern", sync_pattern)),
    Entry("useIpuModel", "True names the chip of PopTorch's default model, `gc200`. Numbers are always computed on this computer.",
          ("machine",), _ipu_model),
    _none("useIpuId", NO_HARDWARE),
    Entry("useOfflineIpuTarget", "Versions 1, 2 and 21 are `gc2`, `gc200` and `bow`.", ("machine",), _offline),
    _idle("enableExecutableCaching", "path", "compiled kernels are always kept from run to run, in the folder that the environment variable "
          "TILEFLOW_CACHE_DIR names; "
          "`tileflow doctor` says where."),
    _idle("logDir", "log_dir", "nothing is logged to files. What a run writes goes to the folder that the option out names."),
    _idle("maxRepeatLogs", "max_lines", "messages are said once."),
    _idle("modelName", "name",
          "reports go where `tileflow compile --report DIR` (report=DIR) says, one folder a model.",
          script="the folder of the model's report, in place of training or inference"),
    _idle("enableProfiling", "profile_dir=None", "`tileflow compile MODEL --machine gc200 --report DIR` (tileflow.compile(model, "
          "machine=\"gc200\", report=DIR)) writes the report, a page and a trace.",
          script="each program that the model compiles has its report in a folder within profile_dir, by default "
                 "within this one"),
    _idle("logCycleCount", "log_cycle_count", CYCLES),
    Entry("enableSyntheticData", "True is `normal`, as there, for `train`; a model that is called takes any array.", ("synthetic_data",), _synthetic),
    Entry("enableStableNorm", f"True is taken, for it says what is so: {STABLE}", (), _stable),
    _switch("showCompilationProgressBar", "progress"),
    _idle("relaxOptimizerAttributesChecks", "relax=True", "an optimizer's unknown attribute is always an error, with the nearest name."),
    _idle("sourceLocationExcludes", "*excludes", "operators are named after the layers or nodes they come from, not after frames of Python."),
    _idle("appendToLocationExcludes", "*excludes", "operators are named after the layers or nodes they come from, not after frames of Python."),
    _idle("disableModuleNamescope", "", "operators are always named by their path among the layers, for errors and reports."),
    _idle("updatableNamedBuffers", "*buffers", "`load_state_dict` and `tileflow.load_state` set any buffer between two calls."),
    Entry("anchorTensor", "By the tensor's own name, the second, or a layer's or node's; after a call `model.anchored(name)` is its value, in the "
          "model's output mode.", ("anchored_tensors",), _anchor),
    _none("loadFromFile", "`Options.load(path)`, `--options FILE`, or the environment variable TILEFLOW_DEFAULT_OPTIONS."),
    _none("from_json", "`Options(**json.loads(text))`, or `Options.load(\"options.json\")`."),
    _none("clone", "`options.clone()`, with changes by keyword; `a.diff(b)` says what differs."),
    _none("toDict", "`options.to_dict()`."),
    _none("defaultOutputMode", "`options.output_mode == \"default\"`; `options.output_mode_for(training)` resolves it."),
)

PRECISION = (
    _switch("Precision.enableFloatingPointExceptions", "detect_anomaly", "The run ends with the name of the first operator, forward or "
          "backward, that makes NaN or an "
            "infinity."),
    _switch("Precision.enableStochasticRounding", "stochastic_rounding"),
    Entry("Precision.setPartialsType", "Of products and convolutions in float16.", ("partials",), lambda dtype: {"partials": partials(dtype)}),
    Entry("Precision.halfFloatCasting", "FloatDowncastToHalf (and Default) is `activation`, HalfUpcastToFloat `upcast`.", ("half_float_casting",),
          lambda half_float_casting: {"half_float_casting": member("HalfFloatCastingBehavior", half_float_casting)}),
    _is("Precision.runningStatisticsAlwaysFloat", "running_statistics_always_float"),
    _switch("Precision.autocastEnabled", "autocast_enabled"),
    Entry("Precision.autocastPolicy", "The policy's lists become one table; names of one operator are merged, with a warning "
          "(`docs/precision.md`).", ("autocast",), _policy),
)

TRAINING = (
    _is("Training.gradientAccumulation", "gradient_accumulation"),
    Entry("Training.accumulationAndReplicationReductionType", "Mean or Sum.", ("accumulation_reduction",), _reduction),
    Entry("Training.setMeanAccumulationAndReplicationReductionStrategy", "Post or Running.", ("mean_reduction_strategy",), _mean_strategy),
    Entry("Training.setAutomaticLossScaling", "`histogram`, PopART's way; tileflow also has `dynamic`, PyTorch's (`docs/loss-scaling.md`).",
          ("automatic_loss_scaling",), _automatic),
    _idle("Training.setConvolutionDithering", "enabled", "the tile machine spreads the parts of an operator evenly over the tiles by itself."),
)

TENSOR_LOCATIONS = (
    Entry("TensorLocations.numIOTiles", "Tiles that compute nothing (`docs/tiles.md`).", ("num_io_tiles",), _io_tiles),
    _located("setActivationLocation", "activations", "what waits for the backward pass or a later phase"),
    _located("setWeightLocation", "weights", "weights"),
    _located("setOptimizerLocation", "optimizer", "optimizer state"),
    _located("setAccumulatorLocation", "accumulators", "accumulators of gradients"),
)

SETTINGS = (
    Entry("TensorLocationSettings.useOnChipStorage", "Stands within setOptimizerLocation and the others; None leaves it as it is.",
          ("activations_off_chip", "weights_off_chip", "optimizer_off_chip", "accumulators_off_chip")),
    Entry("TensorLocationSettings.minElementsForOffChip", "Stands within setOptimizerLocation and the others.", ("min_elements_off_chip",)),
    Entry("TensorLocationSettings.minElementsForReplicatedTensorSharding", "Stands within setWeightLocation and setOptimizerLocation.",
          ("min_elements_sharded",)),
    Entry("TensorLocationSettings.useReplicatedTensorSharding", f"Stands within setWeightLocation and setOptimizerLocation: {SHARDED}",
          ("weights_sharded", "optimizer_sharded")),
    Entry("TensorLocationSettings.useIOTilesToLoad", "Stands within setWeightLocation and the others.", ("io_tiles_for",)),
    Entry("TensorLocationSettings.useIOTilesToStore", "Stands within setWeightLocation and the others.", ("io_tiles_for",)),
)

JIT = (_idle("Jit.traceModel", "trace_model", "nothing is traced: the graph is read from the ONNX file, or recorded from the layers once."),)

DISTRIBUTED = (
    _idle("Distributed.disable", "", NO_PROCESSES),
    _idle("Distributed.setEnvVarNames", "var_num_processes, var_process_id", NO_PROCESSES),
    _idle("Distributed.configureProcessId", "process_id, num_processes", f"{NO_PROCESSES} Process 0 of 1 is taken, all "
          "else refused.", _one_process),
    *(_none(f"Distributed.{name}", "Whoever starts the processes tells it; it is read, not set.")
      for name in ("processId", "numProcesses")),
)

POPART = (
    _none("_Popart.set", "the keys are below; each is an option of its own, or none."),
    _idle("_Popart.setPatterns", "patterns, level=2", "graph rewrites are not chosen by hand; `tileflow compile MODEL` prints the program that "
          "they leave."),
    _idle("_Popart.setEngineOptions", "engine_options",
          "Poplar's engine is not part of tileflow; see `enableProfiling` for reports.",
          script="autoReport.all and autoReport.directory are as enableProfiling"),
    Entry("_Popart.autoRecomputation", "None (0) is false; Standard (1), NormOnly (2), Pipeline (3) and RecomputeAll (4) are true: what "
          "is computed again is tileflow's choice.", ("recompute",),
          _recomputation),
    Entry("_Popart.automaticLossScalingSettings.enabled", "`histogram`.", ("automatic_loss_scaling",), _automatic),
    _is("_Popart.automaticLossScalingSettings.binEdgeLocation", "bin_edge_location"),
    _is("_Popart.automaticLossScalingSettings.thresholdUpperCountProportion", "threshold_upper_count_proportion"),
    _is("_Popart.automaticLossScalingSettings.updatePeriod", "loss_scaling_update_period"),
    _none("_Popart.automaticLossScalingSettings.gradientTensorTrackingMethod", "the histogram looks at all 16-bit gradients of weights."),
    _is("_Popart.defaultBufferingDepth", "prefetch", "Batches prepared ahead, on this computer."),
    _is("_Popart.defaultPrefetchBufferingDepth", "prefetch", "Batches prepared ahead, on this computer."),
    _idle("_Popart.enablePrefetchDatastreams", "value", "the option prefetch says how many batches are prepared ahead; 0 prepares them on demand."),
    Entry("_Popart.enableStableNorm", f"True is taken, for it says what is so: {STABLE}", (), _stable),
    _switch("_Popart.enableFloatingPointChecks", "detect_anomaly"),
    _idle("_Popart.enableOutlining", "value", "the tile machine counts the code of equal operators once by itself."),
    _idle("_Popart.outlineThreshold", "value", "the tile machine counts the code of equal operators once by itself."),
    _idle("_Popart.outlineSequenceBreakCost", "value", "the tile machine counts the code of equal operators once by itself."),
    _idle("_Popart.subgraphCopyingStrategy", "value", "there are no outlined subgraphs to copy for."),
    _idle("_Popart.accumulateOuterFragmentSettings.schedule", "value", "the IPUs of a model change their weights one after the other (Serial, "
          "PopART's own default)."),
    *(_idle(f"_Popart.{name}", "value", SCHEDULER) for name in (
        "accumulateOuterFragmentSettings.excludedVirtualGraphs", "timeLimitScheduler", "swapLimitScheduler",
        "decomposeGradSum", "mergeVarUpdate", "mergeVarUpdateMemThreshold", "batchSerializationSettings.factor", "batchSerializationSettings.method",
        "batchSerializationSettings.transformContext", "batchSerializationSettings.batchSchedule")),
    *(_idle(f"_Popart.executionPhaseSettings.{name}", "value", "the options strategy, stages and separate_backward_phase say what phases there are.")
      for name in ("phases", "stages")),
    *(_idle(f"_Popart.{name}", "value", STREAMS) for name in (
        "disableGradAccumulationTensorStreams", "disableOptimizerStateTensorStreams", "rearrangeAnchorsOnHost", "groupHostSync")),
    _idle("_Popart.saveInitializersToFile", "value", "`save_onnx` and `tileflow.save_state` write weights; an ONNX file is read with the "
          "files of its external data."),
    _idle("_Popart.replicatedCollectivesSettings", "value", "the tile machine chooses how sums over replicas are made."),
    _idle("_Popart.groupNormStridedChannelGrouping", "value", f"{CONSECUTIVE} True, which would change numbers, is refused.", _false(CONSECUTIVE)),
    _idle("_Popart.ensureFp32LossScaleTensor", "value", "the loss scale is always float32."),
    _idle("_Popart.enableSupportedDataTypeCasting", "value", "inputs that fit are always cast; what would lose digits is said."),
    _idle("_Popart.enableNonStableSoftmax", "value", f"{SOFTMAX} True, which would change numbers, is refused.", _false(SOFTMAX)),
    _idle("_Popart.constantWeights", "value", "inference always takes weights as they are at the call."),
    *(_idle(f"_Popart.{name}", "value", CYCLES) for name in ("instrumentWithHardwareCycleCounter", "hardwareInstrumentations")),
    *(_idle(f"_Popart.{name}", "value", "the tile machine's planner takes available_memory_proportion, partials, serialized_matmul, joint_plans and "
            "tile_plans; there are no options of Poplar's libraries. Types of partial sums, which would change numbers, are refused.", _no_partials)
      for name in ("convolutionOptions", "matmulOptions", "lstmOptions")),
    *(_idle(f"_Popart.{name}", "value", "Poplar's engine and its libraries are not part of tileflow.") for name in ("engineOptions", "gclOptions")),
)

ENVIRONMENT = (
    _none("POPTORCH_DEFAULT_OPTIONS",
          "for `poptorch.Options()`, options as JSON; else `TILEFLOW_DEFAULT_OPTIONS`, the path of a file."),
    _none("POPTORCH_CACHE_DIR", "`TILEFLOW_CACHE_DIR`, which is taken from it where it is not set."),
    _none("POPTORCH_LOG_LEVEL",
          "as `poptorch.setLogLevel`, or `TILEFLOW_LOG_LEVEL`: OFF, ERR, WARN, INFO, DEBUG, TRACE."),
    _none("POPTORCH_IPU_MODEL", "no effect is needed: this computer computes everything, and the option `machine` "
                                "names the chip of reports."),
    _none("POPTORCH_SMALL_IPU_MODEL",
          "no effect, which a warning says: the option `machine` may name a `.toml` file of a chip of 4 tiles "
          "(`docs/tiles.md`)."),
    _none("POPTORCH_IPU_MODEL_VERSION",
          "the chip of `poptorch.Options()`: ipu1 is `gc2`, ipu2 `gc200`, ipu21 `bow`; else the option `machine`."),
    _none("POPTORCH_WAIT_FOR_IPU", "no effect, which a warning says: there is no IPU to wait for."),
    _none("POPLAR_ENGINE_OPTIONS", "`autoReport.all` and `autoReport.directory` are `TILEFLOW_AUTO_REPORT`; of others "
                                   "a warning says that they have "
          "no effect."),
    _none("PVTI_OPTIONS", "`enable` and `directory` are `TILEFLOW_TRACE`, the file trace.json there."),
)
"""The reference's environment variables, heeded by `import tileflow.poptorch`."""
OWN_ENVIRONMENT = (
    _none("TILEFLOW_DEFAULT_OPTIONS",
          "The path of an options file for every command and function; `tileflow doctor` shows what it sets."),
    _none("TILEFLOW_CACHE_DIR",
          "The folder in which compiled kernels are kept from run to run; `tileflow doctor` says where it is."),
    _none("TILEFLOW_LOG_LEVEL",
          "Shows the log of `tileflow` on standard error from a level on: OFF, ERR, WARN, INFO, DEBUG, TRACE. Python's "
          "`logging` has it under `tileflow` in any case, silent until somebody gives it a handler."),
    _none("TILEFLOW_AUTO_REPORT",
          "A folder: every program that is compiled has its report there (`docs/report.md`), in training, inference, "
          "training-2, …; for the option `machine`, by default a GC200."),
    _none("TILEFLOW_TRACE", "A file: what this process does when (compiling, calls, batches, checkpoints, marks) is "
                            "written there at its end, for "
          "https://ui.perfetto.dev. `with tileflow.trace(\"trace.json\")` does it for a part."),
    _none("TILEFLOW_TRACE_ROWS", "1: that trace shows what calls compute, too, by operators and names of nodes; "
          "`tileflow.trace(\"trace.json\", rows=True)` does it for a part."),
    _none("TILEFLOW_PROCESS", "Which of the processes that train together this one is (`docs/distributed.md`): "
                              "`tileflow launch` sets it. `mpi`: "
          "what mpiexec has started, without a call of `tileflow.collective.init()`."),
    _none("TILEFLOW_PIN", "0: processes that train together run on all processors, instead of an equal part for each "
                          "(`tileflow launch --no-pin`)."),
    _none("TILEFLOW_PATIENCE", "Seconds without a sign of life after which a process that trains with others counts as "
                               "one that hangs: `tileflow launch --patience` sets it."),
    _none("TILEFLOW_NUM_REPLICAS", "What `popdist.getNumTotalReplicas()` of `tileflow.poptorch` gives: `tileflow "
                                   "launch --num-replicas` sets it."),
    _none("TILEFLOW_IPUS_PER_REPLICA",
          "What `popdist.getNumIpusPerReplica()` gives: `tileflow launch --ipus-per-replica` sets it."),
)
"""tileflow's own."""

MODELS = (
    _none("trainingModel", "`tileflow.training_model(model, options, optimizer=...)`; calls return the outputs and the loss."),
    _none("inferenceModel", "`tileflow.inference_model(model, options)`."),
    _none("PoplarExecutor.compile", "`compile(x)` of a model; `destroy()` and `is_compiled` are as there."),
    _none("PoplarExecutor.setOptimizer", "`set_optimizer(optimizer)`; attributes of the optimizer that the model has need no call "
          "(`docs/optimizers.md`)."),
    _none("PoplarExecutor.copyWeightsToHost", "weights lie in one place: `state_dict()` gives copies after a whole update, `load_state_dict()` sets "
          "them."),
    _none("PoplarExecutor.copyWeightsToDevice", "weights lie in one place: `load_state_dict()` sets them for every model of the network."),
    _none("PoplarExecutor.getAnchoredTensor", "`anchored(name)`, with the option anchored_tensors."),
    _none("PoplarExecutor.cycleCount",
          "`tileflow compile MODEL --machine gc200` says the cycles of the simulated chip, and what they are made of."),
    _none("PoplarExecutor.compileAndExport", "`compile_and_export(path, x)` of a model (`docs/executables.md`)."),
    _none("PoplarExecutor.save", "`save(path)` of a model; `save_onnx(path)` writes an ONNX file."),
    _none("PoplarExecutor.loadExecutable", "`load_executable(path)` of a model."),
    _none("load", "`tileflow.load_executable(path, edit_options)`; `tileflow.load(path)` reads an ONNX file."),
    _none("DataLoader", "`tileflow.DataLoader` (`docs/data-loading.md`)."),
    _none("AsynchronousDataAccessor", "`tileflow.AsynchronousDataAccessor` (`docs/data-loading.md`)."),
    _none("Block", "`nn.Block` (`docs/strategies.md`)."),
    _none("BeginBlock", "`nn.begin_block`."),
    _none("BlockFunction", "`nn.block_function`."),
    _none("removeBlocks", "`nn.remove_blocks`."),
    _none("Stage, Phase, AutoStage", "the option stages, or the classes of these names in `tileflow.strategy.stages`; `strategy.phase(i).ipus(0, 2)` "
          "as there."),
    _none("PipelinedExecution, ShardedExecution, SerialPhasedExecution, ParallelPhasedExecution", "the option strategy, or the classes of these "
          "names in `tileflow.strategy.stages`."),
    _none("Liveness", "the option tensors_liveness."),
    _none("identity_loss", "`nn.identity_loss`, with loss = \"identity\". Losses such as `nn.CrossEntropyLoss` in `forward()` mark, "
                           "too; an output of one number that is computed from such a loss, which is silently not what is minimised there, is an "
                           "error here. Without a mark the only output of one number is the loss."),
    _none("serializedMatMul", "`nn.serialized_matmul`, or the option serialized_matmul by name."),
    _none("set_available_memory", "`nn.set_available_memory`, or the option available_memory_proportion by name."),
    _none("MultiConv", "`nn.MultiConv`."),
    _none("recomputationCheckpoint", "`nn.recomputation_checkpoint`, or the option recomputation_checkpoints by name of layers or nodes."),
    _none("set_overlap_for_input, set_overlap_for_output", "the options overlap_inputs and overlap_outputs, by name."),
    _none("ipu_print_tensor", "`nn.print_tensor`, or the option printed_tensors by name of layers, tensors or nodes."),
    _none("autocasting.autocast, autocasting.Policy", "`tileflow.autocast`, `tileflow.Policy` (`docs/half.md`)."),
    _none("for_loop, cond", "`nn.for_loop` and `nn.cond`, with gradients (`docs/control-flow.md`)."),
    _none("CPU, custom_op", "`nn.cpu` for functions, `tileflow.operator` for operators of one's own "
                            "(`docs/custom-operators.md`)."),
    _none("dynamic_slice, dynamic_update, nop, ctc_beam_search_decoder",
          "the functions of these names in `nn`, and `nn.ctc_loss`."),
    _none("optim.SGD, Adam, AdamW, RMSprop, LAMB", "`tileflow.optim.SGD` and the others (`docs/optimizers.md` has their equations)."),
    _none("Error", "`tileflow.TileflowError`."),
    _none("ipuHardwareIsAvailable", "`tileflow doctor` says what there is to compute with."),
)

SECTIONS: dict[str, Sequence[Entry]] = {
    "Options": OPTIONS, "Options.Precision": PRECISION, "Options.Training": TRAINING, "Options.TensorLocations": TENSOR_LOCATIONS,
    "TensorLocationSettings": SETTINGS, "Options.Jit": JIT, "Options.Distributed": DISTRIBUTED, "Options._Popart": POPART,
    "Environment variables": ENVIRONMENT, "Models, data and annotations": MODELS}
"""The table by PopTorch's groups."""
CALLS = ("Options", "Options.Precision", "Options.Training", "Options.TensorLocations", "Options.Jit", "Options.Distributed", "Options._Popart")
"""Groups whose names a line may call."""


def key(name: str) -> str:
    """How names are compared: camelCase, snake_case and a leading underscore are one."""
    return name.replace("_", "").lower()


@functools.cache
def _by_key() -> Mapping[str, Entry]:
    return {key(entry.name): entry for group in CALLS for entry in SECTIONS[group]}


def find(name: str) -> Entry | None:
    """The entry of an option, in camelCase or snake_case."""
    return _by_key().get(key(name))


def near(name: str) -> list[str]:
    """Names of PopTorch's that somebody may have meant: the same in another group, else what is spelled alike."""
    last = key(name).rpartition(".")[2]
    same = [e.name for k, e in _by_key().items() if k.rpartition(".")[2] == last]
    return same or [_by_key()[k].name for k in difflib.get_close_matches(key(name), _by_key(), n=2, cutoff=0.75)]


def taken(call: WrittenCall) -> dict[str, Any] | None:
    """The options, by name, that a call sets; None where PopTorch has no such name.

    Raises:
        OptionError: its arguments are wrong, or it has no counterpart: the table's sentence.
    """
    entry = find(call.name)
    if entry is not None and entry.name == "_Popart.set":
        return _popart(call)
    if entry is None:
        return None
    return _applied(entry, entry.name, call.args, call.kwargs)


def _popart(call: WrittenCall) -> dict[str, Any]:
    """`_Popart.set(key, value)`."""
    if len(call.args) != 2 or call.kwargs or not isinstance(call.args[0], str):
        raise OptionError("_Popart.set takes a name and a value.")
    entry = find(f"_Popart.{call.args[0]}")
    if entry is None:
        raise OptionError(f"Unknown option {call.args[0]!r} of _Popart.set.{_meant(near(f'_Popart.{call.args[0]}'))}")
    return _applied(entry, f"_Popart.set({call.args[0]!r})", call.args[1:], {})


def _applied(entry: Entry, shown: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if entry.take is None:
        raise OptionError(f"{shown}: {entry.says}")
    signature = inspect.signature(entry.take)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        wanted = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in signature.parameters.values())
        given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        raise OptionError(f"{shown} takes ({wanted}), not ({given}).") from None
    try:
        found = {name: _literal(name, value) for name, value in entry.take(*args, **kwargs).items()}
    except OptionError as error:
        raise OptionError(f"{shown}: {error}") from None
    if entry.idle:
        warnings.warn(f"{shown} has no effect: {entry.says}", stacklevel=2)
    return found


def _literal(name: str, value: Any) -> Any:
    """A value that an option can be; OptionError for a word or an object that stands for none here."""
    if isinstance(value, (Word, Made)):
        raise OptionError(f"the option {name} cannot be {value!r}.")
    if isinstance(value, list):
        return [_literal(name, item) for item in value]
    return {k: _literal(name, item) for k, item in value.items()} if isinstance(value, dict) else value


def _meant(names: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(n.removeprefix('_Popart.') for n in names)}?" if names else ""
