"""The losses by name, as the option `loss` gives them."""
from __future__ import annotations

from collections.abc import Callable, Mapping

from ..options import registries
from ..options.needs import joined
from ..options.options import Options
from ..system.errors import OptionError
from .base import AsLoss, Build, FunctionLoss, Loss

LOSSES: Mapping[str, Callable[[Options], Loss]] = registries.LOSSES.makers(__package__)
"""What makes each loss of the options that shape it."""


def find(loss: str | Build | Loss, options: Options | None = None) -> Loss:
    """A loss by name with the options that shape it; a function as a loss.

    Raises:
        OptionError: no loss has that name, or it does not know an option that is set.
    """
    options = options or Options()
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, AsLoss):
        loss, given = loss.as_loss(), loss
        for name in registries.LOSSES.own:
            if getattr(options, name) != getattr(Options(), name):
                raise OptionError(f"Option {name} and the loss {type(given).__name__} both say what the loss is; say it there.")
        return loss
    kind = loss if hasattr(loss, "__name__") else type(loss)
    if str(getattr(kind, "__module__", "")).split(".")[0] == "torch":
        raise OptionError(f"The loss is PyTorch's {kind.__name__}, which computes on PyTorch's tensors: give a name ({', '.join(LOSSES)}), a "
                          "criterion of tileflow.nn, or a function (builder, outputs) -> loss.")
    if not isinstance(loss, str) and not callable(loss):
        raise OptionError(f"A loss is a name ({', '.join(LOSSES)}) or a function (builder, outputs) -> loss, not {type(loss).__name__}.")
    if isinstance(loss, str) and loss not in LOSSES:
        raise OptionError(f"There is no loss {loss!r}; choose one of {', '.join(LOSSES)}, or give a function (builder, outputs) -> loss.")
    defaults = Options()
    for name in registries.LOSSES.own:
        losses = registries.LOSSES.having(name)
        if getattr(options, name) != getattr(defaults, name) and loss not in losses:
            called = loss if isinstance(loss, str) else "of one's own"
            raise OptionError(f"Option {name} is for the loss {joined(losses)}; the loss {called} has none.")
    return LOSSES[loss](options) if isinstance(loss, str) else FunctionLoss(loss)
