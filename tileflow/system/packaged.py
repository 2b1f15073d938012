"""Models that come with tileflow, and what a path or a name of a model stands for."""
from __future__ import annotations

import os
from pathlib import Path

from .errors import ModelError

PACKAGED_MODELS = ("digits_cnn.onnx",)


def model_path(given: str | os.PathLike[str]) -> Path:
    """The model's path; the name of a packaged model counts where there is no such file.

    Raises:
        ModelError: there is neither.
    """
    path = Path(given)
    if os.path.exists(path):                              # Path's own raises for names that no file can have
        return path
    if os.fspath(given) in PACKAGED_MODELS:
        return Path(__file__).parents[1] / "data" / path
    raise ModelError(f"There is no model file {path}; give an .onnx file, or one that comes with tileflow: {', '.join(PACKAGED_MODELS)}.")
