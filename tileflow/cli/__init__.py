"""The command line: `tileflow train | infer | inspect | compile | tune | report | doctor`. Flags of options come from their declarations."""
from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ..errors import TileflowError
from ..terminal import say
from ..text import one_line
from .arguments import model_path, options_of
from .exit import INTERRUPTED, OK, USER_ERROR
from .parser import make_parser, parse

__all__ = ["INTERRUPTED", "OK", "USER_ERROR", "main", "make_parser", "model_path", "options_of", "parse"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 2 after an error a user can mend, 130 after Ctrl-C."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            chosen = parse(sys.argv[1:] if arguments is None else arguments)
            return int(chosen.run(chosen))
        except TileflowError as error:
            return _fail(str(error), error)
        except MemoryError as error:
            return _fail("There is not enough memory for this run; lower micro_batch_size or gradient_accumulation.", error)
        except KeyboardInterrupt as stop:
            say(f"\ntileflow: {one_line(stop) or 'Interrupted.'}", sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())          # the reader went away; so may the rest
            return OK


def _fail(sentence: str, error: BaseException) -> int:
    notes = getattr(error, "__notes__", [])
    say("\n".join([f"tileflow: error: {sentence}", *notes]), sys.stderr)
    return USER_ERROR


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    say(f"tileflow: warning: {one_line(message)}", sys.stderr)
