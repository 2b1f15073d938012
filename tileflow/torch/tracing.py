"""A module's `forward` while it is looked at: what it is put back to, what it draws, what exporters would drop without
a word."""
from __future__ import annotations

import contextlib
import io
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction

from ..system.errors import UnsupportedError
from .annotations import Asked, exporting
from .custom import ctc_loss

LOSSES: frozenset[Any] = frozenset(
    {
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
        F.cosine_embedding_loss,
        F.cross_entropy,
        F.ctc_loss,
        F.gaussian_nll_loss,
        F.hinge_embedding_loss,
        F.huber_loss,
        F.kl_div,
        F.l1_loss,
        F.margin_ranking_loss,
        F.mse_loss,
        F.multi_margin_loss,
        F.multilabel_margin_loss,
        F.multilabel_soft_margin_loss,
        F.nll_loss,
        F.poisson_nll_loss,
        F.smooth_l1_loss,
        F.soft_margin_loss,
        F.triplet_margin_loss,
    }
)
"""Functions that give losses: what they give is minimised where a module marks nothing and returns no number."""


GRADIENTS: frozenset[Any] = frozenset({torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward})
HOOKS: frozenset[Any] = frozenset({torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook})
APPLY = torch.autograd.Function.apply.__func__.__code__             # type: ignore[attr-defined]
"""What calls the `forward` of functions that have a `backward` of their own, with gradients off."""


class Watching(TorchFunctionMode):
    """Sees every function that `forward` calls. Where an export is under way it says what exporters drop: gradients
    that end (`detach`, `torch.no_grad`), label smoothing and rows of padding, which are computed from what they know.

    trains: gradients are wanted, so that what gives them in a way of its own is refused.
    losses: what functions that are losses gave.
    """

    def __init__(self, trains: bool) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []
        self._trains, self._with_gradients = trains, torch.is_grad_enabled()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        export = exporting()
        if func is F.embedding:
            _refuse(*args, **kwargs)
        if self._trains and func in GRADIENTS:
            raise UnsupportedError("forward() computes gradients itself (torch.autograd), which no exporter can write; "
                                   "write them as functions of PyTorch's, or train this part by PyTorch itself.")
        if self._trains and func in HOOKS:
            raise UnsupportedError(f"forward() hangs a hook on a gradient ({func.__name__}), which exporters drop; "
                                   "take it away, or train this part by PyTorch itself.")
        written = INSTEAD_OF.get(func) if export is not None else None
        result: Any = None if written is None else written(*args, **kwargs)
        if result is None:
            result = func(*args, **kwargs)
        if func in LOSSES and isinstance(result, torch.Tensor):
            self.losses.append(result)
        ends = (
            func is torch.Tensor.detach
            or func is torch.detach
            or (self._with_gradients and not torch.is_grad_enabled())
        )
        if self._trains and ends and (own := _function()) is not None:
            raise UnsupportedError(
                "torch.utils.checkpoint with use_reentrant=True has gradients that exporters drop; set "
                "use_reentrant=False."
                if own is CheckpointFunction else
                f"{own.__qualname__} is a torch.autograd.Function with a backward() of its own, which exporters drop; "
                "write it as functions of PyTorch's (x + (f(x) - x).detach() has f's values and x's gradient), or "
                "declare it as an operator: tileflow.torch.custom_op.")
        if (
            export is not None
            and ends
            and isinstance(result, torch.Tensor)
            and result.is_floating_point()
            and not any(result is a for a in args)
        ):
            return export.mark(result, Asked(detached=True))
        return result


