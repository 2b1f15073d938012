"""Every operator of the registry keeps its contract: types, reference, work and kernel calls fit together, gradients are typed.

The samples are the operators' own (`Op.samples`). Values, gradients and tile plans: `test_declared.py`.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from evaluate import run_reference
from samples import Case, cases

import tileflow.ops
from tileflow.graph import OPS, Builder, Graph, Op, Regional, TensorType, verify
from tileflow.graph.composite import declares
from tileflow.graph.work import Operand, Window, Work
from tileflow.kernels.dtypes import ELEMENTS
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import Address, Call, Const, In, Micro, Out, Position, Seed
from tileflow.kernels.machine.call import Work as Scratch
from tileflow.kernels.machine.leaf import Numbers


def having(method: str) -> Any:
    """The cases of operators that declare a method themselves."""
    found = [c for c in cases() if declares(c.op, method)]
    return pytest.mark.parametrize(("op", "types"), [(c.op, c.types) for c in found], ids=[c.name for c in found])


def test_every_operator_has_a_sample_and_is_declared_whole():
    assert tileflow.ops
    assert {c.op.name for c in cases()} == OPS.keys()
    for name, kind in OPS.items():
        assert kind.name == name
        assert dataclasses.is_dataclass(kind)
        parts = kind.expand is not Op.expand or issubclass(kind, Regional)
        missing = [m for m in ("infer", "samples", *(() if parts else ("reference", "work", "kernel")))
                   if getattr(kind, m) is getattr(Op, m)]
        assert not missing, f"{name} does not declare {missing}"
        assert (kind.__doc__ or "").strip(), f"{name} does not say what it computes"


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_types_and_reference_agree(case: Case):
    op = case.op
    outputs = op.infer(*case.types)
    with np.errstate(all="ignore"):
        arrays = run_reference(op, *case.arrays())
    assert [(a.dtype.name, a.shape) for a in arrays] == [(t.dtype, t.shape) for t in outputs]
    assert hash(op) == hash(type(op)(**op.attributes()))
    assert op == type(op)(**op.attributes())


@having("work")
def test_work_describes_the_operands(op: Op, types: list[TensorType | None]):
    outputs = op.infer(*types)
    work = op.work(types, outputs)
    assert isinstance(work, Work)
    sizes = {a.name: a.size for a in work.axes}
    assert len(sizes) == len(work.axes)
    assert all(n > 0 for n in sizes.values())
    assert {a.kind for a in work.axes} <= {"parallel", "reduce", "staged", "whole"}
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


@having("kernel")
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
        parameters = call.leaf.takes(call.args)
        assert len(parameters) == len(call.args)
        for p, arg in zip(parameters, call.args, strict=True):
            if isinstance(arg, (In, Out)):
                t = types[arg.index] if isinstance(arg, In) else outputs[arg.index]
                assert t is not None
                assert np.prod(arg.shape, dtype=int) == t.size
                assert ELEMENTS[p.dtype].bytes == t.itemsize
                written |= {arg.index} if isinstance(arg, Out) else set()
            if isinstance(arg, (In, Out, Scratch, Const)):
                assert len(arg.shape) == p.ndim - (isinstance(arg, Scratch) and p.cut == "w")
                assert p.cut != "r" or arg.shape[0] == call.n
            else:
                assert isinstance(arg, (Address, Micro, Position, Seed, Numbers, int, float, bool, np.number))
                assert not p.is_array
    assert written == set(range(len(outputs)))


@having("infer")
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
