"""Phases as the reference's users write them: stages of one phase that read each other, blocks that are entered again, lists of stages."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_stashes import five_workers  # noqa: F401 (a fixture)

import tileflow
from tileflow import nn
from tileflow.strategy.stages import ParallelPhasedExecution, Phase, SerialPhasedExecution, ShardedExecution, Stage
from tileflow.system.errors import OptionError, TypeMismatchError

N, SIZE = 3, 10


class Crossing(nn.Module):
    """The reference's example of parallel phases: in phases 0, 1, 1, 2, 3, 3, 4, 5, 5 either IPU multiplies what the other has made."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.weights = nn.ParameterList([draw.random((SIZE, SIZE), np.float32) / 5 for _ in range(N * 6)])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        phase, weight = 0, iter(self.weights)
        with nn.Block("phase0_ipu0"):
            ins = x[:, :SIZE], x[:, SIZE:]
        for n in range(N * 3):
            out = []
            for ipu in range(2):
                with nn.Block(f"phase{phase}_ipu{ipu}"):
                    out.append((ins[ipu] @ next(weight)).relu())
            ins = out[1], out[0]
            if n % 3 != 1:                                                  # two products in one phase
                phase += 1
        with nn.Block(f"phase{N * 2 - 1}_ipu1"):
            return ins[0] + ins[1]


LISTS = [[Stage(f"phase{n}_ipu0").ipu(n % 2), Stage(f"phase{n}_ipu1").ipu(n % 2 + 2)] for n in range(2 * N)]
EXAMPLES: dict[str, dict[str, Any]] = {
    "parallel": ParallelPhasedExecution(*LISTS).to_options(),
    "separate": ParallelPhasedExecution(*LISTS, separate_backward=True).to_options(),
    "streamed": ParallelPhasedExecution(*LISTS, liveness="off_chip_after_fwd").to_options(),
    "serial": SerialPhasedExecution(*([Stage(f"phase{n}_ipu{i}") for i in range(2)] for n in range(2 * N)),
                                    liveness="off_chip_after_each_phase").to_options(),
    "sharded": ShardedExecution(*(Stage(*(f"phase{n}_ipu{i}" for n in range(2 * N))) for i in range(2))).to_options()}


def trained(threads: int, **options: Any) -> tuple[dict[str, np.ndarray], np.ndarray, Any]:
    """Weights after an update of each of two calls, what inference then returns, and the model."""
    net, rng = Crossing(), np.random.default_rng(1)
    x, y = rng.random((24, 2 * SIZE), np.float32), rng.random((24, SIZE), np.float32)
    model = tileflow.training_model(net, loss="l1", micro_batch_size=2, gradient_accumulation=3, device_iterations=2, threads=threads,
                                    learning_rate=0.1, **options)
    for i in (0, 12):
        model(x[i:i + 12], y[i:i + 12])
    found = tileflow.inference_model(net, micro_batch_size=2, device_iterations=6, threads=threads, **options)(x[:12])
    return net.state_dict(), np.asarray(found), model


@pytest.mark.parametrize("name", EXAMPLES)
def test_stages_of_one_phase_that_read_each_other_give_the_bits_of_one_ipu(name: str):
    whole = trained(1)
    for threads in (1, 2, 3, 5):
        weights, found, model = trained(threads, **EXAMPLES[name])
        np.testing.assert_array_equal(found, whole[1])
        for weight, array in whole[0].items():
            np.testing.assert_array_equal(weights[weight], array, err_msg=f"{weight}, {threads} threads")
        staging = model.program_for(np.zeros((12, 2 * SIZE), np.float32), np.zeros((12, SIZE), np.float32)).staging
        assert staging is not None
        if name == "parallel":
            assert [staging.phases.count(n) for n in range(2 * N)] == [2, 4, 2, 4, 2, 5], "turns of the stages of phases 1, 3 and 5"
            assert {p: {ipu for ipu, at in zip(staging.ipus, staging.phases, strict=True) if at == p} for p in range(2)} == {0: {0, 2}, 1: {1, 3}}


def test_the_tile_machine_copies_between_the_ipus_of_a_phase():
    """What the other stage made crosses the links, and the tiles compute what one chip does."""
    made: Any = tileflow.compile(Crossing(), training=True, machine="gc200", inputs=[(2, 2 * SIZE)], loss="l1", micro_batch_size=2,
                                 gradient_accumulation=3, **EXAMPLES["parallel"])
    assert [ipu["number"] for ipu in made.report["ipus"]] == [0, 1, 2, 3]
    assert all(ipu.sent > 0 for ipu in made.tiled.ipus)
    assert made.tile_exact().ok


