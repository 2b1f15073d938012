"""A network trained here and by PyTorch, from the same weights on the same batches."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import tileflow.torch

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=1e-3),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=2e-3, betas=(0.85, 0.99), weight_decay=1e-3),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=2e-3, weight_decay=0.05),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-3, momentum=0.5, centered=True),
}


def groups(module: torch.nn.Module) -> list[dict[str, Any]]:
    """Matrices, and the rest at half the rate and without decay: as people write it."""
    small = [p for p in module.parameters() if p.dim() < 2]
    large = [p for p in module.parameters() if p.dim() >= 2]
    return [{"params": large}, {"params": small, "weight_decay": 0.0, "lr": 1e-3}]


def drawn(
    draw: Callable[[], tuple[torch.Tensor, ...]], dtype: torch.dtype, updates: int
) -> list[tuple[torch.Tensor, ...]]:
    """Batches with floats of a type."""
    torch.manual_seed(7)
    return [tuple(t.to(dtype) if t.is_floating_point() else t for t in draw()) for _ in range(updates)]


def loss_of(returned: Any) -> torch.Tensor:
    """The last thing that a network returned."""
    found = returned["loss"] if isinstance(returned, dict) else returned[-1]
    assert isinstance(found, torch.Tensor)
    return found


def by_pytorch(module: torch.nn.Module, batches: list[tuple[torch.Tensor, ...]], optimizer: str) -> list[float]:
    """Losses of a native loop."""
    made = OPTIMIZERS[optimizer](groups(module))
    scheduler = torch.optim.lr_scheduler.StepLR(made, 5, 0.7)
    losses = []
    for batch in batches:
        made.zero_grad()
        loss = loss_of(module(*batch))
        loss.backward()
        made.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def here(module: torch.nn.Module, batches: list[tuple[torch.Tensor, ...]], optimizer: str, **how: Any) -> list[float]:
    """Losses of the same loop with the bridge."""
    made = OPTIMIZERS[optimizer](groups(module))
    scheduler = torch.optim.lr_scheduler.StepLR(made, 5, 0.7)
    model = tileflow.torch.training_model(module, optimizer=made, **how)
    losses = []
    for batch in batches:
        losses.append(loss_of(model(*batch)).item())
        scheduler.step()
        model.set_optimizer(made)
    return losses


def far(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """The largest difference of any element of their states."""
    states = other.state_dict()
    return max(
        float((a.double() - states[name].double()).abs().max()) for name, a in one.state_dict().items() if a.numel()
    )


def twins(make: Callable[[], torch.nn.Module], dtype: torch.dtype, count: int = 2) -> list[torch.nn.Module]:
    """The same network several times."""
    torch.manual_seed(3)
    net = make().to(dtype).train()
    return [net, *(copy.deepcopy(net) for _ in range(count - 1))]
