"""Operators whose output's size follows from data: NonZero, Unique, Compress, NonMaxSuppression."""
from __future__ import annotations

import numpy as np

from tileflow.memory import budget
from tileflow.system.errors import ShapeError

from .registry import Attributes, Datum, hosted


@hosted("NonZero")
def nonzero(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """Indices of what is not zero, [rank, count], in row-major order; a number counts as one element of one dimension."""
    budget.require(8 * max(x.ndim, 1) * x.size, f"What {attrs.title} may find", "give it fewer elements")
    return [np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64, copy=False)]


@hosted("Compress")
def compress(attrs: Attributes, x: np.ndarray, condition: np.ndarray) -> list[Datum]:
    """The slices along `axis` (of the flat input without one) where the condition holds; it may be shorter than the axis."""
    axis = attrs.get("axis")
    places = np.flatnonzero(condition)
    data = x.reshape(-1) if axis is None else x
    return [np.take(data, places, axis=0 if axis is None else axis)]


@hosted("Unique")
def unique(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """Each element, or each slice along `axis`, once: sorted, or in the order of their first places; with those places, which of them
    every element is, and how often it is there."""
    axis = attrs.get("axis")
    texts = x.dtype == object
    data = x.astype(np.str_) if texts else x
    if axis is None:
        data, axis = data.reshape(-1), 0
    budget.require(4 * 8 * data.shape[axis] + 2 * data.nbytes, f"What {attrs.title} finds", "give it fewer elements")
    if data.ndim == 1:
        values, first, which, counts = np.unique(data, return_index=True, return_inverse=True, return_counts=True)
    else:
        values, first, which, counts = np.unique(data, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    which = which.reshape(-1)
    if not attrs.get("sorted", 1):
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values, first, counts, which = np.take(values, order, axis=axis), first[order], counts[order], rank[which]
    return [values.astype(object) if texts else values, *(a.astype(np.int64) for a in (first, which, counts))]


@hosted("Unique", domain="com.microsoft")
def unique_in_order(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """The elements of a vector once each, in the order of their first places; which of them every element is, and how often it is there."""
    if x.ndim != 1:
        raise ShapeError(f"{attrs.title} has an input of the shape {list(x.shape)}; it takes one dimension")
    values, _, which, counts = unique(Attributes({"sorted": 0}, attrs.title, attrs.opset, attrs.outputs), x)
    return [values, which, counts]


@hosted("NonMaxSuppression")
def non_max_suppression(attrs: Attributes, boxes: np.ndarray, scores: np.ndarray, most: np.ndarray | None = None,
                        iou_threshold: np.ndarray | None = None, score_threshold: np.ndarray | None = None) -> list[Datum]:
    """[batch, class, box] of the boxes that are kept, by falling score (of equal ones the first comes first): a box goes where its
    intersection over union with a better one that is kept exceeds the threshold. In float32, as ONNX Runtime does."""
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3 or scores.shape[0] != boxes.shape[0] or scores.shape[2] != boxes.shape[1]:
        raise ShapeError(f"{attrs.title} has boxes {list(boxes.shape)} and scores {list(scores.shape)}; they must be [batch, boxes, 4] and "
                         f"[batch, classes, boxes]")
    count = _number(most, 0)
    limit, least = np.float32(_number(iou_threshold, 0)), None if score_threshold is None else _number(score_threshold, None)
    kept = []
    for batch in range(boxes.shape[0]) if count > 0 else ():
        low, high = _corners(boxes[batch].astype(np.float32, copy=False), attrs.get("center_point_box", 0))
        area = np.prod(high - low, axis=1)
        for label in range(scores.shape[1]):
            chosen = _suppressed(low, high, area, scores[batch, label], count, limit, least)
            kept += [(batch, label, box) for box in chosen]
    return [np.array(kept, np.int64).reshape(-1, 3)]


def _number(array: np.ndarray | None, default: float | None) -> float:
    """A number that may be an array of one, or of none."""
    return default if array is None or array.size == 0 else array.reshape(-1)[0].item()                     # type: ignore[return-value]


def _corners(boxes: np.ndarray, centred: int) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper corners of boxes, given as two corners in any order, or as centre and size."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centred:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _suppressed(low: np.ndarray, high: np.ndarray, area: np.ndarray, scores: np.ndarray, count: float, limit: np.float32,
                least: float | None) -> list[int]:
    """The boxes of one class that stay, best first."""
    places = np.arange(len(scores)) if least is None else np.flatnonzero(scores > np.asarray(least, scores.dtype))
    places = places[np.argsort(-scores[places], kind="stable")]
    kept: list[int] = []
    with np.errstate(all="ignore"):
        while len(places) and len(kept) < count:
            best, places = int(places[0]), places[1:]
            kept.append(best)
            sides = np.minimum(high[places], high[best]) - np.maximum(low[places], low[best])
            shared = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], np.float32(0))
            union = area[places] + area[best] - shared
            overlaps = (shared > 0) & (area[places] > 0) & (area[best] > 0) & (union > 0) & (shared / union > limit)
            places = places[~overlaps]
    return kept
