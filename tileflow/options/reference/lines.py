"""Lines such as `Training.gradientAccumulation(8)`: Python's syntax for calls of literal values, parsed and never executed."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...system.errors import OptionError
from ...system.text import one_line
from .values import Made, Word, WrittenCall

LONGEST = 4000
"""Characters of a line: what is longer says nothing to a person, and would take the parser's stack."""
SHOWN = 120
PREFIXES = ("options", "opts")
"""What a line of a script begins with, and one of a file need not."""


@dataclass(frozen=True)
class Line:
    """A call of a file, `number` counted from 1; several where calls are written one after the other."""

    number: int
    call: WrittenCall


def parse(text: str) -> Iterator[Line]:
    """The calls of a file, in their order. Blank lines and comments say nothing.

    Raises:
        OptionError: a line is no call of literal values; the sentence begins with its number.
    """
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            try:
                yield from (Line(number, call) for call in _calls_of(stripped))
            except OptionError as error:
                raise OptionError(f"line {number}: {error} The line is: {one_line(stripped, SHOWN)}") from None


def _calls_of(line: str) -> list[WrittenCall]:
    if len(line) > LONGEST:
        raise OptionError(f"it has {len(line):,} characters, and a line may have {LONGEST:,}.")
    try:
        tree = ast.parse(line, mode="eval").body
        made = _made(tree) if isinstance(tree, ast.Call) else None
    except OptionError:
        raise
    except SyntaxError as error:
        raise OptionError(f"SyntaxError, {one_line(error.msg, SHOWN)}; a line is one call, such as deviceIterations(4).") from None
    except (RecursionError, MemoryError, ValueError):
        raise OptionError("it cannot be parsed.") from None
    if made is None:
        raise OptionError("it is no call; write an option as a call, such as deviceIterations(4).")
    return _whole(made)


def _whole(made: Made) -> list[WrittenCall]:
    """Calls with their whole names: in `Training.gradientAccumulation(8).setAutomaticLossScaling(True)` the second is Training's as well."""
    first, *more = made.calls
    names = first.name.split(".")
    names = names[1:] if names[0] in PREFIXES and len(names) > 1 else names
    group = "".join(f"{n}." for n in names[:-1])
    return [WrittenCall(".".join(names), first.args, first.kwargs),
            *(WrittenCall(group + call.name, call.args, call.kwargs) for call in more)]


def _made(node: ast.Call) -> Made:
    """The calls in a row that a call is the last of."""
    names: list[str] = []
    function = node.func
    while isinstance(function, ast.Attribute):
        names.insert(0, function.attr)
        function = function.value
    before: tuple[WrittenCall, ...] = ()
    if isinstance(function, ast.Name):
        names.insert(0, function.id)
    elif isinstance(function, ast.Call):
        before = _made(function).calls
    else:
        raise OptionError("what is called must be a name.")
    if any(keyword.arg is None for keyword in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
        raise OptionError("its arguments must be written out, without stars.")
    kwargs = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
    return Made((*before, WrittenCall(".".join(names), tuple(map(_value, node.args)), kwargs)))


def _value(node: ast.expr) -> Any:
    """A literal, a word, or what calls make; OptionError for anything that would have to be computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str, type(None))):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {key.value: _value(item) for key, item in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)}
    if isinstance(node, ast.Call):
        return _made(node)
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return Word(".".join([node.id, *names]))
    raise OptionError("its values must be written out as numbers, texts, True, False, None, lists, tables, words such as poptorch.OutputMode.Sum or "
                      "calls such as poptorch.Stage(\"B1\"): nothing is computed.")
