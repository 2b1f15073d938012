"""The packages that tests compare with: none is needed to run tileflow, and a test skips, saying how to get it, where its peer is missing."""
from __future__ import annotations

import os
from typing import Any

import pytest

PACKAGES = {"sklearn": "scikit-learn"}
"""What pip calls a module, where that differs."""


def torch_has_avx512() -> bool:
    """PyTorch's convolutions run oneDNN's AVX-512 kernels here, whose sums are shorter, and errors smaller, than those of its AVX2 ones."""
    return bool(needs("torch").backends.cpu.get_cpu_capability() == "AVX512")


def needs(module: str) -> Any:
    """The module; or a skip of the test (at a file's top: of the file) that says what would make it run."""
    package = module.partition(".")[0]
    reason = f"compares with {package}, which is not installed: pip install {PACKAGES.get(package, package)}"
    found = pytest.importorskip(module, reason=reason)
    if getattr(found, "__file__", None) is None:          # a folder of tests that is called so
        pytest.skip(reason, allow_module_level=True)
    return found


def onnx_runtime(model: bytes | os.PathLike[str]) -> Any:
    """A session of ONNX Runtime's over a model or a file, exact where it multiplies bytes: on CPUs without VNNI its sums of two products of a whole
    number from 0 to 255 and one with a sign end at 32,767, unless it is asked for precision."""
    runtime = needs("onnxruntime")
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
