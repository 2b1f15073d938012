"""Host lowering: arenas, fusion, places of values, merged rows."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hosting
import numpy as np
import pytest
from evaluate import evaluate, run_kernel
from images import segments_of

import tileflow
import tileflow.ops
from tileflow import nn, optim
from tileflow.graph import Builder, Graph, Index, Node, State, TensorType, Value, verify
from tileflow.host.form import ALONE, Blockwise, HostForm, HostOp, blockwise, calls
from tileflow.kernels.elementwise.expr import Var
from tileflow.kernels.elementwise.loops import elementwise_call
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import Call, In, Out
from tileflow.kernels.machine.guard import clear, copy
from tileflow.kernels.reduce import reduce_calls
from tileflow.lower import groups
from tileflow.lower.epilogues import fuse_epilogues
from tileflow.lower.expand import expand
from tileflow.lower.fuse import Fused, fuse
from tileflow.lower.groups import MOST_OPERANDS
from tileflow.lower.layout import TurnChannels
from tileflow.lower.passes import Pass, PassSetting, run_passes
from tileflow.lower.row import ArrayOperand, Place, Row
from tileflow.lower.rows import lower
from tileflow.memory.alignment import ALIGN, padded
from tileflow.memory.arena import Arena, Interval
from tileflow.runtime import binding
from tileflow.runtime.binding import BoundRow, Moving, bind, merge

rng = np.random.default_rng(4)


# ---- arena

def check_arena(intervals: Sequence[Interval], base: int) -> Arena:
    arena = Arena(base)
    offsets = arena.place(intervals)
    for i, a in enumerate(intervals):
        assert offsets[a.key] % ALIGN == base % ALIGN
        assert base <= offsets[a.key]
        assert offsets[a.key] + a.nbytes <= arena.size
        for b in intervals[:i]:
            if a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes:
                assert offsets[a.key] + a.nbytes <= offsets[b.key] or offsets[b.key] + b.nbytes <= offsets[a.key], (a, b)
    return arena


def test_live_buffers_never_overlap():
    import hypothesis
    st = hypothesis.strategies
    interval = st.tuples(st.integers(0, 300), st.integers(0, 20), st.integers(0, 8))

    @hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
    @hypothesis.given(st.lists(interval, max_size=30), st.integers(0, 3))
    def check(drawn: list[tuple[int, int, int]], base: int) -> None:
        check_arena([Interval(i, size, first, first + length) for i, (size, first, length) in enumerate(drawn)], base * ALIGN)
    check()


def test_buffers_that_are_not_live_together_share():
    assert check_arena([Interval(i, 1000, i, i) for i in range(10)], 0).size == padded(1000)
    assert check_arena([Interval(i, 1000, 0, 9) for i in range(10)], 0).size == 10 * padded(1000)
    assert check_arena([], 128).size == 128


# ---- fusion

UNARY, BINARY = ("Neg", "Abs", "Relu", "Exp"), ("Add", "Mul", "Max", "Sub")


def random_graph(choices: Sequence[tuple[int, int, int]]) -> Graph:
    """A graph of elementwise nodes on two shapes, sums over rows in between."""
    graph = Graph()
    b = Builder(graph)
    full = [b.input("x", TensorType("float32", (3, 5))), b.input("y", TensorType("float32", (3, 5)))]
    rows = [b.input("z", TensorType("float32", (1, 5)))]
    for kind, i, j in choices:
        one, other = full[i % len(full)], full[j % len(full)]
        row = rows[j % len(rows)]
        if kind < 4:
            full.append(getattr(b, UNARY[kind])(b.Mul(one, b.scalar(0.5, one))))
        elif kind < 8:
            full.append(getattr(b, BINARY[kind - 4])(one, other))
        elif kind == 8:
            rows.append(b.ReduceMean(one, axes=(0,), keepdims=True))
        elif kind == 9:
            full.append(b.Mul(one, row))
        else:
            rows.append(b.Tanh(b.Add(row, rows[i % len(rows)])))
    graph.outputs = list(dict.fromkeys([full[-1], rows[-1], *full[2::3]]))
    graph.outputs = [v for v in graph.outputs if v.producer is not None] or [b.Neg(full[0])]
    graph.prune()
    return graph


def test_fused_graphs_are_ordered_and_complete():
    import hypothesis
    st = hypothesis.strategies

    @hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
    @hypothesis.given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 50), st.integers(0, 50)), max_size=25))
    def check(choices: list[tuple[int, int, int]]) -> None:
        graph = random_graph(choices)
        fused = fuse(graph)
        known = set(graph.inputs) | set(graph.constants)
        for node in fused.nodes:
            assert all(v in known for v in node.operands), "a node reads what is not yet made: the groups are cyclic"
            known.update(node.outputs)
        assert known.issuperset(graph.outputs)
        assert all(isinstance(n.op, Fused) == (n.op.name == "Fused") for n in fused.nodes)
        verify(graph)                                   # the original is as it was
    check()


def test_a_chain_is_one_leaf():
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (40,)))
    graph.outputs = [b.Add(b.Exp(b.Mul(x, x)), b.scalar(1.0, x))]
    node, = fuse(graph).nodes
    assert isinstance(node.op, Fused)
    assert node.inputs == [x]
    assert "Exp" in str(graph.nodes[1].op)


def test_a_path_outside_keeps_groups_apart():
    """x -> exp -> sum -> (broadcast) add with exp: joining exp and add would need the sum inside."""
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (4, 6)))
    e = b.Exp(x)
    graph.outputs = [b.Div(e, b.ReduceSum(e, axes=(0, 1), keepdims=True))]
    assert [n.op.name for n in fuse(graph).nodes] == ["Exp", "ReduceSum", "Div"]


def test_fusion_stays_within_its_bounds():
    graph = Graph()
    b = Builder(graph)
    inputs = [b.input(f"x{i}", TensorType("float32", (4,))) for i in range(60)]
    total = inputs[0]
    for x in inputs[1:]:
        total = b.Add(total, x)
    graph.outputs = [total]
    nodes = fuse(graph).nodes
    assert len(nodes) > 1
    assert all(len(n.inputs) <= MOST_OPERANDS for n in nodes)


def tanh_net() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter(np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5))
            self.b = nn.Parameter(np.linspace(0, 1, 5, dtype=np.float32))

        def forward(self, x: nn.Tensor) -> nn.Tensor:              # type: ignore[override]
            y = (x * self.w + self.b).tanh()
            return y * y.sigmoid() + (x - y).exp() * 0.1 - (x * 0.5).relu()
    return Net()


def trained(net: nn.Module, optimizer: optim.Optimizer, **options: Any) -> dict[str, np.ndarray]:
    model = tileflow.training_model(net, optimizer=optimizer, loss="mse", gradient_accumulation=2, device_iterations=2, **options)
    draw = np.random.default_rng(0)
    for _ in range(3):
        x = draw.standard_normal((12, 5)).astype(np.float32)
        model(x, np.sin(x))
    return net.state_dict()


def test_fusion_never_changes_bits(monkeypatch: pytest.MonkeyPatch):
    fused = trained(tanh_net(), optim.AdamW(lr=0.05))
    monkeypatch.setattr("tileflow.lower.passes.fuse", lambda graph, keep, update: graph)
    alone = trained(tanh_net(), optim.AdamW(lr=0.05))
    assert {n: a.tobytes() for n, a in fused.items()} == {n: a.tobytes() for n, a in alone.items()}


def test_expression_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(groups, "MOST_OPERATIONS", 4)
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (4,)))
    for _ in range(9):
        x = b.Exp(x)
    graph.outputs = [x]
    assert max(len(n.op.expressions) for n in fuse(graph).nodes if isinstance(n.op, Fused)) == 1
    assert len(fuse(graph).nodes) >= 4


# ---- passes

def test_what_a_pass_leaves_is_verified():
    """Tests switch it on (conftest.py); a pass that reads before it makes, or makes another type than the operator does, is found at once."""
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (2, 3, 4)))
    graph.outputs = [b.Neg(b.Exp(x))]

    def done(*changes: Callable[[Graph], Graph]) -> Graph:
        passes = [Pass(str(i), lambda g, s, change=change: change(g))  # type: ignore[misc]
                  for i, change in enumerate(changes)]
        return run_passes(graph, passes, setting)

    setting = PassSetting(cpu.current())
    assert done(fuse, lambda g: g.with_nodes(g.nodes)).nodes[0].op.name == "Fused"
    assert list(setting.seconds) == ["0", "1"]
    with pytest.raises(AssertionError, match="before it is made"):
        done(lambda g: g.with_nodes(reversed(g.nodes)))
    with pytest.raises(AssertionError, match="should be"):
        done(lambda g: g.with_nodes([
            *g.nodes[:1], Node(TurnChannels(back=False), g.nodes[1].inputs, g.nodes[1].outputs, g.nodes[1].origin)]))
    assert list(graph.walk()) == graph.nodes


def test_an_index_follows_what_passes_put_together():
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (2, 3)))
    e = b.Exp(x)
    y = b.Neg(e)
    graph.outputs = [y, b.Add(e, e)]
    exp, neg, add = graph.nodes
    index = Index(graph, keep=[e])
    assert (index.maker(e), index.maker(x), index.readers(e)) == (exp, None, [neg, add])
    assert index.all_readers(e) is None
    assert index.only_reader(x) is exp
    assert index.only_reader(y) is None                                # the graph's own output
    both = Node(neg.op, [x], [y], neg.origin)
    index.join([exp, neg], both, 0)
    assert (index.maker(y), index.maker(e), index.readers(e), index.readers(x)) == (both, None, [add], [both])


# ---- places

def lowered(graph: Graph, **options: Any) -> Any:
    given: dict[str, Any] = dict(keep=[], direct={}, workers=1, cpu=cpu.current()) | options
    return lower(graph, "a", lambda v: Place(("io", v.name)), **given)


def test_views_share_memory():
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (2, 6)))
    view = b.Reshape(b.Reshape(x, shape=(3, 4)), shape=(12,))
    graph.outputs = [b.Exp(view)]
    plan = lowered(graph)
    assert len(plan.rows) == 1
    assert plan.places[view] == Place(("io", "x"))


def test_results_go_where_they_are_wanted():
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (5,)))
    y, z = b.Exp(x), b.Identity(x)
    graph.outputs = [y, z]
    plan = lowered(graph, keep=[y], direct={z: Place(("io", "z")), y: Place(("io", "y"))})
    assert plan.places[y] == Place(("arena", "a"), 0)
    copies = [(row.args[0].place, row.args[1].place) for row in plan.rows if row.node is None]
    assert copies == [(Place(("io", "x")), Place(("io", "z"))), (Place(("arena", "a")), Place(("io", "y")))]


def state_graph() -> tuple[Graph, Builder, Any]:
    graph = Graph()
    b = Builder(graph)
    state = State("w", "parameter", Value(b.name("w"), TensorType("float32", (4, 4))))
    graph.states.append(state)
    return graph, b, state


def test_an_elementwise_result_takes_over_the_memory_of_an_operand_that_nobody_reads_afterwards():
    graph = Graph("g")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (8, 8)))
    first = b.MatMul(x, x)
    second = b.Relu(first)                                   # the last one to read `first`
    third = b.MatMul(second, x)
    fourth = b.Add(second, third)                            # `second` is read once more
    row = b.ReduceSum(fourth, axes=(0,))
    fifth = b.Mul(fourth, row)                               # the row of sums is too small for a result
    graph.outputs.append(b.Add(b.MatMul(fifth, x), fifth))
    places = lowered(graph).places
    assert places[second] == places[first]
    assert places[third] != places[second]
    assert places[fourth] in (places[second], places[third])
    assert places[fifth] == places[fourth] != places[row]
    assert all(places[v] != Place(("io", "x")) for v in (first, second, third, fourth, row, fifth))


def test_a_state_is_written_in_place_where_that_is_safe():
    graph, b, state = state_graph()
    state.output = b.Mul(state.input, b.scalar(0.5, state.input))
    plan = lowered(graph)
    assert plan.places[state.output] == Place(("io", "w"))
    assert len(plan.rows) == 1


def test_a_state_is_copied_where_its_old_value_is_still_read():
    graph, b, state = state_graph()
    state.output = b.Mul(state.input, b.scalar(0.5, state.input))
    graph.outputs = [b.Exp(state.input)]
    plan = lowered(graph)
    assert plan.places[state.output].region == ("arena", "a")
    assert plan.rows[-1].leaf is copy["u4"]
    graph, b, state = state_graph()
    state.output = b.MatMul(state.input, state.input)           # reads its operand while it writes
    assert lowered(graph).places[state.output].region == ("arena", "a")


def test_a_state_that_another_one_takes_over_is_read_before_it_is_written():
    """A delay line: first <- x, second <- first's old value, third <- second's."""
    graph, b, _ = state_graph()
    graph.states.clear()
    x = b.input("x", TensorType("float32", (4, 4)))
    states = [State(n, "buffer", Value(b.name(n), x.type)) for n in ("first", "second", "third")]
    graph.states += states
    states[0].output, states[1].output, states[2].output = b.Exp(x), states[0].input, b.Identity(states[1].input)
    plan = lowered(graph)
    assert [row.args[1].place.region[1] for row in plan.rows if row.node is None] == ["third", "second", "first"]


# ---- merged rows

def bound(*addresses: int, n: int = 4, flat: bool = True, leaf: Any = copy["u4"],
          extra: Sequence[Any] = ()) -> BoundRow:
    args = [(a, (n,), 4) for a in addresses]
    return BoundRow(Row(leaf, [], n, 1, 1.0, flat), [*args, *extra], n, flat)


def test_rows_that_abut_are_one():
    row, = merge([bound(0, 4096), bound(256, 4352), bound(512, 4608, n=3)])
    assert row.n == 2 * 64 + 3
    assert row.args == [(0, (131,), 4), (4096, (131,), 4)]


def test_rows_of_mixed_types_that_abut_are_one():
    """A 16-bit weight and its moment in float32: padded to 64 elements each."""
    def of(*arrays: tuple[int, int]) -> BoundRow:
        return BoundRow(Row(copy["u4"], [], 70, 1, 1.0, True), [(at, (70,), size) for at, size in arrays], 70)
    row, = merge([of((0, 2), (4096, 4)), of((256, 2), (4608, 4))])
    assert row.args == [(0, (198,), 2), (4096, (198,), 4)]
    assert len(merge([of((0, 2), (4096, 4)), of((192, 2), (4480, 4))])) == 2, "a line of cache each"


@pytest.mark.parametrize("other", [
    bound(256, 4352, flat=False), bound(512, 4352), bound(256, 4608), bound(256, 4352, leaf=clear["u4"]), bound(256, 4352, extra=[2.0]),
    BoundRow(Row(copy["u4"], [], 4, 1, 1.0, True), [(Moving("micro-batch", 256, 1, 0, "x"), (4,), 4), (4352, (4,), 4)],
             4),
])
def test_rows_that_differ_stay(other: BoundRow):
    assert len(merge([bound(0, 4096), other])) == 2


def test_scalars_are_shared_only_when_equal():
    scalar = (99968, (1,), 4)
    assert len(merge([bound(0, 4096, extra=[scalar, 0.5]), bound(256, 4352, extra=[scalar, 0.5])])) == 1
    assert len(merge([bound(0, 4096, extra=[scalar, 0.5]), bound(256, 4352, extra=[scalar, 0.25])])) == 2
    assert len(merge([bound(0, 4096, extra=[0.0]), bound(256, 4352, extra=[0.0])])) == 1
    assert len(merge([bound(0, 4096, extra=[0.0]), bound(256, 4352, extra=[-0.0])])) == 2
    assert len(merge([bound(0, 4096, extra=[scalar]), bound(256, 4352, extra=[(88832, (1,), 4)])])) == 2


def test_a_row_that_reads_what_the_one_before_writes_is_not_merged():
    assert len(merge([bound(0, 256), bound(256, 512)])) == 2
    assert len(merge([bound(0, 4096, extra=[(4096, (1,), 4)]), bound(256, 4352, extra=[(4096, (1,), 4)])])) == 2


def test_in_place_rows_merge():
    assert len(merge([bound(0, 0), bound(256, 256)])) == 1


def test_bind_resolves_and_merges():
    rows = [Row(copy["u4"], [ArrayOperand(Place(("io", s), 256 * i), (4,), 4) for s in "ab"], 4, 1, 1.0, True)
            for i in range(3)]

    def resolve(place: Place) -> int:
        return place.offset + (0 if place.region[1] == "a" else 8192)
    assert len(bind(rows, resolve, lambda p: True)) == 1
    assert len(bind(rows, resolve, lambda p: p.region[1] == "a")) == 3, "padding that is not always zero would be read"


def eight_weights() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


def train_eight(options: dict[str, Any]) -> tuple[dict[str, np.ndarray], list[Any]]:
    nn.manual_seed(3)
    net = eight_weights()
    model = tileflow.training_model(net, optimizer=optim.AdamW(lr=0.01, weight_decay=0.1), **options)
    draw = np.random.default_rng(0)
    for _ in range(3):
        model(draw.standard_normal((8, 7)).astype(np.float32), draw.integers(0, 3, 8))
    plan = model.plan
    segments = segments_of(plan, model.source.session)
    update = bind(plan.parts["update"].rows, segments.resolve(0), segments.settled("update"))
    return net.state_dict(), [b for b in update if b.n > 1]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_eight_weights_are_updated_by_one_row_with_the_same_bits(monkeypatch: pytest.MonkeyPatch, accumulation: int):
    merged, rows = train_eight({"gradient_accumulation": accumulation})
    assert len(rows) == 1
    assert rows[0].row.leaf.parameters[0].dtype == "f4"
    monkeypatch.setattr(binding, "_joined", lambda a, b: None)
    apart, rows = train_eight({"gradient_accumulation": accumulation})
    assert len(rows) == 8
    assert {n: a.tobytes() for n, a in merged.items()} == {n: a.tobytes() for n, a in apart.items()}


def test_every_worker_has_scratch_wherever_rows_may_be_split():
    """More workers than micro-batches side by side: the lanes work alone, everything else over all workers."""
    from tileflow import compiler
    from tileflow.lower.plan import make_plan
    from tileflow.program.batching import Batching

    def graph() -> Graph:
        graph = Graph()
        b = Builder(graph)
        x = b.input("x", TensorType("float32", (64, 64)))
        w = State("w", "parameter", Value(b.name("w"), x.type))
        graph.states.append(w)
        graph.outputs = [b.MatMul(x, b.MatMul(w.input, b.Softmax(w.input, axis=0)))]
        return graph
    plan = make_plan(compiler.inference(graph(), Batching(64, 1, 2)).program, 8)
    assert (plan.lanes, plan.workers) == (2, 8)
    for part, rows in ((plan.parts["prologue"], 8), (plan.micro, 1)):
        pairs = [pair for row in part.rows for pair in zip(row.leaf.takes(row.args), row.args, strict=True)]
        scratch = {a.shape[0] for p, a in pairs if p.cut == "w"}
        assert scratch == {rows}
    alone = make_plan(compiler.inference(graph(), Batching(64)).program, 8)
    assert (alone.lanes, alone.workers) == (1, 8)


class Pooled(nn.Module):
    """A convolution, overlapping windows, then a second pool of the same image."""

    def __init__(self) -> None:
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 4 * 4, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                       # type: ignore[override]
        x = self.conv(x)
        overlapping = x.apply("MaxPool", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 0, 0))
        return self.fc((overlapping + x.apply("MaxPool", kernel_shape=(2, 2), strides=(2, 2))).flatten())


def train_pooled() -> tuple[dict[str, np.ndarray], Any]:
    nn.manual_seed(3)
    net = Pooled()
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=0.05))
    draw = np.random.default_rng(0)
    for _ in range(2):
        model(draw.standard_normal((4, 1, 10, 10)).astype(np.float32), draw.integers(0, 3, 4))
    return net.state_dict(), model.plan


def test_winners_are_written_down_for_the_gradient_with_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    """Each pool's gradient reads the winners of its own windows, and nothing is searched twice."""
    from tileflow.lower import passes
    monkeypatch.setattr(passes, "arrange", lambda graph, cpu, keep: graph)
    recorded, plan = train_pooled()
    names = [row.leaf.name for row in plan.micro.rows]
    assert sorted(n for n in names if n.startswith("max")) == ["max_halves_winners", "max_pool_winners", "max_unpool", "max_unpool_halves"]
    assert sum(n.op.name == "WinningMaxPoolGrad" for n in plan.program.micro.nodes) == 2
    monkeypatch.setattr(passes, "record", lambda graph: graph)
    searched, _ = train_pooled()
    assert {n: a.tobytes() for n, a in recorded.items()} == {n: a.tobytes() for n, a in searched.items()}


