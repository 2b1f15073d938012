"""What would make a program fit that does not, and one that fits faster or smaller: each lever is pulled, the program analysed again, and its price
measured.

A lever is a change of options of a run, by their names, so that what is suggested can be done.
"""
from __future__ import annotations

import dataclasses
import glob
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..graph.work import Contraction
from ..options.options import declarations
from ..system.errors import TileflowError
from ..tiles.plans.plan import TileStep
from ..tiles.program.schedule import layer_of
from ..tiles.system.ipus import counts
from ..tiles.system.locations import GROUPS, group_of
from ..tiles.tiled import Changes, Lever, TileProgram
from .search import Planner, Search

PROPORTIONS = (0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.0)
HIGHER = (1.0, 0.8)
LOWER = (0.3, 0.1, 0.05)
"""Proportions that are tried of a program that fits."""
FACTORS = (2, 4, 8, 16)
IPUS = (2, 4, 8, 16)
HALVED = {"16-mixed": "16-true", "bf16-mixed": "bf16-true"}
"""Precisions of a program of which weights and optimizer state can have 16 bits as well."""
WORTH = 0.01
"""Of a program that fits: what saves less of its time or of its bytes is left out."""
IO_TILES = 32
MOST_DOUBLINGS = 3
BUDGET = 80_000
"""Operators that are planned to find what makes a program fit; one that is compiled anew counts twice. What no time is
left for is not tried."""


def find_levers(tiled: TileProgram, model: Planner) -> list[Lever]:
    """Levers in order of use: those that make the program fit first, those with the most samples per second for each of
    their IPUs first; then those that come closest. What saves nothing is left out. Of a program that fits, those that
    make it faster or smaller and leave it fitting.

    Where none alone makes it fit on the IPUs that it has, levers are pulled together before there are more IPUs.

    model: the program's model, to be tried with other settings.
    """
    pulled = _Levers(tiled, model)
    if tiled.fits:
        useful = [lever for lever in pulled.improvements() if lever.fits and (lever.samples_per_second > (1 + WORTH) * tiled.samples_per_second
                                                                              or lever.bytes < (1 - WORTH) * pulled.bytes)]
        return sorted(useful, key=lambda lever: (-lever.samples_per_second / lever.ipus, lever.bytes, lever.name))
    tried = list(pulled.attempts())
    if not any(lever.fits for lever in tried):
        tried += pulled.together(tried)
    tried += pulled.more_ipus({})
    if not any(lever.fits for lever in tried):
        tried += pulled.together_on_more(tried)
    helpful = [lever for lever in tried if lever.bytes < pulled.bytes]
    return sorted(helpful, key=lambda lever: (not lever.fits, -lever.samples_per_second / lever.ipus
                                              if lever.fits else lever.bytes, lever.name))


