"""Options of a run: number formats, threads, files."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from .declaration import declared
from .kinds import COUNT, Choice, FilePath, Flag, Integer, Names, Partials, Range, Sizes, WordsByName
from .verbs import COMMANDS, MODELS, RUNS, SIMULATED

_option = functools.partial(declared, "run")
PRECISION_SPELLINGS = MappingProxyType({
    "float32": "32", "float64": "64", "float16": "16-true", "bfloat16": "bf16-true", "fp32": "32", "fp64": "64",
    "32-true": "32", "64-true": "64", "16": "16-mixed", "bf16": "bf16-mixed", "fp16": "16-mixed"})
"""Other names of precisions: an element type stands for all in that type; 16, fp16 and bf16 alone mean mixed precision,
as in Lightning and in Hugging Face's trainers."""
Precision = Literal["32", "64", "16-mixed", "bf16-mixed", "16-true", "bf16-true"]
HalfFloatCasting = Literal["activation", "upcast"]
MatmulPrecision = Literal["highest", "high", "medium"]
Bits = Literal["path", "portable"]
OnNewShape = Literal["error", "compile"]


@dataclass(kw_only=True, repr=False)
class RunOptions:
    """What holds for a run or a model as a whole."""

    seed: int = _option(
        0, Integer(Range(least=0, most=2**63 - 1)), "seed of every random number", common=True, verbs=RUNS,
        commands=("compile",), known_as=("random_state",))
    threads: int | None = _option(
        None, COUNT, "worker threads; by default one per core that may be used", optional=True, common=True, free=True,
        live=True, known_as=("num_threads", "n_jobs"))
    precision: Precision = _option(
        "32", Choice(get_args(Precision), PRECISION_SPELLINGS), "bits to compute with: mixed keeps weights in float32 "
        "and computes products in 16 bits, true has everything in 16 bits; bf16 is bfloat16", common=True,
        verbs=(*RUNS, *SIMULATED), known_as=("dtype",))
    autocast: Mapping[str, str] = _option(
        {}, WordsByName("operators or patterns of node names", ("fp16", "fp32", "promote", "demote", "off"),
                        '{Softmax = "fp16", "/head/*" = "fp32"}'),
        "how operators, by name, or nodes, by name pattern, are computed with mixed precision: in 16 bits, in "
        "float32, in the wider or the narrower of their operands' types, or as the model was written",
        verbs=(*RUNS, *SIMULATED))
    autocast_enabled: bool = _option(
        True, Flag(), "cast automatically where the precision is mixed or layers ask for it; false: nowhere",
        verbs=(*RUNS, *SIMULATED))
    keep_float32: tuple[str, ...] = _option(
        (), Names(), "name patterns of parameters that stay float32 with the precision 16-true or bf16-true",
        verbs=(*RUNS, *SIMULATED))
    running_statistics_always_float: bool = _option(
        True, Flag(), "keep the running statistics of batch normalisation in float32 where the weights have 16 bits",
        verbs=(*RUNS, *SIMULATED))
    half_float_casting: HalfFloatCasting = _option(
        "activation", Choice(get_args(HalfFloatCasting)), "what a layer makes of floats of several types: products, "
        "convolutions and normalisation follow the type of their activation and all else takes the widest, or "
        "everything takes the widest, as in PyTorch", verbs=(*RUNS, *SIMULATED))
    partials: str | Mapping[str, str] = _option(
        "float32", Partials(), "type in which float16 products and convolutions add up, for all of them or by name "
        "pattern: float16 rounds after every 16 products", verbs=(*RUNS, *SIMULATED))
    matmul_precision: MatmulPrecision = _option(
        "highest", Choice(get_args(MatmulPrecision)), "how float32 products are computed by CPUs with bfloat16 tiles "
        "(AMX): with float32's accuracy, with about 16 bits, or with 8; other CPUs always compute them in float32")
    bits: Bits = _option(
        "path", Choice(get_args(Bits)), "whose bits results have: path: those of this CPU's fastest instructions, the "
        "same for every number of threads; portable: the same on AVX2, AVX-512 and AMX as well, without their tiles "
        "and arithmetic in 16 bits")
    detect_anomaly: bool = _option(
        False, Flag(), "end with the name of the first operator, forward or backward, that makes NaN or an infinity; "
        "slower, the same bits", free=True, live=True)
    anchored_tensors: tuple[str, ...] = _option(
        (), Names(), "tensors, layers or nodes by name or pattern whose values calls of a model keep besides its "
        "outputs, for model.anchored(name), and Gradient___NAME for the gradient of a parameter; what is kept is not "
        "fused with what reads it", verbs=MODELS, free=True)
    printed_tensors: tuple[str, ...] = _option(
        (), Names(), "tensors, layers or nodes by name or pattern whose values, and gradients, are printed whenever "
                     "they "
        "are computed, in the order of the micro-batches; large ones are summarised", verbs=(*MODELS, "train", "infer"),
        free=True)
    dims: Mapping[str, int] = _option(
        {}, Sizes(), "sizes of the model's symbolic dimensions", common=True, verbs=(*COMMANDS, *MODELS), free=True,
        of_files=True, known_as=("dim",))
    on_new_shape: OnNewShape = _option(
        "error", Choice(get_args(OnNewShape)), "what a call with inputs of another shape does", verbs=MODELS, free=True,
        live=True)
    out: str | None = _option(
        None, FilePath(),
        "where results go: a folder for train (by default a new one under runs/), a file for infer and tune",
        optional=True, common=True, verbs=("train",), commands=("infer", "tune", "explore"), free=True, recorded=False,
        known_as=("output", "output_dir"))
    resume: str | bool = _option(
        False, FilePath(flag=True), "go on from this checkpoint, or from the one in the out folder", common=True,
        verbs=("train",), free=True, recorded=False)
    allow_other_data: bool = _option(
        False, Flag(), "resume on data that differ from those the run began with", verbs=("train",), free=True,
        recorded=False)
    checkpoint_every: int = _option(
        1, Integer(Range(least=0)), "epochs between checkpoints; 0 writes one at the end only", verbs=("train",),
        free=True)
    save_every_updates: int | None = _option(
        None, COUNT, "write a checkpoint after this many weight updates as well", optional=True, verbs=("train",),
        free=True)
    statistics: int | None = _option(
        None, COUNT, "write norms, zeros, underflow and overflow of every gradient and weight into the out folder, as "
        "statistics.csv and a page with a picture, every so many updates", optional=True, verbs=("train",), free=True)
    progress: bool | None = _option(
        None, Flag(), "progress bars; by default on a terminal only", optional=True, common=True, verbs=("train",),
        commands=("infer", "tune", "explore"), free=True)
