"""The type of partial sums, for all products or by name: a hint on each operator, before the fork, for both consumers. Run before autograd, so that
gradients have it, too."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from ..graph import Graph, Hints, inside
from ..system.errors import OptionError


def set_partials(graph: Graph, wanted: Mapping[str, str]) -> None:
    """Ask every operator for the type of the first pattern that fits one of its names; what a layer asks for itself goes before.

    Raises:
        OptionError: a pattern fits no name, or nothing is computed in float16.
    """
    met: set[str] = set()
    _set(graph, wanted, met)
    missed = [p for p in wanted if p not in met]
    if missed:
        names = dict.fromkeys(name for node in graph.walk() for name in node.origin.sources)
        raise OptionError(f"Option partials: the pattern {missed[0]!r} fits no operator; their names are {', '.join(names) or 'none'}.")


def _set(graph: Graph, wanted: Mapping[str, str], met: set[str]) -> None:
    inside(graph, lambda region: _set(region, wanted, met))
    for node in graph.nodes:
        pattern = next((p for p in wanted if any(fnmatchcase(name, p) for name in node.origin.sources)), None)
        if pattern is not None:
            met.add(pattern)
            node.origin = replace(node.origin, hints=(node.origin.hints or Hints()).over(Hints(partials=wanted[pattern])))


def require_halves(graph: Graph) -> None:
    """Raise OptionError where no operator has float16 operands, so that sums in float16 have no effect."""
    if not any(v.dtype == "float16" for node in graph.walk() for v in node.operands):
        raise OptionError("Option partials has no effect, for nothing is computed in float16; choose the precision 16-mixed or 16-true, or leave it "
                          "out.")