class _Levers(Search[Lever | None]):
    """What can be tried on a program; None is what cannot be done."""

    def __init__(self, tiled: TileProgram, model: Planner) -> None:
        super().__init__()
        self.model, self.tiled, self.options, self.program = model, tiled, tiled.options, tiled.program
        self.bytes = int(tiled.peak.max(initial=0))
        self.budget = float("inf") if tiled.fits else BUDGET

    def attempts(self) -> Iterator[Lever]:
        """What can be tried of a program that does not fit, on the IPUs that it has; a half of the budget is left for
        more of them at once."""
        self.budget /= 2
        training, staging = self.program.training, self.program.staging
        yield from self.fewer_bits()
        if training and not self.options.recompute and (staging is None or not staging.recompute):
            yield from self.measured("recompute", {"recompute": True})
        yield from self.lower_proportion()
        yield from self.off_chip()
        yield from self.shared_out()
        yield from self.smaller_micro_batch()
        yield from self.in_pieces()
        self.budget += BUDGET / 2

    def improvements(self) -> Iterator[Lever]:
        """What can be tried on a program that fits."""
        batching, staging, given = self.program.batching, self.program.staging, self.options
        yield from self.other_proportion()
        yield from self.fewer_bits()
        recomputing = given.recompute or (staging is not None and staging.recompute)
        if given.recompute or (self.program.training and not recomputing):
            yield from self.measured(f"recompute{' no more' if given.recompute else ''}", {"recompute": not given.recompute})
        for group in GROUPS:
            if getattr(given, f"{group}_off_chip"):
                yield from self.measured(f"{group} on the chip", {f"{group}_off_chip": False})
        yield from self.off_chip()
        yield from self.larger_micro_batch()
        if batching.micro_batch % 2 == 0:
            yield from self.measured(*self.micro_batch(batching.micro_batch // 2))
        yield from self.overlapped()
        yield from self.replicated()
        yield from self.more_ipus({})

    def other_proportion(self) -> Iterator[Lever]:
        """The fastest of the higher proportions with which it fits, and the lower one with the fewest bytes."""
        now = self.options.available_memory_proportion

        def tried(proportions: Sequence[float]) -> list[Lever]:
            return [lever for p in proportions for lever in self.measured(f"available_memory_proportion {p:g}", {"available_memory_proportion": p})
                    if lever.fits]
        yield from sorted(tried([p for p in HIGHER if p > now]), key=lambda lever: -lever.samples_per_second)[:1]
        yield from sorted(tried([p for p in LOWER if p < now]), key=lambda lever: lever.bytes)[:1]

    def micro_batch(self, rows: int) -> tuple[str, Changes]:
        """Micro-batches of so many rows; an update stays what it was."""
        batching, changes, name = self.program.batching, {"micro_batch_size": rows}, f"micro_batch_size {rows}"
        if self.program.training:
            changes["gradient_accumulation"] = batching.gradient_accumulation * batching.micro_batch // rows
            name += f" with gradient_accumulation {changes['gradient_accumulation']}"
        return name, changes

    def larger_micro_batch(self) -> Iterator[Lever]:
        """Micro-batches of twice the rows, again and again for as long as they fit and are faster: the fastest. An update stays what it was, so in
        training there must be several."""
        batching, best = self.program.batching, None
        rows = batching.micro_batch
        for _ in range(MOST_DOUBLINGS):
            rows *= 2
            if self.program.training and batching.gradient_accumulation * batching.micro_batch % rows:
                break
            found = next(self.measured(*self.micro_batch(rows)), None)
            if found is None or not found.fits or (best is not None and found.samples_per_second <= best.samples_per_second):
                break
            best = found
        if best is not None:
            yield best

    def overlapped(self) -> Iterator[Lever]:
        """Inputs that come through I/O tiles while the others compute, where the host is waited for and there are enough micro-batches."""
        batching, staging = self.program.batching, self.program.staging
        waits = self.tiled.io.waits / max(1, self.tiled.cycles_per_update)
        many = {"accumulation_loop": batching.gradient_accumulation * self.program.training, "device_iteration_loop": batching.device_iterations}
        loop = next((name for name, times in many.items() if times > 2), None)
        if loop is not None and waits >= WORTH and not self.options.num_io_tiles and (staging is None or staging.strategy != "pipelined"):
            yield from self.measured(f"{IO_TILES} I/O tiles for inputs", {"num_io_tiles": IO_TILES, "overlap_inputs": {"*": loop}})

    def replicated(self) -> Iterator[Lever]:
        """Twice the replicas, each with half of an update's micro-batches."""
        batching, replicas = self.program.batching, 2 * self.options.replicas
        changes: dict[str, Any] = {"replication_factor": replicas}
        name = f"{replicas} replicas"
        if self.program.training:
            if batching.gradient_accumulation % 2:
                return
            changes["gradient_accumulation"] = batching.gradient_accumulation // 2
            name += f" with gradient_accumulation {changes['gradient_accumulation']}"
        yield from self.measured(name, changes)

    def measured(self, name: str, changes: Changes) -> Iterator[Lever]:
        """A lever, unless it cannot be pulled or is one too many."""
        if self.budget <= 0 and repr(sorted(changes.items())) not in self.points:
            return
        lever = self.once(repr(sorted(changes.items())), lambda: self._pulled(changes))
        if lever is not None:
            yield dataclasses.replace(lever, name=name, changes=dict(changes))

    def _pulled(self, changes: Changes) -> Lever | None:
        """What changes come to, as a lever without a name; None where there cannot be such stages, or such a batch."""
        anew = any(not declarations()[name].machine_alone for name in changes)
        self.budget -= len(self.tiled.steps) * (2 if anew else 1)
        outcome = self.model.changed(changes)
        found = outcome.tiled
        if found is None:
            if outcome.error is not None and not isinstance(outcome.error, TileflowError):
                raise outcome.error
            return None
        return Lever("", changes, found.fits, int(found.peak[found.worst_tile]), found.cycles_per_update,
                     found.cycles_per_sample, found.cycles_per_sample / max(1e-9, self.tiled.cycles_per_sample),
                     found.samples_per_second, counts(found.ipus, found.options.replicas)["all"])

    def mildest(self, choices: Sequence[tuple[str, Changes]]) -> Iterator[Lever]:
        """Of changes each of which saves more than the one before, the first that makes it fit, by bisection; else the last."""
        best = next(self.measured(*choices[-1]), None) if choices else None
        if best is None:
            return
        low, high = 0, len(choices) - 1
        while best.fits and low < high:
            middle = (low + high) // 2
            found = next(self.measured(*choices[middle]), None)
            if found is not None and found.fits:
                high, best = middle, found
            else:
                low = middle + 1
        yield best

    def lower_proportion(self) -> Iterator[Lever]:
        """The highest proportion that fits; where none does, the one of the two lowest that needs less."""
        choices = self.proportions(0.0)
        lowest = min((lever for choice in choices[-2:] for lever in self.measured(*choice)), key=lambda lever: lever.bytes, default=None)
        if lowest is not None and lowest.fits:
            yield from self.mildest(self.proportions(lowest.changes["available_memory_proportion"]))
        elif lowest is not None:
            yield lowest

    def proportions(self, least: float) -> list[tuple[str, Changes]]:
        """Proportions that are lower than now, down to the least, the highest first."""
        lower = sorted((p for p in PROPORTIONS if least <= p < self.options.available_memory_proportion), reverse=True)
        return [(f"available_memory_proportion {p:g}", {"available_memory_proportion": p}) for p in lower]

    def off_chip(self) -> Iterator[Lever]:
        """Each group of tensors in streaming memory."""
        held = {group_of(s) for s in self.tiled.memory_schedule.storages}
        for group in GROUPS:
            if group in held and not getattr(self.options, f"{group}_off_chip"):
                yield from self.measured(f"{group}_off_chip", {f"{group}_off_chip": True})

    def shared_out(self) -> Iterator[Lever]:
        """Of several replicas each keeps a share of the optimizer's state, then of the weights, too."""
        if self.program.training and self.options.replicas > 1 and not self.options.shared_by and not self.options.weights_sharded:
            choices: list[tuple[str, Changes]] = [
                ("optimizer_sharded", {"optimizer_sharded": True}),
                ("optimizer_sharded with weights_sharded", {"optimizer_sharded": True, "weights_sharded": True})]
            yield from self.mildest(choices[self.options.optimizer_sharded:])

    def fewer_bits(self) -> Iterator[Lever]:
        """float16 for float32: simulated for a program of 32 bits, really for one of mixed precision."""
        if self.options.program == "32" and self.options.precision != "16.16":
            yield from self.measured("machine_precision 16.16", {"machine_precision": "16.16"})
        elif (halved := HALVED.get(self.options.program)) is not None:
            yield from self.measured(f"precision {halved}", {"precision": halved})

    def in_pieces(self) -> Iterator[Lever]:
        """The product with the most temporaries in pieces: the fewest that fit, else as many as there are."""
        step = _widest_product(self.tiled)
        if step is None:
            return
        layer = layer_of(step.node)
        before = {pattern: f"{mode}:{factor}" for pattern, (mode, factor) in self.options.serialized.items()}
        last = None
        for factor in (f for f in FACTORS if _divides(step, f)):
            name = f"serialized_matmul {layer} in {factor} pieces of its output channels"
            last = next(self.measured(name, {"serialized_matmul": {glob.escape(layer): f"output_channels:{factor}", **before}}), last)
            if last is not None and last.fits:
                break
        if last is not None:
            yield last

    def smaller_micro_batch(self) -> Iterator[Lever]:
        """Micro-batches of half the rows, and so on, and as many more for an update."""
        batching = self.program.batching
        choices: list[tuple[str, Changes]] = []
        rows = batching.micro_batch
        while rows % 2 == 0:
            rows //= 2
            choices.append(self.micro_batch(rows))
        yield from self.mildest(choices)

    def more_ipus(self, besides: Changes) -> Iterator[Lever]:
        """Automatic stages on the fewest IPUs that fit, else on the most that can be: in a pipeline where an update has enough micro-batches to fill
        it, else one after the other. A program whose stages somebody chose is left alone."""
        staging, batching = self.program.staging, self.program.batching
        if staging is not None and staging.strategy not in ("pipelined", "sharded"):
            return
        have = 1 if staging is None else len({*staging.ipus})
        last = None
        for count in (n for n in IPUS if n > have):
            accumulation = besides.get("gradient_accumulation", batching.gradient_accumulation)
            filled = accumulation >= 2 * count - 1 if self.program.training else batching.device_iterations >= count
            strategy = "pipelined" if filled else "sharded"
            found = next(self.measured(f"{count} IPUs, {strategy}", {**besides, "strategy": strategy, "auto_pipeline": count}), None)
            if found is None:
                break
            last = found
            if last.fits:
                break
        if last is not None:
            yield last

    def together(self, levers: Sequence[Lever]) -> Iterator[Lever]:
        """All that help, at once; where that fits, without those of them that cost time and are not needed, the dearest
        first, and the others as mild as they may be."""
        used = sorted(self._here(levers), key=lambda lever: -lever.slower)
        best = next(self._all(used), None) if len(used) > 1 else None
        if best is None:
            return
        for lever in [lever for lever in used if lever.slower > 1] if best.fits else ():
            fewer = [other for other in used if other is not lever]
            found = next(self._all(fewer), None)
            if found is not None and found.fits and found.samples_per_second >= best.samples_per_second:
                best, used = found, fewer
        for i, lever in enumerate(used) if best.fits else ():
            choices = [_merged([*used[:i], dataclasses.replace(lever, name=name, changes=changes), *used[i + 1:]])
                       for name, changes in
                       self.milder(lever)]
            found = next(self.mildest(choices), best)
            if found.fits and found.samples_per_second > best.samples_per_second:
                best, used[i] = found, dataclasses.replace(lever, changes={name: found.changes[name]
                                                                           for name in lever.changes})
        yield best

    def milder(self, lever: Lever) -> list[tuple[str, Changes]]:
        """A lever of which there is more or less, from the least of it to as much as it is."""
        if "micro_batch_size" in lever.changes:
            rows, found = lever.changes["micro_batch_size"], []
            while rows < self.program.batching.micro_batch:
                found.append(self.micro_batch(rows))
                rows *= 2
            return found[::-1]
        least = lever.changes.get("available_memory_proportion")
        return self.proportions(least) if isinstance(least, float) else []

    def together_on_more(self, levers: Sequence[Lever]) -> Iterator[Lever]:
        """All that help, on more IPUs."""
        here = [lever for lever in self._here(levers) if " and " not in lever.name]
        name, changes = _merged(here)
        if changes:
            yield from (dataclasses.replace(lever, name=f"{name} and {lever.name}")
                        for lever in self.more_ipus(changes))

    def _here(self, levers: Sequence[Lever]) -> list[Lever]:
        """Those that help on as many IPUs as the program has."""
        have = counts(self.tiled.ipus, self.options.replicas)["all"]
        return [lever for lever in levers if lever.ipus == have and lever.bytes < self.bytes]

    def _all(self, levers: Sequence[Lever]) -> Iterator[Lever]:
        return self.measured(*_merged(levers)) if levers else iter(())


def _merged(levers: Sequence[Lever]) -> tuple[str, Changes]:
    """The name of several levers at once, and what they change."""
    changes: dict[str, Any] = {}
    for lever in levers:
        changes |= lever.changes
    return " and ".join(lever.name for lever in levers), changes


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
