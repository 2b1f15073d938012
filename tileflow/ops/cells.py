"""What the cells of recurrent layers compute for one step, and its gradient: scalar expressions, by ONNX's equations of RNN, GRU and LSTM."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph.op import OPS
from ..kernels.elementwise.expr import Const, Expr, Var, abs_, maximum, minimum, substitute, where
from ..kernels.recurrent.rows import RowPass, Vectors
from ..system.errors import ShapeError, UnsupportedError
from .elementwise import Elementwise

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
"""Vectors of a step that the input takes part in, in ONNX's order: RNN's state; GRU's update z, reset r and new state n; LSTM's input i, output o,
forget f and cell c."""
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
"""Functions f, g, h of each."""


class Affine(Elementwise):
    """alpha x + beta: no operator of ONNX's any more, but a function of its recurrent ones. So is ScaledTanh."""

    name = "Affine"

    def __init__(self, alpha: float = 1.0, beta: float = 0.0) -> None:
        self.alpha, self.beta = alpha, beta

    def expr(self, *x: Expr) -> Expr:
        return self.alpha * x[0] + self.beta

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return self.alpha * g


class ScaledTanh(Affine):
    """alpha tanh(beta x)."""

    name = "ScaledTanh"

    def __init__(self, alpha: float = 1.0, beta: float = 1.0) -> None:
        super().__init__(alpha, beta)

    def expr(self, *x: Expr) -> Expr:
        return self.alpha * OPS["Tanh"]().expr(self.beta * x[0])            # type: ignore[attr-defined]

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        t = OPS["Tanh"]().expr(self.beta * x[0])                            # type: ignore[attr-defined]
        return g * (self.alpha * self.beta * (1 - t * t))


TAKES = {"Relu": "", "Tanh": "", "Sigmoid": "", "Softsign": "", "Softplus": "", "LeakyRelu": "a", "ThresholdedRelu": "a", "Elu": "a",
         "Affine": "ab", "ScaledTanh": "ab", "HardSigmoid": "ab"}
"""ONNX's activation functions and which of alpha and beta they take."""
BY_RESULT = ("Sigmoid", "Tanh", "Relu")
"""Their slope follows from their result, so that is what the backward pass keeps."""


@dataclass(frozen=True)
class Activation:
    """An activation function with its numbers (None: the default of ONNX's operator of that name), of arguments limited to -clip..clip."""

    name: str
    alpha: float | None = None
    beta: float | None = None
    clip: float | None = None

    @property
    def by_result(self) -> bool:
        """The backward pass keeps the result; else the argument."""
        return self.name in BY_RESULT and self.clip is None

    @property
    def unlimited(self) -> Activation:
        """The same without limits: those of LSTM's h, whose argument no product makes."""
        return replace(self, clip=None)

    def _op(self) -> Elementwise:
        numbers = {k: v for k, v in (("alpha", self.alpha), ("beta", self.beta)) if v is not None}
        kind = {"Affine": Affine, "ScaledTanh": ScaledTanh}.get(self.name) or OPS[self.name]
        return kind(**numbers)                                              # type: ignore[return-value]

    def _limited(self, x: Expr) -> Expr:
        return x if self.clip is None else minimum(maximum(x, -self.clip), self.clip)

    def value(self, x: Expr) -> Expr:
        """f(x)."""
        return self._op().expr(self._limited(x))

    def kept(self, x: Expr, y: Expr) -> Expr:
        """What the backward pass reads of x and y = f(x)."""
        return y if self.by_result else x

    def result(self, kept: Expr) -> Expr:
        """f(x) from what was kept."""
        return kept if self.by_result else self.value(kept)

    def pulled(self, kept: Expr, g: Expr) -> Expr:
        """g f'(x) from what was kept."""
        found = self.slope_times(kept if self.by_result else self._limited(kept), self.result(kept), g)
        return found if self.clip is None else where(abs_(kept) <= self.clip, found, 0)

    def slope_times(self, x: Expr, y: Expr, g: Expr) -> Expr:
        """g f'(x) for y = f(x), without limits."""
        own = [Var(i, x.dtype) for i in range(3)]
        return substitute(self._op().pullback(0, own[:1], own[1], own[2]), dict(enumerate((x, y, g))))


