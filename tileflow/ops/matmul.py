"""Matrix products: MatMul, Gemm, and MatMul with transposed operands."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.op import OPS, Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Contraction, Operand, Work
from ..kernels.elementwise.epilogue import Epilogue
from ..kernels.gemm import Bias, GemmProblem, Serial, matmul_calls
from ..kernels.machine.call import Call, In, Out
from ..memory.types import TensorType, broadcast_shapes
from ..system.errors import ShapeError, TypeMismatchError
from .shape import Shape, present, sum_to, zeros

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


def _check_dtypes(*types: TensorType) -> None:
    if not types[0].is_float or len({t.dtype for t in types}) > 1:
        raise TypeMismatchError(f"the operands are {', '.join(map(str, types))}; they must all be one float type: cast them.")


def _matrix(shape: Shape, transposed: bool, left: bool) -> tuple[Shape, int, int]:
    """Batch axes, rows and columns of an operand as it enters the product; a 1-D operand is a row (left) or a column."""
    if len(shape) == 1:
        return (), *((1, shape[0]) if left else (shape[0], 1))
    rows, columns = shape[-2:]
    return shape[:-2], *((columns, rows) if transposed else (rows, columns))


def _steps(batch: Shape, out: Shape, elements: int) -> Shape:
    """Elements from one matrix to the next along each output batch axis; 0 along broadcast axes."""
    steps: list[int] = []
    for size in reversed((1,) * (len(out) - len(batch)) + batch):
        steps.insert(0, 0 if size == 1 else elements)
        elements *= size
    return tuple(steps)


def product_problem(a: TensorType, b: TensorType, trans_a: bool, trans_b: bool) -> GemmProblem:
    """Sizes and batch of op(A) @ op(B) by NumPy's rules. Raises ShapeError."""
    if a.rank == 0 or b.rank == 0:
        raise ShapeError(f"A is {a} and B is {b}; each must have at least one dimension.")
    batch_a, m, k = _matrix(a.shape, trans_a, True)
    batch_b, rows, n = _matrix(b.shape, trans_b, False)
    if k != rows:
        raise ShapeError(f"A is {a}{' (transposed)' * trans_a} and B is {b}{' (transposed)' * trans_b}: "
                         f"the {k} columns of A must equal the {rows} rows of B.")
    batch = broadcast_shapes(batch_a, batch_b)
    if batch is None:
        raise ShapeError(f"A is {a} and B is {b}: the batch dimensions {list(batch_a)} and {list(batch_b)} do not broadcast.")
    return GemmProblem(m, n, k, trans_a and a.rank > 1, trans_b and b.rank > 1, batch,
                   _steps(batch_a, batch, m * k), _steps(batch_b, batch, k * n))


MODES = {"input_channels": "m", "reducing_dim": "k", "output_channels": "n"}
"""What a serialized product A [m, k] @ B [k, n] cuts, by PopTorch's names of the modes."""


@dataclass(frozen=True)
class Pieces:
    """How a product is serialized: the axis that is cut (m, k or n), in how many pieces, sums of pieces in float32 at least."""

    axis: str
    factor: int
    keep_precision: bool = False

    def of(self, axes: str) -> dict[str, Any]:
        """Attributes of a related product whose rows, sums and columns are these axes of the first one, in this order."""
        mode = list(MODES)[axes.index(self.axis)]
        return dict(mode=mode, factor=self.factor, keep_precision=self.keep_precision)


def product(b: Builder, x: Value, y: Value, trans_x: bool, trans_y: bool, alpha: float = 1.0, pieces: dict[str, Any] | None = None) -> Value:
    """alpha * op(x) @ op(y) by the plainest operator that has it."""
    plain = len(x.shape) == len(y.shape) == 2
    if pieces:
        make = b.SerializedGemm if plain else b.SerializedMatMul
        return make(x, y, transA=int(trans_x), transB=int(trans_y), alpha=alpha, **pieces)
    if plain:
        return b.Gemm(x, y, transA=int(trans_x), transB=int(trans_y), alpha=alpha)
    if not trans_x and not trans_y and alpha == 1:
        return b.MatMul(x, y)
    return b.FusedMatMul(x, y, transA=int(trans_x), transB=int(trans_y), alpha=alpha)


