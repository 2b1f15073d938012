"""Groups for fusion: what the quick search joins is what the plain rule joins, on random graphs, and its time grows with the graph."""
from __future__ import annotations

import random

import pytest

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.graph import Builder, Graph, Node, TensorType, Value
from tileflow.lower import groups
from tileflow.lower.groups import MOST_OPERANDS, MOST_OPERATIONS, expression_of, grow, is_number

SQUARE = TensorType("float32", (4, 4))


def plain(graph: Graph) -> list[list[int]]:
    """The rule itself: each node joins the groups of its operands, in their order, unless a third group lies between or they are too large.
    Every group knows all that it depends on."""
    members: list[set[int]] = []
    below: list[set[int]] = []
    home: dict[Value, int] = {}
    nodes = graph.nodes

    def joined(a: set[int]) -> bool:
        made = {v for i in a for v in nodes[i].outputs}
        read = {v for i in a for v in nodes[i].operands if v not in made and not is_number(v, graph)}
        return len(read) + len(made) <= 2 * MOST_OPERANDS and len(read) <= MOST_OPERANDS and len(a) <= MOST_OPERATIONS // 2

    def shape(i: int) -> tuple[int, ...] | None:
        return nodes[i].outputs[0].shape if expression_of(nodes[i]) is not None else None

    for own, node in enumerate(nodes):
        sources = list(dict.fromkeys(home[v] for v in node.operands if v in home))
        members.append({own})
        below.append(set().union(*(below[s] | {s} for s in sources)))
        for source in sources:
            if shape(own) is None or shape(min(members[source])) != shape(own) or not joined(members[source] | members[own]):
                continue
            if any(source in below[other] for other in below[own] if other != source):
                continue
            members[own] |= members[source]
            below[own] = (below[own] | below[source]) - {source, own}
            for v in [v for v, g in home.items() if g == source]:
                home[v] = own
            for g in range(own):
                if source in below[g]:
                    below[g] = (below[g] - {source}) | {own} | below[own]
            members[source] = set()
        home.update(dict.fromkeys(node.outputs, own))
    return sorted(sorted(m) for m in members if m)


def random_graph(seed: int) -> Graph:
    """Elementwise nodes and others over near and far operands."""
    rng = random.Random(seed)
    graph = Graph()
    b = Builder(graph)
    values = [b.input(f"x{i}", SQUARE) for i in range(3)] + [b.input("row", SQUARE.with_shape((4,)))]
    values.append(b.scalar(2.0, values[0]))
    near, others = rng.choice([3, 8, 1000]), rng.choice([0.05, 0.2, 0.5])
    for _ in range(rng.choice([5, 20, 60, 120])):
        x, y = (rng.choice(values[-near:]) if rng.random() < 0.8 else rng.choice(values) for _ in range(2))
        if rng.random() < others:
            values += [b.Softmax(x, axis=-1)] if x.type.rank == 2 else []
        elif rng.random() < 0.5:
            values.append(b.Relu(x))
        else:
            values.append(rng.choice([b.Add, b.Mul, b.Sub])(x, y))
    graph.outputs = [values[-1], *(v for v in values if v.producer is not None and rng.random() < 0.05)]
    graph.prune()
    return graph


@pytest.mark.parametrize("seed", range(60))
def test_groups_are_those_of_the_plain_rule(seed: int):
    graph = random_graph(seed)
    found = grow(graph)
    assert sorted(sorted(i for i, *_ in g.nodes) for g in found) == plain(graph)
    made = {*graph.inputs, *graph.constants}
    for group in found:
        for _, node, _ in group.nodes:
            assert made.issuperset(node.operands)
            made.update(node.outputs)


def ladder(rungs: int) -> Graph:
    """Two chains that no operand ties, then what reads a place of each: every search between them would walk along a whole chain."""
    graph = Graph()
    b = Builder(graph)
    chains: list[list[Value]] = [[b.input("x", SQUARE)], [b.input("y", SQUARE)]]
    for chain in chains:
        for _ in range(rungs):
            chain.append(b.Softmax(b.Relu(chain[-1]), axis=-1))
    graph.outputs = [b.Add(left, right) for left, right in zip(*(_relus(graph, c) for c in chains), strict=True)]
    return graph


def _relus(graph: Graph, chain: list[Value]) -> list[Value]:
    def above(value: Value) -> Value:
        assert isinstance(value.producer, Node)
        return value.producer.operands[0]
    return [above(v) for v in chain[1:]]


def test_a_search_that_would_walk_along_the_graph_for_every_node_ends(monkeypatch: pytest.MonkeyPatch):
    """Such a graph is fused less; its groups still are in an order that respects their dependences."""
    monkeypatch.setattr(groups, "STEPS", 4)
    graph = ladder(60)
    assert sorted(i for g in grow(graph) for i, *_ in g.nodes) == list(range(len(graph.nodes)))
    monkeypatch.undo()
    growth = groups._Growth(ladder(1200), update=False)
    most = growth.steps
    growth.run()
    assert 1 < (most - growth.steps) / most < 1.05, "1.2 and more without the limit"
