"""Optimizers under the reference's names: PyTorch's objects, with loss scaling, types of states, and attributes that
are compiled in."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from glob import escape
from typing import Any, ClassVar

import torch

from .. import optim as own
from ..system.errors import OptionError
from ..system.logs import logger
from .errors import InvalidOption
from .spelling import both_spellings

ACCUMULATION = (torch.float16, torch.float32)
MOMENTS = ("first_order_momentum_accum_type", "second_order_momentum_accum_type")
KEPT = ("variable_attrs", "loss_scaling", "accum_type", "velocity_accum_type", *MOMENTS, "_types", "_variable",
        "max_grad_norm", "use_combined_accum", "velocity_scaling", "bias_correction", "use_tf_variant")
"""What copies and pickles have besides what PyTorch's do."""
Params = Iterable[Any]


@both_spellings
class VariableAttributes:
    """Which attributes are variables, read at every update, and which constants, compiled into it: those given to the
    constructor are variable.

    Mark before the first call of the model.
    """

    def __init__(self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]) -> None:
        self._variable, self._allowed = list(variable_attributes), list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        """Whether it is compiled in."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Compile its value into the update (InvalidOption for an unknown name)."""
        self._check(attr)
        self._variable = [a for a in self._variable if a != attr]

    def markAsVariable(self, attr: str) -> None:
        """Let every update read it (InvalidOption for an unknown name)."""
        self._check(attr)
        self._variable.append(attr)

    def _check(self, attr: str) -> None:
        if attr not in self._allowed:
            raise InvalidOption(f"Unknown attribute {attr}, allowed values: {self._allowed}")


