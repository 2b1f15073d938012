"""Which of a file's tensors are one parameter, and which are several.

Exporters store equal tensors once: all biases that start as zeros, all scales that start as ones, the matrices of cloned layers. Trained as one they
follow another path than the network that was exported. Here each parameter gets a name, and the nodes read it by that name.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from tileflow.system.errors import OptionError

from ..model import OnnxModel
from .groups import MATRICES, UNKNOWN, Evidence, Key, UseGroup
from .names import NewNames, freed
from .patterns import matches
from .restored import dropped_biases
from .unread import aliases
from .uses import Use
from .views import TensorView, find_views, placed

LISTED = 10


@dataclass(frozen=True)
class Ties:
    """The parameters of a file.

    nodes: the file's, reading each parameter by its name. copies: parameters that are new, and the tensors whose elements they start with.
    uses: of every parameter and every other floating tensor, by name. views: tensors that hold another parameter.
    renamed: parameters whose tensors had made-up names, and these. columns: parameters of norms, [C], which the file holds as [C, 1, …] or
    [1, C, 1, …].
    restored: parameters that the exporter dropped, and their elements.
    kept: parameters read by several nodes of which the file does not say whether they share it.
    merged: parameters read for several modules by one node. apart: tensors that hold one parameter in forms that differ, each with another one.
    called: what PyTorch's metadata say that the exported network calls a parameter, where that is another name.
    aliases: other names that a tied parameter has in the exported network.
    """

    evidence: Evidence
    nodes: Sequence[NodeProto]
    uses: Mapping[str, Sequence[Use]]
    copies: Mapping[str, str]
    renamed: Mapping[str, str]
    columns: Set[str]
    views: Mapping[str, TensorView]
    restored: Mapping[str, TensorProto]
    kept: Sequence[str]
    merged: Sequence[str]
    apart: Mapping[str, str]
    called: Mapping[str, str]
    aliases: Mapping[str, tuple[str, ...]]

    def tensor(self, name: str) -> str:
        """The tensor of the file whose elements a parameter starts with."""
        return self.copies.get(name) or self.renamed.get(name, name)

    def fits(self, name: str, patterns: Iterable[str]) -> bool:
        """One of the patterns means the parameter or constant: by the name in the file, or by one of the exported network's."""
        return any(matches(one, patterns) for one in self.names(name))

    def names(self, name: str) -> tuple[str, ...]:
        """Every name of a parameter or constant, the file's first."""
        return name, *([self.called[name]] if name in self.called else []), *self.aliases.get(name, ())

    def shown(self, name: str) -> str:
        """A name for users: the exported network's, with the file's behind it."""
        return f"{self.called[name]} ({name})" if name in self.called else name


def find_ties(model: OnnxModel, tie: Sequence[str] = (), untie: Sequence[str] = ()) -> Ties:
    """Look at all readers of the file's floating tensors.

    Args:
        tie: name patterns of parameters that are one where they hold the same elements.
        untie: name patterns of parameters that are one for each module that reads them, or for each reader where modules are not known.

    Raises OptionError for a pattern that changes nothing.
    """
    evidence = Evidence(model)
    groups = {name: evidence.groups(name) if name in model.initializers else [UseGroup(name, UNKNOWN, uses)]
              for name, uses in evidence.uses.items() if uses}
    gone = freed(model, groups)
    names = NewNames(model, evidence, gone)
    for members in groups.values():
        names.give(members)
    tied = aliases(evidence)
    for part in _flat(groups):
        part.aliases = tied.get(part.called, ())
    changed = _untie(model, groups, evidence, names, untie)
    views = dict(find_views(_flat(groups), evidence)) if evidence.told is None else {}
    changed |= {part.name for part in _flat(groups) if part.name in views and part.fits(untie)}
    views = {name: view for name, view in views.items() if name not in changed}
    _check(untie, changed, "untie", "that several nodes read", _flat(groups))
    _tie(groups, evidence, views, tie)
    restored, biases = _restored(evidence, names)
    parts = _flat(groups)
    told = (*tie, *untie)
    return Ties(evidence=evidence, nodes=_renamed(model, groups, biases), uses={p.name: p.uses for p in parts} | biases, views=views,
                copies={p.name: p.tensor for p in parts if p.name not in (p.tensor, *names.renamed)}, restored=restored,
                renamed={name: tensor for name, tensor in names.renamed.items() if name in {p.name for p in parts}},
                columns=frozenset(p.name for p in parts if p.column),
                kept=[p.name for p in parts if _is_unclear(p) and not p.fits(told)],
                merged=[p.name for p in parts if any(evidence.scopes.is_merged(use.node) for use in p.uses)],
                apart={p.name: same[0].name for same in placed(parts) for p in same[1:] if p.name not in views and not p.fits(told)},
                called={p.name: p.called for p in parts if p.called and p.called != p.name},
                aliases={p.name: p.aliases for p in parts if p.aliases})


