"""The pages of options say what declarations and table say; the table has every name of PopTorch's, and what it gives is true."""
from __future__ import annotations

import contextlib
import importlib
import re

import options_pages
import pytest

import tileflow
from tileflow.cli.parser import COMMANDS
from tileflow.options.declaration import Declarations
from tileflow.options.options import Options, declarations
from tileflow.options.reference import table
from tileflow.options.reference.values import Made, Word, WrittenCall
from tileflow.system.errors import OptionError

NAMES = ("""
deviceIterations replicationFactor inputReplicaGrouping setExecutionStrategy setAvailableMemoryProportion outputMode anchorTensor randomSeed
autoRoundNumIPUs broadcastBuffers connectionType syncPattern useIpuModel useIpuId useOfflineIpuTarget enableExecutableCaching logDir maxRepeatLogs
modelName enableProfiling logCycleCount enableSyntheticData enableStableNorm showCompilationProgressBar relaxOptimizerAttributesChecks
sourceLocationExcludes appendToLocationExcludes disableModuleNamescope updatableNamedBuffers loadFromFile from_json clone toDict defaultOutputMode
Precision.enableFloatingPointExceptions Precision.enableStochasticRounding Precision.setPartialsType Precision.halfFloatCasting
Precision.runningStatisticsAlwaysFloat Precision.autocastEnabled Precision.autocastPolicy
Training.gradientAccumulation Training.accumulationAndReplicationReductionType Training.setMeanAccumulationAndReplicationReductionStrategy
Training.setAutomaticLossScaling Training.setConvolutionDithering
TensorLocations.numIOTiles TensorLocations.setActivationLocation TensorLocations.setWeightLocation TensorLocations.setOptimizerLocation
TensorLocations.setAccumulatorLocation
TensorLocationSettings.minElementsForOffChip TensorLocationSettings.minElementsForReplicatedTensorSharding TensorLocationSettings.useOnChipStorage
TensorLocationSettings.useReplicatedTensorSharding TensorLocationSettings.useIOTilesToLoad TensorLocationSettings.useIOTilesToStore
Jit.traceModel Distributed.disable Distributed.setEnvVarNames Distributed.configureProcessId Distributed.processId Distributed.numProcesses
_Popart.set _Popart.setPatterns _Popart.setEngineOptions _Popart.autoRecomputation _Popart.enableOutlining _Popart.outlineThreshold
_Popart.outlineSequenceBreakCost _Popart.accumulateOuterFragmentSettings.schedule _Popart.accumulateOuterFragmentSettings.excludedVirtualGraphs
_Popart.subgraphCopyingStrategy _Popart.decomposeGradSum _Popart.disableGradAccumulationTensorStreams _Popart.disableOptimizerStateTensorStreams
_Popart.defaultBufferingDepth _Popart.defaultPrefetchBufferingDepth _Popart.enablePrefetchDatastreams _Popart.saveInitializersToFile
_Popart.timeLimitScheduler _Popart.swapLimitScheduler _Popart.mergeVarUpdate _Popart.batchSerializationSettings.factor
_Popart.batchSerializationSettings.method _Popart.batchSerializationSettings.transformContext _Popart.batchSerializationSettings.batchSchedule
_Popart.executionPhaseSettings.phases _Popart.executionPhaseSettings.stages _Popart.automaticLossScalingSettings.enabled
_Popart.automaticLossScalingSettings.binEdgeLocation _Popart.automaticLossScalingSettings.thresholdUpperCountProportion
_Popart.automaticLossScalingSettings.updatePeriod _Popart.automaticLossScalingSettings.gradientTensorTrackingMethod
_Popart.replicatedCollectivesSettings _Popart.groupNormStridedChannelGrouping _Popart.ensureFp32LossScaleTensor
_Popart.enableSupportedDataTypeCasting _Popart.enableNonStableSoftmax _Popart.constantWeights _Popart.groupHostSync _Popart.engineOptions
_Popart.convolutionOptions _Popart.matmulOptions _Popart.lstmOptions _Popart.gclOptions _Popart.hardwareInstrumentations
POPTORCH_LOG_LEVEL POPTORCH_IPU_MODEL POPTORCH_SMALL_IPU_MODEL POPTORCH_IPU_MODEL_VERSION POPTORCH_WAIT_FOR_IPU POPTORCH_CACHE_DIR
POPTORCH_DEFAULT_OPTIONS POPLAR_ENGINE_OPTIONS PVTI_OPTIONS
""").split()          # noqa: SIM905    (a hundred quotes would say no more)
"""Every method of `poptorch.Options` and of its groups, the settings of PopART's that its users touch, and the environment variables (SDK 3.4)."""
VALUES = {
    "disableModuleNamescope": (), "Distributed.disable": (), "Distributed.setEnvVarNames": ("SIZE", "RANK"), "Distributed.configureProcessId": (0, 1),
    **{f"_Popart.{name}": (False,) for name in ("groupNormStridedChannelGrouping", "enableNonStableSoftmax")},
    **{f"_Popart.{name}": ({"availableMemoryProportion": "0.1"},) for name in ("convolutionOptions", "matmulOptions", "lstmOptions")},
    "inputReplicaGrouping": (2, Word("poptorch.CommGroupType.Consecutive")), "setAvailableMemoryProportion": ({"IPU0": 0.3},),
    "outputMode": (Word("poptorch.OutputMode.EveryN"), 2), "useOfflineIpuTarget": (21,), "useIpuModel": (True,),
    "connectionType": (Word("poptorch.ConnectionType.Always"),), "syncPattern": (Word("poptorch.SyncPattern.Full"),),
    "Precision.setPartialsType": (Word("torch.half"),),
    "Precision.halfFloatCasting": (Word("poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat"),),
    "Precision.autocastPolicy": (Made((WrittenCall("poptorch.autocasting.Policy", ([],), {"fp32": ["Softmax"]}),)),),
    "Training.accumulationAndReplicationReductionType": (Word("poptorch.ReductionType.Sum"),),
    "Training.setMeanAccumulationAndReplicationReductionStrategy": (Word("poptorch.MeanReductionStrategy.Running"),),
    "TensorLocations.numIOTiles": (64,),
    **{f"TensorLocations.set{group}Location": (Made((WrittenCall("poptorch.TensorLocationSettings"),
                                                     WrittenCall("useOnChipStorage", (False,)),
                                                     WrittenCall("minElementsForOffChip", (4,)))),)
       for group in ("Activation", "Weight", "Optimizer", "Accumulator")},
    "_Popart.autoRecomputation": (3,), "anchorTensor": ("a", "conv1/out"), "_Popart.automaticLossScalingSettings.binEdgeLocation": (0.25,),
    "_Popart.automaticLossScalingSettings.thresholdUpperCountProportion": (1e-3,),
    "setExecutionStrategy": (Made((WrittenCall("poptorch.ShardedExecution", ("a", "b")),)),),
    "_Popart.defaultBufferingDepth": (3,), "_Popart.defaultPrefetchBufferingDepth": (3,),
}
TRUTHS = ("enable", "autocastEnabled", "running", "show", "setAutomatic", "broadcast", "autoRound", "Settings.enabled")
ENTRIES = {e.name: e for entries in table.SECTIONS.values() for e in entries}


