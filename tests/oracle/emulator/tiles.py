"""A tile unit: the AMX instructions, which the emulator's build leaves out, as Intel's manual defines them.

The emulator raises an invalid-opcode exception at each of them; `Tiles.execute` then does the instruction's work on the guest's registers and memory.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, the pages of LDTILECFG, STTILECFG, TILELOADD, TILESTORED, TILEZERO,
TILERELEASE, TDPBF16PS, TDPFP16PS and TDPBSSD. `tests/oracle/emulator_checks.py` compares the products with LLVM's own
scalar form of them.
"""
from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .layout import Fault

Array = np.ndarray
TILES, ROWS, COLUMN_BYTES = 8, 16, 64
REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15")
NONE, P66, PF3, PF2 = range(4)           # the prefix a VEX encoding implies


class Guest(Protocol):
    """What an instruction may touch."""

    def read(self, address: int, size: int) -> bytes: ...
    def write(self, address: int, data: bytes) -> None: ...
    def register(self, name: str) -> int: ...


class Tiles:
    """The eight tiles and their configuration."""

    def __init__(self) -> None:
        self.executed = 0
        self._release()

    def _release(self) -> None:
        self.configuration = bytes(64)
        self.data = np.zeros((TILES, ROWS, COLUMN_BYTES), np.uint8)

    @property
    def configured(self) -> bool:
        return self.configuration[0] != 0

    def shape(self, tile: int) -> tuple[int, int]:
        """Rows and bytes per row of a tile."""
        if not self.configured:
            raise Fault("#UD: a tile is used, but none are configured")
        rows, columns = self.configuration[48 + tile], int.from_bytes(self.configuration[16 + 2 * tile:18 + 2 * tile], "little")
        if rows == 0 or columns == 0:
            raise Fault(f"#UD: tile {tile} is used, but it is configured empty")
        return rows, columns

    def execute(self, guest: Guest, rip: int) -> int:
        """Do the tile instruction at `rip` and return its length.

        Raises:
            Fault: it is no tile instruction, or one that a processor refuses.
        """
        code = guest.read(rip, 15)
        fields = _decode(code)
        if fields is None:
            raise Fault(f"#UD: the processor does not know the instruction {code.hex(' ')}")
        prefix, opcode, reg, vvvv = fields["prefix"], fields["opcode"], fields["reg"], fields["vvvv"]
        memory = fields["mod"] != 3
        if opcode == 0x49 and memory and prefix == NONE:
            self._configure(guest.read(_address(guest, fields, rip)[0], 64))
        elif opcode == 0x49 and memory and prefix == P66:
            guest.write(_address(guest, fields, rip)[0], self.configuration)
        elif opcode == 0x49 and prefix == NONE:
            self._release()
        elif opcode == 0x49 and prefix == PF2:
            self.shape(reg)
            self.data[reg] = 0
        elif opcode == 0x4B and memory and prefix in (PF2, P66):
            self._load(guest, reg, *_address(guest, fields, rip))
        elif opcode == 0x4B and memory and prefix == PF3:
            rows, columns = self.shape(reg)
            address, stride = _address(guest, fields, rip)
            for row in range(rows):
                guest.write(address + row * stride, self.data[reg, row, :columns].tobytes())
        elif opcode == 0x5C and not memory and prefix in (PF3, PF2):
            self._float_product(reg, fields["rm"], vvvv, half=prefix == PF2)
        elif opcode == 0x5E and not memory:
            self._integer_product(reg, fields["rm"], vvvv, prefix)
        else:
            raise Fault(f"#UD: the processor does not know the instruction {code.hex(' ')}")
        self.executed += 1
        return int(fields["length"])

    def _configure(self, data: bytes) -> None:
        if data[0] == 0:
            self._release()
            return
        rows, columns = data[48:64], np.frombuffer(data, np.uint16, 16, 16)
        reserved = data[1] or any(data[2:16]) or any(rows[TILES:]) or columns[TILES:].any()
        if data[0] != 1 or reserved or max(rows) > ROWS or columns.max() > COLUMN_BYTES:
            raise Fault(f"#GP: a tile configuration that no processor takes: {data.hex()}")
        self._release()
        self.configuration = data

    def _load(self, guest: Guest, tile: int, address: int, stride: int) -> None:
        rows, columns = self.shape(tile)
        loaded = np.zeros((ROWS, COLUMN_BYTES), np.uint8)
        for row in range(rows):
            loaded[row, :columns] = np.frombuffer(guest.read(address + row * stride, columns), np.uint8)
        self.data[tile] = loaded

    def _operands(self, c: int, a: int, b: int) -> tuple[int, int, int]:
        """Rows, dwords per row and length of the product of tiles, checked."""
        if len({a, b, c}) < 3:
            raise Fault(f"#UD: a tile product of tiles {c}, {a}, {b}, which must differ")
        (m, n), (a_rows, a_columns), (b_rows, b_columns) = self.shape(c), self.shape(a), self.shape(b)
        if a_rows != m or b_columns != n or a_columns != 4 * b_rows or n % 4 or a_columns % 4:
            raise Fault(f"#UD: tiles {c} [{m}, {n}], {a} [{a_rows}, {a_columns}] and {b} [{b_rows}, {b_columns}] make no product")
        return m, n // 4, b_rows

    def _float_product(self, c: int, a: int, b: int, half: bool) -> None:
        """Pairs of 16-bit numbers to float32: even and odd products are summed apart, then added to each other, then to the tile."""
        m, n, k = self._operands(c, a, b)
        x, y = (_numbers(self.data[t], half) for t in (a, b))
        sums = np.zeros((2, m, n), np.float32)
        with np.errstate(all="ignore"):
            for i in range(k):
                for odd in range(2):
                    product = np.float64(x[:m, None, 2 * i + odd]) * np.float64(y[None, i, odd:2 * n:2])       # exact
                    sums[odd] = _flush(np.float32(product + sums[odd]))
            tile = self.data[c].view(np.float32)
            total = _flush(_flush(tile[:m, :n]) + _flush(sums[0] + sums[1]))
        self.data[c] = 0
        tile[:m, :n] = total

    def _integer_product(self, c: int, a: int, b: int, prefix: int) -> None:
        """Fours of bytes to int32, each operand signed or not by the prefix."""
        m, n, k = self._operands(c, a, b)
        x = self.data[a].view(np.int8 if prefix in (PF2, PF3) else np.uint8).astype(np.int64)[:m, :4 * k].reshape(m, k, 4)
        y = self.data[b].view(np.int8 if prefix in (PF2, P66) else np.uint8).astype(np.int64)[:k, :4 * n].reshape(k, n, 4)
        tile = self.data[c].view(np.int32)
        total = (tile[:m, :n] + np.einsum("mkq,knq->mn", x, y)).astype(np.int32)
        self.data[c] = 0
        tile[:m, :n] = total


