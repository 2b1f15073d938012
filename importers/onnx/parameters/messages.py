"""What is said aloud of a file's parameters: ties undone and made, doubtful spots, and what the exporter has lost. A few lines for any file."""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from .names import from_placeholder
from .rules import COMPUTED, Verdict
from .ties import Ties, listed

OPTIMIZE = "export with torch.onnx.export(..., dynamo=True, optimize=False), or with do_constant_folding=False"


def notes(ties: Ties, verdicts: Mapping[str, Verdict], states: Iterable[str]) -> list[str]:
    """Sentences about `states`, the parameters and buffers of an import, and about the constants beside them."""
    states = set(states)
    undone = [name for name in ties.copies if name in states]
    kept = [name for name in ties.kept if name in states]
    guessed = [name for name, verdict in verdicts.items() if verdict.doubt and name in states]
    doubtful = [name for name, verdict in verdicts.items() if verdict.doubt and name not in states]
    folded = [name for name in doubtful if verdicts[name].doubt == COMPUTED]
    buffers = [name for name in doubtful if name not in folded]
    views = [f"'{name}' is '{view.base}'{' transposed' if view.transposed else ''}" for name, view in ties.views.items() if view.base in states]
    lost = [from_placeholder(name, ties.evidence.scopes.module(node) or "", "") for name, node in ties.evidence.placeholders.lost.items()]
    restored = [name for name in ties.restored if name in states]
    found = [
        (undone, f"{_count(undone, 'parameter')} stored in one tensor with others, because their first values are equal, and trained on "
                 f"their own: {listed(undone)}."),
        (restored, f"{_count(restored, 'parameter')} that the exporter dropped because {'it is' if len(restored) == 1 else 'they are'} zero, "
                   f"and trained again: {listed(restored)}."),
        (views, f"One parameter in two tensors, trained as one: {listed(views)}."),
        (kept, f"The file does not say whether the readers of these share one parameter: {listed(kept)}. Each is trained as one; if it is "
               f"several, use untie (--untie '{next(iter(kept), '')}')."),
        (list(ties.apart), f"These tensors hold one parameter in two forms, which are trained apart: {listed(list(ties.apart))}; {OPTIMIZE}."),
        (guessed, f"Trained, although nothing tells them from constants: {listed(guessed)}. If they are constants, use frozen."),
        (buffers, f"Not trained, because they are called like buffers: {listed(buffers)}. To train them, use trainable."),
        (folded, f"Not trained, because the exporter computed them, perhaps from parameters: {listed(folded)}. To keep parameters, {OPTIMIZE}."),
        (lost, f"The exporter dropped {_count(lost, 'parameter')}, or folded {'it' if len(lost) == 1 else 'them'} into constants, so "
               f"{'it is' if len(lost) == 1 else 'they are'} not trained: {listed(lost)}. To keep them, {OPTIMIZE}."),
    ]
    return [sentence for names, sentence in found if names]


def _count(names: list[str], what: str) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"
