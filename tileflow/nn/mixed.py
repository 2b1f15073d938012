"""What is recorded where floats of several types meet: the casts that let one operator take them."""
from __future__ import annotations

from ..graph import HALVES, Builder, Graph, Op, Value, widest
from ..graph.op import STATISTIC, TRAINED
from ..ops.cast import Cast
from ..ops.elementwise import Map


class Recorder(Builder):
    """The builder of a recording: where an operator would refuse floats of several types, casts come first.

    upcast: every operator takes the widest type, as PyTorch promotes. Else operators with weights (products, convolutions, normalisation)
    follow the type of their first operand, the activation, and only the others take the widest one.
    """

    def __init__(self, graph: Graph, upcast: bool = False) -> None:
        super().__init__(graph)
        self.upcast = upcast

    def emit(self, op: Op, *inputs: Value | None, names: tuple[str, ...] = ()) -> tuple[Value, ...]:
        floats = [v for v in inputs if v is not None and v.type.is_float]
        if len({v.dtype for v in floats}) > 1 and not isinstance(op, Map):
            follows = not self.upcast and any(role in TRAINED for role in op.roles)
            inputs = self._alike(op, inputs, floats[0].dtype if follows else widest({v.dtype for v in floats}))
        return super().emit(op, *inputs, names=names)

    def _alike(self, op: Op, inputs: tuple[Value | None, ...], dtype: str) -> tuple[Value | None, ...]:
        """The operands with all floats as `dtype`, but for statistics in float32, which operators take beside 16 bits."""
        roles = (*op.roles, *[""] * len(inputs))
        made: list[Value | None] = []
        for v, role in zip(inputs, roles, strict=False):
            fits = v is None or not v.type.is_float or v.dtype == dtype or (role == STATISTIC and v.dtype == "float32" and dtype in HALVES)
            made.append(v if fits else super().emit(Cast(to=dtype), v)[0])
        return tuple(made)