def activations(kind: str, directions: int, names: Sequence[str] | None, alphas: Sequence[float] | None, betas: Sequence[float] | None,
                clip: float | None) -> list[tuple[Activation, ...]]:
    """The functions of each direction. Alphas and betas go, in order, to the functions that take such; what is missing has its default.

    Raises ShapeError or UnsupportedError.
    """
    own = DEFAULTS[kind]
    count = len(own) * directions
    given = own * directions if not names else tuple(names)
    if directions == 1 and len(given) == 2 * count:        # ONNX's default for RNN is that of two directions
        given = given[:count]
    if len(given) != count:
        raise ShapeError(f"it has {len(given)} activation functions; {directions} direction{'s' * (directions > 1)} of {kind} need {count}.")
    known = {name.lower(): name for name in TAKES}
    unknown = [name for name in given if name.lower() not in known]
    if unknown:
        raise UnsupportedError(f"the activation function {unknown[0]!r}; there are {', '.join(TAKES)}.")
    left = {"a": list(alphas or ()), "b": list(betas or ())}
    found = []
    for name in given:
        name = known[name.lower()]
        alpha, beta = (left[k].pop(0) if k in TAKES[name] and left[k] else None for k in "ab")
        found.append(Activation(name, alpha, beta, clip))
    return [tuple(found[i:i + len(own)]) for i in range(0, count, len(own))]


