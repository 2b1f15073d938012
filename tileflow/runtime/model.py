"""What models are: callables that run whole calls of `micro-batch x accumulation x iterations` rows."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..feed.items import array_of
from ..memory.types import TensorType, type_of
from ..options.options import Options
from ..system.errors import DataError, OptionError, UnsupportedError
from ..system.nested import Form, Results
from ..system.spans import span
from . import outputs
from .arrays import as_array
from .compiling import CompilingModel
from .forms import nesting_data, nesting_of
from .host import Progress
from .source import Source
from .stored import Stored, told_options
from .weights import Weights

if TYPE_CHECKING:
    from ..program.program import Program

NO_NAMES: Mapping[str, Any] = MappingProxyType({})


class Model(CompilingModel):
    """What training and inference models share: arrays in, the engine's call, arrays out in the output mode.

    Threads may share a model, and models may share a network: whole calls take turns, so none sees half an update of
    another.

    rows: how a call's rows are divided. programs: what was compiled. weights: the parameters, in and out. anchors:
    values within the model that calls keep for `anchored`.
    """

    def __init__(self, source: Source, options: Options, progress: Progress | None = None) -> None:
        super().__init__(source, options, progress)
        self.weights = Weights(source, self.options, self.training, self.programs)
        self.stop: Callable[[], bool] | None = None
        """Asked about every 20 ms of a call; once true, the call ends after its last whole update."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle: what it was made from, with weights of its own. Programs are compiled again at its first
        call; functions that are told of progress, or asked to stop, stay here."""
        return _made_again, (type(self), self._made_from(), self.anchors.names, self._remembered())

    def _made_from(self) -> tuple[Any, ...]:
        """Arguments that make it again."""
        return self.source, self.options.clone()

    def _remembered(self) -> Mapping[str, np.ndarray] | None:
        """What its optimizer has come to."""
        return None

    # ---- compiled programs

    def compile(self, *arrays: Any, **named: Any) -> None:
        """Compile for arguments of a call, arrays of these shapes and types, without running."""
        form, given = self._given(arrays, named)
        self.source.session.turn.call(self._within, form, lambda: self._prepare(self._decided(given)))

    def destroy(self) -> None:
        """Forget the compiled programs, so that the next call may have other shapes. Weights and what optimizers
        remember stay."""
        self.source.session.turn.change(self.programs.forget)

    # ---- executables

    def compile_and_export(self, path: str | os.PathLike[str], *arrays: Any, export_model: bool = True,
                           **named: Any) -> Path:
        """Compile for arrays of these shapes and types, if need be, and write the executable: `compile`, then `save`.

            model.compile_and_export("digits.tileflow", x, y)
            model = tileflow.load_executable("digits.tileflow")          # in another process, without the model

        Args:
            export_model: with the weights, all that the optimizer remembers and, of a model out of an ONNX file, that
                file; else the program alone, which `load_executable` of a model that has weights takes.
        """
        with self._one_program():
            self.compile(*arrays, **named)
        return self.save(path, export_model)

    def save(self, path: str | os.PathLike[str], export_model: bool = True) -> Path:
        """Write the program of the last call or `compile` as an executable, with the weights as they are now; before
        the first, that of the inputs that the model's file declares. One file of data, whole or not at all: nothing in
        it is executed, and whoever has it needs no model.

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
        types, program, self._form = current.signature.types, current.program, current.form
        if form is None:
            form = nesting_data(self.source.parameters, current.form, current.results)
        export(path, self.source, program, current.engine, whole, form=form, own=self._own_count(len(types)),
               types=tuple((t.dtype, t.shape) for t in types), anchors=current.anchors,
               once=tuple(sorted(outputs.kept_once(program, "final"))), options=told_options(self.options),
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
            raise UnsupportedError("There is no executable of a model that is no one program, since sizes, branches "
                                   f"or turns in it follow from data: {error}") from None

    def load_executable(self, path: str | os.PathLike[str]) -> None:
        """Take a program that `compile_and_export` or `save` of such a model wrote, in place of compiling it. Weights
        and what the optimizer remembers stay this model's, whatever the file holds.

        Raises:
            ModelError: the file cannot be read, is damaged or no executable.
            OptionError: it is of another model, or of one with other options, loss or optimizer; the sentence says
                what differs.
        """
        from .executable_file import Opened
        stored = Stored(Opened(path))
        types, self._form = stored.types, nesting_of(stored.opened).form
        why = stored.differs(self._description(types)) or stored.lacks(self.source.state_dict(self.training))
        if why is None and self.source.has_graph and stored.fingerprint != self._graph_digest(types):
            why = ("computes something else than this model: "
                   "operators, attributes, names or sizes, or what is trained, differ")
        if why is not None:
            raise OptionError(f"Executable {path} {why}; make the model as the one that was exported, or compile this "
                              "one.")
        before, self.source.stored = self.source.stored, (stored, *self.source.stored)
        try:
            self.take(types, self._form)
        except BaseException:
            self.source.stored = before
            raise

    def _facts(self, types: tuple[TensorType, ...]) -> dict[str, Any]:
        """What an executable says of a compiled model of this class (UnsupportedError: there are none of it)."""
        from .exporting import where_of
        told = self._description(types)
        if told["model"] not in ("TrainingModel", "InferenceModel"):
            raise UnsupportedError(f"A {told['model']} cannot be written as an executable; training and inference "
                                   "models can.")
        return {"model": told["model"], "where": where_of(self.source), "anchored": self.anchors.names,
                "loss": told["loss"],
                "structure": told["structure"], "fitted": None, "optimizer": None, "asked": (),
                "fingerprint": self._graph_digest(types), "run": (None, None), "plateaus": ()}

    def program_for(self, *arrays: Any, **named: Any) -> Program:
        """The program for arrays of these shapes and types, for which no kernel is compiled."""
        form, given = self._given(arrays, named)
        return self.source.session.turn.call(self._within, form, self._built, tuple(map(type_of, given)))[0].program

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
        inputs = self._example()
        self.weights.save_onnx(self.source.formed(self._form), Path(path), keep_training_mode, inputs, form,
                               self.progress)
        return Path(path)

    def _example(self) -> list[np.ndarray]:
        """Arrays for one micro-batch of the model's own inputs: of the sizes it was last compiled for, else those of
        the options."""
        self._form = None
        if (current := self.programs.current) is not None:
            self._form = current.form
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

    # ---- calls

    def _given(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Form | None, list[np.ndarray]]:
        """The form of a call (None: arrays one after the other), and its arrays, of the types that the model takes.

        Raises:
            DataError: a name is not known or given twice, or an input is missing.
        """
        args, labels, named = self._divided(args, named)
        form, own = self.source.arranged(args, named)
        return form, self._arrays([*own, *labels], len(own))

    def _divided(self, args: Sequence[Any],
                 named: Mapping[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Mapping[str, Any]]:
        """The arguments of a call that are for the model, the arrays that follow these, and what of the model's is
        given by name."""
        count = self._own_of(len(args), len(named))
        return args[:count], args[count:], named

    def _arrays(self, arrays: Sequence[Any], own: int) -> list[np.ndarray]:
        """What a caller gave as arrays of the types that the model takes; the first `own` are its inputs."""
        if not arrays and self.source.input_count != 0:
            raise DataError("The model needs at least one input array.")
        return [as_array(a, self.source.input_dtype(i, array_of(a)), f"input {i}") for i, a in enumerate(arrays)]

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

    def _outputs(self, arrays: Sequence[np.ndarray], form: Form | None) -> tuple[list[np.ndarray], Results | None]:
        """A call of the engine, within a turn: the model's outputs in the output mode, in the order of the graph, and
        how they are nested."""
        self._form = form
        results = self._run(arrays)
        compiled = self.programs.current
        assert compiled is not None
        shown = [show(a) for show, a in zip(compiled.shown, results, strict=True)]
        if compiled.anchors:
            self.anchors.take(compiled.anchors, shown)
        return shown, compiled.results

    def _call(self, args: Sequence[Any],
              named: Mapping[str, Any] = NO_NAMES) -> tuple[list[np.ndarray], Results | None]:
        """A whole call, in this thread's turn: the outputs in the output mode, and how they are nested."""
        current = self.programs.current
        if not named and current is not None and current.form is None and current.signature.fits(args):
            return self.source.session.turn.call(self._outputs, args, None)
        form, given = self._given(args, named)
        return self.source.session.turn.call(self._outputs, given, form)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run one call.

        Args:
            arrays, named: the inputs, by their places or as `forward`, or the file, calls them; then labels, or
                `labels=`. What networks of layers take may be nested in tuples, lists and dicts, with None, truth
                values, numbers and texts, which are compiled in.

        Every array has `micro_batch * replicas * gradient_accumulation * device_iterations` rows (replicas that get the
        same rows count once); the micro-batch is the option micro_batch_size where that was set, else it follows from
        the first call.
        Returns one array, or a tuple: the model's outputs in the output mode and, when training, the loss: where
        `forward` returns it, else last. Where `forward` returns dicts, or anything nested, calls return that; in
        training a pair (outputs, loss) where it does not return the loss.

        Any thread may call; while another thread is in a call of the same network (training or inference), this one
        waits for it, and Ctrl-C ends the waiting. Arrays must not change until the call returns.

        Raises:
            TileflowError: called from within a call of the same network (a progress or stop function).
        """
        shown, results = self._call(arrays, named)
        if results is not None:
            nested = results.nested(shown)
            return nested if len(shown) == results.count else (nested, *shown[results.count:])
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


def _made_again(kind: type[Any], parts: Sequence[Any], anchors: Any,
                remembered: Mapping[str, np.ndarray] | None) -> Any:
    """A model out of a pickle, or copied."""
    made = kind(*parts)
    made.anchors.names = anchors
    if remembered is not None:
        made.load_optimizer_state_dict(remembered)
    return made
