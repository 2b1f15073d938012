"""What options and their values are called elsewhere, and which of them are whose."""
from __future__ import annotations

from types import MappingProxyType

KNOWN_AS = {
    "lr": "learning_rate", "batch_size": "micro_batch_size", "batch": "micro_batch_size", "dim": "dims", "wd": "weight_decay", "num_epochs": "epochs",
    "n_epochs": "epochs", "criterion": "loss", "optim": "optimizer", "freeze": "frozen", "accumulate": "gradient_accumulation",
    "val_data": "test_data", "validation_data": "test_data", "eval_data": "test_data", "val_split": "validation_split", "target": "label",
    "labels": "label", "y": "label", "num_threads": "threads", "n_jobs": "threads", "random_state": "seed",
    "lr_scheduler": "schedule", "scheduler": "schedule", "lr_schedule": "schedule", "warmup_steps": "warmup", "warmup_ratio": "warmup",
    "warmup_updates": "warmup", "lr_gamma": "schedule_gamma", "gamma": "schedule_gamma", "min_lr": "schedule_end", "milestones": "schedule_epochs",
    "dtype": "precision", "output": "out", "output_dir": "out", "chip": "machine",
}
"""What other tools and people call an option."""

_STOP = "train some epochs, look at result.history, and go on bit for bit with resume=True and more epochs, or stop there"
NOT_YET = dict.fromkeys(("early_stopping", "early_stopping_patience", "patience"), _STOP) | {
    "callbacks": f"reporter takes an object that is told of every call and epoch; to steer, {_STOP}"}
"""What other tools have and tileflow has not, and what to do without it."""

PRECISION_SPELLINGS = MappingProxyType({
    "float32": "32", "float64": "64", "float16": "16-true", "bfloat16": "bf16-true", "fp32": "32", "fp64": "64",
    "32-true": "32", "64-true": "64", "16": "16-mixed", "bf16": "bf16-mixed", "fp16": "16-mixed"})
"""Other names of precisions: an element type stands for all in that type; 16, fp16 and bf16 alone mean mixed precision, as in Lightning and in
Hugging Face's trainers."""

_ADAPTIVE = ("adam", "adamw", "rmsprop", "lamb")
OF_OPTIMIZER: dict[str, tuple[str, ...]] = {
    "momentum": ("sgd", "rmsprop"), "dampening": ("sgd",), "nesterov": ("sgd",), "velocity_scaling": ("sgd",), "use_combined_accum": ("sgd",),
    "velocity_accum_type": ("sgd",), "betas": ("adam", "adamw", "lamb"), "eps": _ADAPTIVE, "bias_correction": ("adam", "adamw", "lamb"),
    "first_order_momentum_accum_type": _ADAPTIVE, "second_order_momentum_accum_type": _ADAPTIVE, "max_weight_norm": ("lamb",),
    "alpha": ("rmsprop",), "centered": ("rmsprop",), "use_tf_variant": ("rmsprop",)}
"""Options that not every optimizer has, and those that do."""
