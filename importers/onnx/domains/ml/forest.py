"""Decision trees as ONNX's attributes list them, brought into the one form that the engine walks: nodes that compare feature <= threshold.

A comparison that is none is made of some: x < t is x <= the next number below t; x >= t and x > t are these with exchanged children; x == t
are two nodes, between them; membership is a search for the two. So every comparison is exact in the type that is compared in.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileflow.system.errors import ModelError

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
"""As TreeEnsemble numbers them; LEAF is the older operators'."""
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(len(MODES))
FEATURE, FIRST, SECOND, LAST = range(4)
MOST = 1 << 26
"""Nodes or votes of a forest."""


@dataclass
class Listed:
    """Trees as a file lists them: arrays by node, `children` [nodes, 2] as places in the list (true, false; of a leaf its own), `roots`, and votes
    (leaf's place, target, weight). members: the sets of MEMBER nodes in their order."""

    modes: np.ndarray
    features: np.ndarray
    values: np.ndarray
    children: np.ndarray
    missing: np.ndarray
    roots: np.ndarray
    leaves: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    members: Sequence[np.ndarray] = ()


def tables(given: Listed, dtype: str, title: str) -> tuple[list[np.ndarray], int]:
    """The operands of `Trees` from thresholds to votes, and the depth of a usual walk. Raises ModelError for what is no forest."""
    check(given, title)
    n = len(given.modes)
    walk = _Nodes(given, np.dtype(dtype))
    thresholds, links = walk.finished()
    leaf = np.flatnonzero(given.modes == LEAF)
    number = np.zeros(n, np.int64)
    number[leaf] = np.arange(len(leaf))
    links[leaf, FIRST] = links[leaf, SECOND] = leaf
    links[leaf, FEATURE], links[leaf, LAST] = 0, np.arange(len(leaf))
    order = np.argsort(number[given.leaves], kind="stable")
    starts = np.searchsorted(number[given.leaves][order], np.arange(len(leaf) + 1))
    operands = [thresholds, links.astype(np.uint32), given.roots.astype(np.uint32), starts.astype(np.uint32),
                given.targets[order].astype(np.uint32), given.weights[order].astype(np.float64)]
    return operands, max(1, int(np.ceil(np.log2(max(len(leaf), 1) / max(len(given.roots), 1) + 1))))


def check(given: Listed, title: str) -> None:
    """Each inner node is below one other at most, so that no walk goes in a circle; votes are leaves'."""
    n = len(given.modes)
    if n > MOST or len(given.leaves) > MOST:
        raise ModelError(f"{title} has {n} nodes and {len(given.leaves)} votes; tileflow takes up to {MOST} of each")
    inner = given.modes != LEAF
    for what, places in (("child", given.children[inner].reshape(-1)), ("root", given.roots), ("leaf of a vote", given.leaves)):
        if places.size and not (places.min() >= 0 and places.max() < n):
            raise ModelError(f"{title} has a {what} that is no node; export the model again")
    parents = np.bincount(given.children[inner].reshape(-1), minlength=n)
    if np.any(parents[inner] > 1) or np.any(parents[given.roots] > 0) or not _below_roots(given, inner):
        raise ModelError(f"{title} is no forest: a node is below two others, below itself or below no root; export the model again")
    if np.any(inner[given.leaves]):
        raise ModelError(f"{title} has votes of a node that is no leaf; export the model again")
    if given.features[inner].size and given.features[inner].min() < 0:
        raise ModelError(f"{title} compares feature {given.features[inner].min()}; features count from 0")


def _below_roots(given: Listed, inner: np.ndarray) -> bool:
    """Every inner node is below a root, in a search that doubles its steps."""
    n = len(given.modes)
    above = np.arange(n)
    for side in (0, 1):
        child = given.children[inner, side]
        above[child] = np.flatnonzero(inner)
    for _ in range(n.bit_length()):
        above = above[above]
    return bool(np.all(np.isin(above[inner], given.roots)))


def below(values: np.ndarray) -> np.ndarray:
    """The next smaller numbers; NaN, which nothing is <=, below -infinity."""
    return np.where(values == -np.inf, np.asarray(np.nan, values.dtype), np.nextafter(values, np.asarray(-np.inf, values.dtype)))


