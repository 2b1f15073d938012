"""Every setting of a run, typed and checked where it is set.

    Options(micro_batch_size=40, epochs=3)      keywords
    options.learning_rate = 1e-2                checked on assignment
    Options.load("run.toml")                    a TOML or JSON file, parsed and never executed

Each field declares its kind (what values it takes), its group and its help sentence once; the command line's flags, the
error sentences and the options file all follow from that declaration.
"""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..program.staging import Liveness, PipelineSchedule, Strategy
from ..system.errors import OptionError
from . import files as options_file
from .declaration import GROUPS, MODEL_TABLE, Declarations
from .declaration import declared as _option
from .kinds import (
    Choice,
    Counts,
    FilePath,
    Flag,
    Groupings,
    Integer,
    Integers,
    IoTiles,
    Machine,
    Names,
    Number,
    Numbers,
    OneOf,
    ParamGroups,
    Partials,
    Proportions,
    Range,
    SerialSplits,
    Sizes,
    Table,
    Text,
    grouping,
    serial_split,
)
from .settings import FrozenOptionsError, Settings, by_any_name
from .spellings import PRECISION_SPELLINGS

__all__ = ["GROUPS", "MODEL_TABLE", "FrozenOptionsError", "Options", "declarations", "default_options", "near_names",
           "read_options_file", "renamed", "with_defaults"]

Loss = Literal["auto", "cross_entropy", "nll", "mse", "l1", "bce", "bce_with_logits", "identity"]
Scheduled = Literal["constant", "step", "exponential", "linear", "polynomial", "cosine", "one_cycle", "plateau"]
LossScaling = Literal["auto", "off", "histogram", "dynamic"]
OutputMode = Literal["default", "all", "final", "sum", "every_n"]
_COUNT = Integer(Range(least=1))
_NOT_NEGATIVE = Number(Range(least=0))
_ACCUM = Choice(("float32", "float16", "bfloat16"))
TENSOR_GROUPS = ("activations", "weights", "optimizer", "accumulators")
"""What tensors are told apart as where an option says where they are kept."""
SHARDED_GROUPS = ("weights", "optimizer")
"""Of these those that replicas may share out."""
OVERLAPS = ("no_overlap", "accumulation_loop", "device_iteration_loop")
MEASURED_TWICE = "Options test_data and validation_split exclude each other: the rows to measure with come from one of them."