def test_elementwise_calls_are_flat():
    """What merging relies on."""
    call = elementwise_call([Var(0, "float32") * Var(1, "float32")], [In(0, (4, 4)), In(1, ())], [Out(0, (4, 4))])
    assert isinstance(call, Call)
    assert call.flat
    assert [a.shape for a in call.args] == [(16,), (1,), (16,)]
    assert call.n == 16


# ---- epilogues

class Doubled(HostOp):
    """2 x as a product would be made, block by block, for tests of epilogues."""

    name = "Doubled"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        assert types[0] is not None
        return (types[0],)

    def kernel(self, inputs: Any, outputs: Any, cpu: Any) -> list[Call]:
        return calls(self, ALONE, inputs, outputs, cpu)


@blockwise.register(Doubled)
def _(op: Doubled, form: HostForm) -> Blockwise | None:
    return Blockwise(1)


@calls.register(Doubled)
def _(op: Doubled, form: HostForm, inputs: Any, outputs: Any, cpu: Any) -> list[Call]:
    whole = (outputs[0].size,)
    found = [elementwise_call([Var(0, "float32") * 2], [In(0, whole)], [Out(0, whole)])]
    return [*found, form.epilogue.after(outputs[0].shape, 1)] if form.epilogue else found


class DoubledWithSums(Doubled):
    """With the sums over the last axis as a second output."""

    name = "DoubledWithSums"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        assert types[0] is not None
        return types[0], types[0].with_shape((*types[0].shape[:-1], 1))


