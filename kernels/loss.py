"""Loss kernels over rows of scores with integer labels: cross entropy, negative log-likelihood, their gradients.

The loss values of rows are float64, and one call adds them in order. A label out of range ends the leaf with
LABEL_OUT_OF_RANGE before anything is read or written with it.
"""
from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from .dtypes import BITS
from .isa import cpu
from .machine.call import Call, In, Out, Work
from .machine.leaf import Leaf
from .machine.status import LABEL_OUT_OF_RANGE, OK
from .move import fill_call
from .rows import row_kernel, to_rows
from .sums import block_sum


def _row_losses(name: str, negative_log: Any) -> Any:
    """The body of a loss whose unweighted value for a row of scores is negative_log(row, label, pair); `pair` is scratch."""
    def losses(x: Any, labels: Any, weights: Any, loss: Any, weight: Any, pair: Any, ignore: int, may_ignore: int) -> int:
        """loss[r] = weights[label] * negative_log(x[r]), weight[r] = weights[label]; ignored rows give zeros."""
        for r in range(loss.shape[0]):
            row, label = x[r], int(labels[r])
            loss[r], weight[r] = 0.0, 0.0
            if may_ignore and label == ignore:
                continue
            if label < 0 or label >= row.shape[0]:
                return LABEL_OUT_OF_RANGE
            w = float(weights[label])
            loss[r] = w * negative_log(row, label, pair)
            weight[r] = w
        return OK
    losses.__name__ = name
    return losses


def _of_scores(max_sum_exp: Any) -> Any:
    def negative_log(row: Any, label: int, pair: Any) -> float:
        """-log(softmax(row)[label])."""
        max_sum_exp(1, row.shape[0], row.ctypes.data, pair.ctypes.data)
        return math.log(pair[1]) - (float(row[label]) - pair[0])
    return negative_log


def _of_logs(row: Any, label: int, _pair: Any) -> float:
    """-row[label], of log-probabilities."""
    return -float(row[label])


def _mean(loss: Any, weight: Any, y: Any, divide: int) -> None:
    """y[0] = sum(loss), divided by sum(weight) if `divide`."""
    total = block_sum(loss)
    y[0] = total / block_sum(weight) if divide else total


def _convert(x: Any, y: Any) -> None:
    """y = x in y's type."""
    for i in range(y.shape[0]):
        y[i] = x[i]


def _row_scale(labels: Any, weights: Any, g: Any, scale: Any, ignore: int, may_ignore: int, divide: int) -> int:
    """scale[0] = g[0], divided by the weights of all labels that count if `divide`."""
    total = 0.0
    if divide:
        for r in range(labels.shape[0]):
            label = int(labels[r])
            if may_ignore and label == ignore:
                continue
            if label < 0 or label >= weights.shape[0]:
                return LABEL_OUT_OF_RANGE
            total += weights[label]
    scale[0] = g[0] / total if divide else g[0]
    return OK


def _cross_entropy_grad(softmax: Any) -> Any:
    def cross_entropy_grad(x: Any, labels: Any, weights: Any, scale: Any, dx: Any, lo: int, ignore: int, may_ignore: int,
                           stride: int) -> int:
        """dx[r] = scale * weights[label] * (softmax(x[r]) - onehot(label)); zeros where ignored. stride 0: one scale for all."""
        for r in range(dx.shape[0]):
            source, target, label = x[r], dx[r], int(labels[r])
            if may_ignore and label == ignore:
                for i in range(target.shape[0]):
                    target[i] = 0
                continue
            if label < 0 or label >= target.shape[0]:
                return LABEL_OUT_OF_RANGE
            w = float(scale[(lo + r) * stride]) * weights[label]
            softmax(1, target.shape[0], source.ctypes.data, target.ctypes.data)
            factor = x.dtype.type(w)
            target[label] -= 1
            for i in range(target.shape[0]):
                target[i] *= factor
        return OK
    return cross_entropy_grad


def _picked_grad(labels: Any, weights: Any, scale: Any, dx: Any, lo: int, ignore: int, may_ignore: int, stride: int) -> int:
    """dx[r] = -scale * weights[label] at the label, zeros elsewhere."""
    for r in range(dx.shape[0]):
        target, label = dx[r], int(labels[r])
        for i in range(target.shape[0]):
            target[i] = 0
        if may_ignore and label == ignore:
            continue
        if label < 0 or label >= target.shape[0]:
            return LABEL_OUT_OF_RANGE
        target[label] = -float(scale[(lo + r) * stride]) * weights[label]
    return OK


def label_leaf(name: str, dtype: str, label: str) -> Leaf:
    """The leaves over rows with labels: cross_entropy, picked, row_scale, cross_entropy_grad, picked_grad."""
    return _label_leaf(name, dtype, label, cpu.current())


