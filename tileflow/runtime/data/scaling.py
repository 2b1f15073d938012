"""Scaling: how the numbers of an input become what the model sees; and what was seen in training, to report other data."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...options.options import Options

SHIFT = 2.0
"""Standard deviations of the training data by which the mean of other data may lie elsewhere."""
OTHER_SPREAD = 2.5
"""How many times wider or narrower than the training data other data may be."""
ENOUGH = 16
"""Rows from which on the spread of data says something."""


@dataclass(frozen=True)
class Scaling:
    """times `scale`, minus `mean`, over `std`: one number each, or one per channel."""

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __str__(self) -> str:
        parts = [f"scale {_factor(self.scale)}" if self.scale != 1 else "", f"mean {_numbers(self.mean)}" if self.mean else "",
                 f"std {_numbers(self.std)}" if self.std else ""]
        return ", ".join(filter(None, parts)) or "no scaling"


def resolve(what: str, options: Options, known: Scaling | None, default: float) -> tuple[Scaling, list[str]]:
    """The scaling that counts, and what to say: what the options give, else what the model was trained with, else the default factor."""
    given: dict[str, float | tuple[float, ...]] = {}
    if options.scale is not None:
        given["scale"] = options.scale
    given |= {name: getattr(options, name) for name in ("mean", "std") if getattr(options, name)}
    result = replace(known or Scaling(default), **given)          # type: ignore[arg-type]
    if known is None:
        return result, [f"{what}: bytes are scaled by {_factor(default)}."] if default != 1 and options.scale is None else []
    if result != known:
        return result, [f"{what}: {result} from the options that are given, although the model was trained with {known}."]
    return result, [f"{what}: {result}, as the model was trained."] if result != Scaling() else []


@dataclass(frozen=True)
class Statistics:
    """Of all numbers of an input as fed to the model, or of a sample of rows."""

    min: float
    max: float
    mean: float
    std: float
    rows: int

    @classmethod
    def of(cls, batches: list[np.ndarray]) -> Statistics | None:
        """Of these batches [rows, ...], finite numbers only; None where there are none."""
        rows = sum(len(b) for b in batches)
        finite = [f for b in batches if (f := b[np.isfinite(b)].astype(np.float64)).size]
        if not finite:
            return None
        count = sum(f.size for f in finite)
        mean = sum(float(f.sum()) for f in finite) / count
        variance = sum(float(np.square(f - mean).sum()) for f in finite) / count
        found = (min(float(f.min()) for f in finite), max(float(f.max()) for f in finite), mean, math.sqrt(variance))
        return cls(*found, rows) if all(map(math.isfinite, found)) else None

    def far_from(self, trained: Statistics) -> bool:
        """These data are far from those that a model was trained on: in range, in mean or in spread."""
        reach = trained.max - trained.min
        if self.max > trained.max + reach or self.min < trained.min - reach:
            return True
        if self.rows < ENOUGH or trained.std == 0:
            return False
        return (abs(self.mean - trained.mean) > SHIFT * trained.std
                or not trained.std / OTHER_SPREAD <= self.std <= trained.std * OTHER_SPREAD)

    def __str__(self) -> str:
        return f"{self.min:.4g} to {self.max:.4g} (mean {self.mean:.4g}, std {self.std:.4g})"


def _factor(scale: float) -> str:
    whole = round(1 / scale) if 0 < scale < 1 else 0
    return f"1/{whole}" if whole and math.isclose(1 / whole, scale, rel_tol=1e-12) else f"{scale:g}"


def _numbers(values: tuple[float, ...]) -> str:
    return ",".join(f"{v:g}" for v in values)