@dataclass(kw_only=True, repr=False)
class Options(Settings):
    """All options of training and inference; every field works as a keyword of `tileflow.train` and as a command-line flag.

    Raises OptionError where a name is unknown or a value is of the wrong type or out of range, at construction and on
    assignment alike. Once a model or data loader uses them, options are frozen; `clone()` gives a copy that can change.
    """

    micro_batch_size: int = _option(16, _COUNT, "batching", "rows that one operator sees at a time", common=True)
    gradient_accumulation: int = _option(1, _COUNT, "batching", "micro-batches per weight update", common=True)
    device_iterations: int = _option(1, _COUNT, "batching", "weight updates (inference: micro-batches) per call of the engine", common=True)
    replication_factor: int = _option(
        1, _COUNT, "batching", "data-parallel copies of the model, each with micro-batches of its own; an update is that of all of them together",
        aliases=("devices",), common=True)
    input_group_size: int = _option(
        1, _COUNT, "batching", "replicas that get the same rows; a factor of replication_factor")
    input_group_type: Literal["consecutive", "orthogonal"] = _option(
        "consecutive", Choice(("consecutive", "orthogonal")), "batching",
        "which replicas get the same rows: neighbours (0 and 1, 2 and 3 with a group size of 2), or those that lie apart (0 and 2, 1 and 3 of 4)")
    broadcast_buffers: bool = _option(
        True, Flag(), "batching", "replicas share the buffers that training changes (running statistics), which take all their micro-batches in "
        "order; false: each replica has its own, and those of the first are saved; buffers that a network's forward() writes itself need false")
    replica_grouping: Mapping[str, str] = _option(
        {}, Groupings(), "batching", "which replicas share a parameter, by name pattern: groups of so many, consecutive or orthogonal as for "
        "input_group_type, or no_grouping, each replica for itself; parameters that no pattern names are everybody's. Of a group's parameter "
        "model.replica_state_dict() gives one array, or one for each replica")
    output_mode: OutputMode = _option(
        "default", Choice(("default", "all", "final", "sum", "every_n")), "batching",
        "which micro-batches' outputs a call returns; default is all for inference, final for training")
    output_return_period: int | None = _option(
        None, _COUNT, "batching", "with output_mode every_n: return every n-th iteration", optional=True)

    epochs: int = _option(1, Integer(Range(least=0)), "training", "passes over the training data", common=True)
    loss: Loss = _option(
        "auto", Choice(("auto", "cross_entropy", "nll", "mse", "l1", "bce", "bce_with_logits", "identity")), "training",
        "loss function; auto decides by the model's output and the labels and says why; identity: the model computes its loss itself "
        "(nn.identity_loss, or its only output of one number)", common=True)
    ignore_index: int | None = _option(
        None, Integer(), "training", "class number of labels that do not count (cross_entropy, nll)", optional=True)
    class_weights: tuple[float, ...] = _option(
        (), Numbers(Number(Range(least=0))), "training", "weight of each class in the loss (cross_entropy, nll)")
    label_smoothing: float = _option(
        0.0, Number(Range(least=0, most=1)), "training", "share of each label that is spread evenly over all classes (cross_entropy)")
    class_axis: Literal[1, -1] | None = _option(
        None, OneOf((1, -1)), "training", "axis of the classes in scores of three and more dimensions (cross_entropy, nll); by default by the shapes",
        optional=True)
    metrics: tuple[str, ...] = _option(
        (), Names(), "training", "what to measure on the test data besides the loss: accuracy, top5, f1, f1_macro, f1_micro, f1_weighted, auc and "
        "perplexity of classes, mae, rmse and r2 of numbers; accuracy is measured anyway", common=True)
    accumulation_reduction: Literal["mean", "sum"] = _option(
        "mean", Choice(("mean", "sum")), "training", "how the micro-batches' gradients are combined")
    mean_reduction_strategy: Literal["post", "running"] | None = _option(
        None, Choice(("post", "running")), "training", "their mean is taken once after the sum (post), or kept all the time (running); by default "
        "post, and running where the accumulators are float16", optional=True)
    stochastic_rounding: bool = _option(
        False, Flag(), "training", "write 16-bit weights and states rounded up or down at random (by the seed), so that small steps add up")
    master_weights: Literal["none", "remainder"] = _option(
        "none", Choice(("none", "remainder")), "training",
        "remainder keeps, beside each 16-bit weight, the 16 bits that it lacks of a float32 number, and updates that number")
    frozen: tuple[str, ...] = _option((), Names(), "training", "name patterns (* and ?) of parameters to leave as they are", common=True)
    trainable: tuple[str, ...] = _option(
        (), Names(), "training", "name patterns of the only parameters to train; one that fits constants only makes parameters of them, and the word "
        "head stands for the last layer", common=True)
    num_classes: int | None = _option(
        None, _COUNT, "training", "replace the last layer of the ONNX file by one with so many outputs, its weights drawn afresh by the seed",
        optional=True, common=True)
    tie: tuple[str, ...] = _option((), Names(), "training", "name patterns of parameters to train as one where their values are equal")
    untie: tuple[str, ...] = _option(
        (), Names(), "training", "name patterns of parameters to train as one for each module, or each node, that reads them")
    gradient_checkpointing: tuple[str, ...] = _option(
        (), Names(), "training", "name patterns of layers or nodes (layer* takes each of layer1, layer2 ... as a block) whose values are computed "
        "again in the backward pass instead of kept: less memory, more time, the same bits")
    recomputation_checkpoints: tuple[str, ...] = _option(
        (), Names(), "training", "name patterns of layers or nodes whose results are kept where what is around them is computed again for the "
        "backward pass (gradient_checkpointing, stages of a pipeline, recompute)")
    keep_training_mode: bool = _option(
        False, Flag(), "training", "write the trained file with batch normalisation and dropout as the model has them, not in the form for inference")

    optimizer: Literal["sgd", "adam", "adamw", "rmsprop", "lamb"] = _option(
        "adamw", Choice(("sgd", "adam", "adamw", "rmsprop", "lamb")), "optimizer", "update rule", common=True)
    learning_rate: float = _option(1e-3, _NOT_NEGATIVE, "optimizer", "step size", common=True)
    weight_decay: float | None = _option(
        None, _NOT_NEGATIVE, "optimizer", "weight decay; by default 0.01 for adamw and lamb and 0 for the others", optional=True, common=True)
    no_decay: tuple[str, ...] = _option(
        (), Names(), "optimizer", "parameters without weight decay, by name pattern; auto means biases and the weights of norms")
    param_groups: tuple[Mapping[str, Any], ...] = _option(
        (), ParamGroups(), "optimizer", "parameters, by name pattern, with settings of their own, such as *.bias:weight_decay=0,lr=0.01")
    max_grad_norm: float | None = _option(
        None, Number(Range(above=0)), "optimizer", "scale the gradients of an update down to this norm of all of them together", optional=True,
        common=True)
    momentum: float = _option(0.0, _NOT_NEGATIVE, "optimizer", "momentum (sgd, rmsprop)", common=True)
    dampening: float = _option(0.0, _NOT_NEGATIVE, "optimizer", "dampening of the momentum (sgd)")
    nesterov: bool = _option(False, Flag(), "optimizer", "Nesterov momentum (sgd)")
    betas: tuple[float, float] = _option(
        (0.9, 0.999), Numbers(Number(Range(least=0, below=1)), 2), "optimizer", "decay of the two moments (adam, adamw, lamb)")
    eps: float = _option(1e-8, Number(Range(above=0)), "optimizer", "added to the denominator (all but sgd)")
    alpha: float = _option(0.99, Number(Range(least=0, below=1)), "optimizer", "decay of the mean square (rmsprop)")
    centered: bool = _option(False, Flag(), "optimizer", "divide by the gradients' deviation, not their mean square (rmsprop)")
    use_tf_variant: bool = _option(False, Flag(), "optimizer", "TensorFlow's form: eps inside the root, which begins at 1 (rmsprop)")
    bias_correction: bool = _option(True, Flag(), "optimizer", "correct the moments for having begun at zero (adam, adamw, lamb)")
    max_weight_norm: float = _option(
        65500.0, Number(Range(least=0), infinite=True), "optimizer", "bound of a weight's norm in the trust ratio, inf for none (lamb)")
    use_combined_accum: bool = _option(
        False, Flag(), "optimizer", "one tensor for velocity and accumulated gradients, of the weight's type (sgd with momentum)")
    velocity_scaling: float = _option(
        1.0, Number(Range(above=0)), "optimizer", "factor on the combined velocity, against underflow in 16 bits (sgd)")
    accum_type: Literal["float32", "float16", "bfloat16"] | None = _option(
        None, _ACCUM, "optimizer", "element type in which gradients are accumulated; by default the weight's, float32 for 16 bits", optional=True)
    first_order_momentum_accum_type: Literal["float32", "float16", "bfloat16"] | None = _option(
        None, _ACCUM, "optimizer", "element type of the first moment (all but sgd); by default the weight's, float32 for 16 bits", optional=True)
    second_order_momentum_accum_type: Literal["float32", "float16", "bfloat16"] | None = _option(
        None, _ACCUM, "optimizer", "element type of the second moment (all but sgd); by default the weight's, float32 for 16 bits", optional=True)
    velocity_accum_type: Literal["float32", "float16", "bfloat16"] | None = _option(
        None, _ACCUM, "optimizer", "element type of the velocity (sgd); by default the weight's, float32 for 16 bits", optional=True)
    torch_compat: bool = _option(False, Flag(), "optimizer", "PyTorch's form where it differs from PopTorch's (docs/optimizers.md)")
    schedule: Scheduled = _option(
        "constant", Choice(("constant", "step", "exponential", "linear", "polynomial", "cosine", "one_cycle", "plateau")), "optimizer",
        "how the learning rate changes: linear, polynomial, cosine and one_cycle (which drives momentum or the first beta, too) from update to "
        "update over the whole run, step, exponential and plateau (of the loss on the test data) after epochs", common=True)
    warmup: float = _option(
        0.0, Number(Range(least=0)), "optimizer", "updates in which the learning rate rises before the schedule begins; below 1: a share of the run",
        common=True)
    schedule_epochs: tuple[int, ...] = _option(
        (), Integers(Integer(Range(least=0))), "optimizer",
        "step: the rate falls every so many epochs, or at each of several; cosine: starts again every so many; plateau: waits for progress so long")
    schedule_gamma: float | None = _option(
        None, _NOT_NEGATIVE, "optimizer", "factor on the rate when it falls (step, exponential, plateau); by default 0.1", optional=True)
    schedule_power: float = _option(1.0, _NOT_NEGATIVE, "optimizer", "power of the polynomial schedule")
    schedule_end: float = _option(
        0.0, _NOT_NEGATIVE, "optimizer", "the rate at the end (linear, polynomial, cosine) or below which it does not fall (plateau)")
    loss_scaling: float | None = _option(
        None, Number(Range(above=0)), "optimizer", "factor on the loss, taken out of the gradients again before the update; by default 1, and "
        "65536 to begin with where automatic_loss_scaling is dynamic", optional=True)
    automatic_loss_scaling: LossScaling = _option(
        "auto", Choice(("auto", "off", "histogram", "dynamic")), "training",
        "how the loss scale changes by itself: dynamic shrinks it and skips the update where a gradient is not finite, and grows it after a while, "
        "as PyTorch's GradScaler; histogram halves or doubles it by how many elements of 16-bit gradients are large, as PopART; auto is dynamic for "
        "the precision 16-mixed where no loss_scaling is given, else off")
    growth_factor: float = _option(2.0, Number(Range(above=1)), "training", "what dynamic loss scaling multiplies the scale by")
    backoff_factor: float = _option(
        0.5, Number(Range(above=0, below=1)), "training", "what dynamic loss scaling multiplies the scale by after a skipped update")
    growth_interval: int = _option(2000, _COUNT, "training", "good updates in a row after which dynamic loss scaling lets the scale grow")
    bin_edge_location: float = _option(
        0.125, Number(), "training", "share of float16's largest number from which on the histogram calls a gradient's element large")
    threshold_upper_count_proportion: float = _option(
        1e-7, Number(), "training", "share of large elements above which the histogram halves the scale")
    loss_scaling_update_period: int = _option(1, _COUNT, "training", "updates between two looks at the histogram")
    skip_non_finite: bool | None = _option(
        None, Flag(), "training",
        "skip updates whose loss or gradients are not finite instead of ending the run; by default where the loss scale adapts", optional=True)

    data: str | None = _option(
        None, FilePath(), "data", "training data: a folder, an .npz, .npy or .csv file, or the name digits", optional=True, common=True)
    test_data: str | None = _option(None, FilePath(), "data", "data to measure accuracy with after each epoch", optional=True, common=True)
    data_format: Literal["auto", "npz", "npy", "idx", "csv"] = _option(
        "auto", Choice(("auto", "npz", "npy", "idx", "csv")), "data", "format of the data; auto goes by the file's name")
    inputs: tuple[str, ...] = _option(
        (), Names(), "data", "arrays or columns that are the model's inputs; by default x, or all columns but the label", common=True)
    label: str | None = _option(
        None, Text(), "data", "array or column with the labels; by default the one called y, label or target, else the last column", optional=True,
        common=True)
    validation_split: float = _option(
        0.0, Number(Range(least=0, below=1)), "data", "share of the training rows kept for measuring, where the data have no test part", common=True)
    shuffle: bool = _option(True, Flag(), "data", "draw the training rows in a new random order each epoch")
    drop_last: bool = _option(
        True, Flag(), "data", "leave out the rows at the end that do not fill a whole call; else they are trained in updates of fewer rows")
    round_lengths: bool = _option(
        True, Flag(), "data", "where batches change their length, round it up to one of few (8, 12, 16, 24 ...), filled with zeros, labels with "
        "ignore_index; else each length has a program of its own")
    whole_elements: bool = _option(
        False, Flag(), "data", "each element of the data is a micro-batch, whose arrays are fed as they are, such as a graph's nodes "
        "and edges")
    max_batches: int | None = _option(None, _COUNT, "data", "end each training epoch after this many batches", optional=True)
    scale: float | None = _option(
        None, Number(), "data", "factor on the inputs; by default 1/255 for bytes that go into a float input, else 1", optional=True)
    mean: tuple[float, ...] = _option((), Numbers(), "data", "subtracted from the scaled inputs: one number or one per channel")
    std: tuple[float, ...] = _option((), Numbers(Number(Range(above=0))), "data", "then divides them: one number or one per channel")
    synthetic_data: Literal["none", "zeros", "normal"] = _option(
        "none", Choice(("none", "zeros", "normal")), "data", "train on made-up rows, to measure speed: zeros, or normal numbers (whole numbers are "
        "zero), of the shapes and with the labels of the data, or, without data, of the model's shapes for 16 calls")
    num_workers: int = _option(
        0, Integer(Range(least=0)), "data", "processes that read the rows of data sets of your own; 0: this process does")
    worker_timeout: float = _option(
        0.0, Number(Range(least=0)), "data", "seconds for which a worker's answer is waited for; 0: any time")
    persistent_workers: bool = _option(True, Flag(), "data", "keep worker processes from one epoch to the next")
    data_loader_mode: Literal["sync", "async", "async_rebatched"] | None = _option(
        None, Choice(("sync", "async", "async_rebatched")), "data", "prepare a batch when it is asked for (sync), keep batches ready (async, by "
        "default), or let all workers read pieces of the same batch (async_rebatched)", optional=True)
    rebatched_worker_size: int | None = _option(
        None, _COUNT, "data", "rows that a worker reads at once with async_rebatched; by default a batch divided by the workers", optional=True)
    prefetch: int = _option(2, Integer(Range(least=0)), "data", "batches prepared ahead by a thread; 0 prepares them on demand")

    strategy: Strategy = _option(
        "none", Choice(("none", "pipelined", "sharded", "serial_phased", "parallel_phased")), "execution",
        "how stages of the model run on several IPUs: overlapping micro-batches, one after the other, or in phases on one IPU or on two in turn",
        common=True)
    stages: tuple[str, ...] = _option(
        (), Names(), "execution", "blocks of each stage (or phase), joined by +, with its IPU after @, such as embed+layer0@0,layer1@1; stages of "
        "one phase are joined by |; of an ONNX file, name patterns of nodes")
    pipeline_splits: tuple[str, ...] = _option(
        (), Names(), "execution", "name patterns of layers or nodes at which a new stage begins, each on the next IPU")
    auto_pipeline: int | None = _option(
        None, _COUNT, "execution", "find so many stages of about equal length, each on an IPU of its own", optional=True, common=True)
    auto_stage: Literal["same_as_ipu", "auto_increment"] = _option(
        "same_as_ipu", Choice(("same_as_ipu", "auto_increment")), "execution", "where blocks, and no stages, are given: a stage for each IPU, or for "
        "each block")
    auto_round_num_ipus: bool = _option(False, Flag(), "execution", "reserve the next power of two where a model wants another number of IPUs")
    pipeline_schedule: PipelineSchedule = _option(
        "grouped", Choice(("grouped", "1f1b")), "execution", "how pipelined training goes: a forward and a backward pass of each IPU in every cycle "
        "(grouped), or one of the two in turn, which keeps half as many micro-batches waiting (1f1b)")
    pipeline_recompute: bool = _option(
        True, Flag(), "execution", "pipelined training keeps what enters a stage and computes the rest again for its backward pass")
    tensors_liveness: Liveness = _option(
        "always_live", Choice(("always_live", "off_chip_after_fwd", "off_chip_after_fwd_no_overlap", "off_chip_after_each_phase")), "execution",
        "when tensors that later phases read leave the chip for streaming memory")
    separate_backward_phase: bool = _option(False, Flag(), "execution", "the last phase's backward pass is a phase of its own")

    machine: Any = _option(
        None, Machine(), "machine", "simulated chip to compile for: gc2, gc200, bow, c600, or a .toml file that describes one", optional=True,
        common=True)
    available_memory_proportion: float | Mapping[str, float] = _option(
        0.6, Proportions(), "machine", "share of a tile's memory that one operator's temporaries may take, for all operators or by name pattern",
        common=True)
    machine_precision: Literal["32.32", "16.32", "16.16"] = _option(
        "32.32", Choice(("32.32", "16.32", "16.16")), "machine", "what if: bits of the simulated tensors that are float32 in the program, "
        "and of their partial sums; with a precision of 16 bits the program's own types count")
    serialized_matmul: Mapping[str, str] = _option(
        {}, SerialSplits(), "machine", "matmuls, by name pattern, to do in pieces one after the other", aliases=("serialised_matmul",))
    num_io_tiles: int = _option(
        0, IoTiles(), "machine", "tiles of each IPU that compute nothing and pass on what comes from the host and streaming memory, so that it can "
        "come while the others compute; 0, or an even number from 32 to 192")
    overlap_inputs: Mapping[str, str] = _option(
        {}, Table("inputs by name pattern", OVERLAPS, '{"*" = "accumulation_loop"}'), "machine",
        "inputs that come through I/O tiles while the others compute: all but two of an update's micro-batches, or of those of all device iterations")
    overlap_outputs: Mapping[str, str] = _option(
        {}, Table("outputs by name pattern", OVERLAPS, '{"*" = "accumulation_loop"}'), "machine", "outputs that go so")
    io_tiles_for: Mapping[str, str] = _option(
        {}, Table("groups of tensors", ("load", "store", "both"), '{weights = "load"}', TENSOR_GROUPS), "machine",
        "groups of tensors that I/O tiles load from streaming memory, or store there, while the others compute")
    joint_plans: bool = _option(True, Flag(), "machine", "plan a layer's forward and backward passes together where that is cheaper")
    activations_off_chip: bool | None = _option(
        None, Flag(), "machine", "keep activations in streaming memory between the forward and the backward pass, and between phases; else "
        "tensors_liveness says of phases what leaves", optional=True)
    weights_off_chip: bool | None = _option(
        None, Flag(), "machine", "keep weights in streaming memory but for the passes that use them; by default in phased strategies", optional=True)
    optimizer_off_chip: bool | None = _option(
        None, Flag(), "machine", "keep optimizer state in streaming memory instead of on the tiles; by default in phased strategies", optional=True,
        common=True)
    accumulators_off_chip: bool | None = _option(
        None, Flag(), "machine", "keep accumulators of gradients in streaming memory but for the steps that use them; by default in phased "
        "strategies", optional=True)
    min_elements_off_chip: int | Mapping[str, int] = _option(
        2, Counts(TENSOR_GROUPS), "machine", "tensors of fewer elements stay on the tiles: one number, or numbers by group of tensors")
    optimizer_sharded: bool = _option(
        False, Flag(), "machine", "each replica keeps a share of the optimizer state, updates its share of the weights, and all put the weights "
        "together")
    weights_sharded: bool = _option(
        False, Flag(), "machine", "each replica keeps a share of the weights, too, and all put them together before each pass that uses them")
    min_elements_sharded: int | Mapping[str, int] = _option(
        8192, Counts(SHARDED_GROUPS), "machine", "tensors of fewer elements are whole on every replica: one number, or numbers by group of tensors")
    recompute: bool = _option(
        False, Flag(), "machine", "run parts of the forward pass again before the backward pass instead of keeping their results on the tiles",
        common=True)
    tile_plans: str | None = _option(
        None, FilePath(), "machine", "file of plans (JSON) to use instead of searching, as written by compile --report", optional=True, common=True)

    seed: int = _option(0, Integer(Range(least=0, most=2**63 - 1)), "run", "seed of every random number", common=True)
    threads: int | None = _option(None, _COUNT, "run", "worker threads; by default one per core that may be used", optional=True, common=True)
    precision: Literal["32", "64", "16-mixed", "bf16-mixed", "16-true", "bf16-true"] = _option(
        "32", Choice(("32", "64", "16-mixed", "bf16-mixed", "16-true", "bf16-true"), PRECISION_SPELLINGS), "run",
        "bits to compute with: mixed keeps weights in float32 and computes products in 16 bits, true has everything in 16 bits; "
        "bf16 is bfloat16", common=True)
    autocast: Mapping[str, str] = _option(
        {}, Table("operators or patterns of node names", ("fp16", "fp32", "promote", "demote", "off"), '{Softmax = "fp16", "/head/*" = "fp32"}'),
        "run",
        "how operators, by name, or nodes, by name pattern, are computed with mixed precision: in 16 bits, in float32, in the wider or the "
        "narrower of their operands' types, or as the model was written")
    autocast_enabled: bool = _option(True, Flag(), "run", "cast automatically where the precision is mixed or layers ask for it; false: nowhere")
    keep_float32: tuple[str, ...] = _option(
        (), Names(), "run", "name patterns of parameters that stay float32 with the precision 16-true or bf16-true")
    running_statistics_always_float: bool = _option(
        True, Flag(), "run", "keep the running statistics of batch normalisation in float32 where the weights have 16 bits")
    half_float_casting: Literal["activation", "upcast"] = _option(
        "activation", Choice(("activation", "upcast")), "run",
        "what a layer makes of floats of several types: products, convolutions and normalisation follow the type of their activation "
        "and all else takes the widest, or everything takes the widest, as in PyTorch")
    partials: str | Mapping[str, str] = _option(
        "float32", Partials(), "run", "type in which float16 products and convolutions add up, for all of them or by name pattern: float16 rounds "
        "after every 16 products")
    matmul_precision: Literal["highest", "high", "medium"] = _option(
        "highest", Choice(("highest", "high", "medium")), "run",
        "how float32 products are computed by CPUs with bfloat16 tiles (AMX): with float32's accuracy, with about 16 bits, or with 8; "
        "other CPUs always compute them in float32")
    detect_anomaly: bool = _option(
        False, Flag(), "run", "end with the name of the first operator, forward or backward, that makes NaN or an infinity; slower, the same bits")
    anchored_tensors: tuple[str, ...] = _option(
        (), Names(), "run", "tensors, layers or nodes by name or pattern whose values calls of a model keep besides its outputs, for "
        "model.anchored(name); what is kept is not fused with what reads it")
    dims: Mapping[str, int] = _option({}, Sizes(), "run", "sizes of the model's symbolic dimensions", common=True)
    on_new_shape: Literal["error", "compile"] = _option(
        "error", Choice(("error", "compile")), "run", "what a call with inputs of another shape does")
    out: str | None = _option(
        None, FilePath(), "run", "where results go: a folder for train (by default a new one under runs/), a file for infer and tune", optional=True,
        common=True)
    resume: str | bool = _option(
        False, FilePath(flag=True), "run", "go on from this checkpoint, or from the one in the out folder", common=True)
    allow_other_data: bool = _option(False, Flag(), "run", "resume on data that differ from those the run began with")
    checkpoint_every: int = _option(1, Integer(Range(least=0)), "run", "epochs between checkpoints; 0 writes one at the end only")
    save_every_updates: int | None = _option(
        None, _COUNT, "run", "write a checkpoint after this many weight updates as well", optional=True)
    statistics: int | None = _option(
        None, _COUNT, "run", "write norms, zeros, underflow and overflow of every gradient and weight into the out folder, as statistics.csv and a "
        "page with a picture, every so many updates", optional=True)
    progress: bool | None = _option(None, Flag(), "run", "progress bars; by default on a terminal only", optional=True, common=True)

    def validate(self) -> None:
        """OptionError where options that are each right do not go together."""
        if self.output_mode == "every_n":
            period = self.output_return_period
            if period is None or self.device_iterations % period:
                raise OptionError(f"Option output_mode 'every_n' needs an output_return_period that divides "
                                  f"device_iterations ({self.device_iterations}), not {period}.")
        if self.replication_factor % self.input_group_size:
            why = "cannot be larger than" if self.input_group_size > self.replication_factor else "must be a factor of"
            raise OptionError(f"Option input_group_size {why} replication_factor: {self.input_group_size} is given, and there are "
                              f"{self.replication_factor} replicas.")
        self._validate_grouping()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise OptionError(f"Option nesterov needs momentum above 0 and dampening 0, not momentum {self.momentum:g} "
                              f"and dampening {self.dampening:g}.")
        self._validate_schedule()
        for name in ("bin_edge_location", "threshold_upper_count_proportion"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise OptionError(f"Out of range value for '{name}'. The current value is {value:g}, but it should be in the range [0, 1].")
        if self.automatic_loss_scaling == "dynamic" and self.skip_non_finite is False:
            raise OptionError("Option automatic_loss_scaling 'dynamic' finds the scale by the updates that it skips; leave skip_non_finite=False "
                              "out, or choose histogram.")
        if self.frozen and self.trainable:
            raise OptionError("Options frozen and trainable exclude each other: name either the parameters to leave or those to train.")
        if not self.autocast_enabled and (self.precision.endswith("mixed") or self.autocast):
            given = f"precision {self.precision}" if self.precision.endswith("mixed") else "autocast"
            raise OptionError(f"Option {given} casts automatically, which autocast_enabled = false forbids; leave one of them out.")
        if self.test_data is not None and self.validation_split > 0:
            raise OptionError(MEASURED_TWICE)

    def _validate_grouping(self) -> None:
        for name, (kind, size, _) in self.groupings.items():
            if self.replication_factor % size:
                why = "cannot be larger than" if size > self.replication_factor else "must be a factor of"
                raise OptionError(f"Option replica_grouping: the size of {name}={kind}:{size} {why} replication_factor, and there are "
                                  f"{self.replication_factor} replicas.")
        if self.replica_grouping and not self.drop_last:
            raise OptionError("Option replica_grouping: with drop_last=False the last rows would train the weights of replica 0 only; leave one of "
                              "the two out.")

    def _validate_schedule(self) -> None:
        if self.schedule == "step" and not (self.schedule_epochs and min(self.schedule_epochs) >= 1
                                            and list(self.schedule_epochs) == sorted(self.schedule_epochs)):
            raise OptionError(f"Option schedule 'step' needs schedule_epochs, after how many epochs the rate falls (every 30: 30; at 30 and at 60: "
                              f"30,60), not {list(self.schedule_epochs)}.")
        if self.schedule in ("cosine", "plateau") and (len(self.schedule_epochs) > 1 or (self.schedule == "cosine" and 0 in self.schedule_epochs)):
            raise OptionError(f"Option schedule {self.schedule!r} takes one number of schedule_epochs, not {list(self.schedule_epochs)}.")
        if self.schedule == "exponential" and self.schedule_gamma is None:
            raise OptionError("Option schedule 'exponential' needs schedule_gamma, what the rate is multiplied with after each epoch, such as 0.95.")
        if self.schedule == "plateau" and self.schedule_gamma is not None and self.schedule_gamma >= 1:
            raise OptionError(f"Option schedule_gamma must be below 1 for the schedule 'plateau', not {self.schedule_gamma:g}.")
        if self.warmup and self.schedule == "one_cycle":
            raise OptionError("Option warmup has no place before the schedule 'one_cycle', which begins with a rise of its own; leave it out.")
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise OptionError(f"Option warmup must be a whole number of updates, or a share of the run below 1, not {self.warmup:g}.")

    def output_mode_for(self, training: bool) -> OutputMode:
        """The output mode with "default" resolved: final for training, all for inference."""
        if self.output_mode != "default":
            return self.output_mode
        return "final" if training else "all"

    @property
    def frozen_patterns(self) -> tuple[str, ...]:
        """Patterns of the parameters to leave alone: `trainable` alone means all others."""
        return ("*",) if self.trainable and not self.frozen else self.frozen

    @property
    def serial_splits(self) -> dict[str, tuple[str, int]]:
        """`serialized_matmul` as mode and factor by name pattern."""
        return {name: serial_split(text) for name, text in self.serialized_matmul.items()}

    @property
    def groupings(self) -> dict[str, tuple[str, int, str]]:
        """`replica_grouping` as type, size and retrieval by name pattern."""
        return {name: grouping(text) for name, text in self.replica_grouping.items()}

    @property
    def global_batch_size(self) -> int:
        """Rows per weight update, of all replicas; what several of them get counts once."""
        return self.micro_batch_size * self.gradient_accumulation * self.input_groups

    @property
    def input_groups(self) -> int:
        """Replicas that get rows of their own."""
        return self.replication_factor // self.input_group_size

    @property
    def combined_batch_size(self) -> int:
        """Rows per call of the engine."""
        return self.global_batch_size * self.device_iterations

    @property
    def resolved_weight_decay(self) -> float:
        """The weight decay with None resolved."""
        if self.weight_decay is not None:
            return self.weight_decay
        return 0.01 if self.optimizer in ("adamw", "lamb") else 0.0


Options.__init__ = by_any_name(Options.__init__)          # type: ignore[method-assign]


def declarations() -> Declarations:
    """The declarations of all options by name, in the order of the class."""
    return Options.declared()


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by what they are called now; names that are none stay as they are. OptionError where one is set by two of its names."""
    return declarations().renamed(values)


def near_names(name: str) -> list[str]:
    """Options that somebody may have meant by a name that is none: what others call it, else what is spelled alike."""
    return declarations().near(name)


def read_options_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The options that a file sets, flat and checked by name; OptionError where it cannot be used."""
    return options_file.read(path, declarations())


DEFAULTS = "TILEFLOW_DEFAULT_OPTIONS"
"""The environment variable that may name a file of options for all runs."""


def default_options() -> dict[str, Any]:
    """What the file says that the environment names; empty where it names none. OptionError where it cannot be used."""
    path = os.environ.get(DEFAULTS)
    if not path:
        return {}
    try:
        return read_options_file(path)
    except OptionError as error:
        raise OptionError(f"{DEFAULTS}: {error}") from None


def with_defaults(options: Options) -> Options:
    """The options, and what neither code nor a file gives as `default_options` say."""
    found = default_options()
    return options.filled(found, "defaults") if found else options
