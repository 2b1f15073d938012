"""What would make a program fit that does not: each lever is pulled, the program analysed again, and its price measured."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..work import Contraction
from .plan import TileOptions, TileStep
from .schedule import layer_of

if TYPE_CHECKING:
    from .machine import TileProgram

PROPORTIONS = (0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.0)
FACTORS = (2, 4, 8, 16)


@dataclass(frozen=True)
class Lever:
    """One thing that was tried. `slower`: cycles per update over those of the program as it is, as a factor; `bytes`: the worst tile's."""

    name: str
    options: TileOptions
    fits: bool
    bytes: int
    cycles: int
    slower: float
    ipus: int = 1

    @property
    def sentence(self) -> str:
        """What was tried and what came of it."""
        price = f"{abs(self.slower - 1):.1%} {'more' if self.slower >= 1 else 'fewer'} cycles"
        result = "it fits" if self.fits else "it still does not fit"
        return f"Tried {self.name}: {result}, with {self.bytes:,} bytes on the worst tile and {price}."


def find_levers(tiled: TileProgram) -> list[Lever]:
    """Levers in order of use: those that make the program fit first, cheapest first; then those that come closest."""
    tried = [lever for lever in _attempts(tiled) if lever.bytes < int(tiled.peak[tiled.worst_tile])]
    return sorted(tried, key=lambda lever: (not lever.fits, lever.cycles if lever.fits else lever.bytes, lever.name))


def _attempts(tiled: TileProgram) -> Iterator[Lever]:
    options = tiled.options
    lower = [p for p in PROPORTIONS if p < options.available_memory_proportion]
    yield from _first_fit(tiled, [(f"available_memory_proportion {p:g}", replace(options, available_memory_proportion=p, per_op={})) for p in lower])
    if tiled.program.training and not options.recompute:
        yield _measured(tiled, "recompute", replace(options, recompute=True))
    if not options.optimizer_off_chip and int(tiled.categories["optimizer"].max(initial=0)):
        yield _measured(tiled, "optimizer_off_chip", replace(options, optimizer_off_chip=True))
    step = _widest_product(tiled)
    if step is not None:
        layer = layer_of(step.node)
        tries = [(f"serialised_matmul {layer} in {f} pieces of its output channels",
                  replace(options, serialised={**options.serialised, layer: ("output_channels", f)})) for f in FACTORS if _divides(step, f)]
        yield from _first_fit(tiled, tries)
    yield _on_more_ipus(tiled)


def _first_fit(tiled: TileProgram, tries: list[tuple[str, TileOptions]]) -> Iterator[Lever]:
    """The first setting that fits; else the one that needs least."""
    best: Lever | None = None
    for name, options in tries:
        lever = _measured(tiled, name, options)
        if best is None or lever.bytes < best.bytes or lever.fits:
            best = lever
        if lever.fits:
            break
    if best is not None:
        yield best


def _measured(tiled: TileProgram, name: str, options: TileOptions) -> Lever:
    from .machine import analyze
    found = analyze(tiled.program, tiled.chip, options)
    return Lever(name, options, found.fits, int(found.peak[found.worst_tile]), found.cycles_per_update,
                 found.cycles_per_update / max(1, tiled.cycles_per_update))


def _widest_product(tiled: TileProgram) -> TileStep | None:
    """The forward product with the most temporaries that can be done in pieces."""
    able = [s for s in tiled.steps if isinstance(s.work, Contraction) and s.node.origin.role == "forward" and s.node.origin.sources
            and not s.work.serial and s.node.op.serialised("output_channels", 2) is not None]
    return max(able, key=lambda s: s.plan.temp_bytes, default=None)


def _divides(step: TileStep, factor: int) -> bool:
    op = step.node.op.serialised("output_channels", factor)
    assert op is not None
    axis, pieces = _serial(op, step)
    return pieces == factor and axis % factor == 0


def _serial(op: object, step: TileStep) -> tuple[int, int]:
    """Size of the axis that a serialised operator cuts, and in how many pieces."""
    types: Callable[..., object] = op.work                                                # type: ignore[attr-defined]
    work = types([None if v is None else v.type for v in step.node.inputs], [v.type for v in step.node.outputs])
    assert isinstance(work, Contraction)
    (axis, pieces), = work.serial
    return next(a.size for a in work.axes if a.name == axis), pieces


def _on_more_ipus(tiled: TileProgram) -> Lever:
    """One more IPU: every operator over the tiles of all of them, their links not priced."""
    from .machine import analyze
    ipus = tiled.ipus + 1
    wide = tiled.chip.variant(name=tiled.chip.name, tiles=tiled.chip.tiles // tiled.ipus * ipus)
    found = analyze(tiled.program, wide, tiled.options)
    return Lever(f"{ipus} IPUs (each operator over all tiles; their links not priced)", tiled.options, found.fits,
                 int(found.peak[found.worst_tile]), found.cycles_per_update, found.cycles_per_update / max(1, tiled.cycles_per_update), ipus)
