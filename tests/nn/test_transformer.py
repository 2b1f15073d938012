"""Layers of transformers against PyTorch, and a small BERT that learns."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.system.errors import OptionError

torch = needs("torch")


class Wrap(nn.Module):
    """A module whose loss is the sum of its output times constants, to compare gradients."""

    def __init__(self, inner: nn.Module, weights: np.ndarray) -> None:
        self.inner, self.weights = inner, weights

    def forward(self, *x: nn.Tensor) -> Any:
        return (self.inner(*x) * self.weights).sum()


def trained(net: nn.Module, weights: np.ndarray, *inputs: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Output, and the gradients by name, from one step of SGD with rate 1."""
    y = tileflow.inference_model(net, micro_batch_size=len(inputs[0]))(*inputs)
    wrapped = Wrap(net, weights)
    before = {name: a for name, a in wrapped.state_dict().items()}
    model = tileflow.training_model(wrapped, optimizer=tileflow.optim.SGD(lr=1.0), loss="identity", micro_batch_size=len(inputs[0]))
    model(*inputs)
    after = wrapped.state_dict()
    return y, {name.removeprefix("inner."): before[name] - after[name] for name in before}


def copy_linear(target: Any, weight: Any, bias: Any) -> None:
    target.weight.data, target.bias.data = weight.detach().numpy(), bias.detach().numpy()


def test_multihead_attention() -> None:
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, 5, 12)).astype(np.float32), rng.standard_normal((2, 5, 12)).astype(np.float32)
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_bias.normal_()
        theirs.out_proj.bias.normal_()
    ours = nn.MultiheadAttention(12, 3)
    for i, part in enumerate((ours.query, ours.key, ours.value)):
        copy_linear(part, theirs.in_proj_weight[12 * i:12 * (i + 1)], theirs.in_proj_bias[12 * i:12 * (i + 1)])
    copy_linear(ours.out, theirs.out_proj.weight, theirs.out_proj.bias)
    t = torch.tensor(x)
    wanted = theirs(t, t, t, need_weights=False)[0]
    wanted.backward(torch.tensor(g))
    y, grads = trained(ours, g, x)
    np.testing.assert_allclose(y, wanted.detach(), atol=2e-5)
    for i, name in enumerate(("query", "key", "value")):
        np.testing.assert_allclose(grads[f"{name}.weight"], theirs.in_proj_weight.grad[12 * i:12 * (i + 1)], atol=5e-5)
    np.testing.assert_allclose(grads["out.weight"], theirs.out_proj.weight.grad, atol=5e-5)


def test_attention_masks() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, x: nn.Tensor, mask: nn.Tensor) -> nn.Tensor:      # type: ignore[override]
            return self.attention(x, x, x, mask.reshape(1, 1, 1, 4))
    net, rng = Masked(), np.random.default_rng(1)
    model = tileflow.inference_model(net, micro_batch_size=1)
    x, mask = rng.standard_normal((1, 4, 8)).astype(np.float32), np.array([[0, 0, 0, -1e9]], np.float32)
    first = model(x, mask)
    x[0, 3] += 5.0
    np.testing.assert_array_equal(model(x, mask)[0, :3], first[0, :3])      # the hidden position changes nobody else
    with pytest.raises(OptionError, match="num_heads=3 must divide embed_dim=8"):
        nn.MultiheadAttention(8, 3)


def test_embedding_and_its_gradient() -> None:
    rng = np.random.default_rng(2)
    ids, g = rng.integers(0, 6, (3, 4)), rng.standard_normal((3, 4, 5)).astype(np.float32)
    ours, theirs = nn.Embedding(6, 5), torch.nn.Embedding(6, 5)
    ours.weight.data = theirs.weight.detach().numpy()
    wanted = theirs(torch.tensor(ids))
    wanted.backward(torch.tensor(g))
    y, grads = trained(ours, g, ids)
    np.testing.assert_array_equal(y, wanted.detach())
    np.testing.assert_allclose(grads["weight"], theirs.weight.grad, atol=1e-5)


def test_layer_norm_and_gelu() -> None:
    rng = np.random.default_rng(3)
    x, g = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((4, 6)).astype(np.float32)
    theirs = torch.nn.Sequential(torch.nn.LayerNorm(6, 1e-3), torch.nn.GELU(), torch.nn.GELU("tanh"))
    wanted = theirs(torch.tensor(x))
    wanted.backward(torch.tensor(g))
    y, grads = trained(nn.Sequential(nn.LayerNorm(6, 1e-3), nn.GELU(), nn.GELU("tanh")), g, x)
    np.testing.assert_allclose(y, wanted.detach(), atol=1e-5)
    np.testing.assert_allclose(grads["0.weight"], theirs[0].weight.grad, atol=1e-5)
    np.testing.assert_allclose(grads["0.bias"], theirs[0].bias.grad, atol=1e-5)


def test_skipped_weights_take_no_memory() -> None:
    with nn.skip_init():
        layers = [nn.Linear(1000, 1000), nn.Embedding(1000, 1000), nn.Conv2d(100, 100, 3)]
    for layer in layers:
        data = layer.weight.data                               # type: ignore[attr-defined]
        assert set(data.strides) == {0}
        assert not data.any()
    assert nn.Linear(4, 4).weight.data.any()
