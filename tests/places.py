"""Where things are: the repository, and the folders from which tests and their helpers import each other by name."""
from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
FOLDERS = [TESTS, *sorted(folder for folder in TESTS.iterdir() if any(folder.glob("*.py"))
                          and not (folder / "__init__.py").exists())]
"""The folders of tests, a room of the product each, and those of what they are checked by and what they are run on."""
PATH = os.pathsep.join(map(str, [ROOT, *FOLDERS]))
"""PYTHONPATH for processes that import the product and tests."""


def add_to_path() -> None:
    """Let this process import all of them."""
    sys.path += [folder for folder in PATH.split(os.pathsep) if folder not in sys.path]
