"""Modules in executables: how arguments and results are nested, as data, and the module that stands for one which is
not there."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from ..program.fields import Fault, shown
from ..runtime.executable_file import Opened
from ..runtime.executable_source import session_of
from ..runtime.loading import require_weights
from ..system.errors import UnsupportedError
from ..system.nested import Form, Results, TensorPlace, read
from .calls import flattened
from .homes import Homed


class ModuleNesting(NamedTuple):
    """How the arguments of a call and what it returns are nested.

    parameters: what `forward` called its arguments. own: how many of the program's outputs `results` shows.
    """

    parameters: tuple[str, ...]
    form: Form
    results: Results
    own: int


def nesting_data(parameters: Sequence[str], form: Form, results: Results, own: int) -> dict[str, Any]:
    """A nesting as data.

    Raises:
        UnsupportedError: arguments or results hold what is none; the sentence names it.
    """
    return {"parameters": list(parameters), "own": own, "arguments": form.data(), "returned": results.data()}


def nesting_of(opened: Opened) -> ModuleNesting:
    """How a module's calls are nested, of which there is an executable.

    Raises:
        ModelError: it is damaged, or no module's.
    """
    data = opened.header.form
    try:
        if type(data) is not dict or data.keys() != {"parameters", "own", "arguments", "returned"}:
            raise Fault("it", "is of no module of PyTorch's, and tileflow.load_executable loads it" if data is None
                        or "names" in data
                        else "does not say what it takes")
        own, parameters = data["own"], data["parameters"]
        if type(own) is not int or not 0 <= own <= len(opened.header.outputs) or type(parameters) is not list \
                or not all(type(p) is str
                           for p in parameters) or type(data["arguments"]) is not list or len(data["arguments"]) != 2:
            raise Fault("its arguments", f"are {shown(data)}")
        args, kwargs = (read(x, opened.header.own, lambda _: torch.zeros(())) for x in data["arguments"])
        returned = read(data["returned"], own, TensorPlace)
    except Fault as fault:
        raise opened.refused(fault) from None
    except ValueError as fault:
        raise opened.refused(f"its arguments {fault}") from None
    if type(args) is not tuple or type(kwargs) is not dict:
        raise opened.refused("its arguments are no arguments")
    form, tensors = flattened(args, kwargs, parameters)
    leaves, spec = pytree.tree_flatten(returned)
    if len(tensors) != opened.header.own:
        raise opened.refused(f"its arguments hold {len(tensors)} tensors, and its program takes {opened.header.own}")
    places = tuple(int(leaf) if isinstance(leaf, TensorPlace) else None for leaf in leaves)
    constants = tuple(None if isinstance(leaf, TensorPlace) else leaf for leaf in leaves)
    return ModuleNesting(tuple(parameters), form, Results(spec, places, constants), own)


class ExecutableModule(torch.nn.Module):
    """The weights of a module that is elsewhere, by their names: what an executable computes is its program."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """There is no Python code to run."""
        raise UnsupportedError(f"{self.where} was loaded from an executable, which has its program for the shapes and "
                               "the mode that it was exported with, and no code to compile for others: call it with "
                               "those, or make the module itself.")


def module_of(opened: Opened) -> Homed:
    """A module with the weights of an executable, which are views of a session's memory.

    Raises:
        ModelError: it has none, or they cannot be a module's.
    """
    require_weights(opened)
    session, made = session_of(opened), ExecutableModule(opened.header.where)
    try:
        for s in opened.header.states:
            if s.kind in ("parameter", "buffer") and s.role != "replica":
                *path, name = s.name.split(".")
                holder: torch.nn.Module = made
                for part in path:
                    if part not in holder._modules:
                        holder.add_module(part, torch.nn.Module())
                    holder = holder.get_submodule(part)
                tensor = torch.empty(s.shape, dtype=getattr(torch, s.dtype))
                if s.kind == "parameter":
                    holder.register_parameter(name, torch.nn.Parameter(tensor, tensor.is_floating_point()))
                else:
                    holder.register_buffer(name, tensor)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise opened.refused(f"its states are not those of a module ({error})") from None
    homed = Homed(made)
    homed.home.session = session
    homed.attach()
    return homed