def test_the_pages_are_not_stale():
    assert options_pages.OPTIONS.read_text(encoding="utf-8") == options_pages.options_page(), f"run {options_pages.COMMAND}"
    assert options_pages.POPTORCH.read_text(encoding="utf-8") == options_pages.poptorch_page(), f"run {options_pages.COMMAND}"


def test_every_name_has_an_entry():
    assert not [name for name in NAMES if name not in ENTRIES]
    assert len(ENTRIES) == sum(map(len, table.SECTIONS.values())), "a name stands twice"
    assert len({table.key(name) for name in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_sets_an_option_or_says_a_sentence(name):
    """What an entry takes is an option, whose check takes it and which then is no longer as it was; what it does not take ends with its sentence."""
    entry = ENTRIES[name]
    assert entry.options or entry.says
    assert not entry.says or entry.says.endswith(".")
    assert set(entry.options) <= set(declarations())
    if entry not in [e for group in table.CALLS for e in table.SECTIONS[group]]:
        assert entry.take is None
        return
    if entry.take is None:
        with pytest.raises(OptionError) as error:
            table.taken(WrittenCall(name, (1,)) if not name.startswith("_Popart.") or name == "_Popart.set"
                        else WrittenCall("_Popart.set", (name.removeprefix("_Popart."), 1)))
        assert name == "_Popart.set" or entry.says in str(error.value)
        return
    values = VALUES.get(name, (True,) if any(t in name for t in TRUTHS) else (7,) if name != "replicationFactor" or entry.options else (1,))
    snake = "".join(f"_{c.lower()}" if c.isupper() and i and name[i - 1] not in "._" else c.lower() for i, c in enumerate(name))
    for spelled in (name, snake):
        with pytest.warns(UserWarning, match=re.escape(f" has no effect: {entry.says}")) if entry.idle else contextlib.nullcontext():
            found = table.taken(WrittenCall(spelled, values)) if not name.startswith("_Popart.") else table.taken(
                WrittenCall("_Popart.set", (spelled.partition(".")[2], *values)))
        assert found is not None
        assert set(found) <= set(entry.options)
        assert bool(found) == bool(entry.options)
        for option, value in found.items():
            assert declarations()[option].check(value) is not None


@pytest.mark.parametrize("name", ENTRIES)
def test_what_an_entry_names_is_there(name):
    """Functions and classes of tileflow, options, pages and commands that its sentence names."""
    says = ENTRIES[name].says
    for found in re.findall(r"\b(tileflow|nn)\.((?:\w+\.)*\w+)", says):
        reached = tileflow if found[0] == "tileflow" else tileflow.nn
        for part in found[1].split("."):
            reached = getattr(reached, part) if hasattr(reached, part) else importlib.import_module(f"{reached.__name__}.{part}")
    for page in re.findall(r"docs/[\w-]+\.md", says):
        assert (options_pages.ROOT / page).exists()
    for command in re.findall(r"`tileflow (\w+)", says):
        assert command in COMMANDS
    prose = re.sub(r"`[^`]*`|docs/\S*|poptorch\S*|[\w.]+\([^)]*\)|tileflow\.\S+|load_state\S*", "", says)
    for word in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", prose):
        assert word in declarations() or word in ("input_group_type", "ipu_version"), f"{word} is no option"


def test_every_option_has_a_row():
    page = options_pages.options_page()
    for d in declarations().values():
        assert page.count(f"\n| `{d.name}` |") == 1
    assert "`Training.gradientAccumulation`" in page


def test_the_examples_of_the_pages(tmp_path):
    """What the head of docs/options.md shows."""
    a = Options(micro_batch_size=32, epochs=3)
    b = a.clone(learning_rate=1e-2)
    assert a.diff(b) == {"learning_rate": (0.001, 0.01)}
    assert repr(b) == "Options(micro_batch_size=32, epochs=3, learning_rate=0.01)"
    b.save(tmp_path / "run.toml")
    assert Options.load(tmp_path / "run.toml") == b
    blocks = options_pages.options_page().split("```")
    made = {}
    for block in blocks[1::2]:
        kind, _, text = block.partition("\n")
        if kind in ("toml", "json") or (kind == "python" and "conf" in text):
            path = tmp_path / f"o.{'conf' if kind == 'python' else kind}"
            path.write_text(text)
            made[kind] = Options.load(path)
    assert made == {"toml": Options(seed=1, epochs=3), "json": Options(epochs=3, gradient_accumulation=8),
                    "python": Options(device_iterations=4, gradient_accumulation=8, output_mode="every_n", output_return_period=2, epochs=3)}


def test_declarations_are_found_by_any_name():
    found = Declarations.of(Options)
    assert found.now("serialised_matmul") == "serialized_matmul"
    assert found.near("lr") == ["learning_rate"]
