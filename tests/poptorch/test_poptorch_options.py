"""`poptorch.Options` and execution strategies: both spellings, chains, values that are read, files, what is frozen,
what is refused."""
from __future__ import annotations

import copy
import json
import pickle
import warnings

import pytest
from peers import needs

import tileflow
from tileflow.options.settings import FrozenOptionsError

torch = needs("torch")
poptorch = pytest.importorskip("tileflow.poptorch", reason="needs torch, which is not installed: pip install torch")


def said() -> poptorch.Options:
    """What a script may say."""
    options = poptorch.Options().deviceIterations(10).replication_factor(4)
    options.Training.gradientAccumulation(8).setAutomaticLossScaling(True)
    options.outputMode(poptorch.OutputMode.EveryN, 5)
    options.Precision.setPartialsType(torch.half)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
    on_host = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(on_host.minElementsForOffChip(4))
    options.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().min_elements_for_off_chip(8))
    options._Popart.set("automaticLossScalingSettings.binEdgeLocation", 0.25)
    options.anchorTensor("a", "fc1").anchor_tensor("b", "fc2")
    return options


def test_what_is_said_is_tileflows():
    assert said().tileflow() == tileflow.Options(
        device_iterations=10, replication_factor=4, gradient_accumulation=8, automatic_loss_scaling="histogram",
        output_mode="every_n",
        output_return_period=5, partials="float16", input_group_size=2, input_group_type="orthogonal",
        optimizer_off_chip=True,
        min_elements_off_chip={"optimizer": 4, "weights": 8}, bin_edge_location=0.25, anchored_tensors=("fc1", "fc2"))


def test_values_are_read_by_their_names():
    options = said()
    assert (options.device_iterations, options.Training.gradient_accumulation, options.replication_factor) == (10, 8, 4)
    assert options.device_iterations * options.Training.gradient_accumulation == 80
    assert (options.output_mode, options.output_return_period) == (poptorch.OutputMode.EveryN, 5)
    assert options.input_cgt is poptorch.CommGroupType.Orthogonal
    assert (options.log_dir, options.connection_type,
            options.broadcast_buffers) == (".", poptorch.ConnectionType.Always, True)
    assert options.anchored_tensors == {"a": "fc1", "b": "fc2"}
    assert (options.Distributed.processId, options.Distributed.num_processes) == (0, 1)
    assert not options.exists("random_seed")
    assert str(options).startswith("Options(")
    assert "replication_factor=4" in str(options)
    options.device_iterations = 20
    options.Training.gradient_accumulation = 4
    assert (options.device_iterations, options.Training.gradient_accumulation) == (20, 4)
    assert options.toDict()["device_iterations"] == 20


