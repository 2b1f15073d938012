"""Automatic casts: how each node of a graph is to be computed, by the precision of the run and what layers ask for."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from ..graph import Casting, Graph, Node, first_fitting
from ..passes.autocast import CastRule
from ..system.errors import OptionError
from ..system.text import one_line
from .policy import Policy, merged, operators_called
from .types import Precision

SCOPES_LOW = "float16"
"""What layers that ask for casts compute in where the precision names no 16-bit type."""


def choices(precision: Precision, graph: Graph) -> Callable[[Node], CastRule] | None:
    """How each node of a graph is to be computed; None: all of them as they are written.

    Raises:
        OptionError: an operator or a pattern of the option autocast fits no node, or nothing is cast at all.
    """
    nodes = list(graph.walk())
    asked = [_asked(node) for node in nodes]
    active = precision.casts and (precision.mixed or any(a.enabled for a in asked))
    if precision.named and not active and not precision.from_file:
        raise OptionError("Option autocast has no effect, for nothing is cast: choose the precision 16-mixed or "
                          "bf16-mixed, or leave it out.")
    if not active and not any(a != Casting() for a in asked):
        return None
    named = _named(precision.named, nodes, precision.from_file)
    low = precision.compute if precision.mixed else SCOPES_LOW

    def choose(node: Node) -> CastRule:
        scope = _asked(node)
        own = scope.low or low
        if not active or not (precision.mixed if scope.enabled is None else scope.enabled):
            return CastRule("off", own)
        policy = scope.policy if isinstance(scope.policy, Policy) else precision.policy
        return CastRule(named(node) or scope.rule or policy.rule(node.op.name), own)          # type: ignore[arg-type]
    return choose


def _asked(node: Node) -> Casting:
    """What the layer or the block of code around a node asks of casts."""
    return node.origin.hints.casting or Casting()


def _named(named: Sequence[tuple[str, str]], nodes: Sequence[Node], from_file: bool) -> Callable[[Node], str | None]:
    """The rule of a node that the option autocast means: a pattern of a name goes before an operator, and the first
    pattern counts.

    Raises:
        OptionError: an operator or a pattern fits no node; out of a file an operator may, and a pattern is warned of.
    """
    def fits(key: str, node: Node) -> bool:
        return first_fitting([key], node.origin.sources) is not None
    patterns = [(key, rule) for key, rule in named if not operators_called(key)]
    for key, _ in named:
        operators = operators_called(key)
        if any(node.op.name in operators if operators else fits(key, node)
               for node in nodes) or (from_file and operators):
            continue
        if not from_file:
            raise OptionError(_missed(key, bool(operators), nodes))
        warnings.warn(f"autocast: {one_line(repr(key), 100)} is no operator of tileflow's and fits no name of a node, "
                      "so it has no effect.", stacklevel=2)
    rules = merged((key, rule) for key, rule in named if operators_called(key))
    return lambda node: next((rule for key, rule in patterns if fits(key, node)), rules.get(node.op.name))


def _missed(key: str, operator: bool, nodes: Sequence[Node]) -> str:
    present = ", ".join(dict.fromkeys(n.op.name for n in nodes)) or "none"
    if operator:
        return f"autocast: the model has no operator {key}; its operators are {present}."
    names = ", ".join(dict.fromkeys(name for n in nodes for name in n.origin.sources)) or "none"
    return f"autocast: {key!r} is no operator and fits no name of a node; the operators are {present}; the names are {names}."
