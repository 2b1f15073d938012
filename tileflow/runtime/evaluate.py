"""Measuring: the mean loss and the accuracy of a model's current weights over a whole data set."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..graph import TensorType
from ..loss import CLASS_LOSSES
from ..options import Options
from .data import DataLoader, Dataset
from .model import InferenceModel, Progress, TrainingModel


class Evaluator:
    """Measures what a TrainingModel has learned, without changing anything. Programs are kept between calls."""

    def __init__(self, model: TrainingModel, options: Options, progress: Progress | None = None, stop: Callable[[], bool] | None = None) -> None:
        self.model, self.options, self.progress, self.stop = model, options, progress, stop
        self._evaluator: InferenceModel | None = None

    def measure(self, data: Dataset) -> tuple[float | None, float | None]:
        """(mean loss over samples, accuracy); None where not defined, and where `stop` became true."""
        if self._evaluator is None:
            options = self.options.clone()
            options.gradient_accumulation, options.output_mode = 1, "all"
            options.device_iterations = max(1, min(64, len(data) // options.micro_batch_size))
            options.on_new_shape = "compile"
            self._evaluator = InferenceModel(self.model.source, options, self.progress)
            self._evaluator.stop = self.stop
        evaluator = self._evaluator
        loader = DataLoader(evaluator.options, data, shuffle=False, pad_last=True)
        total = loss = 0.0
        correct, seen = 0, 0
        for batch in loader:
            outputs = evaluator(*batch[:-1])
            scores = outputs[0] if isinstance(outputs, tuple) else outputs
            real = min(len(batch[-1]), len(data) - seen)
            seen += real
            loss += _loss(self.model.loss_name, scores[:real], batch[-1][:real]) * real
            total += real
            if self.model.loss_name in CLASS_LOSSES:
                correct += int(np.count_nonzero(scores[:real].argmax(axis=1) == batch[-1][:real]))
            if self.stop is not None and self.stop():
                return None, None
        mean = loss / total if total else None
        return (None if mean is None or np.isnan(mean) else mean), (correct / total if self.model.loss_name in CLASS_LOSSES and total else None)


def _loss(name: str, scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean loss of outputs in float64, for reports; NaN for a loss that the model computes itself."""
    x = scores.astype(np.float64)
    if name in CLASS_LOSSES:
        if name == "cross_entropy":
            x = x - x.max(axis=1, keepdims=True)
            x = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
        return float(-np.take_along_axis(x, np.expand_dims(labels, 1), axis=1).mean())
    if name == "mse":
        return float(np.mean((x - labels) ** 2))
    if name == "l1":
        return float(np.mean(np.abs(x - labels)))
    if name == "bce_with_logits":
        return float(np.mean(np.maximum(x, 0) - x * labels + np.log1p(np.exp(-np.abs(x)))))
    return float("nan")


def label_type(loss: str, output: TensorType) -> TensorType:
    """What the labels of a micro-batch must be for a loss over `output`."""
    if loss in CLASS_LOSSES:
        return TensorType("int64", (output.shape[0], *output.shape[2:]))
    return output
