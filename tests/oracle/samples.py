"""What the operators declare of themselves (`Op.samples`), as cases: the operator, and arrays for its operands."""
from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import tileflow.ops  # noqa: F401  (fills the registry)
from tileflow.graph import OPS, Op, TensorType
from tileflow.graph.composite import declares
from tileflow.graph.sample import SampledOperand
from tileflow.graph.work import Window
from tileflow.system.errors import TileflowError

Array = np.ndarray
Types = list[TensorType | None]
UNLIKE = {"ConvTranspose-2": "it does not take groups of several channels",
          "DeformConv-3": "it takes two spatial axes only", "MaxRoiPool-0": "it lacks the operator", "MaxRoiPool-1": "it lacks the operator",
          **{f"GlobalLpPool-{i}": "it lacks the operator" for i in range(4)},
          "LpPool-2": "it takes means of what is there, times all taps, for sums",
          "MaxPool-1": "its places of maxima are those of one channel",
          **dict.fromkeys(("RNN-1", "GRU-2", "LSTM-1", "LSTM-2"), "it reads no sequence_lens, clip or functions of recurrent operators"),
          **{f"GatherElements-{k}": "it does not take indices that are smaller along other axes" for k in (2, 3)},
          "Pad-1": "it takes no negative pads", "Pad-3": "it takes no negative pads",
          "OneHot-2": "it compares float indices as they are; ONNX Runtime casts them",
          **{f"{name}-{k}": "its random numbers are NumPy's" for name in ("RandomUniform", "RandomNormal", "Bernoulli", "Multinomial")
             for k in range(3)}}
"""Samples that ONNX's own evaluator computes wrongly, or not at all, and why."""


@dataclass(frozen=True)
class Case:
    """An operator with operands of given types, drawn from given ranges."""

    name: str
    op: Op
    operands: tuple[SampledOperand | None, ...]

    @property
    def types(self) -> Types:
        return [None if o is None else o.type for o in self.operands]

    def arrays(self, floats: str | None = None) -> list[Array | None]:
        """The operands' elements, always the same ones; floating types become `floats`."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [None if o is None else drawn(o, rng, floats) for o in self.operands]

    def resized(self, types: Sequence[TensorType | None]) -> Case:
        """The same with other shapes."""
        return replace(self, operands=tuple(None if o is None or t is None else replace(o, type=t)
                                            for o, t in zip(self.operands, types, strict=True)))


def drawn(o: SampledOperand, rng: np.random.Generator, floats: str | None = None) -> Array:
    """Elements of an operand."""
    if o.array is not None:
        return o.array.astype(floats if floats and o.type.is_float else o.type.numpy)
    if not o.type.is_float:
        return rng.integers(int(o.low), int(o.high), o.type.shape).astype(o.type.numpy)
    return rng.uniform(o.low, o.high, o.type.shape).astype(floats or o.type.numpy)


@functools.cache
def cases() -> tuple[Case, ...]:
    """Every sample of every operator."""
    return tuple(Case(f"{name}-{i}", kind(**s.attributes), s.operands) for name, kind in OPS.items() for i, s in enumerate(kind.samples()))


def variants(case: Case, sizes: Sequence[int] = (0, 37)) -> list[Case]:
    """The case with each axis of its work of these sizes, emptied, or odd and longer than a vector, where the operator
    takes that; another number of elements is drawn from the same ranges."""
    if not declares(case.op, "work"):
        return []
    work = case.op.work(case.types, case.op.infer(*case.types))
    windows = {name for o in (*work.inputs, *work.outputs) if o is not None for d in o.dims if isinstance(d, Window) for name in (d.out, d.tap)}
    found = []
    for axis in work.axes:
        if axis.name in windows or axis.kind == "whole":
            continue
        for size in sizes:
            made = _with_axis(case, axis.name, size)
            if made is not None:
                found.append(replace(made, name=f"{case.name}-{axis.name}{size}"))
    return found


def _with_axis(case: Case, axis: str, size: int) -> Case | None:
    """The case with another size of an axis of its work; None where the operator does not take it."""
    outputs = case.op.infer(*case.types)
    types: Types = []
    inputs = (*case.op.work(case.types, outputs).inputs, *[None] * len(case.types))
    for t, o in zip(case.types, inputs, strict=False):
        if t is None or o is None or case.op.alias is not None:
            types.append(t)
            continue
        types.append(t.with_shape(tuple(size if d == axis else n for d, n in zip(o.dims, t.shape, strict=True))))
    changed = [t != o.type for o, t in zip(case.operands, types, strict=True) if o is not None and t is not None and o.array is not None]
    if types == case.types or any(changed):                # arrays that are given stay as they are
        return None
    try:
        made = case.op.infer(*types)
        work = case.op.work(types, made)
    except (TileflowError, AssertionError, IndexError, ValueError):
        return None
    sizes = {a.name: a.size for a in work.axes}
    return case.resized(types) if sizes.get(axis) == size and math.prod(s for a, s in sizes.items() if a != axis) else None
