"""Weights given as PyTorch's optimizers take them: first, as parameters or as a list of groups; others are not
trained."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..system.errors import OptionError

if TYPE_CHECKING:
    from ..graph import State

LISTED = 5
"""Names that a sentence lists."""
OF_GROUPS = ("lr", "weight_decay", "momentum", "dampening", "nesterov", "velocity_scaling", "betas", "eps", "alpha",
             "centered", "max_weight_norm")
"""What groups of any class may have of their own."""


class TakesParameters(type):
    """Optimizers whose first argument may be the weights: AdamW(net.parameters(), lr=1e-3)."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        """An optimizer; with weights first it is for these only."""
        if "params" in named:
            args = (named.pop("params"), *args)
        if not args or not _is_weights(args[0]):
            return super().__call__(*args, **named)
        items, named = _grouped(cls.__name__, list(args[0]), named)
        made = super().__call__(*args[1:], **named)
        made.__dict__["_only"] = tuple(items)
        return made


def _is_weights(given: Any) -> bool:
    """Something to iterate over that is no schedule and no number."""
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes)) and not callable(given)


def _grouped(kind: str, given: list[Any], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """All weights, and arguments in which the first group is the optimizer's own and the others say all that they
    have."""
    if not given:
        raise OptionError(f"{kind} got an empty list of parameters; give it those of a network: "
                          f"{kind}(net.parameters(), lr=...).")
    if not any(isinstance(g, Mapping) for g in given):
        return [_weight(kind, item) for item in given], dict(named)
    if named.get("groups"):
        raise OptionError(f"{kind}: groups are given twice, as the first argument and as groups=...; leave one of them "
                          "out.")
    groups = [dict(g) if isinstance(g, Mapping) else {"params": g} for g in given]
    found: list[Any] = []
    for group in groups:
        params: Any = group.get("params")
        items: list[Any] = list(params) if _is_weights(params) else [params]
        group["params"] = [_weight(kind, item) for item in items]
        found += group["params"]
    first, *more = groups
    numbers = {name: x for name, x in named.items() if name in OF_GROUPS}
    own = {name: x for name, x in first.items() if name != "params"}
    return found, {**named, **own, "groups": [{**numbers, **group} for group in more]}


def _weight(kind: str, item: Any) -> Any:
    if not (hasattr(item, "parameters") or hasattr(item, "trainable")):
        raise OptionError(f"{kind} takes parameters or modules of tileflow.nn, or tables with params, not "
                          f"{type(item).__name__}.")
    return item


def chosen(optimizer: Any, parameters: Sequence[State], named: Mapping[int, str]) -> list[State]:
    """Those of the parameters that an optimizer is for: all, where it was given none.

    Args:
        named: names of the network's own parameter objects, by identity.

    Raises:
        OptionError: it was given some, and none is of this network.
    """
    only = optimizer.__dict__.get("_only")
    if only is None:
        return list(parameters)
    objects = [p for item in only for p in (item.parameters() if hasattr(item, "parameters") else [item])]
    names = {named[id(p)] for p in objects if id(p) in named}
    found = [s for s in parameters if s.name in names]
    if not found:
        known = ", ".join(s.known_as for s in parameters[:LISTED])
        raise OptionError(f"{type(optimizer).__name__} was given parameters of which none is trained in this model, "
                          f"which has {known}; give it the parameters of the network itself.")
    return found


def is_for_some(optimizer: Any) -> bool:
    """It was given the weights that it is for; or `for_some` says that others choose them."""
    return optimizer.__dict__.get("_only") is not None or "_some" in optimizer.__dict__


def for_some(optimizer: Any) -> None:
    """Who compiles a model lets this optimizer update some of its weights only."""
    optimizer.__dict__["_some"] = True
