"""PopART's update equations in float64 NumPy, transcribed from the reference (poptorch.md 4.3) and not from tileflow's code.

    twin = Adam(weights, lr=0.01, decay_mode="decay")
    twin.update([g])                        # the gradients of one update's micro-batches, each name -> array
    twin.weights

Symbols are the reference's: g a raw gradient of the *scaled* loss, ls the loss scale, af the number of micro-batches, w a weight; `of(name)` says the
attributes of a weight's group at this update. Where tileflow deliberately differs a twin says so (`clip`: of unscaled gradients, fact 6).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

Array = np.ndarray
Weights = dict[str, Array]


class Twin:
    """What all have in common: the reduction of an update's micro-batches, unscaling, clipping."""

    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, weights: Mapping[str, Array], *, ls: float = 1.0, reduction: str = "mean", strategy: str = "post",
                 max_grad_norm: float = np.inf, groups: Callable[[str, int], Mapping[str, Any]] | None = None, **attributes: Any) -> None:
        """groups(name, update): attributes of a weight where they differ from `attributes`."""
        unknown = attributes.keys() - self.defaults.keys()
        assert not unknown, f"{type(self).__name__} has no {unknown}"
        self.weights: Weights = {n: w.astype(np.float64) for n, w in weights.items()}
        self.ls, self.reduction, self.strategy, self.clip = ls, reduction, strategy, max_grad_norm
        self.groups, self.attributes, self.t = groups, {**self.defaults, **attributes}, 0
        self.state: dict[str, Weights] = {}
        self.begin()

    def begin(self) -> None:
        """Initial states."""

    def slot(self, name: str, fill: float = 0.0) -> None:
        self.state[name] = {n: np.full_like(w, fill) for n, w in self.weights.items()}

    def of(self, name: str) -> Mapping[str, Any]:
        return {**self.attributes, **(self.groups(name, self.t) if self.groups else {})}

    def update(self, micro: Sequence[Mapping[str, Array]]) -> None:
        """One update from the gradients of the unscaled loss; the scaled loss's are `ls` times these."""
        raw = [{n: g.astype(np.float64) * self.ls for n, g in m.items()} for m in micro]
        s = self.clipped({n: self.unclipped(n, self.reduced([m[n] for m in raw])) for n in self.weights})
        self.before()
        for n in self.weights:
            self.one(n, s[n])
        self.t += 1

    def reduced(self, g: Sequence[Array]) -> Array:
        """The accumulated gradient without the loss scale."""
        af = len(g)
        if self.reduction == "sum":
            return np.sum(g, axis=0) / self.ls
        if self.strategy == "post":
            return np.sum(g, axis=0) / (self.ls * af)
        a = np.zeros_like(g[0])
        for f in range(af):
            a = f / (f + 1) * a + 1 / (f + 1) * g[f]
        return a / self.ls

    def clipped(self, s: Weights) -> Weights:
        """factor = clip / max(norm, clip), with one norm over all weights and nothing added to it (fact 12)."""
        if np.isinf(self.clip):
            return s
        norm = np.sqrt(sum(np.sum(g * g) for g in s.values()))
        return {n: g * (self.clip / max(norm, self.clip)) for n, g in s.items()}

    def unclipped(self, n: str, s: Array) -> Array:
        """What the norm is taken of: the unscaled gradient."""
        return s

    def before(self) -> None:
        """Once per update, before any weight."""

    def one(self, n: str, s: Array) -> None:
        raise NotImplementedError


class SGD0(Twin):
    """Momentum constant 0: dampening scales lr and decay all the same (fact 7)."""

    defaults: ClassVar[Mapping[str, Any]] = dict(lr=0.1, dampening=0.0, weight_decay=0.0)

    def one(self, n: str, s: Array) -> None:
        a, w = self.of(n), self.weights[n]
        lr, dm, wd = a["lr"], a["dampening"], a["weight_decay"]
        self.weights[n] = w * (1 - lr * (1 - dm) * wd) - lr * (1 - dm) * s


class SGD2(Twin):
    """Separate accumulators, vs forced equal to ls; s is already unscaled, so v is vs times the velocity of the unscaled loss."""

    defaults: ClassVar[Mapping[str, Any]] = dict(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False)

    def begin(self) -> None:
        self.slot("v")

    def one(self, n: str, s: Array) -> None:
        a, w, v, vs = self.of(n), self.weights[n], self.state["v"], self.ls
        lr, mm, dm, wd = a["lr"], a["momentum"], a["dampening"], a["weight_decay"]
        v[n] = mm * v[n] + (1 - dm) * wd * vs * w
        v[n] = v[n] + (1 - dm) * vs * s
        if a["nesterov"]:
            step = vs * (s + wd * w) + mm * v[n]
            self.weights[n] = w - lr / vs * step
        else:
            self.weights[n] = w - lr / vs * v[n]


