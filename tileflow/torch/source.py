"""A module as a source of graphs: exported, checked and imported once for each form of calls, shapes and modes."""
from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from ..graph import FLOATS, Graph, TensorType
from ..graph.copy import copied
from ..importers.onnx import Imported, import_graph
from ..options.options import Options
from ..precision.types import Precision
from ..runtime.data import Dataset
from ..runtime.executable import Recent
from ..runtime.host import Host, Progress
from ..runtime.source import Flat, Signature
from ..runtime.stored import Stored
from ..state import fitting
from ..system.errors import TileflowError, TileflowWarning, UnsupportedError
from ..system.nested import Form
from ..system.text import one_line
from .amend import amend
from .annotations import Exporter
from .check import check
from .decided import check_decided
from .export import LONGEST, Exported, exported
from .homes import Homed, own_arrays
from .observed import Observed, observe


class TorchSource(Flat):
    """A module before the types of its inputs are known.

    form, example: of the call for which a graph is wanted next. trained: what the optimizer updates, by the names of
    the session; None: all that require gradients. by: that exporter only.
    """

    has_graph: ClassVar[bool] = False

    def __init__(
        self, module: torch.nn.Module, options: Options, homed: Homed, training: bool, by: Exporter | None = None
    ) -> None:
        self.module, self.options, self.homed, self.training, self.by = module, options, homed, training, by
        self.precision = Precision.of(options)
        self.session = homed.session
        self.stored: tuple[Stored, ...] = ()
        self.form: Form | None = None
        self.example: Sequence[torch.Tensor] = ()
        self.trained: frozenset[str] | None = None
        self.made: Exported | None = None
        """The last export."""
        self._imported: Recent[tuple[TensorType, ...], tuple[Exported, Imported]] = Recent()

    def with_options(self, options: Options) -> TorchSource:
        return TorchSource(self.module, options, self.homed, self.training, self.by)

    @property
    def input_count(self) -> int | None:
        return None if self.form is None else len(self.form.tensors)

    def input_dtype(self, index: int, given: np.ndarray) -> str:
        """As given, but for floats where the precision changes the types of all."""
        name = given.dtype.name
        return (self.precision.float_dtype or name) if name in FLOATS else name

    def exported(self, inputs: Sequence[TensorType]) -> tuple[Exported, Imported]:
        """The module for a micro-batch of these types, exported and checked if need be.

        Raises:
            UnsupportedError: no exporter takes it, an operator is missing, or the exported model computes something
                else.
        """
        return self._imported.get(tuple(inputs), lambda: self._export(inputs))

    @torch.inference_mode(False)
    def _export(self, inputs: Sequence[TensorType]) -> tuple[Exported, Imported]:
        assert self.form is not None
        given = [x.clone() if x.is_inference() else x for x in self.example]
        micro = [x[:t.shape[0]] if t.rank and t.shape[0] < x.shape[0] else x
                 for x, t in zip(given, inputs, strict=True)]
        seen = observe(self.module, self.form, micro, self.training)
        own = [TensorType(t.dtype if t.dtype not in FLOATS else str(x.dtype).removeprefix("torch."), t.shape)
               for t, x in zip(inputs, micro, strict=True)]
        made, plain = self._read(micro, seen, own)
        if made.reason:
            warnings.warn(
                f"{type(self.module).__name__} is exported by TorchScript, for {made.reason}.",
                TileflowWarning,
                stacklevel=2,
            )
        if made.by == "TorchScript":
            check_decided(self.module, self.form, micro, seen, self.training)
        check(self.module, self.form, micro, seen, made, plain, Host.of(self.options))
        return made, self._import(made, inputs)

    def _read(self, micro: Sequence[torch.Tensor], seen: Observed,
              own: Sequence[TensorType]) -> tuple[Exported, Imported]:
        """The module exported, and as a graph of its own types. Of what torch.export writes wrong or in operators that
        are missing here, TorchScript may write it otherwise."""
        assert self.form is not None
        held = frozenset(name for name in self.homed.canonical.values() if name in self.session)
        rest = self.training, self.homed.canonical, held
        made = exported(self.module, self.form, micro, seen, *rest, self.by)
        try:
            return made, self._import(made, own, plain=True)
        except TileflowError as error:
            if self.by is not None or made.by == "TorchScript":
                raise
            try:
                other = exported(self.module, self.form, micro, seen, *rest, "TorchScript")
                plain = self._import(other, own, plain=True)
            except TileflowError:
                raise error from None
            return replace(other, reason=f"torch.export: {one_line(str(error), LONGEST).rstrip('.')}"), plain

    def _import(self, made: Exported, inputs: Sequence[TensorType], plain: bool = False) -> Imported:
        """The exported model as a graph; `plain`: of the module's own types."""
        o = self.options
        types = {port.name: t for port, t in zip(made.model.inputs, inputs, strict=True)}
        if plain:
            return import_graph(made.model, input_types=types, training=None)
        return import_graph(made.model, input_types=types, training=None, float_dtype=self.precision.float_dtype,
                            freeze=o.frozen_patterns if self.training else (), stored=self.precision.stored)

    def graph(self, inputs: Sequence[TensorType], training: bool) -> tuple[Graph, Mapping[str, np.ndarray]]:
        made, imported = self.exported(inputs)
        self.made = made
        graph = copied(imported.graph)
        amend(graph, made)
        wanted = {b for b, p in self.named_parameters() if p.requires_grad}
        for state in graph.parameters:
            state.trainable = (
                state.trainable and state.name in wanted and (self.trained is None or state.name in self.trained)
            )
        return graph, self._initial(graph, imported)

    def _initial(self, graph: Graph, imported: Imported) -> Mapping[str, np.ndarray]:
        """What states start with: the module's own elements, for tracing moves those in the file."""
        return dict(imported.weights) | own_arrays(self.module, self.homed.canonical, {s.name for s in graph.states})

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """The module's parameters, by what the session calls them."""
        return [(self.homed.canonical[path], p) for path, p in self.module.named_parameters(remove_duplicate=False)]

    def pieces(self, host: Host, progress: Progress | None = None) -> None:
        """Exports have static shapes."""

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        graph, _ = self.graph(inputs, training)
        return Signature.of({v.name: v.type for v in graph.inputs}, graph.outputs)

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """A module takes the shapes of the first call."""
        return {}

    def names_for(self, data: Dataset) -> list[str]:
        return [p.name for p in inspect.signature(self.module.forward).parameters.values()][:len(data.fields)]

    def attach(self) -> None:
        """The session has the states now: the module's tensors become views of them."""
        self.homed.attach()

    def parameter_names(self) -> Mapping[int, str]:
        return self.homed.names()

    def state_dict(self, training: bool) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by the session's names, all after the same whole update; of a module
        that nothing was compiled of yet, its own."""
        found = self.session.snapshot("parameter", "buffer")
        return found or own_arrays(self.module, self.homed.canonical, {*self.homed.canonical.values()})

    def load_state_dict(self, tensors: Mapping[str, Any], training: bool, strict: bool) -> None:
        """Overwrite parameters and buffers (DataError where they do not fit: then none is)."""
        if not self.session.names("parameter", "buffer"):
            raise UnsupportedError("The model has not been compiled yet: load the weights into the module.")
        self.session.put(
            fitting({n: self.session[n] for n in self.session.names("parameter", "buffer")}, tensors, strict)
        )
