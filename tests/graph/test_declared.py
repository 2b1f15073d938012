"""What every operator declares is made true: values, gradients and tile plans, generated from its samples."""
from __future__ import annotations

import contextlib
import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import paths
import pytest
from computed import computed, computed_resized
from evaluate import evaluate, run_kernel, run_reference
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from samples import UNLIKE, Array, Case, cases
from tile_models import alone as alone_on_tiles

from tileflow import exact
from tileflow.graph import OPS, Builder, Graph, Op, TensorType, type_of
from tileflow.graph.composite import declares
from tileflow.importers.onnx import import_graph, wrap_model
from tileflow.importers.onnx.site import field_types
from tileflow.passes.autograd import gradients
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
from tileflow.state import Session
from tileflow.system.errors import TileflowError, TypeMismatchError, UnsupportedError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze

SPECIAL = (np.nan, np.inf, -np.inf)
STEP = 1e-6
LONG = ("RNN-1", "GRU-1", "GRU-2", "LSTM-0", "LSTM-2", *(f"{name}-{k}" for name in ("Recurrence", "RecurrenceGrad", "Trees", "ByteProduct")
                                                             for k in (1, 2, 3)),
        "TopK-1", "TopK-3", "TopK-4", "ConvTranspose-2", "ConvTranspose-3", "ConvTranspose-6", "ConvInteger-3", "Einsum-11",
        "Trees-4", "MaxPool-1", "LpNormalization-1")
"""Each compiles kernels of its own for a second or more: cells, forests, sorts, blocks of registers. Of recurrent layers those that are left have
every operand between them, and every operator has other samples."""
LONG_ON_TILES = (*LONG, "Recurrence-0", "RecurrenceGrad-0", "RNN-0", "LSTM-1", "Trees-0", "ByteProduct-0", "TopK-0", "ConvInteger-0",
                 "RoiAlignGrad-0", "DeformConv-0", "MaxRoiPool-0")
"""Those whose parts, each of another size than the whole, are kernels of their own as well; these operators' kernels are computed whole."""
LONG_IN_ODD_SIZES = (*LONG, *(f"{name}-0" for name in ("Conv", "ConvInputGrad", "ConvWeightGrad", "MaxPool", "MaxPoolGrad", "Recurrence",
                                                       "RecurrenceGrad", "FusedAttention", "FusedAttentionGrad", "ByteProduct")))
"""Those that take another way there, whose odd sizes are in the operators' own tests at every change."""
SMALL = chip("gc200").variant(name="small", tiles=16)


def parameters(some: Sequence[Case], seldom: Sequence[str] = LONG) -> Any:
    return [pytest.param(c, id=c.name, marks=paths.exhaustive if c.name in seldom else ()) for c in some]


every_case = pytest.mark.parametrize("case", parameters(cases()))


# ---- kernels --------------------------------------------------------------------------------------------------------------------

@every_case
def test_kernels_compute_what_the_reference_does(case: Case) -> None:
    computed(case, case.arrays())


@pytest.mark.parametrize("case", parameters(cases(), LONG_IN_ODD_SIZES))
def test_kernels_take_odd_and_empty_axes(case: Case) -> None:
    computed_resized(case)


@pytest.mark.parametrize("case", parameters([c for c in cases() if declares(c.op, "kernel") and any(
    t is not None and t.dtype == "float32" for t in c.types)]))
def test_kernels_take_what_is_not_finite(case: Case) -> None:
    """An element of each float operand is not a number, or infinite. Inner operators (gradients) may make one of the other on their way."""
    for k, value in enumerate(SPECIAL):
        arrays = case.arrays()
        for i, a in enumerate(arrays):
            if a is not None and a.dtype == np.float32 and a.size:
                a.reshape(-1)[(7 * i + k) % a.size] = value
        with np.errstate(all="ignore"):
            wanted = run_reference(case.op, *arrays)
        for got, want in zip(run_kernel(case.op, *arrays), wanted, strict=True):
            told = np.isfinite(want) if not case.op.onnx else ...
            np.testing.assert_allclose(got[told], want[told], rtol=2e-5, atol=2e-6)


def test_every_operator_has_a_sample_at_every_change() -> None:
    names = {c.name for c in cases()}
    assert set(LONG) <= names, "samples that are no more"
    assert {c.op.name for c in cases() if c.name not in LONG} == {c.op.name for c in cases()}


# ---- gradients ------------------------------------------------------------------------------------------------------------------

STRAIGHT = ("FakeQuantize",)
"""Straight-through estimators, whose gradient is not their own function's (`test_quantize.py`)."""


