"""Images out of files, as rows: decoded by whoever reads them, brought to one size, and never trusted; and those that
rows of somebody's own hold as Pillow's. Needs Pillow (extra `images`)."""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..system.errors import DataError
from ..system.reading import open_regular
from ..system.text import one_line
from .unpacked import Content

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
"""What Pillow may take a file for. Others, PostScript among them, run programs."""
TURNED = ("JPEG", "MPO", "TIFF", "WEBP")
"""Formats of cameras, whose files may say how the image is to be turned."""
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes by the number of channels."""
MOST_PIXELS = 1 << 26
"""Of a file, before it is brought to its size: what says to hold more is not decoded."""


@dataclass(frozen=True)
class ImageForm:
    """What images become: bytes [channels, height, width], or [height, width, channels] where the channels are
    `last`."""

    channels: int
    height: int
    width: int
    last: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.height, self.width, self.channels) if self.last else (self.channels, self.height, self.width)


class Images:
    """Rows by number: (image uint8, the row's number), the file decoded when it is asked for."""

    def __init__(self, paths: Sequence[str | Content], form: ImageForm) -> None:
        self.paths, self.form = paths, form

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return decoded(self.paths[i], self.form), i


def decoded(path: str | Content, form: ImageForm) -> np.ndarray:
    """An image as uint8 of the shape of `form`: the largest part of it in the middle that has the form's ratio of width
    to height, scaled by Pillow's bilinear filter; one of that size as it is. Grey images, palettes and transparency
    become what the number of channels says.

    Raises:
        DataError: Pillow is missing, the file is gone, none of `FORMATS`, cut short, damaged or too large, or its
        pixels are no bytes.
    """
    with opened(path) as image:
        return formed(turned(image), form)


def turned(image: Any) -> Any:
    """One of Pillow's images as the camera was held."""
    return _pillow().ImageOps.exif_transpose(image) if image.format in TURNED else image


def formed(image: Any, form: ImageForm) -> np.ndarray:
    """One of Pillow's images, turned, as `decoded` gives it."""
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    pixels = np.asarray(_sized(image.convert(MODES[form.channels]), form.width, form.height))
    pixels = pixels.reshape(form.height, form.width, form.channels)
    return pixels if form.last else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def form_of_file(path: str | Content) -> ImageForm:
    """An image's own size, with one channel where it is grey and three otherwise; raises as `decoded` does."""
    with opened(path) as image:
        return own_form(image)


def own_form(image: Any) -> ImageForm:
    """The same of one of Pillow's images."""
    return ImageForm(1 if image.mode in ("1", "L", "LA") else 3, image.height, image.width)


@contextmanager
def opened(path: str | Content) -> Iterator[Any]:
    """An image file whose header was read and which is no larger than may be; whatever Pillow raises within is a
    DataError that names the file."""
    pillow = _pillow()
    try:
        with open_regular(path) if isinstance(path, str) else path.opened() as file:
            image = pillow.Image.open(file, formats=FORMATS)
            width, height = image.size
            if not 0 < width * height <= MOST_PIXELS:
                raise ValueError(f"it claims {width:,} x {height:,} pixels, and {MOST_PIXELS:,} are taken at most; "
                                 "make it smaller, or leave it out")
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"its pixels are no bytes (Pillow's mode {image.mode}); write it with 8 bits for each "
                                 "channel")
            yield image
    except Exception as error:                               # decoders raise anything where a file is damaged
        why = f"it is none of {', '.join(FORMATS)}" if isinstance(error, pillow.UnidentifiedImageError) else \
            getattr(error, "strerror", None) or str(error) or type(error).__name__
        name = path if isinstance(path, str) else path.name
        raise DataError(f"Image {one_line(name)} cannot be read: {one_line(why).rstrip('.')}.") from None


def _pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise DataError("Images need Pillow: pip install 'tileflow-engine[images]'.") from None
    return PIL


def _sized(image: Any, width: int, height: int) -> Any:
    """The middle of an image, of this size."""
    have, tall = image.size
    if (have, tall) == (width, height):
        return image
    ratio = min(have / width, tall / height)
    left, top = (have - ratio * width) / 2, (tall - ratio * height) / 2
    return image.resize((width, height), _pillow().Image.Resampling.BILINEAR,
                        box=(left, top, left + ratio * width, top + ratio * height))


def is_image(name: str) -> bool:
    """A file is an image by its name."""
    return os.path.splitext(name)[1].lower() in ENDINGS
