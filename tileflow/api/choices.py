"""What each choice of precision and of accumulators' and moments' types costs a model on the tile machine: one program for each, compared."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..options.options import Options, with_defaults
from ..options.registries import OPTIMIZERS
from ..report import Report
from ..report.format import count, percent
from ..report.text import table
from ..system.errors import OptionError
from .models import Modelish
from .simulation import DEFAULT_MACHINE, compile

VELOCITY = "velocity_accum_type"
MOMENTS = ("first_order_momentum_accum_type", "second_order_momentum_accum_type", VELOCITY)
PRECISIONS = ("32", "16-mixed", "16-true")
COLUMNS = (("precision", "precision"), ("accumulators", "accumulators"), ("moments", "moments"), ("worst", "worst tile"),
           ("always_live", "always live"), ("weights", "weights"), ("optimizer", "optimizer"), ("cycles", "cycles"))
"""Fields of a choice, and what tables call them."""
ALWAYS = ("weights", "optimizer", "buffers", "constants")
"""Categories of memory that are taken all the time, but for code."""


@dataclass(frozen=True)
class PrecisionChoice:
    """One setting and what it takes.

    accumulators, moments: their types, "-" where the program has none. worst: bytes of the worst tile at its peak. always_live: bytes of all tiles
    that are taken all the time, code left out; weights and optimizer are among them. cycles: of one weight update (inference: of one micro-batch).
    fits: the chip has room for it.
    """

    precision: str
    accumulators: str
    moments: str
    worst: int
    always_live: int
    weights: int
    optimizer: int
    cycles: int
    fits: bool


def compare(model: Modelish, options: Options | None = None, *, training: bool = True, inputs: Sequence[Any] | None = None,
            **changes: Any) -> list[PrecisionChoice]:
    """Compile a model for the tile machine with each choice: every precision, then 16-bit accumulators and moments as well.

    Args:
        options, changes: as for `compile`; the precision and the types of accumulators and moments are compared, so they cannot be given.

    Raises:
        OptionError: one of those is given.
    """
    base = with_defaults((options or Options()).clone(**changes))
    for name in ("precision", "accum_type", *MOMENTS):
        if base.given(name, files=False):
            raise OptionError(f"The choices of {name} are compared, so it cannot be given; leave it out.")
    if base.machine is None:
        base = base.clone(machine=DEFAULT_MACHINE)
    found: list[PrecisionChoice] = []
    for precision in PRECISIONS:
        for types in _types(base, training):
            chosen = base.clone(precision=precision, **types)
            result: Any = compile(model, chosen, training=training, inputs=inputs, allow_out_of_memory=True)
            found.append(_choice(precision, result.report, result.program))
    return found


def _types(options: Options, training: bool) -> list[dict[str, str]]:
    """The options that choose 16 bits: for nothing, for accumulators, for moments as well; only what has an effect."""
    moments = {name: "float16" for name in MOMENTS if name in OPTIMIZERS[options.optimizer].options}
    if not training:
        return [{}]
    accumulators = {"accum_type": "float16"} if options.gradient_accumulation > 1 else {}
    with_moments = {**accumulators, **moments} if VELOCITY not in moments or options.momentum else accumulators
    return [{}, *([accumulators] if accumulators else []), *([with_moments] if with_moments != accumulators else [])]


def _choice(precision: str, report: Report, program: Any) -> PrecisionChoice:
    """A row, from the report; the types are those of the program's states."""
    states, trained = list(program.states.values()), {s.name for s in program.states.values() if s.kind == "parameter"}
    types = {kind: ", ".join(sorted({s.input.dtype for s in states if s.kind == kind and s.owner in trained})) or "-"
             for kind in ("accumulator", "optimizer")}
    memory, totals = report["memory"], report["totals"]
    nbytes = {name: sum(tiles) for name, tiles in memory["categories"].items()}
    always = sum(nbytes.get(name, 0) for name in ALWAYS)
    return PrecisionChoice(precision, types["accumulator"], types["optimizer"], memory["worst"], always,
                           nbytes.get("weights", 0), nbytes.get("optimizer", 0),
                           totals["cycles"], memory["fits"])


def to_text(choices: Sequence[PrecisionChoice]) -> str:
    """A table with a row for each choice, and what it takes of the first one's worst tile and cycles."""
    rows = [[getattr(c, name) if isinstance(getattr(c, name), str) else count(getattr(c, name)) for name, _ in COLUMNS] for c in choices]
    first = choices[0]
    for row, c in zip(rows, choices, strict=True):
        row[3] += "" if c.fits else " !"
        row += [percent(c.worst / first.worst), percent(c.cycles / max(1, first.cycles))]
    header = [title for _, title in COLUMNS]
    note = "\n  ! does not fit" if not all(c.fits for c in choices) else ""
    header += ["worst tile of first", "cycles of first"]
    return f"What each choice takes: bytes, of the worst tile and of all tiles\n\n{table(header, rows, 3)}{note}"
