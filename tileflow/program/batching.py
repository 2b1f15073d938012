"""How the rows of a call are divided: into micro-batches, replicas, updates."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Batching:
    """Rows of a call: `micro_batch * replicas * gradient_accumulation * device_iterations`, consumed in that nesting,
    innermost first.

    replicas: data-parallel copies over shared weights. On the host they are micro-batches of the same update: number
        (accumulation index x replicas + replica) of it.
    """

    micro_batch: int
    gradient_accumulation: int = 1
    device_iterations: int = 1
    replicas: int = 1

    @property
    def per_update(self) -> int:
        """Micro-batches of one update, of all replicas; of one iteration where nothing is trained."""
        return self.gradient_accumulation * self.replicas

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one call."""
        return self.per_update * self.device_iterations

    @property
    def rows(self) -> int:
        """Samples of one call."""
        return self.micro_batch * self.micro_batches

    @property
    def rows_per_update(self) -> int:
        return self.micro_batch * self.per_update
