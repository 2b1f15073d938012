"""Rewrites: constant folding, common subexpressions, the split of a step into prologue, micro-step and fold; the compiler's steps."""
from __future__ import annotations

import numpy as np
import pytest
from evaluate import evaluate

from tileflow import compiler
from tileflow.graph import Builder, Graph, State, TensorType, Value, verify
from tileflow.optim import SGD
from tileflow.passes.cse import LARGEST_CONSTANT, cse
from tileflow.passes.fold import LARGEST, fold
from tileflow.passes.split import hoist, split_fold
from tileflow.program.batching import Batching
from tileflow.system.errors import OptionError

F4 = TensorType("float32", (2, 3))


def start() -> tuple[Graph, Builder, Value]:
    graph = Graph()
    b = Builder(graph)
    return graph, b, b.input("x", F4)


def state_of(graph: Graph, b: Builder, name: str, kind: str = "parameter", type: TensorType = F4) -> State:
    state = State(name, kind, Value(b.name(name), type))      # type: ignore[arg-type]
    graph.states.append(state)
    return state


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


# ---- fold

def test_constants_are_folded_and_nothing_else():
    graph, b, x = start()
    c = b.Add(b.constant(np.ones((2, 3), np.float32)), b.constant(np.full((3,), 2, np.float32)))
    graph.outputs = [b.Mul(x, b.Exp(c))]
    before = evaluate(graph, {"x": np.ones((2, 3), np.float32)})[graph.outputs[0].name]
    verify(fold(graph))
    assert names(graph) == ["Mul"]
    np.testing.assert_array_equal(evaluate(graph, {"x": np.ones((2, 3), np.float32)})[graph.outputs[0].name], before)


def test_a_result_may_fold():
    graph, b, _ = start()
    graph.outputs = [b.Neg(b.constant(np.ones(3)))]
    verify(fold(graph))
    assert not graph.nodes
    np.testing.assert_array_equal(graph.constants[graph.outputs[0]], -np.ones(3))


def test_large_and_random_nodes_stay():
    graph, b, _ = start()
    one = b.constant(np.ones(1, np.float32))
    graph.outputs = [b.Expand(one, shape=(LARGEST + 1,)), b.Dropout(one, ratio=0.5, training_mode=1)]
    verify(fold(graph))
    assert names(graph) == ["Expand", "Dropout"]


def test_folding_keeps_types_and_not_a_number():
    graph, b, _ = start()
    graph.outputs = [b.Div(b.constant(np.zeros((), np.float32)), b.constant(np.zeros((), np.float32)))]
    verify(fold(graph))
    value = graph.constants[graph.outputs[0]]
    assert value.dtype == np.float32
    assert np.isnan(value)


# ---- cse

def test_equal_nodes_are_one():
    graph, b, x = start()
    a, c = b.Add(b.Exp(x), b.scalar(2.0, x)), b.Add(b.Exp(x), b.scalar(2.0, x))
    graph.outputs = [b.Mul(a, c)]
    verify(cse(graph))
    assert names(graph) == ["Exp", "Add", "Mul"]
    assert len(graph.constants) == 1


def test_other_attributes_are_other_nodes():
    graph, b, x = start()
    graph.outputs = [b.Add(b.LeakyRelu(x, alpha=0.1), b.LeakyRelu(x, alpha=0.2))]
    verify(cse(graph))
    assert names(graph) == ["LeakyRelu", "LeakyRelu", "Add"]


def test_zeros_of_both_signs_differ():
    graph, b, x = start()
    graph.outputs = [b.Div(x, b.scalar(0.0, x)), b.Div(x, b.scalar(-0.0, x))]
    verify(cse(graph))
    assert len(graph.constants) == 2


def test_large_constants_are_not_compared():
    graph, b, _ = start()
    graph.outputs = [b.Neg(b.constant(np.ones(LARGEST_CONSTANT + 1))), b.Neg(b.constant(np.ones(LARGEST_CONSTANT + 1)))]
    verify(cse(graph))
    assert len(graph.constants) == 2