def gradient_cases() -> list[Case]:
    """The cases that have floats in and out, and may have them in float64."""
    found = []
    for case in cases():
        types = [None if t is None else t.with_dtype("float64") if t.is_float else t for t in case.types]
        try:
            outputs = case.op.infer(*types)
        except (AssertionError, TypeMismatchError):            # typed by its attributes, or of float32 only
            continue
        passed = case.op.stops_gradient or case.op.name in STRAIGHT
        if any(t is not None and t.is_float for t in types) and any(t.is_float for t in outputs) and not passed:
            found.append(case.resized(types))
    return found


def weighted(case: Case, k: int, arrays: list[Array | None]) -> tuple[Graph, list[Any], Any, Array]:
    """A graph that sums output k times random weights; its inputs, that sum, and the weights."""
    graph = Graph(case.name)
    b = Builder(graph)
    inputs = [None if a is None else b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]
    y = b.emit(case.op, *inputs)[k]
    weights = np.random.default_rng(zlib.crc32(case.name.encode())).standard_normal(y.shape)
    loss = b.ReduceSum(b.Mul(y, b.constant(weights, "weights")), keepdims=0)
    return graph, inputs, loss, weights


def differences(op: Op, arrays: list[Array | None], i: int, weights: dict[int, Array], most: int | None) -> dict[int, Array]:
    """Central differences by operand i of the sums of outputs k times weights[k], at no more than `most` elements, drawn at random; not a number at
    the others, and where the operator is none nearby."""
    def values() -> list[float]:
        outputs = run_reference(op, *arrays)
        return [float(np.sum(outputs[k] * w, dtype=np.longdouble)) for k, w in weights.items()]

    x = arrays[i]
    assert x is not None
    found = {k: np.full_like(x, np.nan) for k in weights}
    places = list(np.ndindex(x.shape))
    if most is not None and len(places) > most:
        places = [places[n] for n in np.random.default_rng(len(places)).choice(len(places), most, replace=False)]
    for at in places:
        kept = x[at]
        x[at] = kept + STEP
        above = values()
        x[at] = kept - STEP
        below = values()
        for k, high, low in zip(weights, above, below, strict=True):
            found[k][at] = (high - low) / ((kept + STEP) - (kept - STEP))
        x[at] = kept
    return found


def check_gradients(case: Case, most: int | None) -> None:
    """By every float operand, of every float output; where there is no gradient, the operator says why."""
    arrays = case.arrays("float64")
    outputs = case.op.infer(*case.types)
    feeds = {f"x{j}": a for j, a in enumerate(arrays) if a is not None}
    with np.errstate(all="ignore"):
        for i in [i for i, a in enumerate(arrays) if a is not None and a.dtype == float]:
            found, by = {}, {}
            for k in [k for k, t in enumerate(outputs) if t.is_float]:
                graph, inputs, loss, weights = weighted(case, k, arrays)
                try:
                    graph.outputs = gradients(graph, loss, [inputs[i]])
                except UnsupportedError as error:
                    if k > 0 or (case.op.no_gradient and case.op.no_gradient in str(error)):
                        continue
                    raise
                found[k], by[k] = evaluate(graph, feeds)[graph.outputs[0].name], weights
            for k, wanted in differences(case.op, arrays, i, by, most).items() if by else ():
                defined = np.isfinite(wanted)
                np.testing.assert_allclose(found[k][defined], wanted[defined], rtol=2e-5, atol=1e-6, err_msg=f"output {k} by operand {i}")


FEW = 12
"""Elements of an operand that are changed at every change."""


@pytest.mark.parametrize("case", parameters(gradient_cases()))
def test_gradients_are_those_of_central_differences(case: Case) -> None:
    check_gradients(case, FEW)


@paths.exhaustive
@pytest.mark.parametrize("case", [c for c in gradient_cases() if any(o is not None and math.prod(o.type.shape) > FEW for o in c.operands)],
                         ids=lambda c: c.name)
def test_gradients_by_every_element(case: Case) -> None:
    check_gradients(case, None)


def test_what_says_why_it_has_no_gradient_has_none() -> None:
    """Of those that can be asked: with floats of 64 bits in and out."""
    asked = [(case, k) for case in gradient_cases() for k, t in enumerate(case.op.infer(*case.types)) if t.dtype == "float64"]
    left = {name for name, kind in OPS.items() if kind.no_gradient} & {case.op.name for case, _ in asked}
    for case, k in asked:
        if case.op.name not in left:
            continue
        for i, a in enumerate(case.arrays()):
            if a is not None and a.dtype == float:
                graph, inputs, loss, _ = weighted(case, k, case.arrays())
                try:
                    gradients(graph, loss, [inputs[i]])
                except UnsupportedError:
                    left.discard(case.op.name)
    assert not left, "they have all gradients: no_gradient may go"


# ---- ONNX -----------------------------------------------------------------------------------------------------------------------

