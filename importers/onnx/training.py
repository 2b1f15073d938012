"""Optimizers that a model computes itself: Adagrad, Adam and Momentum of ai.onnx.preview.training."""
from __future__ import annotations

from collections.abc import Sequence

from tileflow.errors import ModelError
from tileflow.graph import Value
from tileflow.ops import update_rules
from tileflow.ops.update_rules import Rule

from .site import Site
from .versions import form

DOMAIN = "ai.onnx.preview.training"


def _updated(site: Site, states: int, rule: Rule) -> Sequence[Value]:
    """The rule for every tensor: inputs are R, T, all tensors, all gradients, all of each state; outputs all tensors, all of each state."""
    per = states + 2
    if len(site.inputs) < 2 + per or (len(site.inputs) - 2) % per:
        raise ModelError(f"{site.title} has {len(site.inputs)} inputs; it takes R and T, then {per} for each tensor; export the model again")
    count = (len(site.inputs) - 2) // per
    made = [update_rules.updated(site.builder, rule, site.value(0), site.value(1), [site.value(2 + i + k * count) for k in range(per)])
            for i in range(count)]
    return [values[k] for k in range(states + 1) for values in made]


@form("Adagrad", domain=DOMAIN)
def adagrad(site: Site) -> Sequence[Value]:
    return _updated(site, 1, update_rules.adagrad(*(float(site.attrs[n]) for n in ("decay_factor", "epsilon", "norm_coefficient"))))


@form("Adam", domain=DOMAIN)
def adam(site: Site) -> Sequence[Value]:
    named = ("alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post")
    return _updated(site, 2, update_rules.adam(*(float(site.attrs[n]) for n in named)))


@form("Momentum", domain=DOMAIN)
def momentum(site: Site) -> Sequence[Value]:
    mode = site.attrs["mode"]
    if mode not in ("standard", "nesterov"):
        raise site.unsupported(f"the mode {mode!r}; it must be standard or nesterov")
    alpha, beta, norm = (float(site.attrs[n]) for n in ("alpha", "beta", "norm_coefficient"))
    return _updated(site, 1, update_rules.momentum(alpha, beta, norm, mode == "nesterov"))
