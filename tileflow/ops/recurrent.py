"""ONNX's recurrent layers: RNN, GRU and LSTM, as one product of the inputs of all steps, and the steps."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .cells import GATES
from .recurrence import Recurrence
from .shape import present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value


@dataclass(frozen=True, repr=False)
class _Layer(Op):
    """Base: ONNX's attributes that all three have."""

    roles: ClassVar[tuple[str, ...]] = ("data", "weight", "weight", "bias", "data", "start")

    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    activations: tuple[str, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    def steps(self) -> Recurrence:
        """The operator of the steps."""
        given: dict[str, Any] = {name: value for name, value in self.attributes().items() if name != "hidden_size"}
        return Recurrence(kind=self.name, **given)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, w, r = map(present, types[:3])
        steps, gates = self.steps(), GATES[self.name]
        d = steps.directions
        if x.rank != 3:
            raise ShapeError(f"X is {x}; it must be {'[batch, steps, inputs]' if self.layout else '[steps, batch, inputs]'}.")
        if r.rank != 3 or r.shape[0] != d or r.shape[1] != gates * r.shape[2] or not r.shape[2]:
            raise ShapeError(f"R is {r}; for {d} direction{'s' * (d > 1)} of {self.name} it must be [{d}, {gates} * hidden, hidden].")
        if self.hidden_size is not None and self.hidden_size != r.shape[2]:
            raise ShapeError(f"hidden_size is {self.hidden_size} and R is {r}, which has {r.shape[2]} hidden units.")
        if w.shape != (d, r.shape[1], x.shape[2]):
            raise ShapeError(f"W is {w}; beside X {x} and R {r} it must be {[d, r.shape[1], x.shape[2]]}.")
        if not x.is_float or not x.dtype == w.dtype == r.dtype:
            raise TypeMismatchError(f"X is {x}, W is {w}, R is {r}; they must have one float type.")
        first, second = x.shape[:2]
        return steps.infer(x.with_shape((d, first, second, r.shape[1])), r, *types[3:])[:-1]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, w, r = map(present, inputs[:3])
        first, second, size = x.shape
        d, wide, _ = w.shape
        if d == 1:
            flat = b.Reshape(x, shape=(first * second, size), allowzero=1)
            products = b.Gemm(flat, b.Reshape(w, shape=(wide, size), allowzero=1), transB=1)
        else:
            products = b.FusedMatMul(b.Reshape(x, shape=(1, first * second, size), allowzero=1), w, transB=1)
        return b.emit(self.steps(), b.Reshape(products, shape=(d, first, second, wide), allowzero=1), r, *inputs[3:])[:-1]


@op("RNN")
class RNN(_Layer):
    """H_t = f(X_t W^T + H_{t-1} R^T + Wb + Rb).

    Inputs: X [steps, batch, inputs], W [directions, hidden, inputs], R [directions, hidden, hidden], B [directions, 2 * hidden], sequence_lens
    [batch], initial_h [directions, batch, hidden], the last three optional; with layout 1 the batch comes first in X, states and outputs.
    Outputs: Y [steps, directions, batch, hidden], 0 after a sequence's end, and Y_h, the last states. A sequence in reverse begins at its own end.
    """

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 2, 4), (1, 5, 4), (1, 5, 5), (1, 10)),
                sample((3, 2, 4), (2, 5, 4), (2, 5, 5), (2, 10), ("int32", (2,), 0, 4), (2, 2, 5), direction="bidirectional",
                       activations=("Relu", "Affine"), activation_alpha=(0.5,), activation_beta=(0.1,))]


@op("GRU")
class GRU(_Layer):
    """z, r = f(X W^T + H R^T + biases), n = g(X W^T + (r H) R^T + biases), H' = (1 - z) n + z H; with linear_before_reset r multiplies H R^T + Rb.

    Operands as RNN has them, the weights of z, r and n one below the other.
    """

    linear_before_reset: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 2, 4), (1, 15, 4), (1, 15, 5), (1, 30), None, (1, 2, 5)),
                sample((2, 3, 4), (1, 15, 4), (1, 15, 5), (1, 30), direction="reverse", linear_before_reset=1, layout=1),
                sample((3, 2, 4), (1, 15, 4), (1, 15, 5), ("float32", (1, 30), -1, 1), ("int32", (2,), 0, 4),
                       activations=("HardSigmoid", "ScaledTanh"), activation_alpha=(0.3, 1.2), activation_beta=(0.4, 0.7), clip=2.0)]


@op("LSTM")
class LSTM(_Layer):
    """i, f = s(X W^T + H R^T + P C + biases), C' = f C + i g(...), o = s(... + P C'), H' = o h(C') with s, g, h the functions f, g, h of ONNX.

    Operands as RNN has them, then initial_c like initial_h, and peepholes P [directions, 3 * hidden] of i, o and f; the weights of i, o, f and
    the cell one below the other. Outputs Y, Y_h, Y_c. With input_forget f is 1 - i.
    """

    roles = ("data", "weight", "weight", "bias", "data", "start", "start", "weight")
    input_forget: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 2, 4), (1, 20, 4), (1, 20, 5), (1, 40)),
                sample((3, 2, 4), (2, 20, 4), (2, 20, 5), (2, 40), ("int32", (2,), 0, 4), (2, 2, 5), (2, 2, 5), (2, 15), direction="bidirectional"),
                sample((2, 3, 4), (1, 20, 4), (1, 20, 5), None, None, (2, 1, 5), None, (1, 15), direction="reverse", input_forget=1, layout=1,
                       clip=1.5)]