def _reshape(b: Builder, x: Value, shape: Shape) -> Value:
    return x if x.shape == shape else b.Reshape(x, shape=shape, allowzero=1)


def product_gradients(b: Builder, g: Value, x: Value, y: Value, trans_x: bool, trans_y: bool, alpha: float,
                      pieces: Pieces | None = None) -> tuple[Value, Value]:
    """Gradients of x and y from that of alpha * op(x) @ op(y), without transposing anything: flags of the products say it.

    They are cut along the same axis as the product, which is another mode for each of them.
    """
    def cut(axes: str) -> dict[str, Any] | None:
        return pieces.of(axes) if pieces else None

    if len(y.shape) == 2 and len(x.shape) > 2 and not trans_x:
        rows = math.prod(x.shape[:-1])
        dx, dy = product_gradients(b, _reshape(b, g, (rows, g.shape[-1])), _reshape(b, x, (rows, x.shape[-1])), y, False, trans_y, alpha,
                                   pieces)
        return _reshape(b, dx, x.shape), dy
    dx = product(b, y, g, trans_y, True, alpha, cut("knm")) if trans_x else product(b, g, y, False, not trans_y, alpha, cut("mnk"))
    dy = product(b, g, x, True, trans_x, alpha, cut("nmk")) if trans_y else product(b, x, g, not trans_x, False, alpha, cut("kmn"))
    return sum_to(b, dx, x.shape), sum_to(b, dy, y.shape)


def _serial(pieces: Pieces | None) -> Serial | None:
    return None if pieces is None else Serial(pieces.axis, pieces.factor)


def _serial_notes(pieces: Pieces | None) -> dict[str, int]:
    """What a planner of half precision must know: whether sums of pieces stay float32."""
    return {"keep_precision": int(pieces.keep_precision)} if pieces is not None else {}


def _serial_axes(pieces: Pieces | None) -> tuple[tuple[str, int], ...]:
    return () if pieces is None else ((pieces.axis, pieces.factor),)


