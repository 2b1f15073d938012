"""The runtimes for ONNX files that we are compared with: as their users run them, with as many threads as we have, arrays in and arrays out."""
from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

PROFILED = 20
"""Runs that a profile takes the medians of."""


def session(model: str | bytes, threads: int, *, optimised: bool = True, profile: str = "") -> Any:
    """ONNX Runtime's session of a file or its bytes; `profile` is where its own profile goes."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class OnnxRuntime:
    """Runs a model again and again on the same arrays."""

    def __init__(self, model: str | bytes, feeds: Mapping[str, np.ndarray], threads: int, *, optimised: bool = True) -> None:
        self._model, self._feeds, self._threads = model, dict(feeds), threads
        self._session = session(model, threads, optimised=optimised)

    def run(self, times: int) -> None:
        for _ in range(times):
            self.outputs: list[np.ndarray] = self._session.run(None, self._feeds)

    def profile(self) -> list[tuple[str, str, float]]:
        """Operator, node, seconds of each node that ran, in order, from ONNX Runtime's own profile."""
        with tempfile.TemporaryDirectory() as folder:
            profiled = session(self._model, self._threads, profile=str(Path(folder) / "profile"))
            for _ in range(PROFILED):
                profiled.run(None, self._feeds)
            events = json.loads(Path(profiled.end_profiling()).read_text())
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                times[event["args"]["op_name"], event["name"].removesuffix("_kernel_time")].append(1e-6 * event["dur"])
        return [(operator, node, statistics.median(found)) for (operator, node), found in times.items()]


class OpenVino:
    """The same in OpenVINO: one stream, in float32, compiled for the arrays' shapes."""

    def __init__(self, path: Path, feeds: Mapping[str, np.ndarray], threads: int) -> None:
        import openvino
        core = openvino.Core()
        model = core.read_model(str(path))
        model.reshape({port: list(feeds[name].shape) for port in model.inputs for name in port.names & feeds.keys()})
        wanted = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
                  "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}              # it would quantize activations where weights are in 8 bits
        compiled = core.compile_model(model, "CPU", wanted)
        if compiled.get_property("INFERENCE_NUM_THREADS") != threads:
            raise RuntimeError(f"OpenVINO uses {compiled.get_property('INFERENCE_NUM_THREADS')} threads, not {threads}")
        self._request = compiled.create_infer_request()
        self._feeds = {i: feeds[name] for i, port in enumerate(compiled.inputs) for name in port.names & feeds.keys()}

    def run(self, times: int) -> None:
        for _ in range(times):
            self.outputs: list[np.ndarray] = list(self._request.infer(self._feeds, share_inputs=True).to_tuple())
