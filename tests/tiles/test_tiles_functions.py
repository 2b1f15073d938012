"""Element-wise operators cost what their functions do, by name and type; how many FLOPs a function counts for says nothing about it."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tile_models import alone

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.graph import OPS, Builder, Graph, TensorType
from tileflow.graph.work import Work
from tileflow.kernels.elementwise.expr import OPERATIONS
from tileflow.ops.functions import CASTS
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.hardware.functions import FLOATS, vector_cycles
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileOptions
from tileflow.tiles.plans.spread import on_device, worker_cycles

ONE = chip("gc200").variant(name="one", tiles=1)


def work_of(name: str, dtype: str = "float32", inputs: int = 1, **attributes: Any) -> Work:
    op = OPS[name](**attributes)
    types = [TensorType(dtype, (96, 40))] * inputs
    return op.work(types, op.infer(*types))


def loop(name: str, dtype: str = "float32", inputs: int = 1) -> float:
    """Cycles of a worker for 8 bytes."""
    work = work_of(name, dtype, inputs)
    itemsize = {"float32": 4, "float16": 2, "int32": 4}[dtype]
    return vector_cycles(work.functions, work.flops_per_point, itemsize, inputs + 1)


@pytest.mark.parametrize(("name", "float32", "float16"), [
    ("Exp", 6, 4), ("Log", 12, 4), ("Tanh", 12, 4), ("Sigmoid", 12, 6), ("Sqrt", 10, 23), ("Floor", 6, 6), ("Sign", 9, 9), ("Erf", 82, 52),
    ("Sin", 4608, 100), ("Tan", 10200, 22800), ("Neg", 2, 2), ("Abs", 5, 5)])
def test_functions_take_what_their_vertices_are_listed_with(name: str, float32: float, float16: float) -> None:
    """lib/popops/popopsCycleEstimators.hpp, unaryOpPerfInfo: cycles of 8 bytes, the loop's included."""
    assert (loop(name), loop(name, "float16")) == (float32, float16)


def test_pairs_take_what_their_vertices_are_listed_with() -> None:
    """binaryOpPerfInfo: 1 and 2 for adding and multiplying, 10 and 21 for dividing, 7 an element of integers, 277 for dividing them."""
    assert [loop(name, inputs=2) for name in ("Add", "Sub", "Mul", "Div")] == [3, 3, 3, 10]
    assert [loop(name, "float16", 2) for name in ("Add", "Div")] == [3, 21]
    assert [loop(name, "int32", 2) for name in ("Add", "Div")] == [14, 2 * 277]


def test_operators_of_equal_flops_are_told_apart() -> None:
    """A function is one FLOP, whatever it takes."""
    for a, b in (("Log", "Sigmoid"), ("Tan", "Asin"), ("Sinh", "Tan")):
        assert work_of(a).flops_per_point == work_of(b).flops_per_point
        assert loop(a, "float16") != loop(b, "float16"), (a, b)
    assert loop("Div", "float16", 2) != loop("Sqrt", "float16")


def test_functions_of_one_operator_add_up() -> None:
    counts = (("add", "float32", 3), ("exp", "float32", 2), ("sqrt", "float16", 1))
    assert vector_cycles(counts, 0.0, 4, 2) == 3 + 12 + 23 / 2
    assert vector_cycles((("add", "float32", 2),), 0.0, 4, 5) == 5                   # five operands are loaded and stored
    assert vector_cycles((("gt", "float32", 1),), 0.0, 4, 3) == 7                    # bools are stored as bytes
    assert vector_cycles((("gt", "float32", 1), ("where", "float32", 1)), 0.0, 4, 3) == 3
    assert vector_cycles((), 4.0, 4, 2) == 4                                         # arithmetic: a cycle each


def test_all_functions_but_arithmetic_are_listed() -> None:
    """What takes more than a cycle a vector has its own entry, so a new one cannot pass for arithmetic."""
    integers = {"and", "or", "xor", "not", "shl", "shr"}
    rounding = {"stochastic", "away", "remainder", "joined"}                         # done by what stores 16 bits
    assert set(OPERATIONS) - set(FLOATS) == integers | rounding | set(CASTS)


def test_types_are_those_of_the_tiles() -> None:
    work = work_of("Exp")
    assert on_device(work, "16.16").functions == (("exp", "float16", 1),)
    assert on_device(work, "32.32") is work
    wide = work_of("Exp", "float64")
    assert on_device(wide, "32.32").functions == (("exp", "float32", 1),)


ROWS, COLUMN = TensorType("float32", (2, 8, 6, 6)), TensorType("float32", (8,))
WIDTH = TensorType("float32", (6,))


