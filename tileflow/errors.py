"""The error tree. Every message says what is wrong, where (node, layer, ONNX operator), with which values, and how to mend it."""
from __future__ import annotations


class TileflowError(Exception):
    """Anything a user can mend: the command line prints its sentence and exits with code 2."""


class OptionError(TileflowError, ValueError):
    """An option has a wrong type, value or combination, or an options file cannot be read."""


class ModelError(TileflowError, ValueError):
    """A model file cannot be read or is not a valid ONNX model."""


class UnsupportedError(ModelError):
    """The model uses operators, types or attributes that tileflow does not have; the message lists all of them."""


class ShapeError(TileflowError, ValueError):
    """Shapes do not fit together."""


class TypeMismatchError(TileflowError, TypeError):
    """Element types do not fit together."""


class DataError(TileflowError, ValueError):
    """Training data is missing, malformed or out of range."""


class CheckpointError(TileflowError):
    """A checkpoint cannot be written, read, or does not belong to this model."""


class TrainingError(TileflowError, RuntimeError):
    """Training cannot go on: the loss is not finite, a label is out of range."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training, after the state was saved: the message says where and how to go on."""
