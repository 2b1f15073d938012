"""Tensors in `forward`: methods, operators and indexing as PyTorch's, with gradients; and what they refuse."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peers import needs

from tileflow import nn
from tileflow.graph import Graph
from tileflow.nn.trace import Trace, recording
from tileflow.system.errors import OptionError, ShapeError, TypeMismatchError

rng = np.random.default_rng(5)
X, CUBE = rng.standard_normal((3, 4)), rng.standard_normal((2, 3, 4))
WHOLE, MASK, PLACES = rng.integers(0, 9, (3, 4)), X > 0, np.array([[2, 0], [-1, 1]])

METHODS: list[tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = [
    *((lambda x, name=name: getattr(x.abs() + 0.1, name)(), (X,)) for name in ("log", "sqrt", "rsqrt", "reciprocal", "square")),
    *((lambda x, name=name: getattr(x, name)(), (X,)) for name in (
        "abs", "ceil", "cos", "erf", "exp", "floor", "relu", "round", "sigmoid", "sign", "sin", "tanh", "t", "contiguous", "clone", "double")),
    (lambda x: x.T @ x, (X,)), (lambda x: x.mT.matmul(x), (CUBE,)), (lambda x: x.softmax(dim=0) + x.log_softmax(-1), (X,)),
    (lambda x: x.sum() + x.sum(dim=1, keepdim=True) + x.mean(0) + x.mean(dim=(0, 1)), (X,)), (lambda x: x.sum(-1, True), (X,)),
    (lambda x: x.prod(dim=1), (X,)), (lambda x: x.var(), (X,)), (lambda x: x.var(dim=0, unbiased=False, keepdim=True), (X,)),
    (lambda x: x.std(dim=(0, 2), correction=2), (CUBE,)), (lambda x: x.norm(), (X,)), (lambda x: x.norm(p=3, dim=1), (X,)),
    (lambda x: (x * np.zeros((3, 4))).norm(dim=1) if isinstance(x, nn.Tensor) else (x * 0).norm(dim=1), (X,)),
    (lambda x: x.norm(float("inf"), dim=0) + x.norm(1, 0), (X,)), (lambda x: x.logsumexp(dim=1), (100 * X,)), (lambda x: x.cumsum(dim=1), (X,)),
    (lambda x: x.amax(dim=(0, 1)) - x.amin(1), (X,)), (lambda x: (x.max(), x.min()), (X,)), (lambda x: tuple(x.max(dim=1)), (X,)),
    (lambda x: tuple(x.min(0, keepdim=True)), (X,)), (lambda x: x.max(dim=-1).values, (X,)), (lambda x, y: x.max(y) - x.min(y), (X, X[::-1].copy())),
    (lambda x: (x.argmax(), x.argmin(dim=1), x.argmax(0, keepdim=True)), (X,)), (lambda m: (m.any(), m.all(dim=0), (~m).any(1)), (MASK,)),
    (lambda i, m: (i.sum(), m.sum(0), i.max(1).values), (WHOLE, MASK)), (lambda x: x.clamp(-0.2, 0.4) + x.clamp(min=0) + x.clamp(max=0.1), (X,)),
    (lambda x, y: x.clamp(min=y), (X, 2 * X[::-1])), (lambda x, m: x.masked_fill(m, -1e9), (X, MASK)), (lambda x: x.tril() + x.triu(1), (CUBE,)),
    (lambda x, m: x.where(m, x * 2), (X, MASK)), (lambda x: x.detach() * x, (X,)),
    # kinds of numbers meet
    (lambda i: (i / 2, i / i.clamp(min=1), i + 0.5, i * True, 1 - i, 7 // (i + 1), i % 4, -i // 3), (WHOLE,)), (lambda x, i: x * i - i, (X, WHOLE)),
    (lambda x, m: x * m + m, (X, MASK)), (lambda x: (x.detach() // 0.3, x % 0.3, 2.0 / (x + 9), 2 ** x, x ** 3), (X,)),
    (lambda i, m: i + m, (WHOLE, MASK)),
    (lambda i: ((i > 3) & (i != 5) | ~(i <= 7), i & 3, i ^ 1, i | 8), (WHOLE,)), (lambda x, y: (x == y, x < y, x >= 0, x < 0), (X, X.copy())),
    (lambda x: (x.float(), x.long(), x.bool(), x.int(), x.half().double()), (X,)), (lambda i: i.double().exp() + i.float().double().sqrt(), (WHOLE,)),
    # shapes
    (lambda x: (x.view(4, -1), x.reshape((2, 6)), x.flatten(start_dim=0), x.view(x.size(0), 2, 2)), (X,)), (lambda x: x.flatten(1), (CUBE,)),
    (lambda x: (x.permute(2, 0, 1), x.permute((1, 0, 2)), x.transpose(0, -1), x.flatten(0, 1)), (CUBE,)),
    (lambda x: (x.unsqueeze(-1).squeeze(-1), x.unsqueeze(0).squeeze(), x.squeeze(0), x.unsqueeze(1).squeeze(dim=1)), (X,)),
    (lambda x: (x[:, :1].expand(-1, 5), x.expand(2, 3, 4), x[:1].expand_as(x)), (X,)), (lambda x: (x.repeat(2, 1), x.repeat(2, 1, 3)), (X,)),
    (lambda x: x.unflatten(1, (2, -1)), (X,)), (lambda x: (*x.split(3, dim=1), *x.split([1, 3], -1), *x.chunk(3, 1), *x.unbind(1)), (X,)),
    (lambda x: (*x.chunk(5, dim=0), *iter(x), len(x) * x), (X,)), (lambda x: (x.narrow(1, 1, 2), x.select(0, -1), x.flip(0), x.flip((0, 1))), (X,)),
    (lambda x: x.roll(3, 1) + x.roll(-1, 0), (X,)), (lambda x, i: x.index_select(1, i), (X, np.array([3, 0, 0]))),
    (lambda x, i: x.gather(1, i), (X, np.array([[0, 3], [1, 1], [2, 0]]))),
    (lambda x, i: x.gather(dim=1, index=i), (CUBE, rng.integers(0, 3, (2, 5, 4)))),
    (lambda x: (x.dim() * x, x.numel() * x, x.ndim * x), (X,)),
    # indexing
    (lambda x: (x[0], x[-1, 2], x[1:], x[::2, 1:3], x[..., 0], x[None, :, None], x[:, 3:1], x[..., 1:, :]), (CUBE,)),
    (lambda x: (x[:, [2, 0]], x[[0, 1], [1, 2]], x[:, [0, 1], [1, 3]], x[0, :, [1, 1, 3]], x[[0, 1], :, [1, 3]]), (CUBE,)),
    (lambda x, i: (x[i], x[:, i], x[i, i], x[..., i, None]), (rng.standard_normal((3, 3, 3)), PLACES)),
    (lambda x: (x[:, np.array([True, False, True])] if isinstance(x, nn.Tensor) else x[:, [0, 2]]), (CUBE,)),
]


@pytest.mark.parametrize("index", range(len(METHODS)))
def test_methods_are_pytorchs(index: int) -> None:
    needs("torch")
    from test_nn_functional import agree, recorded, theirs
    function, arrays = METHODS[index]
    agree(recorded(function, arrays), theirs(function, arrays))


def test_functions_of_several_tensors() -> None:
    torch = needs("torch")
    from test_nn_functional import agree, recorded, theirs

    def both(n: Any) -> Callable[..., Any]:
        return lambda x, y: (n.cat([x, y], dim=1), n.stack([x, y], dim=-1), n.stack((x, y)), n.where(x > y, x, 0.0), n.where(x > 0, y, x))
    agree(recorded(both(nn), (X, 2 * X)), theirs(both(torch), (X, 2 * X)))


def test_steps_back_and_bounds() -> None:
    """Beyond PyTorch: NumPy's negative steps."""
    needs("torch")
    from test_nn_functional import recorded
    values, gradients = recorded(lambda x: (x[::-1], x[:, 2:0:-1], x[-1:-9:-2]), (X,))
    for got, want in zip(values, (X[::-1], X[:, 2:0:-1], X[-1:-9:-2]), strict=True):
        np.testing.assert_array_equal(got, want)
    assert gradients[0].shape == X.shape