@calls.register(DoubledWithSums)
def _(op: DoubledWithSums, form: HostForm, inputs: Any, outputs: Any, cpu: Any) -> list[Call]:
    last = outputs[0].rank - 1
    sums = reduce_calls("sum", "f4", outputs[0].shape, (last,), target=Out(1, (outputs[1].size,)))
    return [*sums, *calls.dispatch(Doubled)(op, form, inputs, outputs[:1], cpu)]


def attached(build: Any, keep: bool = False) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    """Names of the lowered nodes and what the host added to each, results with epilogues, results node by node; x and y
    [2, 3, 4], z [3, 1]."""
    graph = Graph()
    b = Builder(graph)
    names, shapes = ("x", "y", "z", "s"), ((2, 3, 4), (2, 3, 4), (3, 1), (1,))
    values = [b.input(n, TensorType("float32", shape)) for n, shape in zip(names, shapes, strict=True)]
    graph.outputs = list(build(b, *values))
    feeds = {n: rng.standard_normal(shape).astype("f4") for n, shape in zip(names, shapes, strict=True)}
    wanted = evaluate(graph, feeds, run_kernel)
    done = fuse_epilogues(fuse(expand(graph)))
    found = run_graph(done, feeds)
    left = [" ".join([n.op.name, *hosting.added(n.op)]) for n in done.nodes]
    return left, [found[v] for v in graph.outputs], [wanted[v.name] for v in graph.outputs]


