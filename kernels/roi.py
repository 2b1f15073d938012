"""Pooling of regions whose borders are computed while the model runs: RoiAlign (He et al. 2017) and MaxRoiPool (Girshick 2015), and gradients.

A unit of range is one region forward and one channel backward, so that every element is written once and in one order. However large a region
is, only samples that meet the image are visited.
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from .machine.leaf import Leaf, Numbers, generic
from .machine.status import INDEX_OUT_OF_RANGE, OK

FLOATS = ("f4", "f8")


@dataclass(frozen=True)
class Align(Numbers):
    """Sizes of an aligned pool. ratio: samples per bin and axis (0: one per pixel); half: pixels have their centres at halves; maximum: of the
    samples' terms, in place of their mean."""

    height: int
    width: int
    rows: int
    columns: int
    ratio: int
    half: int
    maximum: int


def _span(start: float, end: float, bins: int, n: Any) -> Any:
    """(start, size of a bin, samples in it) along an axis; -1 samples where the border is no number."""
    offset = 0.5 if n.half else 0.0
    start, end = start - offset, end - offset
    size = end - start
    if not n.half:
        size = max(size, 1.0)
    size = size / bins
    if not (math.isfinite(start) and math.isfinite(size)):
        return 0.0, 0.0, -1
    if n.ratio > 0:
        return start, size, n.ratio
    return start, size, math.ceil(min(max(size, 0.0), 1e9))


def _samples(start: float, step: float, count: int, limit: int) -> Any:
    """The samples first..last of `count` at start + (i + 0.5) * step that lie within -1..limit."""
    if count <= 0:
        return 0, 0
    if step == 0.0:
        return (0, count) if -1.0 <= start <= limit else (0, 0)
    a, b = (-1.0 - start) / step - 0.5, (limit - start) / step - 0.5
    low, high = min(a, b) - 1.0, max(a, b) + 2.0                # one more on either side: who takes them compares again
    return int(min(max(low, 0.0), float(count))), int(min(max(high, 0.0), float(count)))


def _corner(at: float, limit: int) -> Any:
    """(lower element, upper element, weight of the upper one) for a place along an axis; the lower is -1 for one outside."""
    if not -1.0 <= at <= limit:
        return -1, -1, 0.0
    at = max(at, 0.0)
    low = int(at)
    if low >= limit - 1:
        return limit - 1, limit - 1, 0.0
    return low, low + 1, at - low


