"""Inference of an ONNX file against other runtimes.

Inputs come from an archive of its name (`model.npz` with arrays in0, in1, …, or named as the inputs), beside it or in the folder `arrays`;
else they are random, in the sizes that `inputs` says by name or the file does; dimensions without a size are 1.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..peer_onnx import OnnxRuntime, OpenVino
from .base import Problem, Runner, Unsupported

EQUAL, EQUAL_QUANTIZED = 1e-3, 5e-2
"""How far outputs may be from the reference's, beside their largest: two right runtimes differ as much where activations are quantized."""
SMALL = 0.1
"""Outputs whose largest is below this are compared as if it were this."""


def inputs_of(path: Path, sizes: Mapping[str, Sequence[int]], folder: Path | None = None) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a file; `sizes` of some inputs go before what the file says."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {i.name for i in graph.initializer}
    ports = [p for p in graph.input if p.name not in constants]
    stored_at = (folder or path.parent) / f"{path.stem}.npz"
    if stored_at.exists():
        with np.load(stored_at) as stored:
            return {p.name: stored[p.name if p.name in stored else f"in{i}"] for i, p in enumerate(ports)}
    rng, arrays = np.random.default_rng(0), {}
    for p in ports:
        kind = p.type.tensor_type
        shape = sizes.get(p.name) or [max(1, d.dim_value) for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        arrays[p.name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
    return arrays


def away(outputs: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
    """The largest deviation of outputs beside their largest value; infinity where shapes, types, whole numbers or what is not finite differ."""
    worst = 0.0
    for got, right in zip(outputs, exact, strict=True):
        if got.shape != right.shape or got.dtype != right.dtype:
            return math.inf
        if right.dtype.kind != "f":
            worst = worst if np.array_equal(got, right) else math.inf
        elif right.size:
            finite = np.isfinite(right)
            if not np.isfinite(got[finite]).all() or not np.array_equal(got[~finite], right[~finite], equal_nan=True):
                return math.inf
            off = np.abs(got[finite].astype(np.float64) - right[finite])
            worst = max(worst, float(off.max(initial=0.0) / max(SMALL, np.abs(right[finite]).max(initial=0.0))))
    return worst


class Model(Problem):
    """One file. Its error is against ONNX Runtime without graph optimisations: most files do not run in float64."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.path = Path(shape["file"])
        self.name = self.path.stem

    def feeds(self) -> dict[str, np.ndarray]:
        return inputs_of(self.path, self.shape.get("inputs", {}), Path(self.shape["arrays"]) if "arrays" in self.shape else None)

    @functools.cached_property
    def equal(self) -> float:
        """The largest error that right outputs have: where ONNX Runtime's own optimisations move them more, four times what they do."""
        operators = {node.op_type for node in onnx.load(self.path, load_external_data=False).graph.node}
        usual = EQUAL_QUANTIZED if operators & {"DynamicQuantizeLinear", "QuantizeLinear"} else EQUAL
        optimised = self._reference(True)
        return usual if optimised is None else max(usual, 4 * (self.error(optimised) or 0.0))

    def ours(self, threads: int) -> Runner:
        from tileflow.system.errors import TileflowError
        try:
            return _Ours(self, threads)
        except TileflowError as error:
            raise Unsupported(f"not supported yet: {' '.join(str(error).split())[:160]}") from None

    def onnxruntime(self, threads: int, variant: str = "") -> Runner:
        """ONNX Runtime's side. Raises Unsupported."""
        return self._peer(lambda: OnnxRuntime(str(self.path), self.feeds(), threads))

    def openvino(self, threads: int, variant: str = "") -> Runner:
        """OpenVINO's side. Raises Unsupported."""
        return self._peer(lambda: OpenVino(self.path, self.feeds(), threads))

    def _peer(self, make: Callable[[], OnnxRuntime | OpenVino]) -> Runner:
        try:
            return _Peer(self, make())
        except Exception as error:                         # each runtime has its own, of no common kind
            raise Unsupported(f"it cannot: {' '.join(str(error).split())[:160]}") from None

    @functools.cached_property
    def exact(self) -> Sequence[np.ndarray] | None:
        """ONNX Runtime's outputs without optimisations; None where it is missing or cannot."""
        return self._reference(False)

    def _reference(self, optimised: bool) -> Sequence[np.ndarray] | None:
        try:
            reference = OnnxRuntime(str(self.path), self.feeds(), 1, optimised=optimised)
        except Exception:                                  # as above
            return None
        reference.run(1)
        return reference.outputs

    def error(self, outputs: Sequence[np.ndarray]) -> float | None:
        """How far outputs are from the exact ones; None where there are none."""
        return None if self.exact is None else away(outputs, self.exact)


class _Ours:
    def __init__(self, problem: Model, threads: int) -> None:
        from tileflow.onnx_backend import Backend
        self._problem, self._feeds = problem, list(problem.feeds().values())
        self._backend = Backend.prepare(str(problem.path), "CPU", threads=threads)
        self.run(1)

    def run(self, times: int) -> None:
        for _ in range(times):
            self._outputs = self._backend.run(self._feeds)

    def error(self) -> float | None:
        return self._problem.error([np.asarray(o) for o in self._outputs])

    def profile(self) -> list[tuple[str, str, float]]:
        """Operator, leaf and origin, seconds of each row of the call."""
        from ..native import profile
        return profile(next(reversed(self._backend._engines.values())))


class _Peer:
    def __init__(self, problem: Model, peer: OnnxRuntime | OpenVino) -> None:
        self._problem, self._peer, self.run = problem, peer, peer.run

    def error(self) -> float | None:
        return self._problem.error(self._peer.outputs)

    def profile(self) -> list[tuple[str, str, float]]:
        """ONNX Runtime's own."""
        assert isinstance(self._peer, OnnxRuntime)
        return self._peer.profile()
