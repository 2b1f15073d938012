"""Operators of users' own as the registry has them: a class for each form that `forward` may be written in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..graph import Builder, Op, TensorType, Value
from ..graph.composite import alone
from ..graph.op import Types
from ..graph.work import Work
from ..kernels.dtypes import CODES
from ..kernels.elementwise.expr import Const, Expr, Var, cast, derivative, is_zero, plus, times
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Const as Table
from ..kernels.machine.foreign import ForeignLeaf, foreign_leaf
from ..kernels.machine.host import HostCall
from ..ops.elementwise import ANY, Elementwise
from ..ops.hosted import counted_whole, fitting, host_call, listed
from ..ops.shape import zeros
from ..system.errors import ShapeError, TileflowError, TypeMismatchError, UnsupportedError
from ..system.text import one_line
from .attributes import kinds_of, settle
from .marks import UserFunction

Arrays = Sequence[np.ndarray | None]


class Custom(Op):
    """Base of all of them.

    domain, called: as its user knows it. written: `forward`. backwards: `gradient`, if it is written. told: `infer`, if
    it is.
    companion: the operator that computes gradients, where these are functions over arrays. twin: `reference`, if there
    is one.
    """

    domain: ClassVar[str]
    called: ClassVar[str]
    written: ClassVar[UserFunction]
    backwards: ClassVar[UserFunction | None] = None
    told: ClassVar[Callable[..., Any] | None] = None
    companion: ClassVar[Any] = None
    twin: ClassVar[Callable[..., Any] | None] = None

    def __post_init__(self) -> None:
        settle(self, object.__setattr__)

    def __call__(self, *inputs: Any) -> Any:
        """Record it in a layer's `forward`: tensors in, a tensor or a tuple of them out."""
        first = next((x for x in inputs if hasattr(x, "applied")), None)
        if first is None:
            raise TileflowError(
                f"{self.name} records a graph and takes no arrays: call it in forward() of a layer; "
                f"tileflow.testing.check_operator tries it "
                "out on arrays."
            )
        return first.applied(self, inputs)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        """What the user's `infer` says."""
        told = type(self).told
        assert told is not None
        self.require_operands(told, len(types), "infer")
        found = tuple(listed(told(self, *types)))
        if not found or not all(isinstance(t, TensorType) for t in found):
            raise TypeMismatchError(
                f"its infer() must give a TensorType, or a tuple of them, not {one_line(repr(found), 120)}."
            )
        return found

    def reference_by_user(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """What the user's `reference` says."""
        twin = type(self).twin
        assert twin is not None
        return tuple(map(np.asarray, listed(twin(self, *inputs))))

    def require_operands(self, function: Callable[..., Any], count: int, what: str, more: int = 1) -> None:
        """Raise ShapeError where a function of the user's does not take so many operands, and `more` arguments before
        them."""
        try:
            inspect.signature(function).bind(*[None] * (count + more))
        except TypeError as error:
            raise ShapeError(
                f"it is given {count} inputs, which its {what}() does not take: {one_line(error, 120)}."
            ) from None

    def vjp_by_parts(
        self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None], outputs: Sequence[Value]
    ) -> Sequence[Value | None]:
        """The gradient as the user's composition puts it together."""
        assert self.backwards is not None
        made = self.backwards.function(self, b, *inputs, *outputs, *_written_out(b, grads, outputs))
        return self.for_inputs(made, inputs, Value)

    def vjp_by_companion(
        self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None], outputs: Sequence[Value]
    ) -> Sequence[Value | None]:
        """The gradients of all inputs that are floats, by the operator that computes them."""
        wanted = [v is not None and v.type.is_float for v in inputs]
        if not any(wanted):
            return [None] * len(inputs)
        made = iter(b.emit(self.companion(operands=len(inputs), **self.attributes()), *inputs, *outputs,
                           *_written_out(b, grads, outputs)))
        return [next(made) if w else None for w in wanted]

    def gradient_by_expression(
        self, index: int, x: Sequence[Expr], y: Sequence[Expr], g: Sequence[Expr | None]
    ) -> Expr:
        """The gradient of an input as the user's expression says it."""
        assert self.backwards is not None
        given = [Const(0, v.dtype) if u is None else u for u, v in zip(g, y, strict=True)]
        found = self.for_inputs(self.backwards.function(self, *x, *y, *given), x, Expr | int | float)[index]
        return found if isinstance(found, Expr) else Const(0 if found is None else found, x[index].dtype)

    def for_inputs(self, made: Any, inputs: Sequence[Any], kind: Any) -> list[Any]:
        """What `gradient` gave, as one for each input."""
        found = listed(made)
        if len(found) != len(inputs) or not all(f is None or isinstance(f, kind) for f in found):
            raise TypeMismatchError(
                f"{self.name}: its gradient() must give one gradient (or None) for each of {len(inputs)} inputs, not "
                f"{one_line(repr(made), 120)}."
            )
        return found


