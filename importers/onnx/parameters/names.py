"""What parameters are called that a file holds in one tensor with others: as a user of the exported network would call them."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from onnx import GraphProto

from ..model import OnnxModel, label
from .groups import ROLE, Evidence, UseGroup
from .placeholders import RESULT
from .scopes import flattened, is_made_up, last_word, parent
from .uses import UNIT, most_important

WORDS = {"weight": "weight", "scale": "weight", "slope": "weight", "table": "weight", "bias": "bias"}
"""The usual name of a module's parameter by its role."""


class NewNames:
    """Hands out names that are new in the file."""

    def __init__(self, model: OnnxModel, evidence: Evidence, free: set[str]) -> None:
        """free: names of the file that are to be new."""
        self._scopes, self._placeholders, self._columns = evidence.scopes, evidence.placeholders, evidence.norms.columns
        self.renamed: dict[str, str] = {}
        """Names of parameters in place of those that the exporter made up for their tensors, and these."""
        self._taken = _names_in(model.proto.graph) - free
        self._numbers: Counter[str] = Counter()

    def give(self, parts: Sequence[UseGroup]) -> None:
        """Name the parameters of one tensor: one has the tensor's name, see `keeper`, unless that is none for a norm's numbers per channel."""
        first = keeper(parts)
        for part in parts:
            again = part is first and is_made_up(part.tensor) and self.is_column(part) and self._is_placed(part)
            part.name = part.tensor if part is first and not again else self.after(part)
            if again:
                self.renamed[part.name] = part.tensor
            part.column = self.is_column(part) and part.name == self._as_parameter(part)

    def is_column(self, part: UseGroup) -> bool:
        """A norm's numbers per channel."""
        return all(use.place is not None and (use.place, use.index) in self._columns for use in part.uses)

    def _is_placed(self, part: UseGroup) -> bool:
        """The file says in which module the parameter is."""
        kind, said = part.key
        return (kind == "placeholder" and said != RESULT) or (kind == "module" and not said.startswith(ROLE))

    def _as_parameter(self, part: UseGroup) -> str:
        """The usual name in its module."""
        use = part.uses[0]
        return f"{self._scopes.module(use.node) or ''}.{WORDS.get(use.role, '')}"

    def after(self, part: UseGroup) -> str:
        """A new name for a parameter, after where it is read."""
        return self.new(self._called(part))

    def new(self, name: str) -> str:
        """The name, numbered where there is one already."""
        name = free = re.sub(r"\s", "_", str(name))
        while free in self._taken:
            self._numbers[name] += 1
            free = f"{name}_{self._numbers[name]}"
        self._taken.add(free)
        return free

    def _called(self, part: UseGroup) -> str:
        use, (kind, said) = part.uses[0], part.key
        if kind == "name":
            return said
        module = self._scopes.module(use.node)
        if (kind, said) in (("placeholder", RESULT), (UNIT, "")):
            return f"{part.tensor}.constant"
        if kind == "placeholder":
            return _as_stored(self._placeholders.called(said, module, part.tensor), part)
        if kind != "module" or module is None:
            return f"{part.tensor}.{label(use.node)}"
        if not is_made_up(part.tensor) and "/" not in str(part.tensor):
            return f"{module}.{last_word(part.tensor)}"
        word = WORDS.get(most_important([u.role for u in part.uses]))
        return _as_stored(f"{module}.{word}", part) if word else f"{part.tensor}.{module}"


def keeper(parts: Sequence[UseGroup]) -> UseGroup:
    """The part that keeps the tensor's name: the parameter of that name, else the first one."""
    return next((p for p in parts if _is_own(p)), parts[0])


def freed(model: OnnxModel, groups: Mapping[str, Sequence[UseGroup]]) -> set[str]:
    """Outputs of Identity nodes all of whose readers will read a parameter instead, so that the nodes may go."""
    kept = {v.name for v in model.proto.graph.output}
    moved: set[str] = set()
    for parts in groups.values():
        stays = keeper(parts)
        for part in parts:
            for use in part.uses:
                (kept if part is stays or use.place is None else moved).add(use.name)
    gone: set[str] = set()
    for node in reversed(model.proto.graph.node):
        if node.op_type == "Identity" and node.output and node.output[0] in moved - kept:
            gone.add(node.output[0])
            moved.update(node.input)
        elif node.op_type == "Identity":
            kept.update(node.input)
    return gone


def _is_own(part: UseGroup) -> bool:
    kind, said = part.key
    return any(use.place is None for use in part.uses) or part.key == ("name", part.tensor) \
        or (kind == "placeholder" and said[2:] == flattened(part.tensor)) or (kind == "module" and said.partition(ROLE)[0] == parent(part.tensor))


def _as_stored(name: str, part: UseGroup) -> str:
    """What exporters fold into a MatMul is not the module's weight but its transpose."""
    use = part.uses[0]
    return f"{name}.T" if is_made_up(part.tensor) and use.node.op_type == "MatMul" and use.role == "weight" else name


def _names_in(graph: GraphProto) -> set[str]:
    """Every name of a graph and of the bodies in it."""
    names: set[str] = set()
    stack = [graph]
    while stack:
        inner = stack.pop()
        names |= {t.name for t in inner.initializer} | {v.name for v in inner.input}
        for node in inner.node:
            names.update(node.output)
            stack += [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]
    return names
