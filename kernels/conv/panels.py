"""Weights laid out for a kernel: by calls of their own, once for many runs, or at the head of the kernel's calls."""
from __future__ import annotations

from dataclasses import dataclass, replace

from ..call import Call, In, Out, Work


@dataclass(frozen=True)
class Panels:
    """`calls` read the weights as In(0) and write `elements` laid-out ones as Out(0)."""

    elements: int
    calls: tuple[Call, ...]

    def work(self, dtype: str) -> Work:
        """The scratch memory that holds them within a node."""
        return Work("panels", (self.elements,), dtype)

    def inside(self, dtype: str) -> list[Call]:
        """The calls as part of a kernel whose weights are input 1."""
        return self.onto(self.work(dtype), 1)

    def onto(self, target: Work, weights: int = 0) -> list[Call]:
        """The calls with the weights as another input, which write `target`."""
        moved = {In: lambda arg: replace(arg, index=weights), Out: lambda _arg: target}
        return [replace(call, args=tuple(moved[type(a)](a) if type(a) in moved else a for a in call.args)) for call in self.calls]
