"""Which verb uses which option, and what is said of one that would have no effect where it was given.

An options file or an Options object describes a whole project and may say more than one verb needs; what somebody writes into a call or behind a
command is meant for that verb, so it has an effect there or is refused.
"""
from __future__ import annotations

from collections.abc import Iterable

from ..system.errors import OptionError
from .declaration import Declaration
from .options import Options, declarations
from .spellings import OF_OPTIMIZER

MODELS = ("training_model", "inference_model")
SIMULATED = ("compile", "tune", "explore")
COMMANDS = ("train", "infer", "inspect", *SIMULATED)
TRAINING = ("train", "training_model", *SIMULATED)
RUNS = ("train", "infer", *MODELS)

OF_GROUP: dict[str, tuple[str, ...]] = {
    "batching": ("train", "infer", *SIMULATED, *MODELS),
    "training": TRAINING,
    "optimizer": TRAINING,
    "data": ("train", "infer"),
    "execution": ("train", *SIMULATED, *MODELS),
    "machine": SIMULATED,
    "run": RUNS,
}
OF_OPTION: dict[str, tuple[str, ...]] = {
    "micro_batch_size": (*COMMANDS, *MODELS),
    "gradient_accumulation": (*TRAINING, "inference_model"),          # where it must be 1, and that is said
    "replication_factor": (*RUNS, *SIMULATED),
    "input_group_size": (*MODELS, *SIMULATED), "input_group_type": MODELS, "broadcast_buffers": ("train", *MODELS),
    "replica_grouping": ("train", *MODELS, *SIMULATED),
    "output_mode": MODELS, "output_return_period": MODELS,
    "epochs": ("train",),
    "loss": (*TRAINING, "infer"), "ignore_index": (*TRAINING, "infer"), "class_axis": (*TRAINING, "infer"),          # what the labels are
    "metrics": ("train", "infer"),
    "frozen": (*TRAINING, "inspect"), "trainable": (*TRAINING, "inspect"),
    "tie": (*TRAINING, "inspect", "inference_model"), "untie": (*TRAINING, "inspect", "inference_model"),
    "keep_training_mode": ("train", *MODELS),
    "num_classes": ("train",),
    "gradient_checkpointing": ("train", "training_model"),
    "test_data": ("train",), "synthetic_data": ("train",), "shuffle": ("train",), "drop_last": ("train",), "max_batches": ("train",),
    "round_lengths": ("train",), "whole_elements": ("train",),
    **dict.fromkeys(("schedule", "warmup", "schedule_epochs", "schedule_gamma", "schedule_power", "schedule_end"), ("train", "training_model")),
    "serialized_matmul": (*RUNS, *SIMULATED),
    "seed": (*RUNS, "compile"),
    "keep_float32": (*RUNS, *SIMULATED), "running_statistics_always_float": (*RUNS, *SIMULATED),
    "half_float_casting": (*RUNS, *SIMULATED), "partials": (*RUNS, *SIMULATED),
    "precision": (*RUNS, *SIMULATED), "autocast": (*RUNS, *SIMULATED), "autocast_enabled": (*RUNS, *SIMULATED),
    "dims": (*COMMANDS, *MODELS),
    "on_new_shape": MODELS, "anchored_tensors": MODELS,
    "out": ("train", "infer", "tune", "explore"),
    "resume": ("train",), "allow_other_data": ("train",), "checkpoint_every": ("train",), "save_every_updates": ("train",),
    "statistics": ("train",),
    "progress": ("train", "infer", "tune", "explore"),
}
"""Options that other verbs use than the rest of their group."""
FOR_TRAINING = ("training", "optimizer")
OPTIONS_FOR_TRAINING = ("gradient_accumulation", "joint_plans", "optimizer_off_chip", "accumulators_off_chip", "recompute",
                        "optimizer_sharded", "weights_sharded", "min_elements_sharded", "replica_grouping")
