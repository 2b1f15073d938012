"""Models that compute outputs."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..memory.types import TensorType
from ..options.options import Options
from ..system.errors import OptionError, UnsupportedError
from ..system.nested import Results
from ..system.text import one_line
from .dynamic import PieceCalls
from .host import Progress
from .model import NO_NAMES, Model
from .source import Source

if TYPE_CHECKING:
    from .. import compiler
    from ..graph import Graph
    from ..program.batching import Batching


class InferenceModel(Model):
    """A model that computes outputs. Shares its weights with every other model of the same source."""

    def __init__(self, source: Source, options: Options, progress: Progress | None = None) -> None:
        if options.gradient_accumulation != 1:
            raise OptionError("You must set gradient_accumulation to 1 or leave it as its default value (1) when "
                              "running an inference model.")
        super().__init__(source, options, progress)
        self.piecewise = PieceCalls(source, self.options, self.programs, self.anchors, progress)

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        from .. import compiler
        from ..compiler import CompileOptions
        chosen = CompileOptions.of(self.options, self.source.precision)
        if self.anchors.gradients:
            raise OptionError("Option anchored_tensors: inference has no gradient of "
                              f"{one_line(self.anchors.gradients[0])}; anchor it in a training model.")
        return compiler.inference(graph, batching, chosen, anchors=list(self.anchors.found.values()))

    @property
    def in_pieces(self) -> bool:
        """The model was found to run in pieces: sizes, branches or turns follow from data, and there is no program."""
        return self.piecewise.pieces is not None

    @property
    def output_names(self) -> list[str]:
        """The names of what a call returns, once the model was called or compiled."""
        pieces = self.piecewise.pieces
        return pieces.outputs if pieces is not None else [v.name for v in self.engine.outputs]

    def _shaped_by(self) -> list[Any] | None:
        return self._shaped_by_source()

    def destroy(self) -> None:
        """Forget the compiled programs, so that the next call may have other shapes. Weights stay."""
        super().destroy()
        self.piecewise.forget()

    def _call(self, args: Sequence[Any], named: Mapping[str, Any] = NO_NAMES) -> tuple[list[Any], Results | None]:
        if not self.piecewise.needed():
            try:
                return super()._call(args, named)
            except UnsupportedError as error:
                from ..importers.onnx import DynamicOperandError
                if not isinstance(error, DynamicOperandError) or not self.piecewise.cut():
                    raise error from None
        return self.source.session.turn.call(self.piecewise, self.source.arranged(args, named)[1]), None