def run_graph(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[Value, np.ndarray]:
    values = {v: feeds[v.name] for v in graph.inputs} | graph.constants
    for node in graph.nodes:
        values |= dict(zip(node.outputs, run_kernel(node.op, *[None if v is None else values[v] for v in node.inputs]), strict=True))
    return values


def test_what_follows_a_product_becomes_its_epilogue():
    names, found, wanted = attached(lambda b, x, y, z, s: [b.Relu(b.Add(b.Add(b.Mul(b.emit(Doubled(), x)[0], s), z), y))])
    assert names == ["Doubled epilogue"]
    assert found[0].tobytes() == wanted[0].tobytes()


def test_a_result_before_the_activation_is_an_output_too():
    def build(b: Builder, x: Value, y: Value, z: Value, s: Value) -> list[Value]:
        before = b.Add(b.emit(Doubled(), x)[0], z)
        return [b.Exp(before), before]
    names, found, wanted = attached(build)
    assert names == ["Doubled epilogue"]
    assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted]


def test_a_product_that_others_read_later_is_kept():
    def build(b: Builder, x: Value, y: Value, z: Value, s: Value) -> list[Value]:
        product, = b.emit(Doubled(), x)
        return [b.Greater(b.Add(product, z), y), product, b.ReduceSum(product, axes=(0,), keepdims=0)]
    names, found, wanted = attached(build)
    assert names == ["Doubled epilogue", "ReduceSum"]
    assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted]


