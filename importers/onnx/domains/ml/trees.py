"""Ensembles of trees."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileflow.graph import Value
from tileflow.system.errors import ModelError, ShapeError

from ...site import Site
from ...versions import form
from .attributes import DOMAIN, features, integers, numbers, one_of
from .forest import LEAF, MEMBER, MODES, Listed, places, tables
from .scores import TRANSFORMS, class_labels, finished, transformed, two_classes

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""As TreeEnsemble numbers them."""


@form("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(site: Site) -> Sequence[Value]:
    """The aggregated votes and base values, float32."""
    count = int(site.attrs.get("n_targets") or integers(site, "target_ids").max(initial=0) + 1)
    base = numbers(site, "base_values")
    if base.size not in (0, 1, count):
        raise ModelError(f"{site.title} has {base.size} base_values for {count} targets; export the model again")
    raw = votes(site, listed(site, "target"), count, one_of(site, "aggregate_function", AGGREGATES, "SUM"), _spread(base, count))
    return (narrowed(site, transformed(site, raw, one_of(site, "post_transform", TRANSFORMS, "NONE"))),)


def _spread(base: np.ndarray, count: int) -> np.ndarray:
    return np.broadcast_to(base.astype(np.float64), count) if base.size else np.zeros(count)


def narrowed(site: Site, scores: Value) -> Value:
    """The result as the operator gives it: float32, whatever its input was."""
    to = site.float_dtype("float32")
    return scores if scores.dtype == to else site.emit("Cast", scores, to=to)


@form("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(site: Site) -> Sequence[Value | None]:
    """Labels and scores.

    Of two classes only one may be voted for; then its score decides: as a likelihood, by one half, if no vote is negative, else by zero. If that
    one is the first class, as XGBoost's exporter has it, the votes are for the second, and the first class gets the counterpart. Elsewhere the
    class of the highest score is chosen, the first one of several.
    """
    b, labels, how = site.builder, class_labels(site), one_of(site, "post_transform", TRANSFORMS, "NONE")
    given, base = listed(site, "class"), numbers(site, "base_values")
    voted = set(given.targets.tolist())
    one = len(labels) == 2 and len(voted) == 1 and base.size < 2
    if base.size not in (0, len(labels)) and not (one and base.size == 1):
        raise ModelError(f"{site.title} has {base.size} base_values for {len(labels)} classes; export the model again")
    if not one:
        raw = votes(site, given, len(labels), "SUM", _spread(base, len(labels)))
        return finished(site, site.emit("ArgMax", raw, axis=1, keepdims=0), labels, transformed(site, raw, how))
    column, given.targets = voted.pop(), np.zeros_like(given.targets)
    raw = votes(site, given, 1, "SUM", _spread(base, 1))
    likelihood = bool(np.all(given.weights >= 0))
    second = site.emit("Greater", raw, b.scalar(0.5 if likelihood else 0.0, raw))
    place = site.emit("Reshape", site.emit("Cast", second, to="int64"), shape=(raw.shape[0],), allowzero=1)
    if column == 0:
        return finished(site, place, labels, two_classes(site, raw, how, likelihood))
    both = site.emit("Concat", site.emit("Sub", raw, raw), raw, axis=1)
    return finished(site, place, labels, transformed(site, both, how))


@form("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(site: Site) -> Sequence[Value]:
    """The same with inner nodes and leaves listed apart; a leaf has one vote."""
    count = int(site.attrs.get("n_targets") or 1)
    raw = votes(site, _listed_apart(site), count, one_of(site, "aggregate_function", AGGREGATES, "SUM"), np.zeros(count))
    y = transformed(site, raw, one_of(site, "post_transform", TRANSFORMS, "NONE"))
    to = site.type(0).dtype
    return (y if y.dtype == to else site.emit("Cast", y, to=to),)


def votes(site: Site, given: Listed, count: int, aggregate: str, base: np.ndarray) -> Value:
    """[rows, count]: the trees' votes. Comparisons are in float32 if features and thresholds are, else in float64."""
    narrow = site.type(0).dtype in ("float32", "float16", "bfloat16") and given.values.dtype.itemsize <= 4
    x = features(site, "float32" if narrow else "float64")
    inner = given.modes != LEAF
    if given.features[inner].max(initial=0) >= max(x.shape[1], 1) or (inner.any() and not x.shape[1]):
        raise ShapeError(f"{site.title} compares feature {given.features[inner].max()}, and its input {x.type} has {x.shape[1]}")
    if given.targets.size and not 0 <= given.targets.min() <= given.targets.max() < count:
        raise ModelError(f"{site.title} has votes for target {given.targets.max()} of {count}; export the model again")
    operands, depth = tables(given, x.dtype, site.title)
    if not x.shape[1]:                                          # nothing is compared, and no walk may look
        x = site.builder.constant(np.zeros((x.shape[0], 1), x.type.numpy))
    missing = int(np.any(operands[1][operands[1][:, 1] != operands[1][:, 2], 3] != 0))
    return site.emit("Trees", x, *map(site.builder.constant, (*operands, base)), aggregate=aggregate, missing=missing, depth=depth)


def listed(site: Site, votes_of: str) -> Listed:
    """The trees of the older operators: nodes by the ids of tree and node."""
    trees, nodes = integers(site, "nodes_treeids"), integers(site, "nodes_nodeids")
    n = len(nodes)
    if len(trees) != n:
        raise ModelError(f"{site.title} has {len(trees)} nodes_treeids and {n} nodes_nodeids; export the model again")
    modes = _modes(site, n)
    find = places(site.title, trees, nodes)
    inner, children = modes != LEAF, np.repeat(np.arange(n)[:, None], 2, 1)
    for i, side in enumerate(("true", "false")):
        children[inner, i] = find(trees[inner], integers(site, f"nodes_{side}nodeids", n)[inner])
    below = np.bincount(children[inner].reshape(-1), minlength=n) > 0
    roots = np.flatnonzero(~below)
    if len(roots) != len(np.unique(trees)) or len(roots) != len(np.unique(trees[roots])):
        raise ModelError(f"{site.title} is no forest: one of its trees has not one root; export the model again")
    weights = numbers(site, f"{votes_of}_weights")
    at, targets = find(*(integers(site, f"{votes_of}_{kind}ids", weights.size) for kind in ("tree", "node"))), integers(site, f"{votes_of}_ids",
                                                                                                                     weights.size)
    missing = integers(site, "nodes_missing_value_tracks_true", n) != 0
    return Listed(modes, integers(site, "nodes_featureids", n), numbers(site, "nodes_values", n), children, missing, roots, at, targets, weights)


def _modes(site: Site, count: int) -> np.ndarray:
    """The comparisons' numbers."""
    numbered = {name: i for i, name in enumerate(MODES)}
    given = site.attrs.get("nodes_modes") or []
    if strange := sorted(set(given) - set(numbered)):
        raise site.unsupported(f"nodes of the mode {strange[0]!r}"[:120])
    if len(given) != count:
        raise ModelError(f"{site.title} has {len(given)} nodes_modes for {count} nodes; export the model again")
    return np.array([numbered[mode] for mode in given], np.int64)


def _listed_apart(site: Site) -> Listed:
    """The trees of TreeEnsemble: leaves stand behind the inner nodes."""
    features_ = integers(site, "nodes_featureids")
    n, weights, targets = len(features_), numbers_of(site, "leaf_weights"), integers(site, "leaf_targetids")
    leaves, modes = len(weights), numbers_of(site, "nodes_modes").astype(np.int64)
    if len(targets) != leaves or len(modes) != n or np.any((modes < 0) | (modes > MEMBER)):
        raise ModelError(f"{site.title} has {len(targets)} leaf_targetids for {leaves} leaf_weights and {len(modes)} nodes_modes for {n} nodes, "
                         f"or a mode that is none; export the model again")
    children = np.repeat(np.arange(n + leaves)[:, None], 2, 1)
    for i, side in enumerate(("true", "false")):
        given, leaf = integers(site, f"nodes_{side}nodeids", n), integers(site, f"nodes_{side}leafs", n) != 0
        if np.any((given < 0) | (given >= np.where(leaf, leaves, n))):
            raise ModelError(f"{site.title} has a nodes_{side}nodeids that is no node or leaf; export the model again")
        children[:n, i] = np.where(leaf, given + n, given)
    split = numbers_of(site, "nodes_splits")
    if len(split) != n:
        raise ModelError(f"{site.title} has {len(split)} nodes_splits for {n} nodes; export the model again")
    behind = np.zeros(leaves, np.int64)
    members = _members(site, int(np.sum(modes == MEMBER)), split.dtype)
    return Listed(np.concatenate([modes, behind + LEAF]), np.concatenate([features_, behind]), np.concatenate([split, behind.astype(split.dtype)]),
                  children, np.concatenate([integers(site, "nodes_missing_value_tracks_true", n), behind]) != 0, integers(site, "tree_roots"),
                  np.arange(n, n + leaves), targets, weights, members)


def numbers_of(site: Site, name: str) -> np.ndarray:
    """A tensor attribute, flat."""
    return np.asarray(site.tensor(site.attrs[name])).reshape(-1)


def _members(site: Site, count: int, dtype: np.dtype) -> list[np.ndarray]:
    """The sets of membership nodes, in order: each ends with NaN, the last one perhaps without."""
    given = numbers_of(site, "membership_values").astype(dtype) if "membership_values" in site.attrs else np.zeros(0, dtype)
    ends = np.flatnonzero(np.isnan(given))
    sets = [part[~np.isnan(part)] for part in np.split(given, ends + 1)] if given.size else []
    if len(sets) == count + 1 and not sets[-1].size:
        sets.pop()
    if len(sets) != count:
        raise ModelError(f"{site.title} has {len(sets)} sets of membership_values for {count} nodes that ask for membership; export the model again")
    return sets
