"""What is said aloud of a file's parameters: ties undone and made, doubtful spots, and what the exporter has lost. A few lines for any file."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .names import from_placeholder
from .rules import COMPUTED, Verdict
from .stored import Quantized
from .ties import Ties, listed

OPTIMIZE = "export with torch.onnx.export(..., dynamo=True, optimize=False), or with do_constant_folding=False"
HAS_NO_GRADIENT = "has no gradient"
BEFORE = "To train them, train the file of floats that they were made from, and quantise it again."


@dataclass(frozen=True)
class Notes:
    """Sentences: what is and was one parameter; what could be otherwise, or is lost."""

    ties: list[str]
    doubts: list[str]


def notes(ties: Ties, verdicts: Mapping[str, Verdict], states: Iterable[str], quantized: Sequence[Quantized] = ()) -> Notes:
    """Sentences about `states`, the parameters and buffers of an import, and about the constants beside them, `quantized` weights among them."""
    states = set(states)
    return Notes(_said(_ties(ties, states)), _said([*_doubts(verdicts, states), *_quantized(quantized), *_lost(ties)]))


Found = list[tuple[list[str], str]]
"""What a sentence is about, and the sentence; nothing is said of nothing."""


def _said(found: Found) -> list[str]:
    return [sentence for names, sentence in found if names]


def _ties(ties: Ties, states: set[str]) -> Found:
    undone = [name for name in ties.copies if name in states]
    kept = [name for name in ties.kept if name in states]
    merged = [name for name in ties.merged if name in states]
    views = [f"'{name}' is '{view.base}'{' transposed' if view.transposed else ''}" for name, view in ties.views.items() if view.base in states]
    restored = [name for name in ties.restored if name in states]
    return [
        (undone, f"{_count(undone)} stored in one tensor with others, because their first values are equal, and trained on "
                 f"their own: {listed(undone)}."),
        (restored, f"{_count(restored)} that the exporter dropped because {'it is' if len(restored) == 1 else 'they are'} zero, "
                   f"and trained again: {listed(restored)}."),
        (views, f"One parameter in two tensors, trained as one: {listed(views)}."),
        (kept, f"The file does not say whether the readers of these share one parameter: {listed(kept)}. Each is trained as one; if it is "
               f"several, use untie (--untie '{next(iter(kept), '')}')."),
        (merged, f"Trained as one for several modules, because the exporter made one node of theirs: {listed(merged)}. "
                 f"To tell them apart, {OPTIMIZE}."),
        (list(ties.apart), f"These tensors hold one parameter in two forms, which are trained apart: {listed(list(ties.apart))}; {OPTIMIZE}."),
    ]


def _doubts(verdicts: Mapping[str, Verdict], states: set[str]) -> Found:
    trained = [name for name, verdict in verdicts.items() if verdict.doubt and name in states]
    constant = [name for name, verdict in verdicts.items() if verdict.doubt and verdict.kind == "constant" and name not in states]
    reasons = {verdicts[name].why: [n for n in constant if verdicts[n].why == verdicts[name].why] for name in constant
               if verdicts[name].doubt != COMPUTED}
    folded = [name for name in constant if verdicts[name].doubt == COMPUTED]
    return [
        (trained, f"Trained, although nothing tells them from constants: {listed(trained)}. If they are constants, use frozen."),
        *((names, f"Not trained ({why}): {listed(names)}. To train them, use trainable.") for why, names in reasons.items()),
        (folded, f"Not trained, because the exporter computed them, perhaps from parameters: {listed(folded)}. To keep parameters, {OPTIMIZE}."),
    ]


def _quantized(quantized: Sequence[Quantized]) -> Found:
    types = ", ".join(dict.fromkeys(one.dtype for one in quantized))
    return [([one.name for one in quantized], f"Not trained, because the file stores them as {types}, which {HAS_NO_GRADIENT}: "
             f"{listed([one.name for one in quantized])}. {BEFORE}")]


def _lost(ties: Ties) -> Found:
    lost = [from_placeholder(name, ties.evidence.scopes.module(node) or "", "") for name, node in ties.evidence.placeholders.lost.items()]
    it, they = ("it", "it is") if len(lost) == 1 else ("them", "they are")
    return [
        (lost, f"The exporter dropped {_count(lost)}, or folded {it} into constants, so {they} not trained: {listed(lost)}. "
               f"To keep them, {OPTIMIZE}."),
    ]


def _count(names: list[str]) -> str:
    return f"{len(names)} parameter{'' if len(names) == 1 else 's'}"
