"""Which parameter each reader of a stored tensor reads. The evidence, best first:

1. PyTorch's metadata name the parameter (`Placeholders`).
2. TorchScript keeps the name of a parameter that it merged with another one as that of an Identity of the stored tensor.
3. The reader's module: the same role in different modules means different parameters, a table that is a product's weight too is one.

Readers of whom the file says nothing read what the others read. A file that was written from a network of layers says all of it (`told`).
"""
from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from tileflow.graph import STATISTIC

from ..model import OnnxModel
from .folds import computed_products
from .norms import find_norms
from .origins import origins_of
from .patterns import matches
from .placeholders import Placeholders, call_of
from .scopes import Scopes, is_made_up, parent
from .told import told
from .uses import UNIT, Use, uses_of

Key = tuple[str, str]
"""The kind of evidence and what it says."""
UNKNOWN: Key = ("unknown", "")
ROLE = "|"
"""Stands between a module and the role of what it reads."""
MATRICES = {"table", "weight"}
"""Roles that share a parameter on purpose: an embedding and the head tied to it."""


@dataclass(eq=False)
class UseGroup:
    """Uses of one tensor that read one parameter, by which evidence, and what the parameter is called."""

    tensor: str
    key: Key
    uses: list[Use]
    name: str = ""
    unknown: int = 0
    """Readers among them of whom the file says nothing."""
    column: bool = False
    """A norm's parameter, one number per channel, that the file holds as a column."""
    called: str = ""
    """What the exported network calls it, as far as PyTorch's metadata say."""
    aliases: tuple[str, ...] = ()
    """Other names that it has there."""

    def fits(self, patterns: Iterable[str]) -> bool:
        """One of the patterns means it, by any of its names."""
        return any(matches(name, patterns) for name in (self.name, self.called, *self.aliases))


