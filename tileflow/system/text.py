"""Text from files made fit to be shown: no control, NUL, bidirectional or otherwise invisible character reaches a terminal or a page.

A name in a model, a column of a table or a path may hold any character. What is not printable (Unicode's categories Cc, Cf, Cs, Co, Cn, Zl, Zp
and every space but U+0020) is taken out here and nowhere else: by `one_line` where a foreign name or sentence becomes part of a text of ours, by
`printable` where a whole text leaves us.
"""
from __future__ import annotations

LONGEST = 2000
"""Characters of a sentence of ours: names in a hostile file can be of any length."""
LONGEST_VALUE = 400
"""Characters of a value in a sentence."""


def one_line(text: object, longest: int = LONGEST) -> str:
    """Foreign text as one line of printable characters, shortened."""
    line = str(text)
    if not line.isprintable():
        line = " ".join("".join(c if c.isprintable() else " " for c in line[:10 * longest]).split())
    return line if len(line) <= longest else line[:longest] + " ..."


def shown(value: object) -> str:
    """A value that somebody gave, as Python writes it, shortened: a whole number may have more digits than Python writes, a table any depth."""
    try:
        return one_line(repr(value), LONGEST_VALUE)
    except (ValueError, RecursionError):
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else f"a {type(value).__name__} that is too large to be shown"


def printable(text: object) -> str:
    """A text of ours, its lines and columns as they are, with a space for each character that is not printable."""
    return "\n".join(line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line) for line in str(text).split("\n"))