def _align(x: Any, rois: Any, batch: Any, y: Any, scale: float, n: Any, lo: int, hi: int) -> int:
    """x [images, channels, height * width], rois [regions, 4], batch [regions] to y [regions, channels, rows * columns]."""
    kind = x.dtype.type
    for r in range(lo, hi):
        image = batch[r]
        if not 0 <= image < x.shape[0]:
            return INDEX_OUT_OF_RANGE
        left, bin_w, count_w = _span(float(rois[r, 0]) * scale, float(rois[r, 2]) * scale, n.columns, n)
        top, bin_h, count_h = _span(float(rois[r, 1]) * scale, float(rois[r, 3]) * scale, n.rows, n)
        bad = count_w < 0 or count_h < 0
        share = 1.0 / max(float(count_w) * float(count_h), 1.0)
        for c in range(x.shape[1]):
            plane, target = x[image, c], y[r, c]
            for o in range(n.rows * n.columns):
                if bad:
                    target[o] = math.nan
                    continue
                y0, x0 = top + (o // n.columns) * bin_h, left + (o % n.columns) * bin_w
                step_y, step_x = bin_h / max(count_h, 1), bin_w / max(count_w, 1)
                first_y, last_y = _samples(y0, step_y, count_h, n.height)
                first_x, last_x = _samples(x0, step_x, count_w, n.width)
                total, best, met = 0.0, -math.inf, 0
                for i in range(first_y, last_y):
                    a1, a2, v = _corner(y0 + (i + 0.5) * step_y, n.height)
                    if a1 < 0:
                        continue
                    for j in range(first_x, last_x):
                        b1, b2, u = _corner(x0 + (j + 0.5) * step_x, n.width)
                        if b1 < 0:
                            continue
                        p1, p2 = (1.0 - v) * (1.0 - u) * plane[a1 * n.width + b1], (1.0 - v) * u * plane[a1 * n.width + b2]
                        p3, p4 = v * (1.0 - u) * plane[a2 * n.width + b1], v * u * plane[a2 * n.width + b2]
                        total += p1 + p2 + p3 + p4
                        met += 1
                        for value in (p1, p2, p3, p4):
                            if value > best or (math.isnan(value) and not math.isnan(best)):
                                best = value
                if n.maximum:
                    outside = met < count_h * count_w           # a sample outside counts as zero
                    target[o] = kind(0.0 if met == 0 or (outside and best < 0.0) else best)
                else:
                    target[o] = kind(total * share)
    return OK


def _align_grad(g: Any, x: Any, rois: Any, batch: Any, dx: Any, scale: float, n: Any, lo: int, hi: int) -> int:
    """g [regions, channels, rows * columns] to dx [images, channels, height * width]; of equal terms the first takes a maximum's gradient."""
    for c in range(lo, hi):
        for image in range(dx.shape[0]):
            plane = dx[image, c]
            for s in range(plane.shape[0]):
                plane[s] = 0
        for r in range(rois.shape[0]):
            image = batch[r]
            if not 0 <= image < x.shape[0]:
                return INDEX_OUT_OF_RANGE
            left, bin_w, count_w = _span(float(rois[r, 0]) * scale, float(rois[r, 2]) * scale, n.columns, n)
            top, bin_h, count_h = _span(float(rois[r, 1]) * scale, float(rois[r, 3]) * scale, n.rows, n)
            if count_w < 0 or count_h < 0:
                continue
            share = 1.0 / max(float(count_w) * float(count_h), 1.0)
            plane, source, gradient = dx[image, c], x[image, c], g[r, c]
            for o in range(n.rows * n.columns):
                y0, x0 = top + (o // n.columns) * bin_h, left + (o % n.columns) * bin_w
                step_y, step_x = bin_h / max(count_h, 1), bin_w / max(count_w, 1)
                first_y, last_y = _samples(y0, step_y, count_h, n.height)
                first_x, last_x = _samples(x0, step_x, count_w, n.width)
                best, winner, factor, met = -math.inf, -1, 0.0, 0
                for i in range(first_y, last_y):
                    a1, a2, v = _corner(y0 + (i + 0.5) * step_y, n.height)
                    if a1 < 0:
                        continue
                    for j in range(first_x, last_x):
                        b1, b2, u = _corner(x0 + (j + 0.5) * step_x, n.width)
                        if b1 < 0:
                            continue
                        met += 1
                        places = (a1 * n.width + b1, a1 * n.width + b2, a2 * n.width + b1, a2 * n.width + b2)
                        weights = ((1.0 - v) * (1.0 - u), (1.0 - v) * u, v * (1.0 - u), v * u)
                        for k in range(4):
                            if n.maximum:
                                value = weights[k] * source[places[k]]
                                if value > best or (math.isnan(value) and not math.isnan(best)):
                                    best, winner, factor = value, places[k], weights[k]
                            else:
                                plane[places[k]] += gradient[o] * weights[k] * share
                if n.maximum and winner >= 0 and not (met < count_h * count_w and best < 0.0):
                    plane[winner] += gradient[o] * factor
    return OK


@functools.cache
def align_leaf(t: str, backward: bool) -> Leaf:
    """x, rois, batch indices, y, scale; backward g, x, rois, batch indices, dx, scale."""
    arrays = f"{t}[:,:,:], " * (2 if backward else 1)
    return Leaf(_align_grad if backward else _align, f"{arrays}{t}[:,:], i8[:], {t}[:,:,:], f8, numbers, lo, hi", checked=True, numbers=Align)


def _bin(start: int, size: int, i: int, bins: int, limit: int) -> Any:
    """The elements low..high of an axis that bin i of a region meets."""
    low = math.floor(i * (size / bins)) + start
    high = math.ceil((i + 1) * (size / bins)) + start
    return min(max(low, 0), limit), min(max(high, 0), limit)


def _rounded(at: float) -> int:
    """The nearest whole number, halves away from zero; numbers beyond any image at its border."""
    at = min(max(at, -1e9), 1e9)
    return math.floor(at + 0.5) if at >= 0 else math.ceil(at - 0.5)


def _winner(plane: Any, roi: Any, o: int, scale: float, height: int, width: int, rows: int, columns: int) -> int:
    """The place of the largest element of bin o of a region; -1 for an empty bin."""
    left, top = _rounded(roi[1] * scale), _rounded(roi[2] * scale)
    wide, high = max(_rounded(roi[3] * scale) - left + 1, 1), max(_rounded(roi[4] * scale) - top + 1, 1)
    first_y, last_y = _bin(top, high, o // columns, rows, height)
    first_x, last_x = _bin(left, wide, o % columns, columns, width)
    found = -1
    for i in range(first_y, last_y):
        for j in range(first_x, last_x):
            at = i * width + j
            if found < 0 or plane[at] > plane[found] or (math.isnan(plane[at]) and not math.isnan(plane[found])):
                found = at
    return found


def _finite(roi: Any) -> bool:
    """All of a region's numbers are."""
    told = True
    for i in range(roi.shape[0]):
        told = told and math.isfinite(roi[i])
    return told


@generic("T[:,:,:], T[:,:], T[:,:,:], f8, i8, i8, i8, i8, lo, hi", FLOATS, checked=True)
def max_pool(x: Any, rois: Any, y: Any, scale: float, height: int, width: int, rows: int, columns: int, lo: int, hi: int) -> int:
    """x [images, channels, height * width], rois [regions, 5] (image, x1, y1, x2, y2) to y [regions, channels, rows * columns]; empty: 0."""
    for r in range(lo, hi):
        if not _finite(rois[r]):
            for c in range(x.shape[1]):
                for o in range(rows * columns):
                    y[r, c, o] = math.nan
            continue
        if not 0 <= rois[r, 0] < x.shape[0]:
            return INDEX_OUT_OF_RANGE
        for c in range(x.shape[1]):
            plane = x[int(rois[r, 0]), c]
            for o in range(rows * columns):
                at = _winner(plane, rois[r], o, scale, height, width, rows, columns)
                y[r, c, o] = plane[at] if at >= 0 else 0
    return OK


@generic("T[:,:,:], T[:,:,:], T[:,:], T[:,:,:], f8, i8, i8, i8, i8, lo, hi", FLOATS, checked=True)
def max_pool_grad(g: Any, x: Any, rois: Any, dx: Any, scale: float, height: int, width: int, rows: int, columns: int, lo: int, hi: int) -> int:
    """g [regions, channels, rows * columns] to dx; a unit of range is one channel."""
    for c in range(lo, hi):
        for image in range(dx.shape[0]):
            for s in range(dx.shape[2]):
                dx[image, c, s] = 0
        for r in range(rois.shape[0]):
            if not _finite(rois[r]):
                continue
            if not 0 <= rois[r, 0] < x.shape[0]:
                return INDEX_OUT_OF_RANGE
            image = int(rois[r, 0])
            for o in range(rows * columns):
                at = _winner(x[image, c], rois[r], o, scale, height, width, rows, columns)
                if at >= 0:
                    dx[image, c, at] += g[r, c, o]
    return OK
