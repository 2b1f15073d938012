"""Forms: the ways in which the host may compute an operator besides its plain kernel. The host's lowering asks, and passes choose.

Each question is a function that a family's file answers for its operators' classes (`@packed.register(Gemm)`); what no file answers for has
no such form. Nothing here changes what an operator means: a form gives the operator's outputs, up to the order of sums where it is said.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar

import numpy as np

from ..graph.builder import Builder
from ..graph.graph import Value
from ..graph.op import Op, Types
from ..graph.types import TensorType
from ..graph.work import Work
from ..kernels.elementwise.epilogue import Epilogue
from ..kernels.elementwise.expr import Expr, evaluate
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..kernels.pool.planes import Pooling

Outputs = Sequence[TensorType]


class HostOp(Op):
    """Base of operators that the host makes after the fork of the street. They are not registered, and no graph of a Program holds one."""

    def work(self, inputs: Types, outputs: Outputs) -> Work:
        raise AssertionError(f"{self.name} has no work of its own: cost is counted before the host lowering")


# ---- channels last

@dataclass(frozen=True)
class Form:
    """An operator's form for channels-last tensors [N, *spatial, C]. The lowering chooses it or not, for whole regions of a graph.

    op: the operator in that form. inputs, outputs: which operands and results are channels-last; the others (weights, statistics)
    stay as they are. gain: estimated nanoseconds saved on one core against the form it replaces; 0 for one that does not care.
    """

    op: Op
    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    gain: float = 0.0


@singledispatch
def channels_last(op: Op, inputs: Types, outputs: Outputs, cpu: Cpu) -> Form | None:
    """The same over tensors [N, *spatial, C] in place of [N, C, *spatial]; None: there is no such form."""
    return None


@singledispatch
def axis_order(op: Op, x: TensorType) -> tuple[int, ...] | None:
    """For each axis of the output which of the only input's (of type `x`) it is, where to put them in another order is all that is done."""
    return None


# ---- types

@singledispatch
def takes_halves(op: Op, inputs: Types, outputs: Outputs, cpu: Cpu) -> bool:
    """Whether the kernels read and write these types, among which are 16-bit floats, themselves; else the host computes in float32 and
    rounds once."""
    return op.halves


@singledispatch
def coarse(op: Op, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
    """The outputs from float16 operands, as nodes through `b`, where sums of products are rounded to float16 after every 16 of them; None: the
    operator adds no products."""
    return None


# ---- elementwise after all

@singledispatch
def expands_first(op: Op) -> bool:
    """Whether the host runs the expansion (see `Op.expand`) where there is a kernel, too: it has the kernel's bits, mostly from elementwise
    operators, which fuse with their neighbours."""
    return False


# ---- operands laid out beforehand

@dataclass(frozen=True)
class Packed:
    """Input `index` laid out once while it does not change.

    `calls` read it as In(0) and write Out(0) of `type`. `op` is the operator that takes the laid-out array in its place and, if it
    `keeps` it, the input itself as one more. Inputs whose `type` and `calls` are equal share one copy.
    """

    index: int
    type: TensorType
    calls: tuple[Call, ...]
    op: Op
    keeps: bool = False


@singledispatch
def packed(op: Op, inputs: Types, outputs: Outputs, cpu: Cpu) -> Packed | None:
    """How an input is laid out once for many runs, should it be a weight or a constant; None: the kernel reads it as it is.

    Results are those of `kernel`, up to the order of sums where it reads the plain input in another way.
    """
    return None


# ---- records

@dataclass(frozen=True)
class Record:
    """How two operators share what the first one finds out; see `recorded`.

    maker: has the outputs of the operator it replaces, and the record as one more.
    reader: takes the inputs `keeps` of the operator it replaces, then the record.
    """

    maker: Op
    reader: Op
    keeps: tuple[int, ...]


@singledispatch
def recorded(op: Op, index: int, maker: Op, inputs: Types) -> Record | None:
    """How to do without input `index`, which this operator reads to find out again what `maker`, whose input 0 is the same value, knew.

    Maker writes it down, and this operator reads that record instead. `inputs` are this operator's types. None: there is no such form.
    """
    return None


# ---- more work on finished blocks

@dataclass(frozen=True)
class Finish:
    """What a kernel does to its finished blocks while they are in cache.

    epilogue: elementwise work, whose operands are inputs after the operator's own. pooling: of whole planes [h, w], whose outputs take the
    place of the operator's own; an epilogue then is `Pooling.then`.
    """

    epilogue: Epilogue | None = None
    pooling: Pooling | None = None


NOTHING = Finish()
"""The operator alone."""


class Blockwise(HostOp):
    """An operator whose output 0 is made in blocks on which more can be done while they are in cache.

    epilogue: the axis of output 0 along which an epilogue's operands per channel lie (-1: the last one); None: it takes no epilogue.
    retypes: an epilogue of one expression may give another element type than the operator's own.
    """

    epilogue: ClassVar[int | None] = None
    retypes: ClassVar[bool] = False

    def pools(self, inputs: Types, outputs: Outputs, cpu: Cpu) -> bool:
        """Output 0, the only one, is made in whole planes that may be pooled in cache, and that pays."""
        return False

    def calls(self, inputs: Types, outputs: Outputs, cpu: Cpu, finish: Finish) -> list[Call]:
        """The kernel, which also does what `finish` says. `inputs` are the operator's own; so are `outputs`, unless it is pooled."""
        raise NotImplementedError

    def kernel(self, inputs: Types, outputs: Outputs, cpu: Cpu) -> list[Call]:
        return self.calls(inputs, outputs, cpu, NOTHING)


class AsItStands(Blockwise):
    """Base of operators as they stand, whose kernels can do more than `kernel` says."""

    op: Op

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.op.infer(*types)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return self.op.reference(*inputs)

    def __str__(self) -> str:
        return str(self.op)


@singledispatch
def blockwise(op: Op) -> Blockwise | None:
    """The operator as one on whose finished blocks more can be done; None: there is no such form."""
    return None


@blockwise.register(Blockwise)
def _(op: Blockwise) -> Blockwise | None:
    return op


@singledispatch
def pooling(op: Op, inputs: Types, outputs: Outputs) -> Pooling | None:
    """For operators that read their only input [n, c, h, w] plane by plane: how a kernel does the same to its finished planes; None:
    there is no such form."""
    return None


def elements(exprs: Sequence[Expr], arrays: Sequence[np.ndarray | None], shape: tuple[int, ...]) -> list[np.ndarray]:
    """The values of scalar expressions over arrays that broadcast to `shape`, for references."""
    given = [np.asarray(a) for a in arrays]
    return [np.array(np.broadcast_to(evaluate(e, given), shape)) for e in exprs]
