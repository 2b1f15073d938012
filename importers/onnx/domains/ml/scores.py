"""What classifiers and regressors of ai.onnx.ml do with scores: post_transform, a second class for one column, and labels."""
from __future__ import annotations

import math

import numpy as np

from tileflow.graph import Value
from tileflow.system.errors import ModelError

from ...refused import HOSTED
from ...site import Site

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""As TreeEnsemble numbers them."""
TINY = 1e-7
"""SOFTMAX_ZERO leaves scores alone that are no larger."""
WINITZKI = 0.147
"""Of the approximation of the inverse error function by which ONNX's reference and ONNX Runtime compute PROBIT: S. Winitzki, A handy
approximation for the error function and its inverse (2008)."""


def transformed(site: Site, x: Value, how: str) -> Value:
    """post_transform of [rows, scores]."""
    if how == "LOGISTIC":
        return site.emit("Sigmoid", x)
    if how == "SOFTMAX":
        return site.emit("Softmax", x, axis=1)
    if how == "SOFTMAX_ZERO":
        return _softmax_zero(site, x)
    return _probit(site, x) if how == "PROBIT" else x


def _softmax_zero(site: Site, x: Value) -> Value:
    """A softmax of the scores that are not zero."""
    b = site.builder
    largest = site.emit("ReduceMax", x, axes=(1,), keepdims=1)
    counts = site.emit("Greater", site.emit("Abs", x), b.scalar(TINY, x))
    e = site.emit("Exp", site.emit("Sub", x, largest))
    held = site.emit("Mul", x, site.emit("Exp", site.emit("Neg", largest)))
    total = site.emit("ReduceSum", site.emit("Where", counts, e, b.scalar(0.0, x)), axes=(1,), keepdims=1)
    return site.emit("Div", site.emit("Where", counts, e, held), total)


def _probit(site: Site, p: Value) -> Value:
    """sqrt(2) * erfinv(2 p - 1)."""
    b = site.builder
    x = site.emit("Sub", site.emit("Mul", p, b.scalar(2.0, p)), b.scalar(1.0, p))
    rest = site.emit("Log", site.emit("Mul", site.emit("Sub", b.scalar(1.0, x), x), site.emit("Add", b.scalar(1.0, x), x)))
    half = site.emit("Add", site.emit("Mul", rest, b.scalar(0.5, x)), b.scalar(2 / (math.pi * WINITZKI), x))
    inner = site.emit("Sub", site.emit("Mul", half, half), site.emit("Mul", rest, b.scalar(1 / WINITZKI, x)))
    size = site.emit("Sqrt", site.emit("Sub", site.emit("Sqrt", inner), half))
    sign = site.emit("Where", site.emit("Less", x, b.scalar(0.0, x)), b.scalar(-math.sqrt(2), x), b.scalar(math.sqrt(2), x))
    return site.emit("Mul", sign, size)


def two_classes(site: Site, s: Value, how: str, likelihood: bool) -> Value:
    """[rows, 1] scores of the second of two classes as [rows, 2]: a likelihood's counterpart is 1 - s, a score's is -s."""
    b = site.builder
    if how in ("LOGISTIC", "PROBIT"):
        other = transformed(site, site.emit("Neg", s), how) if how == "LOGISTIC" else site.emit("Neg", transformed(site, s, how))
        return site.emit("Concat", other, transformed(site, s, how), axis=1)
    other = site.emit("Sub", b.scalar(1.0, s), s) if likelihood else site.emit("Neg", s)
    return site.emit("Concat", other, s, axis=1)


def class_labels(site: Site) -> np.ndarray:
    """The labels of the classes, int64 or texts."""
    texts = site.attrs.get("classlabels_strings")
    whole = site.attrs.get("classlabels_int64s", site.attrs.get("classlabels_ints"))
    if bool(texts) == bool(whole):
        raise ModelError(f"{site.title} must have class labels that are either strings or integers; export the model again")
    return np.array(texts, object) if texts else np.array(whole, np.int64)


def labelled(site: Site, place: Value, labels: np.ndarray) -> Value | None:
    """The labels at places [rows]. Texts are no tensor of the engine; where they are read, the node stands for two (`functions.body_of`)."""
    if labels.dtype != object:
        return site.emit("Gather", site.builder.constant(labels), place, axis=0)
    name, model = site.outputs[0], site.scope.model
    if site.scope.depth or any(p.name == name for p in model.outputs) or any(name in n.input for n in model.nodes):
        raise site.unsupported(HOSTED)
    site.scope.absent[name] = f"it reads the labels of {site.title}, which are texts"
    return None


def finished(site: Site, place: Value, labels: np.ndarray, scores: Value) -> tuple[Value | None, Value]:
    """A classifier's outputs: labels, and scores as float32."""
    to = site.float_dtype("float32")
    return labelled(site, place, labels), scores if scores.dtype == to else site.emit("Cast", scores, to=to)
