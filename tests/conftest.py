"""What all tests need before the first of them imports Numba."""
from __future__ import annotations

import os

os.environ.setdefault("NUMBA_NUM_THREADS", str(max(2, os.cpu_count() or 1)))      # two threads are told from one on one core too
