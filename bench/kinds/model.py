"""Inference of the ONNX files of a folder against ONNX Runtime.

Inputs come from an archive beside the file (`model.npz` with arrays in0, in1, …, or named as the inputs), else they are random and
dimensions without a size are 1.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..cases import Row
from .base import Problem, Runner, Unsupported, beside_largest


def inputs_of(path: Path, sizes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a file; `sizes` of some inputs go before what the file says."""
    graph = onnx.load(path).graph
    constants = {i.name for i in graph.initializer}
    ports = [p for p in graph.input if p.name not in constants]
    beside = path.with_suffix(".npz")
    if beside.exists():
        with np.load(beside) as stored:
            return {p.name: stored[p.name if p.name in stored else f"in{i}"] for i, p in enumerate(ports)}
    rng, arrays = np.random.default_rng(0), {}
    for p in ports:
        kind = p.type.tensor_type
        shape = sizes.get(p.name) or [max(1, d.dim_value) for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        arrays[p.name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
    return arrays


class Model(Problem):
    """One file. Its error is against ONNX Runtime without graph optimisations: most files do not run in float64."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.path = Path(shape["file"])
        self.name = self.path.stem
        self.sizes: Mapping[str, Sequence[int]] = shape.get("inputs", {})

    def ours(self, threads: int) -> Runner:
        from tileflow.errors import TileflowError
        try:
            return _Ours(self, threads)
        except TileflowError as error:
            raise Unsupported(f"not supported yet: {' '.join(str(error).split())[:160]}") from None

    def onnxruntime(self, threads: int, variant: str = "") -> Runner:
        """ONNX Runtime's side."""
        return _OnnxRuntime(self, threads)

    def away(self, outputs: list[np.ndarray]) -> float | None:
        """The largest deviation of float outputs from ONNX Runtime's without optimisations; None without it."""
        try:
            exact = _OnnxRuntime(self, 1, optimised=False)
        except ImportError:
            return None
        exact.run(1)
        pairs = [(got, e) for got, e in zip(outputs, exact.outputs, strict=True) if e.dtype.kind == "f"]
        return max((beside_largest(got, e.astype(np.float64)) for got, e in pairs), default=0.0)


class _Ours:
    def __init__(self, problem: Model, threads: int) -> None:
        from tileflow.onnx_backend import Backend
        self._problem, self._feeds = problem, list(inputs_of(problem.path, problem.sizes).values())
        self._backend = Backend.prepare(onnx.load(problem.path), "CPU", threads=threads)
        self.run(1)

    def run(self, times: int) -> None:
        for _ in range(times):
            self._outputs = self._backend.run(self._feeds)

    def error(self) -> float | None:
        return self._problem.away([np.asarray(o) for o in self._outputs])


class _OnnxRuntime:
    def __init__(self, problem: Model, threads: int, optimised: bool = True) -> None:
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.force_spinning_stop", "1")       # between runs: it is our turn then
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._problem, self._feeds = problem, inputs_of(problem.path, problem.sizes)
        self._session = onnxruntime.InferenceSession(str(problem.path), options, providers=["CPUExecutionProvider"])

    def run(self, times: int) -> None:
        for _ in range(times):
            self.outputs = self._session.run(None, self._feeds)

    def error(self) -> float | None:
        return self._problem.away(self.outputs)


def row(folder: Path) -> Row:
    """A row without bounds: every file of a folder.

    Raises:
        SystemExit: there is none.
    """
    shapes = tuple({"file": str(path.resolve())} for path in sorted(folder.glob("*.onnx")))
    if not shapes:
        raise SystemExit(f"There is no .onnx file in {folder}; give a folder of models with --models.")
    return Row("models", ("models",), "inference of ONNX files", "onnxruntime", "model", shapes)