REFUSED: list[tuple[Callable[[nn.Tensor], Any], type[Exception], str]] = [
    (lambda x: x[3], ShapeError, "index 3 is outside of axis 0 with 3 elements"), (lambda x: x[0, 0, 0], ShapeError, "3 indices for"),
    (lambda x: x[[5]], ShapeError, "go beyond axis 0"), (lambda x: x[x > 0], TypeMismatchError, "depends on values; use where or masked_fill"),
    (lambda x: x[True], TypeMismatchError, "no index True"), (lambda x: x["a"], TypeMismatchError, "not by 'a'"),
    (lambda x: x[1.0], TypeMismatchError, "not by 1.0"),
    (lambda x: x.__setitem__(0, 1), TypeMismatchError, "not changed in place"), (lambda x: x if x.sum() else 1, TypeMismatchError, "no value while"),
    (lambda x: float(x.sum()), TypeMismatchError, "no value while"), (lambda x: np.asarray(x), TypeMismatchError, "no value while"),
    (lambda x: x.sum(0, 1), OptionError, "keepdim must be True or False, got 1; give several axes as a tuple"),
    (lambda x: x.sum(2), ShapeError, "dim=2 is no axis"),
    (lambda x: x.transpose(1, 0, 2), OptionError, "use permute|permute puts"), (lambda x: x.clamp(), OptionError, "clamp needs"),
    (lambda x: x.expand(3, 5), ShapeError, "does not expand"), (lambda x: x.repeat(2), ShapeError, "fewer numbers"),
    (lambda x: x.view(5, 5), ShapeError, "Reshape"),
    (lambda x: x.unflatten(1, (3, -1)), ShapeError, "does not divide"), (lambda x: x.narrow(1, 2, 3), ShapeError, "are not in axis 1"),
    (lambda x: x.to("complex64"), TypeMismatchError, "cast to|element type"),
    (lambda x: x.to("float12"), TypeMismatchError, "no element type 'float12'"),
    (lambda x: x.chunk(0), OptionError, "at least 1 part"), (lambda x: x.gather(0, np.zeros((1, 9), int)), ShapeError, "no larger sizes"),
    (lambda x: nn.cat([np.ones(3)]), TypeMismatchError, "at least one tensor"),
    (lambda x: nn.where(x > 0, 1, 2), TypeMismatchError, "no element type"),
    (lambda x: nn.functional.glu(x[:, :3]), ShapeError, "no two halves"), (lambda x: nn.functional.pad(x, (1,)), ShapeError, "two numbers"),
    (lambda x: nn.functional.interpolate(x[None]), OptionError, "either size or scale_factor"),
    (lambda x: nn.functional.group_norm(x, 3), ShapeError, "must divide"),
    (lambda x: nn.functional.conv2d(x, np.ones((1, 1, 1, 1))), ShapeError, "conv2d takes"),
    (lambda x: nn.functional.smooth_l1_loss(x, x[0]), ShapeError, "one shape"),
    (lambda x: nn.functional.huber_loss(x, x, "max"), OptionError, "reduction 'max' is unknown"),
    (lambda x: nn.functional.cross_entropy(x, x[0].softmax(0)[None]), ShapeError, "probabilities of the scores' shape"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[2][:20])
def test_refused(case: tuple[Callable[[nn.Tensor], Any], type[Exception], str]) -> None:
    call, error, sentence = case
    trace = Trace(Graph("test"), False, "float64")
    x = nn.Tensor(trace, trace.builder.constant(X))
    with recording(trace), pytest.raises(error, match=sentence):
        call(x)
