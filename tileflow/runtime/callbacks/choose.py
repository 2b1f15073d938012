"""The callbacks that options ask for."""
from __future__ import annotations

from ...options.options import Options
from ...options.registries import LOGGERS
from ...system.errors import OptionError
from .base import Callback
from .early_stopping import EarlyStopping
from .limits import MaxTime, MaxUpdates
from .loggers import JSONLogger
from .model_checkpoint import ModelCheckpoint


def from_options(options: Options, tested: bool, onnx: bool) -> list[Callback]:
    """A run's callbacks by its options.

    tested: it has test data. onnx: its model can be kept as an ONNX file.

    Raises:
        OptionError: a logger is unknown, or its package is missing.
    """
    monitor = options.monitor or ("val_loss" if tested else "loss")
    found: list[Callback] = [JSONLogger()]
    if options.early_stopping is not None:
        found.append(EarlyStopping(monitor, options.monitor_mode, patience=options.early_stopping))
    if options.keep_best:
        found.append(ModelCheckpoint(monitor, options.monitor_mode, onnx=onnx))
    if options.max_updates is not None:
        found.append(MaxUpdates(options.max_updates))
    if options.max_time is not None:
        found.append(MaxTime(options.max_time))
    for name in options.log:
        if name not in LOGGERS:
            raise OptionError(f"Option log must name loggers ({', '.join(LOGGERS)}), not {name!r}.")
    return found + [LOGGERS.maker(name, __package__ or "")() for name in options.log]
