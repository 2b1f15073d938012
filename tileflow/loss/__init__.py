"""Losses: what training minimises, as objects that also say which labels they take and how a whole set is measured."""
from .base import LABELS, Build, FunctionLoss, Loss, RowLosses
from .choose import AS_CHOSEN, ChosenLoss, choose, without_labels
from .classes import ClassLoss
from .head import Head, head_of
from .named import LOSSES, find
from .numbers import NumberLoss
from .own import IdentityLoss
from .soft import SoftClassLoss
from .weighted import WEIGHTS, Part, SeveralLosses, WeightedLoss

__all__ = [
    "AS_CHOSEN", "LABELS", "LOSSES", "WEIGHTS", "Build", "ChosenLoss", "ClassLoss", "FunctionLoss", "Head",
    "IdentityLoss", "Loss", "NumberLoss", "Part", "RowLosses", "SeveralLosses", "SoftClassLoss", "WeightedLoss",
    "choose",
    "find", "head_of", "without_labels",
]