"""Groups, and options of other groups, that count with training=True (--training) only, where a verb has that choice."""
OF_COMMAND = {"infer": ("out", "progress", "loss", "ignore_index", "class_axis", "metrics"), "tune": ("out", "progress"),
              "explore": ("out", "progress"), "compile": ("seed",)}
"""What is for the command alone: the functions return their results, and call what they are given as progress."""

OF_SCHEDULE = {"schedule_epochs": ("step", "cosine", "plateau"), "schedule_gamma": ("step", "exponential", "plateau"),
               "schedule_power": ("polynomial",), "schedule_end": ("linear", "polynomial", "cosine", "plateau")}
OF_SCALING = {"growth_factor": ("dynamic",), "backoff_factor": ("dynamic",), "growth_interval": ("dynamic",),
              "bin_edge_location": ("histogram",), "threshold_upper_count_proportion": ("histogram",), "loss_scaling_update_period": ("histogram",)}
"""What counts with these values of automatic_loss_scaling only; auto may become dynamic."""

SEVERAL = ("pipelined", "sharded", "serial_phased", "parallel_phased")
OF_STRATEGY = {"stages": SEVERAL, "pipeline_splits": SEVERAL, "auto_pipeline": SEVERAL, "auto_stage": ("pipelined", "sharded"),
               "auto_round_num_ipus": SEVERAL, "pipeline_recompute": ("pipelined",), "pipeline_schedule": ("pipelined",),
               "tensors_liveness": ("serial_phased", "parallel_phased"),
               "separate_backward_phase": ("serial_phased", "parallel_phased")}
"""What counts with these strategies only."""
AXES = ("training", "machine", "replication_factor", "ipus", "micro_batch_size", "gradient_accumulation", "precision", "available_memory_proportion",
        "recompute", "optimizer_off_chip")
"""What may have several values in an exploration, in the order of tables: options, whether the model is trained, and on how many IPUs it runs."""
OF_MACHINE_ALONE = ("machine", "machine_precision", "available_memory_proportion", "joint_plans", "recompute", "tile_plans", "min_elements_off_chip",
                    "activations_off_chip", "weights_off_chip", "optimizer_off_chip", "accumulators_off_chip")
"""Of which a compiled program knows nothing: what differs in no more shares it."""
OF_REPLICAS = ("input_group_size", "input_group_type", "broadcast_buffers", "replica_grouping", "optimizer_sharded", "weights_sharded",
               "min_elements_sharded")
"""What counts with several replicas only."""

OF_FILES = ("dims", "tie", "untie", "keep_training_mode", "num_classes")
"""What says how an ONNX file is read or written, and nothing of a network of layers."""


def verbs_of(declaration: Declaration) -> tuple[str, ...]:
    """The verbs that use an option."""
    return OF_OPTION.get(declaration.name, OF_GROUP[declaration.group])


def used_by(verb: str) -> list[Declaration]:
    """The options that a verb uses, in their order."""
    return [d for d in declarations().values() if verb in verbs_of(d)]


def check_use(verb: str, given: Iterable[str], options: Options, *, training: bool = True, command: bool = False) -> None:
    """Refuse what was given to a verb and would have no effect.

    Args:
        given: names of the options that were written for this very call or command, among all of `options`.
        training: whether a verb that may or may not train does.
        command: sentences are for the command line.

    Raises:
        OptionError: one of them has no effect; the sentence says where it would.
    """
    for name in given:
        reason = _no_effect(verb, declarations()[name], options, training, command)
        if reason is not None:
            raise OptionError(f"Option {name}{f' ({declarations()[name].flag})' if command else ''} {reason}")


def check_layers(options: Options) -> None:
    """Refuse what is set for an ONNX file where the model is a network of layers; OptionError."""
    for name in OF_FILES:
        if options.given(name, files=False):
            raise OptionError(f"Option {name} has no effect on a network of layers; it is for ONNX files.")


