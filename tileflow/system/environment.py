"""Settings of the surroundings with which nothing can run, told before they end in the middle of another package."""
from __future__ import annotations

import os

from .errors import OptionError

DISABLE_JIT = "NUMBA_DISABLE_JIT"


def obstacle() -> str | None:
    """Why nothing can be compiled in these surroundings, as a sentence; None where nothing is in the way."""
    try:
        disabled = int(os.environ.get(DISABLE_JIT) or 0) != 0
    except ValueError:                                    # Numba does not take it either
        return None
    if not disabled:
        return None
    return f"The environment sets {DISABLE_JIT}={os.environ[DISABLE_JIT]}, and tileflow's kernels exist as compiled code only: unset it."


def check_environment() -> None:
    """Raise OptionError where nothing could be compiled."""
    found = obstacle()
    if found is not None:
        raise OptionError(found)
