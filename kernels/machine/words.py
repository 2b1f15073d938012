"""Functions over whole words as LLVM's code, without Numba, which types and lowers each line anew in every process.

    define(module, function, {"s": ("m", "n")}, lambda e, arguments: ...)

A function here is a Python function like any other leaf body: parameters and variables are 64-bit integers (addresses,
counts, truth), with `if`, `while`, `for ... in range(...)` of positive steps, arithmetic as Python has it (divisors are
not 0), comparisons, `and`, `or` and `not` (which are 0 or 1), `min` and `max`, several results, calls of other such
functions and of Numba's intrinsics over words that ask nothing of their context (`vector.as_intrinsic`). An array
stands for its address. Names that are not its own are constants or functions where it was written; functions may be
arguments, too. Anything else is a TypeError that names the line.
"""
from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..isa.vector import BIT, WORD, word
from . import build

_ORDERS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor",
               ast.LShift: "shl", ast.RShift: "ashr"}
_SAME = (int, np.intp)
"""Calls that give the word they are given."""


class _Context:
    """All that intrinsics ask of Numba's."""

    def get_dummy_value(self) -> None:
        return None


def define(module: ir.Module, function: Callable[..., Any], numbers: Mapping[str, Sequence[str]] | None = None,
           given: Mapping[str, Any] | None = None) -> ir.Function:
    """The function of `module` with the code of a Python function, made on first use: of words to a word, or to as many
    as it returns.

    numbers: parameters that are words with names (`Numbers`), and those names; each word is a parameter there.
    given: parameters that are functions, of which the code is made; they are none there.
    """
    assert isinstance(function, FunctionType), function
    numbers, given = numbers or {}, given or {}
    known = module.__dict__.setdefault("word_functions", {})
    key = function, *((name, tuple(fields)) for name, fields in numbers.items()), *given.items()
    if key not in known:
        name = f"words.{function.__module__}.{function.__qualname__}"
        name = name if name not in module.globals else f"{name}.{len(known)}"
        known[key] = _Writer(module, function, name, numbers, given)
        known[key].write()
    return known[key].made


def emitted(function: Callable[..., Any]) -> build.Emitted:
    """A Python function over words as a function of an object."""
    return build.Emitted(lambda module: define(module, function))


@functools.cache
def _functions(file: str) -> dict[int, ast.FunctionDef]:
    """The functions of a source file by their first lines, decorators included."""
    tree = ast.parse(Path(file).read_bytes())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {min([node.lineno, *(d.lineno for d in node.decorator_list)]): node for node in found}


