"""An Image as bytes: a header in JSON, words, and the constants, under a digest. What is not whole, or of another form,
is no Image.

The words are addresses that are used as they are found: bytes are read from where nobody else can write only, as
kernels are (`kernels/machine/cache.py`), never from a file that users pass around.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from ..kernels.machine.boards import ROW_WORDS
from ..memory.alignment import aligned, padded
from ..memory.tensor import Tensor
from ..state import StateDeclaration
from .image import SEGMENT_BITS, Image, Judged, Owner, RowTable, Segment, Span

MAGIC = b"tileflow image 1\n"
DIGEST = hashlib.sha256
NUMBERS = ("words", "relocations", "seeds")
"""Fields that are arrays of int64, in the order in which they follow the header."""
SCALARS = ("workers", "several", "lane_bytes", "needs", "per_update", "iterations", "training")
"""Fields that are in the header as they are."""


def write(image: Image) -> bytes:
    """The bytes of an Image."""
    arrays = [getattr(image, name) for name in NUMBERS]
    fields = {name: value for name, value in vars(image).items() if name not in (*NUMBERS, "constants")}
    found = {"lengths": [len(a) for a in arrays], "constants": [a.nbytes for a in image.constants], "image": fields}
    header = json.dumps(found, default=asdict, separators=(",", ":")).encode()
    parts = [len(header).to_bytes(8, "little"), header]
    parts += [part.tobytes().ljust(padded(part.nbytes), b"\0") for part in (*arrays, *image.constants)]
    content = b"".join(parts)
    return MAGIC + DIGEST(content).digest() + content


def read(data: bytes) -> Image | None:
    """The Image that `write` made these bytes of; None where they are not that."""
    start = len(MAGIC) + DIGEST().digest_size
    content = memoryview(data)[start:]
    if data[:len(MAGIC)] != MAGIC or DIGEST(content).digest() != data[len(MAGIC):start]:
        return None
    try:
        return _image(content)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None


def _image(content: memoryview) -> Image:
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:end]))
    sizes = [*(8 * n for n in header["lengths"]), *header["constants"]]
    if end + sum(map(padded, sizes)) != len(content):
        raise ValueError("more or fewer bytes than the header says")
    parts = _parts(content[end:], sizes)
    words, relocations, seeds = (next(parts).view(np.int64) for _ in NUMBERS)
    f = header["image"]
    image = Image(
        words, relocations, seeds, constants=tuple(parts), segments=tuple(Segment(**s) for s in f["segments"]),
        tasks=_rows(f["tasks"]), checks=_rows(f["checks"]),
        owners=tuple(Owner(**{**o, "judged": o["judged"] and _judged(o["judged"])}) for o in f["owners"]),
        names=f["names"], loops=tuple(f["loops"]), inputs=_tensors(f["inputs"]), outputs=_tensors(f["outputs"]),
        kept=tuple(f["kept"]), states=tuple(StateDeclaration(**{**s, "shape": tuple(s["shape"])}) for s in f["states"]),
        layout=tuple((buffer, at) for buffer, at in f["layout"]),
        scalars=f["scalars"], gradients=tuple((_tensors([t])[0], state, at) for t, state, at in f["gradients"]),
        **{name: f[name] for name in SCALARS})
    _check(image)
    return image


def _parts(content: memoryview, sizes: list[int]) -> Iterator[np.ndarray]:
    """Aligned copies of what follows each other."""
    at = 0
    for nbytes in sizes:
        part = aligned(nbytes)
        part[:nbytes] = np.frombuffer(content[at:at + nbytes], np.uint8)
        yield part[:nbytes]
        at += padded(nbytes)


def _tensors(found: list[Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor(t["name"], t["dtype"], tuple(t["shape"])) for t in found)


def _rows(found: list[Any]) -> tuple[RowTable, ...]:
    return tuple(RowTable(r["first"], r["count"], tuple(r["owners"])) for r in found)


def _judged(found: dict[str, Any]) -> Judged:
    return Judged(found["operator"], found["output"], Span(**found["seen"]))


def _check(image: Image) -> None:
    """ValueError where something points out of what is there."""
    at, segments = image.words[image.relocations], len(image.segments)
    if ((at < 0) | (at >> SEGMENT_BITS > segments)).any():
        raise ValueError("an address in no segment")
    if image.segments[0] != Segment("words", image.words.nbytes):
        raise ValueError("the words are not the first segment")
    ends = (rows.first + ROW_WORDS * rows.count - 1 for rows in (*image.tasks, *image.checks))
    used = [*image.names.values(), *image.loops, *image.seeds, *ends]
    if not all(0 <= word < len(image.words) for word in used):
        raise ValueError("a word that is not there")
