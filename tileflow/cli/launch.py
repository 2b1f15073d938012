"""`tileflow launch`."""
from __future__ import annotations

import argparse
import os
import sys

from ..kernels.machine.limits import processors
from ..system.errors import OptionError
from ..system.exit_codes import OK
from ..system.terminal import say

HELP = "run a training, or a script of your own, in several processes that train together, on this computer or several"
EPILOG = "example: tileflow launch -n 2 train digits_cnn.onnx --data digits --replication-factor 2 --out run"
RESTARTED = "train"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--processes", type=int, metavar="N", default=2, help="how many processes; 2 by default")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A,B", default=None,
                       help="the computers that they run on, in turn (A:2 gets two), by MPI's launcher")
    where.add_argument("--hosts-file", metavar="FILE", default=None,
                       help="the same from a file, one in a line")
    parser.add_argument("--num-replicas", type=int, metavar="R", default=None,
                        help="tells a script's popdist.getNumTotalReplicas() the replicas of all processes; train has "
                             "--replication-factor")
    parser.add_argument("--ipus-per-replica", type=int, metavar="K", default=None,
                        help="tells a script's popdist.getNumIpusPerReplica()")
    parser.add_argument("--no-pin", action="store_true", default=False,
                        help="let processes run on all processors, instead of an equal part for each")
    parser.add_argument("--max-restarts", type=int, metavar="K", default=0,
                        help="go on from the last checkpoint, up to K times, where a process died or hung, without "
                             "hosts that are gone; of train with --out")
    parser.add_argument("--patience", type=float, metavar="SECONDS", default=None,
                        help="how long a process may give no sign of life before all are ended; 6 by default")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND",
                        help="train MODEL ..., script.py ..., or python ...")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow launch`: the processes of a host have its processors by equal parts."""
    from ..collective import group, hosts, launch, patience
    words = chosen.words[1:] if chosen.words[:1] == ["--"] else chosen.words
    if not words:
        raise OptionError("tileflow launch runs a command: tileflow launch -n 2 train MODEL ..., or tileflow launch -n "
                          "2 script.py.")
    if not 1 <= chosen.processes <= 1024:
        raise OptionError(f"The number of processes must be 1 to 1024, not {chosen.processes}.")
    if chosen.max_restarts < 0 or (chosen.max_restarts
                                   and (words[0] != RESTARTED or not any(w.split("=")[0] == "--out" for w in words))):
        raise OptionError("--max-restarts takes a number of restarts of train with a folder --out, whose checkpoint a "
                          "restart goes on from.")

    if chosen.num_replicas is not None and chosen.num_replicas < chosen.processes:
        raise OptionError(f"--num-replicas {chosen.num_replicas} has no replica for each of {chosen.processes} "
                          "processes.")
    if chosen.ipus_per_replica is not None and chosen.ipus_per_replica < 1:
        raise OptionError(f"--ipus-per-replica must be at least 1, not {chosen.ipus_per_replica}.")
    told = {group.REPLICAS: chosen.num_replicas, group.IPUS: chosen.ipus_per_replica,
            patience.PATIENCE: chosen.patience}
    os.environ.update({name: str(value) for name, value in told.items() if value is not None})
    patience.silent()
    named = None if chosen.hosts is None and chosen.hosts_file is None else hosts.names(chosen.hosts, chosen.hosts_file)
    threads = max(1, processors() // chosen.processes)

    count = chosen.processes

    def start(again: bool) -> launch.End:
        nonlocal named, count
        if named is not None and not again:
            hosts.check(named)
        elif named is not None:
            named, count, without = hosts.remaining(named, count)
            if without:
                say(without, sys.stderr)
        command = launch.this_python([*words, *(["--resume"] if again and "--resume" not in words else [])])
        if named is not None:
            return hosts.run(command, count, named, not chosen.no_pin)
        return launch.run(command, count, threads, not chosen.no_pin)
    end = launch.repeated(start, chosen.max_restarts, lambda text: say(text, sys.stderr))
    if end.code != OK and not end.shown:
        say(f"tileflow: error: {end.cause}", sys.stderr)
    return end.code
