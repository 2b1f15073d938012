"""Options files of lines, PopTorch's names in any file, and the file that the environment names."""
from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tileflow
from tileflow import cli, nn
from tileflow.api.choices import compare
from tileflow.api.models import chosen_options
from tileflow.cli import examination as doctor
from tileflow.options.files import from_lines
from tileflow.options.options import DEFAULTS, Options, declarations
from tileflow.options.reference.table import CALLS, SECTIONS
from tileflow.strategy import stages
from tileflow.system.errors import OptionError


def loaded(text: str, tmp_path: Path, name: str = "poptorch.conf", **changes) -> Options:
    path = tmp_path / name
    path.write_text(text)
    return Options.load(path, **changes)


def test_lines(tmp_path):
    """Every form that a script has of a line: both spellings, prefixes, calls in a row, keywords, words, objects, comments."""
    options = loaded("""
        # the tutorial's
        deviceIterations(4)            # calls
        options.Training.gradientAccumulation(8).setAutomaticLossScaling(True)
        opts.Precision.enable_stochastic_rounding()
        Precision.setPartialsType(dtype=torch.half)
        outputMode(poptorch.OutputMode.EveryN, output_return_period=2)
        TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
        setAvailableMemoryProportion({"IPU0": 0.3})
        _Popart.set("automaticLossScalingSettings.binEdgeLocation", 0.25)
        random_seed(7)
        replicationFactor(4); inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
        learning_rate(1e-2)
        scale(-0.5)
        frozen(["conv*", 'b'])
        useOfflineIpuTarget(21)
    """.replace("; ", "\n"), tmp_path)
    assert options == Options(
        device_iterations=4, gradient_accumulation=8, automatic_loss_scaling="histogram", stochastic_rounding=True, partials="float16",
        output_mode="every_n", output_return_period=2, optimizer_off_chip=True, available_memory_proportion={"IPU0": 0.3}, bin_edge_location=0.25,
        seed=7, replication_factor=4, input_group_size=2, input_group_type="orthogonal", learning_rate=0.01, scale=-0.5, frozen=("conv*", "b"),
        machine="bow")
    assert options.given("seed")
    assert not options.given("seed", files=False)


@pytest.mark.parametrize(("strategy", "wanted"), [
    ('PipelinedExecution("B1", "B2")', {"strategy": "pipelined", "stages": ("B1", "B2")}),
    ('PipelinedExecution(poptorch.Stage("B1", "C").ipu(0), poptorch.Stage("B2").ipu(1))', {"strategy": "pipelined", "stages": ("B1+C@0", "B2@1")}),
    ("PipelinedExecution(poptorch.AutoStage.AutoIncrement)", {"strategy": "pipelined", "auto_stage": "auto_increment"}),
    ("PipelinedExecution()", {"strategy": "pipelined"}),
    ('ShardedExecution(poptorch.Stage("B1"), "B2")', {"strategy": "sharded", "stages": ("B1", "B2")}),
    ('SerialPhasedExecution(poptorch.Phase("a", "b"), poptorch.Phase(poptorch.Stage("c")).ipus(0), ["d", "e"], "f")'
     ".setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase).useSeparateBackwardPhase()",
     {"strategy": "serial_phased", "stages": ("a+b", "c@0", "d+e", "f"), "tensors_liveness": "off_chip_after_each_phase",
      "separate_backward_phase": True}),
    ('SerialPhasedExecution([poptorch.Phase(poptorch.Stage("a"), poptorch.Stage("b")).ipus(0, 1), poptorch.Phase("c")])',
     {"strategy": "serial_phased", "stages": ("a@0|b@1", "c")}),
    ('SerialPhasedExecution([["a"], ["b", "c"]])', {"strategy": "serial_phased", "stages": ("a", "b+c")}),
    ('ParallelPhasedExecution(poptorch.Phase(poptorch.Stage("a", "b"), poptorch.Stage("c")).ipus(0, 2), [poptorch.Stage("d"), poptorch.Stage("e")])',
     {"strategy": "parallel_phased", "stages": ("a+b@0|c@2", "d|e")}),
    ('ParallelPhasedExecution([poptorch.Stage("a"), poptorch.Stage("b")], "c").phase(0).ipus(0, 2).phase(1).ipus(3).useSeparateBackwardPhase()',
     {"strategy": "parallel_phased", "stages": ("a@0|b@2", "c@3"), "separate_backward_phase": True}),
    ('ParallelPhasedExecution(poptorch.Phase("a").ipus(0), poptorch.Phase("b").ipus(1)).sendTensorsOffChipAfterFwd(True)',
     {"strategy": "parallel_phased", "stages": ("a@0", "b@1"), "tensors_liveness": "off_chip_after_fwd"}),
])
def test_strategies(strategy, wanted, tmp_path):
    assert loaded(f"setExecutionStrategy(poptorch.{strategy})", tmp_path) == Options(**wanted)