class Again(nn.Module):
    """A block that is entered again after another."""

    def __init__(self) -> None:
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        with nn.Block("one"):
            x = self.a(x)
        with nn.Block("two"):
            x = self.b(x).relu()
        with nn.Block("one"):
            return self.c(x)


def again(**options: Any) -> Any:
    model = tileflow.training_model(Again(), loss="mse", gradient_accumulation=3, **options)
    program = model.program_for(np.zeros((6, 6), np.float32), np.zeros((6, 6), np.float32))
    return program.staging


def test_a_block_may_be_entered_again():
    """Where stages are in order of their phases or come one after the other; a pipeline's stages follow one another, in the reference, too."""
    assert again(strategy="sharded", stages=("one", "two")).ipus == (0, 1, 0, 1), "the last is the loss, of the last stage"
    staged = again(**SerialPhasedExecution(Phase(Stage("one"), Stage("two"))).to_options())
    assert (staged.ipus, staged.phases) == ((0, 1, 0, 1), (0, 0, 0, 0))
    with pytest.raises(OptionError, match="graph data flow must follow increasing stage order"):
        again(strategy="pipelined", stages=("one", "two"))
    with pytest.raises(OptionError, match="graph data flow must follow increasing stage order"):
        again(**SerialPhasedExecution("one", "two").to_options())


def test_phases_are_lists_or_get_their_ipus_later():
    """As the reference's guide writes them: the same options."""
    strategy = ParallelPhasedExecution(Phase(Stage("0"), Stage("1")), Phase(Stage("2"), Stage("3")))
    assert strategy.phase(0).ipus(0, 2) is strategy
    strategy.phase(1).ipus(1, 3)
    wanted = ParallelPhasedExecution([Stage("0").ipu(0), Stage("1").ipu(2)], [Stage("2").ipu(1), Stage("3").ipu(3)])
    assert strategy == wanted == ParallelPhasedExecution([[Stage("0").ipu(0), Stage("1").ipu(2)], [Stage("2").ipu(1), Stage("3").ipu(3)]])
    assert strategy.to_options()["stages"] == ("0@0|1@2", "2@1|3@3")
    assert SerialPhasedExecution(["a", "b"], Stage("c"), "d").to_options()["stages"] == ("a+b", "c", "d")


def test_phases_that_are_none_say_so():
    strategy = ParallelPhasedExecution("a", "b")
    with pytest.raises(OptionError, match="even phases must run on even IPUs and odd phases on odd IPUs"):
        strategy.phase(1).ipus(2)
    assert strategy == ParallelPhasedExecution("a", "b"), "as it was"
    with pytest.raises(OptionError, match="Phase contains 1 stages but you provided 2 ipus"):
        strategy.phase(0).ipus(0, 2)
    with pytest.raises(OptionError, match="There is no phase 2; phases are numbered from 0 to 1"):
        strategy.phase(2)
    with pytest.raises(OptionError, match="please explicitly specify the phases"):
        SerialPhasedExecution(3)
    with pytest.raises(OptionError, match="A Phase takes stages, or names of blocks"):
        SerialPhasedExecution(["a", Stage("b")])


def test_items_of_lists_are_assigned():
    """`layer[0] = begin_block(layer[0])`, as the reference's users annotate models."""
    class Chain(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x
    net = Chain()
    net.layers[1] = nn.begin_block(net.layers[1], ipu_id=1)
    net.layers[-1] = nn.Linear(6, 2)
    assert [p.shape for p in net.parameters()][-2:] == [(2, 6), (2,)]
    model = tileflow.training_model(net, strategy="sharded")
    assert model.program_for(np.zeros((4, 6), np.float32), np.zeros(4, int)).staging.ipus == (0, 1)                 # type: ignore[union-attr]
    named = nn.Sequential({"first": nn.Linear(6, 6), "second": nn.ReLU()})
    named[0] = nn.Linear(6, 4)
    assert [name for name, _ in named.named_parameters()] == ["first.weight", "first.bias"]
    values = nn.ParameterList([np.zeros(2, np.float32)])
    values[0] = np.ones(3, np.float32)
    assert values[0].shape == (3,)
    with pytest.raises(TypeMismatchError, match="ModuleList holds modules, not int"):
        net.layers[0] = 3
    with pytest.raises(TypeMismatchError, match="an item is assigned by its position, a whole number"):
        net.layers[0:1] = [nn.ReLU()]                                                                               # type: ignore[index]
    with pytest.raises(IndexError):
        net.layers[3] = nn.ReLU()
