"""`trainingModel`, `inferenceModel` and what a module's `forward` says: beside PyTorch, over stages, replicas and
output modes."""
from __future__ import annotations

import copy
import datetime
import pickle
import warnings

import pytest
from paths import exhaustive, rare
from peers import needs

torch = needs("torch")
needs("onnxscript")
poptorch = pytest.importorskip("tileflow.poptorch", reason="needs torch, which is not installed: pip install torch")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (torch.nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        with poptorch.Block("A"):
            x = self.a(x).relu()
        with poptorch.Block("B", ipu_id=1):
            x = poptorch.recomputationCheckpoint(self.b(x)).relu()
        with poptorch.Block("C"):
            x = poptorch.set_available_memory(self.c(x), 0.2).tanh()
        with poptorch.Block("D"):
            return poptorch.serializedMatMul(x, self.d.weight, poptorch.MatMulSerializationMode.OutputChannels, 2)


class WithLoss(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x, y=None):
        scores = self.net(x)
        if y is None:
            return scores
        with poptorch.Block("D"):
            return scores, torch.nn.functional.cross_entropy(scores, y)


def made(seed: int = 0) -> WithLoss:
    torch.manual_seed(seed)
    return WithLoss(Net())


def rows(count: int):
    torch.manual_seed(1)
    return torch.randn(count, 4), torch.randint(0, 4, (count,))


STRATEGIES = {
    "blocks": lambda: poptorch.PipelinedExecution("A", "B", "C", "D"),
    "two": lambda: poptorch.PipelinedExecution(poptorch.Stage("A", "B").ipu(0), poptorch.Stage("C", "D").ipu(1)),
    "sharded": lambda: poptorch.ShardedExecution("A", "B", "C", "D"),
    "phased": lambda: poptorch.SerialPhasedExecution("A", "B", "C", "D"),
    "parallel": lambda: poptorch.ParallelPhasedExecution([poptorch.Stage("A", "B").ipu(0)],
                                                         [poptorch.Stage("C", "D").ipu(1)])}


def trained(strategy, options=None, calls: int = 2):
    options = options or poptorch.Options()
    options.Training.gradientAccumulation(8)
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    module = made()
    model = poptorch.trainingModel(module, options, poptorch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5))
    x, y = rows(16)
    return module, [model(x, y) for _ in range(calls)], model


@pytest.mark.parametrize("names", [("two",), rare(("blocks", "sharded", "phased", "parallel"))], ids=["two", "others"])
def test_strategies_compute_the_same_bits(names):
    """As one IPU, which computes what PyTorch does."""
    wanted, returned, _ = trained(None)
    native = made()
    optimizer = torch.optim.SGD(native.parameters(), lr=0.1, momentum=0.5)
    x, y = rows(16)
    for _ in range(2):
        optimizer.zero_grad()
        native(x, y)[1].backward()
        optimizer.step()
    torch.testing.assert_close(wanted.state_dict(), native.state_dict(), rtol=1e-5, atol=1e-6)
    assert tuple(returned[0][0].shape) == (2, 4), "the last micro-batch"
    assert returned[0][1].dim() == 0
    for name in names:
        found, others, model = trained(STRATEGIES[name]())
        assert model._bridge.compiled.program.staging is not None, name
        for key, weight in wanted.state_dict().items():
            assert torch.equal(found.state_dict()[key], weight), name
        assert torch.equal(others[1][1], returned[1][1]), name


@exhaustive
def test_a_pipeline_needs_micro_batches():
    options = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution("A", "B", "C", "D"))
    options.Training.gradientAccumulation(4)
    wanted = r"(?i)gradient.?accumulation must be greater than or equal to the number of pipeline stages \(7\)"
    with pytest.raises(poptorch.Error, match=wanted):
        poptorch.trainingModel(made(), options)(*rows(4))


