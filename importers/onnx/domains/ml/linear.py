"""Linear models and support vector machines: products with coefficients, in float32 (float64 features in float64), given as float32."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from tileflow.graph import Value
from tileflow.system.errors import ModelError

from ...site import Site
from ...versions import form
from .attributes import DOMAIN, features, numbers, one_of
from .scores import TRANSFORMS, class_labels, finished, transformed, two_classes

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _input(site: Site) -> Value:
    return features(site, "float64" if site.type(0).dtype == "float64" else site.float_dtype("float32"))


def _product(site: Site, x: Value, rows: np.ndarray, add: np.ndarray) -> Value:
    """x rows^T + add, for rows [count, features] as one list."""
    if not add.size or rows.size != add.size * x.shape[1]:
        raise ModelError(f"{site.title} has {rows.size} coefficients for {add.size} intercepts and the {x.shape[1]} features of its input")
    matrix = site.builder.constant(np.ascontiguousarray(rows.reshape(add.size, -1).T).astype(x.type.numpy))
    return site.emit("Add", site.emit("MatMul", x, matrix), site.builder.constant(add.astype(x.type.numpy)))


def _narrowed(site: Site, y: Value) -> Value:
    to = site.float_dtype("float32")
    return y if y.dtype == to else site.emit("Cast", y, to=to)


@form("LinearRegressor", domain=DOMAIN)
def linear_regressor(site: Site) -> Sequence[Value]:
    targets = int(site.attrs.get("targets", 1))
    scores = _product(site, _input(site), numbers(site, "coefficients"), numbers(site, "intercepts", targets))
    return (_narrowed(site, transformed(site, scores, one_of(site, "post_transform", TRANSFORMS, "NONE"))),)


@form("LinearClassifier", domain=DOMAIN)
def linear_classifier(site: Site) -> Sequence[Value | None]:
    """Labels of the highest scores; one score decides between two classes by its sign, and is a likelihood's logit in what is given."""
    b, labels, how = site.builder, class_labels(site), one_of(site, "post_transform", TRANSFORMS, "NONE")
    x, coefficients = _input(site), numbers(site, "coefficients")
    count = len(numbers(site, "intercepts")) or coefficients.size // max(x.shape[1], 1)
    s = _product(site, x, coefficients, numbers(site, "intercepts", count))
    if count > 1:
        if count != len(labels):
            raise ModelError(f"{site.title} has {len(labels)} class labels for {count} scores; export the model again")
        return finished(site, site.emit("ArgMax", s, axis=1, keepdims=0), labels, transformed(site, s, how))
    if len(labels) != 2:
        raise ModelError(f"{site.title} has {len(labels)} class labels for one score; export the model again")
    second = site.emit("Greater", s, b.scalar(0.0, s))
    place = site.emit("Reshape", site.emit("Cast", second, to="int64"), shape=(s.shape[0],), allowzero=1)
    return finished(site, place, labels, two_classes(site, s, how, likelihood=True))


def _kernel(site: Site, x: Value, vectors: np.ndarray, rho: float = 0.0) -> Value:
    """kernel(x, vectors) + rho: [rows, count] for vectors [count, features]."""
    b, kind = site.builder, one_of(site, "kernel_type", KERNELS, "LINEAR")
    gamma, coef0, degree = (float(n) for n in (*numbers(site, "kernel_params"), 0, 0, 0)[:3])
    dots = site.emit("MatMul", x, b.constant(np.ascontiguousarray(vectors.T).astype(x.type.numpy)))
    if kind == "RBF":
        squares = site.emit("ReduceSum", site.emit("Mul", x, x), axes=(1,), keepdims=1)
        own = b.constant(np.sum(vectors.astype(np.float64) ** 2, 1).astype(x.type.numpy))
        apart = site.emit("Sub", site.emit("Add", squares, own), site.emit("Mul", dots, b.scalar(2.0, x)))
        least = site.emit("Max", apart, b.scalar(0.0, x))
        y = site.emit("Exp", site.emit("Mul", least, b.scalar(-gamma, x)))
    elif kind != "LINEAR":
        y = site.emit("Add", site.emit("Mul", dots, b.scalar(gamma, x)), b.scalar(coef0, x))
        y = site.emit("Pow", y, b.scalar(degree, x)) if kind == "POLY" else site.emit("Tanh", y)
    else:
        y = dots
    return site.emit("Add", y, b.scalar(rho, y)) if rho else y


def _vectors(site: Site, x: Value, count: int) -> np.ndarray:
    vectors = numbers(site, "support_vectors")
    if vectors.size != count * x.shape[1]:
        raise ModelError(f"{site.title} has {vectors.size} numbers of support vectors for {count} of them and {x.shape[1]} features")
    return vectors.reshape(count, -1)


@form("SVMRegressor", domain=DOMAIN)
def svm_regressor(site: Site) -> Sequence[Value]:
    """Sums over support vectors, or without these a linear model; one_class gives the sign."""
    b, x, coefficients, rho = site.builder, _input(site), numbers(site, "coefficients"), numbers(site, "rho")
    count = int(site.attrs.get("n_supports", 0))
    if len(rho) != 1 or (count > 0 and coefficients.size != count):
        raise ModelError(f"{site.title} has {len(rho)} rho, {coefficients.size} coefficients and {count} support vectors; export the model again")
    if count > 0:
        y = _product(site, _kernel(site, x, _vectors(site, x, count)), coefficients, rho)
    else:
        if coefficients.size != x.shape[1]:
            raise ModelError(f"{site.title} has {coefficients.size} coefficients for {x.shape[1]} features; export the model again")
        y = _kernel(site, x, coefficients.reshape(1, -1), float(rho[0]))
    if site.attrs.get("one_class"):
        positive = site.emit("Greater", y, b.scalar(0.0, y))
        y = site.emit("Where", positive, b.scalar(1.0, y), b.scalar(-1.0, y))
    return (_narrowed(site, transformed(site, y, one_of(site, "post_transform", TRANSFORMS, "NONE"))),)


