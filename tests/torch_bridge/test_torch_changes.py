"""Modules that change after they were compiled, whose tensors move, or are not there yet."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from paths import rare
from peers import needs

torch = needs("torch")
needs("onnxscript")

from tileflow.system.errors import UnsupportedError  # noqa: E402
from tileflow.torch import inference_model, training_model  # noqa: E402

nn = torch.nn


def net(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def rows(count: int = 6) -> Any:
    torch.manual_seed(1)
    return torch.randn(count, 4)


class Squared(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.net = inner

    def forward(self, x: Any) -> Any:
        return self.net(x).square().mean()


def another_head(module: Any) -> None:
    module[2] = nn.Linear(6, 5)


def another_function(module: Any) -> None:
    module[1] = nn.ReLU()


def one_more(module: Any) -> None:
    module.append(nn.ReLU())


def another_tensor(module: Any) -> None:
    module[0].weight = nn.Parameter(torch.ones(6, 4))


def no_bias(module: Any) -> None:
    module[0].bias = None


def normalised(module: Any) -> None:
    nn.utils.parametrizations.weight_norm(module[2])


RARE: list[Callable[[Any], None]] = [another_head, one_more, another_tensor, no_bias, normalised]


@pytest.mark.parametrize("change", [another_function, *map(rare, RARE)], ids=lambda c: c.__name__)
def test_what_is_another_is_computed(change: Any):
    module, x = net(), rows()
    runs = inference_model(module)
    torch.testing.assert_close(runs(x), module(x).detach())
    before = runs.compiled
    change(module)
    for _ in range(2):
        torch.testing.assert_close(runs(x), module(x).detach())
    again = runs.compiled
    assert (again is before) == (change is another_tensor)                # which needs no other program
    assert runs(x) is not None
    assert runs.compiled is again


@pytest.mark.exhaustive
def test_a_new_head_is_trained_by_an_optimizer_that_has_it():
    module, x = Squared(net()), rows()
    model = training_model(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    model(x)
    module.net[2] = nn.Linear(6, 5)
    head, body = module.net[2].weight.detach().clone(), module.net[0].weight.detach().clone()
    model(x)                                                              # its optimizer has the old one
    assert torch.equal(module.net[2].weight, head)
    assert not torch.equal(module.net[0].weight, body)
    twin = copy.deepcopy(module)
    training_model(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))(x)
    twin(x).backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    torch.testing.assert_close(module.state_dict(), twin.state_dict())


def test_what_moved_before_another_wrapper_was_made_is_not_lost():
    module, x = net(), rows()
    first = inference_model(module)
    first(x)
    module[0].weight.data = torch.full((6, 4), 0.5)
    second = inference_model(module)
    for model in (second, first):
        torch.testing.assert_close(model(x), module(x).detach())
    assert module[0].weight[0, 0].item() == 0.5


@pytest.mark.exhaustive
def test_a_module_of_another_type_is_a_new_one():
    """As people halve what they have trained; the wrapper of the old type says so."""
    module, x = Squared(net()), rows()
    model = training_model(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    model(x)
    module.double()
    with pytest.raises(UnsupportedError, match="another shape or type than it was compiled with"):
        model(x.double())
    runs = inference_model(module.net)
    torch.testing.assert_close(runs(x.double()), module.net(x.double()).detach(), rtol=1e-12, atol=1e-12)
    module.float()
    torch.testing.assert_close(inference_model(module.net)(x), module.net(x).detach())


def test_what_has_no_elements_is_refused():
    with torch.device("meta"):
        module = net()
    with pytest.raises(UnsupportedError, match=r"'0.weight' of Sequential has no elements yet: give the module some"):
        inference_model(module)(rows())
    with pytest.raises(UnsupportedError, match="call the module once by itself"):
        inference_model(nn.LazyLinear(3))(rows())
    with torch.inference_mode():
        module = net()
    with pytest.raises(UnsupportedError, match="make the module outside of it"):
        inference_model(module)(rows())


@pytest.mark.exhaustive
def test_modules_that_have_got_their_elements_run():
    lazy, x = nn.Sequential(nn.LazyLinear(3)), rows()
    lazy(x)
    torch.testing.assert_close(inference_model(lazy)(x), lazy(x).detach())
    module = net()
    with torch.inference_mode():                                          # the weights stay what they are
        found = inference_model(module)(torch.randn(6, 4))
        found.add_(1)
    Squared(module)(x).backward()
    assert module[0].weight.grad is not None


@pytest.mark.exhaustive
def test_the_callers_autocast_is_the_programs():
    """Each is compiled once."""
    module, x = net(), rows()
    runs = inference_model(module)
    for _ in range(2):
        for wanted in (torch.bfloat16, torch.float32):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=wanted == torch.bfloat16):
                found, expected = runs(x), module(x).detach()
            assert found.dtype == expected.dtype == wanted
            torch.testing.assert_close(found, expected, rtol=2 ** -6, atol=2 ** -6)
    assert len(runs._made) == 2
