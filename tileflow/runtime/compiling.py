"""What is compiled for a model's calls: programs by the types of their arrays, out of executables, out of what earlier
starts kept, or made now."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..executable.engine import Engine
from ..memory.types import TensorType, type_of
from ..options.options import Options
from ..program.batching import Batching
from ..system.nested import Form, Results
from . import front, outputs
from .arrays import check_inputs
from .executable import CallTypes, keeps, kept_engine, make_engine
from .forms import nesting_of
from .host import Host, Progress
from .image_key import program_digest
from .onnx_source import OnnxSource
from .outputs import Anchors
from .programs import Compiled, Programs, later, listeners
from .rows import Rows
from .source import Source, written_type
from .stored import Stored, compiled_options

if TYPE_CHECKING:
    from .. import compiler
    from ..graph import Graph
    from ..lower.plan import Plan
    from ..program.program import Program

Begun = tuple["Graph", Mapping[str, np.ndarray], tuple[TensorType, ...], int]
"""What a program is made from: a graph, what its states start with, the types of a micro-batch's arrays, and how many
of these are its inputs; those that follow are for the loss."""
R = TypeVar("R")


class CompilingModel:
    """A model as what its calls run: which program is theirs, and how it comes to be. `Model` calls it.

    rows: how a call's rows are divided. programs: what was compiled. anchors: values within the model that calls keep.
    """

    training = False

    def __init__(self, source: Source, options: Options, progress: Progress | None = None) -> None:
        self.source, self.options = source, options.clone().freeze()
        self.progress = progress
        # inference may use another micro-batch than a run's file of options says
        self.rows = Rows(self.options, fixed=self.options.given("micro_batch_size", files=self.training))
        self.programs = Programs(self.options, self.rows)
        self.anchors = Anchors()
        self._sought: tuple[tuple[TensorType, ...], front.KeptPlace | None] | None = None
        """The entry that was sought last, until its program is made."""
        self._form: Form | None = None
        """How the arguments of the call under way are nested; None: arrays one after the other."""
        self._results: Results | None = None
        """How results are nested of the program that was made last; None: one, or several in a tuple."""

    @property
    def program(self) -> Program:
        """The compiled Program (TileflowError before the first call or `compile`)."""
        return self.programs.required().program

    @property
    def compilation(self) -> compiler.Compilation:
        """The compilation's steps and times."""
        return self.programs.required().compilation

    @property
    def engine(self) -> Engine:
        """What runs the compiled Program."""
        return self.programs.required().engine

    @property
    def plan(self) -> Plan:
        """The compiled Program as it is lowered for this computer: lowered anew, for an engine keeps none."""
        from .lowering import plan_of
        return plan_of(self.program, self._host())

    @property
    def is_compiled(self) -> bool:
        """The model was called, or `compile`d, since it was made or destroyed."""
        return self.programs.current is not None

    @property
    def batching(self) -> Batching:
        """How the rows of a call of the compiled program are divided."""
        return self._batching(self.rows.micro_types(self.programs.required().signature.types))

    @property
    def mode(self) -> str:
        """The output mode in force."""
        return self.options.output_mode_for(self.training)

    def take(self, types: tuple[TensorType, ...], form: Form | None = None) -> None:
        """Be ready for a call's arrays of these types, as `compile` is for arrays."""
        self.source.session.turn.call(self._within, form, self._for, types)

    def _within(self, form: Form | None, call: Callable[..., R], *args: Any) -> R:
        """What is done for a call of this form, within its turn."""
        self._form = form
        return call(*args)

    def _key(self, types: tuple[TensorType, ...]) -> Hashable:
        """By what the program for a call's arrays of these types is kept."""
        return types if self._form is None else (self._form.key, types)

    def _for(self, types: tuple[TensorType, ...]) -> Compiled:
        """The program for a call's arrays of these types, compiled if need be, within a turn."""
        return self.programs.get(self._key(types), lambda: self._compile(types))

    def _declared(self) -> tuple[TensorType, ...]:
        """The types of a call's arrays, as far as the model says them; empty: it does not."""
        count = self.options.device_iterations * self.options.gradient_accumulation * self.options.input_groups
        return tuple(t.with_shape((count * t.shape[0],
                                   *t.shape[1:])) if t.rank else t for t in self.source.input_types().values())

    def _description(self, types: tuple[TensorType, ...]) -> dict[str, Any]:
        """All that shapes what is compiled for a call's arrays of these types (`stored.Description`)."""
        return {"model": type(self).__name__, "options": compiled_options(self.options),
                "anchored": [*self.anchors.names],
                "types": [written_type(t) for t in types], "loss": None, "structure": None,
                "form": None if self._form is None else self._form.data()}

    def _graph_digest(self, types: tuple[TensorType, ...]) -> str:
        """The digest of the graph to be compiled for a call's arrays of these types, or that was for an executable."""
        if (stored := self._stored(types)) is not None:
            return stored.fingerprint
        from ..graph.digest import digest
        return digest(self._begun(types)[0])

    def _loaded(self, stored: Stored) -> None:
        """A program of an executable is in use."""

    def _prepare(self, arrays: Sequence[np.ndarray]) -> Compiled:
        """The program for these arrays, compiled if need be, within a turn."""
        current = self.programs.current
        if current is not None and (current.form is self._form
                                    or current.is_of(self._form)) and current.signature.fits(arrays):
            return current
        types = tuple(type_of(a) for a in arrays)
        key = self._key(types)
        self.programs.check_types(types, key, self._form)
        return self.programs.get(key, lambda: self._compile(types))

    def _host(self) -> Host:
        """How its programs run on this computer."""
        return Host.of(self.options)

    def _compile(self, types: tuple[TensorType, ...]) -> Compiled:
        """What runs for a call's arrays of these types: what an executable or an earlier start kept, or made now."""
        self._results = None
        if (stored := self._stored(types)) is not None:
            return self._of_stored(stored, types)
        host = self._host()
        entry = self._entry(types)
        self._sought = None
        kept = None if entry is None else entry.kept
        if kept is not None:
            engine = kept_engine(kept.program, self.source.session, kept.initial, host, kept.final)
            if engine is not None:
                self._recall(kept.known)
                return self._compiled(engine, types, kept.anchors, kept.loss, later(self._built, types))
        compilation, initial = self._built(types)
        program = compilation.program
        final = frozenset[str]() if host.share is not None else outputs.kept_once(program, self.mode)
        digest = None if entry is None else program_digest(program)
        engine = make_engine(program, self.source.session, initial, host, final=final, progress=self.progress,
                             digest=digest)
        anchors, loss = self.anchors.kept, None if program.loss is None else program.loss.name
        if entry is not None and digest is not None and not self._says(program):
            entry.save(front.KeptModel(digest, final, loss, anchors, initial, self._known()))
        return self._compiled(engine, types, anchors, loss, lambda: compilation)

    def _of_stored(self, stored: Stored, types: tuple[TensorType, ...]) -> Compiled:
        """What runs the program of an executable."""
        final = stored.once if outputs.shows_last(self.mode,
                                                  self._batching(self.rows.micro_types(types))) else frozenset()
        initial = self.source.state_dict(self.training) if stored.lacks(self.source.session.lasting()) else {}
        engine = stored.engine(self.source.session, initial, self._host(), final, self.progress)
        self._loaded(stored)
        self._results = nesting_of(stored.opened).results
        return self._compiled(engine, types, stored.anchors, stored.loss, stored.compilation)

    def _stored(self, types: tuple[TensorType, ...]) -> Stored | None:
        """The program of an executable that is what would be compiled for these types."""
        known = self.source.stored if self._host().is_alone else ()
        wanted = self._description(types) if known else {}
        return next((stored for stored in known if stored.differs(wanted) is None), None)

    def _compiled(self, engine: Engine, types: tuple[TensorType, ...], anchors: tuple[str, ...], loss: str | None,
                  compiled: Callable[[], compiler.Compilation]) -> Compiled:
        self.source.attach()
        shown = outputs.shown(engine.outputs, loss, engine.image.kept, self._batching(self.rows.micro_types(types)),
                              self.mode, self.options.output_return_period)
        made = Compiled(engine, CallTypes(types), shown, anchors, loss, compiled, self._form, self._results)
        for told in listeners:
            told(made.compilation, self.options, self.training)
        return made

    def _entry(self, types: tuple[TensorType, ...]) -> front.KeptPlace | None:
        """Where is kept what the model comes to for a call's arrays of these types; None where nothing is."""
        if self._sought is None or self._sought[0] != types:
            file = self.source.file if isinstance(self.source, OnnxSource) else None
            shaped = None if file is None or not keeps(self._host()) else self._shaped_by()
            self._sought = types, None if file is None or shaped is None else \
                front.entry(file, self.options, shaped, types)
        return self._sought[1]

    def _shaped_by(self) -> list[Any] | None:
        """What else than file, options and the types of a call shapes a program of this model; None: something that
        cannot be written down, or nobody has said what."""
        return None

    def _shaped_by_source(self) -> list[Any]:
        """What of it every model has."""
        session = self.source.session
        return [type(self), self.anchors.names, self.rows.fixed, session.ties, session.trainable]

    def _known(self) -> dict[str, Any]:
        """What the model knows of the graph of the program that was made last, in JSON's types, for later starts."""
        return {}

    def _recall(self, known: Mapping[str, Any]) -> None:
        """Know what `_known` gave at an earlier start."""

    def _require_graph(self) -> None:
        """Let what is known of a program's graph be known of that of an executable, too."""
        if (current := self.programs.current) is not None:
            _ = current.compilation

    def _says(self, program: Program) -> bool:
        """Making the program said something to whoever runs it, which every start has to say."""
        return bool(program.notes or self.options.autocast)

    def _batching(self, micro: Sequence[TensorType]) -> Batching:
        """How the rows of a call are divided, of which these are the types of a micro-batch's arrays."""
        o, rows = self.options, micro[0].shape[0] if micro and micro[0].shape else 1
        return Batching(rows, o.gradient_accumulation, o.device_iterations, o.replication_factor)

    def _built(self, types: tuple[TensorType, ...]) -> tuple[compiler.Compilation, Mapping[str, np.ndarray]]:
        """The compilation for a call's arrays of these types, and what states start with."""
        graph, initial, micro, own = self._begun(types)
        tensors_first = isinstance(self.source, OnnxSource)
        self.anchors.find(graph, tensors_first)
        if self.options.printed_tensors:
            from ..passes.printing import printed
            printed(graph, self.options.printed_tensors, tensors_first)
        compilation = self._build(graph, self._batching(micro), micro[own:])
        check_inputs(compilation.program, micro)
        return compilation, initial

    def _begun(self, types: tuple[TensorType, ...]) -> Begun:
        """What the program for a call's arrays of these types is made from."""
        micro = self.rows.micro_types(types)
        own, source = self._own_count(len(micro)), self.source.formed(self._form)
        graph, initial = source.graph(micro[:own], self.training)
        self._results = source.results
        return graph, initial, micro, own

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        """Compile the graph; `more` are the types of the inputs that follow the model's own."""
        raise NotImplementedError

    def _own_count(self, given: int) -> int:
        """How many of the arrays of the call under way are the model's own inputs."""
        return self._own_of(given) if self._form is None else len(self._form.tensors)

    def _own_of(self, given: int, named: int = 0) -> int:
        """How many of the arguments of a call are the model's own inputs, of which others are given by name."""
        return given

    def _decided(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """What the compiled program takes for the arrays of a call, within a turn: as a rule these."""
        return arrays
