"""Losses: what training minimises, as objects that also say which labels they take and how a whole set is measured."""
from .base import LABELS, Build, FunctionLoss, Loss, RowLosses
from .choose import AS_CHOSEN, ChosenLoss, choose, without_labels
from .classes import ClassLoss
from .head import Ending, Head, Output, ending_of, head_of
from .named import LOSSES, find
from .numbers import NumberLoss
from .own import IdentityLoss
from .soft import SoftClassLoss
from .weighted import WEIGHTS, OutputLoss, SeveralLosses, WeightedLoss

__all__ = [
    "AS_CHOSEN", "LABELS", "LOSSES", "WEIGHTS", "Build", "ChosenLoss", "ClassLoss", "Ending", "FunctionLoss", "Head",
    "IdentityLoss", "Loss", "NumberLoss", "Output", "OutputLoss", "RowLosses", "SeveralLosses", "SoftClassLoss",
    "WeightedLoss", "choose", "ending_of",
    "find", "head_of", "without_labels",
]
