"""Optimizers of torch.optim as ours: attributes, groups, what is refused by name."""
from __future__ import annotations

from typing import Any

import pytest
from peers import needs

torch = needs("torch")
needs("onnxscript")

from tileflow import optim  # noqa: E402
from tileflow.system.errors import OptionError  # noqa: E402
from tileflow.torch.optimizers import mapped  # noqa: E402


@pytest.fixture
def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))


def names(net: torch.nn.Module) -> dict[int, str]:
    return {id(p): name for name, p in net.named_parameters()}


def test_every_attribute_and_flag(net: torch.nn.Module):
    made = mapped(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True), names(net))
    ours = made.optimizer
    assert isinstance(ours, optim.SGD)
    assert (ours.lr, ours.momentum, ours.weight_decay, ours.nesterov, ours.torch_compat) == (0.1, 0.9, 0.01, True, True)
    assert made.trained == {"0.weight", "0.bias", "1.weight", "1.bias"}
    rms = mapped(torch.optim.RMSprop(net.parameters(), lr=0.1, alpha=0.9, centered=True), names(net)).optimizer
    assert isinstance(rms, optim.RMSprop)
    assert (rms.alpha, rms.centered) == (0.9, True)
    adam = mapped(
        torch.optim.Adam(net.parameters(), lr=torch.tensor(0.5), betas=(0.5, 0.6), eps=1e-4), names(net)
    ).optimizer
    assert isinstance(adam, optim.Adam)
    assert (adam.lr, adam.betas, adam.eps) == (0.5, (0.5, 0.6), 1e-4)
    assert type(mapped(torch.optim.AdamW(net.parameters()), names(net)).optimizer) is optim.AdamW


def test_what_has_pytorchs_default_is_compiled_in_and_the_rate_never(net: torch.nn.Module):
    ours = mapped(torch.optim.AdamW(net.parameters()), names(net)).optimizer
    assert not ours.variable_attrs.is_constant("lr")
    assert ours.variable_attrs.is_constant("betas")
    assert ours.variable_attrs.is_constant("weight_decay")
    assert not mapped(
        torch.optim.AdamW(net.parameters(), weight_decay=0.5), names(net)
    ).optimizer.variable_attrs.is_constant("weight_decay")


def test_groups_keep_their_own(net: torch.nn.Module):
    given = torch.optim.AdamW(
        [{"params": [net[0].weight]}, {"params": net[1].parameters(), "lr": 0.5, "weight_decay": 0.0}], lr=0.1
    )
    made = mapped(given, names(net))
    first, second = made.optimizer.param_groups
    assert (first["lr"], second["lr"], second["weight_decay"]) == (0.1, 0.5, 0.0)
    assert second.params == ("1.weight", "1.bias")
    assert made.trained == {"0.weight", "1.weight", "1.bias"}              # PyTorch leaves alone what no group names


@pytest.mark.parametrize(("make", "word"), [
    (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad"),
    (lambda p: torch.optim.AdamW(p, maximize=True), "maximize"),
    (lambda p: torch.optim.Adam(p, decoupled_weight_decay=True), "AdamW"),
    (lambda p: torch.optim.SGD([{"params": list(p)[:2]}], lr=0.1, differentiable=True), "differentiable"),
    (lambda p: torch.optim.Adagrad(p), "Adagrad"),
], ids=["amsgrad", "maximize", "decoupled", "differentiable", "class"])
def test_what_no_update_does_is_refused_by_name(net: torch.nn.Module, make: Any, word: str):
    with pytest.raises(OptionError, match=word):
        mapped(make(net.parameters()), names(net))


def test_no_optimizer_at_all_is_refused(net: torch.nn.Module):
    with pytest.raises(OptionError, match=r"torch\.optim"):
        mapped("adam", names(net))
    with pytest.raises(OptionError, match="no parameter of the module"):
        mapped(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1), names(net))


def test_one_that_says_by_itself_what_it_is(net: torch.nn.Module):
    class Own(torch.optim.SGD):
        def tileflow_optimizer(self, names: dict[int, str]) -> optim.Optimizer:
            assert set(names.values()) == {"0.weight", "0.bias", "1.weight", "1.bias"}
            return optim.LAMB(lr=0.5)

    made = mapped(Own(net[0].parameters(), lr=0.1), names(net))
    assert isinstance(made.optimizer, optim.LAMB)
    assert made.trained == {"0.weight", "0.bias"}
    assert mapped(made.optimizer, names(net)) == (made.optimizer, None)
