"""What to tell the user of updates that count for nothing."""
from __future__ import annotations

from ..executable.failure import KEPT
from ..system.errors import NoUpdateError, TrainingError, see


def uncounted(what: str, where: str) -> TrainingError:
    """For a loss that is a mean over no labels; `what` they all are."""
    return TrainingError(f"No label of {where} counts, for all are {what}: the mean loss of none is NaN, as in PyTorch; {KEPT}. Take larger "
                         "micro-batches, or leave out rows without a label that counts; skip_non_finite goes on without such updates.")


NO_CAUSE = "look for a square root, division or logarithm at 0 in the model, check the inputs for NaN, or lower the learning rate"


def stuck(automatic: str, scale: float, skipped: int, updates: int) -> TrainingError:
    """For updates that are skipped one after the other, with no hope that the next one will not be."""
    kept = "the weights are as after the last good one"
    if automatic == "off":
        return TrainingError(f"The loss or a gradient was not finite in each of the last {skipped} updates (up to update {updates}), which were "
                             f"skipped; {kept}: {NO_CAUSE}.{see('loss-scaling')}")
    return TrainingError(f"The loss scale has fallen to {scale:g}, its least value, and the loss or a gradient is "
                         f"still not finite after {skipped} skipped updates (up to update {updates}); "
                         f"{kept}: {NO_CAUSE}.{see('loss-scaling')}")


def none_counted(epoch: int, updates: int, scale: float | None) -> str:
    """What to say of an epoch all of whose updates were skipped. scale: the loss scale after it, where it adapts."""
    now = "" if scale is None else f"; the loss scale has come down to {scale:g}"
    return (f"No update of epoch {epoch} counted: in each of its {updates} the loss or a gradient was not finite, so they were skipped and the "
            f"weights are as before it{now}.")


def untrained(epoch: int, updates: int, scale: float | None, saved: str) -> NoUpdateError:
    """For a run that ends with such an epoch."""
    more = "" if scale is None else ", or go on with more epochs, in which the loss scale falls on"
    return NoUpdateError(f"{none_counted(epoch, updates, scale)} It was the last one, so no model was written; {saved}. To mend it, "
                         f"{NO_CAUSE}{more}.")
