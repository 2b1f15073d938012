"""Metrics over whole data sets, by name or as functions: streamed, in float64, with scikit-learn's meanings."""
from .base import Metric, Part
from .classes import Confusion
from .named import METRICS, Collector, check_names, defaults
from .view import OutputMeaning, accuracy_counts

__all__ = ["METRICS", "Collector", "Confusion", "Metric", "OutputMeaning", "Part", "accuracy_counts", "check_names",
           "defaults"]