class Product(Op):
    """Base of the batched products: A [..., m, k] @ B [..., k, n], batch axes broadcast, 1-D operands as in NumPy's matmul."""

    halves = True

    def flags(self) -> tuple[bool, bool, float]:
        """Whether A and B enter transposed (their last two axes), and the factor."""
        return False, False, 1.0

    def pieces(self) -> Pieces | None:
        """How the product is serialized, if it is."""
        return None

    def problem(self, a: TensorType, b: TensorType) -> GemmProblem:
        """Sizes and batch of the product. Raises ShapeError."""
        trans_a, trans_b, _ = self.flags()
        return product_problem(a, b, trans_a, trans_b)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        a, b = map(present, types)
        _check_dtypes(a, b)
        p = self.problem(a, b)
        return (a.with_shape((*p.batch, *(p.m,) * (a.rank > 1), *(p.n,) * (b.rank > 1))),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        a, b = map(present, inputs)
        trans_a, trans_b, alpha = self.flags()
        y = np.matmul(a.swapaxes(-1, -2) if trans_a and a.ndim > 1 else a, b.swapaxes(-1, -2) if trans_b and b.ndim > 1 else b)
        return (np.asarray(y * a.dtype.type(alpha), a.dtype),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, y, g = present(inputs[0]), present(inputs[1]), present(grads[0])
        trans_x, trans_y, alpha = self.flags()
        p = self.problem(x.type, y.type)
        dx, dy = product_gradients(
            b, _reshape(b, g, (*p.batch, p.m, p.n)), _reshape(b, x, (1, *x.shape)) if x.type.rank == 1 else x,
            _reshape(b, y, (*y.shape, 1)) if y.type.rank == 1 else y,
            trans_x and x.type.rank > 1, trans_y and y.type.rank > 1, alpha, self.pieces())
        return [_reshape(b, dx, x.shape), _reshape(b, dy, y.shape)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        a, b = present(inputs[0]), present(inputs[1])
        p = self.problem(a, b)
        letters = [f"b{i}" for i in range(len(p.batch))]

        def dims(t: TensorType, last: tuple[str, str], transposed: bool, vector: str) -> tuple[str | None, ...]:
            if t.rank == 1:
                return (vector,)
            lead = len(p.batch) - (t.rank - 2)
            named = tuple(letters[lead + i] if n == p.batch[lead + i] else None for i, n in enumerate(t.shape[:-2]))
            return (*named, *(last[::-1] if transposed else last))

        axes = (*(Axis(name, n) for name, n in zip(letters, p.batch, strict=True)), Axis("m", p.m), Axis("n", p.n),
                Axis("k", p.k, "reduce"))
        out = (*letters, *("m",) * (a.rank > 1), *("n",) * (b.rank > 1))
        return Contraction(axes, (Operand(dims(a, ("m", "k"), p.trans_a, "k"), a.dtype),
                                  Operand(dims(b, ("k", "n"), p.trans_b, "k"), b.dtype)), (Operand(out, a.dtype),), alpha=self.flags()[2],
                           serial=_serial_axes(self.pieces()), notes=_serial_notes(self.pieces()))

    def serialized(self, mode: str, factor: int, keep_precision: bool = False) -> Op:
        trans_a, trans_b, alpha = self.flags()
        attributes = dict(transA=int(trans_a), transB=int(trans_b), alpha=alpha)
        return OPS["SerializedMatMul"](**attributes, **dict(mode=mode, factor=factor, keep_precision=keep_precision))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return self.calls(self.problem(present(inputs[0]), present(inputs[1])), inputs, outputs)

    def calls(self, p: GemmProblem, inputs: Types, outputs: Sequence[TensorType], packed: bool = False,
              epilogue: Epilogue | None = None, partials: str = "f4") -> list[Call]:
        """The kernel of problem `p`; with `packed` B is laid out in panels. `partials`: the type of sums of 16-bit products."""
        a, b = present(inputs[0]), present(inputs[1])
        return matmul_calls(a.code, p, In(0, a.shape), In(1, b.shape), Out(0, outputs[0].shape), alpha=self.flags()[2],
                            serial=_serial(self.pieces()), packed=packed, epilogue=epilogue, partials=partials)


@op("MatMul")
class MatMul(Product):
    """A @ B with NumPy's rules: batch axes broadcast, a 1-D A is a row, a 1-D B a column, and that axis goes from the result."""

    roles = ("data", "weight")

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 3, 4), (4, 5)), sample((4,), (4, 5))]


@op("FusedMatMul", onnx=False)
class FusedMatMul(Product):
    """alpha * A @ B where `transA` and `transB` transpose the last two axes first (onnxruntime's operator of that name)."""

    roles = ("data", "weight")
    alpha: float = 1.0
    transA: int = 0
    transB: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 3, 4), (2, 5, 4), transB=1, alpha=0.5)]

    def flags(self) -> tuple[bool, bool, float]:
        return bool(self.transA), bool(self.transB), self.alpha

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """For files: ONNX has the parts only."""
        x, y = (_turned(b, present(v)) if turned else present(v) for v, turned in zip(inputs, self.flags(), strict=False))
        product = b.MatMul(x, y)
        return [product if self.alpha == 1 else b.Mul(product, b.scalar(self.alpha, product))]


def _turned(b: Builder, x: Value) -> Value:
    """The last two axes exchanged; a vector is as it is."""
    rank = x.type.rank
    return x if rank < 2 else b.Transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


