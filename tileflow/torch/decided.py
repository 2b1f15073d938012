"""Whether `forward` decides by values of tensors what it computes: TorchScript writes one way of an `if` and no other,
and two inputs that go the same way show nothing of it."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from ..system.errors import UnsupportedError, see
from ..system.nested import Form
from .learning import Learning
from .observed import Observed, observe

MOST = 16
"""Values that are told otherwise: each is a call of the module, or two."""


def check_decided(module: torch.nn.Module, form: Form, tensors: Sequence[torch.Tensor], seen: Observed,
                  training: bool) -> None:
    """Call the module with each value that Python learns of a tensor told otherwise: a truth value the other way round,
    a number of the other sign, and a larger one. Where that is an error (arguments were being checked) or changes
    nothing, the value may be compiled in.

    Args:
        seen: what the module does with the tensors.

    Raises:
        UnsupportedError: something else is computed; the sentence has the line.
    """
    as_it_is = Learning()
    observe(module, form, tensors, training, watched=as_it_is)
    for i, (value, place) in enumerate(as_it_is.learned[:MOST]):
        for otherwise in (_turned,) if isinstance(value, bool) else (_negative, _larger):
            found = _called(module, form, tensors, training, Learning(i, otherwise))
            if found is not None and not _alike(seen, found):
                raise UnsupportedError(
                    f"{type(module).__name__}.forward() decides by the value of a tensor what it computes ({place}), "
                    "and TorchScript would keep the way of this call for all others; compute both ways and choose by "
                    f"torch.where.{see('pytorch#what-exporters-lose')}")


def _turned(value: bool) -> bool:
    return not value


def _negative(value: float) -> float:
    return -value - 1


def _larger(value: float) -> float:
    return value + 1


def _called(module: torch.nn.Module, form: Form, tensors: Sequence[torch.Tensor], training: bool,
            watched: Learning) -> Observed | None:
    """What it does; None where it does not go on with the other value."""
    try:
        return observe(module, form, tensors, training, watched=watched)
    except Exception:                                       # whatever `forward` raises
        return None


def _alike(one: Observed, other: Observed) -> bool:
    """All that two calls gave and wrote is the same but for rounding."""
    if len(one.returned) != len(other.returned) or one.written.keys() != other.written.keys():
        return False
    pairs = [*zip(one.returned, other.returned, strict=True),
             *((t, other.written[name]) for name, t in one.written.items())]
    return all(a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, 1e-4, 1e-6, equal_nan=True)
               for a, b in pairs)
