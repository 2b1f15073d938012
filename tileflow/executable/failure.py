"""What to tell the user of a call that failed."""
from __future__ import annotations

from collections.abc import Sequence

from ..kernels.machine.status import INDEX_OUT_OF_RANGE, LABEL_OUT_OF_RANGE, NOT_FINITE, RAISED
from ..system.errors import TrainingError, WeightsLostError
from .image import Judged, Owner

KEPT = "the weights are kept as they were before that update"


def failed_leaf(status: int, owner: Owner, where: str, watched: bool = False) -> TrainingError:
    """For the status of a leaf of the micro-step. watched: detect_anomaly is on, and no operator made what is not
    finite."""
    if status == NOT_FINITE:
        begins = "detect_anomaly names where it begins" if not watched else \
            "no operator made it of finite numbers, so it came with the inputs or the weights"
        return TrainingError(f"The loss is not finite at {where}; {KEPT}: lower the learning rate, check the inputs "
                             f"for NaN, or lower loss_scaling; {begins}, skip_non_finite goes on without such updates.")
    if status == LABEL_OUT_OF_RANGE:
        return TrainingError(f"{owner}: a label is outside of the classes 0..C-1 at {where}; check the label column or "
                             "the number of classes of the model.")
    if status == RAISED:
        return TrainingError(f"{owner}: its compiled code raised an exception at {where}; call its forward() as a "
                             "plain function of these arrays to see which, or tileflow.testing.check_operator.")
    assert status == INDEX_OUT_OF_RANGE, status
    return TrainingError(f"{owner}: an index lies outside of its axis at {where}; check the whole numbers in the "
                         "inputs.")


def anomaly(judged: Judged, kind: str, where: str, training: bool) -> TrainingError:
    """For the first operator that made NaN or an infinity, where somebody asked for it."""
    given = "none of its operands has NaN" if kind == "NaN" else "its operands are finite"
    kept = f"; {KEPT}" if training else ""
    return TrainingError(f"detect_anomaly: {judged.operator} made {kind}: {judged.output}, while {given}, at "
                         f"{where}{kept}.")


def bad_gradient(names: Sequence[str], update: int, watched: bool = False) -> TrainingError:
    """For gradients that are not finite. watched: detect_anomaly is on."""
    named = "" if watched else " (detect_anomaly names it)"
    return TrainingError(f"The loss is finite but the gradient of {_listed(names)} is not, at update {update}; {KEPT}: "
                         f"look for a square root, division or logarithm at 0 in the model{named}, or lower "
                         "loss_scaling; skip_non_finite goes on without such updates.")


def overflow(names: Sequence[str], update: int) -> TrainingError:
    """For an update that would make 16-bit weights infinite or NaN, found before anything was written."""
    return TrainingError(f"Update {update} would make {_listed(names)} infinite or NaN, which 16 bits cannot hold; "
                         f"{KEPT}: lower the learning rate, or keep them in bfloat16 or float32.")


def lost(names: Sequence[str], update: int) -> WeightsLostError:
    """For weights that are infinite or NaN after they were written."""
    return WeightsLostError(f"Update {update} made {_listed(names)} infinite or NaN although loss and gradients were "
                            "finite, so the weights in memory are of no use any more: go back to weights that were "
                            "saved, and lower the learning rate.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