def _written_out(b: Builder, grads: Sequence[Value | None], outputs: Sequence[Value]) -> list[Value | None]:
    """The outputs' gradients, zeros where nothing depends on one that may have some."""
    return [g if g is not None or not v.type.is_float else zeros(b, v) for g, v in zip(grads, outputs, strict=True)]


class Scalar(Custom, Elementwise):
    """`forward` is an expression."""

    accepts = ANY

    def check(self, types: Sequence[TensorType]) -> None:
        """Every type that the expression takes."""
        for t in types:
            if t.dtype not in self.accepts:
                raise TypeMismatchError(
                    f"an input is {t}, which it does not take; cast it to one of: {', '.join(self.accepts)}."
                )

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        self.require_operands(self.written.function, len(types), "forward")
        if None in types:
            raise ShapeError("an input is absent, and expressions take all.")
        return Elementwise.infer(self, *types)

    def expressions(self, inputs: Types) -> tuple[Expr, ...]:
        return self._traced([Var(i, t.dtype) for i, t in enumerate(inputs) if t is not None])

    def _traced(self, x: Sequence[Expr]) -> tuple[Expr, ...]:
        try:
            made = self.written.function(self, *x)
        except AssertionError as error:
            raise TypeMismatchError(
                f"its forward() does not take these element types: {one_line(error, 160)}."
            ) from None
        found = tuple(listed(made))
        if not all(isinstance(e, Expr) for e in found):
            raise TypeMismatchError(
                f"its forward() must give an expression of its inputs, or a tuple of them, not "
                f"{one_line(repr(made), 120)}."
            )
        return found

    def expr(self, *x: Expr) -> Expr:
        return self._traced(x)[0]

    def gradient(self, index: int, x: Sequence[Expr], y: Sequence[Expr], g: Sequence[Expr | None]) -> Expr:
        """What follows from the expressions."""
        total = Const(0, x[index].dtype)
        for e, upper in zip(self._traced(x), g, strict=True):
            if upper is not None and e.is_float:
                part = times(derivative(e, index), upper)
                total = plus(total, Const(0, total.dtype) if is_zero(part) else cast(part, total.dtype))
        return total


class Composite(Custom):
    """`forward` is a composition."""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        if self.told is not None:
            return super().infer(*types)
        self.require_operands(self.written.function, len(types), "forward", 2)
        return tuple(v.type for v in alone(self, types)[0].outputs)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        made = self.written.function(self, b, *inputs)
        found = listed(made)
        if not all(isinstance(v, Value) for v in found):
            raise TypeMismatchError(
                f"{self.name}: its forward() must give what the builder gave, not {one_line(repr(made), 120)}; an "
                f"operator of several "
                "outputs gives a tuple."
            )
        return found


class Opaque(Custom):
    """Base of forms that are functions over arrays, into which nobody looks."""

    operands = 0
    """Of a companion: how many of its inputs are those of the operator whose gradients it computes; 0: it is none."""
    no_gradient = "it is declared without gradient()"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        if self.operands:
            return tuple(t for t in types[: self.operands] if t is not None and t.is_float)
        return super().infer(*types)

    @property
    def function(self) -> UserFunction:
        """The function that it runs: `forward`, or a companion's `gradient`."""
        if not self.operands:
            return self.written
        assert self.backwards is not None
        return self.backwards

    @property
    def plain(self) -> Callable[..., Any]:
        """That function as Python has it."""
        function = self.function.function
        found: Callable[..., Any] = getattr(function, "py_func", function)
        return found

    def kinds(self) -> dict[str, Any]:
        """The kinds of the attributes by name."""
        own: Any = type(self)
        return kinds_of(own)

    def own_attributes(self) -> dict[str, Any]:
        """The user's."""
        return {name: value for name, value in self.attributes().items() if name != "operands"}