class Evidence:
    """What a file says about who reads what."""

    def __init__(self, model: OnnxModel) -> None:
        self.model, self.nodes = model, model.proto.graph.node
        self.scopes = Scopes(model)
        self.norms = find_norms(model, self._together)
        self.uses = uses_of(model, self.norms.roles)
        called = [node for node in self.nodes if call_of(node) is not None]
        self.origins = origins_of(model.proto.graph)
        uses, inputs = (u for found in self.uses.values() for u in found), (v.name for v in model.proto.graph.input)
        self.placeholders = Placeholders(uses, inputs, called, self.origins)
        self.told = told(model)
        self.by_pytorch = model.proto.producer_name == "pytorch"
        self.by_torchscript = self.by_pytorch and not called
        """Stored tensors have the names of the network's parameters and buffers, unless the exporter numbered them."""
        self.computed = computed_products(model) if self.by_torchscript else frozenset[str]()
        """Weights that its names say were computed."""
        self._filled: dict[str, bool] = {}
        self._elements: dict[tuple[str, bool], tuple[Any, ...]] = {}

    def groups(self, tensor: str) -> list[UseGroup]:
        """The uses of one tensor by parameter, in the order of the file; none where nobody reads it."""
        uses = self.uses[tensor]
        if self.told is not None and tensor in self.told:
            return [UseGroup(tensor, ("name", tensor), uses)]
        found: dict[Key, list[Use]] = defaultdict(list)
        for use in uses:
            found[self._key(tensor, use, len(uses) > 1)].append(use)
        if len(found) > 1 and self._is_tie(tensor, found):
            found = {next(iter(found)): uses}
        self._join_modules(found)
        unknown = found.pop(UNKNOWN, [])
        parts = [UseGroup(tensor, key, members, unknown=len(members) if key[0] == STATISTIC else 0,
                          called=self.called(members))
                 for key, members in found.items()]
        known = next((part for part in parts if part.uses[0].role not in (STATISTIC, UNIT)), None)
        if unknown and known is not None:
            known.uses += unknown
            known.unknown = len(unknown)
        elif unknown:
            parts.insert(0, UseGroup(tensor, UNKNOWN, unknown, unknown=len(unknown)))
        return parts

    def _together(self, one: NodeProto, other: NodeProto) -> bool:
        """Two nodes are of one call of PyTorch's or, where these are not known, of one module, as far as the file says."""
        calls, modules = [[f(node) for node in (one, other)] for f in (call_of, self.scopes.module)]
        first, second = modules if None in calls else calls
        return first is None or second is None or first == second

    def _join_modules(self, found: dict[Key, list[Use]]) -> None:
        """Readers of whom only the module is known read what PyTorch's metadata say of another reader in it."""
        placed = {self.scopes.module(use.node): key for key, uses in found.items() if key[0] == "placeholder" for use in uses}
        for kind, said in [key for key in found if key[0] == "module"]:
            key = placed.get(said.partition(ROLE)[0])
            if key is not None:
                found[key] += found.pop((kind, said))

    def _key(self, tensor: str, use: Use, shared: bool) -> Key:
        if use.role == UNIT:
            return (UNIT, "")
        if use.place is None:
            return UNKNOWN
        given = self.placeholders.given.get((use.place, use.index))
        if given is not None:
            return ("placeholder", given)
        module = self.scopes.module(use.node)
        alias = use.name != tensor
        if use.role == STATISTIC and shared and not alias:                 # a mean is no variance, and neither is a bias or a scale
            return (STATISTIC if module is None else "module", f"{module or ''}{ROLE}{use.role}{use.index}")
        named = self.by_torchscript and not is_made_up(use.name)
        if self.by_torchscript and alias and not named and not is_made_up(tensor) and not self.is_filled(tensor):
            return ("name", tensor)                                        # a result with the elements of a parameter, moved perhaps
        if named and (alias or not shared or module == parent(tensor) or (module is not None and not self.is_filled(tensor))):
            return ("name", use.name)
        if module is None:
            return UNKNOWN
        return ("module", f"{module}{ROLE}{use.role}" if shared and self.is_filled(tensor) else module)

    def parameter(self, use: Use) -> str | None:
        """The parameter, as the network calls it, that a call of PyTorch takes at this operand."""
        return None if use.place is None else self.origins.parameters.get(self.placeholders.given.get((use.place, use.index), ""))

    def called(self, uses: Iterable[Use]) -> str:
        """What the network calls the one parameter that these read; '' where that is not known, or where the tensor holds several."""
        given = {self.placeholders.given.get((use.place, use.index)) for use in uses if use.place is not None}
        known = {self.origins.parameters.get(one, "") for one in given if one is not None and one not in self.placeholders.stacked}
        return known.pop() if len(known) == 1 else ""

    def _is_tie(self, tensor: str, found: dict[Key, list[Use]]) -> bool:
        roles = {use.role for uses in found.values() for use in uses}
        return roles >= MATRICES and all(kind in ("module", "unknown") for kind, _ in found) and not self.is_filled(tensor)

    def is_filled(self, tensor: str) -> bool:
        """All elements are one number, as those of biases and scales before training: equal values say nothing."""
        if tensor not in self._filled:
            array = self.model.array(tensor)
            self._filled[tensor] = bool(array.size) and bool(np.all(array == array.reshape(-1)[0]))
        return self._filled[tensor]

    def equal(self, one: str, other: str, transposed: bool = False) -> bool:
        """Two tensors have the same elements, bit for bit; `transposed`: a matrix and its transpose have."""
        first, second = self.model.tensors[one], self.model.tensors[other]
        dims = list(first.dims)[::-1] if transposed else list(first.dims)
        if dims != list(second.dims) or first.data_type != second.data_type or (transposed and len(dims) != 2):
            return False
        return self.elements(one, transposed) == self.elements(other)

    def elements(self, tensor: str, transposed: bool = False) -> tuple[Any, ...]:
        """What is equal for equal tensors, and practically for no others: type, shape and a digest."""
        key = (tensor, transposed)
        if key not in self._elements:
            array = self.model.array(tensor).T if transposed else self.model.array(tensor)
            payload = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._elements[key] = (array.dtype.name, array.shape, hashlib.blake2b(payload.data, digest_size=32).digest())
        return self._elements[key]
