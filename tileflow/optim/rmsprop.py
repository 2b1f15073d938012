"""RMSprop (Tieleman & Hinton 2012; centered: Graves 2013, arXiv 1308.0850), also as TensorFlow has it."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..system.errors import OptionError
from .attributes import Schedule
from .groups import ParamGroup
from .optimizer import Optimizer
from .sgd import TORCH_EPSILON
from .transform import Chain, ScaleByRms, Trace, add_decayed_weights, apply_updates, chain, clip_by_global_norm, scale_by_lr


@dataclass
class RMSprop(Optimizer):
    """v = a v + (1 - a) s²;  x = s / (sqrt(v - c²) + eps);  u = mm u + x;  w -= lr * u, with s = g + wd w.

    c is 0, or centered=True: c = a c + (1 - a) s. Without momentum (a constant 0) there is no u.
    use_tf_variant: eps inside the root, x = s / sqrt(v - c² + eps), v begins at 1, and with momentum the rate is inside:
    u = mm u + lr x;  w -= u.

    Args:
        first_order_momentum_accum_type: element type of c and u; second_order_momentum_accum_type: of v (float32, float16, bfloat16).
    """

    lr: Schedule = 1e-2
    alpha: Schedule = 0.99
    eps: Schedule = 1e-8
    momentum: Schedule = 0.0
    centered: bool = False
    use_tf_variant: bool = field(default=False, kw_only=True)
    first_order_momentum_accum_type: Any = field(default=None, kw_only=True)
    second_order_momentum_accum_type: Any = field(default=None, kw_only=True)
    numbers: ClassVar[tuple[str, ...]] = ("lr", "alpha", "eps", "weight_decay", "momentum")
    flags: ClassVar[tuple[str, ...]] = ("centered",)
    types: ClassVar[tuple[str, ...]] = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")

    def check(self) -> None:
        if self.use_tf_variant and self.torch_compat:
            raise OptionError("RMSprop: torch_compat is PyTorch's form and use_tf_variant TensorFlow's; give one of them.")

    def check_group(self, group: ParamGroup) -> None:
        if group["centered"] != self.centered:
            raise OptionError(f"RMSprop: centered is {self.centered} and {group['centered']} in group {group.name}; all groups must agree on it.")

    def chain(self) -> Chain:
        first, second = self.first_order_momentum_accum_type, self.second_order_momentum_accum_type
        moving = "momentum" in self.variable or any(group["momentum"] != 0 for group in self.param_groups)
        inside = self.use_tf_variant and moving
        return chain(clip_by_global_norm(self.max_grad_norm, TORCH_EPSILON if self.torch_compat else 0.0), add_decayed_weights(),
                     ScaleByRms(self.centered, self.use_tf_variant, first, second), Trace(first, inside), None if inside else scale_by_lr(),
                     apply_updates())