def for_training(declaration: Declaration) -> bool:
    """An option says nothing about inference."""
    return declaration.group in FOR_TRAINING or declaration.name in OPTIONS_FOR_TRAINING


def _no_effect(verb: str, declaration: Declaration, options: Options, training: bool, command: bool) -> str | None:
    """Why an option has no effect on a verb; None where it has one."""
    name, verbs = declaration.name, verbs_of(declaration)
    if name == "input_group_size" and options.input_group_size == 1 and (verb in verbs or not command):
        return None                                     # no groups, which is so everywhere; a flag that a command has not is none
    if verb not in verbs:
        shown = [v for v in verbs if v in COMMANDS] if command else verbs
        return f"has no effect on {verb}; it is for {_and(shown or verbs)}."
    if not command and name in OF_COMMAND.get(verb, ()):
        return f"has no effect on the function {verb}, which returns its results; it is for {_and([v for v in verbs if v not in OF_COMMAND])} " \
               "and the command line."
    of_machine = declaration.group == "machine" or name in ("replication_factor", "input_group_size", "replica_grouping")
    if verb == "compile" and options.machine is None and of_machine and name != "serialized_matmul":
        machine = "--machine gc200" if command else "machine='gc200'"
        return f"is about the tile machine; name one, for example {machine}, or leave it out."
    if verb in (*SIMULATED, "inspect") and not training and for_training(declaration):
        return f"counts for training only; add {'--training' if command else 'training=True'}, or leave it out."
    if options.resume is False and options.optimizer not in OF_OPTIMIZER.get(name, (options.optimizer,)):          # else the run's folder knows it
        return f"has no effect with the optimizer {options.optimizer}; it is for {_and(OF_OPTIMIZER[name])}."
    if options.resume is False and options.schedule not in OF_SCHEDULE.get(name, (options.schedule,)):
        return f"has no effect with the schedule {options.schedule}; it is for {_and(OF_SCHEDULE[name])}."
    if name in OF_SCALING and options.resume is False and options.automatic_loss_scaling not in ("auto", *OF_SCALING[name]):
        return f"has no effect with automatic_loss_scaling {options.automatic_loss_scaling}; it is for {_and(OF_SCALING[name])}."
    if name in OF_SCALING and options.automatic_loss_scaling == "auto" and (OF_SCALING[name] != ("dynamic",) or options.precision != "16-mixed"):
        return f"has no effect without automatic_loss_scaling; it is for {_and(OF_SCALING[name])}."
    rounds_replicas = name == "auto_round_num_ipus" and verb in SIMULATED and options.replication_factor > 1
    if name in OF_STRATEGY and options.resume is False and options.strategy not in OF_STRATEGY[name] and not rounds_replicas:
        return f"has no effect with the strategy {options.strategy}; it is for {_and(OF_STRATEGY[name])}."
    if name == "recomputation_checkpoints" and options.resume is False and not _computes_again(verb, options):
        return "has no effect where nothing is computed again; it is for gradient_checkpointing, for stages of a pipeline and, on the tile " \
               "machine, for recompute."
    if name in OF_REPLICAS and options.resume is False and options.replication_factor == 1:
        return "has no effect without replicas; it is for a replication_factor above 1."
    if name == "min_elements_sharded" and not options.optimizer_sharded:
        return "has no effect where nothing is shared out; it is for optimizer_sharded."
    if name == "input_group_type" and options.input_group_size == 1:
        return "has no effect without groups; it is for an input_group_size above 1."
    if name == "output_return_period" and options.output_mode != "every_n":
        return f"has no effect with the output_mode {options.output_mode}; it is for every_n."
    return None


def _computes_again(verb: str, options: Options) -> bool:
    """Whether parts of a forward pass run again for the backward pass."""
    if options.strategy == "pipelined" and options.pipeline_recompute:
        return True
    return options.recompute if verb in SIMULATED else bool(options.gradient_checkpointing)


def _and(words: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
