"""Parameters of the network's signature that no node of an optimised file reads, by what the file shows of the reason.

The exporter's optimiser makes one of nodes that compute the same, and then the parameters of the others are gone: their values were equal, so the
one that is left holds one number throughout (norms, biases and tokens as they are initialised), or is of a copied layer. A name that
is tied to another parameter, and one that the network never reads, are in the signature as well. Signatures hold no shapes or values.
"""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from .groups import Evidence
from .scopes import last_word, parent

WORD, NUMBER = re.compile(r"[^\W\d_]+"), re.compile(r"\d+")
GENERAL = {"weight", "bias"}
"""What parameters of any layer are called."""


def unread(evidence: Evidence) -> tuple[list[str], list[str]]:
    """The parameters that an equal one is read in place of, and those of which the file does not say whether the network uses them."""
    if not evidence.origins.computed and _is_as_exported(evidence):
        return [], []
    borrowing, ties = {module for module, _, _ in _borrowed(evidence)}, _ties(evidence)
    read, order = set(_read(evidence)), list(evidence.origins.parameters.values())
    rest = [name for name in _not_read(evidence) if parent(name) not in borrowing]
    lost = [name for name in rest if any(_is_twin(name, other, filled) for other, filled in read)]
    return lost, [name for name in rest if name not in lost and not any(_is_alias(name, *tie, order) for tie in ties)]


def aliases(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """The other names of tied parameters, by the one that torch.export chose: that of a module which reads another's parameter where its own would
    be, or, if it can be of one parameter only, one that stands for such a module (see `_is_alias`)."""
    found: dict[str, list[str]] = defaultdict(list)
    ties, order = _ties(evidence), list(evidence.origins.parameters.values())
    for name in _not_read(evidence) if ties else ():
        own = {base for module, base in ties if parent(name) == module and last_word(name) == last_word(base)}
        bases = own or {base for module, base in ties if _is_alias(name, module, base, order)}
        if len(bases) == 1:
            found[bases.pop()].append(name)
    return {base: tuple(names) for base, names in found.items()}


def _not_read(evidence: Evidence) -> list[str]:
    """The names in the signature of which no node reads the parameter."""
    read = {*evidence.placeholders.known, *evidence.placeholders.given.values()}
    return [name for placeholder, name in evidence.origins.parameters.items() if placeholder not in read]


def _borrowed(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Parameters of other modules than the one that reads them: that module, the parameter, and its tensor."""
    return [(evidence.scopes.module(use.node) or "", name, tensor) for tensor, uses in evidence.uses.items() for use in uses
            if (name := evidence.parameter(use)) is not None and parent(name) != evidence.scopes.module(use.node)]


def _ties(evidence: Evidence) -> set[tuple[str, str]]:
    """Modules that read another's parameter, and that. Tensors of one number throughout may be equal by chance."""
    return {(module, base) for module, base, tensor in _borrowed(evidence) if not evidence.is_filled(tensor)}


def _is_as_exported(evidence: Evidence) -> bool:
    """The exporter's optimiser, which makes initializers of constants and of transposed weights, has not seen the file."""
    return any(node.op_type == "Constant" or (node.op_type == "Transpose" and {*node.input} & evidence.model.tensors.keys())
               for node in evidence.nodes)


def _read(evidence: Evidence) -> Iterator[tuple[str, bool]]:
    """The parameters that are read, or are in a result that is, each with whether all its elements are one number."""
    for tensor, uses in evidence.uses.items():
        for name in (*evidence.origins.computed.get(tensor, ()), *filter(None, (evidence.parameter(use) for use in uses))):
            yield name, evidence.is_filled(tensor)


def _is_twin(name: str, other: str, filled: bool) -> bool:
    """Judging by its name, `other` may be what `name` was merged with: of a layer of the same kind, or of a copy."""
    if last_word(name) != last_word(other) and GENERAL & {last_word(name), last_word(other)}:
        return False
    if filled and any(a.endswith(b) or b.endswith(a) for a in _words(name) for b in _words(other)):
        return True
    one, two = name.split("."), other.split(".")
    differing = [place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b]
    if len(one) != len(two) or len(differing) != 1:
        return False
    place, = differing
    return place < len(one) - 2 or NUMBER.sub("", one[place]) == NUMBER.sub("", two[place])


def _words(name: str) -> set[str]:
    """'layers.0.input_layernorm.weight' -> input, layernorm: of what a layer, or a parameter with a name of its own, is called."""
    parts = [part for part in name.split(".") if part not in GENERAL and not part.isdecimal()]
    return {word.lower() for word in WORD.findall(parts[-1])} if parts else set()


def _is_alias(name: str, module: str, base: str, order: list[str]) -> bool:
    """A name of the parameter `base`, which `module` reads in place of its own: torch.export calls a tied parameter by the last of its names. Such
    a table is all that its own module holds, which is called as `module` is, or stands above it."""
    holder = parent(name)
    alone = not any(parent(other) == holder for other in order if other != name)
    near = last_word(holder) == last_word(module) or not parent(holder) or module.startswith(f"{parent(holder)}.")
    return alone and near and last_word(name) == last_word(base) and order.index(name) < order.index(base)
