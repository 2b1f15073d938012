"""What models are: callables that run whole calls of `micro-batch x accumulation x iterations` rows; and the inference model."""
from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from .. import compiler
from ..compiler import CompileOptions
from ..feed.items import array_of
from ..graph import Graph, TensorType, Value
from ..importers.onnx import DynamicOperandError, Form
from ..importers.onnx.hosted import is_plain
from ..importers.onnx.model import OTHER_TYPES
from ..options.options import Options
from ..passes.anchors import anchored
from ..program.program import Batching, Program
from ..program.replicas import Grouping
from ..state import build
from ..system.errors import DataError, OptionError, ShapeError, TileflowError, TypeMismatchError
from ..system.text import one_line
from . import replica_state
from .engine import Engine
from .executable import Host, Progress, Recent, Signature, make_engine
from .pieces import Pieces, as_datum
from .source import OnnxSource, Source, as_array
from .trained_file import write_trained

SHOWN = 1000
"""Characters of names in a sentence."""
Shown = Callable[[np.ndarray], Any]
"""What a call returns of one output: of [micro-batches, *micro-batch shape]."""


@dataclass
class Compiled:
    """A program that runs, with how it came about, the types of a call's arrays, and what the output mode shows of each output."""

    engine: Engine
    program: Program
    compilation: compiler.Compilation
    signature: Signature
    shown: list[Shown]
    anchors: tuple[str, ...] = ()
    """Names of the outputs that are values within the model: the last ones."""

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        return self.signature.types