def test_random_nodes_are_never_equal():
    graph, b, x = start()
    graph.outputs = [b.Add(b.Dropout(x, ratio=0.5, training_mode=1), b.Dropout(x, ratio=0.5, training_mode=1))]
    verify(cse(graph))
    assert names(graph).count("Dropout") == 2


def test_outputs_keep_their_own_values():
    graph, b, x = start()
    graph.outputs = [b.Exp(x), b.Exp(x)]
    cse(graph)
    assert graph.outputs[0] is not graph.outputs[1]
    verify(graph)


def test_merged_nodes_keep_both_origins():
    graph, b, x = start()
    with b.at(b.origin.__class__(("first",))):
        one = b.Exp(x)
    with b.at(b.origin.__class__(("second",))):
        two = b.Exp(x)
    graph.outputs = [b.Add(one, two)]
    cse(graph)
    assert graph.nodes[0].origin.sources == ("first", "second")


# ---- split

def test_what_depends_on_weights_only_is_hoisted():
    graph, b, x = start()
    w = state_of(graph, b, "w")
    scale = state_of(graph, b, "scale", "scalar", TensorType("float32", ()))
    packed = b.Exp(b.Neg(w.input))
    graph.outputs = [b.Mul(b.Add(x, packed), b.Mul(w.input, scale.input))]
    links: dict[Value, Value] = {}
    prologue = hoist(graph, links)
    assert names(prologue) == ["Neg", "Exp"]
    assert names(graph) == ["Add", "Mul", "Mul"]
    assert prologue.outputs == [packed]
    assert [v for v, source in links.items() if source is packed] == [graph.inputs[-1]]
    verify(graph)
    verify(prologue)


def test_results_of_the_step_are_not_hoisted():
    graph, b, _ = start()
    w = state_of(graph, b, "w")
    graph.outputs = [b.Neg(b.Exp(w.input))]
    assert names(hoist(graph, {})) == ["Exp"]
    assert names(graph) == ["Neg"]


def test_random_nodes_are_not_hoisted():
    graph, b, _ = start()
    w = state_of(graph, b, "w")
    graph.outputs = [b.Neg(b.Dropout(w.input, ratio=0.5, training_mode=1))]
    assert not hoist(graph, {}).nodes


def running(graph: Graph, b: Builder, x: Value) -> State:
    """A running mean of x."""
    state = state_of(graph, b, "running", "buffer", TensorType("float32", (3,)))
    mean = b.ReduceMean(x, axes=(0,), keepdims=False)
    state.output = b.Add(b.Mul(state.input, b.scalar(0.9, mean)), b.Mul(mean, b.scalar(0.1, mean)))
    state.when = "micro"
    return state


def test_statistics_leave_the_micro_step():
    graph, b, x = start()
    running(graph, b, x)
    graph.outputs = [b.Exp(x)]
    links: dict[Value, Value] = {}
    statistics = split_fold(graph, links)
    assert names(statistics) == ["Mul", "Add"]
    assert names(graph) == ["ReduceMean", "Mul", "Exp"]
    assert not graph.states
    assert [v.producer.op.name for v in links.values() if v.producer] == ["Mul"]
    verify(graph)
    verify(statistics)


def test_an_input_that_a_statistic_reads_is_copied():
    """Inputs lie where the caller put them, which differs per micro-batch; the fold reads the micro-batch's own memory."""
    graph, b, x = start()
    state = state_of(graph, b, "last", "buffer")
    state.output, state.when = b.Add(b.Mul(state.input, b.scalar(0.5, x)), x), "micro"
    graph.outputs = [b.Exp(x)]
    links: dict[Value, Value] = {}
    split_fold(graph, links)
    assert [v.producer.op.name for v in links.values() if v.producer] == ["Identity"]
    verify(graph)


