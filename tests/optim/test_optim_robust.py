"""Every optimizer on weights, accumulators and moments of every type, fed nothing, next to nothing and almost too much: weights stay finite, or the
update is refused and nothing of it is written."""
from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from optim_harness import Array, drawn, feed, trainer

from tileflow import optim
from tileflow.system.errors import TrainingError, WeightsLostError

SHAPES = {"dense.weight": (5, 7), "dense.bias": (3,), "gain": (1,)}
HALVES = ("float16", "bfloat16")
MOMENTS = ("first_order_momentum_accum_type", "second_order_momentum_accum_type")
MADE: dict[str, tuple[type[optim.Optimizer], dict[str, Any], tuple[str, ...]]] = {
    "SGD": (optim.SGD, dict(weight_decay=0.01), ()), "momentum": (optim.SGD, dict(momentum=0.9, weight_decay=0.01), ("velocity_accum_type",)),
    "combined": (optim.SGD, dict(momentum=0.9, use_combined_accum=True), ()), "Adam": (optim.Adam, dict(weight_decay=0.01), MOMENTS),
    "AdamW": (optim.AdamW, {}, MOMENTS), "RMSprop": (optim.RMSprop, dict(momentum=0.9), MOMENTS),
    "centered": (optim.RMSprop, dict(centered=True), MOMENTS), "tf": (optim.RMSprop, dict(use_tf_variant=True), MOMENTS),
    "LAMB": (optim.LAMB, {}, MOMENTS), "clipped": (optim.AdamW, dict(max_grad_norm=1.0), MOMENTS)}
"""Class, settings, and what its types are called."""


def gradients(dtype: str) -> dict[str, float]:
    info = ml_dtypes.finfo(dtype)
    return {"zero": 0.0, "tiny": float(info.smallest_subnormal), "small": float(info.tiny), "ordinary": 0.5, "large": float(info.max) ** 0.5,
            "huge": float(info.max)}


def check(name: str, dtype: str, kind: str | None, accum: str | None) -> None:
    make, options, named = MADE[name]
    if accum is not None and name == "combined":
        return                                                     # it has no other accumulator
    weights = drawn(dtype, SHAPES)
    types = dict.fromkeys(named, kind) | {"accum_type": accum} if name != "combined" else {}
    model = trainer(make(lr=0.01, **options, **types), weights, gradient_accumulation=2)
    session, draw = model.source.session, np.random.default_rng(7)
    start: dict[str, Array] | None = None
    for size, value in gradients(dtype).items():
        if start is not None:
            session.restore(start, updates=0, micro_batches=0)
        for update in range(3):
            signs = {n: np.where(draw.random((2, *w.shape)) < 0.9, 1, -1) for n, w in weights.items()}
            before = session.snapshot("parameter", "optimizer") if start is not None else None
            try:
                feed(model, {n: np.asarray(value * s).astype(dtype) for n, s in signs.items()})
            except WeightsLostError:
                assert (dtype, size) == ("float32", "huge"), f"{size}, update {update}"
                break
            except TrainingError:
                assert size in ("large", "huge"), f"{size}, update {update}"
                assert before is not None
                after = session.snapshot("parameter", "optimizer")
                assert [n for n in before if before[n].tobytes() != after[n].tobytes()] == [], f"{size}, update {update}: half written"
                break
            lost = [n for n, w in session.snapshot("parameter").items() if not np.isfinite(w.astype("f8")).all()]
            assert lost == [], f"{size}, update {update}"
            if start is None:                                      # compiled now: the states as they begin
                start = session.snapshot()
        if size in ("small", "ordinary"):
            states = session.snapshot("optimizer")
            assert all(np.isfinite(s.astype("f8")).all() for s in states.values()), size


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.exhaustive), "float16",
                                   pytest.param("bfloat16", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", MADE)
def test_weights_stay_finite_or_updates_are_refused(name: str, dtype: str) -> None:
    check(name, dtype, None, None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize(("kind", "accum"), [k for k in itertools.product((None, *HALVES), repeat=2) if k != (None, None)], ids=str)
@pytest.mark.parametrize("name", MADE)
def test_with_moments_and_accumulators_of_other_types(name: str, kind: str | None, accum: str | None, dtype: str) -> None:
    check(name, dtype, kind, accum)