@functools.cache
def _label_leaf(name: str, dtype: str, label: str, path: cpu.Cpu) -> Leaf:
    if name in ("cross_entropy", "picked"):
        value = _of_scores(row_kernel("max_sum_exp", dtype, path)) if name == "cross_entropy" else _of_logs
        return Leaf(_row_losses(name, value), f"{dtype}[r,:], {label}[r], {dtype}[:], f8[r], f8[r], {dtype}[w,:], i8, i8", checked=True, key=name)
    if name == "row_scale":
        return Leaf(_row_scale, f"{label}[:], {dtype}[:], {dtype}[:], f8[:], i8, i8, i8", checked=True)
    tail = f"{label}[r], {dtype}[:], f8[:], {dtype}[r,:], lo, i8, i8, i8"
    if name == "cross_entropy_grad":
        return Leaf(_cross_entropy_grad(row_kernel("softmax", dtype, path)), f"{dtype}[r,:], {tail}", checked=True)
    assert name == "picked_grad", name
    return Leaf(_picked_grad, tail, checked=True)


@functools.cache
def mean_leaf(dtype: str) -> Leaf:
    """loss f8[:], weight f8[:], y[1], divide."""
    return Leaf(_mean, f"f8[:], f8[:], {dtype}[:], i8")


@functools.cache
def convert(source: str, target: str) -> Leaf:
    """x[r], y[r]."""
    return Leaf(_convert, f"{source}[r], {target}[r]")


class Labels:
    """What the label kernels share: scores of input `scores` [outer, classes, inner], labels and weights of the next inputs.

    Kernels read rows of classes: with inner > 1 the scores are moved there, and gradients back.
    """

    def __init__(self, dtype: str, label: str, dims: tuple[int, int, int], weighted: bool, ignore: int | None, scores: int) -> None:
        self.dtype, self.label, self.dims, self.scores = dtype, label, dims, scores
        self.outer, self.classes, self.inner = dims
        self.rows, self.size = self.outer * self.inner, math.prod(dims)
        self.itemsize = np.dtype(dtype).itemsize
        self.ignore = (ignore or 0, int(ignore is not None))
        self.cost = self.size * 0.4 + self.rows * 30.0
        self.grain = max(1, 1024 // max(1, self.classes))
        self.labels = In(scores + 1, (self.rows,))
        self.weights: In | Work = In(scores + 2, (self.classes,)) if weighted else Work("weights", (self.classes,), dtype)
        one = int(np.ones(1, dtype).view(BITS[self.itemsize])[0])
        self.first = [] if weighted else [fill_call(self.weights, one, self.classes, self.itemsize)]

    def score_rows(self) -> tuple[In | Work, list[Call]]:
        """The scores as [rows, classes] and the Calls that bring them there."""
        if self.inner == 1:
            return In(self.scores, (self.rows, self.classes)), []
        target = Work("scores", (self.size,), self.dtype)
        return replace(target, shape=(self.rows, self.classes)), to_rows(In(self.scores, (self.size,)), target, *self.dims, self.itemsize)

    def loss(self, name: str, reduction: str) -> list[Call]:
        """The Calls of a loss to output 0; `name` is cross_entropy (scores) or picked (log-probabilities)."""
        source, calls = self.score_rows()
        loss, weight = Work("loss", (self.rows,), "f8"), Work("weight", (self.rows,), "f8")
        args = (source, self.labels, self.weights, loss, weight, Work("pair", (2,), self.dtype), *self.ignore)
        calls = [*self.first, *calls, Call(label_leaf(name, self.dtype, self.label), args, self.rows, self.grain, self.cost)]
        if reduction == "none":
            return [*calls, Call(convert("f8", self.dtype), (loss, Out(0, (self.rows,))), self.rows, 1024, self.rows * 0.2)]
        total = Call(mean_leaf(self.dtype), (loss, weight, Out(0, (1,)), int(reduction == "mean")), 1, 1, self.rows * 0.3)
        return [*calls, total]

    def gradient(self, name: str, reduction: str) -> list[Call]:
        """The Calls of a loss's gradient by the scores to output 0; input 0 is the gradient of the loss."""
        if reduction == "none":
            scale = Work("scale", (self.rows,), "f8")
            calls = [Call(convert(self.dtype, "f8"), (In(0, (self.rows,)), scale), self.rows, 1024, self.rows * 0.2)]
        else:
            scale = Work("scale", (1,), "f8")
            args = (self.labels, self.weights, In(0, (1,)), scale, *self.ignore, int(reduction == "mean"))
            calls = [Call(label_leaf("row_scale", self.dtype, self.label), args, 1, 1, self.rows * 1.0)]
        tail = (self.labels, self.weights, scale)
        target: Out | Work = Out(0, (self.rows, self.classes))
        if self.inner > 1:
            target = Work("gradient", (self.rows, self.classes), self.dtype)
        source, moves = self.score_rows() if name == "cross_entropy" else (None, [])
        leaf = label_leaf(f"{name}_grad", self.dtype, self.label)
        head = () if source is None else (source,)
        calls = [*self.first, *calls, *moves,
                 Call(leaf, (*head, *tail, target, *self.ignore, int(reduction == "none")), self.rows, self.grain, self.cost)]
        if isinstance(target, Work):
            back = (self.outer, self.inner, self.classes)
            calls += to_rows(replace(target, shape=(self.size,)), Out(0, (self.size,)), *back, self.itemsize)
        return calls
