"""Rows of somebody's own that hold Pillow's images, as data sets of Hugging Face's and of PyTorch's do: they become
arrays as image files do."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .images import ImageForm, formed, own_form, turned

BYTES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""Pillow's modes whose pixels are bytes; arrays of others are as Pillow gives them."""


class Pictures:
    """What is done to a row. channels, height, width: what its images become; None: as each is. last: channels are the
    last axis."""

    def __init__(self, channels: int | None, height: int | None, width: int | None, last: bool) -> None:
        self.channels, self.height, self.width, self.last = channels, height, width, last
        self.first: tuple[ImageForm, ImageForm] | None = None
        """What the first image was, and became."""

    def __call__(self, row: Any) -> Any:
        if isinstance(row, Mapping):
            return {name: self._made(part) for name, part in row.items()} if any(map(is_picture, row.values())) else row
        if isinstance(row, (tuple, list)):
            return tuple(map(self._made, row)) if any(map(is_picture, row)) else row
        return self._made(row)

    def _made(self, part: Any) -> Any:
        if not is_picture(part):
            return part
        image = turned(part)
        own = own_form(image)
        form = ImageForm(self.channels or own.channels, self.height or own.height, self.width or own.width, self.last)
        if self.first is None:
            self.first = own, form
        return formed(image, form)


def is_picture(part: Any) -> bool:
    """One of Pillow's images, of bytes; Pillow is not imported for this."""
    return not isinstance(part, np.ndarray) and getattr(part, "mode", None) in BYTES \
        and any(c.__module__ == "PIL.Image" and c.__name__ == "Image" for c in type(part).__mro__)
