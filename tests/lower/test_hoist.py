"""What only weights decide is computed in the prologue, also where the host's own passes made it: which nodes move, which stay, the same results."""
from __future__ import annotations

import numpy as np

from tileflow.compiler import inference
from tileflow.graph import Builder, Graph, State, TensorType, Value
from tileflow.kernels.isa import cpu
from tileflow.lower.passes import PassSetting, host_form
from tileflow.lower.plan import make_plan
from tileflow.lower.prologue import SMALL, fixed, hoist
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.runtime.executable import make_engine
from tileflow.state import Session

CHANNELS = 6
NAMES = ("scale", "bias", "mean", "var")


def state(graph: Graph, name: str, *shape: int) -> Value:
    value = Value(name, TensorType("float32", shape))
    graph.states.append(State(name, "parameter", value, group="parameter"))
    return value


def normalised() -> Program:
    """Batch normalisation in inference: on the host, an expression of which one factor follows from scale and variance."""
    graph = Graph("micro")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (2, CHANNELS, 3, 5)))
    graph.outputs = [b.BatchNormalization(x, *(state(graph, name, CHANNELS) for name in NAMES))]
    return inference(graph, Batching(2)).program


def made(program: Program, part: str) -> list[str]:
    return [node.op.name for node in program.parts[part].nodes]


def test_the_factor_of_a_normalisation_is_computed_once() -> None:
    program = normalised()
    assert made(program, "prologue") == []
    before = host_form(program, PassSetting(cpu.current()))
    after = hoist(before)
    moved = made(after, "prologue")
    assert moved
    assert sorted(made(before, "micro")) == sorted(made(after, "micro") + moved)
    crossings = [v for v in after.micro.inputs if v not in before.micro.inputs]
    assert [v.shape for v in crossings] == [(CHANNELS,)]
    assert after.links[crossings[0]] in after.parts["prologue"].outputs
    assert not any(v.name == "var" for node in after.micro.nodes for v in node.operands)
    assert make_plan(program, 1).parts["prologue"].rows


def test_it_follows_the_weights_and_gives_the_same_values() -> None:
    rng, session = np.random.default_rng(3), Session()
    x = rng.standard_normal((2, CHANNELS, 3, 5)).astype("f4")
    first = {name: rng.uniform(0.5, 2.0, CHANNELS).astype("f4") for name in NAMES}
    engine = make_engine(normalised(), session, first)
    for weights in (first, {**first, "var": first["var"] * 4}, {**first, "scale": -first["scale"]}):
        session.put(weights)
        scale, bias, mean, var = (weights[name].reshape(-1, 1, 1).astype("f8") for name in NAMES)
        exact = (x - mean) * scale / np.sqrt(var + 1e-5) + bias
        np.testing.assert_allclose(next(iter(engine.run({"x": x}).values()))[0], exact, rtol=1e-5, atol=1e-6)


def test_what_stays() -> None:
    """What an input, a draw or a result has part in, what is large, and views that others read."""
    graph = Graph("micro")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (4, 1)))
    w, large = state(graph, "w", 2, 2), state(graph, "large", SMALL // 4 + 1)
    result = b.Exp(w)
    view = b.Reshape(w, shape=(4, 1))
    graph.outputs = [result, b.Add(x, b.Exp(view)), b.Mul(view, x), b.Neg(b.Sqrt(large))]
    program = Program.of(graph, Batching(4), training=False)
    assert {v.name for v in fixed(program)} == {"w", "large"}
    after = hoist(program)
    assert made(after, "prologue") == ["Reshape", "Exp"]
    assert sorted(made(after, "micro")) == ["Add", "Exp", "Mul", "Neg", "Reshape", "Sqrt"]
    assert made(program, "prologue") == []                              # the given one stays as it is
    assert len(program.micro.nodes) == 7
    assert hoist(after) is after


def test_a_statistic_that_micro_batches_change_is_read_anew() -> None:
    graph = Graph("micro")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (2, 2)))
    graph.outputs = [b.Add(x, b.Exp(state(graph, "w", 2, 2)))]
    program = Program.of(graph, Batching(2), training=False)
    running = Value("w", TensorType("float32", (2, 2)))
    fold = Graph("fold", states=[State("w", "buffer", running, Builder(Graph()).Neg(running), "micro")])
    assert made(hoist(program), "prologue") == ["Exp"]
    changing = program.with_parts({"fold": fold})
    assert hoist(changing) is changing
