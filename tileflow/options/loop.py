"""Options of the training loop: when a run ends, what of it is kept, measured and logged. Callbacks do it; these are
names for them."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, get_args

from .declaration import declared
from .kinds import COUNT, Choice, Duration, Flag, Integer, Names, Range, Text
from .needs import Provided
from .registries import LOGGERS

_option = functools.partial(declared, "loop")
MonitorMode = Literal["auto", "min", "max"]
MONITORED = Provided(lambda options, verb: options.early_stopping is not None or options.keep_best,
                     "where nothing looks at a figure",
                     "early_stopping and keep_best")


@dataclass(kw_only=True, repr=False)
class LoopOptions:
    """When a training run ends, and what becomes of what it finds."""

    early_stopping: int | None = _option(
        None, Integer(Range(least=0)), "end the run when the monitored figure has not become better for so many epochs "
        "(with eval_every: evaluations), by the rules of Keras' EarlyStopping", optional=True, common=True,
        known_as=("early_stopping_patience", "patience"))
    monitor: str | None = _option(
        None, Text(), "the figure that early_stopping and keep_best look at: loss, val_loss (that of the test data), "
        "val_accuracy, or another metric; by default val_loss, and loss without test data", optional=True, common=True,
        needs=(MONITORED,), known_as=("metric_for_best_model",))
    monitor_mode: MonitorMode = _option(
        "auto", Choice(get_args(MonitorMode)),
        "whether the least or the greatest value of it is best; auto knows that of "
        "losses and of metrics with a name", needs=(MONITORED,), known_as=("mode",))
    keep_best: bool = _option(
        False, Flag(), "keep the state with the best monitored figure as best.safetensors, and its model as best.onnx",
        common=True, known_as=("save_best_only", "load_best_model_at_end"))
    log: tuple[str, ...] = _option(
        (), Names(), f"logs besides log.jsonl, which every run has: {', '.join(LOGGERS)}", common=True,
        known_as=("logger", "report_to"))
    max_time: float | None = _option(
        None, Duration(), "end the run after this time, its parts before it was resumed included", optional=True,
        common=True)
    max_updates: int | None = _option(
        None, COUNT,
        "end the run after so many weight updates in all, in as many epochs as they take where epochs is not "
        "given", optional=True, common=True,
        known_as=("max_steps", "steps"))
    eval_every: int | None = _option(
        None, COUNT, "measure the test data after every so many updates, and not at the ends of epochs only",
        optional=True, common=True, known_as=("eval_steps", "val_check_interval"))
    gradient_noise: bool = _option(
        False, Flag(), "measure the gradient noise scale, the rows of a batch beyond which larger ones help little: "
        "gradient_noise_scale in the logs of each epoch", verbs=("train", "training_model", "compile"),
        for_training=True, free=False)
    fast_dev_run: bool = _option(
        False, Flag(), "do every kind of step once, an update, an evaluation, a checkpoint, the trained file, and keep "
        "nothing", common=True, recorded=False)
    overfit: int | None = _option(
        None, COUNT,
        "train on the first rows of the data only, so many, and measure on them: a model that cannot learn "
        "these by heart learns nothing", optional=True, free=False, known_as=("overfit_batches",))