class _Writer:
    """One function: `made`, whose code `write` writes."""

    def __init__(self, module: ir.Module, function: FunctionType, name: str, numbers: Mapping[str, Sequence[str]],
                 given: Mapping[str, Any]) -> None:
        code = function.__code__
        self._numbers, self._given = numbers, given
        self._tree, self._function, self._module = _functions(code.co_filename)[code.co_firstlineno], function, module
        self._closed = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._parameters = [(a.arg, field) for a in self._tree.args.args if a.arg not in given
                            for field in numbers.get(a.arg, ("",))]
        returns = [node.value for node in ast.walk(self._tree) if isinstance(node, ast.Return)]
        self._results = max((len(v.elts) if isinstance(v, ast.Tuple) else 1 for v in returns), default=1)
        kind = WORD if self._results == 1 else ir.LiteralStructType([WORD] * self._results)
        self.made = ir.Function(module, ir.FunctionType(kind, [WORD] * len(self._parameters)), name)
        self.made.linkage = "linkonce_odr"
        self.made.attributes.add("nounwind")
        self._b = ir.IRBuilder(self.made.append_basic_block("entry"))
        self._places: dict[tuple[str, str], Any] = {}
        self._loops: list[tuple[ir.Block, ir.Block]] = []

    def write(self) -> None:
        """Write the code; calls of the function itself find `made`."""
        own = [(node.id, "") for node in ast.walk(self._tree)
               if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        for at in dict.fromkeys([*self._parameters, *own]):
            self._places[at] = self._b.alloca(WORD)
        for at, value in zip(self._parameters, self.made.args, strict=True):
            self._b.store(value, self._places[at])
        self._all(self._tree.body)
        if not self._b.block.is_terminated:
            self._return([word(0)] * self._results)

    def _bad(self, node: ast.AST) -> TypeError:
        line, text = getattr(node, "lineno", "?"), ast.unparse(node).splitlines()[0]
        return TypeError(f"{self._function.__qualname__}, line {line}: {text} is nothing over words")

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
        if not isinstance(node.value, ast.Constant):               # a docstring
            self._several(node.value)

    def _assign_(self, node: ast.Assign) -> None:
        if len(node.targets) > 1:
            raise self._bad(node)
        target, = node.targets
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        for name, value in zip(names, self._several(node.value), strict=True):
            self._b.store(value, self._place(name))

    def _annassign_(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._b.store(self._value(node.value), self._place(node.target))

    def _augassign_(self, node: ast.AugAssign) -> None:
        place = self._place(node.target)
        self._b.store(self._computed(node, node.op, self._b.load(place), self._value(node.value)), place)

    def _place(self, name: ast.expr) -> Any:
        if not isinstance(name, ast.Name):
            raise self._bad(name)
        return self._places[name.id, ""]

    def _return_(self, node: ast.Return) -> None:
        self._return([word(0)] if node.value is None else self._several(node.value))

    def _return(self, values: Sequence[Any]) -> None:
        if self._results == 1:
            self._b.ret(values[0])
            return
        whole = ir.Constant(self.made.function_type.return_type, ir.Undefined)
        for i, value in enumerate(values):
            whole = self._b.insert_value(whole, value, i)
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
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                and call.func.id == "range") or node.orelse:
            raise self._bad(node)
        given = [self._value(a) for a in call.args]
        start, stop = (word(0), given[0]) if len(given) == 1 else given[:2]
        step = given[2] if len(given) > 2 else word(1)
        before = self._b.block
        head, inside, onward, after = self._blocks("head", "body", "onward", "after")
        self._b.branch(head)
        self._b.position_at_end(head)
        at = self._b.phi(WORD)
        at.add_incoming(start, before)
        self._b.cbranch(self._b.icmp_signed("<", at, stop), inside, after)
        self._b.position_at_end(onward)
        at.add_incoming(self._b.add(at, step, flags=["nsw"]), onward)
        self._b.branch(head)
        self._b.position_at_end(inside)
        self._b.store(at, self._place(node.target))
        self._turn(node.body, inside, onward, onward, after)

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
        if isinstance(node, ast.Name) and (node.id, "") not in self._places and node.id not in self._numbers:
            if node.id in self._given:
                return self._given[node.id]
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

    def _several(self, node: ast.expr) -> list[Any]:
        """The values of a tuple, of a call, or one."""
        if isinstance(node, ast.Tuple):
            return [self._value(element) for element in node.elts]
        if isinstance(node, ast.IfExp) and isinstance(node.body, ast.Tuple) and isinstance(node.orelse, ast.Tuple):
            pairs = zip(node.body.elts, node.orelse.elts, strict=True)
            return [self._either(ast.copy_location(ast.IfExp(node.test, *pair), node)) for pair in pairs]
        made = self._called(node) if isinstance(node, ast.Call) else self._value(node)
        if made is not None and isinstance(made.type, ir.LiteralStructType):
            return [self._b.extract_value(made, i) for i in range(len(made.type.elements))]
        return [made]

    def _value(self, node: ast.expr) -> Any:
        b, known = self._b, self._known(node)
        if isinstance(known, int | np.integer):
            return word(int(known))
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return word(int(node.value))
        if isinstance(node, ast.Name) and (node.id, "") in self._places:
            return b.load(self._places[node.id, ""])
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and (node.value.id, node.attr) in self._places:
                return b.load(self._places[node.value.id, node.attr])
            if node.attr == "data" and isinstance(node.value, ast.Attribute) and node.value.attr == "ctypes":
                return self._value(node.value.value)
        if isinstance(node, ast.BinOp):
            return self._computed(node, node.op, self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return b.neg(self._value(node.operand))
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        if negated or isinstance(node, ast.Compare | ast.BoolOp):
            return b.zext(self._truth(node), WORD)
        if isinstance(node, ast.IfExp):
            return self._either(node)
        if isinstance(node, ast.Call):
            made = self._called(node)
            if made is not None and made.type == WORD:
                return made
        raise self._bad(node)

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
            self._b.branch(after)
        return self._joined(after, WORD, found)

    def _joined(self, after: ir.Block, kind: ir.Type, found: Sequence[tuple[Any, ir.Block]]) -> Any:
        self._b.position_at_end(after)
        phi = self._b.phi(kind)
        for value, block in found:
            phi.add_incoming(value, block)
        return phi

    def _truth(self, node: ast.expr) -> Any:
        b = self._b
        if isinstance(node, ast.Compare):
            if len(node.ops) > 1 or type(node.ops[0]) not in _ORDERS:
                raise self._bad(node)
            return b.icmp_signed(_ORDERS[type(node.ops[0])], self._value(node.left), self._value(node.comparators[0]))
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
        return b.icmp_signed("!=", self._value(node), word(0))

    def _computed(self, node: ast.AST, op: ast.operator, x: Any, y: Any) -> Any:
        b = self._b
        if type(op) in _ARITHMETIC:
            return getattr(b, _ARITHMETIC[type(op)])(x, y)
        if not isinstance(op, ast.FloorDiv | ast.Mod):
            raise self._bad(node)
        rest = b.srem(x, y)
        # LLVM rounds towards 0, not down.
        off = b.and_(b.icmp_signed("!=", rest, word(0)), b.icmp_signed("<", b.xor(rest, y), word(0)))
        if isinstance(op, ast.Mod):
            return b.select(off, b.add(rest, y), rest)
        return b.sub(b.sdiv(x, y), b.zext(off, WORD))

    def _called(self, node: ast.Call) -> Any:
        called = self._known(node.func)
        if node.keywords:
            raise self._bad(node)
        if isinstance(called, FunctionType):
            return self._passed(node, called)
        args = [self._value(a) for a in node.args]
        if called in _SAME:
            return args[0]
        if called is bool:
            return self._b.zext(self._b.icmp_signed("!=", args[0], word(0)), WORD)
        if called in (min, max):
            before, b = "<" if called is min else ">", self._b
            return functools.reduce(lambda x, y: b.select(b.icmp_signed(before, y, x), y, x), args)
        if hasattr(called, "_defn"):
            signature, generate = called._defn(None, *[types.intp] * len(args))
            return generate(_Context(), self._b, signature, args)
        raise self._bad(node)

    def _passed(self, node: ast.Call, called: FunctionType) -> Any:
        """A call of another such function."""
        names, args = called.__code__.co_varnames, []
        numbers: dict[str, Sequence[str]] = {}
        given: dict[str, Any] = {}
        for name, a in zip(names, node.args, strict=False):
            known = self._known(a)
            if isinstance(a, ast.Name) and a.id in self._numbers:
                numbers[name] = self._numbers[a.id]
                args += [self._b.load(self._places[a.id, field]) for field in numbers[name]]
            elif isinstance(known, FunctionType) or hasattr(known, "_defn"):
                given[name] = known
            else:
                args.append(self._value(a))
        return self._b.call(define(self._module, called, numbers, given), args)