@pytest.mark.parametrize("phases", [
    '"a", "b"', '["a"], ["b", "c"]', '[["a"], ["b", "c"]]', '(("a",), "b")', '["a", "b"]', '[Stage("a"), Stage("b")]',
    '[Stage("a"), Stage("b")], "c"', '[[Stage("a").ipu(0), Stage("b").ipu(2)], [Stage("c").ipu(1), Stage("d").ipu(3)]]',
    'Phase("a", "b"), Stage("c").ipu(1)', '[Phase("a"), "b", ["c"]]', 'Phase(Stage("a"), Stage("b", "c")).ipus(0, 2), Phase("d").ipus(1)',
    '"a", [Stage("b"), Stage("c")]).phase(0).ipus(2).phase(1).ipus(1, 3'])
@pytest.mark.parametrize("kind", ["SerialPhasedExecution", "ParallelPhasedExecution"])
def test_phases_are_the_same_in_python_and_in_files(kind, phases, tmp_path):
    text = f"{kind}({phases})"
    assert loaded(f"setExecutionStrategy({text})", tmp_path) == Options(**eval(text, vars(stages)).to_options())


@pytest.mark.parametrize("phases", [
    '["a", Stage("b")]', "3", "", '["a"], 3', '"a@1"', '[Stage("a"), Stage("b")]).phase(0).ipus(0', '"a").phase(1).ipus(0', '"a").phase(True).ipus(0',
    '"a").phase(0).ipus(-1'])
@pytest.mark.parametrize("kind", ["SerialPhasedExecution", "ParallelPhasedExecution"])
def test_phases_that_are_none_in_python_are_none_in_files(kind, phases, tmp_path):
    text = f"{kind}({phases})"
    with pytest.raises(OptionError):
        eval(text, vars(stages))
    with pytest.raises(OptionError, match="setExecutionStrategy: "):
        loaded(f"setExecutionStrategy({text})", tmp_path)


