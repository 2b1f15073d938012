"""Regular expressions in RE2's syntax, matched in linear time: a set of states goes over the text, nothing is tried twice."""
from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from tileflow.system.errors import UnsupportedError
from tileflow.system.text import one_line

SHOWN = 100
LARGEST = 10_000
"""States of a pattern: repetitions are written out."""

CLASSES = {
    sre.CATEGORY_DIGIT: "0-9", sre.CATEGORY_NOT_DIGIT: r"\x00-/:-\U0010ffff",
    sre.CATEGORY_SPACE: r"\t\n\f\r ", sre.CATEGORY_NOT_SPACE: r"\x00-\x08\x0b\x0e-\x1f!-\U0010ffff",
    sre.CATEGORY_WORD: "0-9A-Za-z_", sre.CATEGORY_NOT_WORD: r"\x00-/:-@\[-\^`{-\U0010ffff",
}
"""RE2's classes, which are ASCII's."""


class _OutsideError(ValueError):
    """Something that RE2 does not have either."""


@dataclass
class _State:
    """A state: what a character must fulfil to lead on (None: it is no character that leads on), and where to."""

    test: Callable[[str], bool] | None = None
    to: list[int] = field(default_factory=list)
    at: str | None = None
    """A place in the text that must hold, in place of a character."""


@functools.lru_cache(64)
def matcher(pattern: str, title: str) -> Callable[[str], bool]:
    """Whether a whole text fits the pattern."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)                      # what Python reads otherwise than RE2: [[:alpha:]]
            tree = _parser.parse(pattern)
        machine = _Machine(tree.state.flags)
        last = machine.after(machine.sequence(tree, machine.add(_State())))
    except (re.error, _OutsideError, RecursionError, OverflowError, FutureWarning) as error:
        raise UnsupportedError(f"{title} has the pattern {one_line(repr(pattern), SHOWN)}, which is none that can be matched "
                               f"({one_line(error, SHOWN)})") from None
    return functools.partial(machine.matches, last)


class _Machine:
    """A pattern's states; the first is the start."""

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.states: list[_State] = []

    def add(self, state: _State) -> int:
        if len(self.states) >= LARGEST:
            raise _OutsideError(f"it comes to more than {LARGEST} states")
        self.states.append(state)
        return len(self.states) - 1

    # ---- building: each function continues from a state and returns the last one

    def sequence(self, tree: Any, start: int) -> int:
        for op, argument in tree:
            start = self._part(op, argument, start)
        return start

    def _part(self, op: Any, argument: Any, start: int) -> int:
        if op is sre.BRANCH:
            return self._branch(argument[1], start)
        if op is sre.SUBPATTERN:
            _, added, removed, inner = argument
            outer, self.flags = self.flags, (self.flags | added) & ~removed
            try:
                return self.sequence(inner, start)
            finally:
                self.flags = outer
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = argument
            return self._repeat(least, most, inner, start)
        if op is sre.AT:
            end = self.add(_State(at=self._place(argument)))
            self.states[start].to.append(end)
            return end
        end = self.add(_State(self._test(op, argument)))
        self.states[start].to.append(end)
        return end

    def _branch(self, branches: list[Any], start: int) -> int:
        ends = [self.sequence(branch, self.after(start)) for branch in branches]
        last = self.add(_State())
        for end in ends:
            self.states[end].to.append(last)
        return last

    def after(self, start: int) -> int:
        state = self.add(_State())
        self.states[start].to.append(state)
        return state

    def _repeat(self, least: int, most: Any, inner: Any, start: int) -> int:
        for _ in range(least):
            start = self.sequence(inner, start)
        if most is sre.MAXREPEAT:
            loop = self.after(start)
            self.states[self.sequence(inner, loop)].to.append(loop)
            return self.after(loop)
        skips = [start]
        for _ in range(int(most) - least):
            start = self.sequence(inner, start)
            skips.append(start)
        last = self.add(_State())
        for state in skips:
            self.states[state].to.append(last)
        return last

    def _place(self, where: Any) -> str:
        multi = bool(self.flags & re.MULTILINE)
        names = {sre.AT_BEGINNING: "line" if multi else "begin", sre.AT_BEGINNING_STRING: "begin", sre.AT_END: "end of line" if multi else "end",
                 sre.AT_END_STRING: "end", sre.AT_BOUNDARY: "boundary", sre.AT_NON_BOUNDARY: "no boundary"}
        if where not in names:
            raise _OutsideError(f"{where} is not in RE2")
        return names[where]

    def _test(self, op: Any, argument: Any) -> Callable[[str], bool]:
        """What a character must fulfil, by a class that Python compiles (case, ranges, negation)."""
        if op is sre.ANY:
            return (lambda c: True) if self.flags & re.DOTALL else (lambda c: c != "\n")
        if op is sre.LITERAL:
            text = re.escape(chr(argument))
        elif op is sre.NOT_LITERAL:
            text = f"[^{re.escape(chr(argument))}]"
        elif op is sre.IN:
            text = "[" + "".join(_class(item, value) for item, value in argument) + "]"
        else:
            raise _OutsideError(f"{op} is not in RE2")
        folded = functools.lru_cache(1 << 10)(re.compile(text, self.flags & re.IGNORECASE).fullmatch)
        return lambda c: folded(c) is not None

    # ---- matching

    def matches(self, last: int, text: str) -> bool:
        """The whole text leads from the first state to `last`."""
        current = self._closed([0], text, 0)
        for i, character in enumerate(text):
            reached = [s for s in current if (test := self.states[s].test) is not None and test(character)]
            if not reached:
                return False
            current = self._closed([to for s in reached for to in self.states[s].to], text, i + 1)
        return last in current

    def _closed(self, states: list[int], text: str, place: int) -> set[int]:
        """All states that are reached without a character."""
        seen: set[int] = set()
        stack = list(states)
        while stack:
            s = stack.pop()
            if s in seen:
                continue
            state = self.states[s]
            if state.at is not None and not _holds(state.at, text, place):
                continue
            seen.add(s)
            if state.test is None:
                stack.extend(state.to)
        return seen


def _class(item: Any, value: Any) -> str:
    """A member of a class, written again."""
    if item is sre.NEGATE:
        return "^"
    if item is sre.LITERAL:
        return re.escape(chr(value))
    if item is sre.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    if item is not sre.CATEGORY or value not in CLASSES:
        raise _OutsideError(f"{item} is not in RE2")
    return CLASSES[value]


def _holds(at: str, text: str, place: int) -> bool:
    """Something is so at a place in the text."""
    if at == "begin":
        return place == 0
    if at == "end":
        return place == len(text)
    if at == "line":
        return place == 0 or text[place - 1] == "\n"
    if at == "end of line":
        return place == len(text) or text[place] == "\n"
    before, after = (_is_word(text[i:i + 1]) if i >= 0 else False for i in (place - 1, place))
    return (before != after) == (at == "boundary")


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")