@form("SVMClassifier", domain=DOMAIN)
def svm_classifier(site: Site) -> Sequence[Value | None]:
    """Each pair of classes has a score by which one of the two gets a vote; the class with most votes, the first one of several, is chosen.
    Scores of two classes are s and -s; prob_a and prob_b make likelihoods of them, of two classes only."""
    b, labels, how = site.builder, class_labels(site), one_of(site, "post_transform", TRANSFORMS, "NONE")
    each, x = np.asarray(site.attrs.get("vectors_per_class") or [], np.int64), _input(site)
    if not each.size:
        return _linear_machine(site, x, labels, how)
    if len(each) != len(labels) or len(labels) < 2 or each.min() < 0:
        raise ModelError(f"{site.title} has {len(each)} vectors_per_class for {len(labels)} classes; export the model again")
    if numbers(site, "prob_a").size and len(labels) > 2:
        raise site.unsupported("likelihoods (prob_a, prob_b) of more than two classes")
    pairs = _pairs(site, x, each)
    votes = _votes(site, pairs, len(labels))
    place = site.emit("ArgMax", votes, axis=1, keepdims=0)
    if numbers(site, "prob_a").size:
        slope, shift = (b.scalar(float(numbers(site, f"prob_{k}", 1)[0]), pairs) for k in "ab")
        first = site.emit("Sigmoid", site.emit("Neg", site.emit("Add", site.emit("Mul", pairs, slope), shift)))
        first = site.emit("Min", site.emit("Max", first, b.scalar(1e-7, first)), b.scalar(1 - 1e-7, first))
        both = site.emit("Concat", first, site.emit("Sub", b.scalar(1.0, first), first), axis=1)
        return finished(site, place, labels, transformed(site, both, how))
    if len(labels) > 2:
        return finished(site, place, labels, transformed(site, pairs, how))
    if np.all(numbers(site, "coefficients") >= 0):
        raise site.unsupported("two classes without a negative coefficient")
    return finished(site, place, labels, two_classes(site, pairs, how, likelihood=how != "NONE"))


def _pairs(site: Site, x: Value, each: np.ndarray) -> Value:
    """[rows, pairs]: the score of each pair of classes (i, j > i): the j-1-th coefficients of i's vectors and the i-th of j's, and rho."""
    total, classes = int(each.sum()), len(each)
    coefficients, ends = numbers(site, "coefficients"), np.cumsum(each)
    if coefficients.size != (classes - 1) * total:
        raise ModelError(f"{site.title} has {coefficients.size} coefficients for {total} vectors of {classes} classes; export the model again")
    table = coefficients.reshape(classes - 1, total)
    rho = numbers(site, "rho")
    columns = []
    for i, j in combinations(range(classes), 2):
        column = np.zeros(total, np.float32)
        of_i, of_j = slice(ends[i] - each[i], ends[i]), slice(ends[j] - each[j], ends[j])
        column[of_i], column[of_j] = table[j - 1, of_i], table[i, of_j]
        columns.append(column)
    if len(rho) != len(columns):
        raise ModelError(f"{site.title} has {len(rho)} rho for {len(columns)} pairs of classes; export the model again")
    return _product(site, _kernel(site, x, _vectors(site, x, total)), np.stack(columns).reshape(-1), rho)


def _votes(site: Site, pairs: Value, classes: int) -> Value:
    """[rows, classes]: how many pairs each class wins."""
    b = site.builder
    wins, loses = (np.zeros((pairs.shape[1], classes), pairs.type.numpy) for _ in range(2))
    for k, (i, j) in enumerate(combinations(range(classes), 2)):
        wins[k, i], loses[k, j] = 1, 1
    won = site.emit("Cast", site.emit("Greater", pairs, b.scalar(0.0, pairs)), to=pairs.dtype)
    lost = site.emit("Sub", b.scalar(1.0, won), won)
    return site.emit("Add", site.emit("MatMul", won, b.constant(wins)), site.emit("MatMul", lost, b.constant(loses)))


def _linear_machine(site: Site, x: Value, labels: np.ndarray, how: str) -> Sequence[Value | None]:
    """Without support vectors: a row of coefficients for each class, and one rho."""
    coefficients, rho = numbers(site, "coefficients"), numbers(site, "rho")
    if coefficients.size != len(labels) * x.shape[1] or not rho.size or len(labels) < 3:
        raise site.unsupported("support vector machines without support vectors, but of three classes or more")
    b = site.builder
    matrix = b.constant(np.ascontiguousarray(coefficients.reshape(len(labels), -1).T).astype(x.type.numpy))
    s = site.emit("Add", site.emit("MatMul", x, matrix), b.scalar(float(rho[0]), x))
    return finished(site, site.emit("ArgMax", s, axis=1, keepdims=0), labels, transformed(site, s, how))
