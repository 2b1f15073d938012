"""Forms: the ways in which the host may compute an operator besides its plain kernel. The host's lowering asks, and passes choose.

Each question is a function that a family's file answers for its operators' classes (`@packed.register(Gemm)`); what no file answers for has
no such form. Nothing here changes what an operator means: a form gives the operator's outputs, up to the order of sums where it is said.

What passes chose for an operator is one record, a `HostForm`, which `Hosted` (`host/hosted.py`) holds beside it.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np

from ..graph.builder import Builder
from ..graph.graph import Value
from ..graph.op import Op, Types
from ..graph.work import Work
from ..kernels.elementwise.epilogue import Epilogue
from ..kernels.elementwise.expr import Expr, evaluate
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..kernels.pool.planes import Pooling
from ..memory.types import TensorType

Outputs = Sequence[TensorType]


class HostOp(Op):
    """Base of operators that the host makes after the fork of the street. They are not registered, and no graph of a Program holds one."""

    def work(self, inputs: Types, outputs: Outputs) -> Work:
        raise AssertionError(f"{self.name} has no work of its own: cost is counted before the host lowering")


# ---- channels last

@dataclass(frozen=True)
class ChannelsLast:
    """An operator's form for channels-last tensors [N, *spatial, C]. The lowering chooses it or not, for whole regions of a graph.

    op: the operator in that form. inputs, outputs: which operands and results are channels-last; the others (weights, statistics)
    stay as they are. gain: estimated nanoseconds saved on one core against the form it replaces; 0 for one that does not care.
    """

    op: Op
    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    gain: float = 0.0


@singledispatch
def channels_last(op: Op, inputs: Types, outputs: Outputs, cpu: Cpu) -> ChannelsLast | None:
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


# ---- the record

@dataclass(frozen=True)
class Packed:
    """Input `index`, of type `plain`, laid out once while it does not change.

    `calls` read it as In(0) and write Out(0) of `type`. The kernel takes the laid-out array in its place and, if it
    `keeps` it, the input itself as one more. Inputs whose `type` and `calls` are equal share one copy. `turned` makes
    the calls that lay out the same of the input with its two axes exchanged, where there are such.
    """

    index: int
    plain: TensorType
    type: TensorType
    calls: tuple[Call, ...]
    keeps: bool = False
    turned: Callable[[], tuple[Call, ...] | None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Pooled:
    """What reads the operator's only result, planes [h, w], in place of memory: `reader`, which a kernel does by
    `how`."""

    reader: Op
    how: Pooling


@dataclass(frozen=True)
class HostForm:
    """What the host adds to an operator, from the inside to the outside; by default nothing. Passes replace fields.

    turned_inputs, turned_outputs: which operands and results are channels-last [N, *spatial, C]; beyond the end none
    is. narrow_inputs, narrow_outputs: by index, the 16-bit types in which memory holds what is float32 to the operator.
    packed: an operand that is laid out already. epilogue: elementwise work on finished blocks; its operands are inputs
    after the operator's own (and what is packed and kept). pooled: pooling of finished planes; an epilogue of what it
    makes is `Pooling.then`.
    """

    turned_inputs: tuple[bool, ...] = ()
    turned_outputs: tuple[bool, ...] = ()
    narrow_inputs: Mapping[int, str] = field(default_factory=dict)
    narrow_outputs: Mapping[int, str] = field(default_factory=dict)
    packed: Packed | None = None
    epilogue: Epilogue | None = None
    pooled: Pooled | None = None

    @property
    def turned(self) -> bool:
        """Some operand or result is channels-last."""
        return any(self.turned_inputs) or any(self.turned_outputs)

    @property
    def narrow(self) -> bool:
        """Some operand or result lies in 16-bit memory."""
        return bool(self.narrow_inputs or self.narrow_outputs)

    @property
    def pooling(self) -> Pooling | None:
        """What a kernel does to its finished planes."""
        return None if self.pooled is None else self.pooled.how

    def laid(self, inputs: Types) -> Types:
        """The operator's own types of its operands, but that of the packed one as it lies."""
        packed = self.packed
        return inputs if packed is None else [packed.type if i == packed.index else t for i, t in enumerate(inputs)]


ALONE = HostForm()
"""Nothing is added."""


@singledispatch
def calls(op: Op, form: HostForm, inputs: Types, outputs: Outputs, cpu: Cpu) -> list[Call]:
    """The kernel of an operator in a form that says more than which memory is 16-bit (of that no kernel knows).

    `inputs` and `outputs` are the operator's own types: logical order, as wide as it takes them, plain weights, no
    epilogue.
    """
    raise NotImplementedError(f"{op} has no form but its own")


@singledispatch
def packed(op: Op, form: HostForm, inputs: Types, outputs: Outputs, cpu: Cpu) -> Packed | None:
    """How an input is laid out once for many runs, should it be a weight or a constant; None: the kernel reads it as it
    is.

    The types are the operator's own. Results are those of `kernel`, up to the order of sums where that reads the plain
    input in another way.
    """
    return None


@dataclass(frozen=True)
class Blockwise:
    """Output 0 is made in blocks on which more can be done while they are in cache.

    channels: the axis along which an epilogue's operands per channel lie (-1: the last one).
    retypes: an epilogue of one expression may give another element type than the operator's own.
    """

    channels: int
    retypes: bool = False


@singledispatch
def blockwise(op: Op, form: HostForm) -> Blockwise | None:
    """How the operator's output 0 is made in this form; None: it takes no epilogue."""
    return None


@singledispatch
def pools(op: Op, form: HostForm, inputs: Types, outputs: Outputs, cpu: Cpu) -> bool:
    """Output 0, the only one, is made in whole planes that may be pooled in cache, and that pays. The types are its
    own."""
    return False


@singledispatch
def pooling(op: Op, inputs: Types, outputs: Outputs) -> Pooling | None:
    """For operators that read their only input [n, c, h, w] plane by plane: how a kernel does the same to its finished
    planes; None: there is no such form."""
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
    """How to do without input `index`, which this operator reads to find out again what `maker`, whose input 0 is the
    same value, knew.

    Maker writes it down, and this operator reads that record instead. `inputs` are this operator's types. None: there
    is no such form.
    """
    return None


def elements(exprs: Sequence[Expr], arrays: Sequence[np.ndarray | None], shape: tuple[int, ...]) -> list[np.ndarray]:
    """The values of scalar expressions over arrays that broadcast to `shape`, for references."""
    given = [np.asarray(a) for a in arrays]
    return [np.array(np.broadcast_to(evaluate(e, given), shape)) for e in exprs]