@pytest.mark.parametrize(("name", "attributes", "types", "float32", "float16"), [
    ("BatchNormalization", {"training_mode": 1}, (ROWS, COLUMN, COLUMN, None, None), 2 + 16, 2 + 5),
    ("BatchNormalization", {}, (ROWS, COLUMN, COLUMN, COLUMN, COLUMN), 8, 2),
    ("BatchNormalizationGrad", {}, (ROWS, ROWS, COLUMN, COLUMN, COLUMN), 8 + 5 + 4 + 5 + 8 + 3 + 4, 3 + 5 + 1 + 5 + 2 + 3 + 2),
    ("GroupNormalization", {"num_groups": 4}, (ROWS, COLUMN, COLUMN), 2 + 4 + 8, 2 + 4 + 2),
    ("InstanceNormalization", {}, (ROWS, COLUMN, COLUMN), 2 + 4 + 8, 2 + 4 + 2),
    ("LayerNormalization", {"axis": 3}, (ROWS, WIDTH, WIDTH), 2 + 4 + 8, 2 + 4 + 2),
    ("RMSNormalization", {"axis": 3}, (ROWS, WIDTH), 1 + 2 + 4, 1 + 2 + 1),
    ("Softmax", {"axis": 1}, (ROWS,), 1 + 2 + 6 + 1 + 2, 1 + 2 + 4 + 1 + 2),
    ("SoftmaxGrad", {"axis": 1}, (ROWS, ROWS), 3 + 1 + 2 + 3, 3 + 1 + 2 + 3)])
def test_operators_of_several_vertices_take_all_of_them(name: str, attributes: dict[str, Any], types: tuple[TensorType | None, ...], float32: float,
                                                        float16: float) -> None:
    """poplin/Norms.cpp, popnn/NonLinearity.cpp: each pass over the tensor by the quickest vertex there is. A column of float32 takes four cycles a
    vector (two an element), of float16 one, or two where it is changed in place; a number a row two, two tensors three, a sum one."""
    op = OPS[name](**attributes)
    work = op.work(types, op.infer(*types))
    found = [vector_cycles(on_device(work, p).functions, work.flops_per_point, size, 0) for p, size in (("32.32", 4), ("16.16", 2))]
    assert found == [float32, float16]


@pytest.mark.parametrize(("exponent", "cycles"), [(2, 3), (2.0, 3), (0.5, 10), (-1.0, 10), (-0.5, 20), (3.0, 3), (2.5, 624)])
def test_powers_whose_exponent_is_known_are_none(exponent: float, cycles: float) -> None:
    """popops/ElementWiseInternal.cpp, optimiseBinary: squares, roots and inverses. Of another exponent, or one that comes while it runs, a power."""
    graph = Graph("power")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (96, 40)))
    graph.outputs.append(b.Pow(x, b.constant(np.array(exponent, "float32"))))
    step, = analyze(Program.of(graph, Batching(1)), ONE).steps
    assert step.plan.phases.compute == 6 * (29 + 320 * cycles) + 11
    two, = analyze(alone(OPS["Pow"](), (TensorType("float32", (96, 40)), TensorType("float32", ()))), ONE).steps
    assert two.plan.phases.compute == 6 * (29 + 320 * 624) + 11


def test_a_step_of_a_tree_takes_the_same_in_every_place() -> None:
    """What it takes follows rows, trees and depth: not how much there is to vote for."""
    assert vector_cycles((("walk", "float32", 50),), 0.0, 4, 2) == 50 * 2 * 8
    assert vector_cycles((("walk", "float32", 50),), 0.0, 2, 2) == 50 * 4 * 8, "an element after the other: four in 8 bytes of 16 bits"


@pytest.mark.parametrize("precision", ["32.32", "16.16"])
def test_analysed_operators_take_them(precision: str) -> None:
    """6 workers, each a sixth of the vectors, and 29 cycles around."""
    tiled = analyze(alone(OPS["Tanh"](), (TensorType("float32", (96, 40)),)), ONE, TileOptions(precision=precision))
    step, = tiled.steps
    vectors, each = (1920, 12) if precision == "32.32" else (960, 4)
    assert step.plan.phases.compute == 6 * (29 + vectors // 6 * each) + 11
    assert step.plan.phases.compute == worker_cycles(step.work, 96 * 40, 4 if precision == "32.32" else 2, ONE)


def test_code_is_shared_by_equal_functions_only() -> None:
    from tileflow.tiles.placing.memory import vertex_code
    tanh, again, log = (analyze(alone(OPS[name](), (TensorType("float32", (64, n)),)), ONE).steps[0]
                        for name, n in (("Tanh", 40), ("Tanh", 8), ("Log", 8)))
    assert vertex_code(tanh.work, tanh.plan)[0][0] == vertex_code(again.work, again.plan)[0][0]
    assert vertex_code(log.work, log.plan)[0][0] != vertex_code(tanh.work, tanh.plan)[0][0]
