"""Augmentation by name: images turned, moved, lit and mixed at random, by seed, epoch and place in the epoch alone,
whoever reads the rows."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...feed.images import MODES
from ...memory.tensor import kind_of
from ...options.data import AUGMENTATIONS, MIXING
from ...system.errors import OptionError
from .dataset import Dataset, Field
from .draws import Draws

MOVED = 1 / 8
"""Of an image's side it is moved by at most."""
LIT = 0.4
"""Brightness, contrast and saturation are multiplied by 1 - LIT to 1 + LIT."""
MIXUP_ALPHA, CUTMIX_ALPHA = 0.2, 1.0
"""Of the Beta distribution of the share of a row that stays (Zhang et al., 2018; Yun et al., 2019)."""
ROWS, MIXES = 1, 2
"""Streams of random numbers beside that of the order of rows: of rows, and of micro-batches."""


@dataclass(frozen=True)
class Augmentation:
    """What is done to the batches of fitted training data.

    last: channels are the last axis of an image. field: the input, whose scaling says what its numbers were before.
    """

    names: tuple[str, ...]
    seed: int
    micro_batch: int
    field: Field
    last: bool
    inputs: int

    @classmethod
    def of(cls, names: Sequence[str], data: Dataset, seed: int, micro_batch: int) -> Augmentation:
        """OptionError where data are no images, for all but mixup, or their labels do not go with what is done to
        these."""
        unmixable = next((name for name, f in data.fields.items() if kind_of(f.dtype) != "f"), None)
        if unmixable is not None or data.whole or data.may_vary:
            raise OptionError("Option augment is for floating-point inputs of one shape, and " + (
                f"input {unmixable} is of whole numbers." if unmixable
                else f"rows of data {data.name} are of several."))
        field = next(iter(data.fields.values()))
        shape = field.sample
        if any(name != "mixup" for name in names):
            channels = {3: (shape[0], shape[-1]), 2: (1,)}.get(len(shape), ()) if shape else ()
            if len(data.fields) != 1 or not set(channels).intersection(MODES):
                raise OptionError(f"Option augment: {', '.join(n for n in names if n != 'mixup')} is for a single "
                                  "input of images, [channels, "
                                  "height, width], [height, width, channels] or [height, width] per row, of 1, 3 or 4 "
                                  "channels; the data's rows are "
                                  f"{', '.join(str(list(f.sample)) for f in data.fields.values())}.")
            labels = [f for f in (data.label, *data.more.values()) if f is not None]
            if any(len(f.sample) > 1 for f in labels):
                raise OptionError("Option augment: flip, crop, color and cutmix are for labels of a whole image; those "
                                  "of places in it, such as "
                                  f"{next(list(f.sample) for f in labels if len(f.sample) > 1)} per row, would not "
                                  "move along.")
        last = len(shape) == 3 and shape[0] not in MODES
        return cls(tuple(n for n in AUGMENTATIONS if n in names), seed, micro_batch, field, last, len(data.fields))

    def __call__(self, batch: tuple[np.ndarray, ...], epoch: int, place: int) -> tuple[np.ndarray, ...]:
        """A batch whose first row is number `place` of the epoch; its arrays are written."""
        wide = [a if a.dtype.itemsize >= 4 else a.astype(np.float32) for a in batch[:self.inputs]]
        if any(name not in MIXING for name in self.names):
            images = self._images(wide[0])
            for i, image in enumerate(images):
                self._vary(image, Draws(self.seed, epoch, ROWS, place + i))
        if any(name in MIXING for name in self.names):
            for start in range(0, len(wide[0]), self.micro_batch):
                rows = slice(start, start + self.micro_batch)
                self._mix([a[rows] for a in wide], batch[self.inputs][rows],
                          Draws(self.seed, epoch, MIXES, place + start))
        for a, b in zip(batch, wide, strict=False):
            if a is not b:
                a[...] = b
        return batch

    def _images(self, array: np.ndarray) -> np.ndarray:
        """[rows, channels, height, width] over the same memory."""
        if array.ndim == 3:
            return array[:, None]
        return np.moveaxis(array, -1, 1) if self.last else array

    def _vary(self, image: np.ndarray, draws: Draws) -> None:
        """Change one image [channels, height, width]. All numbers are drawn whatever is done, so that none depends on
        what else is."""
        flip, down, right, *lit = draws(6).tolist()
        height, width = image.shape[1:]
        if "flip" in self.names and flip < 0.5:
            image[...] = image[:, :, ::-1].copy()
        if "crop" in self.names:
            reach = math.ceil(height * MOVED), math.ceil(width * MOVED)
            y, x = (int(u * (2 * r + 1)) - r for u, r in zip((down, right), reach, strict=True))
            whole, empty = image.copy(), self._black(image)
            image[...] = empty
            image[:, max(y, 0):height + min(y, 0), max(x, 0):width + min(x, 0)] = \
                whole[:, max(-y, 0):height - max(y, 0), max(-x, 0):width - max(x, 0)]
        if "color" in self.names:
            self._light(image, [1 - LIT + 2 * LIT * u for u in lit])

    def _light(self, image: np.ndarray, factors: Sequence[float]) -> None:
        """Brightness, contrast about the grey mean and saturation, on the numbers before mean and std; bytes stay in
        their range."""
        std, mean = self._per_channel(self.field.std, 1.0, image), self._per_channel(self.field.mean, 0.0, image)
        light, contrast, saturation = (image.dtype.type(f) for f in factors)
        pixels = (image * std + mean) * light
        grey = pixels.mean(axis=0, keepdims=True)
        pixels = grey.mean() * (1 - contrast) + pixels * contrast
        if len(image) == 3:
            grey = pixels.mean(axis=0, keepdims=True)
            pixels = grey * (1 - saturation) + pixels * saturation
        if self.field.array.dtype == np.uint8:
            pixels = pixels.clip(0, image.dtype.type(255 * self.field.scale))
        image[...] = (pixels - mean) / std

    def _black(self, image: np.ndarray) -> np.ndarray:
        """What a number of 0 in the data is once it is fed."""
        return (0 - self._per_channel(self.field.mean, 0.0, image)) / self._per_channel(self.field.std, 1.0, image)

    def _per_channel(self, numbers: np.ndarray | None, default: float, image: np.ndarray) -> np.ndarray:
        """Mean or std as [channels or 1, 1, 1]."""
        found = np.full(1, default) if numbers is None else numbers.reshape(-1)
        return found.reshape(-1, 1, 1).astype(image.dtype)

    def _mix(self, inputs: Sequence[np.ndarray], labels: np.ndarray, draws: Draws) -> None:
        """Mix each row of a micro-batch, and its label, with another one."""
        chosen = [name for name in self.names if name in MIXING]
        which, up, left = draws(3).tolist()
        partner = np.argsort(draws(len(labels)), kind="stable")
        name = chosen[int(which * len(chosen))]
        stays = draws.beta(MIXUP_ALPHA if name == "mixup" else CUTMIX_ALPHA)
        if name == "mixup":
            for x in inputs:
                x[...] = x * x.dtype.type(stays) + x[partner] * x.dtype.type(1 - stays)
        else:
            images = self._images(inputs[0])
            height, width = images.shape[2:]
            half_y, half_x = (int(n * math.sqrt(1 - stays)) / 2 for n in (height, width))
            top, bottom, first, end = (min(max(round(n), 0), most) for n, most in (
                (up * height - half_y, height), (up * height + half_y, height), (left * width - half_x, width),
                (left * width + half_x, width)))
            images[:, :, top:bottom, first:end] = images[partner][:, :, top:bottom, first:end]
            stays = 1 - (bottom - top) * (end - first) / (height * width)
        labels[...] = labels * labels.dtype.type(stays) + labels[partner] * labels.dtype.type(1 - stays)
