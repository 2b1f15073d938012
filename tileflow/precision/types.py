"""Precision: in which element types a run stores its weights and computes. Made once from the options and handed down."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ..memory.types import HALVES
from ..options.options import Options
from ..system.errors import OptionError
from .policy import Policy

TYPES = {"16": "float16", "bf16": "bfloat16", "32": "float32", "64": "float64"}
"""Element types by the first word of a precision's name."""


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


def _partials(option: str | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if isinstance(option, Mapping):
        return tuple(option.items())
    return () if option == "float32" else (("*", option),)
