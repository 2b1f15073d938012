"""Callbacks: what watches and steers a run, with the field's names; a file each, and `base.py` is all that the loop
knows of them."""
from .base import Callback
from .early_stopping import EarlyStopping
from .lambdas import LambdaCallback
from .limits import MaxTime, MaxUpdates
from .loggers import CSVLogger, JSONLogger
from .logs import Logs
from .model_checkpoint import ModelCheckpoint
from .progress import ProgressBar
from .reduce_lr import ReduceLROnPlateau
from .run import TrainingRun
from .tensorboard import TensorBoardLogger
from .tracker import Tracker

__all__ = [
    "CSVLogger", "Callback", "EarlyStopping", "JSONLogger", "LambdaCallback", "Logs", "MaxTime", "MaxUpdates",
    "ModelCheckpoint", "ProgressBar", "ReduceLROnPlateau", "TensorBoardLogger", "Tracker", "TrainingRun",
]
