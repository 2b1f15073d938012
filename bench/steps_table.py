"""The README's second table: training steps of PyTorch's own modules (`python -m bench training --json`), a line each
network."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cases import cases
from .report import Result, place

BEGIN = "<!-- training steps: written by `python -m bench table` -->"
END = "<!-- end of training steps -->"
CASE = "training"

HEADS = ("network", "float32: of eager PyTorch", "of torch.compile's faster precision", "share of the FMA peak",
         "bfloat16 mixed: of eager PyTorch's faster precision", "of our own float32")


def serves(r: Result) -> bool:
    """Whether a result belongs into this table."""
    return r.case == CASE


def lines(machine: Mapping[str, Any], results: Sequence[Result]) -> list[str]:
    """The Markdown between the marks."""
    found = {(r.row, r.shape.removesuffix(" bf16-mixed"), r.threads): r for r in results}
    networks = [shape["network"] for shape in cases().row("modules").shapes]

    def cell(row: str, network: str, figure: str = "ratio", unit: str = ".2f") -> str:
        values = [getattr(found.get((row, network, threads)), figure, None) for threads in cases().threads]
        return " / ".join("-" if value is None else format(value, unit).replace("%", " %") for value in values)

    body = [(network, cell("modules", network), cell("modules-compiled", network),
             cell("modules", network, "fraction_of_peak", ".0%"), cell("modules-mixed", network),
             cell("modules-own", network)) for network in networks]
    return [f"Training steps of PyTorch's own modules on {place(machine)}, at 1 / 2 threads, beside torch "
            f"{machine['versions'].get('torch')}: its time over ours. Its faster precision is float32 or "
            "bfloat16 autocast; the share counts the operations of direct convolutions, and Winograd's way needs "
            "fewer.", "",
            f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", *(f"| {' | '.join(line)} |" for line in body)]
