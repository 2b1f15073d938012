"""What a module's `forward` asks of its operators while it is exported: scopes, marks on single tensors, losses.

Outside of an export all of this does nothing but compute, so that a module runs in PyTorch as ever.

What is asked is kept in a table of the export under way; the exporters carry its numbers only. torch.export has them as
annotations of its nodes, TorchScript as names of scopes, and a mark on a tensor is an operator of the domain `tileflow`
that reads it (`Asked`).
"""
from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

import torch
import torch.fx.traceback

from ..graph import NOTHING, Hints
from ..importers.onnx.domains.marks import DOMAIN, MARK
from ..system.errors import OptionError

T = TypeVar("T")
Exporter = Literal["torch.export", "TorchScript"]
KEY = "tileflow.asked"
"""The annotation of torch.export's nodes."""
SCOPE = re.compile(r"asked_(\d+)_of_tileflow")
"""How TorchScript's scopes are called."""
LOSS, SERIALIZED = "loss", "serialized"
KINDS = (*(f.name for f in fields(Hints)), LOSS, SERIALIZED)
"""What may be asked: the fields of `tileflow.graph.Hints`; loss (a reduction) and serialized (mode, factor,
keep_precision) of single tensors."""


@dataclass(frozen=True)
class Asked:
    """What is asked of the operator that made a tensor."""

    hints: Hints = NOTHING
    loss: bool = False
    detached: bool = False
    serialized: tuple[str, int, bool] | None = None


@dataclass
class Export:
    """An export under way. scopes: by number, all that a scope and those around it ask. marks: by number, what is asked
    of single tensors. losses: what `identity_loss` gave. told: what the exported module says of its results; not kept
    in itself, for torch.export takes attributes back."""

    by: Exporter
    scopes: list[Hints] = field(default_factory=lambda: [NOTHING])
    marks: list[Asked] = field(default_factory=list)
    current: int = 0
    begun: ExitStack = field(default_factory=ExitStack)
    losses: list[torch.Tensor] = field(default_factory=list)
    told: Any = None
    unnamed: int = 0
    """How many blocks without a name there have been."""

    def enter(self, hints: Hints) -> contextlib.AbstractContextManager[None]:
        """A scope that asks these hints and what those around it ask."""
        number = len(self.scopes)
        self.scopes.append(hints.over(self.scopes[self.current]))
        return self._within(number)

    @contextlib.contextmanager
    def _within(self, number: int) -> Iterator[None]:
        before, self.current = self.current, number
        try:
            if self.by == "torch.export":
                with torch.fx.traceback.annotate({KEY: number}):
                    yield
            else:
                state = torch._C._get_tracing_state()
                state.push_scope(f"tileflow::asked_{number}_of_tileflow")
                try:
                    yield
                finally:
                    state.pop_scope()
        finally:
            self.current = before

    def mark(self, x: torch.Tensor, asked: Asked) -> torch.Tensor:
        """The tensor, read by a mark."""
        number = len(self.marks)
        self.marks.append(asked)
        if self.by == "TorchScript":
            marked: torch.Tensor = _Marked.apply(x, number)
            return marked
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::{MARK}", (x,), {"number": number}, dtype=x.dtype, shape=x.shape, version=1
        )


class _Marked(torch.autograd.Function):
    """How TorchScript meets a mark."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, number: int) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None

    @staticmethod
    def symbolic(g: Any, x: Any, number: int) -> Any:
        return g.op(f"{DOMAIN}::{MARK}", x, number_i=number).setType(x.type())


class _Thread(threading.local):
    export: Export | None = None


_thread = _Thread()


def exporting() -> Export | None:
    """The export under way in this thread; None: `forward` is called by PyTorch itself, or for the comparison with
    it."""
    return _thread.export


@contextlib.contextmanager
def under_export(by: Exporter) -> Iterator[Export]:
    """While this lasts, what `forward` asks is noted."""
    export = Export(by)
    before, _thread.export = _thread.export, export
    try:
        with (
            torch.fx.traceback.preserve_node_meta() if by == "torch.export" else contextlib.nullcontext(),
            export.begun,
        ):
            yield export
    finally:
        _thread.export = before


def _hints(kind: str, value: Any) -> Hints:
    if kind not in KINDS or kind in (LOSS, SERIALIZED):
        raise OptionError(f"A scope asks for one of {', '.join(f.name for f in fields(Hints))}, not {kind!r}.")
    return Hints(**{kind: value})


def scope(kind: str, value: Any) -> contextlib.AbstractContextManager[None]:
    """Operators recorded within ask for `value`: `kind` is a field of `tileflow.graph.Hints`, such as annotation (an
    `Annotation`: the block and its IPU), casting (a `Casting`: automatic casts), multi_conv,
    available_memory_proportion, partials. What scopes around it ask holds where it asks nothing. Outside of an export
    it does nothing.

    Raises:
        OptionError: there is no such kind.
    """
    hints, export = _hints(kind, value), exporting()
    return contextlib.nullcontext() if export is None else export.enter(hints)


def begin(kind: str, value: Any) -> None:
    """From here on operators ask for `value`, until the next `begin` or the end of `forward`; to be called outside of
    scopes."""
    hints, export = _hints(kind, value), exporting()
    if export is not None:
        export.begun.close()
        export.begun.enter_context(export.enter(hints))


def ask(x: torch.Tensor, kind: str, value: Any) -> torch.Tensor:
    """Ask for `value` of the operator that made the tensor; returns the tensor, to be used in its place.

        x = ask(x, "kept", True)                                    # a checkpoint of recomputation
        y = ask(a @ b, "available_memory_proportion", 0.2)
        y = ask(a @ b, "serialized", ("output_channels", 4, False))  # mode, factor, keep_precision

    Outside of an export it is `x` itself.

    Raises:
        OptionError: there is no such kind.
    """
    export = exporting()
    if kind == SERIALIZED:
        asked = Asked(serialized=value)
    else:
        asked = Asked(_hints(kind, value))
    return x if export is None else export.mark(x, asked)


def identity_loss(x: torch.Tensor, reduction: Literal["mean", "sum", "none"] | str = "mean") -> torch.Tensor:
    """Mark what training minimises: the mean or the sum of the tensor, or the tensor itself, the gradient of which is
    then ones.

    Returns:
        a tensor [] or, for none, of x's shape. The module need not return it.

    Raises:
        AssertionError: an unknown reduction (the reference system's own sentence).
    """
    if reduction not in ("mean", "sum", "none"):
        raise AssertionError("Unsupported reduction type!")
    loss = x.mean() if reduction == "mean" else x.sum() if reduction == "sum" else x
    export = exporting()
    if export is None:
        return loss
    marked = export.mark(loss, Asked(loss=True))
    export.losses.append(marked)
    return marked


def serialized_matmul(lhs: torch.Tensor, rhs: torch.Tensor, mode: str = "output_channels", factor: int = 1,
                      keep_precision: bool = False) -> torch.Tensor:
    """lhs @ rhs, on the tile machine in `factor` pieces one after the other, gradients, too
    (`tileflow.nn.serialized_matmul`)."""
    product = torch.matmul(lhs, rhs)
    return product if mode == "none" else ask(product, SERIALIZED, (mode, factor, keep_precision))