def test_copies_change_and_frozen_ones_do_not():
    options = said()
    other = options.clone()
    other.deviceIterations(5).Training.gradientAccumulation(1)
    for made in (copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert made.tileflow() == options.tileflow()
    poptorch.DataLoader(options, torch.utils.data.TensorDataset(torch.zeros(4000)))
    for change in (lambda: options.deviceIterations(5), lambda: options.Training.gradientAccumulation(5),
                   lambda: setattr(options, "log_dir", "x"), lambda: options._Popart.checkIsFrozen()):
        with pytest.raises(AttributeError, match="Can't modify frozen Options") as error:
            change()
        assert isinstance(error.value, FrozenOptionsError)
    assert options.device_iterations == 10
    options.clone().deviceIterations(6)


def test_the_default_output_mode():
    options = poptorch.Options()
    assert options.defaultOutputMode()
    model = poptorch.trainingModel(torch.nn.Linear(2, 2), options)
    assert options.defaultOutputMode(), "a model has a copy"
    assert model.options.output_mode == poptorch.OutputMode.Final
    assert poptorch.inferenceModel(torch.nn.Linear(2, 2), options).options.output_mode == poptorch.OutputMode.All


@pytest.mark.parametrize(("call", "says"), [
    (lambda o: o.TensorLocations.numIOTiles(33), r"numIOTiles must be an even number between 32 and 192\."),
    (lambda o: o.outputMode(poptorch.OutputMode.EveryN),
     "EveryN anchor must have output_return_period set to valid positive integer"),
    (lambda o: o.inputReplicaGrouping(2, poptorch.CommGroupType.All), "input_group_type cannot be All"),
    (lambda o: o.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive),
     "input_group_size cannot be larger than replication_factor"),
    (lambda o: o.replicationFactor(4).inputReplicaGrouping(3, poptorch.CommGroupType.Consecutive),
     "input_group_size must be a factor of"),
    (lambda o: o.setAvailableMemoryProportion({"X": 0.1}), "must start with 'IPU'"),
    (lambda o: o.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction),
     "must be set to"),
    (lambda o: o.Precision.setPartialsType(torch.int8), r"should be either torch\.float or torch\.half"),
    (lambda o: o.deviceIterations("4"), "device_iterations must be a whole number"),
    (lambda o: o.deviceIterations(1, 2), r"deviceIterations takes \(value\)"),
    (lambda o: o.outputMode(poptorch.ReductionType.Sum), r"needs a poptorch\.OutputMode"),
    (lambda o: o._Popart.set("enableOutlinin", True), "Unknown option 'enableOutlinin'"),
    (lambda o: o.setExecutionStrategy("pipelined"), r"needs a poptorch\.PipelinedExecution"),
    (lambda o: setattr(o, "deviceIterations", 3), "Invalid option deviceIterations"),
    (lambda o: poptorch.TensorLocationSettings().minElementsForOffChip(0),
     "min_elements must be a whole number of at least 1")])
def test_refused(call, says):
    """As a ValueError and as an AssertionError, for the reference has both; what is beside them is as it was."""
    options = poptorch.Options()
    with pytest.raises(AssertionError, match=says):
        call(options)
    with pytest.raises(ValueError, match=says):
        call(poptorch.Options())
    assert options.tileflow() in (tileflow.Options(), tileflow.Options(replication_factor=4))
    assert poptorch.Options().TensorLocations.numIOTiles(32) is not None


def test_what_has_no_effect_says_so():
    with pytest.warns(UserWarning, match="syncPattern has no effect: "):
        options = poptorch.Options().syncPattern(poptorch.SyncPattern.SinglePipeline)
    assert options.sync_pattern == poptorch.SyncPattern.SinglePipeline
    assert options.tileflow() == tileflow.Options()


def test_the_seed_is_pytorchs_too():
    poptorch.Options().randomSeed(42)
    found = torch.rand(3)
    torch.manual_seed(42)
    assert torch.equal(found, torch.rand(3))


def test_files(tmp_path):
    """Lines are cumulative, and parsed: nothing in them is executed."""
    path = tmp_path / "poptorch.conf"
    path.write_text("# a comment\ndeviceIterations(1)\nsetExecutionStrategy(poptorch.ShardedExecution())\n"
                    "Training.gradientAccumulation(3)\n")
    options = poptorch.Options().replicationFactor(2).loadFromFile(path)
    assert options.tileflow() == tileflow.Options(device_iterations=1, strategy="sharded", gradient_accumulation=3,
                                                  replication_factor=2)
    path.write_text("deviceIterations(1)\nprint('no')\n")
    with pytest.raises(poptorch.ConfigFileError, match=r"line 2: .*\(poptorch\.conf\)"):
        options.loadFromFile(path)
    with pytest.raises(poptorch.ConfigFileError, match="cannot be read"):
        options.loadFromFile(tmp_path / "none.conf")
    (tmp_path / "all.toml").write_text("[training]\nepochs = 3\n")
    assert poptorch.Options().loadFromFile(tmp_path / "all.toml").tileflow().epochs == 3


