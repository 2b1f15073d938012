"""Calls of networks of layers: arrays and constants within tuples, lists and dicts, as a form and the arrays in it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..system.errors import DataError
from ..system.nested import DEEPEST, PLAIN, Form, Results, TensorPlace, flatten, named, positional, read

if TYPE_CHECKING:
    from .executable_file import Opened


def is_array(value: Any) -> bool:
    """It is an array, or given for one: lists of numbers are, too."""
    if type(value) is list:
        return bool(value) and all(map(_is_numbers, value))
    return not isinstance(value, (tuple, Mapping)) and type(value) not in PLAIN


def _is_numbers(value: Any, depth: int = 1) -> bool:
    """A number, or rows of numbers."""
    if type(value) in (list, tuple):
        return depth < DEEPEST and all(_is_numbers(x, depth + 1) for x in value)
    return type(value) in (bool, int, float)


def arranged(args: Sequence[Any], kwargs: Mapping[str, Any],
             parameters: Sequence[str]) -> tuple[Form | None, list[Any]]:
    """A call's form (None: arrays one after the other) and its arrays; `parameters`: what `forward` calls its
    arguments."""
    if not kwargs and all(map(is_array, args)):
        return None, list(args)
    args, kwargs = positional(args, kwargs, parameters)
    if not kwargs and all(map(is_array, args)):
        return None, list(args)
    leaves, spec = flatten((args, kwargs), is_array)
    tensors = [i for i, (_, leaf) in enumerate(leaves) if is_array(leaf)]
    names = [named(leaves[i][0], parameters) for i in tensors]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"Two arrays of a call would both be called {twice!r}, one within a tuple, list or dict; "
                        "rename the argument or the key.")
    constants = tuple((i, leaf) for i, (_, leaf) in enumerate(leaves) if not is_array(leaf))
    return Form(spec, tuple(names), constants, tuple(tensors)), [leaves[i][1] for i in tensors]


class Nesting(NamedTuple):
    """How a call's arguments and what it returns are nested; None: arrays one after the other."""

    form: Form | None
    results: Results | None
    parameters: list[str]


def nesting_data(parameters: Sequence[str], form: Form | None, results: Results | None) -> Any:
    """A nesting in JSON's types; None where nothing is nested."""
    if form is None and results is None:
        return None
    return {"parameters": list(parameters), "names": None if form is None else list(form.names),
            "arguments": None if form is None else form.data(), "returned": None if results is None else results.data()}


def nesting_of(opened: Opened) -> Nesting:
    """How calls are nested of which there is an executable (ModelError where it is damaged)."""
    data, own = opened.header.form, opened.header.own
    if type(data) is not dict or "names" not in data:
        return Nesting(None, None, [])                             # flat, or of a module of PyTorch's
    form = results = None
    try:
        if data.keys() != {"parameters", "names", "arguments",
                           "returned"} or not _are_names(parameters := data["parameters"]):
            raise ValueError("are not what they should be")
        if data["arguments"] is not None:
            names = data["names"]
            if not _are_names(names) or len(names) != own or type(data["arguments"]) is not list:
                raise ValueError("have other names than its inputs")
            leaves, spec = flatten(tuple(read(x, own, TensorPlace) for x in data["arguments"]))
            places = [i for i, (_, leaf) in enumerate(leaves) if isinstance(leaf, TensorPlace)]
            form = Form(spec, tuple(names), tuple((i, leaf) for i, (_, leaf) in enumerate(leaves) if i not in places),
                        tuple(places))
            in_order = [leaves[i][1] for i in places] == list(range(own))
            if not in_order or [type(x) for x in spec.unflatten([x for _, x in leaves])] != [tuple, dict]:
                raise ValueError("hold other inputs than its program takes")
        if data["returned"] is not None:
            results = Results.of(read(data["returned"], len(opened.header.outputs), TensorPlace))
    except ValueError as fault:
        raise opened.refused(f"its arguments {fault}") from None
    return Nesting(form, results, parameters)


def _are_names(value: Any) -> bool:
    return type(value) is list and all(type(name) is str for name in value)
