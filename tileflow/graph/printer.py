"""A graph as text, one node a line."""
from __future__ import annotations

from ..system.text import one_line
from .graph import Graph


def to_text(graph: Graph) -> str:
    """A readable listing: inputs, states, constants, nodes with types, outputs."""
    lines = [f"{one_line(graph.name)}({', '.join(map(repr, graph.inputs))})"]
    lines += [f"  {s.kind} {s.input!r}" + (f" -> {s.output.shown} per {s.when}" if s.output else "") for s in graph.states]
    lines += [f"  constant {v!r}" for v in graph.constants]
    for node in graph.nodes:
        lines.append(f"  {node!r}    # {node.origin.role} {node.origin}")
        lines += [f"    {line}" for region in node.op.regions for line in to_text(region.graph).split("\n")]
    lines.append("  return " + ", ".join(v.shown for v in graph.outputs))
    return "\n".join(lines)
