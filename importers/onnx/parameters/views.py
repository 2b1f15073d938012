"""Tensors that hold a parameter of another tensor once more: exporters fold the transpose of a tied head, or a shared weight, into copies."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .groups import Evidence, UseGroup
from .scopes import is_made_up


@dataclass(frozen=True)
class TensorView:
    """A tensor that holds the elements of the parameter `base`, as they are or transposed."""

    base: str
    transposed: bool = False


def find_views(parts: Sequence[UseGroup], evidence: Evidence) -> Iterator[tuple[str, TensorView]]:
    """Tensors whose parameter is another one's: by PyTorch's name for it, or a product's weight that is an embedding's table transposed."""
    for same in placed(parts):
        base = same[0]
        for part in same[1:]:
            turned = next((t for t in (False, True) if evidence.equal(base.tensor, part.tensor, t)), None)
            if turned is not None:
                yield part.name, TensorView(base.name, turned)
    tables: dict[tuple[int, ...], list[UseGroup]] = defaultdict(list)
    told = {id(part) for same in placed(parts) for part in same}
    matrices = [p for p in parts if len(p.uses[0].dims) == 2 and id(p) not in told]
    for part in matrices:
        if part.uses[0].role == "table":
            tables[part.uses[0].dims[::-1]].append(part)
    for part in matrices:
        if part.uses[0].role == "weight":
            table = next((t for t in tables.get(part.uses[0].dims, ()) if _is_head(part, t, evidence)), None)
            if table is not None:
                yield part.name, TensorView(table.name, True)


def _is_head(part: UseGroup, table: UseGroup, evidence: Evidence) -> bool:
    return part.tensor != table.tensor and not evidence.is_filled(table.tensor) and evidence.equal(table.tensor, part.tensor, True)


def placed(parts: Iterable[UseGroup]) -> list[list[UseGroup]]:
    """Parameters that PyTorch's metadata place in several tensors, each with its parts, one that has a name of its own first."""
    found: dict[str, list[UseGroup]] = defaultdict(list)
    for part in parts:
        kind, said = part.key
        if kind == "placeholder" and said.startswith("p_"):
            found[said].append(part)
    return [sorted(same, key=lambda p: is_made_up(p.name)) for same in found.values() if len({p.tensor for p in same}) > 1]
