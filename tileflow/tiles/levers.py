"""What would make a program fit that does not: each lever is pulled, the program analysed again, and its price measured."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..work import Contraction
from .plan import TileOptions, TileStep
from .schedule import layer_of
from .shard import over_two_ipus
from .tiled import Lever, TileProgram

PROPORTIONS = (0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.0)
FACTORS = (2, 4, 8, 16)


def find_levers(tiled: TileProgram) -> list[Lever]:
    """Levers in order of use: those that make the program fit first, cheapest first; then those that come closest. What saves
    nothing is left out.
    """
    tried = list(_attempts(tiled))
    if not any(lever.fits for lever in tried):
        tried += _together(tiled, [lever for lever in tried if lever.bytes < tiled.peak.max() and lever.ipus == 1])
    helpful = [lever for lever in tried if lever.bytes < tiled.peak.max()]
    return sorted(helpful, key=lambda lever: (not lever.fits, lever.cycles if lever.fits else lever.bytes, lever.name))


def _attempts(tiled: TileProgram) -> Iterator[Lever]:
    options = tiled.options
    yield from _lower_proportion(tiled)
    if tiled.program.training and not options.recompute and tiled.program.caller is None:
        yield _measured(tiled, "recompute", replace(options, recompute=True))
    if not options.optimizer_off_chip and any(s.kind == "optimizer" for s in tiled.memory_schedule.storages):
        yield _measured(tiled, "optimizer_off_chip", replace(options, optimizer_off_chip=True))
    yield from _in_pieces(tiled)
    yield from _on_two_ipus(tiled)


def _lower_proportion(tiled: TileProgram) -> Iterator[Lever]:
    """The highest proportion that fits, by bisection; where none does, the one of the two lowest that needs less."""
    lower = sorted((p for p in PROPORTIONS if p < tiled.options.available_memory_proportion), reverse=True)

    def attempt(p: float) -> Lever:
        return _measured(tiled, f"available_memory_proportion {p:g}", replace(tiled.options, available_memory_proportion=p, per_op={}, per_ipu={}))

    lowest = min((attempt(p) for p in lower[-2:]), key=lambda lever: lever.bytes, default=None)
    if lowest is None or not lowest.fits:
        yield from [] if lowest is None else [lowest]
        return
    low, high, best = 0, lower.index(lowest.options.available_memory_proportion), lowest
    while low < high:
        middle = (low + high) // 2
        found = attempt(lower[middle])
        low, high, best = (low, middle, found) if found.fits else (middle + 1, high, best)
    yield best


def _in_pieces(tiled: TileProgram) -> Iterator[Lever]:
    """The product with the most temporaries in pieces: the fewest that fit, else as many as there are."""
    step = _widest_product(tiled)
    if step is None:
        return
    layer, last = layer_of(step.node), None
    for factor in (f for f in FACTORS if _divides(step, f)):
        last = _measured(tiled, f"serialized_matmul {layer} in {factor} pieces of its output channels",
                         replace(tiled.options, serialized={**tiled.options.serialized, layer: ("output_channels", factor)}))
        if last.fits:
            break
    if last is not None:
        yield last


def _together(tiled: TileProgram, levers: list[Lever]) -> Iterator[Lever]:
    """All that help at once, on one IPU."""
    if len(levers) < 2:
        return
    changes = {name: value for lever in levers for name, value in vars(lever.options).items() if value != getattr(tiled.options, name)}
    yield _measured(tiled, " and ".join(lever.name for lever in levers), replace(tiled.options, **changes))


def _measured(tiled: TileProgram, name: str, options: TileOptions) -> Lever:
    found = tiled.again(options)
    return Lever(name, options, found.fits, int(found.peak[found.worst_tile]), found.cycles_per_update,
                 found.cycles_per_update / max(1, tiled.cycles_per_update))


def _widest_product(tiled: TileProgram) -> TileStep | None:
    """The forward product with the most temporaries that can be done in pieces."""
    able = [s for s in tiled.steps if isinstance(s.work, Contraction) and s.node.origin.role == "forward" and s.node.origin.sources
            and not s.work.serial and s.node.op.serialized("output_channels", 2) is not None]
    return max(able, key=lambda s: s.plan.temp_bytes, default=None)


def _divides(step: TileStep, factor: int) -> bool:
    op = step.node.op.serialized("output_channels", factor)
    assert op is not None
    axis, pieces = _serial(op, step)
    return pieces == factor and axis % factor == 0


def _serial(op: object, step: TileStep) -> tuple[int, int]:
    """Size of the axis that a serialized operator cuts, and in how many pieces."""
    types: Callable[..., object] = op.work                                                # type: ignore[attr-defined]
    work = types([None if v is None else v.type for v in step.node.inputs], [v.type for v in step.node.outputs])
    assert isinstance(work, Contraction)
    (axis, pieces), = work.serial
    return next(a.size for a in work.axes if a.name == axis), pieces


def _on_two_ipus(tiled: TileProgram) -> Iterator[Lever]:
    """One more IPU: the layers cut in two."""
    cut = over_two_ipus(tiled) if not tiled.ipus else None
    if cut is not None:
        fits = cut.bytes <= tiled.chip.usable_bytes
        slower = cut.cycles / max(1, tiled.cycles_per_update)
        yield Lever(f"one more IPU, from layer {cut.layer} on", tiled.options, fits, cut.bytes, cut.cycles, slower, 2)