def test_a_pipeline_from_lines(tmp_path):
    """The tutorial's lines run, and what they compute is what one IPU does."""
    class Net(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            with nn.Block("B1"):
                x = self.a(x).relu()
            with nn.Block("B2"):
                return self.b(x)

    lines = ('Training.gradientAccumulation(4)\nsetExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("B1").ipu(0), '
             'poptorch.Stage("B2").ipu(1)))\nanchorTensor("short", "a")\n')
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((16, 4)).astype(np.float32), draw.integers(0, 3, 16)
    found = []
    for options in (loaded(lines, tmp_path), Options(gradient_accumulation=4, anchored_tensors="a")):
        net = Net()
        net.load_state_dict({k: np.linspace(-1, 1, v.size, dtype=np.float32).reshape(v.shape) for k, v in net.state_dict().items()})
        model = tileflow.training_model(net, options, optimizer=tileflow.optim.SGD(lr=0.1))
        model(x, y)
        found.append({**net.state_dict(), "anchored": model.anchored("a")})
    assert all(found[0][k].tobytes() == found[1][k].tobytes() for k in found[1])


def test_files_of_lines_go_under_what_is_given(tmp_path):
    assert loaded("epochs(3)\nseed(1)", tmp_path, "a.txt", epochs=5) == Options(epochs=5, seed=1)


@pytest.mark.parametrize(("text", "says"), [
    ("deviceIteratons(4)", "line 1: There is no option 'deviceIteratons'; did you mean deviceIterations?"),
    ("gradientAccumulation(4)", "did you mean Training.gradientAccumulation?"),
    ("lr(0.1)", "did you mean learning_rate?"),
    ("\n# x\ndeviceIterations(0)", "line 3: Option device_iterations must be a whole number, at least 1, not 0."),
    ("deviceIterations('4')", "not '4'"),
    ("deviceIterations(True)", "not True"),
    ("deviceIterations(1, 2)", "deviceIterations takes (value), not (1, 2)."),
    ("deviceIterations()", "takes (value), not ()."),
    ("deviceIterations(poptorch.OutputMode.Sum)", "cannot be poptorch.OutputMode.Sum"),
    ("epochs(torch.half)", "epochs takes one number, text, list or table: a whole number, at least 0."),
    ("outputMode(poptorch.OutputMode.Some)", "needs a poptorch.OutputMode (Final, EveryN, All, Sum, Default), not poptorch.OutputMode.Some."),
    ("outputMode(poptorch.ReductionType.Sum)", "needs a poptorch.OutputMode"),
    ("outputMode(poptorch.OutputMode.EveryN)", "EveryN anchor must have output_return_period set to valid positive integer."),
    ("setAvailableMemoryProportion({'CPU0': 0.5})", "must start with 'IPU', not 'CPU0'"),
    ("Precision.setPartialsType(torch.int32)", "should be either torch.float or torch.half"),
    ("Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction)", "must be set to poptorch.ReductionType.Mean or"),
    ("inputReplicaGrouping(2, poptorch.CommGroupType.All)", "input_group_type cannot be All."),
    ("useOfflineIpuTarget(3)", "ipu_version must be 1, 2 or 21, not 3."),
    ("Training.setAutomaticLossScaling(1)", "needs True or False, not 1."),
    ("epochs(1)\n\nepochs(2)", "line 3: Option epochs is set twice, first on line 1."),
    ("setExecutionStrategy('pipelined')", "needs one of poptorch.PipelinedExecution(...), "),
    ("setExecutionStrategy(poptorch.SerialPhasedExecution())", "There is currently no AutoStage for PhasedExecution"),
    ("setExecutionStrategy(poptorch.SerialPhasedExecution(poptorch.Phase(poptorch.Stage('a'), 'b')))", "a phase takes stages, or names of blocks"),
    ("setExecutionStrategy(poptorch.SerialPhasedExecution(poptorch.Phase(poptorch.Stage('a'), poptorch.Stage('b')).ipus(1)))",
     "Phase contains 2 stages but you provided 1 ipus"),
    ("setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage()))", "a stage needs at least one block"),
    ("setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage('a').ipu(-1)))", "an IPU is named by .ipu(n), a whole number from 0 on"),
    ("setExecutionStrategy(poptorch.PipelinedExecution('a@1'))", "without +, @, | or commas, not 'a@1'"),
    ("setExecutionStrategy(poptorch.PipelinedExecution('a').stage('a'))", "cannot be said here; give Stage(...).ipu(n)"),
    ("setExecutionStrategy(poptorch.ParallelPhasedExecution('a').setTensorsLiveness(poptorch.Liveness.AlwaysLive))",
     "it has useSeparateBackwardPhase and sendTensorsOffChipAfterFwd and phase(i).ipus(n, ...)."),
    ("setExecutionStrategy(poptorch.SerialPhasedExecution('a', 'b').phase(2).ipus(0))", "a phase is named by .phase(i), a whole number from 0 to 1."),
    ("setExecutionStrategy(poptorch.SerialPhasedExecution('a', 'b').phase(1))", "where the stages of a phase are is said by .ipus(n, ...)."),
    ("setExecutionStrategy(poptorch.SerialPhasedExecution('a', 'b').phase(1).ipus(0, 1))", "Phase contains 1 stages but you provided 2 ipus"),
    ("setExecutionStrategy(poptorch.PipelinedExecution('a', 'b').phase(1).ipus(0))", "PipelinedExecution(...).phase cannot be said here"),
    ("setExecutionStrategy(poptorch.SerialPhasedExecution('a').useSeparateBackwardPhase(1))", "takes True or False"),
    ("setExecutionStrategy(poptorch.PipelinedExecution(3))", "stages are poptorch.Stage"),
    ("Distributed.configureProcessId(0, 2)",
     "processes that train together are started by `tileflow launch` or mpiexec"),
    ("syncPattern(poptorch.SyncPattern.Half)", "needs a poptorch.SyncPattern (Full, SinglePipeline, ReplicaAndLadder), not"),
    ("connectionType(3)", "needs a poptorch.ConnectionType (Always, OnDemand, Never), not 3."),
    ("_Popart.set('autoRecomputation', 5)", "needs 0 (None), 1 (Standard), 2 (NormOnly), 3 (Pipeline) or 4 (RecomputeAll), not 5."),
    ("_Popart.set('engineOption', {})", "Unknown option 'engineOption' of _Popart.set. Did you mean engineOptions"),
    ("_Popart.set('lstmOptions', 3)", "needs a table of names and values, not 3."),
    ("_Popart.set('enableOutlining')", "_Popart.set takes a name and a value."),
    ("logDir()", "logDir takes (log_dir), not ()."),
    ("disableModuleNamescope(True)", "disableModuleNamescope takes (), not (True)."),
    ("Precision.autocastPolicy(poptorch.autocasting.Policy(fp16=['bmm'], fp32=['bmm']))", "'bmm' must be the name of an operator, in one of "),
    ("TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChip(False))", "has minElementsForOffChip"),
    ("TensorLocations.setOptimizerLocation(False)", "needs a poptorch.TensorLocationSettings(), not False."),
    ("__import__('os').system('true')", "There is no option '__import__'"),
    ("epochs(__import__('os').getpid())", "takes one number"),
    ("epochs(2 + 3)", "nothing is computed. The line is: epochs(2 + 3)"),
    ("epochs(f'{1}')", "nothing is computed"),
    ("epochs([x for x in (1,)])", "nothing is computed"),
    ("epochs(*[3])", "without stars"),
    ("epochs(**{'n': 3})", "without stars"),
    ("epochs((lambda: 3)())", "what is called must be a name"),
    ("epochs = 3", "SyntaxError, invalid syntax"),
    ("epochs", "it is no call"),
    ("epochs(3", "SyntaxError, '(' was never closed"),
    ("epochs(" + "[" * 300 + "]" * 300 + ")", "too many nested parentheses"),
    ("-" * 3000 + "1", "it cannot be parsed"),
    ("epochs(" + "-" * 3000 + "1)", "it cannot be parsed"),
    ("f" + "()" * 1900, "line 1: "),
    ("epochs(" + "1" * 5000 + ")", "it has 5,008 characters"),
])
def test_bad_lines(text, says, tmp_path):
    with pytest.raises(OptionError) as error:
        loaded(text, tmp_path)
    shown = str(error.value)
    assert f"{tmp_path / 'poptorch.conf'}, line " in shown
    assert says in shown
    assert "\n" not in shown
    assert len(shown) < 3000


IDLE = [entry for group in CALLS for entry in SECTIONS[group] if entry.idle]
"""Lines that scripts of the reference's users have, and that nothing here depends on."""


HARMLESS: dict[str, list[Any]] = {
    "connectionType": ["Never"], "syncPattern": ["ReplicaAndLadder"], "Distributed.configureProcessId": [0, 1],
    "_Popart.setPatterns": [{"a": True}, 2],
    **{f"_Popart.{name}": [False] for name in ("groupNormStridedChannelGrouping", "enableNonStableSoftmax")},
    **{f"_Popart.{name}": [{"availableMemoryProportion": "0.1"}] for name in ("convolutionOptions", "matmulOptions", "lstmOptions")},
}
"""What is given where not any value would do."""


@pytest.mark.parametrize("entry", IDLE, ids=lambda entry: entry.name)
def test_lines_without_effect_are_taken_with_a_sentence(entry, tmp_path):
    arguments = HARMLESS.get(entry.name, ["a value"] * len(inspect.signature(entry.take).parameters))
    given = ", ".join(map(repr, arguments))
    key = entry.name.removeprefix("_Popart.")
    for line in (f"{entry.name}({given})", *([f"_Popart.set({key!r}, {given})"] if key != entry.name and len(arguments) == 1 else [])):
        with pytest.warns(UserWarning, match="has no effect") as said:
            assert loaded(f"seed(3)\n{line}\n", tmp_path) == Options(seed=3)
        assert [str(w.message).partition(" has no effect: ")[2] for w in said] == [entry.says]
    with pytest.warns(UserWarning, match="has no effect"):
        assert loaded(json.dumps({entry.name: arguments, "seed": 3}), tmp_path, "a.json") == Options(seed=3)


REFUSED = {
    "numbers": ["_Popart.automaticLossScalingSettings.gradientTensorTrackingMethod(1)", "_Popart.groupNormStridedChannelGrouping(True)",
                "_Popart.enableNonStableSoftmax(True)", "_Popart.enableStableNorm(False)", "enableStableNorm(False)",
                "Distributed.configureProcessId(1, 2)", "Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction)",
                "Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.PostAndLoss)",
                "anchorTensor('a', 'b', poptorch.OutputMode.Sum)",
                *(f"_Popart.set('{name}', {{'partialsType': 'half'}})" for name in ("convolutionOptions", "matmulOptions", "lstmOptions"))],
    "hardware": ["useIpuId(0)", "useIpuModel(False)"],
    "no option, but what an object is asked or told": ["loadFromFile('a.conf')", "from_json('{}')", "clone()", "toDict()", "defaultOutputMode()",
                                                      "Distributed.processId()", "Distributed.numProcesses()", "_Popart.set('a', 1)"],
}
"""Lines of the reference's options that end with a sentence, by why."""


@pytest.mark.parametrize("line", [line for lines in REFUSED.values() for line in lines])
def test_what_would_change_numbers_or_names_hardware_is_refused(line, tmp_path, recwarn):
    with pytest.raises(OptionError):
        loaded(line, tmp_path)
    assert not recwarn, "what is refused is not said to have no effect"


def test_nothing_else_is_refused():
    """Each of the reference's lines is taken, or is refused for one of the two reasons."""
    refused = {entry.name for group in CALLS for entry in SECTIONS[group] if entry.take is None}
    named = {line.partition("(")[0] for lines in REFUSED.values() for line in lines}
    assert refused <= named
    assert {entry.name for entry in IDLE} >= {
        "enableExecutableCaching", "logDir", "modelName", "maxRepeatLogs", "logCycleCount", "enableProfiling", "Jit.traceModel", "connectionType",
        "syncPattern", "Training.setConvolutionDithering", "_Popart.enableOutlining", "_Popart.setPatterns", "_Popart.constantWeights"}


def test_norms_alone_computed_again_and_activations_shared_out_change_no_numbers(tmp_path):
    assert loaded("_Popart.set('autoRecomputation', 2)", tmp_path) == Options(recompute=True)
    location = "TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useReplicatedTensorSharding(True))"
    with pytest.warns(UserWarning, match="useReplicatedTensorSharding has no effect: replicas share out weights and optimizer state"):
        assert loaded(location, tmp_path) == Options()


@pytest.mark.filterwarnings("default")
def test_a_command_goes_on_with_the_sentences(tmp_path, capsys):
    path = tmp_path / "poptorch.conf"
    path.write_text("options.logDir('logs')\noptions._Popart.set('enableOutlining', False)\noptions.Jit.traceModel(True)\nseed(1)\n")
    assert cli.main(["compile", "digits_cnn.onnx", "--machine", "gc200", "--options", str(path)]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert [line.split(" has no effect: ")[0] for line in said] == [
        "tileflow: warning: logDir", "tileflow: warning: _Popart.set('enableOutlining')", "tileflow: warning: Jit.traceModel"]


def test_one_group_is_the_default_and_accepted(tmp_path):
    """Given by code, flag, keyword and file; a group of two still needs two replicas."""
    x, y = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)
    net = nn.Linear(1, 1, bias=False)
    for model in (tileflow.training_model(net, loss="mse", input_group_size=1), tileflow.inference_model(net, input_group_size=1)):
        assert model(*((x, y) if hasattr(model, "set_optimizer") else (x,))) is not None
    assert tileflow.compile("digits_cnn.onnx", machine="gc200", input_group_size=1).fits
    assert cli.main(["compile", "digits_cnn.onnx", "--machine", "gc200", "--input-group-size", "1"]) == 0
    assert loaded("inputReplicaGrouping(1, poptorch.CommGroupType.Consecutive)", tmp_path) == Options()
    with pytest.raises(OptionError, match="input_group_size has no effect without replicas"):
        tileflow.training_model(net, loss="mse", input_group_size=2)
    with pytest.raises(OptionError, match="input_group_type has no effect without replicas"):
        tileflow.training_model(net, loss="mse", input_group_type="orthogonal")


POLICY = """Precision.autocastPolicy(poptorch.autocasting.Policy(
fp16=['addbmm', 'addmm', 'baddbmm', 'bmm', 'conv2d', 'convolution', 'matmul', 'mm', 'addr'], fp32=['softmax'],
promote=['addcdiv', 'atan2', 'bilinear', 'cat', 'dot', 'stack', 'tensordot'], demote=[]))""".replace("\n", " ")
"""Much of the reference's own default policy, whose names are one operator here in places, or none."""


def test_policies_of_files_are_of_any_model(tmp_path):
    """Names of one operator are merged, those of no operator are told, and a model need not have them all; nor need anything be cast."""
    options = loaded(POLICY, tmp_path)
    with pytest.warns(UserWarning, match="autocast: ") as said:
        made = tileflow.compile("digits_cnn.onnx", options.clone(precision="16-mixed"), training=False)
    told = sorted({str(w.message) for w in said})
    products = "MatMul or FusedMatMul or Gemm or SerializedMatMul or SerializedGemm"
    assert told == [
        *(f"autocast: '{name}' is no operator of tileflow's and fits no name of a node, so it has no effect."
          for name in ("addcdiv", "addr", "atan2")),
        "autocast: addbmm (fp16), addmm (fp16), baddbmm (fp16), bmm (fp16), matmul (fp16), mm (fp16), bilinear (promote), dot (promote), "
        f"tensordot (promote) are one operator here, {products}, which is in one set: fp16."]
    assert {n.op.name for n in made.program.micro.nodes} >= {"Cast"}
    tileflow.compile("digits_cnn.onnx", options, training=False)                       # nothing is cast: a file may say more than is used
    for asked, says in (({"atan2": "promote"}, "'atan2' is no operator and fits no name"),
                        ({"Concat": "promote"}, "the model has no operator Concat")):
        with pytest.raises(OptionError, match=says):
            tileflow.compile("digits_cnn.onnx", precision="16-mixed", autocast=asked, training=False)
    with pytest.raises(OptionError, match="Option autocast has no effect, for nothing is cast"):
        tileflow.compile("digits_cnn.onnx", autocast={"bmm": "fp32"}, training=False)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | st.from_regex(r"[a-zA-Z_.]{1,12}\([-0-9a-z\"'\[\]{}(),. =:]{0,20}\)", fullmatch=True))
