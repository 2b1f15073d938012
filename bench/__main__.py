"""`python -m bench [case …] [--json] [--threads N] [--runs N] [--against torch,onnxruntime,ours]` measures.

    python -m bench gemm --only 512 --threads 1        # a part of a case
    python -m bench models DIR [--profile]             # ONNX files of a folder, against ONNX Runtime and OpenVINO
    python -m bench startup [DIR]                       # what a first result takes, cold and warm
    python -m bench busy --models DIR                  # beside other processes and under quotas
    python -m bench importing                          # from ONNX files to plans
    python -m bench strategies                         # a pipeline beside one IPU, two replicas beside one
    python -m bench training --threads 1               # steps of PyTorch's own modules, float32 and mixed
    python -m bench bridge                             # a PyTorch module's call beside the engine's own
    python -m bench operators                          # operators of one's own beside the built-in one
    python -m bench processes                          # two processes beside one with two threads; two hosts
    python -m bench callbacks                          # what callbacks and logs cost
    python -m bench compare before.json after.json     # two files of --json
    python -m bench hardware --write docs/validation.md  # the tile machine against published figures of real chips
    python -m bench tile-choices --write docs/precision.md
    python -m bench precision --write docs/precision.md          # accuracy and loss of training in 16 bits against float32
    python -m bench table results.json --readme README.md
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import (
    again,
    arena,
    bridge,
    busy,
    compare,
    importing,
    limits,
    loading,
    operators,
    planning,
    precision,
    processes,
    real,
    rows,
    startup,
    strategies,
    table,
    tile_choices,
    validation,
    watched,
)
from .cases import cases, words
from .pairs import Peaks, Settings, measure
from .report import HEAD, Result, line, to_json
from .verdict import summary

OTHERS: dict[str, Callable[[int | None, int], Iterable[Any]]] = {"startup": startup.run, "hardware": validation.run,
                                                                 "planning": planning.run,
                                                                 "limits": limits.run, "arena": arena.run, "again": again.run,
                                                                 "rows": rows.run,
                                                                 "loading": loading.run, "importing": importing.run,
                                                                 "strategies": strategies.run, "bridge": bridge.run,
                                                                 "operators": operators.run,
                                                                 "processes": processes.run, "callbacks": watched.run}
"""Cases without a peer."""
VERBS = {"busy": busy.main, "compare": compare.main, "models": real.main, "precision": precision.main,
         "startup": startup.main, "table": table.main, "tile-choices": tile_choices.main, "hardware": validation.main}


def names() -> list[str]:
    """Every case."""
    return [*words(cases().rows), *OTHERS]


def run(case: str, arguments: argparse.Namespace, settings: Settings, peaks: Peaks) -> Iterator[Any]:
    """The results of a case, as they come."""
    if case in OTHERS:
        yield from OTHERS[case](arguments.threads, arguments.runs)
    for row in cases().of(case):
        yield from measure(row, case, settings, peaks)


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in VERBS:
        return VERBS[given[0]](given[1:])
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks: our times against peers', both measured in the same run.")
    parser.add_argument("cases", nargs="*", metavar="case", help=f"what to measure (default: all): {', '.join(names())}")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--threads", type=int, help="worker threads on both sides (default: 1 and 2)")
    parser.add_argument("--runs", type=int, default=9, help="measured turns per side; medians are compared")
    parser.add_argument("--against", default="torch,onnxruntime,ours", help="peers, separated by commas; none: measure our side alone")
    parser.add_argument("--path", help="force a CPU path of our side, for example avx2")
    parser.add_argument("--only", default="", metavar="TEXT", help="only shapes with this in their name")
    chosen = parser.parse_args(given)
    unknown = [c for c in chosen.cases if c not in names()]
    if unknown:
        parser.error(f"no case is called {', '.join(unknown)}; the cases are {', '.join(names())}")
    cores = os.cpu_count() or 1
    threads = (chosen.threads,) if chosen.threads else tuple(n for n in cases().threads if n <= cores)
    settings = Settings(threads, chosen.runs, tuple(chosen.against.split(",")), chosen.path, chosen.only)
    peaks = Peaks()
    results: list[Any] = []
    out = sys.stderr if chosen.json else sys.stdout
    try:
        for case in dict.fromkeys(chosen.cases or names()):
            for i, result in enumerate(run(case, chosen, settings, peaks)):
                results.append(result)
                if not i and isinstance(result, Result):
                    print(HEAD, file=out)
                print(line(result) if isinstance(result, Result) else result.to_text(), file=out, flush=True)
    except KeyboardInterrupt:
        print("interrupted: what was measured so far follows", file=sys.stderr)
    if chosen.json:
        print(to_json(results))
    else:
        print(summary([r for r in results if isinstance(r, Result)]))


if __name__ == "__main__":
    main()
