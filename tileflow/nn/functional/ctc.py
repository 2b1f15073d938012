"""Connectionist temporal classification: labels of sequences without their times."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...system.errors import OptionError, ShapeError
from ..tensor import Tensor, where
from .loss import marks, reduced


@marks
def ctc_loss(
    log_probs: Tensor,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the probability of the targets, over all their alignments with the steps (Graves et al. 2006).

    Args:
        log_probs: [T, N, C], logarithms of probabilities, such as log_softmax gives. targets: int64 [N, S], classes
            other than `blank`, of which the first target_lengths [N] count. input_lengths: steps that count, [N].
        reduction: "mean" divides each loss by its number of targets (at least 1), then takes the mean.
        zero_infinity: rows that no alignment fits have a loss and gradients of 0.

    Raises:
        ShapeError: shapes do not fit. OptionError: blank is no class, another reduction.
    """
    if len(log_probs.shape) != 3:
        raise ShapeError(
            f"ctc_loss takes log_probs [T, N, C], not {list(log_probs.shape)}; put a batch of one around it."
        )
    lengths = _whole(log_probs, target_lengths)
    each: Tensor = log_probs.apply(
        "CTCLoss",
        _whole(log_probs, targets),
        _whole(log_probs, input_lengths),
        lengths,
        blank=blank,
        zero_infinity=int(zero_infinity),
    )
    if reduction == "mean":
        each = each / where(lengths < 1, 1, lengths).to(each.dtype)
    return reduced(each, reduction)


def ctc_beam_search_decoder(
    probs: Tensor, lengths: Any, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest labellings that a beam search of prefixes finds, best first.

    Args:
        probs: log-probabilities [T, N, C]. lengths: steps that count, int64 [N].
        beam_width: prefixes that are kept after each step. top_paths: how many are given, P.

    Returns:
        log-probabilities [N, P], lengths int64 [N, P], and classes int64 [N, P, T], 0 behind their ends.

    Raises:
        ShapeError: shapes do not fit. OptionError: blank is no class, or more paths than beams are asked for.
    """
    found: tuple[Tensor, Tensor, Tensor] = probs.apply(
        "CTCBeamSearchDecoder", _whole(probs, lengths), blank=blank, beam_width=beam_width, top_paths=top_paths
    )
    return found


def _whole(like: Tensor, given: Any) -> Tensor:
    """Whole numbers as a tensor of int64."""
    found = given if isinstance(given, Tensor) else like.lift(np.asarray(given))
    if found.value.type.is_float:
        raise OptionError(f"Targets and lengths of CTC are whole numbers, not {found.dtype}.")
    return found.to("int64")
