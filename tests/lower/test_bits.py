"""Bits of networks on each CPU path of this machine, beside those of earlier versions: what is no change of arithmetic changes none."""
from __future__ import annotations

import json

import bits
import emulator
import pytest
from selection import waits

from tileflow.kernels.isa import cpu

KNOWN = json.loads(bits.FILE.read_text())


@pytest.mark.exhaustive
@pytest.mark.skipif(bits.llvm() != KNOWN["llvm"],
                    reason=f"the digests are those of {KNOWN['llvm']} (python tests/oracle/bits.py --write)")
@pytest.mark.parametrize("path", [name for name in cpu.available() if name in KNOWN["paths"] and name in emulator.TARGETS])
def test_the_bits_of_earlier_versions(path: str, turn: int | None) -> None:
    assert bits.networks().keys() == KNOWN["paths"][path].keys()
    wanted = {name: digest for name, digest in KNOWN["paths"][path].items() if not waits(f"{path} {name}", turn)}
    found = bits.computed(path, names=wanted)
    assert {name: digest for name, digest in found.items() if digest != wanted.get(name)} == {}
    assert found.keys() == wanted.keys()


def test_every_digest_tells_one_bit_from_another() -> None:
    import numpy as np
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = a.copy()
    b[1, 2] = np.nextafter(b[1, 2], np.float32(9))
    made = [bits.digest([("a", x)]) for x in (a, b, a.reshape(3, 2), a.astype(np.float64), -a * 0)] + [bits.digest([("b", a)])]
    assert len({*made}) == len(made)
    assert bits.digest([("a", a * np.nan)]) == bits.digest([("a", -a * np.nan)])
