"""Adam and AdamW (Kingma & Ba 2015, arXiv 1412.6980; Loshchilov & Hutter 2019, arXiv 1711.05101)."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .attributes import Schedule
from .optimizer import Optimizer
from .sgd import TORCH_EPSILON
from .transform import Chain, ScaleByAdam, add_decayed_weights, apply_updates, chain, clip_by_global_norm, scale_by_lr


@dataclass
class Adam(Optimizer):
    """m = b1 m + (1 - b1) s;  v = b2 v + (1 - b2) s²;  w -= lr * m̂ / (sqrt(v̂) + eps), with L2 decay inside: s = g + wd w.

    m̂ = m / (1 - b1^t) and v̂ = v / (1 - b2^t); the powers and corrections are float64 scalars whatever the weights' type,
    because 1 - b^t cancels. `bias_correction=False` takes m and v as they are. `max_grad_norm` bounds the norm of s, the decay included, as
    PopART has it, or with torch_compat that of g.

    Args:
        first_order_momentum_accum_type, second_order_momentum_accum_type: element types of m and v (float32, float16, bfloat16); by default that
            of the update, at least float32. float16 holds no square below 6e-8, so that small gradients give large steps: bfloat16 does.
    """

    betas: tuple[Schedule, Schedule] = (0.9, 0.999)
    eps: Schedule = 1e-8
    bias_correction: bool = True
    first_order_momentum_accum_type: Any = field(default=None, kw_only=True)
    second_order_momentum_accum_type: Any = field(default=None, kw_only=True)
    numbers: ClassVar[tuple[str, ...]] = ("lr", "betas", "eps", "weight_decay")
    types: ClassVar[tuple[str, ...]] = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")

    def _moments(self) -> ScaleByAdam:
        return ScaleByAdam(self.bias_correction, self.first_order_momentum_accum_type, self.second_order_momentum_accum_type)

    def chain(self) -> Chain:
        clip = clip_by_global_norm(self.max_grad_norm, TORCH_EPSILON if self.torch_compat else 0.0)
        first = (clip, add_decayed_weights()) if self.torch_compat else (add_decayed_weights(), clip)
        return chain(*first, self._moments(), scale_by_lr(), apply_updates())


@dataclass
class AdamW(Adam):
    """Adam with decoupled decay: w -= lr * (m̂ / (sqrt(v̂) + eps) + wd * w). `max_grad_norm` bounds the norm of the gradients."""

    weight_decay: Schedule = 0.01

    def chain(self) -> Chain:
        return chain(clip_by_global_norm(self.max_grad_norm, TORCH_EPSILON if self.torch_compat else 0.0), self._moments(),
                     add_decayed_weights(decoupled=True), scale_by_lr(), apply_updates())
