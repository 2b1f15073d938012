"""ImageDecoder, by Pillow where it is there."""
from __future__ import annotations

import io

import numpy as np

from tileflow.memory import budget
from tileflow.system.errors import DataError, UnsupportedError

from .registry import Attributes, Datum, hosted

FORMATS = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


@hosted("ImageDecoder")
def image_decoder(attrs: Attributes, encoded: np.ndarray) -> list[Datum]:
    """The bytes of an image file as uint8 [height, width, channels]."""
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError(f"{attrs.title} decodes an image, for which the package Pillow is needed: pip install pillow") from None
    wanted = attrs.get("pixel_format", "RGB")
    if wanted not in FORMATS:
        raise UnsupportedError(f"{attrs.title} has the pixel_format {wanted!r}; there are {', '.join(FORMATS)}")
    try:
        with Image.open(io.BytesIO(encoded.tobytes())) as image:
            budget.require(4 * image.width * image.height, f"The image that {attrs.title} decodes",
                           "give a smaller one")
            pixels = np.asarray(image.convert(FORMATS[wanted]))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{attrs.title} gets bytes that are no image ({error})") from None
    return [np.ascontiguousarray(pixels[:, :, ::-1] if wanted == "BGR" else pixels.reshape(*pixels.shape[:2], -1))]
