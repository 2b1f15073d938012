"""ONNX's own node tests, run through the compiled engine, with the tolerances of ONNX's runner."""
from __future__ import annotations

import functools
import importlib
import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case import node as cases
from onnx_models import imported, run

from tileflow.graph import type_of
from tileflow.onnx_backend import Backend

BFLOAT16 = 2.0 ** -6
"""The relative tolerance of ONNX's runner for bfloat16."""
COMPILED = re.compile(r"fp16|bf16|softcap|nonpad|padded|maxpool|rms")
"""Cases that run through the compiled engine, and every eighth besides; the others by the operators' references, which needs no compiler."""


@functools.cache
def collected() -> list[Any]:
    """The cases of the operators that have files here, without those that spell out ONNX's definition in simpler operators."""
    for module in ("attention", "maxpool", "maxunpool", "rmsnormalization"):
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    wanted = {"Attention", "MaxPool", "MaxUnpool", "RMSNormalization"}
    return [c for c in cases._NodeTestCases if {n.op_type for n in c.model.graph.node} <= wanted]


def by_references(model: onnx.ModelProto, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a model whose operands may decide shapes."""
    named = {p.name: a for p, a in zip(model.graph.input, arrays, strict=True)}
    return run(imported(model, input_types={n: type_of(a) for n, a in named.items()}), named)


@pytest.mark.parametrize("operator", ["Attention", "MaxPool", "RMSNormalization"])
def test_nodes(operator: str) -> None:
    found = [c for c in collected() if {n.op_type for n in c.model.graph.node} == {operator}]
    assert len(found) >= {"Attention": 93}.get(operator, 19)
    for number, case in enumerate(found):
        compiled = number % 8 == 0 or COMPILED.search(case.name)
        for arrays, wanted in case.data_sets:
            for got, want in zip(Backend.run_model(case.model, list(arrays)) if compiled else by_references(case.model, arrays), wanted, strict=True):
                assert got.dtype == want.dtype, case.name
                half = got.dtype.name == "bfloat16"
                np.testing.assert_allclose(got.astype(np.float32) if half else got, want.astype(np.float32) if half else want,
                                           rtol=max(case.rtol, BFLOAT16) if half else case.rtol, atol=case.atol, err_msg=case.name)
