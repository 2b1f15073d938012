"""Published figures of real IPUs: each with its source, its configuration, and how it is predicted (bench/hardware.py).

A figure stands here when its source was read. What is called soft is quoted at second hand, read off a chart, or does
not say all of its configuration; the configuration then says what was taken.
"""
from __future__ import annotations

from typing import Any

import tileflow
from tileflow.optim import Optimizer
from tileflow.program.program import Program
from tileflow.tiles.plans.plan import TileOptions

from .hardware import Line, Predict, network, on_tiles, product, square, triad
from .networks import Norm, bert_program, efficientnet_program, resnet_inference, resnet_program, vit_program

PAGE = ("vendor's published results for Bow Pods, 16.16, table of {} (graphcore.ai/performance-results, "
        "graphcore.cn/performance-results)")
PRE, SDK30, SDK31, SDK33 = (PAGE.format(when) for when in ("before SDK 2.5", "SDK 3.0", "SDK 3.1", "SDK 3.3"))
MLPERF = ("MLPerf Training {0}, the vendor's closed submission (github.com/mlcommons/training_results_{0}, "
          "Graphcore/results, result_0.txt): 1,281,167 images over its fastest epoch")
JIA = "Jia et al., arXiv 1912.03413, the best of all sizes (quoted at second hand)"
C600_NOTES = "a third party's own program for the C600; a library's plan should beat it and stay below the peak"
TUTORIAL = ("Graphcore's tutorial vit_model_training (github.com/graphcore/tutorials), run on 4 IPUs of a Pod: 2,496 "
            "steps of 128 images in 17:18")
MMPRETRAIN = ("open-mmlab/mmpretrain, tools/ipu_train_example.sh: '16 IPUs, 4 replicas, model Tput = 5600 images'; "
              "configuration vit-base-p16_ft-4xb544_in1k-224_ipu")
BYTEMLPERF = ("ByteMLPerf, the vendor's own submission for one C600 (github.com/bytedance/ByteMLPerf, general_perf/"
              "reports/IPU/resnet50-torch-fp32/result-fp16.json; configuration in backends/IPU/interact_infos)")
TESSELLATE = ("Graphcore research, on a Bow (github.com/graphcore-research/tessellate-ipu, notebooks/IPU Peak "
              "Flops.ipynb): cycles counted on the tiles, the counter's own taken off")
POPSPARSE = ("dense products of PopSparse, arXiv 2303.16999, read off the chart in its repository to about 2 % "
             "(github.com/graphcore-research/sparsity-benchmarks, analysis/Analysis.ipynb)")
TRIAD = ("Hopnås, thesis, Oslo 2021 (github.com/simehaa/IPU, STREAMTriad): a vertex written in assembler, 99.1 % of "
         "what the data path can do")
HOST_BOUND = (
    "its host: 8 worker processes read, decode and shrink 1024 x 1024 PNGs, 26 ms an image each at this rate, and the "
    "same run's evaluation, forward only and so a quarter of the work, is no faster (262.5 samples/s). The machine "
    "here is fed as fast as PCIe carries images")
BY_HAND = ("nothing. The library's vertex for this loads twice and stores in three cycles what one written by hand "
           "does in one, and the machine simulates the library's")

VERTICES, PRODUCTS, CONVOLUTIONS, TRANSFORMERS, INFERENCE = (
    "Vertices", "Products", "Convolutional networks, training", "Transformers, training", "Inference")
Setting = tuple[dict[str, Any], Predict]
"""A configuration in words, and what predicts its figure."""


# ---- convolutional networks ---------------------------------------------------------------------------------------

def _said(network: str, micro_batch: int, accumulation: int, replicas: int, proportion: Any,
          **more: Any) -> dict[str, Any]:
    return {"network": network, "replicas": replicas, "micro-batch": micro_batch, "gradient accumulation": accumulation,
            "global batch": micro_batch * accumulation * replicas, "precision": "16.16",
            "available memory proportion": proportion, **more}


