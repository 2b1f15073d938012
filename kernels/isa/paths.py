"""The CPU paths: one entry each. What a path can do, how fast it is, how it is told, and how code for it is made elsewhere.

Kernels ask an entry's capabilities, never its name: the name only tells compiled code of one path from that of another. A new path is
a new entry, in order of speed.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from .features import features


@dataclass(frozen=True)
class Tile:
    """Register blocks of the micro-kernels. The rows and columns left over by the largest block are covered by powers of two below it."""

    rows: int                              # of a block of vectors along the columns of C
    vectors: int                           # columns of that block, in vectors
    dot: tuple[int, int]                   # rows and columns of a block of dot products


@dataclass(frozen=True)
class Rates:
    """Rough speed of one core, in float32 operations per ns, for the cost estimates of calls (other types by their size)."""

    products: float
    convolutions: float


@dataclass(frozen=True)
class Cpu:
    """A kernel path: what the kernels may ask.

    `name` tells the vector code apart; a path with matrix tiles or 16-bit arithmetic shares it with the path that differs in these only.
    """

    name: str
    vector_bytes: int                      # of a register; integer operations may be done in narrower ones (LLVM splits them)
    registers: int
    tile: Tile
    rates: Rates
    # features, as LLVM names them, by which the path is detected; not in the text, which names code
    needs: frozenset[str] = field(repr=False)
    processor: str                         # the first one that has them, as LLVM names it
    features: str                          # of that one's, those that code may use (`target`)
    fma: bool = False                      # fused multiply-add; without it the product is rounded, too: other bits, wider bounds of error
    f16c: bool = False                     # float16 <-> float32 in an instruction, else by integer operations (the same bits)
    masked_moves: bool = False             # loads and stores of 32 and 64-bit lanes under a mask
    mask_registers: bool = False           # masks for lanes of all widths; a masked vector costs as much as a whole one
    scales: bool = False                   # x * 2 ** n in one instruction
    small_caches: bool = False             # products are blocked for 32 KB and 512 KB of cache, else for more
    tiles: str = ""                        # "amx": the CPU's tiles; "software": the same arithmetic in vectors (tests)
    precision: str = "highest"             # of float32 products in tiles, one of PRECISIONS
    half: bool = False                     # float16 multiply-adds in vectors, tiles or not
    pairs: bool = False                    # products of bfloat16 pairs in vectors, summed in float32
    integer_bytes: int = 16                # of a register of integers
    vnni: bool = False                     # products of four bytes in vectors, summed in int32
    # choose as every path does (`portable`); the code chosen is what it was
    portable: bool = field(default=False, repr=False)

    @property
    def amx(self) -> bool:
        """Whether products may be done in bfloat16 tiles."""
        return self.tiles != ""

    @property
    def byte_tiles(self) -> bool:
        """Whether products of bytes may be done in tiles (those of bfloat16 mostly come with them, but not by themselves)."""
        return self.tiles == "software" or (self.tiles == "amx" and "amx-int8" in features())

    @property
    def multiplies_halves(self) -> bool:
        """Whether float16 vectors are multiplied and added as they are (tiles mostly come with that, but not by themselves)."""
        return self.half or (self.tiles == "amx" and "avx512fp16" in features())

    @property
    def yardstick(self) -> Cpu:
        """The path by whose rates and registers algorithms and lengths of sums are chosen, which bits follow from."""
        return PATHS["avx512"] if self.portable else self

    @property
    def label(self) -> str:
        """The path as people know it."""
        return self.tiles or ("fp16" if self.half else "bf16" if self.pairs else "vnni" if self.vnni else self.name)

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return self.vector_bytes // itemsize


PRECISIONS = ("highest", "high", "medium")
"""How float32 products are done by tiles: with six, three or one bfloat16 product for each."""

_X86 = "64bit cmov cx8 fxsr mmx sse sse2"
_AVX = f"{_X86} avx cx16 popcnt sahf sse3 sse4.1 sse4.2 ssse3 xsave"
_AVX2 = f"{_AVX} avx2 bmi bmi2 f16c fma lzcnt"
_AVX512 = f"{_AVX2} avx512f avx512cd avx512vl avx512dq avx512bw"
_BF16 = f"{_AVX512} avx512vnni avx512bf16"
_FP16 = f"{_BF16} avx512vbmi avx512vbmi2 avx512bitalg avx512vpopcntdq avx512ifma avx512fp16"

_WIDE = Cpu("avx512", 64, 32, Tile(12, 2, (4, 4)), Rates(80.0, 75.0),           # 24 of 32 registers are sums
            frozenset({"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}), "skylake-avx512", _AVX512,
            fma=True, f16c=True, masked_moves=True, mask_registers=True, scales=True, integer_bytes=64)
_BYTES = replace(_WIDE, vnni=True, needs=_WIDE.needs | {"avx512vnni"}, processor="cascadelake", features=f"{_AVX512} avx512vnni")
_PAIRS = replace(_BYTES, pairs=True, needs=_BYTES.needs | {"avx512bf16"}, processor="cooperlake", features=_BF16)
_LATE = frozenset(["avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "avx512ifma"])
"""What came between the paths "bf16" and "fp16"; compilers use it by themselves."""
_SLOW = Rates(80.0, 60.0)
"""Of processors whose vectors of 64 bytes take their clock down."""
PATHS = {
    "amx": replace(_PAIRS, rates=_SLOW, tiles="amx", needs=_PAIRS.needs | _LATE | {"amx-tile", "amx-bf16"},
                   processor="sapphirerapids", features=f"{_FP16} amx-tile amx-bf16 amx-int8"),
    "fp16": replace(_PAIRS, rates=_SLOW, half=True, needs=_PAIRS.needs | _LATE | {"avx512fp16"},
                    processor="sapphirerapids", features=_FP16),
    "bf16": _PAIRS,
    "vnni": _BYTES,
    "avx512": _WIDE,
    "avx2": Cpu("avx2", 32, 16, Tile(6, 2, (2, 4)), Rates(70.0, 50.0),          # 12 of 16
                frozenset({"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "popcnt"}), "haswell", _AVX2,
                fma=True, f16c=True, masked_moves=True, small_caches=True, integer_bytes=32),
    "avx": Cpu("avx", 32, 16, Tile(6, 2, (2, 4)), Rates(35.0, 25.0),            # 12 of 16: two for a row of B, two for products
               frozenset({"avx", "popcnt"}), "sandybridge", _AVX, masked_moves=True, small_caches=True),
    "generic": Cpu("generic", 16, 16, Tile(4, 2, (2, 4)), Rates(12.0, 10.0),    # 8 of 16: the unfused product needs one more
                   frozenset(), "generic", _X86),
}
"""All paths, fastest first. "generic" is every other CPU: x86 before AVX, and NEON."""
PORTABLE = "portable"
"""In the place of one of PRECISIONS: whatever is computed has the bits that it has on every path with fused
multiply-adds."""
_PAIRED = replace(PATHS["avx2"], name="avx2_paired", vector_bytes=64, registers=8, tile=Tile(6, 1, (2, 2)))
"""Vectors of 64 bytes in two registers each: what is summed by lanes is summed by as many as AVX-512 has."""


def portable(path: Cpu) -> Cpu:
    """The path whose bits every path with fused multiply-adds can have, on the processor of this one, which has them.

    No tiles and no arithmetic of 16 bits, whose sums are others; products of bytes are exact in whatever instructions.
    """
    assert path.fma, path
    wide = PATHS["vnni" if path.vnni else "avx512"] if path.vector_bytes == 64 else _PAIRED
    return replace(wide, rates=_WIDE.rates, small_caches=False, portable=True)
