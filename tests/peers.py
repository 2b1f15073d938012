"""The packages that tests compare with: none is needed to run tileflow, and a test skips, saying how to get it, where its peer is missing."""
from __future__ import annotations

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
    return pytest.importorskip(module, reason=f"compares with {package}, which is not installed: pip install {PACKAGES.get(package, package)}")
