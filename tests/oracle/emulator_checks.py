"""Checks of the emulator itself, run inside a process that compiles for "amx", and those of the processor for every path (see `test_paths.py`)."""
from __future__ import annotations

import ctypes
import functools
import inspect
import math
from typing import Any

import emulator
import numpy as np
import pytest
from emulator.machine import STANDS_IN
from llvmlite import binding, ir

from tileflow.kernels.isa import cpu
from tileflow.kernels.isa.vector import Emitter, inlined_code, vector
from tileflow.kernels.machine.leaf import Leaf

Array = np.ndarray
BYTE, VOID = ir.IntType(8), ir.VoidType()
PRODUCTS = {"tdpbf16ps": "f4", "tdpbssd": "i4", "tdpbsud": "i4", "tdpbusd": "i4", "tdpbuud": "i4"}
"""Tile products and the type of their sums."""


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype("f4")


# ---- vectors ------------------------------------------------------------------------------------------------------------

def fused(dtype: str, lanes: int) -> Leaf:
    """y = x * x + y by vectors of 512 bits, the last one masked."""
    kind, size = vector(dtype, lanes), int(dtype[1])

    def emit(e: Emitter, x: Any, y: Any, n: Any) -> None:
        def step(i: Any, _state: list[Any]) -> None:
            mask = e.first(e.b.sub(n, i), lanes)
            at_x, at_y = e.address(x, e.times(i, size)), e.address(y, e.times(i, size))
            value = e.load(at_x, kind, mask)
            e.store(e.fma(value, value, e.load(at_y, kind, mask)), at_y, mask)
        e.loop(0, n, lanes, [], step)

    code = inlined_code(f"tileflow_check_fused_{dtype}", "x, y, n", cpu.current(), emit)

    def fuse(x, y):                                    # type: ignore[no-untyped-def]
        code(x.ctypes.data, y.ctypes.data, x.shape[0])

    return Leaf(fuse, f"{dtype}[r], {dtype}[r]", key=dtype + inspect.getsource(fused))


@pytest.mark.parametrize(("dtype", "lanes", "other"), [("f4", 16, "f8"), ("f2", 32, "f4")])
@pytest.mark.parametrize("n", [0, 1, 31, 64, 1000])
def test_fused_multiply_add(dtype: str, lanes: int, other: str, n: int) -> None:
    x, y = normal(n).astype(dtype), normal(n).astype(dtype)
    wanted = (x.astype(other) ** 2 + y.astype(other)).astype(dtype)
    assert emulator.run(fused(dtype, lanes), x, y, against="both") == 0
    np.testing.assert_array_equal(y, wanted)


# ---- the processor ------------------------------------------------------------------------------------------------------

INSTRUCTIONS = {"sse2": "0f 58 c0", "avx": "c5 fc 58 c0", "avx2": "c5 fd fe c0", "fma": "c4 e2 7d b8 c0", "f16c": "c4 e2 7d 13 c0",
                "avx512f": "62 f1 7c 48 58 c0", "avx512bf16": "62 f2 7e 48 52 c0", "avx512fp16": "62 f5 7c 48 58 c0"}
"""By feature the bytes of an instruction that came with it; each writes to the first vector register."""


@pytest.mark.parametrize("feature", INSTRUCTIONS)
def test_the_processor_has_what_its_path_may_use_and_no_more(feature: str) -> None:
    binding.initialize_native_asmparser()
    code = ".byte " + ", ".join(f"0x{byte}" for byte in INSTRUCTIONS[feature].split())
    alone = inlined_code(f"tileflow_check_{feature}", "x", cpu.current(),
                         lambda e, _x: e.b.asm(ir.FunctionType(VOID, []), code, "~{xmm0}", [], True))

    def execute(x):                                    # type: ignore[no-untyped-def]
        alone(x.shape[0])

    leaf = Leaf(execute, "f4[r]", key=feature + inspect.getsource(test_the_processor_has_what_its_path_may_use_and_no_more))
    if feature in cpu.current().features.split():
        assert emulator.run(leaf, normal(1)) == 0
    elif cpu.current().processor not in STANDS_IN:
        with pytest.raises(emulator.Fault, match="#UD"):
            emulator.run(leaf, normal(1))


