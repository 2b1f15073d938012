"""Cast: the same numbers in another element type."""
from __future__ import annotations

from collections.abc import Sequence

from ..errors import TypeMismatchError
from ..graph import CODES, TensorType, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise.expr import Expr, cast
from .elementwise import ANY, Elementwise


@op("Cast")
class Cast(Elementwise):
    """The input as element type `to` (NumPy's name; ONNX files hold a number, which the importer maps).

    Float to integer truncates, saturates out of range and makes NaN 0; a wider integer wraps; bool is `x != 0`.
    """

    roles = ("moved",)
    accepts = ANY
    to: str

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), to="int32")]

    def check(self, types: Sequence[TensorType]) -> None:
        super().check(types)
        if self.to not in CODES:
            raise TypeMismatchError(f"it cannot cast to {self.to!r}; element types are: {', '.join(CODES)}.")

    def expr(self, *x: Expr) -> Expr:
        return cast(x[0], self.to)

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return cast(g, x[0].dtype)
