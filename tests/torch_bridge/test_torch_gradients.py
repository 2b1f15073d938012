"""Gradients that a module has in a way of its own: exporters see none of it, so that each is refused, beside what says
the same and trains."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from peers import needs

torch = needs("torch")
needs("onnxscript")

from torch_networks import Sign  # noqa: E402

from tileflow.system.errors import OptionError, UnsupportedError  # noqa: E402
from tileflow.torch import inference_model, training_model  # noqa: E402

nn = torch.nn


class Middle(nn.Module):
    """Something between two linear layers."""

    def __init__(self, middle: Callable[..., Any]) -> None:
        super().__init__()
        self.f, self.g, self._middle = nn.Linear(4, 3), nn.Linear(3, 2), middle

    def forward(self, x: Any) -> Any:
        return self.g(self._middle(self, self.f(x))).square().mean()


def made(middle: Callable[..., Any]) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    module = Middle(middle)
    return module, torch.optim.SGD(module.parameters(), lr=0.1), torch.randn(6, 4)


def test_functions_with_a_backward_of_their_own():
    module, optimizer, x = made(lambda m, h: Sign.apply(h))
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(UnsupportedError, match=r"Sign is a torch\.autograd\.Function with a backward\(\) of its own"):
        training_model(module, optimizer=optimizer)(x)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.exhaustive
def test_what_the_sentence_advises_trains():
    module, optimizer, x = made(lambda m, h: h + (h.sign() - h).detach())
    twin, _, _ = made(lambda m, h: Sign.apply(h))
    model, other = training_model(module, optimizer=optimizer), torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        other.zero_grad()
        twin(x).backward()
        other.step()
        model(x)
    torch.testing.assert_close(module.state_dict(), twin.state_dict())


@pytest.mark.exhaustive
def test_functions_run_where_nothing_is_trained():
    module, _, x = made(lambda m, h: Sign.apply(h))
    torch.testing.assert_close(inference_model(module)(x), module(x).detach())


def test_hooks_of_modules_parameters_and_optimizers():
    module, optimizer, x = made(lambda m, h: h)
    for hang, says in (
        (lambda: module.f.register_full_backward_hook(lambda *_: None), "^f has a hook on its gradients"),
        (lambda: module.g.weight.register_hook(lambda g: g), r"parameter 'g\.weight' has a hook on its gradient"),
        (lambda: module.g.bias.register_post_accumulate_grad_hook(lambda p: None), r"parameter 'g\.bias' has a hook"),
    ):
        handle = hang()
        with pytest.raises(UnsupportedError, match=says):
            training_model(module, optimizer=optimizer)(x)
        handle.remove()
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(OptionError, match="The SGD has hooks on its step"):
        training_model(module, optimizer=optimizer)(x)
    handle.remove()
    before = module.f.weight.detach().clone()
    module.f.register_forward_hook(lambda m, inputs, output: output * 2)  # which is a part of what is computed
    twin = copy.deepcopy(module)
    torch.testing.assert_close(training_model(module, optimizer=optimizer)(x), twin(x).detach())
    assert not torch.equal(module.f.weight, before)
