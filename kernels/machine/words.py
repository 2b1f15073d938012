"""Functions over whole words, numbers and views as LLVM's code, without Numba, which types and lowers each line anew in
every process.

    define(module, function, {"s": Fields(("m", "n"))})

A function here is a Python function like any other leaf body: parameters and variables are 64-bit integers (addresses,
counts, truth), uint64, int32, float32 and float64 numbers, views of arrays, and tuples of these (`values`), with `if`,
`while`, `for` over a tuple or a `range(...)` whose step is positive or written with its sign, arithmetic as Python has
it (whole numbers are divided by none that is 0; with a float they are float64), comparisons, `and`, `or` and `not`
(which are 0 or 1), `min` and `max`, roots, exponentials and logarithms, several results, calls of other such
functions, and of what is `Inlined`. A view is read and written by element, and cut by indices and a slice of the axis
behind them; indices are not negative, and a slice of a view is given one number. Where a word is asked for, a view is
its address and a float its bits. Names that are not its own are constants or functions where it was written; functions
may be arguments, too. Anything else is a TypeError that names the line.

A variable is of one kind throughout: what is a whole number here and a float there is float64. int32 are elements of
arrays of such, what `np.int32` makes and the least of these; with any arithmetic they are words. uint64 are elements
of arrays of such and what `np.uint64` makes; with words they share bits (`&`, `>>`), and nothing else (`int(x)` is a
word).
"""
from __future__ import annotations

import ast
import builtins
import functools
import itertools
import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir

from ..isa.inlined import Inlined
from ..isa.paths import PATHS
from ..isa.vector import BIT, WORD, Emitter, word
from . import build, values
from .values import F4, F8, I4, U8, WHOLE, Fields, Known, Record, View

_ORDERS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_BITS = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "ashr"}
_ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}


class _Again(Exception):
    """Something was found to be of another kind than was thought: the function is written anew."""


def define(module: ir.Module, function: Callable[..., Any], kinds: Mapping[str, Any] | None = None) -> ir.Function:
    """The function of `module` with the code of a Python function, made on first use.

    kinds: of parameters that are no words.
    """
    return _written(module, function, kinds or {}).made


def _written(module: ir.Module, function: Callable[..., Any], kinds: Mapping[str, Any]) -> _Writer:
    assert isinstance(function, FunctionType), function
    known = module.__dict__.setdefault("word_functions", {})
    key = function, *kinds.items()
    if key not in known:
        name = f"words.{function.__module__}.{function.__qualname__}"
        name = name if name not in module.globals else f"{name}.{len(known)}"
        known[key] = _Writer(module, function, name, kinds)
        known[key].write()
    return known[key]


def emitted(function: Callable[..., Any]) -> build.Emitted:
    """A Python function over words as a function of an object."""
    return build.Emitted(lambda module: define(module, function))


@functools.cache
def _functions(file: str) -> dict[int, ast.FunctionDef]:
    """The functions of a source file by their first lines, decorators included."""
    return _by_lines(ast.parse("".join(linecache.getlines(file))))


def _by_lines(tree: ast.AST) -> dict[int, ast.FunctionDef]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {min([node.lineno, *(d.lineno for d in node.decorator_list)]): node for node in found}


def _tree_of(function: FunctionType) -> ast.FunctionDef:
    """What a function was written as, in a file or by a kernel (`content.written`)."""
    if hasattr(function, "__written__"):
        tree, = _by_lines(ast.parse(function.__written__)).values()
        return tree
    return _functions(function.__code__.co_filename)[function.__code__.co_firstlineno]


