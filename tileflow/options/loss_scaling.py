"""Options of loss scaling by itself."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .declaration import declared
from .kinds import COUNT, Choice, Flag, Number, Range
from .needs import With

_option = functools.partial(declared, "training")
AutomaticLossScaling = Literal["auto", "off", "histogram", "dynamic"]


@dataclass(frozen=True)
class _Adapted(With):
    """The scale adapts by this mode; auto may become dynamic."""

    option: str = "automatic_loss_scaling"
    values: tuple[str, ...] = ()

    def met(self, options: Any, verb: str) -> bool:
        becomes = "dynamic" if options.precision == "16-mixed" else "off"
        mode = options.automatic_loss_scaling
        return (becomes if mode == "auto" else mode) in self.values

    def missing(self, options: Any) -> str:
        mode = options.automatic_loss_scaling
        return "without automatic_loss_scaling" if mode == "auto" else f"with automatic_loss_scaling {mode}"


DYNAMIC, HISTOGRAM = _Adapted(values=("dynamic",)), _Adapted(values=("histogram",))


@dataclass(kw_only=True, repr=False)
class LossScalingOptions:
    """How the loss scale follows the gradients."""

    automatic_loss_scaling: AutomaticLossScaling = _option(
        "auto", Choice(get_args(AutomaticLossScaling)), "how the loss scale changes by itself: dynamic shrinks it and "
        "skips the update where a gradient is not finite, and grows it after a while, as PyTorch's GradScaler; "
        "histogram halves or doubles it by how many elements of 16-bit gradients are large, as PopART; auto is "
        "dynamic for the precision 16-mixed where no loss_scaling is given, else off")
    growth_factor: float = _option(
        2.0, Number(Range(above=1)), "what dynamic loss scaling multiplies the scale by", needs=(DYNAMIC,))
    backoff_factor: float = _option(
        0.5, Number(Range(above=0, below=1)),
        "what dynamic loss scaling multiplies the scale by after a skipped update", needs=(DYNAMIC,))
    growth_interval: int = _option(
        2000, COUNT, "good updates in a row after which dynamic loss scaling lets the scale grow",
        needs=(DYNAMIC,))
    bin_edge_location: float = _option(
        0.125, Number(),
        "share of float16's largest number from which on the histogram calls a gradient's element large",
        needs=(HISTOGRAM,))
    threshold_upper_count_proportion: float = _option(
        1e-7, Number(), "share of large elements above which the histogram halves the scale",
        needs=(HISTOGRAM,))
    loss_scaling_update_period: int = _option(
        1, COUNT, "updates between two looks at the histogram", needs=(HISTOGRAM,))
    skip_non_finite: bool | None = _option(
        None, Flag(), "skip updates whose loss or gradients are not finite instead of ending the run; by default "
        "where the loss scale adapts", optional=True)
