"""The one table of element types: their names, the letters kernels know them by, their kinds and widths.

LLVM's types follow from it in `isa/vector.py`, Numba's in `machine/foreign.py`; graphs speak of the names.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Element:
    """An element type."""

    name: str                  # NumPy's, and the graph's (those that NumPy lacks: ml_dtypes')
    code: str                  # letters in signatures of leaves and names of kernels; the digit is its bytes
    kind: str                  # "float", "int", "uint" or "bool"; "narrow": of 8 bits and fewer, moved by its bits and cast, no more
    bits: int = 0              # that mean something, the low ones, where they are fewer than the bytes have

    @property
    def bytes(self) -> int:
        return int(self.code[1:])

    @property
    def memory(self) -> str:
        """NumPy's letters of what holds it for compiled code: narrow elements and 16-bit floats travel as their bits."""
        return "u1" if self.kind == "narrow" else {"f2": "u2", "b2": "u2", "b1": "?"}.get(self.code, self.code)

    @property
    def packed(self) -> int:
        """Elements in a byte of a file."""
        return 8 // self.bits if self.bits else 1


ELEMENTS = {e.code: e for e in (
    Element("float32", "f4", "float"), Element("float64", "f8", "float"), Element("float16", "f2", "float"), Element("bfloat16", "b2", "float"),
    *(Element(f"{kind}{8 * size}", f"{kind[0]}{size}", kind) for kind in ("int", "uint") for size in (1, 2, 4, 8)),
    Element("bool", "b1", "bool"),
    Element("float8_e4m3fn", "g1", "narrow"), Element("float8_e4m3fnuz", "h1", "narrow"), Element("float8_e5m2", "e1", "narrow"),
    Element("float8_e5m2fnuz", "d1", "narrow"), Element("float8_e8m0fnu", "s1", "narrow"), Element("float4_e2m1fn", "q1", "narrow", 4),
    Element("int4", "k1", "narrow", 4), Element("uint4", "n1", "narrow", 4), Element("int2", "j1", "narrow", 2), Element("uint2", "m1", "narrow", 2))}
"""By their letters."""
CODES = {e.name: e.code for e in ELEMENTS.values()}
"""Names to letters."""
FLOATS = tuple(e.name for e in sorted(ELEMENTS.values(), key=lambda e: e.bytes) if e.kind == "float")
"""Names of the floats, the narrow ones first."""
HALVES = tuple(name for name in FLOATS if CODES[name][1:] == "2")
"""Names of the floats of 16 bits: kernels that have no form for them compute in float32 and round once."""
HALF_CODES = tuple(CODES[name] for name in HALVES)
NARROW = tuple(e.name for e in ELEMENTS.values() if e.kind == "narrow")
"""Names of the elements of 8 bits and fewer that nothing computes with: they are moved by their bits and cast. One byte each in memory."""
BITS = {e.bytes: e.code for e in ELEMENTS.values() if e.kind == "uint"}
"""The unsigned integer of an element's size: data is moved and compared by its bits."""