@exhaustive
def test_blocks_by_modules_and_functions():
    """BeginBlock, BlockFunction and names that are counted; modules with them are copied, pickled and shown."""
    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        @poptorch.BlockFunction(ipu_id=1)
        def second(self, x):
            return self.b(x)

        def forward(self, x):
            poptorch.Block.useAutoId()
            with poptorch.Block(ipu_id=0):
                x = self.a(x).relu()
            return self.second(x)
    options = poptorch.Options().deviceIterations(2).setExecutionStrategy(poptorch.PipelinedExecution())
    x = rows(4)[0]
    module = Counted()
    model = poptorch.inferenceModel(module, options)
    torch.testing.assert_close(model(x), module(x).detach())
    assert [a for a in model._bridge.compiled.program.staging.ipus] == [0, 1]

    begun = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    assert poptorch.BeginBlock(begun[1], "late", ipu_id=1) is begun[1]
    assert "(1): BeginBlock(user_id=late, ipu_id=1) Linear" in poptorch.module_repr(begun)
    for other in (copy.deepcopy(begun), pickle.loads(pickle.dumps(begun))):
        model = poptorch.inferenceModel(other, options)
        torch.testing.assert_close(model(x), begun(x).detach())
        assert len(model._bridge.compiled.program.staging.ipus) == 2
    with pytest.raises(poptorch.Error, match="module has already been assigned to a block"):
        poptorch.BeginBlock(begun[1])
    poptorch.removeBlocks(begun)
    assert "BeginBlock" not in poptorch.module_repr(begun)
    poptorch.BeginBlock(begun[1])
    with pytest.raises(poptorch.Error, match=r"module is not an instance of torch\.nn\.Module or function"):
        poptorch.BeginBlock(3)
    with pytest.raises(AssertionError, match="Invalid user_id"):
        poptorch.Block(3)


@pytest.mark.parametrize(("mode", "period", "rows_of_each"),
                         [rare("All", None, 8), rare("Final", None, 2), ("Sum", None, 2), rare("EveryN", 2, 4)])
def test_output_modes(mode, period, rows_of_each):
    module = made().eval()
    options = poptorch.Options().deviceIterations(4).outputMode(getattr(poptorch.OutputMode, mode), period)
    x = rows(8)[0]
    found = poptorch.inferenceModel(module, options)(x)
    every = module(x).detach()
    wanted = {"All": every, "Final": every[6:], "Sum": every.reshape(4, 2, 4).sum(0),
              "EveryN": torch.cat([every[2:4], every[6:]])}[mode]
    assert len(found) == rows_of_each
    torch.testing.assert_close(found, wanted)


@exhaustive
def test_replicas_and_accumulation_are_one_batch():
    x, y = rows(16)
    weights = []
    for options in (poptorch.Options(), poptorch.Options().replicationFactor(2)):
        options.Training.gradientAccumulation(16 // (2 if options.replication_factor == 2 else 1))
        module = made()
        model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), lr=0.1))
        found = model(x, y)
        assert tuple(found[1].shape) == (() if options.replication_factor == 1 else (2,))
        weights.append(module.state_dict())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)


@exhaustive
def test_training_and_inference_share_weights():
    """Without a copy, edits by the user and modes of the wrapping included."""
    module = made()
    training = poptorch.trainingModel(module)
    module.eval()
    inference = poptorch.inferenceModel(training)
    x, y = rows(4)
    for _ in range(2):
        training(x, y)
        torch.testing.assert_close(inference(x), module(x).detach())
    with torch.no_grad():
        module.net.a.weight.mul_(0.5)
    torch.testing.assert_close(inference(x), module(x).detach())
    training.load_state_dict(made(5).state_dict())
    torch.testing.assert_close(inference(x), made(5)(x).detach())
    assert torch.equal(training.state_dict()["net.a.weight"], module.net.a.weight)
    assert training.net is module.net


def test_life_of_an_executor():
    module, (x, y) = made(), rows(4)
    seen = []
    before = poptorch.registerPreCompileHook(lambda: seen.append("before"))
    after = poptorch.registerPostCompileHook(lambda: seen.append("after"))
    model = poptorch.trainingModel(module)
    with pytest.raises(RuntimeError, match=r"Model has already been wrapped in 'poptorch\.trainingModel'"):
        poptorch.trainingModel(module)
    for call in (model.copyWeightsToHost, model.copy_weights_to_device, model.getTensorNames, model.attachToDevice):
        with pytest.raises(poptorch.Error, match=r"Model has not been compiled or has been destroyed\."):
            call()
    assert model.getPerfCounters() == {n: [[]] for n in ("input", "input_complete", "output", "output_complete")}
    model.compile(x, y)
    assert (model.isCompiled(), model.isAttachedToDevice(), seen) == (True, True, ["before", "after"])
    weights = {n: w.clone() for n, w in module.state_dict().items()}
    assert all(torch.equal(w, weights[n]) for n, w in module.state_dict().items()), "nothing was trained"
    with pytest.warns(UserWarning, match=r"Call to compile\(\) ignored"):
        model.compile(x, y)
    assert model.compilationTime() > datetime.timedelta(0)
    model.detachFromDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        model.detachFromDevice()
    scores, loss = model(x, y)
    assert model.isAttachedToDevice()
    assert model.getLatency()[0] >= model.getComputeLatency()[0] > 0
    for output in (scores, loss):
        with pytest.raises(poptorch.Error, match="the backwards pass is performed automatically"):
            output.backward()
    assert model.cycleCount() > 100, "of the simulated chip"
    model.rewrapParameters()
    model.destroy()
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        model.cycleCount()
    assert not model.isCompiled()
    before.remove()
    after.remove()
    poptorch.trainingModel(module)(x, y)
    assert seen == ["before", "after"]


