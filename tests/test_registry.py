"""Every operator of the registry keeps its contract: types, reference, work and kernel calls fit together, gradients are typed.

A new operator needs a line in SAMPLES (elementwise ones are tried by themselves). Values are tested per family.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from evaluate import run_reference

import tileflow.ops
from tileflow.errors import TileflowError
from tileflow.graph import OPS, Builder, Graph, Op, TensorType, verify
from tileflow.kernels.elementwise.expr import Var
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import Call, In, Micro, Out, Seed
from tileflow.kernels.machine.call import Work as Scratch
from tileflow.ops.elementwise import Elementwise
from tileflow.work import Operand, Window, Work

x34, x345, image, image1 = (3, 4), (3, 4, 5), (2, 4, 7, 6), (2, 4, 9)
labels = ("int64", (3,))
window: dict[str, Any] = dict(kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
pooled, convolved = (2, 4, 4, 6), (2, 6, 4, 6)

SAMPLES: dict[str, list[tuple[dict[str, Any], list[Any]]]] = {
    "Map": [({"exprs": (Var(0, "float32") * Var(1, "float32"), Var(1, "float32"))}, [x34, (4,)])],
    "Cast": [({"to": "int32"}, [x34])], "Clip": [({"min": 0.0, "max": 1.0}, [x34])],
    "Identity": [({}, [x34])], "Reshape": [({"shape": (2, -1)}, [x34])], "Flatten": [({}, [x345])], "Squeeze": [({"axes": (1,)}, [(3, 1)])],
    "Unsqueeze": [({"axes": (0, 2)}, [x34])], "Transpose": [({"perm": (2, 0, 1)}, [x345]), ({}, [x34])],
    "Concat": [({"axis": 1}, [(3, 2), (3, 4), (3, 1)])], "Split": [({"axis": 1, "sizes": (1, 3)}, [x34])],
    "Slice": [({"starts": (0, 1), "ends": (3, 4), "axes": (0, 1), "steps": (1, 2)}, [x34])],
    "SliceGrad": [({"starts": (1,), "ends": (3,), "axes": (1,), "steps": (1,), "shape": x34}, [(3, 2)])],
    "Expand": [({"shape": (2, 3, 4)}, [(3, 1)])], "Gather": [({"axis": 1}, [x34, ("int64", (2, 2))])],
    "GatherGrad": [({"axis": 0, "shape": x34}, [(3, 4), ("int64", (3,))])], "Pad": [({"pads": (1, 0, 0, 2)}, [x34])],
    "Tile": [({"repeats": (2, 3)}, [x34])],
    "Conv": [({**window}, [image, (6, 4, 3, 2), (6,)]), ({"group": 2}, [image, (6, 2, 3, 2)]), ({}, [image1, (6, 4, 3)])],
    "ConvInputGrad": [({"shape": (7, 6), **{k: v for k, v in window.items() if k != "kernel_shape"}}, [convolved, (6, 4, 3, 2)])],
    "ConvWeightGrad": [({**window}, [image, convolved]), ({**window, "biased": True}, [image, convolved])],
    "Dropout": [({"training_mode": 1}, [x34]), ({}, [x34]), ({"training_mode": 1, "mask": 1}, [x34])], "DropoutGrad": [({}, [x34])],
    "Softmax": [({}, [x34]), ({"axis": 0}, [x345])], "LogSoftmax": [({}, [x34])],
    "FusedAttention": [({}, [(2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7), (1, 4, 1, 6)]),
                       ({"reach": 1, "inside": (True, False, True, False)}, [(2, 3, 4, 5), (2, 4, 6, 5), (2, 6, 4, 5)])],
    "FusedAttentionGrad": [({"scale": 0.5}, [(2, 4, 3, 7), (2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7), (2, 1, 3, 6), (2, 4, 3, 7), (2, 4, 3)])],
    "SoftmaxGrad": [({}, [x34, x34])], "LogSoftmaxGrad": [({}, [x34, x34])],
    "SoftmaxCrossEntropyLoss": [({}, [x34, labels]), ({"reduction": "none"}, [x34, labels, (4,)]), ({"log_prob": 1}, [x34, labels])],
    "NegativeLogLikelihoodLoss": [({}, [x34, labels]), ({"reduction": "sum"}, [x34, labels])],
    "SoftmaxCrossEntropyLossGrad": [({}, [(), x34, labels])], "NegativeLogLikelihoodLossGrad": [({}, [(), x34, labels])],
    "MSELoss": [({}, [x34, x34]), ({"reduction": "none"}, [x34, x34])], "L1Loss": [({"reduction": "sum"}, [x34, x34])],
    "BCELoss": [({}, [(3, 4), (3, 4)])], "BCEWithLogitsLoss": [({}, [x34, x34])], "IdentityLoss": [({}, [x34]), ({"reduction": "none"}, [x34])],
    "MatMul": [({}, [(2, 3, 4), (4, 5)]), ({}, [(4,), (4, 5)])], "FusedMatMul": [({"transB": 1, "alpha": 0.5}, [(2, 3, 4), (2, 5, 4)])],
    "Gemm": [({"transB": 1}, [x34, (5, 4), (5,)]), ({"transA": 1}, [(4, 3), (4, 5)])],
    "BatchNormalization": [({}, [image, *[(4,)] * 4]), ({"training_mode": 1}, [image, (4,), (4,), None, None])],
    "BatchNormalizationGrad": [({}, [image, image, *[(4,)] * 3])], "InstanceNormalization": [({}, [image, (4,), (4,)])],
    "LayerNormalization": [({}, [x345, (5,), (5,)]), ({"axis": 1}, [x345, (4, 5)])],
    "LayerNormalizationGrad": [({}, [x345, x345, (5,), (3, 4, 1), (3, 4, 1)])],
    "RMSNormalization": [({}, [x345, (5,)]), ({"axis": 1}, [x345, (4, 5)])],
    "RMSNormalizationGrad": [({}, [x345, x345, (5,), (3, 4, 1)])],
    "MaxPool": [({**window}, [image]), ({"kernel_shape": (3,), "indices": True}, [image1])], "MaxPoolGrad": [({**window}, [pooled, image])],
    "AveragePool": [({**window}, [image])], "AveragePoolGrad": [({**window, "shape": (7, 6)}, [pooled])],
    "GlobalAveragePool": [({}, [image])], "GlobalMaxPool": [({}, [image])],
    **{name: [({"axes": (1,)}, [x345]), ({"axes": (0, 2), "keepdims": 0}, [x345])] for name in
       ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")},
    "SerializedMatMul": [({"mode": "input_channels", "factor": 3}, [x34, (4, 2)])],
    "SerializedGemm": [({"mode": "reducing_dim", "factor": 2}, [x34, (4, 2), (2,)])],
    "ArgMax": [({"axis": 1}, [x34])], "ArgMin": [({"keepdims": 0}, [x34])],
}


def type_from(given: Any) -> TensorType | None:
    """A shape is float32; (element type, shape); None: an absent input."""
    if given is None:
        return None
    return TensorType(*given) if given and isinstance(given[0], str) else TensorType("float32", given)


def elementwise_samples(kind: type[Op]) -> list[tuple[dict[str, Any], list[Any]]]:
    """The first numbers of inputs and element types that the operator takes."""
    for count in (1, 2, 3):
        for dtype in ("float32", "bool", "int32"):
            shapes: list[Any] = [(dtype, (3, 4)), (dtype, (4,)), (dtype, (3, 1))][:count]
            if kind.__name__ == "Where":
                shapes = [("bool", (3, 4)), (4,), (3, 1)]
            try:
                kind().infer(*[type_from(s) for s in shapes])
            except (TileflowError, TypeError, IndexError, ValueError):
                continue
            return [({}, shapes)]
    raise AssertionError(f"{kind.__name__} takes none of the types tried; give it a line in SAMPLES")


def samples() -> list[tuple[str, Op, list[TensorType | None]]]:
    found = []
    for name, kind in OPS.items():
        given = SAMPLES.get(name) or (elementwise_samples(kind) if issubclass(kind, Elementwise) else [])
        found += [(f"{name}-{i}", kind(**attributes), [type_from(s) for s in shapes]) for i, (attributes, shapes) in enumerate(given)]
    return found


CASES = samples()
case = pytest.mark.parametrize(("op", "types"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])


def arrays_of(types: list[TensorType | None]) -> list[np.ndarray | None]:
    rng = np.random.default_rng(0)
    return [None if t is None else rng.integers(0, 2, t.shape).astype(t.numpy) if not t.is_float
            else rng.uniform(0.1, 0.9, t.shape).astype(t.numpy) for t in types]


def test_every_operator_has_a_sample_and_is_declared_whole():
    assert tileflow.ops
    assert not {n for n in OPS if not any(c[0].rpartition("-")[0] == n for c in CASES)}, "give these a line in SAMPLES"
    assert not SAMPLES.keys() - OPS.keys()
    for name, kind in OPS.items():
        assert kind.name == name
        assert dataclasses.is_dataclass(kind)
        missing = [m for m in ("infer", "reference", "work", "kernel") if getattr(kind, m) is getattr(Op, m)]
        assert not missing, f"{name} does not declare {missing}"
        assert (kind.__doc__ or "").strip(), f"{name} does not say what it computes"


@case
def test_types_and_reference_agree(op: Op, types: list[TensorType | None]):
    outputs = op.infer(*types)
    with np.errstate(all="ignore"):
        arrays = run_reference(op, *arrays_of(types))
    assert [(a.dtype.name, a.shape) for a in arrays] == [(t.dtype, t.shape) for t in outputs]
    assert hash(op) == hash(type(op)(**op.attributes()))
    assert op == type(op)(**op.attributes())


@case
def test_work_describes_the_operands(op: Op, types: list[TensorType | None]):
    outputs = op.infer(*types)
    work = op.work(types, outputs)
    assert isinstance(work, Work)
    sizes = {a.name: a.size for a in work.axes}
    assert len(sizes) == len(work.axes)
    assert all(n > 0 for n in sizes.values())
    assert {a.kind for a in work.axes} <= {"parallel", "reduce", "whole"}
    assert work.flops >= 0
    assert len(work.outputs) == len(outputs)
    assert len(work.inputs) <= len(types)
    for operand, t in zip(work.outputs, outputs, strict=True):
        check_operand(operand, t, sizes)
    for given, wanted in zip(work.inputs, types, strict=False):
        if given is not None and wanted is not None:
            check_operand(given, wanted if op.alias is None else wanted.with_shape(outputs[0].shape), sizes)


def check_operand(operand: Operand, t: TensorType, sizes: dict[str, int]) -> None:
    """Every dimension is an axis of its size, a window over axes, or whole."""
    assert operand.dtype == t.dtype
    assert len(operand.dims) == t.rank
    for dim, n in zip(operand.dims, t.shape, strict=True):
        if isinstance(dim, Window):
            assert {dim.out, dim.tap} <= sizes.keys()
            last = (sizes[dim.out] - 1) * dim.stride + (sizes[dim.tap] - 1) * dim.dilation - dim.pad
            assert last < n + dim.pad + dim.stride * sizes[dim.tap], f"{dim} reaches {last} of {n}"
        elif dim is not None:
            assert sizes[dim] == n, f"axis {dim} has {sizes[dim]} elements, the dimension {n}"


@case
def test_kernel_calls_are_well_formed(op: Op, types: list[TensorType | None]):
    outputs = op.infer(*types)
    calls = op.kernel(types, outputs, cpu.current())
    assert calls
    written = set()
    for call in calls:
        assert isinstance(call, Call)
        assert call.n > 0
        assert call.grain > 0
        assert call.cost >= 0
        parameters = [p for p in call.leaf.parameters if p.words]
        assert len(parameters) == len(call.args)
        for p, arg in zip(parameters, call.args, strict=True):
            if isinstance(arg, (In, Out)):
                t = types[arg.index] if isinstance(arg, In) else outputs[arg.index]
                assert t is not None
                assert np.prod(arg.shape, dtype=int) == t.size
                assert np.dtype({"b1": "?"}.get(p.dtype, p.dtype)).itemsize == t.itemsize
                written |= {arg.index} if isinstance(arg, Out) else set()
            if isinstance(arg, (In, Out, Scratch)):
                assert len(arg.shape) == p.ndim - (isinstance(arg, Scratch) and p.cut == "w")
                assert p.cut != "r" or arg.shape[0] == call.n
            else:
                assert isinstance(arg, (Micro, Seed, int, float, bool, np.number))
                assert not p.is_array
    assert written == set(range(len(outputs)))


@case
def test_gradients_have_the_types_of_their_values(op: Op, types: list[TensorType | None]):
    graph = Graph()
    b = Builder(graph)
    inputs = [None if t is None else b.input(f"x{i}", t) for i, t in enumerate(types)]
    outputs = b.emit(op, *inputs)
    floats = [v for v in outputs if v.type.is_float]
    if not floats:
        return
    grads = [b.input(f"g{i}", v.type) if v is floats[0] else None for i, v in enumerate(outputs)]
    found = op.vjp(b, grads, inputs, outputs)
    assert len(found) == len(inputs)
    for value, g in zip(inputs, found, strict=True):
        assert g is None or (value is not None and g.type == value.type)
    graph.outputs = [g for g in found if g is not None]
    verify(graph)
