"""Modules' methods that say in which element type parameters are stored. In a file of their own: a class that has a method `float` cannot
annotate with it."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from ..graph import FLOATS
from ..memory.tensor import check_reach
from ..system.errors import OptionError, TypeMismatchError
from .parameter import Parameter


class StorageTypes:
    """What modules have from here, named as torch.nn.Module's methods.

    The types hold for the parameters below the module, whatever the option `precision` says (but for "64", which computes all in float64).
    Running statistics stay float32 unless the option `running_statistics_always_float` is off.
    """

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        raise NotImplementedError

    def to(self, dtype: Any) -> Self:
        """Store parameters and buffers as this floating type ("float16", "bfloat16", "float32", "float64"); returns the module.

        Raises:
            TypeMismatchError: it is no floating type.
            DataError: a parameter holds numbers that the type does not reach.
            OptionError: a compiled model has the parameters already.
        """
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
        if name not in FLOATS:
            raise TypeMismatchError(f"Parameters are stored as {', '.join(FLOATS)}, not as {name}.")
        found = [(path, p) for path, p in self.named_parameters() if p.is_float]
        taken = next((path for path, p in found if p.is_attached and p.dtype != name), None)
        if taken is not None:
            raise OptionError(f"{type(self).__name__} cannot become {name}: a compiled model already has {taken!r} in its type. Say so before the "
                              "first model of the network runs, or load its state_dict() into a new network.")
        for path, p in found:
            check_reach(p.data, name, path)
        for _, p in found:
            p.store_as(name)
        return self

    def half(self) -> Self:
        """Store parameters as float16."""
        return self.to("float16")

    def bfloat16(self) -> Self:
        """Store parameters as bfloat16."""
        return self.to("bfloat16")

    def float(self) -> Self:
        """Store parameters as float32."""
        return self.to("float32")

    def double(self) -> Self:
        """Store parameters as float64."""
        return self.to("float64")