def test_a_product_with_further_outputs_runs_where_it_stood():
    """Something reads its second output before the elementwise node stands."""
    def build(b: Builder, x: Value, y: Value, z: Value, s: Value) -> list[Value]:
        first, rows = b.emit(DoubledWithSums(), x)
        second, = b.emit(Doubled(), y)
        return [b.Exp(rows), b.Relu(b.Add(first, z)), b.Add(second, b.Mul(rows, rows))]
    names, found, wanted = attached(build)
    assert names[0] == "DoubledWithSums epilogue"
    assert "Doubled" in names
    assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted]


def test_only_one_of_two_products_takes_the_sum():
    names, found, wanted = attached(lambda b, x, y, z, s: [b.Relu(b.Add(b.emit(Doubled(), x)[0], b.emit(Doubled(), y)[0]))])
    assert names == ["Doubled", "Doubled epilogue"]
    assert found[0].tobytes() == wanted[0].tobytes()


@pytest.mark.parametrize("build", [
    lambda b, p, x, y, z, s: [b.Div(p, b.ReduceMax(p, axes=(2,)))],                    # needs all of the product first
    lambda b, p, x, y, z, s: [b.Add(p, b.ReduceMax(y, axes=(0, 1)))],                  # an operand along another axis
    lambda b, p, x, y, z, s: [b.Greater(p, y)],                                        # no output to compute the product in
    lambda b, p, x, y, z, s: [b.Add(b.ReduceMax(p, axes=(2,)), y)],                    # not elementwise
])
def test_what_is_no_epilogue_stays_apart(build: Any):
    names, found, wanted = attached(lambda b, x, y, z, s: build(b, b.emit(Doubled(), x)[0], x, y, z, s))
    assert "Doubled" in names
    assert "Doubled epilogue" not in names
    assert found[0].tobytes() == wanted[0].tobytes()


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (6, 5), (0, 5, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batch_normalisation_of_inference_is_elementwise(shape: tuple[int, ...], dtype: str):
    graph = Graph()
    b = Builder(graph)
    kinds = [TensorType(dtype, shape), *[TensorType(dtype, (5,))] * 4]
    values = [b.input(f"x{i}", kind) for i, kind in enumerate(kinds)]
    graph.outputs = [b.Relu(b.BatchNormalization(*values, epsilon=1e-3))]
    feeds = {v.name: rng.standard_normal(v.shape).astype(dtype) for v in values}
    feeds["x4"] = np.array([0.5, 1, 2, 1e-9, np.nan], dtype)
    done = fuse(expand(graph))
    assert [n.op.name for n in done.nodes if n.op.alias is None] == ["Map", *(["Fused"] if graph.outputs[0].type.size else ["Map", "Relu"])]
    views = {v for n in done.nodes if n.op.alias is not None for v in n.outputs}
    found = run_graph(done, feeds)
    assert len(views) == (3 if len(shape) > 2 else 0)
    assert found[graph.outputs[0]].tobytes() == evaluate(graph, feeds, run_kernel)[graph.outputs[0].name].tobytes()
