"""Loss scaling: the factor on the loss that keeps small gradients from vanishing in 16 bits, held in a state that every micro-batch reads."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..options.options import Options
from ..system.errors import OptionError

LOSS_SCALE = "optimizer.loss_scale"
"""The state's name. The backward pass begins with it, the update divides by it; the host writes it where somebody assigns a new one."""


LARGEST, SMALLEST = 2.0 ** 24, 2.0 ** -24
"""Bounds of a scale that adapts. The reference has none: there it runs away where nothing is lost, or no gradient ever becomes finite."""
FIRST_DYNAMIC = 2.0 ** 16
MOST_SKIPPED = 100
"""Updates in a row that may be skipped where no scale adapts, which would mend it."""
GROWTH, SKIPPED, IN_A_ROW, BAD_LOSSES, LARGE, SINCE, USED_SCALE = (
    f"optimizer.{role}" for role in ("growth_tracker", "skipped", "skipped_in_a_row", "bad_losses", "large", "scale_updates", "used_scale"))
"""Other states: good updates since the scale changed last, updates skipped (all, and since the last good one), micro-batches of this update with a
loss that is not finite, large elements among their gradients, updates since the histogram was read, the scale of the last update."""


@dataclass(frozen=True)
class LossScaling:
    """How the loss scale changes by itself, and whether updates are skipped whose loss or gradients are not finite.

    automatic: "dynamic" is PyTorch's GradScaler: a bad update is skipped and the scale multiplied by `backoff_factor`; after `growth_interval` good
        ones in a row it is multiplied by `growth_factor`. "histogram" is PopART's: every `update_period` updates the scale is halved where more than
        a share `threshold_upper_count_proportion` of the elements of 16-bit gradients are at least `bin_edge_location` of float16's largest
        number, else doubled; NaN and infinity count as large, and a bad update halves the scale at once. Either stays within
        SMALLEST..LARGEST, and an update uses the scale that was found before it.
    """

    automatic: Literal["off", "histogram", "dynamic"] = "off"
    skip: bool = False
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    bin_edge_location: float = 0.125
    threshold_upper_count_proportion: float = 1e-7
    update_period: int = 1

    @classmethod
    def of(cls, options: Options, by_hand: bool = False) -> LossScaling:
        """What the options say. by_hand: somebody chose a scale, so that `auto` does not."""
        chosen = options.automatic_loss_scaling
        if chosen == "auto":
            chosen = "dynamic" if options.precision == "16-mixed" and not by_hand and options.loss_scaling is None else "off"
        skip = chosen != "off" if options.skip_non_finite is None else options.skip_non_finite
        return cls(chosen, skip, options.growth_factor, options.backoff_factor, options.growth_interval, options.bin_edge_location,
                   options.threshold_upper_count_proportion, options.loss_scaling_update_period)

    @property
    def first(self) -> float:
        """What the scale begins with where nobody says otherwise."""
        return FIRST_DYNAMIC if self.automatic == "dynamic" else 1.0

    def check(self, scale: float) -> float:
        """A scale to begin with.

        Raises:
            OptionError: it is none, or outside of the bounds of one that adapts.
        """
        scale = check_scale(scale)
        if self.automatic != "off" and not SMALLEST <= scale <= LARGEST:
            raise OptionError(f"A loss scale that adapts stays within 2^-24..2^24, and loss_scaling is {scale:g}; choose one within, or "
                              "automatic_loss_scaling='off'.")
        return scale

    def stuck(self, scale: float, in_a_row: int) -> bool:
        """Nothing that this does will make an update good."""
        if not self.skip or not in_a_row:
            return False
        return in_a_row >= MOST_SKIPPED if self.automatic == "off" else scale <= SMALLEST


def check_scale(scale: float) -> float:
    """The scale as a float, if it is one.

    Raises:
        OptionError: it is zero, or no finite number above zero.
    """
    if scale == 0:
        raise OptionError("Loss scaling cannot be 0.")
    if not (isinstance(scale, int | float) and math.isfinite(scale) and scale > 0):
        raise OptionError(f"loss_scaling must be a finite number above 0, not {scale!r}.")
    return float(scale)
