"""What to tell the user of a call that failed."""
from __future__ import annotations

from collections.abc import Sequence

from ..graph import Node, Value
from ..kernels.machine.status import INDEX_OUT_OF_RANGE, LABEL_OUT_OF_RANGE, NOT_FINITE
from ..system.errors import NoUpdateError, TrainingError, WeightsLostError

KEPT = "the weights are kept as they were before that update"


def failed_leaf(status: int, node: Node | None, where: str, watched: bool = False) -> TrainingError:
    """For the status of a leaf of the micro-step. watched: detect_anomaly is on, and no operator made what is not finite."""
    if status == NOT_FINITE:
        begins = "detect_anomaly names where it begins" if not watched else \
            "no operator made it of finite numbers, so it came with the inputs or the weights"
        return TrainingError(f"The loss is not finite at {where}; {KEPT}: lower the learning rate, check the inputs for NaN, or lower loss_scaling; "
                             f"{begins}, skip_non_finite goes on without such updates.")
    origin = f"{node.op.name} ({node.origin})" if node is not None else "a kernel"
    if status == LABEL_OUT_OF_RANGE:
        return TrainingError(f"{origin}: a label is outside of the classes 0..C-1 at {where}; check the label column or the "
                             "number of classes of the model.")
    assert status == INDEX_OUT_OF_RANGE, status
    return TrainingError(f"{origin}: an index lies outside of its axis at {where}; check the whole numbers in the inputs.")


def uncounted(what: str, where: str) -> TrainingError:
    """For a loss that is a mean over no labels; `what` they all are."""
    return TrainingError(f"No label of {where} counts, for all are {what}: the mean loss of none is NaN, as in PyTorch; {KEPT}. Take larger "
                         "micro-batches, or leave out rows without a label that counts; skip_non_finite goes on without such updates.")


def anomaly(node: Node, output: Value, kind: str, where: str, training: bool) -> TrainingError:
    """For the first operator that made NaN or an infinity, where somebody asked for it."""
    given = "none of its operands has NaN" if kind == "NaN" else "its operands are finite"
    direction = "the backward pass of " if node.origin.role == "backward" else ""
    kept = f"; {KEPT}" if training else ""
    return TrainingError(f"detect_anomaly: {direction}{node.origin} made {kind}: {node.op.name} in its output {output.shown} "
                         f"({output.type}), while {given}, at {where}{kept}.")


def bad_gradient(names: Sequence[str], update: int, watched: bool = False) -> TrainingError:
    """For gradients that are not finite. watched: detect_anomaly is on."""
    named = "" if watched else " (detect_anomaly names it)"
    return TrainingError(f"The loss is finite but the gradient of {_listed(names)} is not, at update {update}; {KEPT}: look for a square root, "
                         f"division or logarithm at 0 in the model{named}, or lower loss_scaling; skip_non_finite goes on without such updates.")


NO_CAUSE = "look for a square root, division or logarithm at 0 in the model, check the inputs for NaN, or lower the learning rate"


def stuck(automatic: str, scale: float, skipped: int, updates: int) -> TrainingError:
    """For updates that are skipped one after the other, with no hope that the next one will not be."""
    kept = "the weights are as after the last good one"
    if automatic == "off":
        return TrainingError(f"The loss or a gradient was not finite in each of the last {skipped} updates (up to update {updates}), which were "
                             f"skipped; {kept}: {NO_CAUSE}.")
    return TrainingError(f"The loss scale has fallen to {scale:g}, its least value, and the loss or a gradient is still not finite after "
                         f"{skipped} skipped updates (up to update {updates}); {kept}: {NO_CAUSE}.")


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


def overflow(names: Sequence[str], update: int) -> TrainingError:
    """For an update that would make 16-bit weights infinite or NaN, found before anything was written."""
    return TrainingError(f"Update {update} would make {_listed(names)} infinite or NaN, which 16 bits cannot hold; {KEPT}: lower the learning "
                         "rate, or keep them in bfloat16 or float32.")


def lost(names: Sequence[str], update: int) -> WeightsLostError:
    """For weights that are infinite or NaN after they were written."""
    return WeightsLostError(f"Update {update} made {_listed(names)} infinite or NaN although loss and gradients were finite, so the weights in "
                            "memory are of no use any more: go back to weights that were saved, and lower the learning rate.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
