"""`python -m bench [mnist|hardware|planning|limits …] [--json] [--threads N] [--runs N]`."""
from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from . import hardware, limits, mnist, planning
from .report import show

CASES: dict[str, Callable[[int | None, int], Sequence[Any]]] = {"mnist": mnist.run, "hardware": hardware.run, "planning": planning.run,
                                                                      "limits": limits.run}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks: our times against peers', both measured in the same run; the "
                                     "tile machine against published hardware figures; its planning times.")
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help=f"what to measure (default: all): {', '.join(CASES)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--threads", type=int, help="worker threads on both sides (default: all cores)")
    parser.add_argument("--runs", type=int, default=9, help="measured calls per side; medians are compared")
    arguments = parser.parse_args()
    results = [r for case in arguments.cases or CASES for r in CASES[case](arguments.threads, arguments.runs)]
    show(results, arguments.json)


if __name__ == "__main__":
    main()