class SGD1(Twin):
    """Combined accumulator: one tensor holds the velocity with the next step's momentum and decay applied; gradients are added to it micro-batch by
    micro-batch. Changed attributes act one step later (fact 8)."""

    defaults: ClassVar[Mapping[str, Any]] = dict(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, velocity_scaling=1.0)

    def begin(self) -> None:
        self.slot("v")
        for n, w in self.weights.items():
            a = self.of(n)
            self.state["v"][n] = (1 - a["dampening"]) * a["weight_decay"] * a["velocity_scaling"] * w          # v0 = 0

    def update(self, micro: Sequence[Mapping[str, Array]]) -> None:
        assert np.isinf(self.clip)
        af = len(micro) if self.reduction == "mean" else 1
        for n, w in self.weights.items():
            a, v = self.of(n), self.state["v"]
            lr, mm, dm, wd, vs = a["lr"], a["momentum"], a["dampening"], a["weight_decay"], a["velocity_scaling"]
            for g in micro:
                v[n] = v[n] + (1 - dm) * vs / (self.ls * af) * (g[n].astype(np.float64) * self.ls)
            self.weights[n] = w = w - lr / vs * v[n]
            v[n] = v[n] * mm + (1 - dm) * wd * vs * w
        self.t += 1


class Adam(Twin):
    """Adam (decay_mode l2: inside the gradient, before it is clipped), AdamW (decay: beside the direction), with bias correction or without
    (facts 6, 9, 10)."""

    defaults: ClassVar[Mapping[str, Any]] = dict(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, bias_correction=True, decay_mode="l2")

    def begin(self) -> None:
        self.slot("m")
        self.slot("v")
        self.steps = 0

    def before(self) -> None:
        self.steps += 1

    def unclipped(self, n: str, s: Array) -> Array:
        a = self.of(n)
        return s + a["weight_decay"] * self.weights[n] if a["decay_mode"] == "l2" else s

    def direction(self, n: str, s: Array) -> Array:
        a, w, m, v, t = self.of(n), self.weights[n], self.state["m"], self.state["v"], self.steps
        b1, b2, wd = a["beta1"], a["beta2"], a["weight_decay"]
        m[n] = b1 * m[n] + (1 - b1) * s
        v[n] = b2 * v[n] + (1 - b2) * s**2
        mhat, vhat = (m[n] / (1 - b1**t), v[n] / (1 - b2**t)) if a["bias_correction"] else (m[n], v[n])
        x = mhat / (np.sqrt(vhat) + a["eps"])
        return x + wd * w if a["decay_mode"] == "decay" else x

    def one(self, n: str, s: Array) -> None:
        self.weights[n] = self.weights[n] - self.of(n)["lr"] * self.direction(n, s)


class LAMB(Adam):
    """Adam's direction times min(||w||, mwn) / ||direction||."""

    defaults: ClassVar[Mapping[str, Any]] = {**Adam.defaults, "weight_decay": 0.01, "decay_mode": "decay", "max_weight_norm": 65500.0}

    def one(self, n: str, s: Array) -> None:
        a, w, x = self.of(n), self.weights[n], self.direction(n, s)
        r1, r2, mwn = np.linalg.norm(w), np.linalg.norm(x), a["max_weight_norm"]
        ratio = 1.0 if r1 == 0 or r2 == 0 or mwn == 0 else min(r1, mwn) / r2
        self.weights[n] = w - a["lr"] * ratio * x


class RMSprop(Twin):
    """Plain, centered, TensorFlow's variant; decay inside the gradient."""

    defaults: ClassVar[Mapping[str, Any]] = dict(lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False, use_tf_variant=False)

    def begin(self) -> None:
        self.slot("v1", 1.0 if self.attributes["use_tf_variant"] else 0.0)
        self.slot("v2")
        self.slot("v3")

    def one(self, n: str, s: Array) -> None:
        a, w = self.of(n), self.weights[n]
        v1, v2, v3 = (self.state[k] for k in ("v1", "v2", "v3"))
        lr, alpha, eps, mm, tf = a["lr"], a["alpha"], a["eps"], a["momentum"], a["use_tf_variant"]
        s = s + a["weight_decay"] * w
        v1[n] = alpha * v1[n] + (1 - alpha) * s**2
        if a["centered"]:
            v2[n] = alpha * v2[n] + (1 - alpha) * s
        spread = v1[n] - v2[n]**2
        x = s / np.sqrt(spread + eps) if tf else s / (np.sqrt(spread) + eps)
        inside = tf and mm > 0
        v3[n] = mm * v3[n] + (lr * x if inside else x)
        self.weights[n] = w - (v3[n] if inside else lr * v3[n])


def followed(twin: Twin, gradients: Mapping[str, Array], micro_batches: int = 1) -> Weights:
    """The weights after all of the gradients [updates * micro_batches, *shape]."""
    rows = [{n: g[i] for n, g in gradients.items()} for i in range(len(next(iter(gradients.values()))))]
    for start in range(0, len(rows), micro_batches):
        twin.update(rows[start:start + micro_batches])
    return twin.weights
