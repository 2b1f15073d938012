"""The rows of a call: how they are divided into micro-batches, and which replicas get which."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..memory.types import TensorType
from ..options.options import Options
from ..program.replicas import Grouping
from ..system.errors import ShapeError, see


class Rows:
    """The rows of a call, by a model's options.

    Args:
        fixed: the size of a micro-batch is that of the options; else it follows from the rows.
    """

    def __init__(self, options: Options, fixed: bool) -> None:
        self._options, self.fixed = options, fixed

    def micro_types(self, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Types of one micro-batch: dimension 0 of every input divided by the micro-batches of a call.

        Raises:
            ShapeError: the rows cannot be divided so.
        """
        o, micro = self._options, self._options.micro_batch_size
        count = o.device_iterations * o.gradient_accumulation * o.input_groups
        factors = {"device_iterations": o.device_iterations, "gradient_accumulation": o.gradient_accumulation}
        if o.replication_factor > 1:
            factors |= {"replication_factor": o.replication_factor} if o.input_group_size == 1 else \
                {"replication_factor / input_group_size": o.input_groups}
        by = " * ".join(f"{name} ({n})" for name, n in factors.items())
        result = []
        for t in types:
            rows = t.shape[0] if t.rank else 1
            if self.fixed and t.rank and rows != micro * count:
                raise ShapeError(
                    f"Invalid batch dimension: the input {list(t.shape)} has {rows} rows, but micro_batch_size was "
                    f"set, so that a call takes {micro * count}: micro_batch_size ({micro}) * {by}; "
                    "give as many, or leave micro_batch_size out, and it follows from the first call."
                    f"{see('batching')}")
            if rows % count or rows == 0:
                raise ShapeError(
                    f"Invalid batch dimension: in the input {list(t.shape)}, the batch dimension ({rows}) must be a "
                    f"positive multiple of {by} = {count}, because it is divided by that to give the "
                    f"micro-batch.{see('batching')}")
            result.append(t if not t.rank else t.with_shape((rows // count, *t.shape[1:])))
        return tuple(result)

    def dealt(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """A call's arrays as the replicas get their rows, [iterations, accumulation, replica, micro-batch]: those of a
        group get the same."""
        o = self._options
        if o.input_group_size == 1:
            return arrays
        group = list(Grouping(o.input_group_type, o.input_group_size).groups(o.replication_factor))
        count = o.device_iterations * o.gradient_accumulation
        rows = (a if a.ndim else a.reshape(1) for a in arrays)
        return [a.reshape(count, o.input_groups, -1, *a.shape[1:])[:, group].reshape(-1, *a.shape[1:]) for a in rows]