class Optimizer:
    """Base of the optimizers here, beside PyTorch's: what it adds to a `torch.optim.Optimizer`.

    loss_scaling: factor on the loss, taken out of the gradients again; always variable. variable_attrs: see there.
    """

    made: ClassVar[type[own.Optimizer]]
    """tileflow's class."""
    numbers: ClassVar[tuple[str, ...]]
    """Attributes that groups may have of their own, by tileflow's names, which are PyTorch's."""
    flags: ClassVar[tuple[str, ...]] = ()
    """Of these those that are true or false."""
    types: ClassVar[tuple[str, ...]] = ("accum_type", *MOMENTS)
    """Attributes that are element types."""
    param_groups: list[dict[str, Any]]
    defaults: dict[str, Any]
    loss_scaling: float
    variable_attrs: VariableAttributes

    def _begin(self, given: Mapping[str, Any], extra: Mapping[str, Any], dtypes: Sequence[Any]) -> dict[str, Any]:
        """Check and keep what PyTorch's class does not know (`dtypes`: those of `types`); the arguments that it does,
        of those that were given.

        Raises:
            ValueError: amsgrad, maximize. InvalidOption: an element type is none.
        """
        kind = type(self).__name__
        if given.get("amsgrad"):
            raise ValueError("Only non-amsgrad Adam/AdamW optimizers are supported.")
        if given.get("maximize"):
            raise ValueError(f"{kind}: maximize is not supported; minimise the negated loss.")
        types = dict(zip(self.types, dtypes, strict=True))
        for name, dtype in types.items():
            if dtype is not None and dtype not in ACCUMULATION:
                raise InvalidOption("Accumulation types must be either torch.float32 or torch.float16")
            setattr(self, name, torch.float32 if dtype is None else dtype)
        self._types = {name: dtype for name, dtype in types.items() if dtype is not None}
        for name, value in extra.items():
            setattr(self, name, value)
        self._variable = [name for name, value in {**given, **extra, **types}.items() if value is not None]
        self._held: dict[str, Any] = {"ipu_state": None, "ipu_param": None}
        self._read: Callable[[], Mapping[str, Any]] | None = None
        return {name: value for name, value in given.items() if value is not None}

    def _end(self, loss_scaling: float | None) -> None:
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.variable_attrs = VariableAttributes(self._variable, [*self.defaults, "loss_scaling"])

    # ---- states

    def state_dict(self) -> Any:
        """PyTorch's own dictionary, with `ipu_state` (tensors by name) and `ipu_param` (numbers by name) beside: None
        before the first call."""
        if self._read is not None:
            self._held = dict(self._read())
        base: Any = torch.optim.Optimizer.state_dict(self)                         # type: ignore[arg-type]
        return {**self._held, **base}

    def load_state_dict(self, state: Any) -> None:
        """Take over groups and states; a model that uses the optimizer takes the states at its next call.

        Raises:
            RuntimeError: it is empty, or of another kind of optimizer.
        """
        if not state:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        if not {"ipu_state", "ipu_param"} <= set(state):
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        torch.optim.Optimizer.load_state_dict(self, state)                         # type: ignore[arg-type]
        self.set_state_dict(state)

    get_state_dict = state_dict

    def set_state_dict(self, state: Any) -> None:
        """Take over the states alone."""
        self._held = {name: state[name] for name in ("ipu_state", "ipu_param")}
        self._read = None

    def has_state(self) -> bool:
        """Whether there are states: after a call, or loaded."""
        return self._read is not None or self._held["ipu_state"] is not None

    def attach(self, read: Callable[[], Mapping[str, Any]]) -> None:
        """Let `state_dict` read the states of the model that updates by it from now on."""
        self._read = read

    def loaded_state(self) -> Mapping[str, Any] | None:
        """What `load_state_dict` was given and no model has taken yet."""
        return None if self._read is not None or self._held["ipu_state"] is None else self._held

    def __getstate__(self) -> dict[str, Any]:
        base: dict[str, Any] = torch.optim.Optimizer.__getstate__(self)             # type: ignore[arg-type]
        kept = {name: self.__dict__[name] for name in KEPT if name in self.__dict__}
        return {**base, **kept, "_held": {name: self.state_dict()[name] for name in self._held}, "_read": None}

    # ---- what tileflow makes of it

    def tileflow_optimizer(self, names: Mapping[int, str]) -> own.Optimizer:
        """tileflow's optimizer with the values of now.

        Args:
            names: by identity of the module's parameters, what the model calls them.

        Raises:
            OptionError: a value is out of range, or values do not go together.
        """
        known = [(group, [escape(names[id(p)]) for p in group["params"] if id(p) in names])
                 for group in self.param_groups]
        known = [(group, params) for group, params in known if params]
        if not known:
            raise OptionError(f"The {type(self).__name__} has no parameter of the module; make it of the module's own: "
                              f"poptorch.optim.{type(self).__name__}(module.parameters(), ...).")
        rest = [{"params": params, **self._of(group)} for group, params in known[1:]]
        made = self.made(**self._of(known[0][0]), **self._rest(), groups=rest, loss_scaling=self.loss_scaling)
        for name in self.numbers:
            if self.variable_attrs.isConstant(name):
                made.variable_attrs.mark_as_constant(name)
            else:
                made.variable_attrs.mark_as_variable(name)
        return made

    def _of(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """A group's attributes."""
        found = {name: group[name] for name in (*self.numbers, *self.flags) if name in group}
        return {name: tuple(map(float, x)) if isinstance(x, (tuple, list)) else float(x)
                if isinstance(x, torch.Tensor) else x
                for name, x in found.items()}

    def _rest(self) -> dict[str, Any]:
        """The attributes of all groups together."""
        return {name: str(dtype).removeprefix("torch.") for name, dtype in self._types.items()}


class SGD(Optimizer, torch.optim.SGD):
    """v = mm v + (1 - dm) (g + wd w);  w -= lr v: stochastic gradient descent, the velocity beginning at 0.

    Args:
        params: parameters, or groups of them, as PyTorch takes them.
        velocity_scaling, use_combined_accum: one tensor for velocity and accumulated gradients, scaled by the former,
            against underflow.
        accum_type, velocity_accum_type: types of accumulated gradients and velocities: torch.float32 or torch.float16.
        max_grad_norm: the gradients' norm, all together, is at most this.
    """

    made = own.SGD
    numbers = ("lr", "momentum", "dampening", "weight_decay", "velocity_scaling")
    flags = ("nesterov",)
    types = ("accum_type", "velocity_accum_type")

    def __init__(self, params: Params, lr: float, momentum: float | None = None, dampening: float | None = None,
                 weight_decay: float | None = None, nesterov: bool | None = None, maximize: bool | None = None,
                 foreach: bool | None = None,
                 differentiable: bool | None = None, loss_scaling: float | None = None,
                 velocity_scaling: float | None = None,
                 use_combined_accum: bool | None = None, accum_type: torch.dtype | None = None,
                 velocity_accum_type: torch.dtype | None = None, max_grad_norm: float | None = None) -> None:
        given = self._begin({"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                             "nesterov": nesterov, "maximize": maximize},
                            {"loss_scaling": loss_scaling, "velocity_scaling": velocity_scaling},
                            (accum_type, velocity_accum_type))
        torch.optim.SGD.__init__(self, params, **given)
        self.use_combined_accum = bool(use_combined_accum)
        self.max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        if self.use_combined_accum:
            self.defaults["velocity_scaling"] = 1.0 if velocity_scaling is None else velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.defaults["velocity_scaling"])
        elif velocity_scaling is not None:
            logger("poptorch").warning("velocity_scaling value ignored when using the separate variant "
                                       "(use_combined_accum=False).")
        self._end(loss_scaling)

    def _rest(self) -> dict[str, Any]:
        still = self.variable_attrs.isConstant("momentum") and not any(group["momentum"] for group in self.param_groups)
        if still or not self.use_combined_accum:  # without a velocity nothing is to be said of it
            types = {name: t for name, t in super()._rest().items() if name != "velocity_accum_type" or not still}
            return types | ({} if math.isinf(self.max_grad_norm) else {"max_grad_norm": self.max_grad_norm})
        return {"use_combined_accum": True}


class Adam(Optimizer, torch.optim.Adam):
    """PyTorch's Adam, with the decay among the gradients: s = g + wd w.

    Args:
        params: parameters, or groups of them. accum_type: type of accumulated gradients, torch.float32 or
            torch.float16.
        first_order_momentum_accum_type, second_order_momentum_accum_type: types of the moments.
        max_grad_norm: the norm of s, all together, is at most this.
    """

    made = own.Adam
    numbers = ("lr", "betas", "eps", "weight_decay")

    def __init__(self, params: Params, lr: float | None = None, betas: tuple[float, float] | None = None,
                 eps: float | None = None,
                 weight_decay: float | None = None, amsgrad: bool | None = None, foreach: bool | None = None,
                 maximize: bool | None = None,
                 capturable: bool | None = None, differentiable: bool | None = None, fused: bool | None = None,
                 loss_scaling: float | None = None,
                 accum_type: torch.dtype | None = None, first_order_momentum_accum_type: torch.dtype | None = None,
                 second_order_momentum_accum_type: torch.dtype | None = None,
                 max_grad_norm: float | None = None) -> None:
        given = self._begin({"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
                             "maximize": maximize},
                            {"loss_scaling": loss_scaling},
                            (accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type))
        torch.optim.Adam.__init__(self, params, **given)
        self.max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self._end(loss_scaling)

    def _rest(self) -> dict[str, Any]:
        return super()._rest() | ({} if math.isinf(self.max_grad_norm) else {"max_grad_norm": self.max_grad_norm})


class AdamW(Optimizer, torch.optim.AdamW):
    """PyTorch's AdamW; bias_correction=False takes the moments as they are (the reference system does not heed it).

    Args: as those of Adam.
    """

    made = own.AdamW
    numbers = ("lr", "betas", "eps", "weight_decay")

    def __init__(self, params: Params, lr: float | None = None, betas: tuple[float, float] | None = None,
                 eps: float | None = None,
                 weight_decay: float | None = None, amsgrad: bool | None = None, maximize: bool | None = None,
                 foreach: bool | None = None,
                 capturable: bool | None = None, differentiable: bool | None = None, fused: bool | None = None,
                 loss_scaling: float | None = None,
                 bias_correction: bool | None = None, accum_type: torch.dtype | None = None,
                 first_order_momentum_accum_type: torch.dtype | None = None,
                 second_order_momentum_accum_type: torch.dtype | None = None,
                 max_grad_norm: float | None = None) -> None:
        given = self._begin({"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
                             "maximize": maximize},
                            {"loss_scaling": loss_scaling},
                            (accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type))
        torch.optim.AdamW.__init__(self, params, **given)
        self.bias_correction = bias_correction is not False
        self.max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self._end(loss_scaling)

    def _rest(self) -> dict[str, Any]:
        return {**super()._rest(), "bias_correction": self.bias_correction,
                **({} if math.isinf(self.max_grad_norm) else {"max_grad_norm": self.max_grad_norm})}


class RMSprop(Optimizer, torch.optim.RMSprop):
    """PyTorch's RMSprop; use_tf_variant: TensorFlow's, with eps inside the root and the average beginning at 1.

    Args: as those of Adam, and centered, which all groups must agree on.
    """

    made = own.RMSprop
    numbers = ("lr", "alpha", "eps", "weight_decay", "momentum")

    def __init__(self, params: Params, lr: float | None = None, alpha: float | None = None, eps: float | None = None,
                 weight_decay: float | None = None, momentum: float | None = None, centered: bool | None = None,
                 foreach: bool | None = None,
                 maximize: bool | None = None, differentiable: bool | None = None, loss_scaling: float | None = None,
                 accum_type: torch.dtype | None = None, first_order_momentum_accum_type: torch.dtype | None = None,
                 second_order_momentum_accum_type: torch.dtype | None = None,
                 use_tf_variant: bool | None = None) -> None:
        given = self._begin({"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum,
                             "centered": centered, "maximize": maximize}, {"loss_scaling": loss_scaling},
                            (accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type))
        torch.optim.RMSprop.__init__(self, params, **given)
        self.use_tf_variant = bool(use_tf_variant)
        self._end(loss_scaling)

    def _rest(self) -> dict[str, Any]:
        centered = {bool(group["centered"]) for group in self.param_groups}
        if len(centered) > 1:
            raise InvalidOption("RMSprop: all groups must agree on centered.")
        return {**super()._rest(), "centered": centered.pop(), "use_tf_variant": self.use_tf_variant}


class LAMB(Optimizer, torch.optim.Optimizer):
    """AdamW's direction, scaled per tensor to the size of the weight; `step` updates by it in PyTorch as well.

    Args:
        params: parameters, or groups of them. bias_correction: whether the moments are corrected.
        max_weight_norm: bound of a weight's norm in the ratio; by default 65500, as in the reference system.
        accum_type and the two others: as those of Adam.
    """

    made = own.LAMB
    numbers = ("lr", "betas", "eps", "weight_decay", "max_weight_norm")

    def __init__(self, params: Params, lr: float | None = None, betas: tuple[float, float] | None = None,
                 eps: float | None = None,
                 weight_decay: float | None = None, bias_correction: bool | None = None,
                 loss_scaling: float | None = None,
                 max_weight_norm: float | None = None, accum_type: torch.dtype | None = None,
                 first_order_momentum_accum_type: torch.dtype | None = None,
                 second_order_momentum_accum_type: torch.dtype | None = None) -> None:
        given = self._begin({"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                             "max_weight_norm": max_weight_norm},
                            {"loss_scaling": loss_scaling},
                            (accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type))
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}
        torch.optim.Optimizer.__init__(self, params, {**defaults, **given})
        self.bias_correction = bias_correction is not False
        self._end(loss_scaling)

    def _rest(self) -> dict[str, Any]:
        return {**super()._rest(), "bias_correction": self.bias_correction}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update by the gradients that the parameters hold; returns what `closure` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                self._step(p, group)
        return loss

    def _step(self, p: torch.Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        state["step"] += 1
        b1, b2 = group["betas"]
        state["exp_avg"].lerp_(p.grad, 1 - b1)
        state["exp_avg_sq"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
        first, second = (1 - b ** state["step"] if self.bias_correction else 1.0 for b in (b1, b2))
        step = (state["exp_avg"] / first) / ((state["exp_avg_sq"] / second).sqrt() + group["eps"])
        x = step + group["weight_decay"] * p
        of_weight, of_x = p.norm().clamp(max=group["max_weight_norm"]), x.norm()
        ratio = of_weight / of_x if of_weight > 0 and of_x > 0 else 1.0
        p.sub_(group["lr"] * ratio * x)
