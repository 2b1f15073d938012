"""The figures of a run's epochs: arrays by name, a table, a CSV file."""
from __future__ import annotations

import csv
import io
import os
from typing import Any

import numpy as np

from ..system.errors import OptionError
from ..system.files import atomic_write_bytes


class History(dict[str, np.ndarray]):
    """Figures by name, each an array of float64, one element per epoch: `loss`, `test_loss`. `val_loss` is another name
    of `test_loss`."""

    def __missing__(self, name: str) -> np.ndarray:
        if name.startswith("val_"):
            return self[f"test_{name.removeprefix('val_')}"]
        raise KeyError(name)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table as CSV, a row per epoch; what is not known is empty. With a path it is written there, all or
        nothing.

        Raises:
            CheckpointError: it cannot be written.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self)
        for row in zip(*self.values(), strict=True):
            writer.writerow("" if x != x else int(x) if x == int(x) and name in ("epoch", "skipped") else float(x)
                            for name, x in zip(self, row, strict=True))
        if path is not None:
            atomic_write_bytes(path, text.getvalue().encode(errors="replace"))
        return text.getvalue()

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame whose index is the epoch.

        Raises:
            OptionError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise OptionError("A DataFrame needs pandas: pip install pandas; "
                              "history.to_csv() needs nothing more.") from None
        return pandas.DataFrame(dict(self)).set_index("epoch")
