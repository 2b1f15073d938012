"""Weights before and after a kernel: laid out by calls of their own, once for many runs, or at the head of its calls; converted."""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..dtypes import ELEMENTS
from ..elementwise.expr import Var, cast
from ..elementwise.loops import elementwise_call
from ..isa.half import HALVES
from ..machine.call import Call, In, Out, Work


@dataclass(frozen=True)
class WeightPanels:
    """`calls` read the weights as In(0) and write `elements` laid-out ones as Out(0)."""

    elements: int
    calls: tuple[Call, ...]

    def work(self, dtype: str) -> Work:
        """The scratch memory that holds them within a node."""
        return Work("panels", (self.elements,), dtype)

    def inside(self, dtype: str) -> list[Call]:
        """The calls as part of a kernel whose weights are input 1."""
        return self.onto(self.work(dtype), 1)

    def onto(self, target: Work | Out, weights: int | Work = 0) -> list[Call]:
        """The calls with another input, or scratch memory, as weights; they write `target`."""
        moved = {In: lambda arg: replace(arg, index=weights) if isinstance(weights, int) else weights, Out: lambda _arg: target}
        return [replace(call, args=tuple(moved[type(a)](a) if type(a) in moved else a for a in call.args)) for call in self.calls]


def converted(source: In | Work, given: str, target: Work | Out, made: str) -> Call:
    """The call that converts elements of the kernels' dtype `given` to `made`."""
    return elementwise_call([cast(Var(0, ELEMENTS[given].name), ELEMENTS[made].name)], [source], [target])


def rounded_results(calls: list[Call], dtype: str) -> list[Call]:
    """The calls of a kernel that sums in float32, with results of `dtype`: where that has 16 bits, they are rounded at the end."""
    if dtype not in HALVES:
        return calls
    results: dict[int, tuple[Work, Out]] = {}

    def moved(arg: Any) -> Any:
        if not isinstance(arg, Out):
            return arg
        work = Work(f"result {arg.index}", arg.shape, "f4")
        results.setdefault(arg.index, (replace(work, shape=(prod(arg.shape),)), replace(arg, shape=(prod(arg.shape),))))
        return work

    done = [replace(call, args=tuple(moved(arg) for arg in call.args)) for call in calls]
    return [*done, *(converted(work, "f4", out, dtype) for work, out in results.values())]
