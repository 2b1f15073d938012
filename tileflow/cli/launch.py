"""`tileflow launch`."""
from __future__ import annotations

import argparse
import sys

from ..kernels.machine.limits import processors
from ..system.errors import OptionError
from ..system.exit_codes import OK
from ..system.terminal import say

HELP = "run a training, or a script of your own, in several processes of this computer that train together"
EPILOG = "example: tileflow launch -n 2 train digits_cnn.onnx --data digits --replication-factor 2 --out run"
RESTARTED = "train"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--processes", type=int, metavar="N", default=2, help="how many processes; 2 by default")
    parser.add_argument("--max-restarts", type=int, metavar="K", default=0,
                        help="go on from the last checkpoint, up to K times, where a process died or hung; of train with --out")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="train MODEL ..., script.py ..., or python ...")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow launch`: the processes have this host's processors by equal parts."""
    from ..collective import launch
    words = chosen.words[1:] if chosen.words[:1] == ["--"] else chosen.words
    if not words:
        raise OptionError("tileflow launch runs a command: tileflow launch -n 2 train MODEL ..., or tileflow launch -n 2 script.py.")
    if not 1 <= chosen.processes <= 1024:
        raise OptionError(f"The number of processes must be 1 to 1024, not {chosen.processes}.")
    if chosen.max_restarts < 0 or (chosen.max_restarts and (words[0] != RESTARTED or not any(w.split("=")[0] == "--out" for w in words))):
        raise OptionError("--max-restarts takes a number of restarts of train with a folder --out, whose checkpoint a restart goes on from.")

    def command(again: bool) -> list[str]:
        return launch.this_python([*words, *(["--resume"] if again and "--resume" not in words else [])])
    threads = max(1, processors() // chosen.processes)
    end = launch.repeated(command, chosen.processes, threads, chosen.max_restarts, lambda text: say(text, sys.stderr))
    if end.code != OK and not end.shown:
        say(f"tileflow: error: {end.cause}", sys.stderr)
    return end.code
