"""The sum of one tensor's squares, in two steps: a norm for each of many weights then is two rows for them all."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..graph import Index, Node, TensorType, Value
from ..graph.op import Types
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.squares import BLOCK, block_call, count, total_call
from ..ops.cast import Cast
from ..ops.shape import present
from ..ops.squares import SquareSum, SquareSums
from .form import HostOp
from .rewrite import Replacement, node_of, rule


class BlockSquares(HostOp):
    """x -> the sums of the squares of its blocks, float64 [blocks]. Made by `in_two_steps` only."""

    name: ClassVar[str] = "BlockSquares"
    halves: ClassVar[bool] = True

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (TensorType("float64", (count(present(types[0]).size),)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0]).astype(np.float64).reshape(-1)
        return (np.array([np.square(x[i:i + BLOCK]).sum() for i in range(0, x.size, BLOCK)]),)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        return [block_call(x.code, In(0, (x.size,)), x.size, Out(0, y.shape))]

    def __str__(self) -> str:
        return self.name


class Total(HostOp):
    """The sum of a float64 vector, in its order, of a given shape of one element. Made by `in_two_steps` only."""

    name: ClassVar[str] = "Total"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (TensorType("float64", self.shape),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (np.asarray(present(inputs[0]).sum()).reshape(self.shape),)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        n = present(inputs[0]).size
        return [total_call(In(0, (n,)), (0, n), Out(0, (1,)))]

    def __str__(self) -> str:
        return self.name


@rule
def in_two_steps(index: Index, node: Node) -> Replacement | None:
    """SquareSum or SquareSums of one tensor; those of several have one row for the blocks of all as they are. 16-bit tensors that are widened only
    to be squared are read as they are: their squares are exact either way."""
    if not isinstance(node.op, SquareSum | SquareSums):
        return None
    operands = _before_casts(index, node)
    if len(operands) == 1 and operands[0].type.size:
        blocks = node_of(BlockSquares(), operands, node.origin)
        total = node_of(Total(node.outputs[0].shape), blocks.outputs, node.origin, node.outputs)
        return Replacement(frozenset((node,)), ((node, (blocks, total)),))
    if operands == node.operands:
        return None
    return Replacement(frozenset((node,)), ((node, (node_of(node.op, operands, node.origin, node.outputs),)),))


def _before_casts(index: Index, node: Node) -> list[Value]:
    """The operands, or what they were before they were widened, where that is of one type."""
    found = []
    for v in node.operands:
        maker = index.maker(v)
        widened = maker is not None and isinstance(maker.op, Cast) and maker.operands[0].type.is_half and v.dtype == "float32"
        found.append(maker.operands[0] if maker is not None and widened else v)
    return found if len({v.dtype for v in found}) == 1 else node.operands
