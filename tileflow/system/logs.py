"""Python's logging under `tileflow`: silent until somebody gives it a handler; nothing else is ever configured."""
from __future__ import annotations

import logging

ROOT = "tileflow"
"""The logger above all others here: `logging.getLogger("tileflow").setLevel("DEBUG")`."""
logging.getLogger(ROOT).addHandler(logging.NullHandler())


def logger(name: str = "") -> logging.Logger:
    """The logger of a part, such as "data" for `tileflow.data`."""
    return logging.getLogger(f"{ROOT}.{name}" if name else ROOT)