def as_model(case: Case) -> onnx.ModelProto | None:
    """A model of one node; None where ONNX cannot say it: an attribute of our own, an operand that it wants and we do not."""
    name, version = case.op.name, onnx.defs.onnx_opset_version()
    schema = onnx.defs.get_schema(name, version)
    formals = [schema.inputs[min(i, len(schema.inputs) - 1)].name for i in range(max(len(schema.inputs), len(case.operands)))]
    own, attributes, constants = field_types(name), {}, {}
    for field, value in case.op.attributes().items():
        if value is None or value == getattr(type(case.op), field, None):
            continue
        if field in schema.attributes:
            named = isinstance(value, str) and schema.attributes[field].type == onnx.defs.OpSchema.AttrType.INT        # an element type
            attributes[field] = dtype_number(TensorType(value, ())) if named else value
        elif field in formals:
            floats = any(isinstance(v, float) for v in (value if isinstance(value, tuple) else (value,)))
            constants[field] = np.array([value] if field == "K" else value, np.float32 if floats else np.int64)        # K has an axis, k has none
        else:
            return None
    operands, inputs, names = list(case.types), [], []
    for formal in formals:
        if formal in own:
            names.append(formal if formal in constants else "")
            continue
        t = operands.pop(0) if operands else None
        names.append("" if t is None else f"x{len(inputs)}")
        inputs.append(t)
    while names and not names[-1]:
        names.pop()
    if any(not n for n, formal in zip(names, schema.inputs, strict=False) if formal.option == onnx.defs.OpSchema.FormalParameterOption.Single):
        return None
    if len(names) < schema.min_input or any(a.required and n not in attributes for n, a in schema.attributes.items()):
        return None
    outputs = {f"y{i}": t for i, t in zip(range(schema.max_output), case.op.infer(*case.types), strict=False)}
    node = helper.make_node(name, names, list(outputs), **attributes)
    made = helper.make_graph(
        [node], name, [helper.make_tensor_value_info(f"x{i}", dtype_number(t), t.shape) for i, t in enumerate(inputs) if t is not None],
        [helper.make_tensor_value_info(y, dtype_number(t), None) for y, t in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in constants.items()])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", version)])


def dtype_number(t: TensorType) -> int:
    """ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(t.numpy)) if t.dtype != "bfloat16" else TensorProto.BFLOAT16


@functools.cache
def onnx_cases() -> list[tuple[Case, onnx.ModelProto]]:
    """The cases that ONNX can say."""
    compared = [case for case in cases() if case.op.onnx and not case.op.random and case.name not in UNLIKE]
    return [(case, model) for case in compared if (model := as_model(case)) is not None]


@pytest.mark.parametrize(("case", "model"), onnx_cases(), ids=lambda c: getattr(c, "name", ""))
def test_onnx_means_the_same(case: Case, model: onnx.ModelProto) -> None:
    """The model, imported and computed by references, against ONNX's own evaluator."""
    feeds = {f"x{i}": a for i, a in enumerate(case.arrays()) if a is not None}
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, feeds)
        imported = import_graph(wrap_model(model), input_types={n: type_of(a) for n, a in feeds.items()}, training=None)
        values = evaluate(imported.graph, feeds)
    for output, want in zip(model.graph.output, wanted, strict=True):
        if output.name in values:
            np.testing.assert_allclose(values[output.name], want, rtol=1e-5, atol=1e-5, err_msg=output.name)


# ---- tiles ----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("case", parameters(cases(), LONG_ON_TILES))
def test_tiles_can_execute_the_plan(case: Case) -> None:
    """Tile by tile, from only what the plan brings there."""
    feeds = {f"x{i}": a[None] for i, a in enumerate(case.arrays()) if a is not None}
    report = exact.check(analyze(alone_on_tiles(case.op, tuple(case.types)), SMALL), feeds=feeds)
    assert report.ok, report.to_text()


# ---- what no kernel computes is refused ------------------------------------------------------------------------------

@paths.exhaustive
@pytest.mark.parametrize("kind", ["int32", "bool"])
def test_integers_in_the_place_of_floats_are_refused_or_have_kernels(kind: str) -> None:
    accepted = 0
    for case in cases():
        if not case.name.endswith("-0") or not any(t is not None and t.is_float for t in case.types):
            continue
        graph = Graph(case.name)
        b = Builder(graph)
        types = [t if t is None or not t.is_float else t.with_dtype(kind) for t in case.types]
        operands = [None if t is None else b.input(f"x{i}", t) for i, t in enumerate(types)]
        try:
            graph.outputs = list(b.emit(case.op, *operands))
            program = Program.of(graph, Batching(1))
        except (AssertionError, TileflowError):
            continue
        accepted += 1
        with contextlib.suppress(TileflowError):
            make_engine(program, Session(), host=Host(threads=1))
    assert accepted > 20, "nothing was left to compile"
