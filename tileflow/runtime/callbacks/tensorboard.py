"""Logs that TensorBoard shows."""
from __future__ import annotations

import math
import struct
import time
from collections.abc import Mapping
from typing import Any

from ...report.png import picture, png
from ...report.statistics import Tensor
from ...system.errors import CheckpointError, OptionError
from ...system.text import one_line
from .appended import AppendedFile
from .logs import Logs

FOLDER, EVENTS = "tensorboard", "events.out.tfevents.1.tileflow"
PICTURES = 8


class TensorBoardLogger(AppendedFile):
    """Events for TensorBoard, in `tensorboard/` of the run's folder: loss and learning rate after every so many
    updates, all figures of evaluations and epochs, the settings as hyperparameters, magnitudes of gradients and weights
    where the option statistics measures them, and, where inputs are images, the first of them. `tensorboard --logdir
    runs` compares runs.

    Args:
        every: updates between two losses.

    Raises:
        OptionError: tensorboardX is not installed (pip install 'tileflow-engine[tensorboard]').
    """

    def __init__(self, every: int = 50) -> None:
        try:
            from tensorboardX import record_writer, summary
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError:
            raise OptionError("Logs for TensorBoard need tensorboardX: "
                              "pip install 'tileflow-engine[tensorboard]'.") from None
        super().__init__(f"{FOLDER}/{EVENTS}")
        self.every = every
        self._checksum, self._summary = record_writer.masked_crc32c, summary
        self._event, self._protos = event_pb2.Event, summary_pb2

    def on_train_begin(self, logs: Logs) -> None:
        try:
            self.path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"Cannot make the folder {self.path.parent}: {error.strerror or error}.") from None
        super().on_train_begin(logs)
        if not self.length:
            self._put(file_version="brain.Event:2")
            settings = {n: x if isinstance(x, (bool, int, float)) else one_line(x)
                        for n, x in self.run.options.to_dict().items() if x is not None}
            for one in self._summary.hparams(settings, dict.fromkeys(map(one_line, self.run.measures), 0.0)):
                self._put(summary=one)
            self._pictures()

    def _kept(self) -> bytes:
        """What the file had at the checkpoint, in whole records."""
        found = self._read()
        return found if len(found) == self.length else b""

    def _pictures(self) -> None:
        for i, row in enumerate(self.run.example(PICTURES)):
            pixels = picture(row)
            if pixels is not None:
                image = self._protos.Summary.Image(height=pixels.shape[0], width=pixels.shape[1],
                                                   colorspace=1 if pixels.ndim == 2 else 3,
                                                   encoded_image_string=png(pixels))
                self._put(summary=self._protos.Summary(value=[self._protos.Summary.Value(tag=f"inputs/{i}",
                                                                                         image=image)]))

    def _put(self, **event: Any) -> None:
        """An event (of the last update, where it does not say) as a record: its length, a checksum of that, itself, a
        checksum."""
        data = self._event(**{"wall_time": time.time(), "step": self.run.updates, **event}).SerializeToString()
        length = struct.pack("<Q", len(data))
        self.put(length + struct.pack("<I", self._checksum(length)) + data + struct.pack("<I", self._checksum(data)))

    def _scalars(self, figures: Mapping[str, float], start: str = "") -> None:
        values = [self._protos.Summary.Value(tag=start + one_line(name), simple_value=float(x))
                  for name, x in figures.items()
                  if isinstance(x, (int, float))]
        if values:
            self._put(summary=self._protos.Summary(value=values))

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        first = self.run.updates - len(logs["losses"]) + 1
        for i in range(-first % self.every, len(logs["losses"]), self.every):
            values = {"update/loss": float(logs["losses"][i]), "update/learning_rate": float(logs["learning_rates"][i])}
            event = [self._protos.Summary.Value(tag=n, simple_value=x) for n, x in values.items() if not math.isnan(x)]
            self._put(step=first + i, summary=self._protos.Summary(value=event))
        for tensor in self.run.tensors if self.run.tensors and self.run.tensors[0].update == self.run.updates else ():
            self._put(summary=self._histogram(tensor))

    def _histogram(self, t: Tensor) -> Any:
        """How many elements have which magnitude, by powers of two."""
        limits = [2.0 ** e for e in t.exponents]
        histogram = self._protos.HistogramProto(min=t.smallest, max=t.largest, num=t.elements, sum_squares=t.norm ** 2,
                                                bucket_limit=[limits[0] if limits else 1.0, *(2 * x for x in limits)],
                                                bucket=[t.zeros, *t.exponents.values()])
        return self._protos.Summary(value=[self._protos.Summary.Value(tag=f"{t.kind}/{one_line(t.name)}",
                                                                      histo=histogram)])

    def on_evaluate_end(self, logs: Logs) -> None:
        self._scalars(logs, "evaluation/")
        super().on_evaluate_end(logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._scalars(logs)
        super().on_epoch_end(epoch, logs)
