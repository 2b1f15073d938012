"""Loops, branches, Python's functions and computed places in layers: beside what is written out, and beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paths import rare
from peers import needs

import tileflow
from tileflow import nn
from tileflow.system.errors import OptionError, ShapeError, TileflowError, TypeMismatchError, UnsupportedError

X = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)


class Net(nn.Module):
    """A layer, then what a test makes of its result and of a weight."""

    def __init__(self, then: Any) -> None:
        nn.manual_seed(0)
        self.layer, self.w, self.then = nn.Linear(3, 3), nn.Parameter(np.linspace(0.1, 0.9, 3, dtype=np.float32)), then

    def forward(self, x: nn.Tensor) -> Any:
        return self.then(self, self.layer(x))


def trained(then: Any, **options: Any) -> dict[str, np.ndarray]:
    net = Net(then)
    model = tileflow.training_model(net, loss="mse", optimizer="sgd", learning_rate=0.1, **options)
    for _ in range(2):
        model(X, X)
    return net.state_dict()


def turn(self: Net, x: nn.Tensor, start: nn.Tensor) -> nn.Tensor:
    return (x * self.w).tanh() + start


def looped(self: Net, x: nn.Tensor) -> nn.Tensor:
    (found,) = nn.for_loop(3, lambda y: [turn(self, y, x)], [x])
    return found


def written_out(self: Net, x: nn.Tensor) -> nn.Tensor:
    y = x
    for _ in range(3):
        y = turn(self, y, x)
    return y


@pytest.mark.parametrize("threads", [2, rare(1), rare(3), rare(5)])
def test_a_loop_trains_as_what_is_written_out(threads: int):
    """Captures, a parameter among them, and the carried value have gradients."""
    found, wanted = trained(looped, threads=threads), trained(written_out, threads=1)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-6, atol=1e-6, err_msg=name)


def chosen(self: Net, x: nn.Tensor) -> nn.Tensor:
    low, high = x.sum() > 0, x.sum() <= 0
    (a,) = nn.cond(low, lambda v: [v * 2], [x], lambda v: [v - self.w], [x])
    (b,) = nn.cond(high, lambda v: [v * 2], [x], lambda v: [v - self.w], [x])
    return a + b


def test_a_branch_trains_as_both_of_it_do():
    """One of the two conditions holds, so the sum is that of both branches, and so are gradients."""
    found, wanted = trained(chosen), trained(lambda self, x: x * 2 + (x - self.w))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6, err_msg=name)


def test_a_loop_counts_by_a_tensor_and_within_another():
    def then(self: Net, x: nn.Tensor) -> nn.Tensor:
        inner = lambda y: [nn.for_loop(2, lambda z: [z + self.w], [y])[0]]  # noqa: E731
        return nn.for_loop((x.sum() * 0 + 3).to("int64"), inner, [x])[0]

    net = Net(then)
    plain = Net(lambda self, x: x)
    np.testing.assert_allclose(
        tileflow.inference_model(net)(X), tileflow.inference_model(plain)(X) + 6 * net.w.data, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("then", "error", "says"),
    [
        (lambda self, x: nn.for_loop(2, lambda y: [y], x)[0], OptionError, "takes a list of tensors"),
        (lambda self, x: nn.for_loop(-1, lambda y: [y], [x])[0], OptionError, "counts by a whole number"),
        (lambda self, x: nn.for_loop(2, lambda y: [y, y], [x])[0], ShapeError, "takes 1 tensors and gives 2"),
        (lambda self, x: nn.for_loop(2, lambda y: [y.sum()], [x])[0], ShapeError, "must be alike"),
        (lambda self, x: nn.for_loop(2, lambda y: [7], [x])[0], TypeMismatchError, "must give tensors"),
        (
            lambda self, x: nn.for_loop(2, lambda y: [nn.functional.dropout(y, 0.5, True)], [x])[0],
            TileflowError,
            "draws random numbers",
        ),
        (lambda self, x: nn.cond(x, lambda: [x], [], lambda: [x], [])[0], OptionError, "one truth value"),
        (
            lambda self, x: nn.cond(x.sum() > 0, lambda: [x], [], lambda: [x, x], [])[0],
            ShapeError,
            "give 1 and 2 tensors",
        ),
        (lambda self, x: nn.dynamic_slice(x, 1, x.sum(), 2), OptionError, "one whole number"),
        (lambda self, x: nn.dynamic_slice(x, 1, x.argmax(), 3, 2), OptionError, "divide size 3"),
        (lambda self, x: nn.dynamic_update(x, x, 1, x.argmax(), 2), ShapeError, "puts 2 rows"),
        (lambda self, x: nn.cpu(3)(x), OptionError, "takes a function"),
        (lambda self, x: nn.cpu(np.sin)(X), OptionError, "called on tensors"),
        (lambda self, x: nn.print_tensor(x, float_format="x"), OptionError, "float_format must be one of"),
        (lambda self, x: nn.print_tensor(x, digits="x"), OptionError, "digits of print_tensor"),
    ],
)
def test_what_is_refused(then: Any, error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        tileflow.inference_model(Net(then))(X)


def test_python_within_layers():
    """Without a gradient what needs one is refused; with one it trains."""

    def sort(x: np.ndarray) -> np.ndarray:
        return np.sort(x, axis=-1)

    def back(x: np.ndarray, y: np.ndarray, g: np.ndarray) -> np.ndarray:
        found = np.empty_like(g)
        np.put_along_axis(found, np.argsort(x, axis=-1, kind="stable"), g, axis=-1)
        return found

    plain = tileflow.inference_model(Net(lambda self, x: x))(X)
    np.testing.assert_array_equal(
        tileflow.inference_model(Net(lambda self, x: nn.cpu(sort)(x)))(X), np.sort(plain, axis=-1)
    )
    with pytest.raises(UnsupportedError, match="no gradient is given for the function"):
        trained(lambda self, x: nn.cpu(sort)(x))
    found = trained(lambda self, x: nn.cpu(sort, gradient=back)(x) * self.w, threads=2)
    torch = needs("torch")
    net = Net(None)
    weights = [torch.tensor(a.data, requires_grad=True) for a in (net.layer.weight, net.layer.bias, net.w)]
    for _ in range(2):
        w, b, scale = weights
        loss = ((torch.sort(torch.tensor(X) @ w.T + b, -1)[0] * scale - torch.tensor(X)) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for p in weights:
                p -= 0.1 * p.grad
                p.grad = None
    for name, wanted in zip(("layer.weight", "layer.bias", "w"), weights, strict=True):
        np.testing.assert_allclose(found[name], wanted.detach(), rtol=1e-5, atol=1e-6)


def test_slices_and_updates_at_computed_places():
    def then(self: Net, x: nn.Tensor) -> Any:
        start = (x.sum() * 0 + 1).to("int64")
        return (
            nn.nop(nn.dynamic_slice(x, 1, start, 2)),
            nn.dynamic_update(x, X[:, :2] * 0, 1, start, 2),
            nn.dynamic_slice(x, 0, start, 2, 2),
        )

    plain = tileflow.inference_model(Net(lambda self, x: x))(X)
    part, updated, row = tileflow.inference_model(Net(then), micro_batch_size=4)(X)
    np.testing.assert_array_equal(part, plain[:, 1:3])
    np.testing.assert_array_equal(updated, np.concatenate([plain[:, :1], X[:, :2] * 0], 1))
    np.testing.assert_array_equal(row, plain[1:2])


def test_names_of_a_scope_are_in_front_of_layers():
    def then(self: Net, x: nn.Tensor) -> nn.Tensor:
        with nn.NameScope("outer"):
            y = self.layer(x)
            with nn.NameScope("inner"):
                z = self.layer(y).relu()
        return self.layer(z)

    model = tileflow.inference_model(Net(then), anchored_tensors="outer/inner/layer")
    model(X)
    assert model.anchored("outer/inner/layer").shape == (4, 3)
    names = {source for node in model.program.micro.walk() for source in node.origin.sources}
    assert {"layer", "outer/layer", "outer/inner/layer"} <= names
    with pytest.raises(OptionError, match="takes a name"):
        nn.NameScope("")


def test_python_and_printing_within_a_loop(capsys: pytest.CaptureFixture[str]):
    """Each turn is a call of its own, backwards too, and what is computed is what is written out."""
    def looped(self: Net, x: nn.Tensor) -> nn.Tensor:
        half = nn.cpu(lambda v: v / 2, gradient=lambda v, y, g: g / 2)
        found, = nn.for_loop(3, lambda v: [nn.print_tensor(half(v), "v", summarise_threshold=1, edge_items=1)], [x])
        return found * self.w
    found = trained(looped, threads=2, micro_batch_size=2, gradient_accumulation=2)
    printed = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if ":" in line]
    assert printed == 2 * 2 * (3 * ["v"] + 3 * ["v_gradient"])
    wanted = trained(lambda self, x: x / 8 * self.w, micro_batch_size=2, gradient_accumulation=2)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-7, err_msg=name)