def test_any_text_is_options_or_a_sentence(text):
    said, found = None, {}
    try:
        found = from_lines(text, declarations())
    except OptionError as error:
        said = str(error)
    if said is not None:
        assert "\n" not in said
        assert said.startswith("line ")
    for name, value in found.items():
        assert declarations()[name].check(value) == value


def test_poptorchs_names_in_tables(tmp_path):
    """Its own JSON: a list is several arguments, a text may name an enum's member."""
    text = {"deviceIterations": 4, "Training.gradientAccumulation": 8, "outputMode": ["OutputMode.EveryN", 2],
            "setAvailableMemoryProportion": {"IPU0": 0.3}, "epochs": 3}
    options = loaded(json.dumps(text), tmp_path, "o.json")
    assert options == Options(device_iterations=4, gradient_accumulation=8, output_mode="every_n", output_return_period=2, epochs=3,
                              available_memory_proportion={"IPU0": 0.3})
    table = loaded('"Training.gradientAccumulation" = 8\ndeviceIterations = 4', tmp_path, "o.toml")
    assert table == Options(gradient_accumulation=8, device_iterations=4)
    with pytest.raises(OptionError, match="gradient_accumulation is set twice"):
        loaded('"Training.gradientAccumulation" = 8\ngradient_accumulation = 8', tmp_path, "o.toml")
    with pytest.raises(OptionError, match=r"o\.toml: useIpuId: there is no IPU"):
        loaded("useIpuId = 3", tmp_path, "o.toml")


