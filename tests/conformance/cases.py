"""ONNX's own node tests, run through the engine as ONNX's runner runs them: its data, its tolerances, its comparison."""
from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import numpy as np
import onnx

from tileflow.importers.onnx.refused import UnsupportedNodesError
from tileflow.onnx_backend import Backend
from tileflow.system.errors import TileflowError
from tileflow.system.text import one_line

PASS = "pass"
REASON = 120
"""Characters of a reason."""
APART = {
    **{f"test_training_dropout{end}": "its random numbers are NumPy's" for end in ("", "_default", "_default_mask", "_mask")},
    **{f"test_dft_inverse{end}": "where it is 0, ONNX's values are rounding errors" for end in ("", "_opset19")},
    **{f"test_bernoulli{kind}{end}": "its random numbers are NumPy's" for kind in ("", "_double", "_seed") for end in ("", "_expanded")},
    "test_loop16_seq_none": "ONNX's runner cannot compare sequences with an element of no dimensions; the values are right",
    "test_attention_4d_causal_fp16_expanded": "two of 192 sums of float16 are rounded to a neighbour",
}
"""Cases whose values are not ONNX's, and why that is as it should be."""


@functools.cache
def cases() -> dict[str, Any]:
    """Every node test of the installed onnx by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                       # some tests compute what is not finite while they are collected
        from onnx.backend.test.loader import load_model_tests
        return {case.name: case for case in load_model_tests(kind="node")}


def operator_of(name: str) -> str:
    """The operator that a case is about: that of its node, or where ONNX wrote it as other operators, of the case that it writes out."""
    for end in ("_expanded_ver18", "_expanded_function", "_expanded"):
        if end in name and (plain := cases().get(name[:name.index(end)])) is not None:
            return operator_of(plain.name)
    nodes = [n.op_type for n in cases()[name].model.graph.node if n.op_type != "Constant"]
    return nodes[0] if nodes else "Constant"


def outcome(name: str) -> str:
    """"pass", or why not: "unsupported: ..." is a refusal, "apart: ..." and "wrong: ..." another value, "failed: ..." anything else."""
    from onnx.backend.test.runner import Runner, _normalize_tensor
    case = cases()[name]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            prepared = Backend.prepare(case.model)
            for inputs, wanted in case.data_sets:
                found = prepared.run([_normalize_tensor(x) for x in inputs])
                Runner.assert_similar_outputs([_normalize_tensor(x) for x in wanted], list(found), case.rtol, case.atol, model_dir=case.model_dir)
    except UnsupportedNodesError as error:
        return f"unsupported: {shortened(': '.join(error.refused[0]))}"
    except TileflowError as error:
        return f"unsupported: {shortened(str(error))}"
    except AssertionError as error:
        return f"apart: {APART[name]}" if name in APART else f"wrong: {one_line(str(error), REASON)}"
    except Exception as error:
        return f"apart: {APART[name]}" if name in APART else f"failed: {one_line(f'{type(error).__name__}: {error}', REASON)}"
    return PASS


def shortened(message: str) -> str:
    """What a message says without the case's and the node's name, which the table has."""
    refused = re.search(r"cannot run on tileflow \((.*?)(; .*)?\): ", message)
    message = re.sub(r"^the model '.*?'(: | has )", "", refused[1] if refused else message)
    return one_line(re.sub(r"^(\w+) node '.*?'( \(.*?\))?: ", r"\1: ", message), REASON)


def version() -> str:
    """The installed onnx, whose cases these are."""
    return str(onnx.__version__)
