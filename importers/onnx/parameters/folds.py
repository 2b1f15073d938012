"""Weights of products that PyTorch's older exporter computed, told from those that it only transposed by the numbers
in their names.

Values are numbered as they are made, and last what its constant folding makes, step by step in the order of the
nodes. Behind `onnx::MatMul_21` `onnx::MatMul_22` is a transposed weight, and `onnx::MatMul_25` took four steps, of
which the file has one: a norm, a quotient, a product, the transposition (weight normalisation below opset 18). Steps
in between may have made a shape, too, so numbers tell where no node since the last one wants shapes. How many there
were before the first step is the number of an output that has no other name, or what a file without shapes shows.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..model import OnnxModel

NUMBERED = re.compile(r"(?:onnx::\w+_)?(\d{1,15})")
PRODUCT = "MatMul"
CERTAIN = 4
"""Steps of the first weight, by a count of the file's values, from which on they are no accident: one parameter more,
its product, and a transposition."""
PLAIN = {
    PRODUCT, "Gemm", "Conv", "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Pow", "Sqrt", "Exp", "Log", "Erf", "Sin",
    "Cos", "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "HardSwish", "Softplus", "Softsign",
    "Tanh", "Gelu", "Mish", "Clip", "Softmax", "LogSoftmax", "ReduceMean", "ReduceSum", "ReduceMax",
    "LayerNormalization", "BatchNormalization", "Dropout", "Transpose", "Identity", "Constant", "MaxPool",
    "AveragePool", "GlobalAveragePool", "Min", "Max"}
"""Operators for which the exporter folds no shape."""


@dataclass(frozen=True)
class Folded:
    """What the folding left in the file: the tensor, how many steps after the one before (None: not known), and whether
    all are its own."""

    name: str
    taken: int | None
    own: bool


def computed_products(model: OnnxModel) -> frozenset[str]:
    """Weights of products that took several steps; where there is one, also those that may have for all that numbers
    tell."""
    steps = list(_steps(model))
    sure = {step: step.taken for step in steps if step.own and step.taken is not None and step.taken > 1}
    if not sure:
        return frozenset()
    least = min(sure.values())
    return frozenset(step.name for step in steps
                     if step in sure or (not step.own and (step.taken is None or step.taken >= least)))


def _steps(model: OnnxModel) -> Iterator[Folded]:
    graph = model.proto.graph
    same = {node.output[0]: node.input[0] for node in graph.node
            if node.op_type == "Identity" and node.input and node.output}
    stored = model.initializers.keys() | {name for name, of in same.items() if of in model.initializers}
    numbers = [[(name, int(found[1])) for name in node.input if name in stored and (found := _numbered(name))]
               for node in graph.node]
    last, seen, again, plain = _before(model, numbers), set[str](), 0, True
    for node, read in zip(graph.node, numbers, strict=True):
        for name, number in sorted(read, key=lambda one: one[1]):
            if name in seen:                                # equal ones are stored once, and perhaps read as one
                again += 1
                continue
            seen.add(name)
            taken = None if last is None else number - last - again
            if node.op_type == PRODUCT:
                yield Folded(same.get(name, name), taken, plain and taken is not None)
            last, again, plain = max(number, last or 0), 0, True
        plain &= node.op_type in PLAIN


def _numbered(name: str) -> re.Match[str] | None:
    return NUMBERED.fullmatch(str(name))                    # protobuf gives bytes where the text is damaged


def _before(model: OnnxModel, numbers: Sequence[Sequence[tuple[str, int]]]) -> int | None:
    """The last number before the folding's, if the file shows it: an output's; else one less than there are values,
    where all folded ones are weights of products and the first stands far enough from the count."""
    graph = model.proto.graph
    outputs = [int(found[1]) for v in graph.output if (found := _numbered(v.name))]
    if outputs:
        return max(outputs)
    read = {name: number for found in numbers for name, number in found}
    products = {name for node, found in zip(graph.node, numbers, strict=True) if node.op_type == PRODUCT
                for name, _ in found}
    if not read or len(products) < len(read) or any(node.op_type not in PLAIN for node in graph.node):
        return None
    counters = sum(node.op_type == "BatchNormalization" for node in graph.node)     # of the batches each has seen
    named = len(model.initializers.keys() - products)
    made = sum(len(node.output) for node in graph.node if node.op_type != "Identity")
    count = len(graph.input) + named + 2 * len(products) + made + counters
    first = min(read.values())
    return count - 1 if first - count + 1 >= CERTAIN else first - 1
