"""Options of training: the loss, what is measured, what of a model is trained and how its gradients are summed."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .declaration import declared
from .kinds import COUNT, Choice, Flag, Integer, Names, Number, OneOf, Range
from .losses import ClassWeights, LossNames
from .needs import Provided
from .registries import LOSSES
from .verbs import MODELS, SIMULATED, TRAINING, UPDATING

_option = functools.partial(declared, "training")
ClassAxis = Literal[1, -1]
AccumulationReduction = Literal["mean", "sum"]
MeanReductionStrategy = Literal["post", "running"]
MasterWeights = Literal["none", "remainder"]
ReduceType = Literal["bfloat16", "float16"]


def _computes_again(options: Any, verb: str) -> bool:
    """Whether parts of a forward pass run again for the backward pass."""
    if options.strategy == "pipelined" and options.pipeline_recompute:
        return True
    return bool(options.recompute if verb in SIMULATED else options.gradient_checkpointing)


COMPUTED_AGAIN = Provided(_computes_again, "where nothing is computed again",
                          "gradient_checkpointing, for stages of a pipeline and, on the tile machine, for recompute")


SEVERAL_SUMS = Provided(lambda options, verb: min(options.replication_factor, options.gradient_accumulation) > 1,
                        "where a replica has one micro-batch of an update, or all of them",
                        "a replication_factor and gradient_accumulation above 1")
SUMMED = Provided(lambda options, verb:
                  options.sync_each_batch and options.replication_factor * options.gradient_accumulation > 1,
                  "where an update has one micro-batch, or sync_each_batch is off and sums travel, whose type is "
                  "accum_type", "a replication_factor or gradient_accumulation above 1, with sync_each_batch on")


@dataclass(kw_only=True, repr=False)
class TrainingOptions:
    """What is trained, and on what loss."""

    epochs: int = _option(
        1, Integer(Range(least=0)), "passes over the training data", common=True, verbs=("train",), free=True,
        known_as=("num_epochs", "n_epochs"))
    loss: str = _option(
        "auto", LossNames(("auto", *LOSSES)),
        "loss function; auto decides by the model's output and the labels and says why; identity: the model computes "
        "its loss itself (nn.identity_loss, or its only output of one number); OUTPUT=LOSS,OUTPUT=LOSS*0.5 gives each "
        "output its own, with the labels of the array that is called like it", common=True, commands=("infer",),
        free=True, known_as=("criterion",))
    ignore_index: int | None = _option(
        None, Integer(), "class number of labels that do not count ({whose})", optional=True, commands=("infer",),
        of=LOSSES)
    class_weights: tuple[float, ...] | Literal["balanced"] = _option(
        (), ClassWeights(Number(Range(least=0))), "weight of each class in the loss, or balanced: by how seldom it is "
                                                  "among the training labels "
        "({whose})", of=LOSSES)
    label_smoothing: float = _option(
        0.0, Number(Range(least=0, most=1)), "share of each label that is spread evenly over all classes ({whose})",
        of=LOSSES)
    focal_gamma: float = _option(
        2.0, Number(Range(least=0)), "how much less labels count in the loss whose class is likely already ({whose})",
        of=LOSSES)
    huber_delta: float = _option(
        1.0, Number(Range(above=0)), "errors from which on the loss is linear ({whose})", of=LOSSES)
    class_axis: ClassAxis | None = _option(
        None, OneOf(get_args(ClassAxis)),
        "axis of the classes in scores of three and more dimensions ({whose}); by default by the shapes", optional=True,
        commands=("infer",), of=LOSSES)
    metrics: tuple[str, ...] = _option(
        (), Names(), "what to measure on the test data besides the loss: accuracy, top5, f1, f1_macro, f1_micro, "
        "f1_weighted, miou, auc and perplexity of classes, mae, rmse and r2 of numbers; accuracy is measured anyway",
        common=True, verbs=("train",), commands=("infer",), free=True)
    accumulation_reduction: AccumulationReduction = _option(
        "mean", Choice(get_args(AccumulationReduction)), "how the micro-batches' gradients are combined")
    mean_reduction_strategy: MeanReductionStrategy | None = _option(
        None, Choice(get_args(MeanReductionStrategy)), "their mean is taken once after the sum (post), or kept all "
        "the time (running); by default post, and running where the accumulators are float16", optional=True)
    sync_each_batch: bool = _option(
        True, Flag(), "gradients are summed in the order of an update's micro-batches, those of all replicas after "
                      "each "
        "accumulation step; false: each replica sums up its own first, and the sums of all are summed once an update, "
        "so that processes exchange gradients once an update: other bits, again the same for every number of processes",
        verbs=UPDATING, needs=(SEVERAL_SUMS,))
    reduce_dtype: ReduceType | None = _option(
        None, Choice(get_args(ReduceType)),
        "round each micro-batch's gradients to this type before they are summed (in "
        "the accumulators' type): half the bytes between processes, and other bits, again the same for every number of "
        "processes", optional=True, verbs=UPDATING, needs=(SUMMED,))
    stochastic_rounding: bool = _option(
        False, Flag(),
        "write 16-bit weights and states rounded up or down at random (by the seed), so that small steps add up")
    master_weights: MasterWeights = _option(
        "none", Choice(get_args(MasterWeights)), "remainder keeps, beside each 16-bit weight, the 16 bits that it "
        "lacks of a float32 number, and updates that number")
    frozen: tuple[str, ...] = _option(
        (), Names(), "name patterns (* and ?) of parameters to leave as they are", common=True,
        verbs=(*TRAINING, "inspect"), known_as=("freeze",))
    trainable: tuple[str, ...] = _option(
        (), Names(), "name patterns of the only parameters to train; one that fits constants only makes parameters of "
        "them, and the word head stands for the last layer", common=True, verbs=(*TRAINING, "inspect"))
    num_classes: int | None = _option(
        None, COUNT,
        "replace the last layer of the ONNX file by one with so many outputs, its weights drawn afresh by the seed",
        optional=True, common=True, verbs=("train",), of_files=True)
    tie: tuple[str, ...] = _option(
        (), Names(), "name patterns of parameters to train as one where their values are equal",
        verbs=(*TRAINING, "inspect", "inference_model"), free=True, of_files=True)
    untie: tuple[str, ...] = _option(
        (), Names(), "name patterns of parameters to train as one for each module, or each node, that reads them",
        verbs=(*TRAINING, "inspect", "inference_model"), free=True, of_files=True)
    gradient_checkpointing: tuple[str, ...] = _option(
        (), Names(), "name patterns of layers or nodes (layer* takes each of layer1, layer2 ... as a block) whose "
        "values are computed again in the backward pass instead of kept: less memory, more time, the same bits",
        verbs=UPDATING, free=True)
    recomputation_checkpoints: tuple[str, ...] = _option(
        (), Names(), "name patterns of layers or nodes whose results are kept where what is around them is computed "
        "again for the backward pass (gradient_checkpointing, stages of a pipeline, recompute)", free=True,
        needs=(COMPUTED_AGAIN,))
    keep_training_mode: bool = _option(
        False, Flag(), "write the trained file with batch normalisation and dropout as the model has them, not in the "
        "form for inference", verbs=("train", *MODELS), free=True, of_files=True, live=True)
