"""A guest x86-64 processor in this process: the Bochs core of `bochscpu-python`, in long mode, over memory that is mapped page by page.

Code and constants are this process's own pages at their own addresses, mapped read-only when the guest first touches them; everything else it may
touch is mapped by the caller. An access elsewhere, an instruction the processor does not know, or a run without end is a `Fault`.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from tileflow.kernels.machine import cache

from .layout import PAGE, Fault
from .tiles import Tiles

SYSTEM, STACK, THREAD, ARENA = (0x1000_0000_0000 + i * 0x100_0000_0000 for i in range(4))       # addresses that no Linux process uses by itself
STACK_PAGES, ARENA_PAGES = 256, 16384
TABLE_PAGES = 512
PRESENT, WRITABLE = 1, 2
CODE, DATA, TASK = 0x10, 0x18, 0x20           # selectors
PROCESSORS = {"sandybridge": (19, "i7-2600K"), "haswell": (24, "i7-4770"), "skylake-avx512": (26, "i7-7800X"),
              "cooperlake": (30, "w9-3475X"), "sapphirerapids": (30, "w9-3475X")}
"""By LLVM's name: the place in the emulator's list of processors, and what the processor calls itself."""
STANDS_IN = frozenset({"cooperlake"})
"""The emulator does not have these: a later one that has more stands in. Code compiled for them has their instructions only."""
STATES, WIDE_STATES = 0x07, 0xE7              # x87, SSE, AVX; with the three of AVX-512
BRAND = (0x80000002, 0x80000003, 0x80000004)  # leaves of CPUID that hold the processor's name
CR4 = 0x40620                                 # PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
WITH_CODE = {8, 10, 11, 12, 13, 14, 17, 21}   # exceptions that push an error code
NAMES = {0: "#DE", 1: "#DB", 3: "#BP", 6: "#UD", 7: "#NM", 8: "#DF", 12: "#SS", 13: "#GP", 16: "#MF", 17: "#AC", 19: "#XM"}
ENTRY = bytes.fromhex("410f22e0 410f22d9 31c9 31d2 0f01d1 4c89d2 4c89d9 41ffd4 f4")
"""mov cr4, r8; mov cr3, r9; xcr0 = rax; rdx = r10; rcx = r11; call r12; hlt"""
IDENTIFY = bytes.fromhex("0fa2 f4")                                                                # cpuid; hlt
ENTRY_AT, IDENTIFY_AT, HANDLERS_AT = 0x800, 0x900, 0xA00


@functools.cache
def shim() -> Path | None:
    """The compiled shim.c; None without a C compiler."""
    source = Path(__file__).with_name("shim.c")
    target = cache.root() / f"emulator-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    if not target.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", made, source], check=True)
        made.replace(target)
    return target


def installed() -> bool:
    """Whether the emulator could be started: its package and a C compiler are here."""
    return util.find_spec("bochscpu") is not None and shim() is not None


def _nothing(*_: Any) -> None:
    """A hook without effect."""


class Machine:
    """One guest processor (the emulator has one per process) and its memory."""

    base = ARENA

    def __init__(self, processor: str) -> None:
        """Args: processor: a key of PROCESSORS."""
        path = shim()
        assert path is not None, "no C compiler for the emulator's shim"
        self._shim = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        import bochscpu
        import bochscpu.cpu
        import bochscpu.memory
        from bochscpu import _bochscpu
        self._bochs = bochscpu
        self._library = ctypes.CDLL(_bochscpu.__file__)
        place, self._brand = PROCESSORS[processor]
        self._choose_processor(place)
        self.session = bochscpu.Session()
        self.session.missing_page_handler = _nothing
        self.tiles = Tiles()
        self.where: Callable[[int], str] = hex                # an address in words, for messages
        self._frames = 0x10_0000
        self._host: dict[int, int] = {}                       # guest page -> host address, for reads and writes of our own
        self._buffers: list[Any] = []
        self._stopped = False
        self._hook = bochscpu.Hook()
        self._hook.hlt = self._halt
        atexit.register(self._close)
        self._lay_out()
        self._identify()

    def _close(self) -> None:
        """Let go of the emulator's objects, which their binding reports as leaked otherwise."""
        self._hook.hlt = self.session.missing_page_handler = _nothing
        del self._hook, self.session

    def _choose_processor(self, index: int) -> None:
        """The emulator reads its list position from a parameter that Python cannot reach otherwise."""
        find, put = self._library.sim_get_param_enum, self._library._ZN14bx_param_num_c15set_initial_valEl
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        put.restype, put.argtypes = None, [ctypes.c_void_p, ctypes.c_long]
        put(find(b"cpu.model"), index)

    # memory

    def pages(self, count: int) -> np.ndarray:
        """`count` zeroed pages of our own, as bytes."""
        buffer = mmap.mmap(-1, count * PAGE)
        self._buffers.append(buffer)
        return np.frombuffer(buffer, np.uint8)

    def _frame(self, host: int) -> int:
        """A new guest physical page over the host page at `host`."""
        self._frames += PAGE
        self._bochs.memory.page_insert(self._frames, host)
        return self._frames

    def _lay_out(self) -> None:
        """Page tables, descriptor tables, exception handlers, stack and arena."""
        self._tables = self.pages(TABLE_PAGES).view(np.uint64).reshape(-1, 512)
        self._table_frames = [self._frame(self._tables[i].ctypes.data) for i in range(TABLE_PAGES)]
        self._used_tables = 1
        system = self.pages(4)
        for i in range(4):
            self.map(SYSTEM + i * PAGE, system[i * PAGE:].ctypes.data, True)
        words = system.view(np.uint64)
        words[CODE // 8], words[DATA // 8] = 0x00209B00_00000000, 0x00CF9300_0000FFFF
        tss = system[0x100:0x100 + 104]
        tss[36:44] = np.frombuffer(np.uint64(SYSTEM + 3 * PAGE - 64).tobytes(), np.uint8)         # the exception stack
        system[ENTRY_AT:ENTRY_AT + len(ENTRY)] = np.frombuffer(ENTRY, np.uint8)
        system[IDENTIFY_AT:IDENTIFY_AT + len(IDENTIFY)] = np.frombuffer(IDENTIFY, np.uint8)
        for vector in range(32):
            at = HANDLERS_AT + 16 * vector
            handler = bytes.fromhex(("" if vector in WITH_CODE else "6a00") + "f4 4883c408 48cf")   # push 0; hlt; drop the code; iretq
            system[at:at + len(handler)] = np.frombuffer(handler, np.uint8)
            address = SYSTEM + at
            gate = address & 0xFFFF | CODE << 16 | 1 << 32 | 0x8E << 40 | (address >> 16 & 0xFFFF) << 48
            words[(3 * PAGE + 16 * vector) // 8], words[(3 * PAGE + 16 * vector) // 8 + 1] = gate, address >> 32
        stack = self.pages(STACK_PAGES)
        for i in range(STACK_PAGES):
            self.map(STACK + i * PAGE, stack[i * PAGE:].ctypes.data, True)
        self._stack = stack
        thread = self.pages(4)                                # what the C library keeps per thread: errno, the stack's canary
        for i in range(4):
            self.map(THREAD + i * PAGE, thread[i * PAGE:].ctypes.data, True)
        self.arena = self.pages(ARENA_PAGES)
        first = self._used_tables
        for i in range(ARENA_PAGES):
            self.map(ARENA + i * PAGE, self.arena[i * PAGE:].ctypes.data, False)
        self._arena_entries = self._tables[first + 2:self._used_tables].reshape(-1)[:ARENA_PAGES]    # a level 3 and a level 2 table come first
        self._arena_frames = self._arena_entries & ~np.uint64(0xFFF)
        assert (self._arena_frames[1:] > self._arena_frames[:-1]).all()

    def _entry(self, address: int) -> tuple[np.ndarray, int]:
        """The lowest page table of `address` and the position in it; makes the tables on the way."""
        table = self._tables[0]
        for shift in (39, 30, 21):
            i = address >> shift & 511
            if not table[i]:
                assert self._used_tables < TABLE_PAGES, "out of page tables"
                table[i] = self._table_frames[self._used_tables] | PRESENT | WRITABLE
                self._used_tables += 1
            table = self._tables[(int(table[i]) - self._table_frames[0]) // PAGE]
        return table, address >> 12 & 511

    def map(self, address: int, host: int, writable: bool) -> None:
        """Let the guest see the host page at `host` as `address`."""
        table, i = self._entry(address)
        if not table[i]:
            table[i] = self._frame(host) | PRESENT | (WRITABLE if writable else 0)
            self._host[address] = host

    def hide(self) -> None:
        """Nothing: this process sees the arena by other addresses than the guest."""

    def show(self, spans: list[tuple[int, int, bool]]) -> None:
        """Of the arena, map these runs of pages (first, count, writable) and nothing else."""
        self._arena_entries[:] = 0
        for first, count, writable in spans:
            self._arena_entries[first:first + count] = self._arena_frames[first:first + count] | np.uint64(PRESENT | (WRITABLE if writable else 0))

    def _touch(self, address: int, size: int, write: bool) -> list[tuple[int, int]]:
        """Host (address, bytes) pieces of a span the guest may access."""
        pieces = []
        while size:
            table, i = self._entry(address)
            entry = int(table[i])
            if not entry & PRESENT or (write and not entry & WRITABLE):
                raise Fault(f"{'write to' if write else 'read of'} {self.where(address)}")
            part = min(size, PAGE - address % PAGE)
            pieces.append((self._host[address - address % PAGE] + address % PAGE, part))
            address, size = address + part, size - part
        return pieces

    def read(self, address: int, size: int) -> bytes:
        """Bytes of guest memory."""
        return b"".join(ctypes.string_at(host, part) for host, part in self._touch(address, size, False))

    def write(self, address: int, data: bytes) -> None:
        """Change guest memory."""
        for host, part in self._touch(address, len(data), True):
            ctypes.memmove(host, data[:part], part)
            data = data[part:]

    def register(self, name: str) -> int:
        """A general register; the stack pointer is the one before the exception being served."""
        return int(self._frame_words()[4]) if name == "rsp" else int(getattr(self.session.cpu, name))

    # running

    def _halt(self, session: Any, _processor: int) -> None:
        self._stopped = True
        session.stop()

    def _state(self, rip: int, **registers: int) -> Any:
        """A processor in long mode at the highest privilege (so that only the page tables bound it), about to run `rip`."""
        bochs = self._bochs
        state = bochs.State()
        bochs.cpu.set_long_mode(state)
        state.cr3, state.cr4, state.xcr0 = self._table_frames[0], CR4, STATES
        state.rip, state.rsp, state.rflags = rip, STACK + STACK_PAGES * PAGE - 64, 2
        state.mxcsr, state.mxcsr_mask, state.fpcw, state.fptw = 0x1F80, 0x1F80, 0x37F, 0xFFFF
        everything = 0xFFFFFFFF
        segments = dict.fromkeys(("ds", "es", "gs", "ss"), (DATA, 0, everything, 0xC93)) | {
            "cs": (CODE, 0, everything, 0x209B), "fs": (DATA, THREAD + 2 * PAGE, everything, 0xC93), "tr": (TASK, SYSTEM + 0x100, 103, 0x8B)}
        for name, (selector, base, limit, attributes) in segments.items():
            segment = bochs.Segment()
            segment.present, segment.selector, segment.base, segment.limit, segment.attr = True, selector, base, limit, attributes
            setattr(state, name, segment)
        for name, base, limit in (("gdtr", SYSTEM, 0xFF), ("idtr", SYSTEM + 3 * PAGE, 32 * 16 - 1)):
            table = bochs.GlobalSegment()
            table.base, table.limit = base, limit
            setattr(state, name, table)
        for name, value in registers.items():
            setattr(state, name, value)
        return state

    def _run(self, seconds: float) -> None:
        """Go on until the guest halts."""
        self._stopped = False
        stop = ctypes.cast(self._library.cpu_set_killbit, ctypes.c_void_p)
        self._shim.watch(stop, ctypes.c_double(seconds))
        self.session.run([self._hook])
        self._shim.watch(stop, ctypes.c_double(0))
        if not self._stopped:
            raise Fault(f"still running after {seconds} s, at {self.session.cpu.rip:#x}")

    def _identify(self) -> None:
        """Is it the processor that was chosen? And what states does it have?"""
        brand = b"".join(number.to_bytes(4, "little") for leaf in BRAND for number in self._cpuid(leaf))
        if self._brand.encode() not in brand:
            raise Fault(f"the emulator's processor is {brand.decode()!r} and not the expected {self._brand}")
        self._states = WIDE_STATES if self._cpuid(7)[1] >> 16 & 1 else STATES                       # leaf 7, EBX: AVX512F

    def _cpuid(self, leaf: int) -> list[int]:
        """EAX, EBX, ECX and EDX of a leaf of CPUID."""
        self.session.cpu.state = self._state(SYSTEM + IDENTIFY_AT, rax=leaf)
        self._run(1)
        return [int(getattr(self.session.cpu, name)) & 0xFFFFFFFF for name in ("rax", "rbx", "rcx", "rdx")]

    def call(self, function: int, arguments: tuple[int, int, int, int], seconds: float) -> int:
        """`function(*arguments)` by C's rules; its result.

        Raises:
            Fault: see the module.
        """
        self.tiles = Tiles()
        self._stack[:] = 0xA5
        block, lo, hi, worker = (a & (1 << 64) - 1 for a in arguments)
        self.session.cpu.state = self._state(SYSTEM + ENTRY_AT, rax=self._states, rdi=block, rsi=lo, r8=CR4, r9=self._table_frames[0], r10=hi,
                                             r11=worker, r12=function)
        while True:
            self._run(seconds)
            handler = self.session.cpu.rip - (SYSTEM + HANDLERS_AT)
            if not 0 <= handler < 32 * 16:
                return int(np.int64(np.uint64(self.session.cpu.rax)))
            self._serve(handler // 16)

    def _frame_words(self) -> np.ndarray:
        """The exception being served: error code, rip, cs, rflags, rsp, ss."""
        host = self._touch(self.session.cpu.rsp, 48, True)[0][0]
        return np.frombuffer((ctypes.c_uint64 * 6).from_address(host), np.uint64)

    def _serve(self, vector: int) -> None:
        """Map a page or do a tile instruction, and let the guest go on; else raise what happened."""
        frame = self._frame_words()
        rip = int(frame[1])
        try:
            if vector == 14:
                self._page_fault(int(self.session.cpu.cr2), int(frame[0]))
            elif vector == 6:
                frame[1] = rip + self.tiles.execute(self, rip)
            else:
                raise Fault(NAMES.get(vector, f"exception {vector}"))
        except Fault as fault:
            raise Fault(f"{fault} (instruction at {rip:#x})") from None

    def _page_fault(self, address: int, code: int) -> None:
        """Map code and constants of this process; refuse everything else."""
        if not code & 1 and not code & 2:
            for line in Path("/proc/self/maps").read_text().splitlines():
                span, rights, *rest = line.split(maxsplit=5)
                start, end = (int(text, 16) for text in span.split("-"))
                if start <= address < end and rights[0] == "r" and ("w" not in rights or (len(rest) > 3 and rest[3].startswith("/"))):
                    for page in range(start, end, PAGE):
                        self.map(page, page, False)
                    return
        raise Fault(f"{'write to' if code & 2 else 'run of' if code & 16 else 'read of'} {self.where(address)}")
