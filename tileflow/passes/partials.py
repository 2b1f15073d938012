"""The type of partial sums, for all products or by name: a hint on each operator, before the fork, for both consumers. Run before autograd, so that
gradients have it, too."""
from __future__ import annotations

from collections.abc import Mapping

from ..graph import Graph, Hints, Node, on_named
from ..system.errors import OptionError


def set_partials(graph: Graph, wanted: Mapping[str, str]) -> None:
    """Ask every operator for the type of the first pattern that fits one of its names; what a layer asks for itself goes before.

    Raises:
        OptionError: a pattern fits no name, or nothing is computed in float16.
    """
    met: set[str] = set()

    def ask(node: Node, pattern: str) -> None:
        met.add(pattern)
        if node.origin.hints.partials is None:
            node.ask(Hints(partials=wanted[pattern]))
    on_named(graph, wanted, ask)
    missed = [p for p in wanted if p not in met]
    if missed:
        names = dict.fromkeys(name for node in graph.walk() for name in node.origin.sources)
        raise OptionError(f"Option partials: the pattern {missed[0]!r} fits no operator; their names are {', '.join(names) or 'none'}.")


def require_halves(graph: Graph) -> None:
    """Raise OptionError where no operator has float16 operands, so that sums in float16 have no effect."""
    if not any(v.dtype == "float16" for node in graph.walk() for v in node.operands):
        raise OptionError("Option partials has no effect, for nothing is computed in float16; choose the precision 16-mixed or 16-true, or leave it "
                          "out.")