@pytest.fixture
def defaults(tmp_path, monkeypatch):
    path = tmp_path / "defaults.conf"
    path.write_text("Training.gradientAccumulation(4)\nlearning_rate(0.25)\nepochs(2)\nmachine('gc2')\noptimizer('sgd')\n")
    monkeypatch.setenv(DEFAULTS, str(path))
    return path


def test_the_environments_file_counts_where_nobody_says_otherwise(defaults, tmp_path):
    """Call before file before environment; in functions and commands alike, and never in Options as such."""
    assert Options() == Options.load(_empty(tmp_path))
    chosen = chosen_options("train", Options(epochs=7), {"optimizer": "adam"})
    assert (chosen.gradient_accumulation, chosen.learning_rate, chosen.epochs, chosen.optimizer) == (4, 0.25, 7, "adam")
    assert not chosen.given("learning_rate", files=False)
    (tmp_path / "mine.toml").write_text("learning_rate = 0.5\n")
    for command in ("train", "compile", "tune"):
        options = cli.options_of(cli.parse([command, "m.onnx", "--options", str(tmp_path / "mine.toml"), "--micro-batch-size", "3"]))
        assert (options.learning_rate, options.machine, options.gradient_accumulation, options.micro_batch_size) == (0.5, "gc2", 4, 3)
    assert chosen.filled({"epochs": 9, "learning_rate": 0.125}).learning_rate == 0.125          # a run's folder goes before
    assert chosen.filled({"epochs": 9}).epochs == 7