def _function() -> type | None:
    """The torch.autograd.Function of a user's whose `forward` is under way, or PyTorch's for checkpoints; None where
    none is."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        if frame.f_code is APPLY:
            own: type = frame.f_locals["cls"]
            if own is CheckpointFunction or not own.__module__.startswith(("torch.", "tileflow.")):
                return own
        frame = frame.f_back
    return None


def check_hooks(module: torch.nn.Module) -> None:
    """UnsupportedError where a module or a parameter has a hook on its gradient: exporters see none of it."""
    for path, m in module.named_modules():
        if m._backward_hooks or m._backward_pre_hooks:
            raise UnsupportedError(f"{path or type(module).__name__} has a hook on its gradients "
                                   "(register_full_backward_hook), which exporters drop; take it away.")
    for path, p in module.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:  # type: ignore[attr-defined]
            raise UnsupportedError(f"The parameter {path!r} has a hook on its gradient, which exporters drop; take it "
                                   "away.")


def _cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    """A cross entropy with label smoothing, or with a probability of each class in place of its number, in functions
    that exporters keep; None where there is neither."""
    probabilities = target.is_floating_point()
    if not (label_smoothing or probabilities) or size_average is not None or reduce is not None:
        return None
    classes = min(1, input.dim() - 1)
    count = input.shape[classes]
    scores = F.log_softmax(input, classes)
    shape = [1] * input.dim()
    shape[classes] = count
    weighted = scores if weight is None else scores * weight.reshape(shape)
    if probabilities:
        smooth = target if not label_smoothing else target * (1 - label_smoothing) + label_smoothing / count
        each, counted = -(weighted * smooth).sum(classes), None
    else:
        counts = (target != ignore_index).to(scores.dtype)
        plain = F.nll_loss(scores, target, weight, ignore_index=ignore_index, reduction="none")
        each = plain * (1 - label_smoothing) - weighted.sum(classes) * counts * (label_smoothing / count)
        counted = (counts if weight is None else F.embedding(target * counts.to(target.dtype), weight.unsqueeze(1))
                   .squeeze(-1) * counts).sum()
    if reduction == "none":
        return each
    if reduction == "sum":
        return each.sum()
    return each.mean() if counted is None else each.sum() / counted


def _gaussian(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor | None:
    """A Gaussian's negative logarithm without its look at the variances' sign, by which nothing but an error is
    decided; None where shapes differ in a way of its own."""
    if not isinstance(var, torch.Tensor) or var.shape not in (input.shape, (*input.shape[:-1], 1)):
        return None
    export = exporting()
    assert export is not None
    large = var + export.mark(torch.clamp(var, min=eps) - var, Asked(detached=True))
    each = 0.5 * (torch.log(large) + (input - target) ** 2 / large)
    if full:
        each = each + 0.5 * math.log(2 * math.pi)
    return each if reduction == "none" else each.sum() if reduction == "sum" else each.mean()


def _refuse(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> None:
    """Raise UnsupportedError for a lookup of which exporters drop something that nothing else says."""
    if max_norm is not None:
        raise UnsupportedError(
            "An embedding with max_norm writes its own weights in forward(), and the optimizer does; leave max_norm "
            "out, and scale rows between calls."
        )
    if scale_grad_by_freq:
        raise UnsupportedError(
            "An embedding with scale_grad_by_freq has other gradients than exporters can say; leave it out."
        )


def _padded(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor | None:
    """A lookup whose row of padding gets no gradient; None where there is no such row."""
    if padding_idx is None:
        return None
    rows = F.embedding(input, weight)
    export = exporting()
    assert export is not None
    is_padding = input == (padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx)
    return torch.where(is_padding.unsqueeze(-1), export.mark(rows, Asked(detached=True)), rows)


INSTEAD_OF: dict[Any, Callable[..., torch.Tensor | None]] = {
    F.cross_entropy: _cross_entropy, F.gaussian_nll_loss: _gaussian, F.embedding: _padded, F.ctc_loss: ctc_loss}
"""What is computed, while an export is under way, in place of functions of which exporters drop something; None:
nothing is."""


class WithoutDraws(TorchDispatchMode):
    """Nothing is drawn: dropout keeps all, normal numbers are their mean, uniform ones the middle. drew: whether
    something would have been."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.drew = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        instead = INSTEAD.get(func)
        if instead is None:
            return func(*args, **kwargs)
        self.drew = True
        return instead(func, *args, **kwargs)


def _kept(func: Any, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    return x.clone(), torch.ones_like(x, dtype=torch.bool)


def _filled(number: Callable[..., float]) -> Callable[..., torch.Tensor]:
    """In place: all elements are what `number` makes of the arguments."""
    return lambda func, x, *args, generator=None, **kwargs: x.fill_(number(*args, **kwargs))


def _made(number: float) -> Callable[..., torch.Tensor]:
    """Anew: as the function makes it, but for the elements."""
    return lambda func, *args, **kwargs: func(*args, **kwargs).fill_(number)


_A = torch.ops.aten
INSTEAD: dict[Any, Callable[..., Any]] = {
    _A.native_dropout.default: _kept,
    _A.bernoulli_.float: _filled(lambda p=0.5: p),
    _A.normal_.default: _filled(lambda mean=0.0, std=1.0: mean),
    _A.uniform_.default: _filled(lambda low=0.0, high=1.0: (low + high) / 2),
    _A.randn.default: _made(0.0),
    _A.randn_like.default: _made(0.0),
    _A.rand.default: _made(0.5),
    _A.rand_like.default: _made(0.5),
}


@contextlib.contextmanager
def put_back(module: torch.nn.Module) -> Iterator[None]:
    """Whatever happens within, the module is afterwards as it was: buffers, plain attributes and their elements, the
    state of random numbers."""
    held = [(m, dict(m._buffers), dict(m.__dict__)) for m in module.modules()]
    moved = [
        *module.buffers(),
        *(t for m in module.modules() for t in m.__dict__.values() if isinstance(t, torch.Tensor)),
    ]
    elements = [(b, b.detach().clone()) for b in moved]
    drawn = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(drawn)
        for m, buffers, attributes in held:
            m.__dict__.clear()
            m.__dict__.update(attributes)
            m._buffers.clear()
            m._buffers.update(buffers)
        with torch.no_grad():
            for b, before in elements:
                if not same(b, before):
                    b.copy_(before)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Two tensors have the same elements. (Batch normalisation writes buffers without changing their `_version`.)"""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


LOUD = (
    "torch.onnx",
    "torch.export",
    "torch.onnx._internal.exporter._registration",
    "torch.export._trace",
    "onnxscript",
    "torch.fx.experimental.symbolic_shapes",
)
"""Loggers of exporters, those among them that have handlers or levels of their own."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Exporters tell developers of exporters much that users of modules need not know; what goes wrong is an
    exception."""
    loggers = [logging.getLogger(name) for name in LOUD]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    log = getattr(torch._C, "_jit_onnx_log", None)          # TorchScript's own, which writes past Python's streams
    if log is not None:
        torch._C._jit_onnx_log = lambda *_: None            # type: ignore[attr-defined]
    try:
        said = io.StringIO()                                # where exporters print graphs, whoever listens
        with warnings.catch_warnings(), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        if log is not None:
            torch._C._jit_onnx_log = log                    # type: ignore[attr-defined]
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
