"""The pack: kernels that came with the package, in a file beside its sources. Wheels for some systems have one.

It is a table of objects by their names in the cache, as the cache has them. A name says all that shapes the code, so a
kernel of another version of the sources is never found; and since code is made for a path, not for a machine, it runs
wherever the path does. What the pack holds is as trustworthy as the sources it lies among; digests find what was
damaged, which is compiled as if it were not there.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).with_name("kernels.pack")
MAGIC = b"tileflow pack 1\n"
_DIGEST = 32
_LONGEST = 1 << 26
"""Bytes of a table or of an object that are believed."""


def write(path: Path, payloads: Mapping[str, bytes]) -> None:
    """A pack of these payloads by name; equal ones make equal bytes."""
    body, table = bytearray(), {}
    for name in sorted(payloads):
        packed = zlib.compress(payloads[name], 9)
        table[name] = [len(body), len(packed), len(payloads[name]), hashlib.sha256(payloads[name]).hexdigest()]
        body += packed
    index = zlib.compress(json.dumps(table, sort_keys=True).encode(), 9)
    path.write_bytes(MAGIC + hashlib.sha256(index).digest() + len(index).to_bytes(8, "little") + index + body)


def read(name: str) -> bytes | None:
    """The payload of that name; None where the pack has none that is whole."""
    found = _table(FILE)
    if found is None or name not in found[1]:
        return None
    start, (at, length, size, digest) = found[0], found[1][name]
    with contextlib.suppress(OSError, zlib.error), open(FILE, "rb") as file:
        file.seek(start + at)
        payload = _unpacked(file.read(length), size)
        return payload if hashlib.sha256(payload).hexdigest() == digest else None
    return None


def names() -> list[str] | None:
    """What is in the pack; none where there is no pack, None where it is damaged."""
    found = _table(FILE)
    return list(found[1]) if found is not None else None if FILE.exists() else []


def _unpacked(packed: bytes, size: int) -> bytes:
    """At most so many bytes."""
    return zlib.decompressobj().decompress(packed, min(size, _LONGEST))


@functools.cache
def _table(path: Path) -> tuple[int, dict[str, tuple[int, int, int, str]]] | None:
    """Where payloads begin, and of each its place, length packed and unpacked, and digest; None without a whole
    table."""
    head = len(MAGIC) + _DIGEST + 8
    with contextlib.suppress(OSError, zlib.error, ValueError, TypeError), open(path, "rb") as file:
        begins = file.read(head)
        length = int.from_bytes(begins[-8:], "little")
        if begins[:len(MAGIC)] != MAGIC or length > _LONGEST:
            return None
        index = file.read(length)
        if hashlib.sha256(index).digest() != begins[len(MAGIC):-8]:
            return None
        table = json.loads(_unpacked(index, _LONGEST))
        return head + length, {name: (int(a), int(b), int(c), str(d)) for name, (a, b, c, d) in table.items()}
    return None
