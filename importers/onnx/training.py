"""ai.onnx.preview.training: optimizers that a model computes itself (Adagrad, Adam, Momentum), and gradients (Gradient)."""
from __future__ import annotations

from collections.abc import Sequence

from tileflow.graph import Builder, Value
from tileflow.graph.backward import NoGradientError, backward
from tileflow.ops import update_rules
from tileflow.ops.update_rules import Rule
from tileflow.system.errors import ModelError, UnsupportedError

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


@form("Gradient", domain=DOMAIN)
def gradient(site: Site) -> Sequence[Value | None]:
    """The gradients of the sum of `y` by the tensors `xs`, at the values that these and `zs` have in the graph; zeros by what `y` does not depend on.

    Other tensors in the places of those that it names would be another computation, and are refused.
    """
    scope, xs = site.scope, [str(name) for name in site.attrs["xs"]]
    named = [*xs, *(str(name) for name in site.attrs.get("zs") or ())]
    if site.inputs != named:
        raise site.unsupported(f"its inputs {site.inputs} are others than the tensors {named} that it differentiates by: "
                               f"differentiate at the values that these have"[:240])
    if not site.attrs["y"]:
        raise ModelError(f"{site.title} names no y; export the model again")
    y, wrt = scope.value(str(site.attrs["y"])), [scope.value(name) for name in xs]
    if not all(v.type.is_float for v in (y, *wrt)):
        raise site.unsupported(f"a gradient of {y.type} by {', '.join(str(v.type) for v in wrt)}; only floating numbers have gradients"[:240])

    def seeds(b: Builder) -> dict[Value, Value]:
        one = b.scalar(1.0, y)
        return {y: one if y.shape == () else b.Expand(one, shape=y.shape)}
    try:
        _, found = backward(scope.graph, [y], wrt, seeds)
    except NoGradientError as error:
        raise UnsupportedError(f"operators before its y have no gradient: {', '.join(error.operators)}") from None
    finally:
        scope.builder.collect()
    return [None if not site.wants(i) else found[v] if v in found else site.emit("Mul", v, site.builder.scalar(0.0, v)) for i, v in enumerate(wrt)]
