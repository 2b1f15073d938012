"""What elementwise operators share: each declares one scalar expression; type inference, kernel, cost and gradient follow from it."""
from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..graph import FLOATS, HALVES, Builder, Op, TensorType, Value, broadcast_shapes, op
from ..graph.op import Types
from ..graph.sample import Sample, sample
from ..graph.work import Work, map_work
from ..kernels.elementwise import expr as scalar
from ..kernels.elementwise.expr import EXACT, OPERATIONS, Expr, Var, cast, derivative, is_zero, plus, substitute, times
from ..kernels.elementwise.loops import elementwise_call
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..system.errors import ShapeError, TileflowError, TypeMismatchError
from .functions import applications, functions
from .shape import sum_to, zeros

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTEGERS
ANY = (*NUMBERS, "bool")


class Elementwise(Op):
    """Base of operators that compute each output element from the same elements of the broadcast inputs.

    A subclass gives `expr`, the scalar expression, and where the derived gradient is not the best one `pullback`.
    """

    halves = True
    accepts: ClassVar[tuple[str, ...]] = FLOATS
    """Element types the inputs may have; all inputs have the same one unless `check` says otherwise."""

    @classmethod
    def samples(cls) -> list[Sample]:
        """Operands that broadcast, of the first element type among those tried that the operator takes: in its smooth range, and around zero."""
        for count, dtype in itertools.product((1, 2, 3), ("float32", "bool", "int32")):
            shapes = [(dtype, shape) for shape in ((3, 4), (4,), (3, 1))[:count]]
            try:
                cls().infer(*[TensorType(*given) for given in shapes])
            except (TileflowError, TypeError, IndexError, ValueError):
                continue
            wide = [sample(*[(*given, -2.5, 2.5) for given in shapes])] if dtype == "float32" else []
            return [sample(*shapes), *wide]
        raise AssertionError(f"{cls.__name__} takes none of the types tried; let it declare its samples")

    def expr(self, *x: Expr) -> Expr:
        """The output element from the input elements."""
        raise NotImplementedError

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        """The gradient of input `index`, given inputs, output and the output's gradient."""
        return times(derivative(self.expr(*x), index), g)

    def check(self, types: Sequence[TensorType]) -> None:
        """Raise TypeMismatchError where the element types do not fit."""
        for t in types:
            if t.dtype not in self.accepts:
                raise TypeMismatchError(f"an input is {t}, which it does not take; cast it to one of: {', '.join(self.accepts)}.")
        if len({t.dtype for t in types}) > 1:
            raise TypeMismatchError(f"the inputs must have one element type, not {_listed(types)}; cast them to the same one.")

    def expressions(self, inputs: Types) -> tuple[Expr, ...]:
        """The expressions of all outputs over variables typed as `inputs`."""
        if not self.__dict__:                             # no attributes: one answer for all such nodes
            return (_expression(type(self), tuple(None if t is None else t.dtype for t in inputs)),)          # type: ignore[arg-type]
        return (self.expr(*_variables(inputs)),)

    def gradient(self, index: int, x: Sequence[Expr], y: Sequence[Expr], g: Sequence[Expr | None]) -> Expr:
        """The gradient of input `index` from those of all outputs (None: zero).

        Of 16-bit values it is computed in float32 and rounded once, as PyTorch's kernels do it: a chain rounded after
        every step would lose bits, and takes twice the time.
        """
        upper = g[0]
        assert upper is not None
        e = self.pullback(index, x, y[0], upper)
        if sum(n.dtype in HALVES and n.op in OPERATIONS and n.op not in EXACT for n in scalar.postorder([e])) < 2:
            return e
        wide = [cast(v, "float32") if v.dtype in HALVES else v for v in (*x, y[0], upper)]
        return self.pullback(index, wide[:-2], wide[-2], wide[-1])

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        present = [t for t in types if t is not None]
        assert len(present) == len(types), f"{self.name} has no optional inputs"
        self.check(present)
        shape = broadcast_shapes(*[t.shape for t in present])
        if shape is None:
            raise ShapeError(f"the inputs {_listed(present)} do not broadcast to one shape: counted from the right, "
                             "dimensions must be equal or 1.")
        return tuple(TensorType(e.dtype, shape) for e in self.expressions(present))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        arrays = [np.asarray(x) for x in inputs]
        shape = np.broadcast_shapes(*[a.shape for a in arrays])
        expressions = self.expressions([TensorType(a.dtype.name, a.shape) for a in arrays])
        return tuple(np.array(np.broadcast_to(scalar.evaluate(e, arrays), shape)) for e in expressions)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """A Map node per float input that is not a constant, summed over the dimensions it was broadcast along."""
        values = [*inputs, *outputs, *grads]
        x = _variables([None if v is None else v.type for v in inputs])
        y = tuple(Var(len(x) + k, v.dtype) for k, v in enumerate(outputs))
        g = [None if v is None else Var(len(x) + len(y) + k, v.dtype) for k, v in enumerate(grads)]
        results: list[Value | None] = []
        for i, v in enumerate(inputs):
            if v is None or not v.type.is_float or v in b.graph.constants:
                results.append(None)
                continue
            e = _rounded(self.gradient(i, x, y, g), v.dtype)
            results.append(zeros(b, v) if is_zero(e) else sum_to(b, apply(b, e, values), v.shape))
        return results

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        shapes = [None if t is None else t.shape for t in inputs]
        counts = functions(*self.expressions(inputs))
        work = map_work(shapes, outputs[0].shape, outputs[0].dtype, applications(counts))
        ins = tuple(dataclasses.replace(o, dtype=t.dtype) for o, t in zip(work.inputs, inputs, strict=True) if o is not None and t is not None)
        return dataclasses.replace(work, inputs=ins, outputs=tuple(dataclasses.replace(work.outputs[0], dtype=t.dtype) for t in outputs),
                                   functions=counts)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        if outputs[0].size == 0:
            return []
        ins = [In(i, t.shape) for i, t in enumerate(inputs) if t is not None]
        return [elementwise_call(self.expressions(inputs), ins, [Out(k, t.shape) for k, t in enumerate(outputs)])]

    def expression(self, inputs: Types, outputs: Sequence[TensorType]) -> Expr | None:
        found = self.expressions(inputs)
        return found[0] if len(found) == 1 else None