PAIRS = {"register": ("vmovups 64(%rdi), %zmm2; vdpbf16ps %zmm2, %zmm1, %zmm0", 64), "where it lies": ("vdpbf16ps (%rdi), %zmm1, %zmm0", 0),
         "four bytes": ("vdpbf16ps 200(%rdi), %zmm1, %zmm0", 200), "one byte": ("vdpbf16ps 64(%rdi), %zmm1, %zmm0", 4)}
"""By how the instruction says where its second factor is, its text and the distance that the emulator reads at. The last one is Bochs's error:
the byte counts vectors of 64 bytes, and the processor reads at 64 (Intel's manual, volume 2, compressed displacement: full vector, no broadcast)."""


@pytest.mark.parametrize("form", PAIRS)
def test_products_of_pairs_read_their_second_factor(form: str) -> None:
    """Where the last form fails because the emulator reads at 64, it is mended: then `in_register` of kernels/gemm/pairs.py may go."""
    if "avx512bf16" not in cpu.current().features.split():
        pytest.skip("the processor has no products of pairs")
    binding.initialize_native_asmparser()
    text, at = PAIRS[form]
    code = "\n\t".join(["vmovups (%rsi), %zmm0", "vmovups 64(%rsi), %zmm1", *text.split("; "), "vmovups %zmm0, (%rdx)"])
    kind, places = ir.FunctionType(VOID, [ir.IntType(64)] * 3), "{rdi},{rsi},{rdx},~{xmm0},~{xmm1},~{xmm2},~{memory}"
    pairs = inlined_code(f"tileflow_check_pairs_{form.replace(' ', '_')}", "memory, sums, y", cpu.current(),
                         lambda e, *args: e.b.asm(kind, code, places, args, True))

    def add(memory, sums, y):                          # type: ignore[no-untyped-def]
        pairs(memory.ctypes.data, sums.ctypes.data, y.ctypes.data)

    memory, sums, y = normal(80), normal(32), np.zeros(16, "f4")
    assert emulator.run(Leaf(add, "f4[:], f4[:], f4[:]", key=text + inspect.getsource(add)), memory, sums, y) == 0
    right, left = (np.ascontiguousarray(x).view("u4") for x in (memory[at // 4:at // 4 + 16], sums[16:]))
    wanted = sums[:16]
    for factors in ([x & 0xFFFF0000 for x in (left, right)], [x << np.uint32(16) for x in (left, right)]):
        a, b = (x.view("f4").astype("f8") for x in factors)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = (wanted.astype("f8") + a * b).astype("f4")
    np.testing.assert_array_equal(y, wanted)


# ---- tiles --------------------------------------------------------------------------------------------------------------

def tiles(m: int, n: int, k: int) -> Array:
    """Configuration of three tiles for a product: C [m, n], A [m, k], B [k, n], in dwords."""
    data = np.zeros(64, "u1")
    data[0], data[48:51] = 1, (m, m, k)
    data[16:22].view("u2")[:] = (4 * n, 4 * k, 4 * n)
    return data


@functools.cache
def tile_product(name: str) -> Leaf:
    """C += A B by one tile instruction; rows of A, B and C are contiguous."""
    def emit(e: Emitter, configuration: Any, a: Any, b: Any, c: Any, a_row: Any, b_row: Any) -> None:
        def call(what: str, *args: Any) -> None:
            values = [ir.Constant(BYTE, x) if isinstance(x, int) else x for x in args]
            e.call(f"llvm.x86.{what}", VOID, values)

        places = [e.b.inttoptr(x, BYTE.as_pointer()) for x in (configuration, c, a, b)]
        call("ldtilecfg", places[0])
        for tile, row in ((0, b_row), (1, a_row), (2, b_row)):
            call("tileloadd64", tile, places[1 + tile], row)
        call(name, 0, 1, 2)
        call("tilestored64", 0, places[1], b_row)
        call("tilerelease")

    code = inlined_code(f"tileflow_check_{name}", "configuration, a, b, c, a_row, b_row", cpu.current(), emit)

    def product(configuration, a, b, c):               # type: ignore[no-untyped-def]
        code(configuration.ctypes.data, a.ctypes.data, b.ctypes.data, c.ctypes.data, a.shape[1], b.shape[1])

    return Leaf(product, "u1[:], u1[:,:], u1[:,:], i4[:,:]", key=name + inspect.getsource(tile_product.__wrapped__))


@functools.cache
def scalar_product(name: str) -> Any:
    """The same by LLVM's scalar form of the instruction: a C function (a, b, c, m, n, k) over rows of 64 bytes, sizes in bytes and rows."""
    binding.set_option("tileflow", "-enable-x86-scalar-amx=true")
    module = binding.parse_assembly(f"""
        declare x86_amx @llvm.x86.tileloadd64.internal(i16, i16, ptr, i64)
        declare x86_amx @llvm.x86.{name}.internal(i16, i16, i16, x86_amx, x86_amx, x86_amx)
        declare void @llvm.x86.tilestored64.internal(i16, i16, ptr, i64, x86_amx)
        define void @product(ptr %a, ptr %b, ptr %c, i16 %m, i16 %n, i16 %k) #0 {{
          %x = call x86_amx @llvm.x86.tileloadd64.internal(i16 %m, i16 %k, ptr %a, i64 64)
          %rows = lshr i16 %k, 2
          %y = call x86_amx @llvm.x86.tileloadd64.internal(i16 %rows, i16 %n, ptr %b, i64 64)
          %z = call x86_amx @llvm.x86.tileloadd64.internal(i16 %m, i16 %n, ptr %c, i64 64)
          %r = call x86_amx @llvm.x86.{name}.internal(i16 %m, i16 %n, i16 %k, x86_amx %z, x86_amx %x, x86_amx %y)
          call void @llvm.x86.tilestored64.internal(i16 %m, i16 %n, ptr %c, i64 64, x86_amx %r)
          ret void
        }}
        attributes #0 = {{ noinline optnone nounwind "target-features"="+amx-tile,+amx-bf16,+amx-int8" }}""")
    module.triple = binding.get_default_triple()
    machine = binding.Target.from_default_triple().create_target_machine(opt=0, jit=True)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_uint16] * 3)(engine.get_function_address("product"))
    function.engine = engine                           # its memory
    return function


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 16), (1, 1, 1), (13, 11, 7), (16, 3, 16)])
def test_tile_products_are_llvms(name: str, m: int, n: int, k: int) -> None:
    rng, dtype = np.random.default_rng(1), PRODUCTS[name]
    full = [np.zeros((16, 64), "u1") for _ in range(3)]
    parts = [x[:r, :4 * c] for x, (r, c) in zip(full, ((m, k), (k, n), (m, n)), strict=True)]
    for x in parts[:2]:
        numbers = rng.integers(-9, 10, (x.shape[0], x.shape[1] // 2)).astype("f4")
        x[:] = bfloat(numbers).view("u1") if dtype == "f4" else rng.integers(0, 256, x.shape)
    parts[2][:] = rng.integers(-99, 100, (m, n)).astype(dtype).view("u1")
    a, b, c = (np.ascontiguousarray(x) for x in parts)
    scalar_product(name)(*(x.ctypes.data for x in full), m, 4 * n, 4 * k)
    result = c.view("i4")
    assert emulator.run(tile_product(name), tiles(m, n, k), a, b, result, against="both") == 0
    np.testing.assert_array_equal(result.view(dtype), np.ascontiguousarray(parts[2]).view(dtype))


def bfloat(x: Array) -> Array:
    """The upper halves of float32 numbers."""
    return (x.view("u4") >> 16).astype("u2")


def test_tile_products_round_in_float32_and_flush_denormals() -> None:
    a, b = bfloat(normal(16, 32)), bfloat(normal(16, 32)[::-1].copy())
    wide = [(x.astype("u4") << 16).view("f4").astype("f8") for x in (a, b)]
    wanted = np.einsum("mkp,knp->mn", wide[0].reshape(16, 16, 2), wide[1].reshape(16, 16, 2))
    c = np.zeros((16, 16), "i4")
    emulator.run(tile_product("tdpbf16ps"), tiles(16, 16, 16), a.view("u1"), b.view("u1"), c)
    np.testing.assert_allclose(c.view("f4"), wanted, atol=2e-6)
    tiny, nothing = bfloat(np.full((16, 32), 1e-20, "f4")).view("u1"), np.zeros((16, 16), "i4")
    emulator.run(tile_product("tdpbf16ps"), tiles(16, 16, 16), tiny, tiny, nothing)
    assert not nothing.any()
    denormal = np.ones((16, 16), "i4")
    emulator.run(tile_product("tdpbf16ps"), tiles(16, 16, 16), np.zeros((16, 64), "u1"), tiny, denormal)
    assert not denormal.any()


# ---- faults -------------------------------------------------------------------------------------------------------------

def refused(function: Any, signature: str, *args: Any, against: str = "after", seconds: float = 30.0) -> str:
    """What the emulator says of a leaf that it must refuse."""
    with pytest.raises(emulator.Fault) as caught:
        emulator.run(Leaf(function, signature, key=inspect.getsource(function)), *args, against=against, seconds=seconds)
    return str(caught.value)


def test_accesses_outside_are_named() -> None:
    def after(x, y):                                   # type: ignore[no-untyped-def]
        y[x.shape[0]] = 1

    def before(x, y, at):                              # type: ignore[no-untyped-def]
        y[0] = x[at + np.intp(np.uint32(0))]

    assert "write to" in refused(after, "f4[r], f4[r]", normal(5), normal(5))
    assert "0 bytes after the end of argument 1 (float32[5])" in refused(after, "f4[r], f4[r]", normal(5), normal(5))
    assert "wrote beside argument 1" in refused(after, "f4[r], f4[r]", normal(5), normal(5), against="before")
    assert "8 bytes before argument 0" in refused(before, "f4[r], f4[r], i8", normal(5), normal(5), -7, against="before")


def test_read_only_arguments_stay() -> None:
    def scale(x):                                      # type: ignore[no-untyped-def]
        x[0] = 2

    x = normal(3)
    x.flags.writeable = False
    assert "write to" in refused(scale, "f4[r]", x)


def test_a_run_without_end_is_stopped() -> None:
    def wait(x):                                       # type: ignore[no-untyped-def]
        while x[0] == 0:
            x[1] += 1

    assert "still running" in refused(wait, "i8[r]", np.zeros(2, "i8"), seconds=0.5)


def test_unknown_instructions_and_bad_tiles_are_refused() -> None:
    trap = inlined_code("tileflow_check_trap", "x", cpu.current(), lambda e, _x: e.call("llvm.trap", VOID, []))

    def stop(x):                                       # type: ignore[no-untyped-def]
        trap(x.shape[0])

    assert "#UD" in refused(stop, "f4[r]", normal(1))
    a, c = np.zeros((16, 64), "u1"), np.zeros((16, 16), "i4")
    wrong = tiles(16, 16, 16)
    for at, value, what in ((49, 15, "make no product"), (48, 17, "#GP"), (0, 0, "none are configured"), (50, 0, "configured empty")):
        bad = wrong.copy()
        bad[at] = value
        with pytest.raises(emulator.Fault, match=what):
            emulator.run(tile_product("tdpbf16ps"), bad, a, a, c)
    with pytest.raises(emulator.Fault, match="after the end of argument 2"):
        emulator.run(tile_product("tdpbf16ps"), wrong, a, a[:15].copy(), c)


def test_calls_of_the_c_library_run_too() -> None:
    def logarithm(x, y):                               # type: ignore[no-untyped-def]
        for i in range(x.shape[0]):
            y[i] = math.log1p(x[i])

    x = np.random.default_rng(0).random(100) * 50
    y = np.zeros(100)
    assert emulator.run(Leaf(logarithm, "f8[r], f8[r]", key=inspect.getsource(logarithm)), x, y) == 0
    np.testing.assert_array_equal(y, np.array([math.log1p(v) for v in x]))