def _empty(folder: Path) -> Path:
    (folder / "empty.conf").write_text("# nothing\n\n")
    return folder / "empty.conf"


def test_a_model_trains_with_them(defaults):
    """Four micro-batches per update, by SGD of rate 1/4, and the weights say so."""
    x, y = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)
    net = nn.Linear(1, 1, bias=False)
    model = tileflow.training_model(net, loss="mse")
    before = model.state_dict()["weight"].item()
    model(x, y)
    assert model.options.gradient_accumulation == 4
    assert model.state_dict()["weight"].item() == pytest.approx(before - 0.25 * 2 * before)


def test_inspecting_and_comparing_take_them(defaults, capsys):
    """The batch that shapes are shown for, and the chip that precisions are compared on."""
    defaults.write_text("micro_batch_size(7)\nmachine('gc2')\n")
    assert cli.main(["inspect", "digits_cnn.onnx", "--verbose"]) == 0
    assert "[7, 1, 8, 8]" in capsys.readouterr().out
    found = [compare("digits_cnn.onnx", training=False)[0].cycles, compare("digits_cnn.onnx", training=False, machine="gc2")[0].cycles,
             compare("digits_cnn.onnx", training=False, machine="gc200")[0].cycles]
    assert found[0] == found[1] != found[2]


def test_the_doctor_says_what_they_are(defaults):
    facts = dict(doctor.examine().facts)
    assert facts["default options"].startswith(f"{defaults} ({DEFAULTS}): Options(gradient_accumulation=4, epochs=2, optimizer='sgd'")
    defaults.write_text("epochs(-1)")
    found = doctor.examine()
    assert [p.what for p in found.problems if p.broken] == [
        f"{DEFAULTS}: Options file {defaults}, line 1: Option epochs must be a whole number, at least 0, not -1."]
    with pytest.raises(OptionError, match=f"{DEFAULTS}: Options file .* line 1"):
        chosen_options("train", None, {})