def _numbers(data: Array, half: bool) -> Array:
    """The 16-bit numbers of a tile as float32, denormals of bfloat16 as zero."""
    if half:
        return data.view(np.float16).astype(np.float32)
    return _flush((data.view(np.uint16).astype(np.uint32) << 16).view(np.float32))


def _flush(x: Array) -> Array:
    """Denormals to zero of the same sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def _decode(code: bytes) -> dict[str, Any] | None:
    """The fields of a three-byte VEX instruction of map 0F38, W0, L0; None for anything else."""
    if code[0] != 0xC4 or code[1] & 0x1F != 2 or code[2] & 0x84:
        return None
    extend_reg, extend_index, extend_rm = (8 * (~code[1] >> bit & 1) for bit in (7, 6, 5))
    mod, reg, rm = code[4] >> 6, (code[4] >> 3 & 7) + extend_reg, code[4] & 7
    fields: dict[str, Any] = dict(prefix=code[2] & 3, vvvv=~code[2] >> 3 & 15, opcode=code[3], mod=mod, reg=reg, length=5,
                                  base=None, index=None, scale=1, displacement=0, relative=False)
    if mod == 3:
        fields["rm"] = rm + extend_rm
    elif rm == 4:
        sib = code[5]
        fields["scale"] = 1 << (sib >> 6)
        index, base = (sib >> 3 & 7) + extend_index, sib & 7
        fields["index"] = None if index == 4 else REGISTERS[index]
        fields["length"] = 6
        if base == 5 and mod == 0:
            mod = 2
        else:
            fields["base"] = REGISTERS[base + extend_rm]
    elif rm == 5 and mod == 0:
        fields["relative"], mod = True, 2
    else:
        fields["base"] = REGISTERS[rm + extend_rm]
    size = {1: 1, 2: 4}.get(mod, 0)
    at = fields["length"]
    fields["displacement"] = int.from_bytes(code[at:at + size], "little", signed=True)
    fields["length"] += size
    if reg > 7 or fields.get("rm", 0) > 7:
        return None
    return fields


def _address(guest: Guest, fields: dict[str, Any], rip: int) -> tuple[int, int]:
    """The address of a memory operand without its index, and the index times its scale: a tile's stride."""
    base = guest.register(fields["base"]) if fields["base"] else rip + fields["length"] if fields["relative"] else 0
    stride = guest.register(fields["index"]) * fields["scale"] if fields["index"] else 0
    if stride >= 1 << 63:
        stride -= 1 << 64
    return base + fields["displacement"], stride
