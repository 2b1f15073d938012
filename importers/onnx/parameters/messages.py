"""What is said aloud of a file's parameters: ties undone and made, doubtful spots, and what the exporter has lost. A few lines for any file."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .altered import altered
from .rules import COMPUTED, FROM, Verdict
from .stored import Quantized
from .ties import Ties, listed
from .unread import unread

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
    return Notes(_said(_ties(ties, states)), _said([
        *_doubts(verdicts, states), *_quantized(quantized), *_lost(ties, verdicts),
        *altered(ties, [name for name, verdict in verdicts.items() if verdict.kind == "parameter" and name in states])]))


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
        (kept, f"The file does not say whether the readers of these share one parameter: {_shown(ties, kept)}. Each is trained as one; "
               f"if it is several, use untie (--untie '{next(iter(kept), '')}')."),
        (merged, f"Trained as one for several modules, because the exporter made one node of theirs: {_shown(ties, merged)}. "
                 f"To tell them apart, {OPTIMIZE}."),
        (list(ties.apart), f"These tensors hold one parameter in two forms, which are trained apart: {_shown(ties, ties.apart)}; {OPTIMIZE}."),
    ]


def _shown(ties: Ties, names: Iterable[str]) -> str:
    return listed([ties.shown(name) for name in names])


def _doubts(verdicts: Mapping[str, Verdict], states: set[str]) -> Found:
    results = [name for name, verdict in verdicts.items() if _is_computed(verdict)]
    free = [name for name in results if name in states]
    trained = [name for name, verdict in verdicts.items() if verdict.doubt and not _is_computed(verdict) and name in states]
    constant = [name for name, verdict in verdicts.items() if verdict.doubt and verdict.kind == "constant" and name not in states]
    reasons = {verdicts[name].why: [n for n in constant if verdicts[n].why == verdicts[name].why] for name in constant
               if not _is_computed(verdicts[name])}
    folded = [name for name in results if name in constant and verdicts[name].doubt == COMPUTED]
    known = [name for name in results if name in constant and name not in folded]
    return [
        (trained, f"Trained, although nothing tells them from constants: {listed(trained)}. If they are constants, use frozen."),
        *((names, f"Not trained ({why}): {listed(names)}. To train them, use trainable.") for why, names in reasons.items()),
        (free, f"Trained as weights of their own, although the exporter computed them"
               f"{', perhaps' if any(verdicts[name].doubt == COMPUTED for name in free) else ''} from parameters: {_from(free, verdicts)}. "
               f"What is trained is another network then. To keep the parameters, {OPTIMIZE}."),
        (known, f"Not trained, because the exporter computed them from parameters: {_from(known, verdicts)}. To keep the parameters, {OPTIMIZE}."),
        (folded, f"Not trained, because the exporter computed them, perhaps from parameters: {listed(folded)}. To keep parameters, {OPTIMIZE}."),
    ]


def _is_computed(verdict: Verdict) -> bool:
    return verdict.doubt == COMPUTED or verdict.doubt.startswith(FROM)


def _from(names: list[str], verdicts: Mapping[str, Verdict]) -> str:
    """Results, each with the parameters that it was computed from, where the file names them."""
    return listed([f"{name} ({verdicts[name].doubt.removeprefix(FROM)})" if verdicts[name].doubt != COMPUTED else name for name in names])


def _quantized(quantized: Sequence[Quantized]) -> Found:
    types = ", ".join(dict.fromkeys(one.dtype for one in quantized))
    return [([one.name for one in quantized], f"Not trained, because the file stores them as {types}, which {HAS_NO_GRADIENT}: "
             f"{listed([one.name for one in quantized])}. {BEFORE}")]


def _lost(ties: Ties, verdicts: Mapping[str, Verdict]) -> Found:
    evidence = ties.evidence
    named = {name for result, verdict in verdicts.items() if _is_computed(verdict) for name in evidence.origins.computed.get(ties.tensor(result), ())}
    lost = [called for name, node in evidence.placeholders.lost.items()
            if (called := evidence.placeholders.called(name, evidence.scopes.module(node), "")) not in named]
    merged, idle = ([name for name in names if name not in named] for names in unread(evidence))
    it, they = ("it", "it is") if len(lost) == 1 else ("them", "they are")
    return [
        (lost, f"The exporter dropped {_count(lost)}, or folded {it} into constants, so {they} not trained: {listed(lost)}. "
               f"To keep them, {OPTIMIZE}."),
        (merged, f"Nothing in the file reads these parameters of the network: {listed(merged)}. Where the network uses them, the exporter "
                 f"merged them with equal ones or folded them away, and they are not trained on their own; to keep them, {OPTIMIZE}."),
        (idle, f"Not trained, because no node of the file reads them, nor any like them: {listed(idle)}. Perhaps the network never uses them; "
               f"if it does, {OPTIMIZE}."),
    ]


def _count(names: list[str]) -> str:
    return f"{len(names)} parameter{'' if len(names) == 1 else 's'}"
