"""What models are: callables that run whole calls of `micro-batch x accumulation x iterations` rows."""
from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..executable.engine import Engine
from ..feed.items import array_of
from ..memory.types import TensorType, type_of
from ..options.options import Options
from ..program.batching import Batching
from ..system.errors import DataError, OptionError, ShapeError, TypeMismatchError, UnsupportedError
from ..system.spans import span
from . import front, outputs
from .arrays import as_array
from .executable import Signature, keeps, kept_engine, make_engine
from .host import Host, Progress
from .image_key import program_digest
from .onnx_source import OnnxSource
from .outputs import Anchors
from .programs import Compiled, Programs, listeners
from .rows import Rows
from .source import Source
from .stored import Stored, compiled_options
from .weights import Weights

if TYPE_CHECKING:
    from .. import compiler
    from ..graph import Graph
    from ..lower.plan import Plan
    from ..program.program import Program

Begun = tuple["Graph", Mapping[str, np.ndarray], tuple[TensorType, ...], int]
"""What a program is made from: a graph, what its states start with, the types of a micro-batch's arrays, and how many
of these are its inputs; those that follow are for the loss."""


class Model:
    """What training and inference models share: arrays in, the engine's call, arrays out in the output mode.

    Threads may share a model, and models may share a network: whole calls take turns, so none sees half an update of
    another.

    rows: how a call's rows are divided. programs: what was compiled. weights: the parameters, in and out. anchors:
    values within the model that calls keep for `anchored`.
    """

    training = False

    def __init__(self, source: Source, options: Options, progress: Progress | None = None) -> None:
        self.source, self.options = source, options.clone().freeze()
        self.progress = progress
        # inference may use another micro-batch than a run's file of options says
        self.rows = Rows(self.options, fixed=self.options.given("micro_batch_size", files=self.training))
        self.programs = Programs(self.options, self.rows)
        self.weights = Weights(source, self.options, self.training, self.programs)
        self.anchors = Anchors()
        self._sought: tuple[tuple[TensorType, ...], front.Entry | None] | None = None
        """The entry that was sought last, until its program is made."""
        self.stop: Callable[[], bool] | None = None
        """Asked about every 20 ms of a call; once true, the call ends after its last whole update."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle: what it was made from, with weights of its own. Programs are compiled again at its first call; functions that are
        told of progress, or asked to stop, stay here."""
        return _made_again, (type(self), self._made_from(), self.anchors.names, self._remembered())

    def _made_from(self) -> tuple[Any, ...]:
        """Arguments that make it again."""
        return self.source, self.options.clone()

    def _remembered(self) -> Mapping[str, np.ndarray] | None:
        """What its optimizer has come to."""
        return None

    # ---- compiled programs

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
    def mode(self) -> str:
        """The output mode in force."""
        return outputs.mode_of(self.options, self.training)

    def compile(self, *arrays: Any) -> None:
        """Compile for arrays of these shapes and types without running."""
        given = self._arrays(arrays)
        self.source.session.turn.call(lambda: self._prepare(self._decided(given)))

    def destroy(self) -> None:
        """Forget the compiled programs, so that the next call may have other shapes. Weights and what optimizers
        remember stay."""
        self.source.session.turn.change(self.programs.forget)

    # ---- executables

    def compile_and_export(self, path: str | os.PathLike[str], *arrays: Any, export_model: bool = True) -> Path:
        """Compile for arrays of these shapes and types, if need be, and write the executable: `compile`, then `save`.

            model.compile_and_export("digits.tileflow", x, y)
            model = tileflow.load_executable("digits.tileflow")          # in another process, without the model

        Args:
            export_model: with the weights, all that the optimizer remembers and, of a model out of an ONNX file, that
                file; else the program alone, which `load_executable` of a model that has weights takes.
        """
        with self._one_program():
            self.compile(*arrays)
        return self.save(path, export_model)

    def save(self, path: str | os.PathLike[str], export_model: bool = True) -> Path:
        """Write the program of the last call or `compile` as an executable, with the weights as they are now; before the
        first, that of the inputs that the model's file declares. One file of data, whole or not at all: nothing in it is
        executed, and whoever has it needs no model.

        Args:
            export_model: as `compile_and_export` has it.

        Raises:
            UnsupportedError: the program holds what a file cannot, or there is none, as sizes follow from data.
            TileflowError: nothing was compiled yet, and the model does not say what it takes.
            CheckpointError: the file cannot be written; one that stood there is as it was.
        """
        self.save_nested(path, export_model, None)
        return Path(path)

    def save_nested(self, path: str | os.PathLike[str], whole: bool, form: Any) -> None:
        """`save`; `form`: how the arguments and results of a module of PyTorch's are nested, as data."""
        if not self.is_compiled and self.programs.absent is None and (types := self._declared()):
            with self._one_program():
                self.take(types)
        from .exporting import export
        current = self.programs.required()
        types, program = current.signature.types, current.program
        export(path, self.source, program, current.engine, whole, form=form, own=self._own_count(len(types)),
               types=tuple((t.dtype, t.shape) for t in types), anchors=current.anchors,
               once=tuple(sorted(outputs.kept_once(program, "final"))), options=_told(self.options),
               loss_output=None if program.loss is None else program.loss.name, **self._facts(types))

    @contextlib.contextmanager
    def _one_program(self) -> Iterator[None]:
        """Where sizes follow from data, which has a way of its own for calls, the sentence is about executables."""
        try:
            yield
        except UnsupportedError as error:
            from ..importers.onnx import DynamicOperandError
            if not isinstance(error, DynamicOperandError):
                raise
            raise UnsupportedError(f"There is no executable of a model that is no one program, since sizes, branches or turns in it follow from "
                                   f"data: {error}") from None

    def load_executable(self, path: str | os.PathLike[str]) -> None:
        """Take a program that `compile_and_export` or `save` of such a model wrote, in place of compiling it. Weights and
        what the optimizer remembers stay this model's, whatever the file holds.

        Raises:
            ModelError: the file cannot be read, is damaged or no executable.
            OptionError: it is of another model, or of one with other options, loss or optimizer; the sentence says
                what differs.
        """
        from .executable_file import Opened
        stored = Stored(Opened(path))
        types = stored.types
        why = stored.differs(self._description(types)) or stored.lacks(self.source.state_dict(self.training))
        if why is None and self.source.has_graph and stored.fingerprint != self._graph_digest(types):
            why = "computes something else than this model: operators, attributes, names or sizes, or what is trained, differ"
        if why is not None:
            raise OptionError(f"Executable {path} {why}; make the model as the one that was exported, or compile this one.")
        before, self.source.stored = self.source.stored, (stored, *self.source.stored)
        try:
            self.take(types)
        except BaseException:
            self.source.stored = before
            raise

    def take(self, types: tuple[TensorType, ...]) -> None:
        """Be ready for a call's arrays of these types, as `compile` is for arrays."""
        self.source.session.turn.call(self._for, types)

    def _for(self, types: tuple[TensorType, ...]) -> Compiled:
        """The program for a call's arrays of these types, compiled if need be, within a turn."""
        return self.programs.get(types, lambda: self._compile(types))

    def _declared(self) -> tuple[TensorType, ...]:
        """The types of a call's arrays, as far as the model says them; empty: it does not."""
        count = self.options.device_iterations * self.options.gradient_accumulation * self.options.input_groups
        return tuple(t.with_shape((count * t.shape[0], *t.shape[1:])) if t.rank else t for t in self.source.input_types().values())

    def _description(self, types: tuple[TensorType, ...]) -> dict[str, Any]:
        """All that shapes what is compiled for a call's arrays of these types (`stored.Description`)."""
        return {"model": type(self).__name__, "options": compiled_options(self.options), "anchored": [*self.anchors.names],
                "types": [[t.dtype, [*t.shape]] for t in types], "loss": None, "structure": None}

    def _facts(self, types: tuple[TensorType, ...]) -> dict[str, Any]:
        """What an executable says of a compiled model of this class (UnsupportedError: there are none of it)."""
        told = self._description(types)
        if told["model"] not in ("TrainingModel", "InferenceModel"):
            raise UnsupportedError(f"A {told['model']} cannot be written as an executable; training and inference models can.")
        return {"model": told["model"], "where": self._where, "anchored": self.anchors.names, "loss": told["loss"],
                "structure": told["structure"], "fitted": None, "optimizer": None, "asked": (), "fingerprint": self._graph_digest(types),
                "run": (None, None), "plateaus": ()}

    @property
    def _where(self) -> str:
        """What messages call what it was made of."""
        source: Any = self.source
        made = next((getattr(source, name) for name in ("net", "module") if hasattr(source, name)), None)
        if made is not None:
            return f"the network {type(made).__name__}"
        if isinstance(source, OnnxSource):
            model = source.unresolved
            return model.where if model.path is None else str(model.path.name)
        return str(source.opened.header.where)

    def _graph_digest(self, types: tuple[TensorType, ...]) -> str:
        """The digest of the graph that would be compiled for a call's arrays of these types, or was for an executable."""
        if (stored := self._stored(types)) is not None:
            return stored.fingerprint
        from ..graph.digest import digest
        return digest(self._begun(types)[0])

    def _loaded(self, stored: Stored) -> None:
        """A program of an executable is in use."""

    def program_for(self, *arrays: Any) -> Program:
        """The program for arrays of these shapes and types, for which no kernel is compiled."""
        types = tuple(type_of(a) for a in self._arrays(arrays))
        return self.source.session.turn.call(self._built, types)[0].program

    # ---- weights

    def state_dict(self, replica: int = 0) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by name, all after the same whole update, as a replica has them.

        Raises:
            OptionError: there is no such replica.
            TileflowError: of another than the first one, before the first call or `compile`.
        """
        return self.weights.state_dict(replica)

    def replica_state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers that replicas have of their own, after the same whole update: [groups,
        *shape] each, or [replicas, *shape], as `replica_grouping` asked for; buffers (`broadcast_buffers=False`) are
        [replicas, *shape].

        Raises:
            TileflowError: before the first call or `compile`.
        """
        return self.weights.replica_state_dict()

    def load_replica_state_dict(self, tensors: Mapping[str, Any]) -> None:
        """Give groups of replicas weights of their own, or replicas buffers: all or some of what `replica_state_dict`
        gives, by name, with a first dimension of groups or as it gives it. Nothing changes unless all of it fits.

        Raises:
            DataError: names, shapes or types differ, or replicas of one group would get different weights; the sentence
                says which.
            TileflowError: before the first call or `compile`.
        """
        self.weights.load_replica_state_dict(tensors)

    def load_state_dict(self, tensors: Mapping[str, Any], strict: bool = True) -> None:
        """Overwrite the parameters and buffers, of all models of this network; nothing changes unless every name, shape
        and type fits.

        Args:
            strict: every name must be there; else those that are named on both sides are taken over.

        Raises:
            DataError: names, shapes or types differ; the sentence says which.
        """
        self.weights.load_state_dict(tensors, strict)

    def save_onnx(self, path: str | os.PathLike[str], keep_training_mode: bool | None = None, **form: Any) -> Path:
        """Write the ONNX model with the weights as they are now, atomically, if read again it computes what the engine
        does. Where replicas have weights of their own the file has those of replica 0, which a warning says.

        Args:
            keep_training_mode: leave batch normalisation and dropout as the model has them, instead of writing the form
                for inference; by default the option of that name.
            form: for networks of layers, how they become a file: opset, batch, input_names, output_names, as
                `tileflow.save_onnx` has them.

        Raises:
            ModelError: what was asked is for other models, or the written one computes something else.
            UnsupportedError: ONNX has no words for a layer of the network.
        """
        self.weights.save_onnx(Path(path), keep_training_mode, self._example(), form, self.progress)
        return Path(path)

    def _example(self) -> list[np.ndarray]:
        """Arrays for one micro-batch of the model's own inputs: of the sizes it was last compiled for, else those of
        the options."""
        if (current := self.programs.current) is not None:
            micro = self.rows.micro_types(current.signature.types)
            types = list(micro[:self._own_count(len(micro))])
        else:
            types = list(self.source.input_types().values())
            if not types:
                raise DataError("The shapes of the network's inputs are not known yet: call the model or compile() it "
                                "first, or give arrays to tileflow.save_onnx(net, path, inputs).")
        draw = np.random.default_rng(0)
        return [draw.standard_normal(t.shape).astype(t.numpy) if t.is_float else np.zeros(t.shape, t.numpy)
                for t in types]

    # ---- making programs

    def _prepare(self, arrays: Sequence[np.ndarray]) -> Compiled:
        """The program for these arrays, compiled if need be, within a turn."""
        current = self.programs.current
        if current is not None and current.signature.fits(arrays):
            return current
        types = tuple(type_of(a) for a in arrays)
        self.programs.check_types(types)
        return self.programs.get(types, lambda: self._compile(types))

    def _host(self) -> Host:
        """How its programs run on this computer."""
        return Host.of(self.options)

    def _compile(self, types: tuple[TensorType, ...]) -> Compiled:
        """What runs for a call's arrays of these types: what an executable or an earlier start has kept, or made now."""
        if (stored := self._stored(types)) is not None:
            return self._of_stored(stored, types)
        host = self._host()
        entry = self._entry(types)
        self._sought = None
        kept = None if entry is None else entry.kept
        if kept is not None:
            engine = kept_engine(kept.program, self.source.session, kept.initial, host, kept.final)
            if engine is not None:
                return self._compiled(engine, types, kept.anchors, kept.loss, _later(self, types))
        compilation, initial = self._built(types)
        program = compilation.program
        final = frozenset[str]() if host.share is not None else outputs.kept_once(program, self.mode)
        digest = None if entry is None else program_digest(program)
        engine = make_engine(program, self.source.session, initial, host, final=final, progress=self.progress, digest=digest)
        anchors, loss = self.anchors.kept, None if program.loss is None else program.loss.name
        if entry is not None and digest is not None and not self._says(program):
            entry.save(front.Kept(digest, final, loss, anchors, initial))
        return self._compiled(engine, types, anchors, loss, lambda: compilation)

    def _of_stored(self, stored: Stored, types: tuple[TensorType, ...]) -> Compiled:
        """What runs the program of an executable."""
        final = stored.once if outputs.shows_last(self.mode, self._batching(self.rows.micro_types(types))) else frozenset()
        initial = self.source.state_dict(self.training) if stored.lacks(self.source.session.lasting()) else {}
        engine = stored.engine(self.source.session, initial, self._host(), final, self.progress)
        self._loaded(stored)
        return self._compiled(engine, types, stored.anchors, stored.loss, stored.compilation)

    def _stored(self, types: tuple[TensorType, ...]) -> Stored | None:
        """The program of an executable that is what would be compiled for these types."""
        known = self.source.stored if self._host().share is None else ()
        wanted = self._description(types) if known else {}
        return next((stored for stored in known if stored.differs(wanted) is None), None)

    def _compiled(self, engine: Engine, types: tuple[TensorType, ...], anchors: tuple[str, ...], loss: str | None,
                  compiled: Callable[[], compiler.Compilation]) -> Compiled:
        self.source.attach()
        shown = outputs.shown(engine.outputs, loss, engine.image.kept, self._batching(self.rows.micro_types(types)),
                              self.mode, self.options.output_return_period)
        made = Compiled(engine, Signature(types), shown, anchors, loss, compiled)
        for told in listeners:
            told(made.compilation, self.options, self.training)
        return made

    def _entry(self, types: tuple[TensorType, ...]) -> front.Entry | None:
        """Where is kept what the model comes to for a call's arrays of these types; None where nothing is."""
        if self._sought is None or self._sought[0] != types:
            file = self.source.file if isinstance(self.source, OnnxSource) else None
            shaped = None if file is None or not keeps(self._host()) else self._shaped_by()
            self._sought = types, None if file is None or shaped is None else \
                front.entry(file, self.options, shaped, types)
        return self._sought[1]

    def _shaped_by(self) -> list[Any] | None:
        """What else than file, options and the types of a call shapes a program of this model; None: the arrays do."""
        session = self.source.session
        return [type(self), self.anchors.names, session.ties, session.trainable]

    def _require_graph(self) -> None:
        """Let what is known of a program's graph be known of one that an earlier start has kept, too."""
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
        _check_inputs(compilation.program, micro)
        return compilation, initial

    def _begun(self, types: tuple[TensorType, ...]) -> Begun:
        """What the program for a call's arrays of these types is made from."""
        micro = self.rows.micro_types(types)
        own = self._own_count(len(micro))
        return *self.source.graph(micro[:own], self.training), micro, own

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        """Compile the graph; `more` are the types of the inputs that follow the model's own."""
        raise NotImplementedError

    def _own_count(self, given: int) -> int:
        """How many of the arrays of a call are the model's own inputs."""
        return given

    # ---- calls

    def _arrays(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """What a caller gave as arrays of the types that the model takes."""
        if not arrays and self.source.input_count != 0:
            raise DataError("The model needs at least one input array.")
        return [as_array(a, self.source.input_dtype(i, array_of(a)), f"input {i}") for i, a in enumerate(arrays)]

    def _decided(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """What the compiled program takes for the arrays of a call, within a turn: as a rule these."""
        return arrays

    def _scalars(self) -> Callable[[int], Mapping[str, float]] | None:
        """What the program reads that may be another number at each update."""
        return None

    def _run(self, arrays: Sequence[np.ndarray], first_update: int = 0,
             last_update: int | None = None) -> list[np.ndarray]:
        """A call of the engine, within a turn: all micro-batches of each of its outputs."""
        arrays = self._decided(arrays)
        engine = self._prepare(arrays).engine
        with span("training call" if self.training else "inference call", "call"):
            return engine.call(self.rows.dealt(arrays), scalars=self._scalars(), first_update=first_update,
                               last_update=last_update, stop=self.stop)

    def _outputs(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """A call of the engine, within a turn: the model's outputs in the output mode, in the order of the graph."""
        results = self._run(arrays)
        compiled = self.programs.current
        assert compiled is not None
        shown = [show(a) for show, a in zip(compiled.shown, results, strict=True)]
        if compiled.anchors:
            self.anchors.take(compiled.anchors, shown)
        return shown

    def _call(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """A whole call, in this thread's turn: the outputs in the output mode."""
        current = self.programs.current
        given = arrays if current is not None and current.signature.fits(arrays) else self._arrays(arrays)
        return self.source.session.turn.call(self._outputs, given)

    def __call__(self, *arrays: Any) -> Any:
        """Run one call.

        Every array has `micro_batch * replicas * gradient_accumulation * device_iterations` rows (replicas that get the
        same rows count once); the micro-batch is the option micro_batch_size where that was set, else it follows from
        the first call.
        Returns one array, or a tuple: the model's outputs in the output mode and, when training, the loss: where
        `forward` returns it, else last.

        Any thread may call; while another thread is in a call of the same network (training or inference), this one
        waits for it, and Ctrl-C ends the waiting. Arrays must not change until the call returns.

        Raises:
            TileflowError: called from within a call of the same network (a progress or stop function).
        """
        shown = self._call(arrays)
        return shown[0] if len(shown) == 1 else tuple(shown)

    def anchored(self, name: str | None = None) -> Any:
        """What a value within the model was in the last call, in the output mode, as outputs are; without a name all of
        them by name.

        The option anchored_tensors says which are kept. (With several threads: in the last call of any of them.)

        Raises:
            OptionError: the option does not name it.
            TileflowError: the model has not been called.
        """
        return self.anchors.get(name)


def _told(options: Options) -> dict[str, Any]:
    """The options that calls look at, as an executable says them."""
    return {name: told for name, told in options.told().items() if (d := options.declared()[name]).is_compiled or d.live}


def _later(model: Model, types: tuple[TensorType, ...]) -> Callable[[], compiler.Compilation]:
    """What makes the compilation that an earlier start has kept the outcome of; its model is alive when somebody asks for it, and not by that."""
    built = weakref.WeakMethod(model._built)

    def compiled() -> compiler.Compilation:
        make = built()
        assert make is not None
        return make(types)[0]
    return compiled


def _made_again(kind: type[Any], parts: Sequence[Any], anchors: Any, remembered: Mapping[str, np.ndarray] | None) -> Any:
    """A model out of a pickle, or copied."""
    made = kind(*parts)
    made.anchors.names = anchors
    if remembered is not None:
        made.load_optimizer_state_dict(remembered)
    return made


def _check_inputs(program: Program, micro: tuple[TensorType, ...]) -> None:
    """The graph's inputs are what the arrays give, in number, type and shape."""
    wanted = program.inputs
    if len(wanted) != len(micro):
        names = ", ".join(v.name for v in wanted)
        raise DataError(f"The model takes {len(wanted)} inputs ({names}) and got {len(micro)} arrays.")
    for v, t in zip(wanted, micro, strict=True):
        if v.type.dtype != t.dtype:
            raise TypeMismatchError(f"Data type mismatch for {v.name}: expected {v.dtype} but got {t.dtype}.")
        if v.shape != t.shape:
            raise ShapeError(f"Shape mismatch for {v.name}: a micro-batch must be {list(v.shape)} but is "
                             f"{list(t.shape)}.")
