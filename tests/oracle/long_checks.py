"""Every operator's leaves over axes so long that vectorised loops run their whole bodies, in float32 and float64.

Nothing is compared here: `test_processors.py` has what the leaves compute written down, and compares processes.
"""
from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from computed import parts, refused, with_leaves
from evaluate import KernelFailed, evaluate, run_kernel
from path_checks import path  # noqa: F401  (the fixture that forces a path for each test)
from samples import Case, variants
from test_half import halved, in_types

LONG = 531
MOST = 1 << 18            # elements of an operand


def cases() -> list[Case]:
    """The samples and their long variants in both types of floats."""
    found = []
    for case in with_leaves():
        found += [case, *variants(case, (LONG,))]
        if double := halved(case.op, case.types, "float64"):
            wide = case.resized(double)
            found += [replace(c, name=f"{c.name} float64") for c in (wide, *variants(wide, (LONG,)))]
    return [c for c in found if all(t is None or t.size <= MOST for t in c.types)]


@pytest.mark.exhaustive                   # so that they take turns where the test that has them run does
@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_long_samples(case: Case) -> None:
    arrays = in_types(case, case.types)
    if refused(case, arrays):
        with pytest.raises(KernelFailed):
            run_kernel(case.op, *arrays)
    elif (made := parts(case)) is None:
        run_kernel(case.op, *arrays)
    else:
        graph, inputs = made
        feeds = {v.name: a for v, a in zip(inputs, arrays, strict=True) if v is not None and a is not None}
        evaluate(graph, feeds, functools.partial(run_kernel, workers=1))
