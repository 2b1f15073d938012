"""float16 and bfloat16 on the host: every operator of the registry, whole models, files."""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import paths
import pytest
from evaluate import run_reference
from onnx import TensorProto, helper
from samples import Case, cases

import tileflow
from tileflow import compiler
from tileflow.graph import HALVES, Builder, Graph, Op, TensorType
from tileflow.importers.onnx import wrap_model
from tileflow.ops.elementwise import Elementwise
from tileflow.program.batching import Batching
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
from tileflow.state import Session
from tileflow.system.errors import TileflowError

EPSILON = {"float16": 2.0 ** -10, "bfloat16": 2.0 ** -7}


def run(op: Op, arrays: list[np.ndarray | None]) -> list[np.ndarray]:
    """One operator through the compile path and the engine of every model."""
    graph = Graph("one")
    b = Builder(graph)
    values = [None if a is None else b.input(f"x{i}", TensorType(a.dtype.name, a.shape)) for i, a in enumerate(arrays)]
    graph.outputs = [*b.emit(op, *values)]
    program = compiler.inference(graph, Batching(1)).program
    found = make_engine(program, Session(), host=Host(threads=1)).run({f"x{i}": a for i, a in enumerate(arrays) if a is not None})
    return [found[v.name] for v in program.micro.outputs]


def halved(op: Op, types: list[TensorType | None], half: str) -> list[TensorType | None] | None:
    """The operands' types with float32 replaced; None where the operator takes no such type."""
    found = [dataclasses.replace(t, dtype=half) if t is not None and t.dtype == "float32" else t for t in types]
    if found == types or op.name in ("Map", "Cast"):
        return None                                  # their attributes name a type
    try:
        op.infer(*found)
    except TileflowError:
        return None
    return found


def in_types(case: Case, types: list[TensorType | None]) -> list[np.ndarray | None]:
    """The operands that the operator declares: whole numbers are labels and indices, tables are those of a real interpolation."""
    return [None if a is None or t is None else a.astype(t.numpy) for a, t in zip(case.arrays(), types, strict=True)]


NATIVE = ("Add", "Gather", "Gelu", "Gemm", "MatMul", "Relu", "Transpose", "Where")
"""Operators that are tried in bfloat16 as well: what is widened differs from float16 in the casts alone."""

HALF_CASES = [(f"{c.name}-{half}", c.op, in_types(c, types)) for c in cases() for half in HALVES
              if c.name.endswith("-0") and (half == "float16" or c.op.name in NATIVE) and (types := halved(c.op, c.types, half))]


def often(op: Op) -> bool:
    """Elementwise operators differ in their expression only: a few of them say what all would; quantised ones in the type of their scales. Recurrent
    layers and sorts compile for seconds, and attention has a test of its own."""
    if op.name in ("RNN", "LSTM", "GRU", "Recurrence", "RecurrenceGrad", "TopK", "FusedAttention", "FusedAttentionGrad", "MaxPoolGrad"):
        return False
    return not (isinstance(op, Elementwise) or op.name.startswith("QLinear")) or op.name in NATIVE


@pytest.mark.parametrize(("op", "arrays"), [(pytest.param if often(op) else paths.rare)(op, arrays, id=name) for name, op, arrays in HALF_CASES])
def test_operators_in_half_precision_are_right_to_its_rounding(op: Op, arrays: list[np.ndarray | None]) -> None:
    half = next(a.dtype.name for a in arrays if a is not None and a.dtype.name in HALVES)
    types = [None if a is None else TensorType(a.dtype.name, a.shape) for a in arrays]
    wide = [a.astype(np.float64) if a is not None and a.dtype.name in HALVES else a for a in arrays]
    with np.errstate(all="ignore"):
        exact = run_reference(op, *wide)
    for value, want, made in zip(run(op, arrays), exact, op.infer(*types), strict=True):
        assert value.dtype.name == made.dtype
        value, want = value.astype(np.float64), want.astype(np.float64)
        scale = np.maximum(np.abs(want), 0.25)
        np.testing.assert_array_less(np.abs(np.nan_to_num(value - want, posinf=0, neginf=0)) / np.nan_to_num(scale, posinf=1), 8 * EPSILON[half])


def test_most_operators_take_half_precision() -> None:
    taken = {op.name for _, op, _ in HALF_CASES}
    for name in ("Conv", "MatMul", "Gemm", "Softmax", "BatchNormalization", "LayerNormalization", "MaxPool", "Gelu", "Gather", "ReduceMean",
                 "SoftmaxCrossEntropyLoss", "ConvWeightGrad", "Transpose", "Concat"):
        assert name in taken, name
    assert len(taken) > 100, len(taken)


def model(number: int) -> onnx.ModelProto:
    """A small classifier with 16-bit weights: convolution, ReLU, pooling, linear layer."""
    rng = np.random.default_rng(1)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(number))

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = (rng.standard_normal(shape) * (2 / np.prod(shape[1:] or (4,))) ** 0.5).astype(dtype)
        return helper.make_tensor(name, number, shape, values.tobytes(), raw=True)

    weights = [weight("w1", 8, 1, 3, 3), weight("b1", 8), weight("w2", 10, 8 * 9), weight("b2", 10)]
    nodes = [helper.make_node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"]),
             helper.make_node("AveragePool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]), helper.make_node("Flatten", ["p"], ["f"]),
             helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], transB=1)]
    graph = helper.make_graph(nodes, "half", [helper.make_tensor_value_info("x", number, ["n", 1, 6, 6])],
                              [helper.make_tensor_value_info("y", number, ["n", 10])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize("number", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_model_in_half_precision_infers_trains_and_is_saved_in_its_type(number: int, tmp_path: Any) -> None:
    proto = model(number)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(number))
    x = np.random.default_rng(2).standard_normal((12, 1, 6, 6)).astype(dtype)
    y = np.random.default_rng(3).integers(0, 10, 12)
    onnx.save(proto, tmp_path / "half.onnx")
    before = tileflow.infer(tmp_path / "half.onnx", data=x)["y"]
    assert before.dtype == dtype
    trained = tileflow.training_model(wrap_model(proto), optimizer=tileflow.optim.SGD(lr=0.1))
    losses = [float(np.asarray(trained(x, y)[-1]).reshape(-1)[-1]) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0], losses
