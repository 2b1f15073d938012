"""Our layers where a test makes one network with ours and with PyTorch's."""
from __future__ import annotations

from typing import Any

from tileflow import nn


class OurLayers:
    """Our layers, with PyTorch's `eval` (ours are in that mode whenever they are not trained)."""

    def __getattr__(self, name: str) -> Any:
        layer = getattr(nn, name)

        def make(*args: Any, **kwargs: Any) -> Any:
            made = layer(*args, **kwargs)
            made.eval = lambda: made
            return made
        return make
