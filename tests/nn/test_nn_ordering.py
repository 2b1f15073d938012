"""Functions and methods that pick, place, order and contract elements against PyTorch's of the same name: values and gradients in float64."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peers import needs
from test_nn_functional import agree, normal, recorded, theirs, whole

from tileflow import nn
from tileflow.nn import functional as F
from tileflow.system.errors import OptionError, ShapeError

torch = needs("torch")

X, BATCH = normal(3, 4), normal(2, 3, 4)
TIED = np.round(normal(3, 8))
WITH_ZEROS = np.array([[0.5, 0.0, -2.0, 3.0], [0.0, 1.0, 0.0, 2.0]])
TWICE = np.array([[0, 2, 0, 1], [0, 2, 1, 1]])
ORDERING: list[tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]] = [
    ("gather", lambda f, x, i: f.gather(x, 0, i), (X, whole(3, 2, 4))), ("gather", lambda f, x, i: f.gather(x, -1, i), (BATCH, whole(4, 2, 2, 6))),
    ("scatter_add", lambda f, x, i, s: f.scatter_add(x, 0, i, s), (X, TWICE, normal(2, 4))),
    ("scatter", lambda f, x, i, s: f.scatter(x, 1, i, s), (X, np.array([[0, 3], [1, 2], [3, 0]]), normal(3, 2))),
    ("scatter", lambda f, x, i: f.scatter(x, 1, i, 0.5), (X, np.array([[0, 3], [1, 2], [3, 0]]))),
    *(("scatter_reduce", lambda f, x, i, s, how=how: f.scatter_reduce(x, 0, i, s, reduce=how), (X, TWICE, normal(2, 4)))
      for how in ("sum", "prod", "amin", "amax")),
    ("index_add", lambda f, x, i, s: f.index_add(x, 1, i, s, alpha=2), (X, np.array([1, 1, 3]), normal(3, 3))),
    ("topk", lambda f, x: f.topk(x, 2), (X,)), ("topk", lambda f, x: f.topk(x, 2, dim=1, largest=False), (BATCH,)),
    ("sort", lambda f, x: f.sort(x, dim=0, descending=True), (X,)), ("sort", lambda f, x: f.sort(x, dim=-1, stable=True), (TIED,)),
    ("argsort", lambda f, x: f.argsort(x, dim=1), (X,)), ("argmax", lambda f, x: f.argmax(x, dim=1, keepdim=True), (X,)),
    ("argmin", lambda f, x: f.argmin(x), (X,)), ("cumsum", lambda f, x: f.cumsum(x, 1), (BATCH,)),
    ("cumprod", lambda f, x: f.cumprod(x, 1), (WITH_ZEROS,)), ("cumprod", lambda f, x: f.cumprod(x, 0), (BATCH,)),
    ("tril", lambda f, x: f.tril(x, diagonal=-1), (BATCH,)), ("triu", lambda f, x: f.triu(x), (X,)),
    ("flip", lambda f, x: f.flip(x, (0, 2)), (BATCH,)), ("roll", lambda f, x: f.roll(x, (1, -5), (0, 2)), (BATCH,)),
    ("roll", lambda f, x: f.roll(x, 2, 1), (X,)), ("where", lambda f, x, y: f.where(x > 0, x, y), (X, normal(4))),
    ("det", lambda f, x: f.det(x), (normal(2, 3, 3),)),
    *(("einsum", lambda f, *x, equation=equation: f.einsum(equation, *x), tuple(normal(*shape) for shape in shapes)) for equation, *shapes in (
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)), ("ij,kj", (3, 4), (5, 4)),
        ("ab,bc,cd,da->", (2, 3), (3, 4), (4, 5), (5, 2)), ("...i,ij->...j", (2, 3, 4), (4, 5)), ("ii->i", (4, 4)), ("iji->j", (3, 2, 3)),
        ("bchw,hkc->bkhw", (2, 3, 4, 5), (4, 6, 3)), ("i,j->ij", (3,), (4,)), ("ij->", (3, 4)), ("bi,oij,bj->bo", (2, 3), (4, 3, 5), (2, 5)))),
]


@pytest.mark.parametrize("case", ORDERING, ids=lambda c: c[0])
def test_functions_are_pytorchs(case: tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]) -> None:
    name, call, arrays = case
    agree(recorded(lambda *x: call(F, *x), arrays), theirs(lambda *x: call(torch, *x), arrays), name)


def test_shifts_are_pytorchs() -> None:
    arrays = (np.array([1, -9, 77], np.int32), np.array([3, 1, 4], np.int32))
    agree(recorded(lambda x, y: (x << y, x >> y), arrays), theirs(lambda x, y: (x << y, x >> y), arrays))


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda x: x.topk(5), ShapeError, "k=5 of the 4 elements"), (lambda x: x.gather(0, np.zeros((3, 5), np.int64)), ShapeError, "no larger sizes"),
    (lambda x: x.scatter(0, np.zeros((1, 4), np.int64), 1.0, "max"), OptionError, "'max' is unknown"),
    (lambda x: F.einsum("ij,jk", x), OptionError, "has 2 operands and 1 are given"), (lambda x: F.einsum("iz->iy", x), OptionError, "must name axes"),
    (lambda x: F.einsum("ii", x), ShapeError, "have 3 and 4 elements"), (lambda x: x.tril().det(), ShapeError, "no square matrices"),
])
def test_mistakes_are_told(call: Callable[[nn.Tensor], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        recorded(call, (X,))