@pytest.mark.parametrize(("call", "says"), [
    (lambda: poptorch.inferenceModel(made(), _accumulating()),
     r"gradientAccumulation to 1 or leave it as its default value \(1\)"),
    (lambda: poptorch.inferenceModel(made(), _accumulating().setExecutionStrategy(poptorch.PipelinedExecution("A"))),
     "deviceIterations to process"),
    (lambda: poptorch.trainingModel(3), r"A model is a torch\.nn\.Module"),
    (lambda: poptorch.trainingModel(made(), 3),
     r"Invalid type: 'options' is of type <class 'int'> \(Expected poptorch\.Options\)"),
    (lambda: poptorch.inferenceModel(made())(torch.ones(2, 4, requires_grad=True)),
     "can not have requires_grad set to True"),
    (lambda: poptorch.inferenceModel(made(), poptorch.Options().deviceIterations(3))(torch.ones(4, 4)),
     r"Invalid batch dimension: In the input torch\.Size\(\[4, 4\]\), the batch dimension \(4\) must be a multiple of "
     r"Options\.deviceIterations\(3\)"),
    rare(lambda: poptorch.trainingModel(torch.nn.Linear(4, 2))(torch.ones(3, 4)), "loss")])
def test_refused(call, says):
    with pytest.raises((poptorch.Error, AssertionError), match=says):
        call()


def _accumulating() -> poptorch.Options:
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    return options


def test_anchors():
    """Values within, gradients and updated weights, by names of one's own."""
    module, (x, y) = made(), rows(4)
    options = poptorch.Options()
    options.anchorTensor("gradient", "Gradient___net.d.weight")
    options.anchorTensor("after", "UpdatedVar___net.d.weight")
    before = copy.deepcopy(module)
    model = poptorch.trainingModel(module, options)
    model(x, y)
    before(x, y)[1].backward()
    torch.testing.assert_close(model.getAnchoredTensor("gradient"), before.net.d.weight.grad)
    torch.testing.assert_close(model.getAnchoredTensor("after"),
                               before.net.d.weight.detach() - 0.01 * before.net.d.weight.grad)
    with pytest.raises(poptorch.Error, match="There is no anchored tensor 'other'"):
        model.getAnchoredTensor("other")


class Ops(torch.nn.Module):
    """Operations that PyTorch has not."""

    def forward(self, x, start):
        turned = poptorch.for_loop(3, lambda a, b: (b, a + 1), [x, 2 * x])
        chosen = poptorch.cond(start > 1, lambda a: a * 2, [x], lambda a: a - 1, [x])[0]
        sliced = poptorch.dynamic_slice(x, 0, start, 2, 1)
        updated = poptorch.dynamic_update(x, torch.ones(2, 4), 0, start, 2)
        return turned[0], chosen, sliced, updated, poptorch.nearest(x, x[1:]), poptorch.nop(x)


@exhaustive
def test_operations():
    module, x = Ops(), torch.randn(5, 4)
    for start in (torch.tensor([3]), torch.tensor([0])):
        a, chosen, sliced, updated, near, same = module(x, start)
        torch.testing.assert_close(a, 2 * x + 1)
        torch.testing.assert_close(chosen, x * 2 if start > 1 else x - 1)
        torch.testing.assert_close(sliced, x[int(start):int(start) + 2])
        wanted = x.clone()
        wanted[int(start):int(start) + 2] = 1
        torch.testing.assert_close(updated, wanted)
        assert same is x
        assert near.tolist()[1:] == [0, 1, 2, 3]
    model = poptorch.inferenceModel(module)
    for start in (torch.tensor([3]), torch.tensor([0])):
        for ours, native in zip(model(x, start), module(x, start), strict=True):
            torch.testing.assert_close(ours, native)
    with pytest.raises(poptorch.Error, match="must have same dimensionality"):
        poptorch.dynamic_update(x, x[0], 0, torch.tensor(0), 1)
    with pytest.raises(poptorch.Error, match="factor of the slicing dimension size 3"):
        poptorch.dynamic_slice(x, 0, torch.tensor(0), 3, 2)
    with pytest.raises(ValueError, match="Object is not list"):
        poptorch.for_loop(2, lambda a: a, x)


