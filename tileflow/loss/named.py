"""The losses by name, as the option `loss` gives them."""
from __future__ import annotations

from collections.abc import Callable

from ..options.options import Options
from ..system.errors import OptionError
from .base import AsLoss, Build, FunctionLoss, Loss
from .classes import ClassLoss
from .numbers import NumberLoss
from .own import IdentityLoss


def _cross_entropy(o: Options) -> Loss:
    """Mean softmax cross entropy."""
    return ClassLoss("cross_entropy", False, o.ignore_index, o.class_weights, o.label_smoothing, o.class_axis)


def _nll(o: Options) -> Loss:
    """Mean negative log-likelihood of log-probabilities."""
    return ClassLoss("nll", True, o.ignore_index, o.class_weights, o.label_smoothing, o.class_axis)


LOSSES: dict[str, Callable[[Options], Loss]] = {
    "cross_entropy": _cross_entropy,
    "nll": _nll,
    "mse": lambda o: NumberLoss("mse", "MSELoss"),
    "l1": lambda o: NumberLoss("l1", "L1Loss"),
    "bce": lambda o: NumberLoss("bce", "BCELoss", "BCEWithLogitsLoss"),
    "bce_with_logits": lambda o: NumberLoss("bce_with_logits", "BCEWithLogitsLoss", "BCEWithLogitsLoss"),
    "identity": lambda o: IdentityLoss(),
}
"""Every loss by its name in the option `loss`, but for auto: what makes it of the options."""
CLASS_OPTIONS = {"ignore_index": ("cross_entropy", "nll"), "class_weights": ("cross_entropy", "nll"), "class_axis": ("cross_entropy", "nll"),
                 "label_smoothing": ("cross_entropy",)}
"""Options that shape a loss, and the losses that know them."""


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
        for name in CLASS_OPTIONS:
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
    for name, losses in CLASS_OPTIONS.items():
        if getattr(options, name) != getattr(defaults, name) and loss not in losses:
            called = loss if isinstance(loss, str) else "of one's own"
            raise OptionError(f"Option {name} is for the loss {' and '.join(losses)}; the loss {called} has none.")
    return LOSSES[loss](options) if isinstance(loss, str) else FunctionLoss(loss)