def _restored(evidence: Evidence, names: NewNames) -> tuple[dict[str, TensorProto], dict[str, list[Use]]]:
    """Dropped biases under new names, with their elements and their readers."""
    by_placeholder: dict[str, str] = {}
    elements: dict[str, TensorProto] = {}
    uses: dict[str, list[Use]] = defaultdict(list)
    for dropped in list(dropped_biases(evidence)):
        if dropped.placeholder not in by_placeholder:
            by_placeholder[dropped.placeholder] = names.new(dropped.name)
        name = by_placeholder[dropped.placeholder]
        elements[name] = dropped.zeros
        uses[name].append(dropped.use)
        evidence.placeholders.restore(dropped.placeholder, dropped.use)
    return elements, dict(uses)


def _flat(groups: Mapping[str, Sequence[UseGroup]]) -> list[UseGroup]:
    return [part for parts in groups.values() for part in parts]


def _is_unclear(part: UseGroup) -> bool:
    """Several nodes read the parameter, and the file does not say whether on purpose."""
    return part.unknown > 0 and len(part.uses) > 1 and not {use.role for use in part.uses} >= MATRICES


def _untie(model: OnnxModel, groups: Mapping[str, list[UseGroup]], evidence: Evidence, names: NewNames,
           patterns: Sequence[str]) -> set[str]:
    """Split the parameters that a pattern fits; their names."""
    changed = set()
    for tensor, parts in groups.items():
        for part in [p for p in parts if tensor in model.initializers and p.fits(patterns)]:
            modules = {evidence.scopes.module(use.node) for use in part.uses}
            by_module = len(modules) > 1 and None not in modules
            split: dict[Key, list[Use]] = defaultdict(list)
            for use in part.uses:
                split[("module", str(evidence.scopes.module(use.node))) if by_module else ("reader", str(use.place))].append(use)
            stays: list[Use] = []
            for key, uses in split.items():
                if not stays or any(use.place is None for use in uses):
                    stays += uses
                else:
                    parts.append(UseGroup(tensor, key, uses, called=part.called, aliases=part.aliases))
                    parts[-1].name = names.after(parts[-1])
                    changed.add(part.name)
            part.uses = stays
    return changed


def _tie(groups: Mapping[str, list[UseGroup]], evidence: Evidence, views: dict[str, TensorView],
         patterns: Sequence[str]) -> None:
    """Make one parameter of those that one pattern fits and that hold the same elements."""
    changed = set()
    for pattern in patterns:
        fitting = sorted((p for p in _flat(groups) if p.fits((pattern,)) and p.name not in views), key=lambda p: p.name != p.tensor)
        seen: dict[object, UseGroup] = {}
        for part in fitting:
            first = seen.setdefault(evidence.elements(part.tensor), part)
            if first is not part:
                changed |= {first.name, part.name}
                views[part.name] = TensorView(first.name)
    _check(patterns, changed, "tie", "that holds the same elements as another one it fits", _flat(groups))
    by_name = {p.name: p for p in _flat(groups)}
    for parts in groups.values():
        stay = []
        for part in parts:
            base = by_name[views[part.name].base] if part.name in changed and part.name in views else None
            if base is not None and base.tensor == part.tensor:              # no tensor of its own is needed
                base.uses += part.uses
                del views[part.name]
            else:
                stay.append(part)
        parts[:] = stay


def _check(patterns: Sequence[str], changed: Set[str], option: str, what: str, parts: Sequence[UseGroup]) -> None:
    shown = [p.called or p.name for p in parts if option != "untie" or len(p.uses) > 1]
    for pattern in patterns:
        if not any(part.name in changed and part.fits((pattern,)) for part in parts):
            raise OptionError(f"The pattern '{pattern}' of {option} fits no weight {what}; "
                              f"{'those that several nodes read' if option == 'untie' else 'the weights'} are {listed(shown)}.")


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(map(str, names[:LISTED])) or "none") + more


def _renamed(model: OnnxModel, groups: Mapping[str, Sequence[UseGroup]],
             biases: Mapping[str, Sequence[Use]]) -> list[NodeProto]:
    """The file's nodes, reading parameters by their names; Identity nodes that stood for a parameter are left out."""
    edits: dict[int, dict[int, str]] = defaultdict(dict)
    for name, uses in biases.items():
        for use in uses:
            edits[use.place or 0][use.index] = name
    for part in _flat(groups):
        for use in part.uses:
            if use.place is not None and part.name not in (part.tensor, use.name):
                edits[use.place][use.index] = part.name
    gone = freed(model, groups)
    result = []
    for place, node in enumerate(model.proto.graph.node):
        if node.op_type == "Identity" and node.output and node.output[0] in gone:
            continue
        if place in edits:
            copy = NodeProto()
            copy.CopyFrom(node)
            for index, name in edits[place].items():
                copy.input.extend([""] * (index + 1 - len(copy.input)))
                copy.input[index] = name
            node = copy
        result.append(node)
    return result
