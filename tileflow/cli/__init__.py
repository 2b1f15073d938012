"""The command line: `tileflow train | launch | infer | inspect | compare | compile | tune | explore | report | runs |
doctor | completion`. Flags of options come from their declarations."""
from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..system.errors import NoUpdateError, TileflowError
from ..system.exit_codes import INTERNAL_ERROR, INTERRUPTED, NO_UPDATE, OK, USER_ERROR
from ..system.terminal import say
from ..system.text import one_line
from .arguments import model_path, options_of
from .parser import DEBUG, make_parser, parse

__all__ = ["INTERNAL_ERROR", "INTERRUPTED", "NO_UPDATE", "OK", "USER_ERROR", "main", "make_parser", "model_path", "options_of", "parse"]
PACKAGE = Path(__file__).parent.parent
LONGEST = 300
"""Characters of an internal error that are shown."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 after a training whose last epoch had no update that counted, 2 after another error that a
    user can mend, 70 after a mistake of tileflow's own, 130 after Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            chosen = parse(words)
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
        except Exception as error:
            return _report(error, DEBUG in words)


def _report(error: Exception, debug: bool) -> int:
    """The last resort, for a mistake of our own: one line that says what and where, and the traceback only for who asks for it."""
    if debug:
        say("".join(traceback.format_exception(error)), sys.stderr)
    frames = traceback.extract_tb(error.__traceback__)
    inside = next((f for f in reversed(frames) if Path(f.filename).is_relative_to(PACKAGE)), frames[-1])
    place = f"{'/'.join(Path(inside.filename).parts[-2:])}, line {inside.lineno}"
    more = "" if debug else f"; run with {DEBUG} for the traceback"
    say(f"tileflow: internal error {one_line(repr(error), LONGEST)} ({place}): please report it{more}.", sys.stderr)
    return INTERNAL_ERROR


def _fail(sentence: str, error: BaseException) -> int:
    notes = getattr(error, "__notes__", [])
    say("\n".join([f"tileflow: error: {sentence}", *notes]), sys.stderr)
    return NO_UPDATE if isinstance(error, NoUpdateError) else USER_ERROR


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    say(f"tileflow: warning: {one_line(message)}", sys.stderr)
