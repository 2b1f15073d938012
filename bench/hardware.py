"""The tile machine against published figures of real hardware: every configuration pinned, no constant fitted to any line.

For each line: prediction, published figure, their ratio, where the figure is from, the whole configuration (replicas, stages, accumulation,
micro-batch, precision, recomputation), and how far the prediction moves with each constant of the chip at 0.9 and at 1.1 of its value.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import tileflow
from tileflow.program import schedule as order
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import Chip, chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.plan import TileOptions
from tileflow.tiles.plans.planner import PlanCache
from tileflow.tiles.system.links import waits

from .networks import bert_program, matmul_program, resnet_program, vit_program
from .report import Figures

VENDOR = "vendor's published training results for a Bow Pod16 (graphcore.ai/performance-results)"
JIA = "Jia et al., arXiv 1912.03413 (quoted from memory: soft)"
C600_NOTES = "a third party's own program for the C600; a library-quality plan should beat it and stay below the peak"
TUTORIAL = "Graphcore's tutorial vit_model_training (github.com/graphcore/tutorials), run on 4 IPUs of a Pod: 2,496 steps of 128 images in 17:18"
MMPRETRAIN = ("open-mmlab/mmpretrain, tools/ipu_train_example.sh: '16 IPUs, 4 replicas, model Tput = 5600 images'; "
              "configs/vision_transformer/vit-base-p16_ft-4xb544_in1k-224_ipu.py")
HOST_BOUND = ("not the chip: 8 worker processes read, decode and shrink 1024 x 1024 PNGs, 26 ms an image each at this rate, and the same run's "
              "evaluation, forward only and so a quarter of the work, is no faster (262.5 samples/s). The machine here is fed as fast as PCIe "
              "carries images")
PERHAPS_HOST = ("not said by the source: 16 worker processes read, crop and convert photographs, 2.9 ms an image each at this rate, which is about "
                "what that takes")
MATMUL_SIZES = range(256, 5121, 256)
COUNTS = ("tiles", "bytes_per_tile", "workers", "vector_bytes", "tiles_per_bus", "reserved_bytes")
"""What is counted and not measured: no tenth of it can be wrong."""
SHARES = (0.9, 1.1)


@dataclass
class Prediction(Figures):
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
    """Constant -> prediction with 0.9 and with 1.1 of it, as shares of the prediction (whole numbers: with the nearest other one at least)."""
    limited: str = ""
    """What the published figure is limited by that the machine does not have."""

    def to_text(self) -> str:
        lines = [f"{self.case}: {self.predicted:,.1f} {self.unit} predicted, {self.published:,.1f} published, ratio {self.ratio:.2f}"
                 + (" (soft)" if self.soft else ""), f"  source         {self.source}"]
        if self.limited:
            lines.append(f"  limited by     {self.limited}")
        for title, table in (("configuration", self.configuration), ("details", self.details)):
            lines += [f"  {title:<14} {name} = {value}" for name, value in table.items()]
        lines += [f"  constant       {name}: at 0.9 {100 * (low - 1):+.1f} %, at 1.1 {100 * (high - 1):+.1f} %"
                  for name, (low, high) in self.sensitivity.items()]
        return "\n".join(lines)


Predict = Callable[[Chip, PlanCache], tuple[float, dict[str, Any]]]
"""The figure that a chip would have, and details."""


@dataclass(frozen=True)
class Line:
    """A published figure, and how to predict it. again: for other constants of the chip, given the details of the prediction (a sweep's best point);
    None: the same."""

    case: str
    unit: str
    published: float
    source: str
    machine: str | Chip
    configuration: dict[str, Any]
    predict: Predict
    again: Callable[[dict[str, Any]], Predict] | None = None
    higher_is_faster: bool = True
    soft: bool = False
    limited: str = ""

    def run(self) -> Prediction:
        """The prediction, and what each constant does to it."""
        machine, cache = chip(self.machine), dict[Any, Any]()
        predicted, details = self.predict(machine, cache)
        again = self.predict if self.again is None else self.again(details)
        moved: dict[str, tuple[float, float]] = {}
        for name in constants(machine):
            low, high = (again(changed(machine, name, share), cache)[0] / predicted for share in SHARES)
            moved[name] = low, high
        ratio = predicted / self.published if self.higher_is_faster else self.published / predicted
        return Prediction(self.case, self.unit, predicted, self.published, ratio, self.source, self.soft,
                          {"machine": machine.name, **self.configuration}, details, moved, self.limited)


def constants(machine: Chip) -> list[str]:
    """The constants that are rates and times."""
    return [name for name, value, _, _ in machine.constants() if name not in COUNTS and isinstance(value, (int, float)) and value]


def changed(machine: Chip, name: str, share: float) -> Chip:
    """The chip with another value of a constant: a share of it, whole where it is whole, but not the same."""
    value = getattr(machine, name)
    other = value * share
    if isinstance(value, int):
        other = math.floor(other) if share < 1 else math.ceil(other)
    return machine.variant(**{name: other})


# ---- training ---------------------------------------------------------------------------------------------------------------

def training(program: Callable[[], Program], options: TileOptions) -> Predict:
    """Samples a second of all replicas."""
    made: list[Program] = []

    def predict(machine: Chip, cache: PlanCache) -> tuple[float, dict[str, Any]]:
        if not made:
            made.append(program())
        tiles = analyze(made[0], machine, options, cache)
        return tiles.samples_per_second, details(tiles)
    return predict


def details(tiles: TileProgram) -> dict[str, Any]:
    """Where the time of an update goes, and what the IPUs of a replica hold."""
    total, period = tiles.cycles_per_update, order.period(tiles.program.schedule)
    once: dict[str, int] = {}
    for step in tiles.steps:
        once[step.part] = once.get(step.part, 0) + step.phases.total
    crossing = {} if tiles.links is None else tiles.links.cycles
    full = next((s for s in period if isinstance(s, order.Repeat) and s.times > 1), None)
    found: dict[str, Any] = {"one update": f"{1e3 * tiles.seconds_per_update:.2f} ms, {total:,} cycles"}
    if full is not None:
        turn = order.elapsed(full.steps, once, crossing)
        ends = sum(s.times * order.elapsed(s.steps, once, crossing) for s in period if isinstance(s, order.Repeat) and s is not full)
        count = sum(s.times * s.by for s in period if isinstance(s, order.Repeat))
        found["micro-batches"] = f"{count} of {turn:,} cycles ({count * turn / total:.1%})"
        if ends:
            crossed = turn - order.elapsed(full.steps, once)
            found["crossing"] = f"{crossed:,} cycles of each turn go between IPUs ({crossed / turn:.1%})"
            beside = ends - (count - full.times) * turn
            found["fill and drain"] = f"{beside:,} cycles beside them ({beside / total:.1%})"
    together = sum(waits(tiles.collectives).values())
    if together:
        methods = " and ".join(dict.fromkeys(m for c in tiles.collectives for m in c.methods))
        most = max(c.bytes for c in tiles.collectives)
        found["between replicas"] = f"{together:,} cycles ({together / total:.2%}), {most:,} bytes an IPU, {methods}"
    found["weight update"] = f"{once['update']:,} cycles ({once['update'] / total:.2%})"
    if tiles.ipus:
        found |= {f"IPU {i.number}": f"works {i.busy / total:.1%}, {_memory(tiles.chip, i.worst)}" for i in tiles.ipus}
    else:
        found["worst tile"] = _memory(tiles.chip, int(tiles.peak.max()))
    return found


def _memory(machine: Chip, nbytes: int) -> str:
    bound = machine.usable_bytes
    return f"{nbytes:,} of {bound:,} bytes" + (": does not fit" if nbytes > bound else "")


# ---- products ---------------------------------------------------------------------------------------------------------------

def matmul(n: int, precision: str, machine: Chip, cache: PlanCache) -> TileProgram:
    return analyze(matmul_program(n, n, n), machine, TileOptions(available_memory_proportion=0.6, precision=precision), cache)


def square(precision: str, sizes: range = MATMUL_SIZES) -> Predict:
    """TFLOP/s of the best size that fits; operands are on the chip."""
    def best(machine: Chip, cache: PlanCache) -> tuple[float, dict[str, Any]]:
        rates = {n: 2e-12 * n ** 3 / tiles.phases.total * machine.clock_hz for n in sizes
                 if (tiles := matmul(n, precision, machine, cache)).fits or len(sizes) == 1}
        n = max(rates, key=lambda n: rates[n])
        peak = machine.peak_flops("float16" if precision.startswith("16") else "float32") / 1e12
        return rates[n], {"best size": n, "peak": f"{peak:.1f} TFLOP/s", "share of the peak": f"{rates[n] / peak:.0%}"}
    return best


def at_best(precision: str) -> Callable[[dict[str, Any]], Predict]:
    """The size that was best alone."""
    return lambda details: square(precision, range(details["best size"], details["best size"] + 1))


def c600(machine: Chip, cache: PlanCache) -> tuple[float, dict[str, Any]]:
    tiles = matmul(4096, "16.16", machine, cache)
    step = next(s for s in tiles.steps if s.work.flops)
    share = tiles.flops * machine.clock_hz / tiles.phases.total / machine.peak_flops("float16")
    return float(tiles.phases.total), {"share of the peak": f"{share:.0%}", "splits": dict(step.plan.splits), "serial": dict(step.plan.serial),
                                       "phases": asdict(step.phases)}


# ---- the lines --------------------------------------------------------------------------------------------------------------

RESNET = {
    "network": "ResNet-50, 224x224, momentum SGD, weight decay", "replicas": 16, "stages": "1 (no pipeline)", "micro-batch": 20,
    "gradient accumulation": 6, "global batch": 1920, "precision": "16.16", "available memory proportion": 0.16,
    "recomputation": "on (about sqrt(n) segments; the vendor lists checkpoints by hand)", "off-chip": "nothing",
    "after": "the vendor's example configuration resnet50 (16 replicas, proportion 0.16, half partials, manual recomputation) with the published "
             "global batch in place of micro-batch 18 and accumulation 57"}
BERT = {
    "network": "BERT-Base, sequence 128, 20 masked tokens, AdamW", "replicas": 4,
    "stages": "5 on 4 IPUs: embeddings and heads on IPU 0; layers 0-3; 4-7; 8-11", "micro-batch": 32, "gradient accumulation": 512,
    "global batch": 65536, "precision": "16.16", "available memory proportion": 0.25,
    "recomputation": "each stage but the last from what enters it and what each encoder layer gives", "dropout": "0.1, none on attention",
    "off-chip": "optimizer state, of which each replica holds a fourth",
    "after": "the vendor's example configuration pretrain_base_128 (LAMB there), with its recompute_checkpoint_every_layer"}
VIT = {"network": "ViT-base, 16x16 patches of 224x224", "stages": "4: patches and layers 0-2; 3-5; 6-8; 9-11 and head", "precision": "16.16"}
VIT_TUTORIAL = {**VIT, "classes": 15, "optimizer": "AdamW", "replicas": 1, "micro-batch": 1, "gradient accumulation": 128, "global batch": 128,
                "available memory proportion": 0.3, "recomputation": "each stage but the last from what enters it and what each layer gives",
                "off-chip": "optimizer state", "loss": "cross entropy (of many labels there)",
                "after": "ipu_config.json of Graphcore/vit-base-ipu (huggingface.co), which the tutorial names"}
VIT_16 = {**VIT, "recomputation": "each stage but the last from what enters it",
          "classes": 1000, "optimizer": "momentum SGD", "replicas": 4, "micro-batch": 17, "gradient accumulation": 32, "global batch": 2176,
          "available memory proportion": 0.3, "generation": "not said; GC200 is taken, the Pod16 of the time"}


def vit_16() -> Program:
    return vit_program("base", 17, 32, optimizer=tileflow.optim.SGD(lr=0.08, momentum=0.9, weight_decay=1e-5), cuts=(3, 6, 9))


LINES = (
    Line("ResNet-50 training, 16 Bow IPUs", "images/s", 42029, VENDOR, "bow", RESNET, training(
        lambda: resnet_program(50, micro_batch=20, gradient_accumulation=6),
        TileOptions(available_memory_proportion=0.16, precision="16.16", recompute=True, replicas=16))),
    Line("BERT-Base pre-training, 16 Bow IPUs", "sequences/s", 16391, VENDOR, "bow", BERT, training(
        lambda: bert_program("base", micro_batch=32, gradient_accumulation=512, cuts=(0, 4, 8), checkpoints=True),
        TileOptions(available_memory_proportion=0.25, precision="16.16", optimizer_off_chip=True, replicas=4,
                    optimizer_sharded=True, min_elements_sharded={"optimizer": 4}))),
    Line("ViT-base fine-tuning, 16 IPUs", "images/s", 5600, MMPRETRAIN, "gc200", VIT_16, training(
        vit_16, TileOptions(available_memory_proportion=0.3, precision="16.16", replicas=4)), soft=True,
        limited=PERHAPS_HOST),
    Line("ViT-base fine-tuning, 4 IPUs, tutorial", "images/s", 307.7, TUTORIAL, "gc200", VIT_TUTORIAL, training(
        lambda: vit_program("base", 1, 128, classes=15, cuts=(3, 6, 9), checkpoints=True),
        TileOptions(available_memory_proportion=0.3, precision="16.16", optimizer_off_chip=True)),
        limited=HOST_BOUND),
    Line("square matmul fp32, GC2", "TFLOP/s", 18.9, JIA, "gc2", {"precision": "32.32", "sizes": "256 to 5,120, best that fits"},
         square("32.32"), at_best("32.32"), soft=True),
    Line("square matmul mixed, GC2", "TFLOP/s", 58.9, JIA, "gc2", {"precision": "16.32", "sizes": "256 to 5,120, best that fits"},
         square("16.32"), at_best("16.32"), soft=True),
    Line("4096^3 matmul fp16, C600", "cycles", 2262696, C600_NOTES, "c600", {"precision": "16.16", "available memory proportion": 0.6},
         c600, higher_is_faster=False, soft=True),
)


def run(threads: int | None = None, runs: int = 1) -> list[Prediction]:
    """All lines. Nothing is timed: neither argument changes them."""
    return [line.run() for line in LINES]
