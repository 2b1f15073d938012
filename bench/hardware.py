"""The tile machine against published figures of real hardware: every configuration pinned, no constant fitted to any line.

For each line: prediction, published figure, their ratio, where the figure is from, the whole configuration, and how far the
result moves when a constant of the chip that is an estimate is halved or doubled.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from tileflow.program import Program
from tileflow.tiles.chip import Chip, chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plan import TileOptions

from .networks import bert_program, encoder_program, matmul_program, resnet_program
from .pipeline import LINK_SHARE, Layout, update_time

VENDOR = "vendor's published training results for a Bow Pod16"
JIA = "Jia et al., arXiv 1912.03413 (quoted from memory: soft)"
C600_NOTES = "a third party's own program for the C600; a library-quality plan should beat it and stay below the peak"
MATMUL_SIZES = range(256, 5121, 256)
MEMORY_ONLY = {"reserved_bytes"}
"""Estimates that change what fits, but no cycles of what does."""


@dataclass
class Prediction:
    """One line: what the tile machine says and what was measured. `ratio` = predicted / published, above 1 is faster than published."""

    case: str
    unit: str
    predicted: float
    published: float
    ratio: float
    source: str
    soft: bool
    configuration: dict[str, Any]
    details: dict[str, Any] = field(default_factory=dict)
    sensitivity: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Constant -> prediction with half of it and with twice of it, as shares of the prediction."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = [f"{self.case}: {self.predicted:,.1f} {self.unit} predicted, {self.published:,.1f} published, ratio {self.ratio:.2f}"
                 + (" (soft)" if self.soft else ""), f"  source         {self.source}"]
        for title, table in (("configuration", self.configuration), ("details", self.details)):
            lines += [f"  {title:<14} {name} = {value}" for name, value in table.items()]
        lines += [f"  estimate       {name}: halved {100 * (low - 1):+.1f} %, doubled {100 * (high - 1):+.1f} %"
                  for name, (low, high) in self.sensitivity.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Line:
    """A published figure and how to predict it: `predict(chip, link share)` gives the figure in `unit` and details."""

    case: str
    unit: str
    published: float
    source: str
    machine: str
    configuration: dict[str, Any]
    predict: Callable[[Chip, float], tuple[float, dict[str, Any]]]
    higher_is_faster: bool = True
    soft: bool = False
    linked: bool = False
    memory: Callable[[Chip], dict[str, str]] | None = None

    def run(self) -> Prediction:
        """The prediction, and what each estimate does to it."""
        machine = chip(self.machine)
        predicted, details = self.predict(machine, LINK_SHARE)
        if self.memory is not None:
            details |= self.memory(machine)
        moved: dict[str, tuple[float, float]] = {}
        for name, value, kind, _ in machine.constants():
            if kind == "estimate" and name not in MEMORY_ONLY:
                changed = [self.predict(machine.variant(**{name: type(value)(value * f)}), LINK_SHARE)[0] for f in (0.5, 2)]
                moved[name] = changed[0] / predicted, changed[1] / predicted
        if self.linked:
            low, high = (self.predict(machine, LINK_SHARE * f)[0] for f in (0.5, 2))
            moved["share of the link bandwidth in one direction"] = low / predicted, high / predicted
        ratio = predicted / self.published if self.higher_is_faster else self.published / predicted
        moved = {name: pair for name, pair in moved.items() if max(abs(x - 1) for x in pair) >= 5e-4}
        return Prediction(self.case, self.unit, predicted, self.published, ratio, self.source, self.soft,
                          {"machine": machine.name, **self.configuration}, details, moved)


def throughput(program: Program, layout: Layout, options: TileOptions, machine: Chip, link_share: float,
               sharded_optimizer: bool = False) -> tuple[float, dict[str, Any]]:
    """Samples per second of all replicas. `sharded_optimizer`: each replica fetches its share of off-chip optimizer state."""
    if sharded_optimizer:
        machine = machine.variant(name=machine.name, streaming_bytes_per_second=machine.streaming_bytes_per_second * layout.replicas)
    tiles = analyze(program, machine, options)
    time = update_time(tiles, layout, link_share)
    rows = program.batching.rows_per_update * layout.replicas
    return rows / time.total, _details(tiles, time.total, {
        "cycles per micro-batch and stage": list(time.stage_cycles), "micro-batches": time.micro_batches, "pipeline bubbles": time.bubbles,
        "stage boundaries": time.boundary, "weight update": time.weight_update, "all-reduce": time.all_reduce})


def _details(tiles: TileProgram, seconds: float, parts: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value if isinstance(value, list) else f"{1e3 * value:.2f} ms" for name, value in parts.items()}
    where = "worst tile, all stages on one IPU" if len(parts["cycles per micro-batch and stage"]) > 1 else "worst tile"
    return {"one update": f"{1e3 * seconds:.2f} ms", **shown, where: _memory(tiles)}


def _memory(tiles: TileProgram, stash: int = 0) -> str:
    """Bytes of the worst tile; `stash` bytes of the IPU, spread over its tiles, come on top."""
    peak, bound = int(tiles.peak[tiles.worst_tile]) + -(-stash // tiles.chip.tiles), tiles.chip.usable_bytes
    return f"{peak:,} of {bound:,} bytes" + (": does not fit" if peak > bound else "")


def _resnet(machine: Chip, link_share: float) -> tuple[float, dict[str, Any]]:
    return throughput(_resnet_program(), Layout(replicas=16), TileOptions(available_memory_proportion=0.16, precision="16.16", recompute=True),
                      machine, link_share)


@functools.cache
def _resnet_program() -> Program:
    return resnet_program(50, micro_batch=20, gradient_accumulation=6)


BERT_STAGES = ((), *(tuple(f"layers.{i}" for i in range(4 * s, 4 * s + 4)) for s in range(3)))


BERT_OPTIONS = TileOptions(available_memory_proportion=0.25, precision="16.16", recompute=True, optimizer_off_chip=True)
BERT_BOUNDARY = 32 * 128 * 768
"""Micro-batch, positions and features that pass between stages."""


def _bert(machine: Chip, link_share: float) -> tuple[float, dict[str, Any]]:
    layout = Layout(BERT_STAGES, replicas=4, boundary_values=BERT_BOUNDARY)
    return throughput(_bert_program(), layout, BERT_OPTIONS, machine, link_share, sharded_optimizer=True)


def _bert_memory(machine: Chip) -> dict[str, str]:
    """Worst tiles of the stages, each analysed by itself; a stage s of F keeps 2 (F - 1 - s) + 1 inputs of micro-batches under way."""
    stages = [bert_program("base", 32, 512, layers=0), *[encoder_program("base", 4, 32, 512)] * 3]
    made = [analyze(program, machine, BERT_OPTIONS) for program in stages]
    return {f"worst tile, stage {s}": _memory(tiles, 2 * BERT_BOUNDARY * (2 * (len(stages) - 1 - s) + 1)) for s, tiles in enumerate(made)}


@functools.cache
def _bert_program() -> Program:
    return bert_program("base", micro_batch=32, gradient_accumulation=512)


def _matmul(n: int, machine: Chip, precision: str) -> TileProgram:
    return analyze(matmul_program(n, n, n), machine, TileOptions(available_memory_proportion=0.6, precision=precision))


def _square(precision: str) -> Callable[[Chip, float], tuple[float, dict[str, Any]]]:
    """TFLOP/s of the best size that fits; operands are on the chip."""
    def best(machine: Chip, _: float) -> tuple[float, dict[str, Any]]:
        rates = {n: 2e-12 * n ** 3 / tiles.phases.total * machine.clock_hz for n in MATMUL_SIZES
                 if (tiles := _matmul(n, machine, precision)).fits}
        n = max(rates, key=lambda n: rates[n])
        peak = machine.peak_flops("float16" if precision.startswith("16") else "float32") / 1e12
        return rates[n], {"best size": n, "peak": f"{peak:.1f} TFLOP/s", "share of the peak": f"{rates[n] / peak:.0%}"}
    return best


def _c600(machine: Chip, _: float) -> tuple[float, dict[str, Any]]:
    tiles = _matmul(4096, machine, "16.16")
    step = next(s for s in tiles.steps if s.work.flops)
    share = tiles.flops * machine.clock_hz / tiles.phases.total / machine.peak_flops("float16")
    assert share < 1, "faster than the chip's peak"
    return float(tiles.phases.total), {"share of the peak": f"{share:.0%}", "splits": dict(step.plan.splits), "serial": dict(step.plan.serial),
                                       "phases": asdict(step.phases)}


RESNET_CONFIGURATION = {
    "network": "ResNet-50, 224x224, momentum SGD, weight decay", "IPUs": "16 replicas of 1 IPU, no pipeline", "micro-batch": 20,
    "gradient accumulation": 6, "global batch": 1920, "precision": "16.16", "available memory proportion": 0.16,
    "recomputation": "on (about sqrt(n) segments; the vendor lists checkpoints by hand)", "off-chip": "nothing",
    "after": "the vendor's example configuration resnet50 (16 replicas, proportion 0.16, half partials, manual recomputation) with the published "
             "global batch in place of micro-batch 18 and accumulation 57"}
BERT_CONFIGURATION = {
    "network": "BERT-Base, sequence 128, 20 masked tokens, AdamW", "IPUs": "4 replicas of a pipeline of 4 IPUs",
    "stages": "embeddings and heads; layers 0-3; 4-7; 8-11", "micro-batch": 32, "gradient accumulation": 512, "global batch": 65536,
    "precision": "16.16", "available memory proportion": 0.25, "recomputation": "on", "dropout": "0.1, none on attention",
    "off-chip": "optimizer state, each replica a fourth of it",
    "after": "the vendor's example configuration pretrain_base_128 (LAMB there)"}
LINES = (
    Line("ResNet-50 training, 16 Bow IPUs", "images/s", 42029, VENDOR, "bow", RESNET_CONFIGURATION, _resnet, linked=True),
    Line("BERT-Base pre-training, 16 Bow IPUs", "sequences/s", 16391, VENDOR, "bow", BERT_CONFIGURATION, _bert, linked=True,
         memory=_bert_memory),
    Line("square matmul fp32, GC2", "TFLOP/s", 18.9, JIA, "gc2", {"precision": "32.32", "sizes": "256 to 5,120, best that fits"},
         _square("32.32"), soft=True),
    Line("square matmul mixed, GC2", "TFLOP/s", 58.9, JIA, "gc2", {"precision": "16.32", "sizes": "256 to 5,120, best that fits"},
         _square("16.32"), soft=True),
    Line("4096^3 matmul fp16, C600", "cycles", 2262696, C600_NOTES, "c600", {"precision": "16.16", "available memory proportion": 0.6},
         _c600, higher_is_faster=False, soft=True),
)


def run(threads: int | None = None, runs: int = 1) -> list[Prediction]:
    """All lines. Nothing is timed: neither argument changes them."""
    return [line.run() for line in LINES]
