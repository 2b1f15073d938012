"""Measuring: the loss and the metrics of a model's current weights over a whole data set, by a compiled program with the loss in it."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..collective import current, in_turns
from ..feed.items import RowStream
from ..loss import WEIGHTS, IdentityLoss, Loss, WeightedLoss
from ..memory import budget
from ..memory.types import TensorType
from ..metrics import Collector, Part
from ..metrics.named import Function
from ..options.options import Options
from .data import DataLoader, Dataset
from .findings import Findings
from .host import Progress
from .loss_model import LossModel
from .rows import Rows
from .source import Source
from .training_model import TrainingModel

if TYPE_CHECKING:
    from .. import compiler
    from ..graph import Builder, Graph, Value
    from ..program.batching import Batching

MOST_MICRO_BATCHES = 64
"""Micro-batches of one call."""


PIECE = 64
"""Rows, rounded up to micro-batches, whose figures are added up before they are added to all others: an order that
knows no processes."""


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
        from .. import compiler
        from ..compiler import CompileOptions
        from ..graph import Value
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

    def _shaped_by(self) -> list[Any] | None:
        return self._shaped_by_source()

    def _known(self) -> dict[str, Any]:
        return {**super()._known(), "by_rows": self.by_rows, "weight": self._weight, "prediction": self._prediction}

    def _recall(self, known: Mapping[str, Any]) -> None:
        super()._recall(known)
        self.by_rows, self._weight, self._prediction = known["by_rows"], known["weight"], known["prediction"]

    def measure(self, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One call: the model's first output [rows, ...] that is not its loss, the losses and what they weigh, float64 [rows]
        (or [1]: of all rows together)."""
        shown, _ = self._call(arrays)
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

    def measure(self, data: Dataset,
                metrics: tuple[str | Function, ...] | None = None) -> dict[str, float | None] | None:
        """`loss` (the mean over all that counts) and the metrics by name (by default those of all measurements), None
        where not defined; None where `stop` became true.

        Every row counts: the last batch is filled up where the loss has a value for each row, and a shorter one where
        it has not. Processes that train together compute calls in turns; what each piece of the rows says is added up
        in their order, so that figures are those of one process.
        """
        evaluation = self.prepare(data)
        loader = self._loader_of(data, evaluation)
        collector = Collector(self.metrics if metrics is None else metrics, evaluation.view, self.model.loss_name)
        findings, self.findings = Findings(evaluation.view), None
        total = weight = 0.0
        seen, group = 0, current()
        loader.turn = (0, 1) if group is None else (group.rank, group.size)
        for said in in_turns(group, self._said(data, loader, evaluation, collector, findings),
                             "the figures of test data"):
            first, width = not seen, 3 + len(collector.metrics)
            for i in range(0, len(said), width):
                (sums,), matrix, worst, *measured = said[i:i + width]
                losses, weights, rows = sums.tolist()
                findings.add(seen, (matrix, worst))
                collector.add(measured)
                total, weight, seen = total + losses, weight + weights, seen + int(rows)
            if first and loader.rows is not None:                        # what is kept of all, and joined
                budget.require(2 * len(loader) * collector.held,
                               f"Measuring {', '.join(collector.metrics)} on {len(data):,} rows",
                               "leave out auc and functions of all rows, or measure on fewer rows")
        if self.stop is not None and (self.stop()
                                      if group is None else group.any(self.stop(), "the end of a measurement")):
            return None
        self.findings, self.version = findings, self.model.source.session.version
        mean = total / weight if weight else math.nan
        return {"loss": None if math.isnan(mean) else mean, **collector.values()}

    def _said(self, data: Dataset, loader: DataLoader, evaluation: EvaluationModel, collector: Collector,
              findings: Findings) -> Iterator[list[Part]]:
        """What each call of this process's turns says, piece after piece: the sums of losses and of what they weigh,
        and the number of rows; what there is to find; each metric's part."""
        size, pieces = loader.combined_batch_size, evaluation.by_rows and not data.whole
        for place, batch in loader.places():
            real = (data.counted(batch) if loader.is_stream or data.whole
                    else min(len(batch[0]), len(data) - place * size))
            if pieces and loader.is_stream and real < size:              # which nobody foresaw
                batch = tuple(a[np.minimum(np.arange(size), real - 1)] for a in batch)
            output, losses, weights = evaluation.measure(*batch)
            labels = data.labels_of(batch)
            wanted = np.zeros((real, 0)) if labels is None else labels
            said: list[Part] = []
            step = _piece(self.model.options) * self.model.options.micro_batch_size if pieces else max(real, 1)
            for at in range(0, real, step):
                rows = slice(at, min(at + step, real))
                found = findings.parts(tuple(a[rows] for a in batch), output[rows], losses[rows],
                                       None if labels is None else labels[rows]) \
                    if pieces else [Part(), Part()]
                sums = np.array([losses[rows].sum(), weights[rows].sum(), rows.stop - at], np.float64)
                said += [(sums,), *found, *collector.parts(output[rows], wanted[rows])]
            yield said
            if self.stop is not None and self.stop():
                return

    def close(self) -> None:
        """End worker processes that read data; the next measurement starts others."""
        if self._loader is not None:
            self._loader.terminate()

    def _loader_of(self, data: Dataset, evaluation: EvaluationModel) -> DataLoader:
        """The rows in their order; worker processes are kept from one measurement to the next."""
        if self._loader is None or self._loader.dataset is not data:
            # A stream may have fewer rows than it says.
            filled = evaluation.by_rows and not isinstance(data.source, RowStream)
            self._loader = DataLoader(evaluation.options, data, shuffle=False, pad_last=filled, drop_last=False)
        return self._loader

    def prepare(self, data: Dataset) -> EvaluationModel:
        """The compiled program that measures these data."""
        weighted = WEIGHTS in data.more
        made = self._evaluation
        if made is None or (isinstance(self.model.loss, WeightedLoss)
                            and isinstance(made.loss, WeightedLoss) != weighted):
            made = self._make(1 if data.whole else self._micro_batches(data), data)
            self._evaluation = made = made if made.by_rows else self._make(1, data)
        return made

    def _micro_batches(self, data: Dataset) -> int:
        """Micro-batches of a call: whole pieces, or all of fewer rows; as many calls for each of the processes."""
        options, group = self.model.options, current()
        total, piece = -(-len(data) // options.micro_batch_size), _piece(options)
        if total <= piece:
            return total
        count = 1 if group is None or data.may_vary else group.size  # where lengths change, a call's rows have one
        turns = count * -(-total // (count * MOST_MICRO_BATCHES))
        return -(-total // (turns * piece)) * piece

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


def _piece(options: Options) -> int:
    """Micro-batches of a piece."""
    return max(1, -(-PIECE // options.micro_batch_size))
