"""The noise of gradients, measured in the program itself: how far the gradients of micro-batches lie from their mean,
which says how large a batch still pays.

The simple noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), appendix A.1: with the
gradients g of n micro-batches of b rows and their mean G,

    |true gradient|^2  ~  (n |G|^2 - mean |g|^2) / (n - 1)
    trace of covariance  ~  (mean |g|^2 - |G|^2) b n / (n - 1)

each averaged over updates; their quotient is a number of rows. Two float64 states hold the averages, so they are the
same for every number of device iterations, and a run that is resumed goes on with them.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..system.errors import OptionError
from .transform import square_sum

if TYPE_CHECKING:
    from ..graph import Graph, Value
    from .base import Averaged
    from .optimizer import Optimizer

SIGNAL, NOISE = "optimizer.gradient_signal", "optimizer.gradient_noise"
"""States: moving averages of the squared norm of the true gradient, and of the trace of the covariance of one row's."""
SQUARES = "optimizer.gradient_squares"
"""The sum of the squared norms of an update's micro-batches."""
KEPT = 0.99
"""How much of an average stays at an update; both begin with 0, which cancels in their quotient."""


def measure(parts: Mapping[str, Graph], gradients: Sequence[Value], averaged: Averaged, rows: int,
            micro_batches: int) -> dict[Value, Value]:
    """Measure the noise of these gradients, values of the micro-step that are in the update's accumulators.

    Args:
        parts: micro, fold and update as they are otherwise complete.
        rows: of a micro-batch. micro_batches: of an update, at least 2.

    Returns:
        links: new inputs of the fold to values of the micro-step.
    """
    from ..graph import Builder, Origin
    from .adapting import NUMBER, UpdateWriter, summed_in_step

    micro, fold, update = parts["micro"], parts["fold"], parts["update"]
    origin = Origin(("gradient noise",), "update")
    sums = [s.input for s in update.states if s.kind == "accumulator" and s.owner != "optimizer"]
    m, f, w = Builder(micro, origin), Builder(fold, origin), UpdateWriter(update, origin)
    arriving = f.input("gradient_squares.contribution", NUMBER)
    links = {arriving: summed_in_step(m, gradients, lambda g: m.SquareSum(*[g]))}
    b, n = w.b, float(micro_batches)
    scale = b.Cast(w.scale().input, to="float64")
    unscaled = b.Mul(scale, scale)
    # Sums of n gradients, or running means of them.
    together = b.Div(square_sum(b, sums), b.Mul(unscaled, w.number(1.0 if averaged.running else n * n)))
    single = b.Div(w.summed(f, SQUARES, arriving), b.Mul(unscaled, w.number(n)))
    signal = b.Div(b.Sub(b.Mul(together, w.number(n)), single), w.number(n - 1))
    noise = b.Mul(b.Sub(single, together), w.number(rows * n / (n - 1)))
    for name, found in ((SIGNAL, signal), (NOISE, noise)):
        share = b.Mul(found, w.number(1.0 - KEPT))
        w.state(name, lambda old, share=share: b.Add(b.Mul(old, w.number(KEPT)), share))
    return links


def check(optimizer: Optimizer, grouped: bool) -> None:
    """OptionError where an optimizer's gradients are nowhere by themselves, or replicas have weights of their own."""
    if optimizer.combined:
        raise OptionError("Option gradient_noise needs gradients by themselves, and use_combined_accum adds them to "
                          "the velocity; leave one of them out.")
    if grouped:
        raise OptionError("Option gradient_noise compares gradients of all micro-batches of an update, and with "
                          "replica_grouping some weights get those of a group only; leave one of the two out.")


def scale_of(states: Any) -> float | None:
    """The noise scale in rows, by a session's two states; None where the gradient is not told from its noise."""
    signal, noise = float(states[SIGNAL]), float(states[NOISE])
    return noise / signal if signal > 0 and noise >= 0 else None
