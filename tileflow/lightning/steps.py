"""A LightningModule's steps as modules: a batch in; outputs, the loss and all that the step logs out."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..poptorch import identity_loss
from ..system.errors import UnsupportedError

LOSS = "loss"
LOGS = ("log", "log_dict")


class Step(torch.nn.Module):
    """Calls one step of a LightningModule with a batch, and `more`: 0 in place of its number, and the loader's, as far
    as it takes them.

    Returns: a table of the outputs (outputs; of training loss as well) and of what was logged, by name (logged).
    """

    def __init__(self, module: Any, name: str, more: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.module, self.name, self.more, self.training = module, name, more, module.training
        self.asked: dict[str, dict[str, Any]] = {}
        """The arguments of `self.log` by the names that it was told."""

    def forward(self, batch: Any) -> dict[str, Any]:
        step: Callable[..., Any] = getattr(self.module, self.name)
        with self._collected() as logged:
            found = step(batch, *self.more)
        given: dict[str, Any] = {}
        if self.name == "training_step":
            loss = found.get(LOSS) if isinstance(found, Mapping) else found
            if not isinstance(loss, torch.Tensor):
                raise UnsupportedError(
                    f"training_step() must return its loss, a tensor or a dict with one under {LOSS!r}, not "
                    f"{type(loss).__name__}: the step is compiled once, and no batch can be left out by returning none."
                )
            given[LOSS] = identity_loss(loss, reduction="none")
            found = {n: x for n, x in found.items() if n != LOSS} if isinstance(found, Mapping) else None
        if found is not None:
            given["outputs"] = found
        if logged:
            given["logged"] = logged
        return given

    @contextmanager
    def _collected(self) -> Iterator[dict[str, torch.Tensor]]:
        """What the step logs, in place of logging it: a step is run by exporters, and computed elsewhere."""
        logged: dict[str, torch.Tensor] = {}

        def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            logged[name] = torch.as_tensor(value).detach() * 1.0
            self.asked[name] = kwargs

        def log_dict(values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
            for name, value in values.items():
                log(name, value, **kwargs)
        instead = {"log": log, "log_dict": log_dict}
        self.module.__dict__.update(instead)
        try:
            yield logged
        finally:
            for name in instead:
                self.module.__dict__.pop(name, None)

    def tell(self, logged: Mapping[str, torch.Tensor], rows: int) -> None:
        """Log what was computed; values of several micro-batches or replicas by their mean."""
        for name, value in logged.items():
            self.module.log(name, value.float().mean(), **{"batch_size": rows, **self.asked.get(name, {})})
