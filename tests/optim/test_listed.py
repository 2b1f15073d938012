"""Optimizers that are given weights first, as PyTorch's are."""
from __future__ import annotations

import copy

import numpy as np
import pytest

import tileflow
from tileflow import nn, optim
from tileflow.system.errors import OptionError

X, Y = np.random.default_rng(0).standard_normal((6, 4), np.float32), np.arange(6) % 3


def net() -> nn.Module:
    nn.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def trained(of: nn.Module, optimizer: optim.Optimizer) -> dict[str, np.ndarray]:
    model = tileflow.training_model(of, optimizer=optimizer)
    for _ in range(2):
        model(X, Y)
    return of.state_dict()


def test_all_parameters_are_what_no_list_is():
    one, other = net(), net()
    found = trained(one, optim.AdamW(one.parameters(), lr=0.1, weight_decay=0.5))
    expected = trained(other, optim.AdamW(lr=0.1, weight_decay=0.5))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_others_are_not_trained():
    of = net()
    before = of.state_dict()
    after = trained(of, optim.SGD(of.layers[2].parameters() if hasattr(of, "layers") else of[2].parameters(), lr=0.1))
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed == [name for name in before
                       if name.startswith(next(n for n in before if "2" in n).rpartition(".")[0])]


def test_groups_are_pytorchs():
    of, other = net(), net()
    optimizer = optim.SGD([{"params": of[0].parameters()}, {"params": of[2], "lr": 0.5}], lr=0.1, momentum=0.9)
    first, second = optimizer.param_groups
    assert (first["lr"], second["lr"], second["momentum"]) == (0.1, 0.5, 0.9)
    found = trained(of, optimizer)
    expected = trained(other,
                       optim.SGD(lr=0.1, momentum=0.9, groups=[{"params": other[2], "lr": 0.5, "momentum": 0.9}]))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert copy.deepcopy(optimizer).param_groups[1]["lr"] == 0.5


def test_a_copy_of_a_model_trains_the_copy():
    of = net()
    optimizer = optim.SGD([{"params": of[0].parameters()}, {"params": of[2], "lr": 0.5}], lr=0.1, momentum=0.9)
    assert copy.deepcopy(optimizer).param_groups[1].params == optimizer.param_groups[1].params
    model = tileflow.training_model(of, optimizer=optimizer)
    x, y = np.ones((2, 4), np.float32), np.zeros(2, np.int64)
    model(x, y)
    other = copy.deepcopy(model)
    assert model(x, y)[-1] == other(x, y)[-1]
    assert model(x, y)[-1] == other(x, y)[-1]


def test_refusals():
    of = net()
    with pytest.raises(OptionError, match="empty list"):
        optim.SGD([], lr=0.1)
    with pytest.raises(OptionError, match="not float"):
        optim.SGD([0.1, 0.2])
    with pytest.raises(OptionError, match="given twice"):
        optim.SGD([{"params": of[0]}], groups=[{"params": of[2]}])
    with pytest.raises(OptionError, match="none is trained in this model"):
        trained(of, optim.SGD(net().parameters(), lr=0.1))
    model = tileflow.training_model(of, optimizer=optim.SGD(of.parameters(), lr=0.1))
    model(X, Y)
    model.set_optimizer(optim.SGD(of.parameters(), lr=0.2))
    with pytest.raises(OptionError, match="other parameter groups"):
        model.set_optimizer(optim.SGD(of[0].parameters(), lr=0.2))


def test_two_that_take_turns_over_one_network_count_for_themselves():
    """Adam's corrections are by its own count."""
    of, alone = net(), net()
    first, second = (tileflow.training_model(of, optimizer=optim.Adam(of[i].parameters(), lr=0.1)) for i in (0, 2))
    first(X, Y)
    start = of.state_dict()
    alone.load_state_dict(start)
    second(X, Y)
    tileflow.training_model(alone, optimizer=optim.Adam(alone[2].parameters(), lr=0.1))(X, Y)
    assert all(np.array_equal(alone.state_dict()[name], array) for name, array in of.state_dict().items())
    assert not all(np.array_equal(start[name], array) for name, array in of.state_dict().items())