class Model:
    """What training and inference models share: arrays in, the engine's call, arrays out in the output mode.

    Threads may share a model, and models may share a network: whole calls take turns, so none sees half an update of another.
    """

    training = False

    def __init__(self, source: Source, options: Options, progress: Progress | None = None) -> None:
        self.source, self.options = source, options.clone().freeze()
        self.progress = progress
        self.anchors: tuple[str, ...] = ()
        """Names and patterns of values within the model that calls keep for `anchored`; to be set before it is compiled."""
        self._anchored: dict[str, Any] | None = None
        """What the last call kept, by name."""
        self._found: dict[str, Value] = {}
        """Those values of the graph that was built last."""
        self.whole = False
        """Arrays of a call are fed as they are, whatever micro_batch_size says."""
        self.stop: Callable[[], bool] | None = None
        """Asked about every 20 ms of a call; once true, the call ends after its last whole update."""
        self.compile_seconds = 0.0
        """Seconds spent on compiling since someone last set it to zero."""
        self._programs: Recent[tuple[Any, ...], Compiled] = Recent()
        self._current: Compiled | None = None

    # ---- compiling

    @property
    def program(self) -> Program:
        """The compiled Program (TileflowError before the first call or `compile`)."""
        return self._compiled().program

    @property
    def compilation(self) -> compiler.Compilation:
        """The compilation's steps and times."""
        return self._compiled().compilation

    @property
    def engine(self) -> Engine:
        return self._compiled().engine

    @property
    def is_compiled(self) -> bool:
        return self._current is not None

    def _compiled(self) -> Compiled:
        if self._current is None:
            raise TileflowError("The model has not been compiled yet; call it, or call compile() with example arrays.")
        return self._current

    def compile(self, *arrays: Any) -> None:
        """Compile for arrays of these shapes and types without running."""
        given = self._arrays(arrays)
        self.source.session.turn.call(lambda: self._prepare(self._decided(given)))

    def destroy(self) -> None:
        """Forget the compiled programs, so that the next call may have other shapes. Weights and optimizer states stay."""
        def forget() -> None:
            self._programs.clear()
            self._current = None
        self.source.session.turn.change(forget)

    # ---- weights

    def state_dict(self, replica: int = 0) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by name, all after the same whole update, as a replica has them.

        Raises:
            OptionError: there is no such replica.
            TileflowError: of another than the first one, before the first call or `compile`.
        """
        if replica == 0:
            return self.source.state_dict(self.training)
        session, program = self.source.session, self.program
        return session.turn.hold(lambda: replica_state.of_replica(program, session, self.source.state_dict(self.training), replica))

    def replica_state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers that replicas have of their own, after the same whole update: [groups, *shape] each, or
        [replicas, *shape], as `replica_grouping` asked for; buffers (`broadcast_buffers=False`) are [replicas, *shape].

        Raises:
            TileflowError: before the first call or `compile`.
        """
        session, program = self.source.session, self.program
        return session.turn.hold(lambda: replica_state.collect(program, session, Grouping.named(self.options.groupings)))

    def load_replica_state_dict(self, tensors: Mapping[str, Any]) -> None:
        """Give groups of replicas weights of their own, or replicas buffers: all or some of what `replica_state_dict` gives, by name, with a first
        dimension of groups or as it gives it. Nothing changes unless all of it fits.

        Raises:
            DataError: names, shapes or types differ, or replicas of one group would get different weights; the sentence says which.
            TileflowError: before the first call or `compile`.
        """
        session = self.source.session
        session.put(replica_state.check(self.program, session, Grouping.named(self.options.groupings), tensors))

    def load_state_dict(self, tensors: Mapping[str, Any], strict: bool = True) -> None:
        """Overwrite the parameters and buffers, of all models of this network; nothing changes unless every name, shape and type fits.

        Args:
            strict: every name must be there; else those that are named on both sides are taken over.

        Raises:
            DataError: names, shapes or types differ; the sentence says which.
        """
        self.source.load_state_dict(tensors, self.training, strict)

    def save_onnx(self, path: str | os.PathLike[str], keep_training_mode: bool | None = None, **form: Any) -> Path:
        """Write the ONNX model with the weights as they are now, atomically, if read again it computes what the engine does. Where replicas have
        weights of their own the file has those of replica 0, which a warning says.

        Args:
            keep_training_mode: leave batch normalisation and dropout as the model has them, instead of writing the form for inference;
                by default the option of that name.
            form: for networks of layers, how they become a file: opset, batch, input_names, output_names, as `tileflow.save_onnx` has them.

        Raises:
            ModelError: what was asked is for other models, or the written one computes something else.
            UnsupportedError: ONNX has no words for a layer of the network.
        """
        if self.options.replica_grouping:
            warnings.warn(replica_state.OF_REPLICA_0, stacklevel=2)
        options = self.options if keep_training_mode is None else self.options.clone(keep_training_mode=keep_training_mode)
        write_trained(self.source, self.state_dict(), Path(path), options, self._example(), progress=self.progress,
                      form=Form.of(form) if form else None)
        return Path(path)

    def _example(self) -> list[np.ndarray]:
        """Arrays for one micro-batch of the model's own inputs: of the sizes it was last compiled for, else those of the options."""
        if self._current is not None:
            types = list(self._own_inputs(self._micro_types(self._current.inputs)))
        else:
            types = list(self.source.input_types().values())
            if not types:
                raise DataError("The shapes of the network's inputs are not known yet: call the model or compile() it first, or give arrays to "
                                "tileflow.save_onnx(net, path, inputs).")
        draw = np.random.default_rng(0)
        return [draw.standard_normal(t.shape).astype(t.numpy) if t.is_float else np.zeros(t.shape, t.numpy) for t in types]

    def _prepare(self, arrays: Sequence[np.ndarray]) -> Compiled:
        """The program for these arrays, compiled if need be."""
        if self._current is not None and self._current.signature.fits(arrays):
            return self._current
        types = tuple(TensorType(a.dtype.name, a.shape) for a in arrays)
        if types not in self._programs and self._current is not None and self.options.on_new_shape == "error":
            self._refuse(types)
        self._current = self._programs.get(types, lambda: self._timed(types))
        return self._current

    def _timed(self, types: tuple[TensorType, ...]) -> Compiled:
        began = time.perf_counter()
        try:
            return build(lambda: self._compile(types))
        finally:
            self.compile_seconds += time.perf_counter() - began

    def _refuse(self, types: tuple[TensorType, ...]) -> None:
        """The sentence for inputs that differ from those the model was compiled for, or are no calls at all."""
        self._micro_types(types)
        expected = self._compiled().inputs
        names = [v.name for v in self._compiled().program.inputs]
        hint = ("the model was compiled for other inputs; call destroy() to compile it anew, or set on_new_shape='compile'.")
        if len(types) != len(expected):
            raise DataError(f"Number of inputs mismatch: expected {len(expected)} but got {len(types)}; {hint}")
        for name, want, got in zip(names, expected, types, strict=False):
            if want.dtype != got.dtype:
                raise TypeMismatchError(f"Data type mismatch for {name}: expected {want.dtype} but got {got.dtype}; {hint}")
            if want.shape != got.shape:
                raise ShapeError(f"Shape mismatch for {name}: expected {list(want.shape)} but got {list(got.shape)}; {hint}")

    def _check_kinds(self, kinds: Mapping[str, TensorType], seen: Mapping[str, TensorType] | None) -> None:
        """The sentence for inputs that differ from those seen before, for models without one program."""
        if seen is None or kinds == seen or self.options.on_new_shape != "error":
            return
        name = next((n for n in seen if kinds.get(n) != seen[n]), next(iter(kinds), ""))
        raise ShapeError(f"Shape mismatch for {name}: expected {seen.get(name)} but got {kinds.get(name)}; the model was compiled for other inputs; "
                         f"call destroy() to compile it anew, or set on_new_shape='compile'.")

    def program_for(self, *arrays: Any) -> Program:
        """The program for arrays of these shapes and types, for which no kernel is compiled."""
        types = tuple(TensorType(a.dtype.name, a.shape) for a in self._arrays(arrays))
        return self.source.session.turn.call(self._built, types)[0].program

    def _built(self, types: tuple[TensorType, ...]) -> tuple[compiler.Compilation, Mapping[str, np.ndarray]]:
        """The compilation for inputs of these types, and what states start with."""
        micro = self._micro_types(types)
        own = self._own_inputs(micro)
        graph, initial = self._graph(own)
        self._found = anchored(graph, self.anchors, isinstance(self.source, OnnxSource)) if self.anchors else {}
        o = self.options
        batching = Batching(micro[0].shape[0] if micro and micro[0].shape else 1, o.gradient_accumulation, o.device_iterations, o.replication_factor)
        compilation = self._build(graph, batching, micro[len(own):])
        self._check_inputs(compilation.program, micro)
        return compilation, initial

    def _graph(self, own: tuple[TensorType, ...]) -> tuple[Graph, Mapping[str, np.ndarray]]:
        """The model's graph for inputs of these types, and what its states start with."""
        return self.source.graph(own, self.training)

    def _compile(self, types: tuple[TensorType, ...]) -> Compiled:
        compilation, initial = self._built(types)
        program = compilation.program
        last = self.mode == "final" and program.batching.replicas == 1
        final = frozenset(v.name for v in program.micro.outputs if v is not program.loss) if last else frozenset()
        engine = make_engine(program, self.source.session, initial, Host.of(self.options), final=final, progress=self.progress)
        self.source.attach()
        return Compiled(engine, program, compilation, Signature(types), [self._shown(v, engine) for v in engine.outputs], tuple(self._found))

    def _shown(self, value: Value, engine: Engine) -> Shown:
        """What the output mode returns of an output."""
        program = engine.program
        if self.mode == "final" and value is not program.loss and program.batching.replicas == 1:
            return itemgetter((program.batching.micro_batches - 1) % engine.slots(value))
        return selection(self.mode, program.batching, self.options.output_return_period, (engine.slots(value), *value.shape))

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        """Compile the graph; `more` are the types of the inputs that follow the model's own."""
        raise NotImplementedError

    def _own_inputs(self, micro: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """The types of the model's own inputs, without what a loss adds."""
        return micro

    @property
    def mode(self) -> str:
        """The output mode in force: `default` is final when training and all otherwise."""
        if self.options.output_mode == "default":
            return "final" if self.training else "all"
        return self.options.output_mode

    # ---- rows

    def _micro_types(self, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Types of one micro-batch: dimension 0 of every input divided by the micro-batches of a call."""
        o, micro = self.options, self.options.micro_batch_size
        count = o.device_iterations * o.gradient_accumulation * o.input_groups
        factors = {"device_iterations": o.device_iterations, "gradient_accumulation": o.gradient_accumulation}
        if o.replication_factor > 1:
            factors |= {"replication_factor": o.replication_factor} if o.input_group_size == 1 else \
                {"replication_factor / input_group_size": o.input_groups}
        by = " * ".join(f"{name} ({n})" for name, n in factors.items())
        fixed = self._rows_are_fixed()
        result = []
        for t in types:
            rows = t.shape[0] if t.rank else 1
            if fixed and t.rank and rows != micro * count:
                raise ShapeError(
                    f"Invalid batch dimension: the input {list(t.shape)} has {rows} rows, but micro_batch_size was set, so that a call takes "
                    f"{micro * count}: micro_batch_size ({micro}) * {by}; "
                    "give as many, or leave micro_batch_size out, and it follows from the first call.")
            if rows % count or rows == 0:
                raise ShapeError(
                    f"Invalid batch dimension: in the input {list(t.shape)}, the batch dimension ({rows}) must be a positive multiple of "
                    f"{by} = {count}, because it is divided by that to give the micro-batch.")
            result.append(t if not t.rank else t.with_shape((rows // count, *t.shape[1:])))
        return tuple(result)

    def _rows_are_fixed(self) -> bool:
        """A micro-batch size was set for this model: inference may use other sizes than a run's file of options."""
        return not self.whole and self.options.given("micro_batch_size", files=self.training)

    def _check_inputs(self, program: Program, micro: tuple[TensorType, ...]) -> None:
        """The graph's inputs are what the arrays give, in number, type and shape."""
        wanted = program.inputs
        if len(wanted) != len(micro):
            raise DataError(f"The model takes {len(wanted)} inputs ({', '.join(v.name for v in wanted)}) and got {len(micro)} arrays.")
        for v, t in zip(wanted, micro, strict=True):
            if v.type.dtype != t.dtype:
                raise TypeMismatchError(f"Data type mismatch for {v.name}: expected {v.dtype} but got {t.dtype}.")
            if v.shape != t.shape:
                raise ShapeError(f"Shape mismatch for {v.name}: a micro-batch must be {list(v.shape)} but is {list(t.shape)}.")

    def _arrays(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        if not arrays and self.source.input_count != 0:
            raise DataError("The model needs at least one input array.")
        return [as_array(a, self.source.input_dtype(i, array_of(a)), f"input {i}") for i, a in enumerate(arrays)]

    def _run(self, arrays: Sequence[np.ndarray], first_update: int = 0) -> list[np.ndarray]:
        """A call of the engine, within a turn: all micro-batches of each of its outputs."""
        arrays = self._decided(arrays)
        return self._prepare(arrays).engine.call(self._dealt(arrays), scalars=self._scalars(), first_update=first_update, stop=self.stop)

    def _decided(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """What the compiled program takes for the arrays of a call, within a turn: as a rule these."""
        return arrays

    def _dealt(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The rows of a call as the replicas get them, [iterations, accumulation, replica, micro-batch]: those of a group get the same."""
        o = self.options
        if o.input_group_size == 1:
            return arrays
        group = list(Grouping(o.input_group_type, o.input_group_size).groups(o.replication_factor))
        count = o.device_iterations * o.gradient_accumulation
        rows = (a if a.ndim else a.reshape(1) for a in arrays)
        return [a.reshape(count, o.input_groups, -1, *a.shape[1:])[:, group].reshape(-1, *a.shape[1:]) for a in rows]

    def _scalars(self) -> Callable[[int], Mapping[str, float]] | None:
        return None

    def _outputs(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """A call of the engine, within a turn: the model's outputs in the output mode, in the order of the graph."""
        results = self._run(arrays)
        compiled = self._compiled()
        shown = [show(a) for show, a in zip(compiled.shown, results, strict=True)]
        if compiled.anchors:
            begin = len(shown) - len(compiled.anchors)
            self._anchored = dict(zip(compiled.anchors, shown[begin:], strict=True))
            del shown[begin:]
        return shown

    def anchored(self, name: str | None = None) -> Any:
        """What a value within the model was in the last call, in the output mode, as outputs are; without a name all of them by name.

        The option anchored_tensors says which are kept. (With several threads: in the last call of any of them.)

        Raises:
            OptionError: the option does not name it.
            TileflowError: the model has not been called.
        """
        if not self.anchors:
            raise OptionError("The model keeps no values for anchored(); name them in the option anchored_tensors.")
        if self._anchored is None:
            raise TileflowError("Please call the model at least once before asking for anchored tensors.")
        if name is None:
            return dict(self._anchored)
        if name not in self._anchored:
            raise OptionError(f"The tensor {one_line(name)!r} is not anchored; the option anchored_tensors names "
                              f"{one_line(', '.join(self._anchored), SHOWN)}.")
        return self._anchored[name]

    def _call(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """A whole call, in this thread's turn: the outputs in the output mode."""
        current = self._current
        given = arrays if current is not None and current.signature.fits(arrays) else self._arrays(arrays)
        return self.source.session.turn.call(self._outputs, given)

    def __call__(self, *arrays: Any) -> Any:
        """Run one call.

        Every array has `micro_batch * replicas * gradient_accumulation * device_iterations` rows (replicas that get the same rows count once);
        the micro-batch is the option micro_batch_size where that was set, else it follows from the first call.
        Returns one array, or a tuple: the model's outputs in the output mode and, when training, the loss: where `forward` returns it, else last.

        Any thread may call; while another thread is in a call of the same network (training or inference), this one waits for
        it, and Ctrl-C ends the waiting. Arrays must not change until the call returns.

        Raises:
            TileflowError: called from within a call of the same network (a progress or stop function).
        """
        shown = self._call(arrays)
        return shown[0] if len(shown) == 1 else tuple(shown)


def selection(mode: str, batching: Batching, period: int | None, shape: tuple[int, ...]) -> Shown:
    """What takes an output of a call as the output mode shows it.

    Args:
        shape: [micro-batches, *micro-batch shape], every micro-batch of the call.
        mode: all = concatenated along dimension 0 (a 0-d output becomes 1-d); final = the last one of each replica; sum = added over the
            micro-batches of each replica; every_n = all micro-batches of every `period`-th iteration.
    """
    replicas = batching.replicas
    if mode == "final":
        return itemgetter(-1) if replicas == 1 else partial(_last, replicas)
    if mode == "sum":
        return _sum if replicas == 1 else partial(_sums, replicas)
    if mode == "every_n":
        if period is None or period > batching.device_iterations or batching.device_iterations % period:
            raise OptionError("output_mode every_n needs an output_return_period that divides "
                              f"device_iterations={batching.device_iterations}, got {period}.")
        return partial(_every, batching.device_iterations, period)
    if len(shape) == 1:
        return itemgetter(0) if shape[0] == 1 else np.asarray
    return methodcaller("reshape", (shape[0] * shape[1], *shape[2:]))


def select(array: np.ndarray, mode: str, batching: Batching, period: int | None) -> Any:
    """One output of a call, every micro-batch of it, as the output mode shows it."""
    return selection(mode, batching, period, array.shape)(array)


def _sum(array: np.ndarray) -> Any:
    return np.add.reduce(array, axis=0, dtype=array.dtype)


def _joined(array: np.ndarray) -> np.ndarray:
    """Several micro-batches, concatenated along dimension 0."""
    return array if array.ndim == 1 else array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _last(replicas: int, array: np.ndarray) -> np.ndarray:
    return _joined(array[-replicas:])


def _sums(replicas: int, array: np.ndarray) -> np.ndarray:
    by_replica = array.reshape(len(array) // replicas, replicas, *array.shape[1:])
    return _joined(np.add.reduce(by_replica, axis=0, dtype=array.dtype))


def _every(iterations: int, period: int, array: np.ndarray) -> Any:
    """All micro-batches of every `period`-th of the iterations of a call, concatenated along dimension 0."""
    chosen = array.reshape(iterations, len(array) // iterations, *array.shape[1:])[period - 1::period]
    chosen = chosen.reshape(chosen.shape[0] * chosen.shape[1], *array.shape[1:])
    return chosen[0] if chosen.ndim == 1 and len(chosen) == 1 else _joined(chosen)


class InferenceModel(Model):
    """A model that computes outputs. Shares its weights with every other model of the same source."""

    def __init__(self, source: Source, options: Options, progress: Progress | None = None) -> None:
        if options.gradient_accumulation != 1:
            raise OptionError("You must set gradient_accumulation to 1 or leave it as its default value (1) when running an inference model.")
        super().__init__(source, options, progress)
        self._pieces: Pieces | None = None
        self._seen: Mapping[str, TensorType] | None = None
        """The types of a run in pieces so far."""
        self._asked = False

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        chosen = CompileOptions.of(self.options, self.source.precision)
        return compiler.inference(graph, batching, chosen, anchors=list(self._found.values()))

    # ---- models whose sizes follow from data

    @property
    def in_pieces(self) -> bool:
        """The model was found to run in pieces, because sizes, branches or turns in it follow from data: it has no one program."""
        return self._pieces is not None

    @property
    def output_names(self) -> list[str]:
        """The names of what a call returns, once the model was called or compiled."""
        return self._pieces.outputs if self._pieces is not None else [v.name for v in self.program.micro.outputs]

    def destroy(self) -> None:
        """Forget the compiled programs, so that the next call may have other shapes. Weights stay."""
        super().destroy()
        self._pieces, self._seen = None, None

    def _compiled(self) -> Compiled:
        if self._pieces is not None:
            raise TileflowError("The model runs in pieces, because sizes in it follow from data: there is no one program of it to look at.")
        return super()._compiled()

    def _call(self, arrays: Sequence[Any]) -> list[Any]:
        if self._pieces is None and not self._takes_others():
            try:
                return super()._call(arrays)
            except DynamicOperandError as error:
                found = self._cut()
                if found is None:
                    raise error from None
                self._pieces = found
        return self.source.session.turn.call(self._in_pieces, arrays)

    def _takes_others(self) -> bool:
        """Inputs or outputs are sequences, optionals or texts: then there is no other way."""
        if not self._asked:
            self._asked = True
            ports = (*self.source.model.inputs, *self.source.model.outputs) if isinstance(self.source, OnnxSource) else ()
            if any(port.dtype in OTHER_TYPES for port in ports):
                self._pieces = self._cut()
        return self._pieces is not None

    def _cut(self) -> Pieces | None:
        found = self.source.pieces(Host.of(self.options), self.progress)
        if found is not None and self.anchors:
            raise OptionError("The model runs in pieces, because sizes in it follow from data, and values within pieces cannot be anchored: "
                              "make them outputs of the file, or leave anchored_tensors out.")
        for name in ("device_iterations", "replication_factor"):
            if found is not None and getattr(self.options, name) != 1:
                raise OptionError(f"The model runs in pieces, because sizes in it follow from data, and so one call is one iteration: leave "
                                  f"{name}={getattr(self.options, name)} out.")
        return found

    def _in_pieces(self, arrays: Sequence[Any]) -> list[Any]:
        """A call in pieces, within a turn."""
        assert self._pieces is not None
        assert isinstance(self.source, OnnxSource)
        ports = self.source.model.inputs
        if len(arrays) != len(ports):
            raise DataError(f"The model takes {len(ports)} inputs ({', '.join(p.name for p in ports)}) and got {len(arrays)} arrays.")
        given = {port.name: as_datum(a, port) if port.dtype in OTHER_TYPES else as_array(a, self.source.input_dtype(i, array_of(a)), f"input {i}")
                 for i, (a, port) in enumerate(zip(arrays, ports, strict=True))}
        kinds = {name: TensorType(a.dtype.name, a.shape) for name, a in given.items() if is_plain(a)}
        self._check_kinds(kinds, self._seen)
        results = self._pieces.run(given)
        self._seen = kinds
        return results
