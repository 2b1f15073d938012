"""Samples of operators computed by their kernels, beside their references: for whatever runs the leaves, on whichever CPU path."""
from __future__ import annotations

import functools

import pytest
from evaluate import Array, KernelFailed, check_kernel, evaluate, run_kernel, run_reference
from samples import Case, cases, variants

from tileflow.graph import Graph, Value
from tileflow.graph.composite import alone, declares, expanded
from tileflow.system.errors import TileflowError


def with_leaves() -> list[Case]:
    """Every sample of every operator that runs leaves: views move nothing, and regions are rows (`test_control.py`)."""
    return [c for c in cases() if c.op.alias is None and not c.op.regions]


def parts(case: Case) -> tuple[Graph, list[Value | None]] | None:
    """A composite as operators that have kernels, and its inputs; None where the operator itself has."""
    if declares(case.op, "kernel"):
        return None
    graph, inputs = alone(case.op, case.types)
    graph = expanded(graph, lambda node: not declares(node.op, "kernel"))
    for node in graph.nodes:
        for v in node.outputs:
            v.producer = node
    return graph, inputs


def computed(case: Case, arrays: list[Array | None], rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Kernel against reference; for a composite each of its parts."""
    if case.op.regions:                                        # rows, not kernels: tests/importers/test_control.py
        return
    made = parts(case)
    if made is None:
        check_kernel(case.op, *arrays, rtol=rtol, atol=atol)
        return
    graph, inputs = made
    feeds = {v.name: a for v, a in zip(inputs, arrays, strict=True) if v is not None and a is not None}
    evaluate(graph, feeds, functools.partial(check_kernel, rtol=rtol, atol=atol))


def computed_resized(case: Case) -> None:
    """Likewise with axes that are empty, or odd and longer than a vector. What the reference refuses the kernel must refuse."""
    for variant in variants(case):
        arrays = variant.arrays()
        if refused(variant, arrays):                           # labels of no class: an error there, a status here
            if any(t.size for t in variant.op.infer(*variant.types)):
                with pytest.raises(KernelFailed):
                    run_kernel(variant.op, *arrays)
            continue
        computed(variant, arrays, rtol=1e-4, atol=1e-5)


def refused(case: Case, arrays: list[Array | None]) -> bool:
    """The reference does not take the values."""
    try:
        run_reference(case.op, *arrays)
    except TileflowError:
        return True
    return False
