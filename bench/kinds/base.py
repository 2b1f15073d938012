"""What a kind of work says about one shape: operands, our graph, the peer's call, the truth in float64, operations and bytes."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from onnx import GraphProto, helper

from tileflow.graph import Builder, Graph, State, TensorType, Value

from ..peer_onnx import OnnxRuntime

MICRO_BATCHES = 10
"""Of a measured round where weights are laid out once per update."""


class Unsupported(Exception):
    """One of the sides cannot do this yet; the message says what is missing."""


class Runner(Protocol):
    """A side's work on one shape, ready to be timed."""

    def run(self, times: int) -> None:
        """Do everything `times` times."""

    def error(self) -> float | None:
        """Deviation of the result from float64; None: there is nothing to compare with."""


class Problem:
    """One shape of an operator. Subclasses say what it is; this class makes it run on both sides."""

    bound_by: ClassVar[str] = "memory"
    """What limits it at best: "flops" or "memory"."""
    questions: ClassVar[tuple[str, ...]] = ()
    """Methods of the runners whose answers belong into the result."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        self.shape = dict(shape)
        self.dtype: str = shape.get("dtype", "float32")
        self.weights: str = shape.get("weights", "")
        self.micro_batches = MICRO_BATCHES if self.weights == "update" else 1

    # ---- what a subclass says

    name: str
    case = ""
    """The word of the command line that measures it, where shapes of one row belong to several."""
    rows = 0
    """Samples of a call, where that says something."""
    parameters: tuple[str, ...] = ()
    """Which of the operands are weights where the shape says how weights are laid out."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The operands of one micro-batch by name."""
        raise NotImplementedError

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        """Our graph."""
        raise NotImplementedError

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        """PyTorch's call on tensors; it returns the tensors that `build` returns values for."""
        raise NotImplementedError

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """The largest error of the outputs against float64, over the scale of the result."""
        raise NotImplementedError

    def flops(self) -> float:
        """Floating-point operations of one micro-batch (a multiply-add is two)."""
        return 0.0

    def nbytes(self) -> float:
        """Bytes of operands and results of one micro-batch."""
        return 0.0

    # ---- both sides

    def _operands(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Inputs (rows of all micro-batches) and weights."""
        arrays = self.arrays()
        fixed = self.parameters if self.weights else ()
        weights = {k: a for k, a in arrays.items() if k in fixed}
        inputs = {k: np.concatenate([a] * self.micro_batches) for k, a in arrays.items() if k not in fixed}
        return inputs, weights

    def ours(self, threads: int) -> Runner:
        """Our side. Raises Unsupported."""
        from tileflow.memory.types import CODES
        from tileflow.system.errors import TileflowError
        if self.dtype not in CODES:
            raise Unsupported(f"not supported yet: {self.dtype}")
        try:
            return _Ours(self, threads)
        except TileflowError as error:
            raise Unsupported(f"not supported yet: {error}") from None

    def torch(self, threads: int, variant: str = "") -> Runner:
        """PyTorch's side."""
        import torch
        torch.set_num_threads(threads)
        return _Torch(self, torch)


class _Ours:
    def __init__(self, problem: Problem, threads: int) -> None:
        from ..native import Native
        self._problem = problem
        inputs, weights = problem._operands()
        graph = Graph("bench")
        b = Builder(graph)
        values: dict[str, Value] = {}
        for name, array in problem.arrays().items():
            if name in weights:
                values[name] = Value(b.name(name), _type(array))
                graph.states.append(State(name, "parameter", values[name], group="parameter"))
            else:
                values[name] = b.input(name, _type(array))
        graph.outputs.extend(problem.build(b, values))
        self._native = Native(graph, inputs, weights, micro_batches=problem.micro_batches,
                              prologue=problem.weights in ("each", "update"), threads=threads)
        self.run = self._native.run

    def error(self) -> float:
        return self._problem.deviation(self._problem.arrays(), [o[0] for o in self._native.outputs])


class _Torch:
    def __init__(self, problem: Problem, torch: Any) -> None:
        self._problem, self._torch = problem, torch
        inputs, weights = problem._operands()
        fixed = {k: tensor(torch, a) for k, a in weights.items()}
        parts = [{k: tensor(torch, p) for k, p in zip(inputs, split, strict=True)}
                 for split in zip(*(np.split(a, problem.micro_batches) for a in inputs.values()), strict=True)]
        self._calls = [problem.peer(torch, {**part, **fixed}) for part in parts]

    def run(self, times: int) -> None:
        for _ in range(times):
            for call in self._calls:
                call()

    def error(self) -> float:
        found = self._calls[0]()
        outputs = [plain(self._torch, t) for t in (found if isinstance(found, list | tuple) else [found])]
        return self._problem.deviation(self._problem.arrays(), outputs)


class NodeProblem(Problem):
    """A problem that is one ONNX node with one operand that is no weight, x: ONNX Runtime's side of it is a model of that node."""

    def graph(self) -> GraphProto:
        """The ONNX graph of the one node, at opset 17."""
        raise NotImplementedError

    def onnxruntime(self, threads: int, variant: str = "") -> Runner:
        """ONNX Runtime's side."""
        return _OnnxNode(self, threads)


class _OnnxNode(OnnxRuntime):
    def __init__(self, problem: NodeProblem, threads: int) -> None:
        self._problem = problem
        model = helper.make_model(problem.graph(), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        super().__init__(model.SerializeToString(), {"x": problem.arrays()["x"]}, threads)

    def error(self) -> float:
        self.run(1)
        return self._problem.deviation(self._problem.arrays(), self.outputs)


def _type(array: np.ndarray) -> TensorType:
    return TensorType(array.dtype.name, array.shape)


def tensor(torch: Any, array: np.ndarray) -> Any:
    """A tensor over the array's memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def plain(torch: Any, t: Any) -> np.ndarray:
    """A tensor as an array (bfloat16 as float32)."""
    t = t.detach()
    return np.asarray((t.float() if t.dtype == torch.bfloat16 else t).numpy())


def numbers(seed: str, shape: tuple[int, ...], dtype: str = "float32", scale: float = 1.0) -> np.ndarray:
    """Normal numbers that only depend on the words of `seed`."""
    rng = np.random.default_rng(list(seed.encode()))
    array = rng.standard_normal(shape, np.float32)
    if scale != 1.0:
        array *= np.float32(scale)
    if dtype == "bfloat16":
        import ml_dtypes
        return array.astype(ml_dtypes.bfloat16)
    return array.astype(dtype, copy=False)


def some(count: int, most: int) -> np.ndarray:
    """At most `most` indices of `count`, spread over all of them, the ends included."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def pulled(b: Builder, start: int, y: Value, g: Value, operands: Sequence[Value]) -> list[Value]:
    """The gradients of operands through the nodes from number `start` on, which make y, whose gradient is g."""
    found: dict[Value, Value] = {y: g}
    for node in reversed(b.graph.nodes[start:]):
        grads = [found.get(o) for o in node.outputs]
        for value, gradient in zip(node.inputs, node.op.vjp(b, grads, node.inputs, node.outputs), strict=True):
            if value is not None and gradient is not None:
                found[value] = gradient
    return [found[v] for v in operands]


def beside_largest(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest deviation over the largest exact magnitude."""
    largest = float(np.abs(exact).max(initial=0.0))
    return float(np.abs(got.astype(np.float64) - exact).max(initial=0.0)) / (largest or 1.0)