class CompiledOperator(Opaque):
    """The function is Numba's."""

    def _parameters(self, inputs: Types, outputs: Sequence[TensorType]) -> tuple[list[str], list[str]]:
        """The function's parameters for operands, and those for attributes.

        Raises:
            ShapeError: there are others.
        """
        names = list(inspect.signature(self.plain).parameters)
        count = sum(t is not None for t in inputs) + len(outputs)
        operands, more = names[:count], names[count:]
        if len(operands) < count or not set(more) <= set(self.own_attributes()):
            raise ShapeError(
                f"{self.name}: its compiled function takes ({', '.join(names)}); it must take {count} arrays (inputs, "
                f"outputs) and then attributes "
                f"by their names ({', '.join(self.own_attributes()) or 'there are none'})."
            )
        if not set(self.function.rows) <= set(operands):
            raise ShapeError(
                f"{self.name}: rows={self.function.rows!r} names what is no array among ({', '.join(operands)})."
            )
        return operands, more

    def leaf_call(self, inputs: Types, outputs: Sequence[TensorType], boundscheck: bool = False) -> Call:
        """The call of the function; `boundscheck`: an index out of range raises."""
        present = [(In(i, t.shape or (1,)), t) for i, t in enumerate(inputs) if t is not None]
        arrays: list[tuple[In | Out, TensorType]] = [
            *present,
            *((Out(k, t.shape or (1,)), t) for k, t in enumerate(outputs)),
        ]
        names, more = self._parameters(inputs, outputs)
        words: list[str] = []
        args: list[Any] = []
        lengths = {}
        for (arg, t), name in zip(arrays, names, strict=True):
            dims = [":"] * len(arg.shape)
            if name in self.function.rows:
                dims[0], lengths[name] = "r", arg.shape[0]
            words.append(f"{CODES[t.dtype]}[{','.join(dims)}]")
            args.append(arg)
        if len(set(lengths.values())) > 1 or (lengths and not set(names[len(present) :]) <= set(lengths)):
            raise ShapeError(
                f"{self.name}: rows must name all outputs ({', '.join(names[len(present) :])}) and arrays of as many "
                f"rows, not {lengths}."
            )
        texts: list[Any] = []
        given, kinds = self.own_attributes(), self.kinds()
        for i, name in enumerate(more):
            value = given[name]
            if kinds[name] in (str, tuple[str, ...]):
                texts.append(value)
                continue
            if texts:
                raise ShapeError(
                    f"{self.name}: texts stand last among the parameters of its compiled function, behind "
                    f"{', '.join(more[i:])}."
                )
            if isinstance(value, tuple):
                kind = "f8" if kinds[name] == tuple[float, ...] else "i8"
                words.append(f"{kind}[:]")
                args.append(Table.of(value, kind))
            else:
                words.append("f8" if isinstance(value, float) else "i8")
                args.append(value)
        n = next(iter(lengths.values()), 1)
        leaf: ForeignLeaf = foreign_leaf(self.function.function, ", ".join(words), tuple(texts), boundscheck)
        try:
            leaf.compile()
        except Exception as error:  # whatever a compiler says of a user's function
            raise UnsupportedError(
                f"{self.name}: Numba does not compile its function for ({leaf.signature}): "
                f"{one_line(str(error).strip(), 300)}"
            ) from error
        return Call(leaf, args, n, 1, self.function.cost * outputs[0].size)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return [self.leaf_call(inputs, outputs)] if all(t.size for t in outputs) else []

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """The function as Python runs it."""
        types = [None if a is None else TensorType(a.dtype.name, a.shape) for a in inputs]
        outputs = self.infer(*types)
        made = [np.zeros(t.shape or (1,), t.numpy) for t in outputs]
        _, more = self._parameters(types, outputs)
        given, lists = self.own_attributes(), {tuple[int, ...]: np.int64, tuple[float, ...]: np.float64}
        kinds = self.kinds()
        attributes = [np.array(given[n], lists[kinds[n]]) if kinds[n] in lists else given[n] for n in more]
        self.plain(
            *(np.ascontiguousarray(a).reshape(a.shape or (1,)) for a in inputs if a is not None), *made, *attributes
        )
        return tuple(a.reshape(t.shape) for a, t in zip(made, outputs, strict=True))

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        names, _ = self._parameters(inputs, outputs)
        present = [i for i, t in enumerate(inputs) if t is not None]
        places = [*present, *(len(inputs) + k for k in range(len(outputs)))]
        rows = frozenset(place for place, name in zip(places, names, strict=True) if name in self.function.rows)
        return counted_whole(inputs, outputs, self.function.flops, rows)


class PythonOperator(Opaque):
    """The function is Python's: a HOST row."""

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        """Nothing that is compiled."""
        return []

    def host(self, inputs: Types, outputs: Sequence[TensorType]) -> HostCall:
        return host_call(functools.partial(self._given, outputs), inputs, outputs)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """What the function gives, if it is what it is to give (ShapeError, TypeMismatchError)."""
        return self._given(self.infer(*[None if a is None else TensorType(a.dtype.name, a.shape) for a in inputs]),
                           *inputs)

    def _given(self, outputs: Sequence[TensorType], *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        made = self.function.function(self, *inputs)
        if not self.operands:
            return fitting(listed(made), outputs, self.name)
        found = [
            np.zeros_like(x) if g is None else g
            for g, x in zip(self.for_inputs(made, inputs[: self.operands], object), inputs, strict=False)
            if x is not None and TensorType(x.dtype.name, x.shape).is_float
        ]
        return fitting(found, outputs, self.name)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        return counted_whole(inputs, outputs, self.function.flops)
