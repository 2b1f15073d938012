"""Hints: how they get onto nodes, by scopes and afterwards, and what becomes of them where nodes are merged."""
from __future__ import annotations

from dataclasses import replace

import tileflow.ops  # noqa: F401  (fills the registry)
from tileflow.graph import NOTHING, Annotation, Builder, Graph, Hints, Origin, TensorType


def test_scopes_are_laid_over_those_around_them() -> None:
    """With one call, by whatever records: what the inner scope asks counts, then the outer one's; `begin` holds beyond
    scopes, until the next."""
    graph = Graph("scopes")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (2,)))
    with b.scope(Hints(0.2, partials="float16"), "encoder"):
        x = b.Relu(x)
        with b.scope(Hints(0.1), "encoder.fc"):
            x = b.Relu(x)
            assert b.begin(Hints(annotation=Annotation("second", 1))) == NOTHING
            x = b.Relu(x)
    x = b.Relu(x)
    b.begin(NOTHING)
    b.Relu(x).producer.ask(Hints(kept=True))
    second = Annotation("second", 1)
    assert [node.origin for node in graph.nodes] == [
        Origin(("encoder",), hints=Hints(0.2, "float16")), Origin(("encoder.fc",), hints=Hints(0.1, "float16")),
        Origin(("encoder.fc",), hints=Hints(0.1, "float16", annotation=second)), Origin(hints=Hints(annotation=second)),
        Origin(hints=Hints(kept=True))]


def test_what_is_asked_of_a_node_in_place_of_several() -> None:
    """All that the first was asked of which anything was, never a mixture; the last stage forward and the first one
    backward; checkpoints stay."""
    plain, first = Origin(("a",), hints=Hints(stage=1)), Origin(("b",), hints=Hints(0.3, stage=2, recomputed="layer"))
    other = Origin(("c",), hints=Hints(partials="float16", stage=0, kept=True))
    assert plain.merged(first, other) == Origin(("a", "b", "c"),
                                                hints=Hints(0.3, stage=2, recomputed="layer", kept=True))
    assert replace(plain, role="backward").merged(first, other).hints.stage == 0