@exhaustive
def test_is_running_on_ipu():
    """True while it is compiled, and only then."""
    class Told(torch.nn.Module):
        def forward(self, x):
            seen.append(poptorch.isRunningOnIpu())
            with poptorch.NameScope("inner"):
                return x + 1
    seen: list[bool] = []
    model = poptorch.inferenceModel(Told())
    model(torch.ones(2))
    assert True in seen
    seen.clear()
    Told()(torch.ones(2))
    model(torch.ones(2))
    assert seen == [False]
    assert not poptorch.ipuHardwareIsAvailable()
    assert poptorch.ipuHardwareVersion() == 2


@exhaustive
def test_multi_conv_and_what_has_no_effect():
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Conv2d(1, 2, 3), torch.nn.Conv2d(1, 2, 3)

        def forward(self, x):
            x = poptorch.set_overlap_for_input(poptorch.ipu_print_tensor(x),
                                               poptorch.OverlapMode.OverlapAccumulationLoop)
            several = poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial)
            with several.availableMemoryProportions([0.2, 0.2]).cycle_back_off(0.2):
                return self.a(x) + self.b(x)
    module, x = Two(), torch.randn(1, 1, 6, 6)
    model = poptorch.inferenceModel(module)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = model(x)
    assert {"set_overlap_for_input"} <= {str(w.message).partition(" ")[0] for w in told}
    torch.testing.assert_close(found, module(x).detach(), rtol=1e-5, atol=1e-6)
    groups = {n.origin.hints.multi_conv for n in model._bridge.compiled.program.micro.walk() if n.op.name == "Conv"}
    assert [g.plan for g in groups] == ["serial"]
    with pytest.raises(AssertionError, match="Invalid plan type"):
        poptorch.MultiConv().planType(0)
    with pytest.raises(ValueError, match=r"Expecting torch\.float or torch\.half"):
        poptorch.MultiConv().partialsTypes(torch.int8)


def test_groups_of_replicas():
    """A parameter with a first axis of groups; the default for all others."""
    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W = torch.nn.Parameter(torch.stack([torch.eye(3), 2 * torch.eye(3)]))
            self.v = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return poptorch.identity_loss((x @ self.W + self.v) ** 2, reduction="mean")
    module = Product()
    options = poptorch.Options().replicationFactor(4).outputMode(poptorch.OutputMode.All)
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error,
                       match="W has 2 weights along its first axis, and there are 1 groups of replicas"):
        model.W.replicaGrouping(poptorch.CommGroupType.Consecutive, 4, poptorch.VariableRetrievalMode.OnePerGroup)
    model.W.replicaGrouping(poptorch.CommGroupType.Consecutive, 2, poptorch.VariableRetrievalMode.OnePerGroup)
    x = torch.randn(4, 3)
    before = [w.detach().clone() for w in module.parameters()]
    loss = model(x)
    wanted = [((x[i:i + 1] @ before[0][i // 2] + before[1]) ** 2).mean() for i in range(4)]
    torch.testing.assert_close(loss, torch.stack(wanted))
    assert not torch.equal(module.W[0] - before[0][0], module.W[1] - before[0][1])
    with torch.no_grad():
        module.W.zero_()
    torch.testing.assert_close(model(x)[0], (module.v.detach() ** 2).mean(), rtol=1, atol=1)
    assert model.W.shape == (2, 3, 3)


def test_types_of_ones_own():
    """Arguments and results of a type that PyTorch does not know."""
    class Pair:
        def __init__(self, one, other):
            self.one, self.other = one, other

    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.one
            yield struct.other

        def reconstruct(self, original_structure, tensor_iterator):
            return Pair(next(tensor_iterator), next(tensor_iterator))

    class Sum(torch.nn.Module):
        def forward(self, pair):
            return pair.one + pair.other
    poptorch.registerCustomArgParser(Pair, Parser())
    model = poptorch.inferenceModel(Sum())
    assert model(Pair(torch.ones(2), torch.ones(2))).tolist() == [2.0, 2.0]
    poptorch.registerCustomArgParser(Pair, None)
    with pytest.raises(AssertionError, match="A Pair has no parser any more"):
        model(Pair(torch.ones(2), torch.ones(2)))
    with pytest.raises(AssertionError, match="takes an ICustomArgParser"):
        poptorch.registerCustomArgParser(Pair, len)
