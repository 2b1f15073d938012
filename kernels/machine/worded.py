"""Leaves whose bodies are functions over whole words (`words`): they see the addresses of their arrays, the bits of
their numbers, and no dimensions."""
from __future__ import annotations

from typing import Any

from llvmlite import ir

from ..dtypes import ELEMENTS
from ..isa.vector import WORD, word
from . import build, words
from .leaf import Leaf, seen


class WordLeaf(Leaf):
    """A leaf that Numba has no part in. Its arrays are whole, or one row per worker."""

    def _entry(self) -> build.Emitted:
        return build.Emitted(self._define)

    def _define(self, module: ir.Module) -> ir.Function:
        parameters = seen(self.parameters)
        names = self.twin.__code__.co_varnames
        numbers = {name: p.numbers.names() for name, p in zip(names, parameters, strict=False) if p.numbers}
        body = words.define(module, self.twin, numbers)
        function = ir.Function(module, ir.FunctionType(WORD, [WORD] * 4), f"leaf.{self.name}")
        b = ir.IRBuilder(function.append_basic_block("entry"))
        block, passed = function.args[0], dict(zip(("lo", "hi", "worker"), function.args[1:], strict=True))
        base, position = b.inttoptr(block, WORD.as_pointer()), 0

        def take(count: int) -> list[Any]:
            nonlocal position
            position += count
            return [b.load(b.gep(base, [word(i)])) for i in range(position - count, position)]

        args: list[Any] = []
        for p in parameters:
            if p.words == 0:
                args.append(passed[p.dtype] if p.dtype in passed else b.add(block, word(8 * position)))
                continue
            found = take(p.words)
            if not p.is_array:
                args += found
                continue
            assert p.cut != "r", f"{self.name}({self.signature})"
            if p.cut == "w":
                row = word(ELEMENTS[p.dtype].bytes)
                for n in found[2:]:
                    row = b.mul(row, n)
                found[0] = b.add(found[0], b.mul(passed["worker"], row))
            args.append(found[0])
        status = b.call(body, args)
        b.ret(status if self.checked else word(0))
        function.linkage = "internal"
        return function
