"""What all tests need before the first of them imports Numba, and in how many processes they run."""
from __future__ import annotations

import os

from side_by_side import pytest_addoption, pytest_runtestloop

__all__ = ["pytest_addoption", "pytest_runtestloop"]

os.environ.setdefault("NUMBA_NUM_THREADS", str(max(2, os.cpu_count() or 1)))      # two threads are told from one on one core too
