"""Words and runs of words counted: TfIdfVectorizer, RegexFullMatch."""
from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tileflow.memory import budget
from tileflow.system.errors import ModelError, ShapeError

from .patterns import matcher
from .registry import Attributes, Datum, hosted
from .strings import texts


@hosted("RegexFullMatch")
def regex_full_match(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """Whether the pattern, in RE2's syntax, matches each whole text; in a time linear in the texts, as RE2 does."""
    matches = matcher(attrs.get("pattern", ""), attrs.title)
    return [np.array([matches(text) for text in texts(x).reshape(-1)], np.bool_).reshape(x.shape)]


@hosted("TfIdfVectorizer")
def tfidf_vectorizer(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """How often each known n-gram is in each row, its items next to each other or up to `max_skip_count` apart, weighted as `mode` says."""
    if x.ndim > 2:
        raise ShapeError(f"{attrs.title} takes [C] or [rows, C], and has {list(x.shape)}")
    known, width = _ngrams(attrs)
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    budget.require(4 * len(rows) * width, f"What {attrs.title} counts", "give it fewer rows")
    counts = np.zeros((len(rows), width), np.float32)
    least, most = attrs["min_gram_length"], attrs["max_gram_length"]
    for row, count in zip(rows.tolist(), counts, strict=True):
        for skip in range(1, attrs["max_skip_count"] + 2):
            shortest = least if skip == 1 else max(least, 2)                   # what has one item skips none: it is counted once
            if shortest > most or skip * (shortest - 1) >= max(len(row), 1):
                break
            _count(row, skip, known, shortest, most, count)
    weights, mode = attrs.get("weights"), attrs["mode"]
    if mode == "IDF":
        counts = (counts > 0).astype(np.float32)
    if mode != "TF" and weights:
        counts *= _columns(attrs, weights, width)
    return [counts.reshape(-1) if x.ndim < 2 else counts]


def _columns(attrs: Attributes, weights: list[float], width: int) -> np.ndarray:
    if len(weights) < width:
        raise ModelError(f"{attrs.title} has {len(weights)} weights for {width} columns; export the model again")
    return np.array(weights[:width], np.float32)


def _count(row: list[Any], skip: int, known: dict[Any, Any], shortest: int, most: int, counts: np.ndarray) -> None:
    """Add the n-grams of a row, with items `skip` apart."""
    for start in range(len(row)):
        branch: Any = known
        for item in row[start:start + skip * most:skip]:
            branch = branch.get(item)
            if branch is None:
                break
            length, column = branch[ENDS]
            if column is not None and length >= shortest:
                counts[column] += 1


ENDS = object()
"""In a branch of the tree of n-grams: how many items led there, and the column of the n-gram that they are (None: of none)."""


def _ngrams(attrs: Attributes) -> tuple[dict[Any, Any], int]:
    """The known n-grams as a tree of dicts, item by item, and how many columns there are."""
    pool, starts, columns = attrs.get("pool_int64s") or attrs.get("pool_strings") or [], attrs["ngram_counts"], attrs["ngram_indexes"]
    bounds = [*starts, len(pool)]
    tree: dict[Any, Any] = {}
    index = 0
    for length, (first, last) in enumerate(pairwise(bounds), start=1):
        if not 0 <= first <= last or (last - first) % length:
            raise ModelError(f"{attrs.title} has ngram_counts that do not fit its pool of {len(pool)}; export the model again")
        for at in range(first, last, length):
            if index >= len(columns):
                raise ModelError(f"{attrs.title} has {len(columns)} ngram_indexes for more n-grams; export the model again")
            _plant(tree, pool[at:at + length], columns[index])
            index += 1
    width = max(columns, default=-1) + 1
    if min(columns, default=0) < 0:
        raise ModelError(f"{attrs.title} has a negative one among its ngram_indexes; export the model again")
    return tree, width


def _plant(tree: dict[Any, Any], items: list[Any], column: int) -> None:
    branch = tree
    for depth, item in enumerate(items, start=1):
        branch = branch.setdefault(item, {ENDS: (depth, None)})
    branch[ENDS] = (len(items), column)
