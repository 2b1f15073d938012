"""The command `tileflow`, also `python -m tileflow`: the command line in a process of its own."""
from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path and __file__ != f"{sys.path[0]}/tileflow/__main__.py":
    del sys.path[0]                               # the current folder, where a random.py is somebody's own (all but a checkout of tileflow)

UNUSED = ("scipy", "coverage")
"""What Numba imports where it is installed, for a second at worst; no kernel needs it."""


def command() -> int:
    """Run the command line without what it does not need."""
    for name in UNUSED:
        sys.modules.setdefault(name, None)        # type: ignore[arg-type]        # None: importing it says that it is missing
    from .cli import main
    return main()


if __name__ == "__main__":
    raise SystemExit(command())
