"""The tutorial's network and training step in eager PyTorch."""
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


class Network(nn.Module):
    """The tutorial's layers under the names of `bench.models.SHAPES`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(torch.max_pool2d(self.conv1(x), 2))
        x = torch.relu(torch.max_pool2d(self.conv2(x), 2))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def network(weights: dict[str, np.ndarray], dtype: torch.dtype = torch.float32) -> Network:
    """The network with given weights."""
    net = Network().to(dtype)
    net.load_state_dict({n: torch.from_numpy(np.array(a)).to(dtype) for n, a in weights.items()})
    return net


def call(net: nn.Module, optimizer: Any, x: np.ndarray, y: np.ndarray, micro_batch: int, accumulation: int) -> list[float]:
    """One call: all updates that the rows give, each over `accumulation` micro-batches with mean reduction; their losses."""
    images, labels = torch.from_numpy(x), torch.from_numpy(y)
    loss_of, losses = nn.CrossEntropyLoss(), []
    for start in range(0, len(images), micro_batch * accumulation):
        optimizer.zero_grad(set_to_none=True)
        for k in range(accumulation):
            at = slice(start + k * micro_batch, start + (k + 1) * micro_batch)
            loss = loss_of(net(images[at]), labels[at])
            (loss / accumulation).backward()
            losses.append(loss.detach())
        optimizer.step()
    return [float(loss) for loss in losses]