class _Nodes:
    """Nodes of one comparison: those of the file in their places, and more behind them."""

    def __init__(self, given: Listed, dtype: np.dtype) -> None:
        values = given.values.astype(dtype)
        modes, n = given.modes, len(given.modes)
        turned = ((modes == GTE) | (modes == GT)) & ~np.isnan(values)
        self.thresholds = np.where((modes == LT) | (modes == GTE), below(values), values)
        self.links = np.zeros((n, 4), np.int64)
        self.links[:, FEATURE] = given.features
        self.links[:, FIRST], self.links[:, SECOND] = (np.where(turned, given.children[:, 1 - i], given.children[:, i]) for i in (0, 1))
        self.links[:, LAST] = np.where(turned, ~given.missing, given.missing)
        self.dtype, self._more = dtype, []                    # type: tuple[np.dtype, list[tuple]]
        sets = iter(given.members)
        for at in np.flatnonzero((modes == EQ) | (modes == NEQ) | (modes == MEMBER)):
            true, false = (int(c) for c in given.children[at])
            tested = next(sets) if modes[at] == MEMBER else given.values[at:at + 1]
            if modes[at] == NEQ:                               # NaN differs from every number
                true, false = false, true
            missing = int(given.missing[at]) if modes[at] != NEQ else 0
            self._search(np.unique(tested.astype(dtype)), int(given.features[at]), true, false, missing, int(at))

    def _search(self, values: np.ndarray, feature: int, true: int, false: int, missing: int, at: int | None = None) -> int:
        """Nodes that go to `true` where the feature is one of the sorted values, and to `false` elsewhere; returns the first one's place."""
        place = self._place() if at is None else at
        if len(values) > 1:
            half = len(values) // 2
            first = self._search(values[:half], feature, true, false, missing)
            second = self._search(values[half:], feature, true, false, missing)
            self._set(place, values[half - 1], feature, first, second, missing)
        else:
            value = values[0] if len(values) else self.dtype.type(np.nan)
            least = self._place()
            self._set(least, below(np.asarray(value))[()], feature, false, true, 0)
            self._set(place, value, feature, least, false, missing)
        return place

    def _place(self) -> int:
        self._more.append(())
        return len(self.thresholds) + len(self._more) - 1

    def _set(self, place: int, value: Any, feature: int, first: int, second: int, missing: int) -> None:
        if place >= len(self.thresholds):
            self._more[place - len(self.thresholds)] = (value, (feature, first, second, missing))
        else:
            self.thresholds[place], self.links[place] = value, (feature, first, second, missing)

    def finished(self) -> tuple[np.ndarray, np.ndarray]:
        """The thresholds and links of all nodes."""
        if not self._more:
            return self.thresholds, self.links
        values, links = zip(*self._more, strict=True)
        return np.concatenate([self.thresholds, np.array(values, self.dtype)]), np.concatenate([self.links, np.array(links, np.int64)])


def places(title: str, trees: np.ndarray, nodes: np.ndarray) -> functools.partial:
    """A function from (tree ids, node ids) to places in the list of nodes."""
    low = int(nodes.min(initial=0))
    span = int(nodes.max(initial=0)) - low + 1
    if (max(int(trees.max(initial=0)), -int(trees.min(initial=0))) + 1) * span >= 1 << 62:
        raise ModelError(f"{title} has tree and node numbers beyond all that a file could hold; export the model again")
    keys = trees * span + (nodes - low)
    order = np.argsort(keys, kind="stable")
    if np.any(np.diff(keys[order]) == 0):
        raise ModelError(f"{title} lists a node twice; export the model again")
    return functools.partial(_find, title, keys[order], order, (int(trees.min(initial=0)), int(trees.max(initial=0))), low, span)


def _find(title: str, keys: np.ndarray, order: np.ndarray, known: tuple[int, int], low: int, span: int, trees: np.ndarray,
          nodes: np.ndarray) -> np.ndarray:
    inside = (nodes >= low) & (nodes < low + span) & (trees >= known[0]) & (trees <= known[1])
    wanted = np.where(inside, trees, 0) * span + np.where(inside, nodes - low, 0)
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    if wanted.size and (not keys.size or not inside.all() or np.any(keys[at] != wanted)):
        raise ModelError(f"{title} names a node that it does not list; export the model again")
    return order[at] if keys.size else at
