"""LAMB (You et al. 2020, arXiv 1904.00962): AdamW's direction, scaled per tensor to the size of the weight."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..system.errors import OptionError
from .adam import Adam
from .attributes import Schedule
from .transform import Chain, TrustRatio, add_decayed_weights, apply_updates, chain, clip_by_global_norm, scale_by_lr


@dataclass
class LAMB(Adam):
    """x = m̂ / (sqrt(v̂) + eps) + wd w;  w -= lr * r * x, with r = min(||w||, max_weight_norm) / ||x|| per tensor, 1 where a norm is 0.

    max_weight_norm: None bounds nothing (PopTorch says so and takes 65500); a variable one of 0 turns the ratio off. bias_correction=False
    takes the moments as they are.
    """

    weight_decay: Schedule = 0.01
    max_weight_norm: Schedule | None = 65500.0
    numbers: ClassVar[tuple[str, ...]] = ("lr", "betas", "eps", "weight_decay", "max_weight_norm")

    def check(self) -> None:
        if self.torch_compat:
            raise OptionError("LAMB: torch_compat has no form, for PyTorch has no LAMB.")

    def chain(self) -> Chain:
        return chain(clip_by_global_norm(self.max_grad_norm), self._moments(), add_decayed_weights(decoupled=True), TrustRatio(), scale_by_lr(),
                     apply_updates())