@functools.lru_cache(maxsize=1024)
def _expression(operator: type[Elementwise], dtypes: tuple[str | None, ...]) -> Expr:
    """The expression of an operator without attributes."""
    return operator().expr(*[Var(i, dtype) for i, dtype in enumerate(dtypes) if dtype is not None])


def _variables(types: Types) -> tuple[Expr, ...]:
    return tuple(Var(i, t.dtype) for i, t in enumerate(types) if t is not None)


def _rounded(e: Expr, dtype: str) -> Expr:
    """`e` as `dtype`, a literal zero staying one."""
    return scalar.Const(0, dtype) if is_zero(e) else cast(e, dtype)


def _listed(types: Sequence[TensorType]) -> str:
    return " and ".join(map(str, types))


def apply(b: Builder, e: Expr, values: Sequence[Value | None]) -> Value:
    """The value of `e` over `values` (variable i being values[i]): a Map node over those it reads, or the value itself."""
    read = list(scalar.variables(e))
    operands = [values[i] for i in read]
    if e.op == "var":
        assert operands[0] is not None
        return operands[0]
    renumbered = substitute(e, {i: Var(k, v.dtype) for k, (i, v) in enumerate(zip(read, operands, strict=True)) if v is not None})
    return b.Map(*operands, exprs=(renumbered,))


@op("Map", onnx=False)
class Map(Elementwise):
    """Any scalar expressions over broadcast inputs, one output each: what gradients, optimizers and fusion are made of."""

    exprs: tuple[Expr, ...]

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (4,), exprs=(Var(0, "float32") * Var(1, "float32"), Var(1, "float32")))]

    def expressions(self, inputs: Types) -> tuple[Expr, ...]:
        return self.exprs

    def check(self, types: Sequence[TensorType]) -> None:
        for i, variable in scalar.variables(*self.exprs).items():
            assert i < len(types), f"Map reads input {i} of {len(types)}"
            assert types[i].dtype == variable.dtype, f"Map reads input {i} as {variable.dtype}, it is {types[i]}"

    def gradient(self, index: int, x: Sequence[Expr], y: Sequence[Expr], g: Sequence[Expr | None]) -> Expr:
        total = scalar.Const(0, x[index].dtype)
        for e, upper in zip(self.exprs, g, strict=True):
            if upper is not None and e.is_float:
                total = plus(total, _rounded(times(derivative(e, index), upper), x[index].dtype))
        return total