def _resnet(micro_batch: int, accumulation: int, replicas: int, proportion: float) -> Setting:
    said = _said("ResNet-50, 224x224 images that come as bytes", micro_batch, accumulation, replicas, proportion,
                 stages="1 (no pipeline)", optimizer="momentum SGD, weight decay (LARS from MLPerf 1.1 and SDK 3.0 on)",
                 recomputation="on (about sqrt(n) segments; the vendor lists checkpoints by hand)")
    return said, network(lambda: resnet_program(50, micro_batch, accumulation, pixels=True), TileOptions(
        available_memory_proportion=proportion, precision="16.16", recompute=True, replicas=replicas))


def _resnext() -> Setting:
    said = _said("ResNeXt-101 32x4d, group normalisation of 32 groups, 224x224 images that come as bytes", 6, 16, 8,
                 0.6, stages="2: up to the fourth block of the third stage; the rest", optimizer="momentum SGD",
                 recomputation="the first stage from what enters it",
                 after="resnext101_16ipus of github.com/graphcore/examples, v3.0.0, vision/cnns/tensorflow1/training")
    optimizer = tileflow.optim.SGD(lr=0.1, momentum=0.9)
    return said, network(
        lambda: resnet_program(101, 6, 16, groups=32, norm=Norm(32), pixels=True, cuts=(11,), optimizer=optimizer),
        TileOptions(available_memory_proportion=0.6, precision="16.16", replicas=8))


def _efficientnet(accumulation: int, replicas: int) -> Setting:
    said = _said("EfficientNet-B4, groups of 16 channels, expansion 4, group normalisation of 4 groups, 380x380 images "
                 "that come as bytes", 3, accumulation, replicas, 0.4,
                 stages="2: up to the third stage of blocks; from the fourth on",
                 optimizer="momentum SGD (LARS there)", recomputation="the first stage from what enters it",
                 dropout="none (blocks are dropped with a probability there)",
                 after="efficientnet_b4_g16_16ipus and _64ipus of github.com/graphcore/examples, v3.0.0, "
                       "vision/cnns/tensorflow1/training")
    return said, network(lambda: efficientnet_program(4, 3, accumulation, 4, 16, Norm(4), cuts=(3,)), TileOptions(
        available_memory_proportion=0.4, precision="16.16", replicas=replicas))


RESNETS = {name: _resnet(*of) for name, of in {
    "16x6": (20, 6, 16, 0.15), "16x10": (20, 10, 16, 0.15), "16x10 of 22": (22, 10, 16, 0.15),
    "16x64": (16, 64, 16, 0.16), "64x2": (20, 2, 64, 0.145), "64x3": (20, 3, 64, 0.15), "64x4": (20, 4, 64, 0.15),
    "128x2": (20, 2, 128, 0.15),
    "256x2": (20, 2, 256, 0.15)}.items()}
