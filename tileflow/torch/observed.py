"""One call of a module by PyTorch itself, after which it is as before: what it returned, which buffers it wrote, what
it drew."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ..system.errors import UnsupportedError
from ..system.nested import Form, Results
from .calls import results_of
from .learning import Learning
from .tracing import Watching, WithoutDraws, check_hooks, put_back, same


@dataclass(frozen=True)
class Observed:
    """returned: tensors that `forward` returned, each once, then losses that it did not. written: what it made of
    buffers, by name.

    results: how the first are nested. own: how many these are. losses: the places among the tensors of what functions
    that are losses gave.
    drew: numbers would have been drawn, and were not.
    values: what it made of plain attributes (numbers, texts, None), by the path of the module and the name: an export
    has them as they were.
    """

    results: Results
    returned: tuple[torch.Tensor, ...]
    own: int
    losses: tuple[int, ...]
    written: Mapping[str, torch.Tensor]
    drew: bool
    values: Mapping[tuple[str, str], Any]


def returned_by(call: Callable[[], Any], training: bool) -> tuple[Results, list[torch.Tensor], int, tuple[int, ...]]:
    """A call's results and tensors, losses that were not returned after them; how many are its own; the places of
    losses among them."""
    watching = Watching(training)
    with watching:
        returned = call()
    results, tensors = results_of(returned)
    own = len(tensors)
    if training and not any(t.dim() == 0 and t.is_floating_point() for t in tensors):
        tensors += [loss for loss in watching.losses if loss.dim() == 0 and not any(loss is t for t in tensors)]
    return results, tensors, own, tuple(i for i, t in enumerate(tensors) if any(t is loss for loss in watching.losses))


def observe(module: torch.nn.Module, form: Form, tensors: Sequence[torch.Tensor], training: bool,
            after: Observed | None = None, watched: Learning | None = None) -> Observed:
    """Call the module, without gradients and draws, on tensors of its own; with buffers and plain attributes as they
    were `after` another call, `watched` by what follows the tensors that it gets.

    Raises:
        UnsupportedError: it writes its parameters, or has gradients of its own where it is to be trained.
    """
    if training:
        check_hooks(module)
    parameters = [(name, p, p._version) for name, p in module.named_parameters()]
    given = [t.clone() for t in tensors]
    args, kwargs = form.nested(given)
    if watched is not None:
        watched.begin([*given, *module.parameters()])
    with put_back(module):
        with torch.no_grad():
            for name, b in module.named_buffers():
                if after is not None and name in after.written:
                    b.copy_(after.written[name])
        for (path, name), value in ({} if after is None else after.values).items():
            module.get_submodule(path).__dict__[name] = value
        plain = _plain(module)
        before = {name: b.detach().clone() for name, b in module.named_buffers()}
        with torch.no_grad(), WithoutDraws() as draws, watched or nullcontext():
            results, returned, own, losses = returned_by(lambda: module(*args, **kwargs), training)
        now = dict(module.named_buffers())
        changed = {name: now[name] for name, b in before.items() if name in now and not same(now[name], b)}
        written = {name: b.detach().clone() for name, b in changed.items()} | ({} if after is None else {
            name: now[name].detach().clone() for name in after.written if name not in changed})
        kept = tuple(t.detach().clone() for t in returned)
        values = {where: value for where, value in _plain(module).items() if where in plain and plain[where] != value}
    for name, p, version in parameters:
        if p._version != version:
            raise UnsupportedError(
                f"{type(module).__name__}.forward() writes the parameter {name!r}, and the optimizer does; let it be a "
                "buffer (register_buffer), or compute with the new value under another name."
            )
    return Observed(results, kept, own, losses, written, draws.drew, values)


def _plain(module: torch.nn.Module) -> dict[tuple[str, str], Any]:
    """Attributes that are numbers, texts or None, by the path of their module and their name."""
    return {(path, name): value for path, m in module.named_modules() for name, value in vars(m).items()
            if value is None or isinstance(value, bool | int | float | str)}
