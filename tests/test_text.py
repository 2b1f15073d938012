"""Names and texts from files: nothing that a terminal or a browser would obey comes out of any verb."""
from __future__ import annotations

import io
import sys
import unicodedata

import pytest

from tileflow.errors import OptionError
from tileflow.terminal import say
from tileflow.text import one_line, printable

TAKEN_OUT = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
EVIL = "\x00\x07\x08\x1b[31m\x9b2J\r\x7f\x85\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\ud800\U000e0041"
"""NUL, bell, backspace, escape sequences of 7 and 8 bits, line separators, bidirectional marks, invisible and lone surrogate characters."""


def raw(text: str) -> list[str]:
    """What of a text a terminal would obey: everything that must be taken out, but line feeds."""
    return [f"U+{ord(c):04X}" for c in text if c != "\n" and unicodedata.category(c) in TAKEN_OUT]


def test_every_character_that_is_not_printable_is_taken_out():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert not raw(printable(everything))
    assert not raw(one_line(everything, len(everything)))
    assert "\n" not in one_line(everything, len(everything))
    assert raw(EVIL)


def test_texts_of_ours_keep_their_lines_and_columns():
    text = "name   size\né漢🙂a\x1bb\n"
    assert printable(text) == "name   size\né漢🙂a b\n"
    assert one_line("a  b") == "a  b"
    assert one_line("a\n b\x00") == "a b"
    assert one_line("abc", 2) == "ab ..."


def test_errors_are_one_line():
    error = OptionError(f"There is no {EVIL}\nname.")
    error.add_note(f"Saved in {EVIL}.")
    assert not raw(str(error))
    assert str(error).count("\n") == 0
    assert not raw("".join(error.__notes__))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_stream_gets_what_it_can_take(encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    say("漢 ü " + EVIL, stream)
    stream.seek(0)
    text = stream.read()
    assert not raw(text)
    assert text.startswith({"utf-8": "漢 ü ", "latin-1": "\\u6f22 ü "}.get(encoding, "\\u6f22 \\xfc "))