@op("Gemm")
class Gemm(Op):
    """alpha * A' @ B' + beta * C of matrices; ' transposes where the flag says so; C (optional) broadcasts to [m, n]."""

    roles = ("data", "weight", "bias")
    halves = True
    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (5, 4), (5,), transB=1), sample((4, 3), (4, 5), transA=1)]

    def problem(self, a: TensorType, b: TensorType) -> GemmProblem:
        """Sizes of the product. Raises ShapeError."""
        if a.rank != 2 or b.rank != 2:
            raise ShapeError(f"A is {a} and B is {b}; both must have two dimensions (MatMul takes batches).")
        return product_problem(a, b, bool(self.transA), bool(self.transB))

    def pieces(self) -> Pieces | None:
        """How the product is serialized, if it is."""
        return None

    def serialized(self, mode: str, factor: int, keep_precision: bool = False) -> Op:
        return OPS["SerializedGemm"](**self.attributes(), **dict(mode=mode, factor=factor, keep_precision=keep_precision))

    def addend(self, inputs: Sequence[TensorType | None]) -> TensorType | None:
        """The type of C; None where it is absent or beta is 0, which also hides a C that is not finite."""
        return inputs[2] if len(inputs) > 2 and self.beta != 0 else None

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        a, b = present(types[0]), present(types[1])
        c = types[2] if len(types) > 2 else None
        _check_dtypes(a, b, *([c] if c else []))
        p = self.problem(a, b)
        if c and broadcast_shapes(c.shape, (p.m, p.n)) != (p.m, p.n):
            raise ShapeError(f"C is {c}, which does not broadcast to the product's shape [{p.m}, {p.n}] of A {a} and B {b}.")
        return (a.with_shape((p.m, p.n)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        a, b = present(inputs[0]), present(inputs[1])
        c = inputs[2] if len(inputs) > 2 and self.beta != 0 else None
        number = a.dtype.type
        y = number(self.alpha) * ((a.T if self.transA else a) @ (b.T if self.transB else b))
        return (y if c is None else y + number(self.beta) * c,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, y, g = present(inputs[0]), present(inputs[1]), present(grads[0])
        found: list[Value | None] = [*product_gradients(b, g, x, y, bool(self.transA), bool(self.transB), self.alpha, self.pieces())]
        for c in inputs[2:]:
            if c is None:
                found.append(None)
            elif self.beta == 0:
                found.append(zeros(b, c))
            else:
                dc = sum_to(b, g, c.shape)
                found.append(dc if self.beta == 1 else b.Mul(dc, b.scalar(self.beta, dc)))
        return found

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        a, b = present(inputs[0]), present(inputs[1])
        p = self.problem(a, b)
        operands: list[Operand | None] = [Operand(("k", "m") if p.trans_a else ("m", "k"), a.dtype),
                                          Operand(("n", "k") if p.trans_b else ("k", "n"), b.dtype)]
        for c in [self.addend(inputs)] * (len(inputs) > 2):
            named = () if c is None else [name if n == size else None for name, n, size in
                                          zip("mn"[2 - c.rank:], c.shape, (p.m, p.n)[2 - c.rank:], strict=True)]
            operands.append(None if c is None else Operand(tuple(named), c.dtype))
        return Contraction((Axis("m", p.m), Axis("n", p.n), Axis("k", p.k, "reduce")), tuple(operands), (Operand(("m", "n"), a.dtype),),
                           alpha=self.alpha, beta=self.beta, serial=_serial_axes(self.pieces()), notes=_serial_notes(self.pieces()))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return self.calls(self.problem(present(inputs[0]), present(inputs[1])), inputs, outputs)

    def calls(self, p: GemmProblem, inputs: Types, outputs: Sequence[TensorType], packed: bool = False,
              epilogue: Epilogue | None = None, partials: str = "f4") -> list[Call]:
        """The kernel of problem `p`; with `packed` B is laid out in panels. `partials`: the type of sums of 16-bit products."""
        a, b, c = present(inputs[0]), present(inputs[1]), self.addend(inputs)
        bias = None
        if c is not None:
            rows, columns = (1,) * (2 - c.rank) + c.shape
            bias = Bias(In(2, c.shape), 0 if rows == 1 else columns, 0 if columns == 1 else 1)
        return matmul_calls(a.code, p, In(0, a.shape), In(1, b.shape), Out(0, outputs[0].shape),
                            alpha=self.alpha, beta=self.beta, bias=bias, serial=_serial(self.pieces()), packed=packed, epilogue=epilogue,
                            partials=partials)
