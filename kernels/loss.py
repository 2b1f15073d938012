"""Loss kernels: cross entropy over rows of scores with integer labels, and sums of elementwise errors in fixed blocks.

Loss values of rows and blocks are float64 and are added in order by one call.
"""
from __future__ import annotations

import functools
import math
from typing import Any

from numba import njit

from .call import Call, In, Out, Work
from .leaf import Leaf
from .reduce import block_sum, reduce_calls
from .rows import EXP, exp_sum, row_max
from .status import LABEL_OUT_OF_RANGE, OK

BLOCK = 4096              # elements per partial sum of an elementwise loss


def _cross_entropy(total: Any) -> Any:
    def cross_entropy(x: Any, labels: Any, weights: Any, loss: Any, weight: Any, ignore: int, may_ignore: int) -> int:
        """loss[r] = weights[label] * -log(softmax(x[r])[label]), weight[r] = weights[label]; ignored rows give zeros."""
        for r in range(loss.shape[0]):
            row, label = x[r], int(labels[r])
            loss[r], weight[r] = 0.0, 0.0
            if may_ignore and label == ignore:
                continue
            if label < 0 or label >= row.shape[0]:
                return LABEL_OUT_OF_RANGE
            w = float(weights[label])
            largest = row_max(row)
            loss[r] = w * (math.log(total(row, largest)) - (float(row[label]) - largest))
            weight[r] = w
        return OK
    return cross_entropy


def _picked(x: Any, labels: Any, weights: Any, loss: Any, weight: Any, ignore: int, may_ignore: int) -> int:
    """loss[r] = -weights[label] * x[r, label], weight[r] = weights[label]; ignored rows give zeros."""
    for r in range(loss.shape[0]):
        row, label = x[r], int(labels[r])
        loss[r], weight[r] = 0.0, 0.0
        if may_ignore and label == ignore:
            continue
        if label < 0 or label >= row.shape[0]:
            return LABEL_OUT_OF_RANGE
        w = float(weights[label])
        loss[r] = -w * row[label]
        weight[r] = w
    return OK


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


def _cross_entropy_grad(exp: Any, total: Any) -> Any:
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
            largest = row_max(source)
            factor = x.dtype.type(w / total(source, largest))
            for i in range(target.shape[0]):
                target[i] = exp(source[i] - largest) * factor
            target[label] -= x.dtype.type(w)
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


@functools.cache
def label_leaf(name: str, dtype: str, label: str) -> Leaf:
    """The leaves over rows with labels: cross_entropy, picked, row_scale, cross_entropy_grad, picked_grad."""
    if name in ("cross_entropy", "picked"):
        body = _cross_entropy(exp_sum(dtype)) if name == "cross_entropy" else _picked
        return Leaf(body, f"{dtype}[r,:], {label}[r], {dtype}[:], f8[r], f8[r], i8, i8", checked=True)
    if name == "row_scale":
        return Leaf(_row_scale, f"{label}[:], {dtype}[:], {dtype}[:], f8[:], i8, i8, i8", checked=True)
    tail = f"{label}[r], {dtype}[:], f8[:], {dtype}[r,:], lo, i8, i8, i8"
    if name == "cross_entropy_grad":
        return Leaf(_cross_entropy_grad(EXP[dtype], exp_sum(dtype)), f"{dtype}[r,:], {tail}", checked=True)
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


@njit
def _square(x: Any, t: Any) -> Any:
    return (x - t) * (x - t)


@njit
def _absolute(x: Any, t: Any) -> Any:
    return abs(x - t)


@njit
def _logistic(x: Any, t: Any) -> Any:
    """-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)), stable."""
    positive = x if x > 0 else x * x.__class__(0)
    return positive - x * t + math.log1p(math.exp(-abs(x)))