@dataclass(frozen=True)
class Cell:
    """A cell: its kind and functions f, g, h, and how it departs from the ordinary one.

    The vectors of a row, by the letters of their arrays: x the input's share of each gate, q the state's, b biases (GRU with `reset_after` has a
    fourth: the state's bias of n), p peepholes (i, o, f), h and c the states, y the output, r the record, s the reset
    state of a GRU. a is the state as products read it, where that is in 16 bits. Backward: g and k the gradients of h
    and c, u that of y, hp and cp the states before, d and w the gradients of x and q, f the state before (for the
    weights' gradients), e the reset state before, or the cell before where there are peepholes.
    """

    kind: str
    functions: tuple[Activation, ...]
    coupled: bool = False
    """LSTM: the forget gate is 1 - input gate."""
    reset_after: bool = False
    """GRU: r multiplies the state's share of n, not the state."""

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def recorded(self) -> int:
        """Vectors of a step's record."""
        return self.gates + (self.kind == "LSTM" or self.reset_after)

    @property
    def phases(self) -> int:
        """Products of a step."""
        return 2 if self.kind == "GRU" and not self.reset_after else 1

    def forward(self, dtype: str, biased: bool, peepholes: bool, record: bool, memory: str = "") -> tuple[RowPass, ...]:
        """The passes of a step, one after each product; `memory`: the type of operands and results, where that is
        another."""
        v = Vectors(dtype, dict.fromkeys("xpyras", memory or dtype))

        def state(h: Expr) -> dict[tuple[str, int], Expr]:
            return {("h", 0): h, **({("a", 0): h} if memory else {}), ("y", 0): h}

        def given(k: int) -> Expr:
            return v("x", k) + v("b", k) + v("q", k) if biased else v("x", k) + v("q", k)

        def kept(**vectors: Expr) -> dict[tuple[str, int], Expr]:
            return {("r", int(k[1:])): e for k, e in vectors.items()} if record else {}

        f, g = self.functions[0], self.functions[1 if len(self.functions) > 1 else 0]
        if self.kind == "RNN":
            h = f.value(given(0))
            return (v.row_pass({**state(h), **kept(r0=f.kept(given(0), h))}),)
        if self.kind == "LSTM":
            c = v("c")
            peep = [v("p", k) for k in range(3)] if peepholes else None
            at_i, at_f = (given(k) + peep[k] * c if peep else given(k) for k in (0, 2))
            i, new = f.value(at_i), g.value(given(3))
            forget = 1 - i if self.coupled else f.value(at_f)
            cell = forget * c + i * new
            at_o = given(1) + peep[1] * cell if peep else given(1)
            o = f.value(at_o)
            h = o * self.functions[2].unlimited.value(cell)
            return (v.row_pass({("c", 0): cell, **state(h), **kept(
                r0=f.kept(at_i, i), r1=f.kept(at_o, o), r2=f.kept(at_f, forget), r3=g.kept(given(3), new), r4=cell)}),)
        z, r = f.value(given(0)), f.value(given(1))
        if self.reset_after:
            share = v("q", 2) + v("b", 3) if biased else v("q", 2)
            at_n = (v("x", 2) + v("b", 2) if biased else v("x", 2)) + r * share
            n = g.value(at_n)
            h = (1 - z) * n + z * v("h")
            return (v.row_pass({**state(h),
                                **kept(r0=f.kept(given(0), z), r1=f.kept(given(1), r), r2=g.kept(at_n, n), r3=share)}),)
        first = v.row_pass({("q", 0): z, ("s", 0): r * v("h"), **kept(r0=f.kept(given(0), z), r1=f.kept(given(1), r))})
        n = g.value(given(2))
        h = (1 - v("q", 0)) * n + v("q", 0) * v("h")
        return first, v.row_pass({**state(h), **kept(r2=g.kept(given(2), n))})

    def backward(self, dtype: str, peepholes: bool, gradient: bool, memory: str = "") -> tuple[RowPass, ...]:
        """The passes of a step, one before each product; `gradient`: the output has one. `memory` as above."""
        v = Vectors(dtype, dict.fromkeys(("u", "r", "cp", "hp", "p", "d", "w", "f", "e"), memory or dtype))
        f, g = self.functions[0], self.functions[1 if len(self.functions) > 1 else 0]
        dh = v("g") + v("u") if gradient else v("g")
        before = {("f", 0): v("hp")}
        if self.kind == "RNN":
            return (v.row_pass({("d", 0): f.pulled(v("r", 0), dh), **before}),)
        if self.kind == "LSTM":
            i, o, new, c, cp = f.result(v("r", 0)), f.result(v("r", 1)), g.result(v("r", 3)), v("r", 4), v("cp")
            h = self.functions[2].unlimited
            through = h.value(c)
            do = f.pulled(v("r", 1), dh * through)
            dc = v("k") + h.slope_times(c, through, dh * o)
            if peepholes:
                dc = dc + do * v("p", 1)
            forget = 1 - i if self.coupled else f.result(v("r", 2))
            di = f.pulled(v("r", 0), dc * (new - cp) if self.coupled else dc * new)
            df = Const(0, dtype) if self.coupled else f.pulled(v("r", 2), dc * cp)
            carried = dc * forget
            if peepholes:
                carried = carried + di * v("p", 0)
                carried = carried if self.coupled else carried + df * v("p", 2)
                before["e", 0] = cp
            return (v.row_pass({("d", 0): di, ("d", 1): do, ("d", 2): df, ("d", 3): g.pulled(v("r", 3), dc * i), ("k", 0): carried, **before}),)
        z, r, n, hp = f.result(v("r", 0)), f.result(v("r", 1)), g.result(v("r", 2)), v("hp")
        dz, dn = f.pulled(v("r", 0), dh * (hp - n)), g.pulled(v("r", 2), dh * (1 - z))
        if self.reset_after:
            dr = f.pulled(v("r", 1), dn * v("r", 3))
            own = {("d", 0): dz, ("d", 1): dr, ("d", 2): dn, ("w", 0): dz, ("w", 1): dr, ("w", 2): dn * r}
            return (v.row_pass({**own, ("g", 0): dh * z, **before}),)
        first = v.row_pass({("d", 0): dz, ("d", 2): dn, ("g", 0): dh * z, **before})
        return first, v.row_pass({("d", 1): f.pulled(v("r", 1), v("s") * hp), ("g", 0): v("g") + v("s") * r, ("e", 0): r * hp})
