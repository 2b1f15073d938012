"""Precision: in which element types a run stores its weights and computes. Made once from the options and handed down."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ..graph import HALVES, Casting, Graph, Node, first_fitting
from ..options.options import Options
from ..passes.autocast import CastRule
from ..system.errors import OptionError
from ..system.text import one_line
from .policy import Policy, merged, operators_called

TYPES = {"16": "float16", "bf16": "bfloat16", "32": "float32", "64": "float64"}
"""Element types by the first word of a precision's name."""
SCOPES_LOW = "float16"
"""What layers that ask for casts compute in where the precision names no 16-bit type."""


@dataclass(frozen=True)
class Precision:
    """What an option `precision` means, with the options on automatic casts.

    name: the option's normal form: "32", "64", "16-mixed", "bf16-mixed", "16-true" or "bf16-true".
    weights: element type that parameters are stored and updated in, and that floating inputs of layers arrive in.
    compute: element type of the operators that are computed in low precision; with mixed precision that of some, else that of all.
    loss: element type that the loss is computed in and that targets arrive in.
    casts: whether anything may be cast automatically. policy: what is cast, where layers have none of their own.
    named: operators, and patterns of nodes' names, with the set of the policy that each is in, or "off"; these go before any policy. from_file: a
    file says so, of any model: what fits nothing here is let be.
    kept: name patterns of parameters that stay float32 where the others have 16 bits. statistics: running statistics do, too.
    upcast: operands of several floating types become the widest everywhere, not the activation's where an operator has weights.
    partials: the type of sums of float16 products by pattern of operators' names; empty: float32 for all.
    on_tiles: tiles compute float32 programs in float16, so that partials count there.
    stochastic_rounding, master_weights: how the update writes 16-bit states, as the options of these names say.
    """

    name: str = "32"
    weights: str = "float32"
    compute: str = "float32"
    loss: str = "float32"
    casts: bool = True
    policy: Policy = field(default_factory=Policy)
    named: tuple[tuple[str, str], ...] = ()
    from_file: bool = False
    kept: tuple[str, ...] = ()
    statistics: bool = True
    upcast: bool = False
    partials: tuple[tuple[str, str], ...] = ()
    on_tiles: bool = False
    stochastic_rounding: bool = False
    master_weights: str = "none"

    @classmethod
    def of(cls, options: Options) -> Precision:
        """The precision that the options name."""
        bits, _, how = options.precision.partition("-")
        compute = TYPES[bits]
        weights = "float32" if how == "mixed" else compute
        return cls(options.precision, weights, compute, "float64" if compute == "float64" else "float32", options.autocast_enabled,
                   named=tuple(options.autocast.items()), from_file=not options.given("autocast", files=False), kept=options.keep_float32,
                   statistics=options.running_statistics_always_float,
                   upcast=options.half_float_casting == "upcast", partials=_partials(options.partials),
                   on_tiles=options.machine_precision.startswith("16"),
                   stochastic_rounding=options.stochastic_rounding, master_weights=options.master_weights)

    @property
    def mixed(self) -> bool:
        """Some operators are computed in fewer bits than the weights have."""
        return self.compute != self.weights

    @property
    def float_dtype(self) -> str | None:
        """The type that all floating values of an ONNX file take; None: each as the file says."""
        return None if self.weights == "float32" else self.weights

    def stored(self, name: str, own: str | None = None, statistic: bool = False) -> str:
        """The element type that a floating parameter, or a running statistic, is stored and updated in.

        Args:
            own: the type that it has by itself: somebody gave it to a layer, or it is the file's, where the precision leaves files as they are.
        """
        if self.weights == "float64":
            return "float64"
        found = own or self.weights
        keeps = (statistic and self.statistics) or any(fnmatchcase(name, pattern) for pattern in self.kept)
        return "float32" if found in HALVES and keeps else found

    def check_kept(self, stored: Mapping[str, str], whose: str) -> None:
        """Compare the patterns of `keep_float32` with the parameters of a model and what they would be stored in without them.

        Raises:
            OptionError: a pattern fits no parameter, or none that has 16 bits.
        """
        for pattern in self.kept:
            fitting = [dtype for name, dtype in stored.items() if fnmatchcase(name, pattern)]
            if not fitting:
                raise OptionError(f"Option keep_float32: the pattern {pattern!r} fits no parameter of {whose}; they are "
                                  f"{', '.join(stored) or 'none'}.")
            if not any(dtype in HALVES for dtype in fitting):
                raise OptionError(f"Option keep_float32 has no effect: {pattern!r} fits no parameter of {whose} that has 16 bits; choose the "
                                  "precision 16-true or bf16-true, or leave it out.")

    def choices(self, graph: Graph) -> Callable[[Node], CastRule] | None:
        """How each node of a graph is to be computed; None: all of them as they are written.

        Raises:
            OptionError: an operator or a pattern of the option autocast fits no node, or nothing is cast at all.
        """
        nodes = list(graph.walk())
        asked = [_asked(node) for node in nodes]
        active = self.casts and (self.mixed or any(a.enabled for a in asked))
        if self.named and not active and not self.from_file:
            raise OptionError("Option autocast has no effect, for nothing is cast: choose the precision 16-mixed or bf16-mixed, or leave it out.")
        if not active and not any(a != Casting() for a in asked):
            return None
        named = _named(self.named, nodes, self.from_file)
        low = self.compute if self.mixed else SCOPES_LOW

        def choose(node: Node) -> CastRule:
            scope = _asked(node)
            own = scope.low or low
            if not active or not (self.mixed if scope.enabled is None else scope.enabled):
                return CastRule("off", own)
            policy = scope.policy if isinstance(scope.policy, Policy) else self.policy
            return CastRule(named(node) or scope.rule or policy.rule(node.op.name), own)          # type: ignore[arg-type]
        return choose


