"""Arguments and results of a module: nested as users have them, and flat as programs take and give them."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..system.errors import TypeMismatchError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's elements as an array: the same memory where it is a plain row-major tensor of this computer's."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.cpu().contiguous().view(torch.int16).numpy().view(BFLOAT16)
    try:
        return tensor.numpy(force=not tensor.is_cpu)
    except TypeError:
        raise TypeMismatchError(
            f"A tensor of {tensor.dtype} ({tensor.layout}) has no array; give floats, integers or booleans."
        ) from None


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same memory."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def result_of(array: Any) -> torch.Tensor:
    """What a call gave, as a tensor that nobody else writes."""
    array = np.asarray(array)
    return tensor_of(array if array.flags.writeable and array.flags.c_contiguous else np.array(array, order="C"))


@dataclass(frozen=True)
class Form:
    """How the arguments of a call are nested, and what of them is no tensor: constants, which are compiled in.

    names: what `forward` calls each tensor. constants: by the place of a leaf. tensors: places of those that are.
    """

    spec: pytree.TreeSpec
    names: tuple[str, ...]
    constants: tuple[tuple[int, Any], ...]
    tensors: tuple[int, ...]

    def nested(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments with these tensors."""
        leaves: dict[int, Any] = {**dict(self.constants), **dict(zip(self.tensors, tensors, strict=True))}
        args, kwargs = pytree.tree_unflatten([leaves[i] for i in range(len(leaves))], self.spec)
        return args, kwargs

    def differs(self, other: Form) -> str:
        """How another call's form differs, as a phrase; '' where it does not."""
        if self.spec != other.spec or self.tensors != other.tensors:
            return f"it was compiled for the arguments {self._shown()} and got {other._shown()}"
        for (i, a), (_, b) in zip(self.constants, other.constants, strict=True):
            if not _same(a, b):
                return f"an argument that is no tensor was compiled in as {a!r} (leaf {i}) and is {b!r}"
        return ""

    def _shown(self) -> str:
        return f"({', '.join(self.names)})" + (
            f" and {len(self.constants)} that are no tensors" if self.constants else ""
        )


def _same(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:
        return a is b


def flattened(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Sequence[str]
) -> tuple[Form, list[torch.Tensor]]:
    """A call's form and its tensors; arrays become tensors. `parameters`: what `forward` calls its arguments, in order.

    """
    args, kwargs = _positional(args, kwargs, parameters)
    paths, spec = pytree.tree_flatten_with_path((args, kwargs))
    names, constants, places, tensors = [], [], [], []
    for i, (path, leaf) in enumerate(paths):
        if isinstance(leaf, np.ndarray):
            leaf = tensor_of(np.ascontiguousarray(leaf).reshape(leaf.shape))
        if isinstance(leaf, torch.Tensor):
            names.append(_named(path, parameters))
            places.append(i)
            tensors.append(leaf.detach())
        else:
            constants.append((i, leaf))
    return Form(spec, tuple(names), tuple(constants), tuple(places)), tensors


def _positional(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Keyword arguments in their places as far as they follow the others, so that a call has one form however it is
    written."""
    placed, rest = list(args), dict(kwargs)
    for name in parameters[len(args):]:
        if name not in rest:
            break
        placed.append(rest.pop(name))
    return tuple(placed), dict(sorted(rest.items()))


def _named(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """x, or batch_0 for what is in the argument `batch`."""
    words = [str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", "")))) for key in path]
    first = (
        parameters[int(words[1])]
        if words[0] == "0" and int(words[1]) < len(parameters)
        else f"input{words[1]}"
        if words[0] == "0"
        else words[1]
    )
    return "_".join([first, *words[2:]])


@dataclass(frozen=True)
class Results:
    """How what `forward` returns is nested.

    places: by leaf, which of the program's outputs it is; None for what is no tensor, and then constants[leaf].
    """

    spec: pytree.TreeSpec
    places: tuple[int | None, ...]
    constants: tuple[Any, ...]

    @classmethod
    def of(cls, returned: Any) -> tuple[Results, list[torch.Tensor]]:
        """The form of what was returned, and the tensors in it, each once."""
        leaves, spec = pytree.tree_flatten(returned)
        tensors: list[torch.Tensor] = []
        places: list[int | None] = []
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                places.append(None)
                continue
            known = next((i for i, t in enumerate(tensors) if t is leaf), None)
            if known is None:
                tensors.append(leaf)
            places.append(len(tensors) - 1 if known is None else known)
        return cls(
            spec, tuple(places), tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        ), tensors

    @cached_property
    def plain(self) -> type | None:
        """torch.Tensor, or tuple of tensors, each another one; None: anything else."""
        flat = list(range(len(self.places))) == list(self.places)
        return (
            torch.Tensor
            if self.spec.is_leaf() and flat
            else tuple
            if flat and self.spec == pytree.tree_structure(tuple(self.places))
            else None
        )

    def nested(self, tensors: Sequence[Any]) -> Any:
        """What `forward` would return, of these tensors."""
        if self.plain is torch.Tensor:
            return tensors[0]
        if self.plain is tuple:
            return tuple(tensors)
        return pytree.tree_unflatten(
            [c if i is None else tensors[i] for i, c in zip(self.places, self.constants, strict=True)], self.spec
        )


def mapped(call: Callable[[torch.Tensor], Any], nested: Any) -> Any:
    """The same with every tensor replaced."""
    return pytree.tree_map(lambda leaf: call(leaf) if isinstance(leaf, torch.Tensor) else leaf, nested)