RESNEXT = _resnext()
EFFICIENTNETS = {ipus: _efficientnet(4096 // ipus, ipus // 2) for ipus in (16, 64, 256)}


def _images(case: str, published: float, source: str, machine: str, of: Setting, **more: Any) -> Line:
    said = of[0]
    sizes = " x ".join(str(said[name]) for name in ("micro-batch", "gradient accumulation", "replicas"))
    setting = f"{said['network'].split(',')[0]} {sizes}"
    return Line(case, CONVOLUTIONS, "images/s", published, source, machine, said, of[1], setting=setting, **more)


SUBMITTED = (
    ("1.0", 16, "GC200", 27838, "16x6"), ("1.0", 64, "GC200", 87571, "64x2"), ("1.1", 16, "GC200", 29664, "16x10"),
    ("1.1", 64, "GC200", 108335, "64x3"), ("1.1", 128, "GC200", 185919, "128x2"),
    ("1.1", 256, "GC200", 351293, "256x2"),
    ("2.0", 16, "Bow", 43381, "16x10 of 22"), ("2.0", 64, "Bow", 150921, "64x4"), ("2.0", 128, "Bow", 240911, "128x2"),
    ("2.0", 256, "Bow", 464191, "256x2"))
GROUPED = ((PRE, "", {16: 8936, 64: 34943, 256: 117641}), (SDK30, ", SDK 3.0", {16: 9000, 64: 34140, 256: 122665}))
CNNS = (
    _images("ResNet-50, 16 Bow, batch 1,920", 42029, PRE, "bow", RESNETS["16x6"], known=True),
    _images("ResNet-50, 16 Bow, batch 3,520", 44059, SDK30, "bow", RESNETS["16x10 of 22"]),
    _images("ResNet-50, 16 Bow, batch 16,384, PyTorch", 37061, SDK30, "bow", RESNETS["16x64"], soft=True),
    _images("ResNet-50, 64 Bow, batch 2,560", 145287, PRE, "bow", RESNETS["64x2"]),
    _images("ResNet-50, 64 Bow, batch 5,120", 153205, SDK30, "bow", RESNETS["64x4"]),
    _images("ResNet-50, 256 Bow, batch 10,240", 425514, PRE, "bow", RESNETS["256x2"]),
    _images("ResNet-50, 256 Bow, batch 10,240, SDK 3.0", 456906, SDK30, "bow", RESNETS["256x2"]),
    *(_images(f"ResNet-50, {ipus} {name}, MLPerf {version}", images, MLPERF.format(f"v{version}"), name.lower(),
              RESNETS[of]) for version, ipus, name, images, of in SUBMITTED),
    _images("ResNeXt-101, 16 Bow", 12221, PRE, "bow", RESNEXT),
    _images("ResNeXt-101, 16 Bow, SDK 3.0", 12277, SDK30, "bow", RESNEXT),
    *(_images(f"EfficientNet-B4-G16, {ipus} Bow{name}", images, source, "bow", EFFICIENTNETS[ipus])
      for source, name, table in GROUPED for ipus, images in table.items()),
)


# ---- transformers -------------------------------------------------------------------------------------------------

CHECKPOINTS = "each stage but the last from what enters it and what each layer gives"
LAYERS = {"base": "layers 0-3; 4-7; 8-11", "large": "layers 0-2 with these; 3-9; 10-16; 17-23"}
CUTS = {"base": (0, 4, 8), "large": (3, 10, 17)}


def _bert(size: str, sequence: int, masked: int, micro_batch: int, replicas: int, proportion: float,
          batch: int) -> Setting:
    accumulation = batch // (micro_batch * replicas)
    first = {"IPU0": 0.15} if size == "large" else {}
    said = _said(f"BERT-{size.capitalize()}, sequence {sequence}, {masked} masked tokens", micro_batch, accumulation,
                 replicas, f"{proportion}{', of IPU 0 0.15' if first else ''}",
                 stages=f"5 on 4 IPUs: embeddings and heads on IPU 0; {LAYERS[size]}",
                 optimizer="AdamW (LAMB there)", recomputation=CHECKPOINTS, dropout="0.1, none on attention",
                 **{"off-chip": "optimizer state, of which each replica holds a share"},
                 after=f"pretrain_{size}_{sequence} of github.com/graphcore/examples, v3.0.0, nlp/bert/popart")
    return said, network(
        lambda: bert_program(size, micro_batch, accumulation, sequence, masked, cuts=CUTS[size], checkpoints=True),
        TileOptions(available_memory_proportion=proportion, per_ipu=first, precision="16.16", optimizer_off_chip=True,
                    replicas=replicas, optimizer_sharded=True, min_elements_sharded={"optimizer": replicas}))


def _vit(program: Any, micro_batch: int, accumulation: int, replicas: int, **more: Any) -> Setting:
    options = more.pop("options", {})
    said = _said("ViT-base, 16x16 patches of 224x224", micro_batch, accumulation, replicas, 0.3,
                 stages="4: patches and layers 0-2; 3-5; 6-8; 9-11 and head", **more)
    return said, network(program, TileOptions(available_memory_proportion=0.3, precision="16.16", replicas=replicas,
                                              **options))


def _momentum(**more: Any) -> Optimizer:
    return tileflow.optim.SGD(lr=0.08, momentum=0.9, weight_decay=1e-5, **more)


def _vendors_vit(micro_batch: int, accumulation: int, replicas: int, momentum: bool, after: str) -> Setting:
    def program() -> Program:
        optimizer = _momentum(velocity_accum_type="float16") if momentum else None
        return vit_program("base", micro_batch, accumulation, cuts=(3, 6, 9), checkpoints=True, dropout=0.1,
                           optimizer=optimizer)
    return _vit(program, micro_batch, accumulation, replicas, recomputation=CHECKPOINTS,
                dropout="0.1, none on attention",
                optimizer="momentum SGD, float16" if momentum else "AdamW (LAMB there)",
                sharded="optimizer state, of which each replica holds a share",
                after=f"{after} of github.com/graphcore/examples, v3.0.0, vision/vit/pytorch",
                options={"optimizer_sharded": True, "min_elements_sharded": {"optimizer": replicas}})


def _tutorials_vit() -> Setting:
    return _vit(lambda: vit_program("base", 1, 128, classes=15, cuts=(3, 6, 9), checkpoints=True), 1, 128, 1,
                classes=15, optimizer="AdamW", recomputation=CHECKPOINTS, loss="cross entropy (of many labels there)",
                after="ipu_config.json of Graphcore/vit-base-ipu (huggingface.co), which the tutorial names",
                options={"optimizer_off_chip": True}, **{"off-chip": "optimizer state"})


def _mmpretrains_vit() -> Setting:
    return _vit(lambda: vit_program("base", 17, 32, optimizer=_momentum(), cuts=(3, 6, 9)), 17, 32, 4,
                optimizer="momentum SGD", recomputation="each stage but the last from what enters it",
                generation="not said; GC200 is taken, the Pod16 of the time")


def _net(case: str, unit: str, published: float, source: str, of: Setting, machine: str = "bow", **more: Any) -> Line:
    return Line(case, TRANSFORMERS, unit, published, source, machine, of[0], of[1], **more)


SEQUENCES, IMAGES = "sequences/s", "images/s"
BASE_128, BASE_512 = _bert("base", 128, 20, 32, 4, 0.28, 65536), _bert("base", 512, 76, 8, 4, 0.28, 16384)
LARGE_128 = {n: _bert("large", 128, 20, 8, n, 0.25, 65536) for n in (4, 16)}
LARGE_384 = {n: _bert("large", 384, 56, 2, n, 0.4, 16384) for n in (4, 16)}
PRETRAINED = {n: _vendors_vit(8, 8192 // n, n, False, "b16_in1k_pretrain_lamb") for n in (4, 16)}
NETS = (
    _net("BERT-Base, sequence 128, 16 Bow", SEQUENCES, 16391, SDK31, BASE_128, known=True),
    _net("BERT-Base, sequence 128, 16 Bow, PyTorch", SEQUENCES, 15911, SDK33, BASE_128, known=True),
    _net("BERT-Base, sequence 512, 16 Bow", SEQUENCES, 3656, SDK31, BASE_512),
    _net("BERT-Large, sequence 128, 16 Bow", SEQUENCES, 5179, PRE, LARGE_128[4]),
    _net("BERT-Large, sequence 128, 64 Bow", SEQUENCES, 19353, PRE, LARGE_128[16]),
    _net("BERT-Large, sequence 384, 16 Bow", SEQUENCES, 1470, PRE, LARGE_384[4]),
    _net("BERT-Large, sequence 384, 64 Bow", SEQUENCES, 5444, PRE, LARGE_384[16]),
    _net("ViT-base fine-tuning, 16 Bow", IMAGES, 7319, SDK30, _vendors_vit(17, 30, 4, True, "b16_imagenet1k")),
    _net("ViT-base pre-training, 16 Bow", IMAGES, 7615, SDK30, PRETRAINED[4]),
    _net("ViT-base pre-training, 64 Bow", IMAGES, 27868, SDK30, PRETRAINED[16]),
    _net("ViT-base fine-tuning, 16 IPUs, mmpretrain", IMAGES, 5600, MMPRETRAIN, _mmpretrains_vit(), "gc200", soft=True,
         known=True),
    _net("ViT-base fine-tuning, 4 IPUs, tutorial", IMAGES, 307.7, TUTORIAL, _tutorials_vit(), "gc200", known=True,
         limited=HOST_BOUND),
)


# ---- inference, products, vertices ----------------------------------------------------------------------------------

def _inference(micro_batch: int) -> Setting:
    said = {"network": "ResNet-50, normalisation folded in, 224x224 images in float16", "micro-batch": micro_batch,
            "device iterations": 128, "precision": "16.16", "I/O tiles": 64, "available memory proportion": 0.6}
    overlaps = {"*": "device_iteration_loop"}
    return said, network(lambda: resnet_inference(50, micro_batch, 128), TileOptions(
        precision="16.16", num_io_tiles=64, overlap_inputs=overlaps, overlap_outputs=overlaps))


SERVED = tuple(Line(f"ResNet-50 inference, C600, batch {n}", INFERENCE, IMAGES, images, BYTEMLPERF, "c600",
                    *_inference(n)) for n, images in ((4, 7062), (32, 13542)))

CHART = {
    "float16": {1024: {256: 90.6, 1024: 121.6, 4096: 181.7, 16384: 225.1}, 2048: {64: 83.6, 1024: 167.7, 8192: 231.2},
                4096: {16: 62.3, 256: 176.9, 2048: 225.2}, 8192: {64: 158.9, 256: 225.1}},
    "float32": {1024: {64: 21.3, 1024: 44.0, 16384: 59.0}, 2048: {256: 45.2, 4096: 59.0},
                4096: {64: 41.7, 1024: 55.9, 4096: 59.0}, 8192: {16: 25.1, 256: 55.9}}}
"""TFLOP/s of [m, m] times [m, n], by m and n."""
GENERATION = ("not said; Bow is taken: of a GC200's peak float32 would be at 94 %, with its exchange, where a vertex "
              "alone reaches 96 %, and the group's notebooks for this paper name Bow")


def _charted(m: int, n: int, dtype: str, rate: float) -> Line:
    precision = {"float16": "16.32", "float32": "32.32"}[dtype]
    said = {"precision": precision, "available memory proportion": 0.6, "generation": GENERATION}
    return Line(f"[{m}, {m}] x [{m}, {n}], {dtype}, Bow", PRODUCTS, "TFLOP/s", rate, POPSPARSE, "bow", said,
                product(m, m, n, precision), soft=True, precision=0.02, quick=m * n < 1 << 21)


SIZES = "256 to 5,120, best that fits"
MULTIPLIED = (
    *(_charted(m, n, dtype, rate)
      for dtype, by in CHART.items() for m, table in by.items() for n, rate in table.items()),
    Line("square, float32, GC2", PRODUCTS, "TFLOP/s", 18.9, JIA, "gc2", {"precision": "32.32", "sizes": SIZES},
         square("32.32"), soft=True, known=True),
    Line("square, mixed, GC2", PRODUCTS, "TFLOP/s", 58.9, JIA, "gc2", {"precision": "16.32", "sizes": SIZES},
         square("16.32"), soft=True, known=True),
    Line("4096^3, float16, C600", PRODUCTS, "cycles", 2262696, C600_NOTES, "c600",
         {"precision": "16.16", "available memory proportion": 0.6}, product(4096, 4096, 4096, "16.16", cycles=True),
         higher_is_faster=False, soft=True, known=True),
)

COUNTED = {16: 55.49, 64: 152.80, 256: 264.01, 512: 299.78, 1024: 322.73, 2048: 334.94}
"""TFLOP/s of all tiles, by rows."""
RAN = (
    *(Line(f"[{rows}, 16] x [16, 16] on each tile, Bow", VERTICES, "TFLOP/s", rate, TESSELLATE, "bow",
           {"precision": "16.16"}, on_tiles(rows), quick=True,
           known=rows in (16, 2048)) for rows, rate in COUNTED.items()),
    Line("a = b + q c, float32, GC200", VERTICES, "TFLOP/s", 7.76, TRIAD, "gc200", {"elements": "66,240,000"},
         triad(1472 * 6 * 7500), quick=True, known=True, limited=BY_HAND),
)
LINES: tuple[Line, ...] = (*RAN, *MULTIPLIED, *CNNS, *NETS, *SERVED)


# ---- what the page says ---------------------------------------------------------------------------------------------

HEAD = """# Predictions against published figures

`python -m bench hardware --write docs/validation.md` makes this page: every figure of real IPUs that was found with its
configuration, what [the tile machine](tiles.md) predicts for it, and between which bounds. Nothing is fitted to a line.

- **Ratio**: predicted over published, as speeds; above 1 the machine is too fast.
- **Interval**: the ratio with all uncertain constants at the slow ends of their ranges, to that with all at the fast
  ends. The ranges stand where the constants do (`RANGES` in `tileflow/tiles/hardware/chip.py`) and were frozen before a
  line was compared.
- **Inside**: the published figure lies in the interval, or no further from it than figures of one run differ (1 %; 2 %
  where it is read off a chart), and the interval reaches at most 25 % from the prediction. **Wide**: it reaches
  further, and says nothing.
- **Held out**: not looked at before work on the machine had ended. Of the settings that were new when this page began,
  a hash of machine and setting chose about half (`held_out` in `bench/hardware.py`); lines of one setting are held out
  together. One correction came after they had been seen: tile-exact runs of weight gradients held more than their plans
  said, as folded taps were not counted where they are coefficients. It made ResNet-50 9 % slower.
- **Soft**: quoted at second hand, read off a chart, or a configuration of which something had to be assumed; the
  section on sources says what."""
READING = """What is outside, and which part of the machine answers for it:

- **Many replicas with few micro-batches** (ResNet-50 at 1.3 to 1.5 on 128 and 256 IPUs, EfficientNet-B4 at 1.2 to 1.3
  on 256; within 10 % on 16): what replicas do together. They are one ring of IPU-Links here, whatever their number;
  real racks are joined by gateways with two links of 100 Gbit/s each, and hosts wait for each other. Neither is
  simulated.
- **ResNeXt-101** (1.3): groups of four channels on two IPUs. A quarter of its cycles is exchange and a tenth barriers,
  so the constants alone move it by 15 % either way. Putting tensors in order, as PopLibs' planner counts it, took 4 %
  off, and of EfficientNet-B4 with its groups of 16 channels 12 %; more was not found in documents.
- **ViT-base** (1.6 to 1.7, from three sources), though BERT-Base, as large, is at 1.05: 197 tokens, a prime, where BERT
  has 128, so that heads and rows divide evenly in no way. Which phase is too cheap is not known.
- **Float16 products with float32 sums** (0.8 to 0.95) are too slow, float32 ones (0.97 to 1.09) are not. The chart does
  not say which type partial sums had; exchange is a fourth of the cycles here.
- **Square products on the GC2, one on the C600** (1.3 to 2.1): the first library of the first chip, and one person's
  program. The same vertices and the same exchange are within 10 % of a Bow's float32 products.
- **Products of few columns** ([8192, 8192] by 16, 1.4): exchange of the large operand is spread perfectly.
- **The triad** (0.17): the library's vertex, and two steps of it, against one written by hand.

Memory: of BERT-Large 106 of 696 KB on the fullest tile were gradients of weights that waited for their fold at the end
of a stage. PopART adds them at once, and so does the machine now: all four IPUs fit, as they did, where three were said
not to by 4 to 9 %. The largest that remains on the first is the gradient of the table that embeddings and scores share:
it waits for its second half in 5 copies (212 KB), which the vendor's `TiedGather` pattern avoids."""
RANGES_SAY = """Of constants that are estimated, and of documented ones that are the most there can be. At either end
all of them lie there at once, which is wider than chance would have it."""
FAMILIES = {
    VERTICES: "One compute step without exchange.",
    PRODUCTS: "Operands are on the chip; exchange and barriers count.",
    CONVOLUTIONS: "Images a second of all replicas.",
    TRANSFORMERS: "Pipelines of four IPUs a replica.",
    INFERENCE: "One chip, with I/O tiles.",
}
MISSING = """## Figures that no line stands for

- **Exchange and barriers alone**: Jia et al. have tables of both (and of memory and of convolutions by size); only what
  others quote of them was at hand, which gave the range of `exchange_bytes_per_cycle`. The vendor's emulator gave those
  of `sync_cycles` and of copies; it is no measurement, so no line.
- **Stencils, lattice Boltzmann, graph searches**: published with times, of vertices written by hand.
- **ByteMLPerf** on a C600: BERT, RoBERTa, ALBERT and DeBERTa pack several questions into a row of 384 tokens, and do
  not say how many; of CLIP, Conformer, VideoBERT, Swin, RoFormer and Wide and Deep there are no networks here, of 8-bit
  floats no type.
- **The vendor's page**: packed BERT (as above); TensorFlow 2, whose micro-batches are not told; SQuAD, Swin, DINO,
  UNet, Mini DALL-E, GraphSage, GPS++, Conformer, EfficientNet-B4 in PyTorch: no such network, or no such configuration,
  here. Its tables of inference were not at hand.
- **MLPerf**: BERT (packed) and RNN-T.
- **Tutorials** on MNIST and on loading data: a call of Python for every few milliseconds of the chip."""
