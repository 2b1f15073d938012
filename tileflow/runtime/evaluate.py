"""Measuring: the loss and the metrics of a model's current weights over a whole data set, by a compiled program with the loss in it."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import compiler
from ..compiler import CompileOptions
from ..feed.items import Stream
from ..graph import Builder, Graph, TensorType, Value
from ..loss import WEIGHTS, IdentityLoss, Loss, WeightedLoss
from ..memory import budget
from ..metrics import Collector
from ..metrics.named import Function
from ..options.options import Options
from ..program.batching import Batching
from .data import DataLoader, Dataset
from .findings import Findings
from .host import Progress
from .loss_model import LossModel
from .rows import Rows
from .source import Source
from .training_model import TrainingModel

MOST_MICRO_BATCHES = 64
"""Micro-batches of one call."""


class EvaluationModel(LossModel):
    """The model in inference form, with the loss of each row as a further output; or of each micro-batch, where a row alone has none."""

    def __init__(self, source: Source, options: Options, loss: Loss, progress: Progress | None = None) -> None:
        one = options.clone(gradient_accumulation=1, replication_factor=1, input_group_size=1, replica_grouping={}, output_mode="all",
                            on_new_shape="compile", strategy="none")
        super().__init__(source, one, loss, progress)
        self.rows = Rows(self.options, fixed=False)                 # the last batch may be shorter
        self.whole = False
        """Arrays of a call are fed as they are, whatever micro_batch_size says."""
        self.by_rows = True
        self._weight: float | None = None
        self._prediction = 0

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        loss = self._fitted(graph, more)
        own = loss.place if isinstance(loss, IdentityLoss) else None
        self._prediction = next((i for i in range(len(graph.outputs)) if i != own), 0)

        def measures(b: Builder, outputs: Sequence[Value]) -> list[Value]:
            rows = loss.rows(b, outputs)
            self.by_rows = rows is not None
            if rows is None:
                return [loss(b, outputs)]
            self._weight = rows.weight if isinstance(rows.weight, float) else None
            return [rows.total, *([rows.weight] if isinstance(rows.weight, Value) else [])]
        options = CompileOptions(self.source.precision, self.options.serial_splits, writes=False)
        return compiler.inference(graph, batching, options, measures=measures)

    def measure(self, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One call: the model's first output [rows, ...] that is not its loss, the losses and what they weigh, float64 [rows]
        (or [1]: of all rows together)."""
        shown = self._call(arrays)
        output = np.atleast_1d(shown[self._prediction])             # a model may give nothing but its loss
        if not self.by_rows:
            rows = len(arrays[self._own_count(len(arrays))] if self.whole and self.loss.takes != "nothing"
                       else arrays[0])
            return output, np.reshape(shown[-1], -1).astype(np.float64) * rows, np.array([rows], np.float64)
        if self._weight is not None:
            return output, shown[-1].astype(np.float64), np.full(len(shown[-1]), self._weight)
        return output, shown[-2].astype(np.float64), shown[-1].astype(np.float64)


class Evaluator:
    """Measures what a TrainingModel has learned, without changing anything. Programs are kept between calls."""

    def __init__(self, model: TrainingModel, progress: Progress | None = None, stop: Callable[[], bool] | None = None) -> None:
        self.model, self.progress, self.stop = model, progress, stop
        self.metrics: tuple[str | Function, ...] = ()
        self.findings: Findings | None = None
        """What the last measurement found besides, and of which state of the weights."""
        self.version = -1
        self._evaluation: EvaluationModel | None = None
        self._loader: DataLoader | None = None

    def find(self, data: Dataset) -> None:
        """Look for findings in data, of the weights as they are now, where the last measurement was of others."""
        if self.findings is None or self.version != self.model.source.session.version:
            self.measure(data, ())

    def measure(self, data: Dataset, metrics: tuple[str | Function, ...] | None = None) -> dict[str, float | None] | None:
        """`loss` (the mean over all that counts) and the metrics by name (by default those of all measurements), None where not defined; None
        where `stop` became true.

        Every row counts: the last batch is filled up where the loss has a value for each row, and a shorter one where it has not.
        """
        evaluation = self.prepare(data)
        loader = self._loader_of(data, evaluation)
        collector = Collector(self.metrics if metrics is None else metrics, evaluation.view, self.model.loss_name)
        findings, self.findings = Findings(evaluation.view), None
        total = weight = 0.0
        seen = 0
        for batch in loader:
            real = data.counted(batch) if loader.is_stream or data.whole else min(len(batch[0]), len(data) - seen)
            seen += real
            if not data.whole and loader.is_stream and evaluation.by_rows and real < loader.combined_batch_size:         # which nobody foresaw
                batch = tuple(a[np.minimum(np.arange(loader.combined_batch_size), real - 1)] for a in batch)
            output, losses, weights = evaluation.measure(*batch)
            labels = data.labels_of(batch)
            if evaluation.by_rows and not data.whole:
                findings.update(seen - real, batch, output[:real], losses[:real],
                                None if labels is None else labels[:real])
            total += float(losses[:real].sum())
            weight += float(weights[:real].sum())
            collector.update(output[:real], np.zeros((real, 0)) if labels is None else labels[:real])
            if seen == real and loader.rows is not None:                 # after the first batch: what is kept of all, and joined
                budget.require(2 * len(loader) * collector.held, f"Measuring {', '.join(collector.metrics)} on {len(data):,} rows",
                               "leave out auc and functions of all rows, or measure on fewer rows")
            if self.stop is not None and self.stop():
                return None
        self.findings, self.version = findings, self.model.source.session.version
        mean = total / weight if weight else math.nan
        return {"loss": None if math.isnan(mean) else mean, **collector.values()}

    def close(self) -> None:
        """End worker processes that read data; the next measurement starts others."""
        if self._loader is not None:
            self._loader.terminate()

    def _loader_of(self, data: Dataset, evaluation: EvaluationModel) -> DataLoader:
        """The rows in their order; worker processes are kept from one measurement to the next."""
        if self._loader is None or self._loader.dataset is not data:
            filled = evaluation.by_rows and not isinstance(data.source, Stream)           # which may have fewer rows than it says
            self._loader = DataLoader(evaluation.options, data, shuffle=False, pad_last=filled, drop_last=False)
        return self._loader

    def prepare(self, data: Dataset) -> EvaluationModel:
        """The compiled program that measures these data."""
        weighted = WEIGHTS in data.more
        made = self._evaluation
        if made is None or (isinstance(self.model.loss, WeightedLoss)
                            and isinstance(made.loss, WeightedLoss) != weighted):
            most = 1 if data.whole else MOST_MICRO_BATCHES
            made = self._make(max(1, min(most, len(data) // self.model.options.micro_batch_size)), data)
            self._evaluation = made = made if made.by_rows else self._make(1, data)
        return made

    def _make(self, micro_batches: int, data: Dataset) -> EvaluationModel:
        options = self.model.options.clone(device_iterations=micro_batches, max_batches=None)
        loss = self.model.loss
        if isinstance(loss, WeightedLoss) and WEIGHTS not in data.more:
            loss = loss.inner
        made = EvaluationModel(self.model.source, options, loss, self.progress)
        made.stop, made.whole = self.stop, data.whole
        example: Any = data.example(np.zeros(micro_batches * options.micro_batch_size, np.int64))
        made.compile(*example)
        return made