def test_json_and_the_environment(monkeypatch):
    text = json.dumps({"deviceIterations": 4, "Training.gradientAccumulation": 8,
                       "outputMode": ["OutputMode.EveryN", 2], "connectionType": "ConnectionType.OnDemand"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = poptorch.Options().from_json(text)
        monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
        assert poptorch.Options().tileflow() == options.tileflow()
    assert options.tileflow() == tileflow.Options(device_iterations=4, gradient_accumulation=8, output_mode="every_n",
                                                  output_return_period=2)
    for wrong, says in (("{", "no JSON"), ("[1]", "not a list"),
                        ('{"deviceIteration": 3}', "no option 'deviceIteration'"),
                        ('{"deviceIterations": 0}', "at least 1")):
        monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", wrong)
        with pytest.raises(ValueError, match=f"POPTORCH_DEFAULT_OPTIONS: .*{says}"):
            poptorch.Options()


# ---- strategies

def words(strategy) -> dict:
    return poptorch.Options().setExecutionStrategy(strategy).tileflow().tables()["execution"]


def test_strategies():
    assert words(poptorch.PipelinedExecution(poptorch.Stage("B1").ipu(0),
                                             "B2")) == {"strategy": "pipelined", "stages": ["B1@0", "B2"]}
    assert words(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)) == {
        "strategy": "sharded", "auto_stage": "auto_increment"}
    strategy = poptorch.PipelinedExecution("B1", "B2")
    options = poptorch.Options().setExecutionStrategy(strategy)
    strategy.stage("B2").ipu(3)                                 # later than it was set, as there
    assert options.tileflow().stages == ("B1", "B2@3")
    assert options.clone().tileflow().stages == ("B1", "B2@3")
    phased = poptorch.SerialPhasedExecution(poptorch.Phase(poptorch.Stage("A"), poptorch.Stage("A2")), ["B", "B2"], "C")
    phased.phase(0).ipus(0, 1)
    phased.setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase).use_separate_backward_phase()
    assert words(phased) == {"strategy": "serial_phased", "stages": ["A@0|A2@1", "B+B2", "C"],
                             "tensors_liveness": "off_chip_after_each_phase", "separate_backward_phase": True}
    parallel = poptorch.ParallelPhasedExecution([poptorch.Stage("a").ipu(0), poptorch.Stage("b").ipu(2)],
                                                [poptorch.Stage("c").ipu(1)])
    assert words(parallel.sendTensorsOffChipAfterFwd()) == {"strategy": "parallel_phased", "stages": ["a@0|b@2", "c@1"],
                                                            "tensors_liveness": "off_chip_after_fwd"}


@pytest.mark.parametrize(("call", "says"), [
    (lambda: poptorch.PipelinedExecution("B1", "B1"), "B1 associated with more than one stage"),
    (lambda: poptorch.PipelinedExecution("B1").stage("B2"), "Unknown block B2"),
    (lambda: poptorch.Phase(poptorch.Stage("A")).ipus(0, 1), "Phase contains 1 stages but you provided 2 ipus"),
    (lambda: poptorch.SerialPhasedExecution(),
     "There is currently no AutoStage for PhasedExecution, please explicitly specify the phases"),
    (lambda: words(poptorch.ParallelPhasedExecution(poptorch.Phase("A").ipus(1))),
     "When phases are executed in parallel: even phases must run on even IPUs and odd phases on odd IPUs"),
    (lambda: poptorch.Stage(3), "names of blocks"), (lambda: poptorch.Stage("A").ipu(-1), "a number from 0 on"),
    (lambda: poptorch.PipelinedExecution("B1").phase(0), "no attribute"),
    (lambda: poptorch.SerialPhasedExecution("A").setTensorsLiveness(1), r"needs a poptorch\.Liveness")])
def test_strategies_that_are_none(call, says):
    with pytest.raises((AssertionError, AttributeError), match=says):
        call()


def test_processes_know_their_numbers():
    from tileflow import collective
    from tileflow.collective.communicator import Communicator

    class Second(Communicator):
        rank, size, hosts = 1, 3, ("a", "a", "a")

        def allgather(self, send, what):
            raise AssertionError("nothing is sent")

        def fail(self, cause):
            raise AssertionError("nothing fails")
    try:
        collective.use(Second())
        found = poptorch.Options().Distributed
        assert (found.processId, found.numProcesses, found.process_id, found.num_processes) == (1, 3, 1, 3)
    finally:
        collective.use(None)