def test_a_step_that_needs_the_new_statistic_keeps_what_makes_it():
    """The fold then only writes it; a step that reads the old one leaves the rest to the fold."""
    graph, b, x = start()
    state = running(graph, b, x)
    assert state.output is not None
    graph.outputs = [b.Add(x, state.output)]
    links: dict[Value, Value] = {}
    fold = split_fold(graph, links)
    assert names(fold) == ["Identity"]
    assert names(graph) == ["ReduceMean", "Mul", "Mul", "Add", "Add"]
    assert [(s.name, s.output) for s in graph.states] == [("running", None)]
    verify(graph)
    verify(fold)
    graph, b, x = start()
    graph.outputs = [b.Add(x, running(graph, b, x).input)]
    fold = split_fold(graph, {})
    assert names(fold) == ["Mul", "Add"]
    assert names(graph) == ["ReduceMean", "Mul", "Add"]
    assert [s.output for s in graph.states] == [None]


def test_states_that_exchange_their_values_are_read_before_one_is_written():
    graph, b, x = start()
    one, two = (state_of(graph, b, name, "buffer") for name in ("one", "two"))
    one.output, two.output = two.input, b.Reshape(one.input, shape=one.input.shape, allowzero=1)
    one.when = two.when = "micro"
    graph.outputs = [b.Exp(x)]
    links: dict[Value, Value] = {}
    fold = split_fold(graph, links)
    assert names(fold) == ["Identity", "Identity"]
    assert names(graph) == ["Reshape", "Exp", "Identity"]
    assert len(links) == 2
    verify(graph)
    verify(fold)


# ---- the compiler

def linear() -> tuple[Graph, Builder]:
    graph, b, x = start()
    w = state_of(graph, b, "w", type=TensorType("float32", (4, 3)))
    graph.outputs = [b.Gemm(x, w.input, None, transB=1)]
    return graph, b


def square(b: Builder, outputs: list[Value]) -> Value:
    return b.ReduceMean(b.Mul(outputs[0], outputs[0]), axes=(0, 1), keepdims=False)


def compiled(**options: object) -> compiler.Compilation:
    chosen = compiler.CompileOptions(**options)                                         # type: ignore[arg-type]
    return compiler.training(linear()[0], square, SGD(lr=0.1), Batching(2, 3), chosen)


def test_steps_are_named_timed_and_stoppable():
    done = compiled()
    assert list(done.seconds) == ["gather", "autocast", "fold", "cse", "loss", "autograd", "simplify", "split"]
    assert all(s >= 0 for s in done.seconds.values())
    partly = compiled(stop_after="loss")
    assert list(partly.seconds) == ["gather", "autocast", "fold", "cse", "loss"]
    assert not partly.program.parts["update"].nodes
    assert "autograd" in done.to_text()
    with pytest.raises(OptionError, match=r"stop_after='link'.*autograd"):
        compiled(stop_after="link")


def test_gradients_are_accumulated_only_where_there_is_something_to_add():
    assert [s.kind for s in compiled().program.parts["fold"].states] == ["accumulator"]
    alone = compiler.training(linear()[0], square, SGD(lr=0.1), Batching(6, 1)).program
    assert not alone.parts["fold"].states
    assert [v.name for v in alone.parts["update"].inputs] == ["w.grad"]
    assert set(alone.parts["update"].inputs) <= set(alone.links)


def test_a_loss_must_be_one_number_per_micro_batch():
    with pytest.raises(OptionError, match=r"float32\[2, 4\]; reduce it"):
        compiler.training(linear()[0], lambda b, outputs: b.Exp(outputs[0]), SGD(lr=0.1), Batching(2))


def test_nothing_to_train():
    graph, _ = linear()
    graph.states[0].trainable = False
    with pytest.raises(OptionError, match="no weight to train"):
        compiler.training(graph, square, SGD(lr=0.1), Batching(2))
    with pytest.raises(OptionError, match="Loss scaling cannot be 0"):
        compiled(loss_scaling=0.0)