class _Writer:
    """One function: `made`, whose code `write` writes, and the kind of its `result`."""

    def __init__(self, module: ir.Module, function: FunctionType, name: str, kinds: Mapping[str, Any]) -> None:
        code = function.__code__
        self._name, self._tries = name, 0
        self._tree, self._function, self._module = _tree_of(function), function, module
        self._closed = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._kinds = {a.arg: kinds.get(a.arg, WORD) for a in self._tree.args.args}
        self._parameters = dict(self._kinds)
        self._own = {*self._kinds, *(node.id for node in ast.walk(self._tree)
                                     if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))}
        returns = [node.value for node in ast.walk(self._tree) if isinstance(node, ast.Return)]
        count = max((len(v.elts) if isinstance(v, ast.Tuple) else 1 for v in returns), default=1)
        self.result: Any = WORD if count == 1 else (WORD,) * count
        self._sure = False
        self._begin()

    def _begin(self) -> None:
        taken = [t for kind in self._parameters.values() for t in values.types_of(kind)]
        self.made = ir.Function(self._module, ir.FunctionType(self._given(), taken), self._name)
        self.made.linkage = "linkonce_odr"
        self.made.attributes.add("nounwind")
        self._b = ir.IRBuilder(self.made.append_basic_block("entry"))
        self._places: dict[str, list[Any]] = {}
        self._loops: list[tuple[ir.Block, ir.Block]] = []

    def _given(self) -> ir.Type:
        """What the function returns to LLVM."""
        parts = values.types_of(self.result)
        return parts[0] if len(parts) == 1 else ir.LiteralStructType(parts)

    def write(self) -> None:
        """Write the code; calls of the function itself find `made`."""
        while True:
            try:
                self._write()
                return
            except _Again:
                del self._module.globals[self._name]
                self._tries += 1
                self._name = f"{self._name.partition('#')[0]}#{self._tries}"
                self._begin()

    def _write(self) -> None:
        args = iter(self.made.args)
        for name, kind in self._parameters.items():
            self._keep(name, values.rebuilt(kind, args))
        self._all(self._tree.body)
        if not self._b.block.is_terminated:
            self._return(values.rebuilt(self.result, iter([t(0) for t in values.types_of(self.result)])))

    def _bad(self, node: ast.AST) -> TypeError:
        line, text = getattr(node, "lineno", "?"), ast.unparse(node).splitlines()[0]
        return TypeError(f"{self._function.__qualname__}, line {line}: {text} is nothing over words")

    # ---- variables

    def _keep(self, name: str, value: Any, node: ast.AST | None = None) -> None:
        """Give a variable its value."""
        have, kind = self._kinds.get(name), values.kind_of(value)
        wanted = kind if have is None else values.unified(have, kind)
        if wanted is None:
            raise self._bad(node or self._tree)
        if have not in (None, wanted):
            self._kinds[name] = wanted
            raise _Again
        self._kinds[name] = wanted
        if name not in self._places:
            with self._b.goto_entry_block():
                self._places[name] = [self._b.alloca(t) for t in values.types_of(wanted)]
        for part, place in zip(values.parts_of(values.cast(self._b, value, wanted)), self._places[name], strict=True):
            self._b.store(part, place)

    def _assign(self, target: ast.expr, value: Any) -> None:
        """Give a name, an element, or each of several, its value."""
        if isinstance(target, ast.Name):
            self._keep(target.id, value, target)
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            for each, one in zip(target.elts, value, strict=True):
                self._assign(each, one)
        elif isinstance(target, ast.Subscript) and any(isinstance(i, ast.Slice) for i in self._indices(target)):
            self._fill(target, value)
        elif isinstance(target, ast.Subscript) and values.kind_of(value) in values.NUMBERS:
            view, at = self._element(target)
            values.keep(self._b, value, view, at)
        else:
            raise self._bad(target)

    def _fill(self, target: ast.Subscript, value: Any) -> None:
        """One number for all of a slice."""
        view = self._subscript(target)
        if view.kind.ndim != 1 or values.kind_of(value) not in values.NUMBERS:
            raise self._bad(target)
        Emitter(self._b, PATHS["generic"]).loop(0, view.shape[0], 1, [],
                                                lambda i, _: values.keep(self._b, value, view, [i]))

    def _element(self, node: ast.Subscript) -> tuple[View, list[Any]]:
        """The view and the indices that an element is told by."""
        view, indices = self._value(node.value), self._indices(node)
        if not isinstance(view, View) or len(indices) != view.kind.ndim:
            raise self._bad(node)
        return view, [self._word(i) for i in indices]

    def _indices(self, node: ast.Subscript) -> list[ast.expr]:
        return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]

    # ---- statements

    def _all(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            if self._b.block.is_terminated:
                return
            kind = type(statement).__name__
            write = getattr(self, f"_{kind.lower()}_", None)
            if write is None:
                raise self._bad(statement)
            write(statement)

    def _pass_(self, _node: ast.Pass) -> None:
        """Nothing to do."""

    def _expr_(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._called(node.value)
        elif not isinstance(node.value, ast.Constant):             # a docstring
            self._value(node.value)

    def _assign_(self, node: ast.Assign) -> None:
        if len(node.targets) > 1:
            raise self._bad(node)
        self._assign(node.targets[0], self._value(node.value))

    def _annassign_(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self._value(node.value))

    def _augassign_(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Subscript):
            view, at = self._element(node.target)
            before = values.element(self._b, view, at)
            values.keep(self._b, self._computed(node, node.op, before, self._value(node.value)), view, at)
            return
        before = self._value(node.target)
        self._assign(node.target, self._computed(node, node.op, before, self._value(node.value)))

    def _return_(self, node: ast.Return) -> None:
        value = word(0) if node.value is None else self._value(node.value)
        kind = values.kind_of(value)
        wanted = values.unified(self.result, kind) if self._sure else kind
        self._sure = True
        if wanted is None:
            raise self._bad(node)
        if wanted != self.result:
            self.result = wanted
            raise _Again
        self._return(values.cast(self._b, value, wanted))

    def _return(self, value: Any) -> None:
        parts = values.parts_of(value)
        if len(parts) == 1:
            self._b.ret(parts[0])
            return
        whole = ir.Constant(self.made.function_type.return_type, ir.Undefined)
        for i, part in enumerate(parts):
            whole = self._b.insert_value(whole, part, i)
        self._b.ret(whole)

    def _break_(self, _node: ast.Break) -> None:
        self._b.branch(self._loops[-1][1])

    def _continue_(self, _node: ast.Continue) -> None:
        self._b.branch(self._loops[-1][0])

    def _if_(self, node: ast.If) -> None:
        fixed = self._fixed(node.test)
        if fixed is not None:
            self._all(node.body if fixed else node.orelse)
            return
        inside, other, after = self._blocks("then", "else", "after")
        self._b.cbranch(self._truth(node.test), inside, other)
        for block, body in ((inside, node.body), (other, node.orelse)):
            self._b.position_at_end(block)
            self._all(body)
            self._go(after)
        self._b.position_at_end(after)

    def _while_(self, node: ast.While) -> None:
        if node.orelse:
            raise self._bad(node)
        head, inside, after = self._blocks("head", "body", "after")
        self._b.branch(head)
        self._b.position_at_end(head)
        self._b.cbranch(self._truth(node.test), inside, after)
        self._turn(node.body, inside, head, head, after)

    def _for_(self, node: ast.For) -> None:
        call = node.iter
        if isinstance(call, ast.Tuple) and not node.orelse:
            self._each(node, self._value(call))
            return
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and isinstance(node.target, ast.Name)
                and call.func.id == "range") or node.orelse:
            raise self._bad(node)
        given = [self._word(a) for a in call.args]
        start, stop = (word(0), given[0]) if len(given) == 1 else given[:2]
        step = given[2] if len(given) > 2 else word(1)
        before = self._b.block
        head, inside, onward, after = self._blocks("head", "body", "onward", "after")
        self._b.branch(head)
        self._b.position_at_end(head)
        at = self._b.phi(WORD)
        at.add_incoming(start, before)
        down = len(call.args) > 2 and isinstance(call.args[2], ast.UnaryOp)
        self._b.cbranch(self._b.icmp_signed(">" if down else "<", at, stop), inside, after)
        self._b.position_at_end(onward)
        at.add_incoming(self._b.add(at, step, flags=["nsw"]), onward)
        self._b.branch(head)
        self._b.position_at_end(inside)
        self._keep(node.target.id, at, node)
        self._turn(node.body, inside, onward, onward, after)

    def _each(self, node: ast.For, met: Sequence[Any]) -> None:
        """A body for each of several values, one after the other."""
        after = self.made.append_basic_block("after")
        for value in met:
            onward = self.made.append_basic_block("onward")
            self._assign(node.target, value)
            self._loops.append((onward, after))
            self._all(node.body)
            self._loops.pop()
            self._go(onward)
            self._b.position_at_end(onward)
        self._go(after)
        self._b.position_at_end(after)

    def _turn(self, body: Sequence[ast.stmt], inside: ir.Block, again: ir.Block, onward: ir.Block,
              after: ir.Block) -> None:
        self._b.position_at_end(inside)
        self._loops.append((onward, after))
        self._all(body)
        self._loops.pop()
        self._go(again)
        self._b.position_at_end(after)

    def _blocks(self, *names: str) -> list[ir.Block]:
        return [self.made.append_basic_block(name) for name in names]

    def _go(self, to: ir.Block) -> None:
        if not self._b.block.is_terminated:
            self._b.branch(to)

    # ---- expressions

    def _known(self, node: ast.expr) -> Any:
        """What a name, or an attribute of a module, is where the function was written."""
        if isinstance(node, ast.Name):
            if node.id in self._own:
                kind = self._kinds.get(node.id)
                return kind.what if isinstance(kind, Known) else None
            if node.id in self._closed:
                return self._closed[node.id].cell_contents
            scope = self._function.__globals__
            return scope[node.id] if node.id in scope else getattr(builtins, node.id, None)
        if isinstance(node, ast.Attribute):
            return getattr(self._known(node.value), node.attr, None)
        return None

    def _fixed(self, test: ast.expr) -> bool | None:
        """A test of what is known when the code is written; None: of anything else."""
        known = self._known(test)
        return bool(known) if isinstance(known, int) else None

    def _word(self, node: ast.expr) -> Any:
        """The value of an expression that is a word."""
        value = self._value(node)
        if values.kind_of(value) not in WHOLE:
            raise self._bad(node)
        return values.cast(self._b, value, WORD)

    def _value(self, node: ast.expr) -> Any:
        b, known = self._b, self._known(node)
        if known is None and isinstance(node, ast.Constant):
            known = node.value
        if isinstance(known, int | np.integer):
            return {np.int32: I4, np.uint64: U8}.get(type(known), WORD)(int(known))
        if isinstance(known, float | np.float32):
            return (F8 if isinstance(known, float) else F4)(float(known))
        if isinstance(known, tuple) and all(isinstance(n, int | float) for n in known):
            return tuple(word(n) if isinstance(n, int) else F8(n) for n in known)
        if isinstance(known, FunctionType | type | Inlined):
            return Known(known)
        if isinstance(node, ast.Name) and node.id in self._places:
            return values.rebuilt(self._kinds[node.id], iter([b.load(place) for place in self._places[node.id]]))
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Tuple):
            return tuple(self._value(element) for element in node.elts)
        if isinstance(node, ast.BinOp):
            return self._computed(node, node.op, self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand)
            return b.neg(values.cast(b, value, WORD)) if value.type in WHOLE else b.fneg(value)
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        if negated or isinstance(node, ast.Compare | ast.BoolOp):
            return b.zext(self._truth(node), WORD)
        if isinstance(node, ast.IfExp):
            return self._either(node)
        if isinstance(node, ast.Call):
            made = self._called(node)
            if made is not None:
                return made
        raise self._bad(node)

    def _attribute(self, node: ast.Attribute) -> Any:
        of, inner = self._known(node.value), node.value
        if (of is None and isinstance(inner, ast.Attribute)
                and (inner.attr, node.attr) in (("ctypes", "data"), ("dtype", "type"))):
            view = self._value(inner.value)
            if isinstance(view, View) and node.attr == "data":
                return view.address
            if isinstance(view, View):
                return Known(values.scalar_type(view))
            raise self._bad(node)
        value = self._value(node.value)
        if isinstance(value, View) and node.attr == "shape":
            return value.shape
        if isinstance(value, Record) and node.attr in value.kind.names:
            return value.words[value.kind.names.index(node.attr)]
        raise self._bad(node)

    def _subscript(self, node: ast.Subscript) -> Any:
        value, indices = self._value(node.value), self._indices(node)
        if isinstance(value, tuple) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            return value[node.slice.value]
        if isinstance(value, tuple) and not isinstance(node.slice, ast.Tuple | ast.Slice):
            at, (found, *others) = self._word(node.slice), self._alike(node, value)
            for i, other in enumerate(others, 1):
                found = self._b.select(self._b.icmp_signed("==", at, word(i)), other, found)
            return found
        if not isinstance(value, View) or len(indices) > value.kind.ndim:
            raise self._bad(node)
        *before, last = indices
        if isinstance(last, ast.Slice) and last.step is None:
            at = [self._word(i) for i in before]
            return values.part(self._b, value, at, word(0) if last.lower is None else self._word(last.lower),
                               None if last.upper is None else self._word(last.upper))
        at = [self._word(i) for i in indices]
        return values.element(self._b, value, at) if len(at) == value.kind.ndim else values.part(self._b, value, at)

    def _either(self, node: ast.IfExp) -> Any:
        fixed = self._fixed(node.test)
        if fixed is not None:
            return self._value(node.body if fixed else node.orelse)
        ways, after = self._blocks("then", "else"), self.made.append_basic_block("after")
        self._b.cbranch(self._truth(node.test), *ways)
        found = []
        for block, way in zip(ways, (node.body, node.orelse), strict=True):
            self._b.position_at_end(block)
            found.append((self._value(way), self._b.block))
        kind = values.unified(*(values.kind_of(value) for value, _ in found))
        if kind is None:
            raise self._bad(node)
        joined = []
        for value, block in found:
            self._b.position_at_end(block)
            joined.append((values.parts_of(values.cast(self._b, value, kind)), block))
            self._b.branch(after)
        parts = [self._joined(after, t, [(value[i], block) for value, block in joined])
                 for i, t in enumerate(values.types_of(kind))]
        self._b.position_at_end(after)
        return values.rebuilt(kind, iter(parts))

    def _joined(self, after: ir.Block, kind: ir.Type, found: Sequence[tuple[Any, ir.Block]]) -> Any:
        self._b.position_at_end(after)
        phi = self._b.phi(kind)
        for value, block in found:
            phi.add_incoming(value, block)
        return phi

    def _truth(self, node: ast.expr) -> Any:
        b = self._b
        if isinstance(node, ast.Compare):
            if not all(type(op) in _ORDERS for op in node.ops):
                raise self._bad(node)
            met = [self._value(n) for n in (node.left, *node.comparators)]
            found = [values.compared(b, _ORDERS[type(op)], *self._alike(node, pair))
                     for op, pair in zip(node.ops, itertools.pairwise(met), strict=True)]
            return functools.reduce(b.and_, found)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return b.not_(self._truth(node.operand))
        if isinstance(node, ast.BoolOp):
            every, found = isinstance(node.op, ast.And), []
            after = self.made.append_basic_block("after")
            for operand in node.values[:-1]:
                onward = self.made.append_basic_block("onward")
                ways = (onward, after) if every else (after, onward)
                b.cbranch(self._truth(operand), *ways)
                found.append((ir.Constant(BIT, int(not every)), b.block))
                b.position_at_end(onward)
            found.append((self._truth(node.values[-1]), b.block))
            b.branch(after)
            return self._joined(after, BIT, found)
        value, = self._alike(node, [self._value(node)])
        return values.compared(b, "!=", value, value.type(0))

    def _alike(self, node: ast.AST, numbers: Sequence[Any]) -> list[Any]:
        """Numbers as such of one kind."""
        kinds = [values.kind_of(n) for n in numbers]
        if not all(kind in values.NUMBERS for kind in kinds):
            raise self._bad(node)
        kind = functools.reduce(values.unified, kinds)
        if kind is None:
            raise self._bad(node)
        return [values.cast(self._b, n, kind) for n in numbers]

    def _computed(self, node: ast.AST, op: ast.operator, x: Any, y: Any) -> Any:
        b = self._b
        kinds = [values.kind_of(x), values.kind_of(y)]
        if type(op) in _BITS and U8 in kinds and all(kind in WHOLE for kind in kinds):
            wide = values.cast(b, x, U8), values.cast(b, y, U8)
            return b.lshr(*wide) if isinstance(op, ast.RShift) else getattr(b, _BITS[type(op)])(*wide)
        x, y = self._alike(node, [x, y])
        if x.type == I4:
            x, y = values.cast(b, x, WORD), values.cast(b, y, WORD)
        if type(op) in _ARITHMETIC:
            return values.arithmetic(b, _ARITHMETIC[type(op)], x, y)
        if isinstance(op, ast.Div):
            return b.fdiv(*(values.cast(b, v, F8 if v.type in WHOLE else v.type) for v in (x, y)))
        if x.type != WORD:
            raise self._bad(node)
        if type(op) in _BITS:
            return getattr(b, _BITS[type(op)])(x, y)
        if not isinstance(op, ast.FloorDiv | ast.Mod):
            raise self._bad(node)
        rest = b.srem(x, y)
        # LLVM rounds towards 0, not down.
        off = b.and_(b.icmp_signed("!=", rest, word(0)), b.icmp_signed("<", b.xor(rest, y), word(0)))
        if isinstance(op, ast.Mod):
            return b.select(off, b.add(rest, y), rest)
        return b.sub(b.sdiv(x, y), b.zext(off, WORD))

    def _called(self, node: ast.Call) -> Any:
        called, b = self._known(node.func), self._b
        if called is None and isinstance(node.func, ast.Attribute):
            made = self._value(node.func)                          # x.dtype.type
            called = made.what if isinstance(made, Known) else None
        if node.keywords:
            raise self._bad(node)
        if isinstance(called, type) and len(node.args) == 1 and isinstance(node.args[0], ast.Constant) \
                and isinstance(node.args[0].value, str):
            return (F4 if called is np.float32 else F8)(float(node.args[0].value))               # float("inf")
        args: list[Any] = []
        for a in node.args:
            if isinstance(a, ast.Starred):
                args += self._value(a.value)
            else:
                args.append(self._value(a))
        if isinstance(called, FunctionType):
            return self._passed(node, called, args)
        if isinstance(called, Inlined):
            return self._inlined(node, called, args)
        if isinstance(called, type) and hasattr(called, "_fields"):
            return Record(Fields(called._fields), tuple(values.cast(b, a, WORD) for a in args))
        if not args:
            raise self._bad(node)
        args = self._alike(node, args)
        if called in (min, max):
            before = "<" if called is min else ">"
            return functools.reduce(lambda x, y: b.select(values.compared(b, before, y, x), y, x), args)
        if (made := values.converted(b, args[0], called)) is not None:
            return made
        if (made := values.mathematics(b, called, args[0])) is not None:
            return made
        raise self._bad(node)

    def _inlined(self, node: ast.Call, called: Inlined, args: Sequence[Any]) -> Any:
        if called.words is None:
            return called.emit(self._b, *(values.cast(self._b, a, WORD) if values.kind_of(a) in WHOLE else a
                                          for a in args))
        known = all(isinstance(a, View) or values.kind_of(a) in values.NUMBERS for a in args)
        if len(args) != called.words or not known:
            raise self._bad(node)
        return called.emit(self._b, *(values.to_word(self._b, a) for a in args))

    def _passed(self, node: ast.Call, called: FunctionType, args: Sequence[Any]) -> Any:
        """A call of another such function."""
        code = called.__code__
        if len(args) != code.co_argcount:
            raise self._bad(node)
        given = zip(code.co_varnames, map(values.kind_of, args), strict=False)
        kinds = {name: kind for name, kind in given if kind != WORD}
        other = _written(self._module, called, kinds)
        made = self._b.call(other.made, [p for a in args for p in values.parts_of(a)])
        count = len(values.types_of(other.result))
        parts = [made] if count == 1 else [self._b.extract_value(made, i) for i in range(count)]
        return values.rebuilt(other.result, iter(parts))
