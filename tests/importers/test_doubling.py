"""Models whose shapes double, node by node: what a list of sizes or axes cannot be is refused by its length, before anything is computed."""
from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto
from onnx_models import model_of, node, port

import tileflow
from tileflow.importers.onnx import wrap_model
from tileflow.system.errors import ModelError

X = np.arange(8, dtype=np.float32).reshape(2, 4)
READERS: dict[str, Callable[[str], NodeProto]] = {
    "Reshape": lambda s: node("Reshape", ["x", s], ["y"]), "Expand": lambda s: node("Expand", ["x", s], ["y"]),
    "Tile": lambda s: node("Tile", ["x", s], ["y"]), "ConstantOfShape": lambda s: node("ConstantOfShape", [s], ["y"]),
    "Slice": lambda s: node("Slice", ["x", s, s], ["y"]), "axes of Slice": lambda s: node("Slice", ["x", "zero", "two", s], ["y"]),
    "Unsqueeze": lambda s: node("Unsqueeze", ["x", s], ["y"]), "Squeeze": lambda s: node("Squeeze", ["x", s], ["y"]),
    "ReduceSum": lambda s: node("ReduceSum", ["x", s], ["y"]), "Pad": lambda s: node("Pad", ["x", s], ["y"]),
    "axes of Pad": lambda s: node("Pad", ["x", "two", "", s], ["y"]), "Split": lambda s: node("Split", ["x", s], ["y", "z"], axis=1),
    "Resize": lambda s: node("Resize", ["x", "", "", s], ["y"]), "TopK": lambda s: node("TopK", ["x", s], ["y", "places"]),
    "OneHot": lambda s: node("OneHot", ["zero", s, "f"], ["y"]), "Trilu": lambda s: node("Trilu", ["x", s], ["y"]),
    "CumSum": lambda s: node("CumSum", ["x", s], ["y"]), "Range": lambda s: node("Range", [s, s, s], ["y"]),
    "Col2Im": lambda s: node("Col2Im", ["x", s, s], ["y"])}

MOST = 2 ** 27
"""Bytes that a refusal takes, at most."""


def doubled(times: int, reader: Callable[[str], NodeProto], data: bool) -> ModelProto:
    """The shape of x, or whole numbers of x itself, joined to itself so often, then read."""
    first = [node("Shape", ["x"], ["s0"])] if not data else [node("Cast", ["x"], ["whole"], to=7), node("Slice", ["whole", "zero", "one"], ["row"]),
                                                              node("Flatten", ["row"], ["flat"], axis=0), node("Squeeze", ["flat", "zero"], ["s0"])]
    nodes = [*first, *(node("Concat", [f"s{i}"] * 2, [f"s{i + 1}"], axis=0) for i in range(times)), reader(f"s{times}")]
    constants: dict[str, Any] = {"zero": np.array([0], np.int64), "one": np.array([1], np.int64), "two": np.array([2, 2], np.int64),
                                 "f": np.ones(2, np.float32)}
    return model_of(nodes, [port("x", ["N", 4])], ["y"], constants, opset=18)


def memory_of(model: ModelProto, use: Callable[[Any], Any]) -> int:
    """Bytes at the peak until the refusal, NumPy's included."""
    wrapped = wrap_model(model)
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"has [0-9,]+ elements, and no tensor has sizes or axes for more|must be one number"
                                         r"|gives a constant of [0-9]+ dimensions"):
        use(wrapped)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("times", [12, pytest.param(20, marks=pytest.mark.exhaustive), 26])
@pytest.mark.parametrize("data", [False, True], ids=["of shapes", "of data"])
@pytest.mark.parametrize("reader", READERS)
def test_a_list_that_is_too_long_is_refused_at_once(reader: str, data: bool, times: int) -> None:
    memory_of(doubled(times, READERS[reader], data), lambda m: tileflow.inference_model(m)(X))


def test_it_takes_no_memory() -> None:
    """Sizes are counted before the first list is made: of 2**27 numbers it takes gigabytes, and a product of them a minute."""
    tileflow.compile(wrap_model(doubled(0, READERS["Reshape"], False)))            # what is imported late is there
    assert max(memory_of(doubled(times, READERS["Reshape"], data), lambda m: tileflow.inference_model(m)(X))
               for times in (20, 26) for data in (False, True)) < MOST


def test_the_longest_lists_that_are_still_taken() -> None:
    """Sizes of every axis that a tensor can have, and pads before and after each; parts of any number."""
    def made(*nodes: NodeProto, **constants: np.ndarray) -> np.ndarray:
        return np.asarray(tileflow.inference_model(wrap_model(model_of(list(nodes), [port("x", ["N", 4])], ["y"], constants, opset=18)))(X))
    rank = 32
    sizes, pads = np.array([2] + [1] * (rank - 2) + [4]), np.zeros(2 * rank, np.int64)
    pads[-1] = 1
    y = made(node("Reshape", ["x", "sizes"], ["r"]), node("Pad", ["r", "pads"], ["p"]), node("Squeeze", ["p", "axes"], ["y"]), sizes=sizes, pads=pads,
             axes=np.arange(1, rank - 1))
    np.testing.assert_array_equal(y, np.pad(X, [(0, 0), (0, 1)]))
    parts = [f"p{i}" for i in range(200)]
    y = made(node("Tile", ["x", "times"], ["t"]), node("Split", ["t", "sizes"], parts, axis=1), node("Concat", parts[::-1], ["y"], axis=1),
             times=np.array([1, 50]), sizes=np.ones(200, np.int64))
    np.testing.assert_array_equal(y, np.tile(X, (1, 50))[:, ::-1])
