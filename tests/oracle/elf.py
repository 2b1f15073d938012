"""The symbols of an object file of a 64-bit Linux (ELF, little endian)."""
from __future__ import annotations

import struct


def symbols(made: bytes) -> tuple[set[str], set[str]]:
    """The names that an object asks of others, and those that it shows to them."""
    assert made[:6] == b"\x7fELF\x02\x01"
    at, = struct.unpack_from("<Q", made, 40)
    size, count = struct.unpack_from("<HH", made, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", made, at + i * size) for i in range(count)]
    asked, shown = set(), set()
    for _, kind, _, _, start, length, link, _, _, each in sections:
        if kind != 2:                                   # SHT_SYMTAB
            continue
        names = sections[link][4]
        for i in range(length // each):
            name, info, _, section = struct.unpack_from("<IBBH", made, start + i * each)
            text = made[names + name:made.index(b"\0", names + name)].decode()
            if section == 0 and text:
                asked.add(text)
            elif info >> 4:                             # not STB_LOCAL
                shown.add(text)
    return asked, shown
