"""What training would do with a file: each floating tensor and why, what is one parameter, what behaves differently in training, what is in doubt."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tileflow.graph import Graph
from tileflow.system.text import one_line

from .folded import folded_norms
from .importer import Imported
from .model import OnnxModel, title
from .modes import Modes
from .parameters import ResolvedModel, Ties, Verdict, listed, notes, quantized_weights, resolved, verdicts
from .parameters.messages import HAS_NO_GRADIENT
from .parameters.uses import Use
from .tensors import describe

STATES = ("trained", "frozen", "buffer", "unused", "constant")
"""In the order in which they are shown."""
WIDEST = 72
"""Characters of a name in its column."""
READERS = 1
"""Readers that a line names."""


@dataclass(frozen=True)
class StoredTensor:
    """One floating tensor, or a quantised weight: what it will be (`STATES`), why, and the nodes that read it.
    small: a constant that nobody would train."""

    name: str
    type: str
    elements: int
    state: str
    why: str
    readers: tuple[str, ...]
    small: bool = False


@dataclass(frozen=True)
class TrainingReport:
    """What will happen to a model in training.

    rows: every floating tensor, and the weights that are stored as integers.
    ties: sentences about parameters in several tensors, several in one, and in none. modes: operators that behave differently in training.
    doubts: sentences.
    """

    rows: tuple[StoredTensor, ...]
    ties: tuple[str, ...]
    modes: tuple[str, ...]
    doubts: tuple[str, ...]

    def lines(self, verbose: bool = False) -> list[str]:
        """The report; `verbose` lists single numbers and constants of the exporter too."""
        shown = [row for row in self.rows if verbose or not row.small]
        count, elements = Counter(row.state for row in self.rows), Counter[str]()
        for row in self.rows:
            elements[row.state] += row.elements
        total = ", ".join(f"{count[s]} {s} ({elements[s]:,})" for s in STATES if count[s])
        width = min(WIDEST, max((len(one_line(row.name)) for row in shown), default=0))
        types = max((len(row.type) for row in shown), default=0)
        lines = ["", f"Tensors and their elements: {total or 'none'}"]
        lines += [f"  {row.state:8}  {one_line(row.name):{width}}  {row.type:{types}}  {one_line(row.why)}; read by {_readers(row)}" for row in shown]
        if len(shown) < len(self.rows):
            lines.append(f"  constant  {len(self.rows) - len(shown)} more, single numbers and results of the exporter (--verbose lists them)")
        for heading, sentences in (("Ties, and biases that were dropped", self.ties), ("In training mode", self.modes), ("In doubt", self.doubts)):
            lines += ["", heading] + [f"  {one_line(text)}" for text in sentences or ("none",)]
        return lines


def _readers(row: StoredTensor) -> str:
    more = len(row.readers) - READERS
    return "; ".join(one_line(r) for r in row.readers[:READERS]) + (f" and {more} more" if more > 0 else "")


def training_report(model: OnnxModel, imported: Imported | None, *, freeze: Sequence[str] = (), trainable: Sequence[str] = (),
                    tie: Sequence[str] = (), untie: Sequence[str] = ()) -> TrainingReport:
    """Look at a model as one to train. Where it was not imported (`None`), what no result needs is not known."""
    told = imported.model if imported is not None else resolved(model, tie, untie)
    found = imported.verdicts if imported is not None else verdicts(told, told.ties)
    states = _states(imported, found, told.ties, freeze, trainable)
    integers = quantized_weights(told)
    rows = [_row(told, name, verdict, states.get(name), told.ties.uses[name]) for name, verdict in found.items()]
    rows += [StoredTensor(one.name, describe(told.tensors[one.name]), one.elements, "constant",
                          f"stored as {one.dtype}, which {HAS_NO_GRADIENT}",
                          (title(one.node),)) for one in integers]
    rows.sort(key=lambda row: STATES.index(row.state))
    said = notes(told.ties, found, [name for name, state in states.items() if state in ("trained", "frozen", "buffer")], integers)
    return TrainingReport(tuple(rows), tuple(said.ties), tuple(_modes(imported.graph) if imported is not None else ()),
                          tuple(filter(None, (*said.doubts, Modes(told).said(), folded_norms(told)))))


def _states(imported: Imported | None, found: Mapping[str, Verdict], ties: Ties, freeze: Sequence[str], trainable: Sequence[str]) -> dict[str, str]:
    """The state of every tensor that is none of the constants."""
    if imported is not None:
        kinds = {s.name: "buffer" if s.kind == "buffer" else "trained" if s.trainable else "frozen" for s in imported.graph.states}
        return {n: kinds.get(n, "constant" if v.kind == "constant" else "unused") for n, v in found.items()}
    frozen = {n for n in found if ties.fits(n, freeze) and not ties.fits(n, trainable)}
    return {n: "buffer" if v.kind == "buffer" else "frozen" if n in frozen else "trained" for n, v in found.items() if v.kind != "constant"}


def _row(model: ResolvedModel, name: str, verdict: Verdict, state: str | None, uses: Sequence[Use]) -> StoredTensor:
    tensor = model.tensors[name]
    elements = math.prod(tensor.dims)
    why = "known when the model is imported, or needed by no result" if state == "unused" else verdict.why
    small = state in (None, "constant") and not verdict.doubt and (elements == 1 or name not in model.initializers)
    return StoredTensor(model.ties.shown(name), describe(tensor), elements, state or "constant",
                        f"{why} ({verdict.doubt})" if verdict.doubt else why,
                        tuple(title(use.node) for use in uses), small)


def _modes(graph: Graph) -> list[str]:
    """Operators that an attribute puts into training mode."""
    found = [node for node in graph.nodes if getattr(node.op, "training_mode", 0)]
    kinds = dict.fromkeys(node.op.name for node in found)
    return [f"{kind} in {listed([str(node.origin) for node in found if node.op.name == kind])}" for kind in kinds]
