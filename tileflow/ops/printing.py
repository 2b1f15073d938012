"""Printing tensors while a program runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..graph import Builder, Op, TensorType, Value, op
from ..graph.op import Types
from ..graph.sample import Sample, sample
from ..graph.work import Move, Work, map_work
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.guard import copy
from ..kernels.machine.host import HostCall, Moment
from ..system.errors import OptionError
from ..system.text import one_line
from .shape import present

FORMATS = ("auto", "fixed", "scientific", "none")
LONGEST = 200
"""Characters of a title."""


@op("PrintTensor", onnx=False)
class PrintTensor(Op):
    """The input; its elements are printed, and those of its gradient under the title with `_gradient` behind it.

    More than `summarise_threshold` elements are summarised by `edge_items` at either end of each axis. Numbers have
    `digits` behind the point, in a common form of all (auto), or each in the one that is named; "none": as many as are
    needed.
    """

    halves = True

    title: str = ""
    print_gradient: int = 1
    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ", "
    open_bracket: str = "("
    close_bracket: str = ")"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), title="x"), sample((2, 3), print_gradient=0)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        if self.float_format not in FORMATS:
            raise OptionError(f"float_format must be one of {', '.join(FORMATS)}, not {self.float_format!r}.")
        if min(self.summarise_threshold, self.edge_items, self.digits, self.max_line_width) < 0:
            raise OptionError(
                "summarise_threshold, edge_items, max_line_width and digits of a printed tensor are whole numbers of "
                "at least 0."
            )
        return (present(types[0]),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (present(inputs[0]).copy(),)

    def vjp(
        self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None], outputs: Sequence[Value]
    ) -> Sequence[Value | None]:
        if not self.print_gradient or grads[0] is None:
            return [grads[0]]
        return [b.emit(replace(self, title=f"{self.title}_gradient", print_gradient=0), grads[0])[0]]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        return map_work([outputs[0].shape], outputs[0].shape, outputs[0].dtype, 0, Move)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        n, size = outputs[0].size, outputs[0].itemsize
        return [Call(copy[f"u{size}"], [In(0, (n,)), Out(0, (n,))], n, 4096, 0.05 * size * n, True)] if n else []

    def host(self, inputs: Types, outputs: Sequence[TensorType]) -> HostCall:
        return HostCall(self._print, [In(0, outputs[0].shape)])

    def _print(self, moment: Moment, x: np.ndarray) -> None:
        moment.say(f"{one_line(self.title, LONGEST)}: {self.shown(x)}" if self.title else self.shown(x))

    def shown(self, x: np.ndarray) -> str:
        """The elements as a text."""
        if x.dtype.kind not in "fiub":
            x = x.astype(np.float32)  # narrow floats, of which NumPy has no text
        style = {"auto": None, "fixed": f".{self.digits}f", "scientific": f".{self.digits}e", "none": ""}[
            self.float_format
        ]
        formatter: Any = None if style is None else {"float_kind": lambda number: format(number, style)}
        with np.printoptions(legacy=False):
            text = np.array2string(
                x,
                max_line_width=self.max_line_width,
                precision=self.digits,
                separator=self.separator,
                threshold=self.summarise_threshold,
                edgeitems=self.edge_items,
                formatter=formatter,
            )
        return text.replace("[", self.open_bracket).replace("]", self.close_bracket)