def _partials(option: str | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if isinstance(option, Mapping):
        return tuple(option.items())
    return () if option == "float32" else (("*", option),)


def _asked(node: Node) -> Casting:
    """What the layer or the block of code around a node asks of casts."""
    return node.origin.hints.casting or Casting()


def _named(named: Sequence[tuple[str, str]], nodes: Sequence[Node], from_file: bool) -> Callable[[Node], str | None]:
    """The rule of a node that the option autocast means: a pattern of a name goes before an operator, and the first pattern counts.

    Raises:
        OptionError: an operator or a pattern fits no node; out of a file an operator may, and a pattern is warned of.
    """
    def fits(key: str, node: Node) -> bool:
        return first_fitting([key], node.origin.sources) is not None
    patterns = [(key, rule) for key, rule in named if not operators_called(key)]
    for key, _ in named:
        operators = operators_called(key)
        if any(node.op.name in operators if operators else fits(key, node) for node in nodes) or (from_file and operators):
            continue
        if not from_file:
            raise OptionError(_missed(key, bool(operators), nodes))
        warnings.warn(f"autocast: {one_line(repr(key), 100)} is no operator of tileflow's and fits no name of a node, so it has no effect.",
                      stacklevel=2)
    rules = merged((key, rule) for key, rule in named if operators_called(key))
    return lambda node: next((rule for key, rule in patterns if fits(key, node)), rules.get(node.op.name))


def _missed(key: str, operator: bool, nodes: Sequence[Node]) -> str:
    present = ", ".join(dict.fromkeys(n.op.name for n in nodes)) or "none"
    if operator:
        return f"autocast: the model has no operator {key}; its operators are {present}."
    names = ", ".join(dict.fromkeys(name for n in nodes for name in n.origin.sources)) or "none"
    return f"autocast: {key!r} is no operator and fits no name of a node; the operators are {present}; the names are {names}."
