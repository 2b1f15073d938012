"""The verbs: train, infer, compile, training_model, inference_model, load."""
from __future__ import annotations

import html
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from . import compiler
from .errors import CheckpointError, DataError, ModelError, OptionError
from .graph import Graph, TensorType, kind_of, type_of
from .importers.onnx import OnnxModel, load_model
from .importers.onnx.export import export_model
from .loss import LABELS, find
from .nn import Module
from .optim import Optimizer, from_options
from .options import Options
from .program import Batching, Program
from .runtime.data import Data, DataLoader, Dataset, open_data
from .runtime.history import Epoch
from .runtime.model import InferenceModel, Progress, TrainingModel
from .runtime.run_folder import CHECKPOINT
from .runtime.session import Session
from .runtime.source import NetSource, OnnxSource, Source, as_array
from .runtime.trainer import CLASS_LOSSES, Reporter, Silent, Trainer, label_type

if TYPE_CHECKING:
    from .simulate import TuneResult

DEFAULT_MACHINE = "gc200"
Modelish = Module | OnnxModel | str | os.PathLike[str]


def load(path: str | os.PathLike[str]) -> OnnxModel:
    """Read and check an ONNX file (ModelError where it cannot be read or is not valid)."""
    return load_model(path)


def _options(options: Options | None, changes: Mapping[str, Any]) -> Options:
    """A copy of the options with keyword changes (OptionError for an unknown name or a bad value)."""
    if options is not None and not isinstance(options, Options):
        raise OptionError(f"options must be a tileflow.Options, got {type(options).__name__}.")
    result = options.clone() if options is not None else Options()
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def _source(model: Modelish, options: Options) -> Source:
    """The source of a model; one per OnnxModel object, so that its models share weights."""
    if isinstance(model, Module):
        return NetSource(model, options)
    loaded = model if isinstance(model, OnnxModel) else load_model(model)
    source = OnnxSource(loaded, options, _sessions.get(id(loaded.proto)))
    source.session.owner = loaded.proto
    _sessions[id(loaded.proto)] = source.session
    return source


_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()
"""Sessions in use by the identity of the ONNX model, which each keeps alive."""


def training_model(model: Modelish, options: Options | None = None, *, optimizer: Optimizer | None = None,
                   loss: str | compiler.Loss | None = None, progress: Progress | None = None, **changes: Any) -> TrainingModel:
    """A model to train: call it on `micro_batch * gradient_accumulation * device_iterations` rows of inputs and labels.

        net = tileflow.nn.Sequential(tileflow.nn.Linear(4, 3))
        model = tileflow.training_model(net, optimizer=tileflow.optim.SGD(lr=0.1), gradient_accumulation=2)
        prediction, loss = model(x, labels)

    Args:
        loss: cross_entropy, nll, mse, l1, bce_with_logits, identity, or a function (builder, outputs) -> loss value; by default
            the option loss, where auto means cross_entropy.
        changes: single options by keyword.
    """
    chosen = _options(options, changes)
    return TrainingModel(_source(model, chosen), chosen, optimizer, _given_loss(chosen) if loss is None else loss, progress)


def inference_model(model: Modelish, options: Options | None = None, *, progress: Progress | None = None, **changes: Any) -> InferenceModel:
    """A model to run: call it on `micro_batch * device_iterations` rows of inputs. Weights are those of every other model of `model`."""
    chosen = _options(options, changes)
    return InferenceModel(_source(model, chosen), chosen, progress)


def compile(model: Modelish, options: Options | None = None, *, training: bool = False, inputs: Sequence[Any] | None = None,
            stop_after: str | None = None, report: str | os.PathLike[str] | None = None, allow_out_of_memory: bool = False,
            **changes: Any) -> compiler.Compilation:
    """Compile a model to a Program without running it: `print(tileflow.compile("model.onnx").to_text())`.

    With `machine` set the tile machine partitions the program and counts its bytes and cycles; the result is a TileCompilation,
    whose text is the report:

        print(tileflow.compile("model.onnx", machine="gc200", available_memory_proportion=0.3, report="out").to_text())

    Args:
        inputs: for a network of layers: its inputs for one micro-batch, as arrays, or as shapes of arrays of `precision`.
        report: folder for report.json, page.html and trace.json.
        allow_out_of_memory: return a program that does not fit the chip instead of raising.

    Raises:
        OutOfTileMemoryError: the program does not fit; the report is written first.
    """
    chosen = _options(options, changes)
    if report is not None and chosen.machine is None:
        raise OptionError("A report is made by the tile machine; name a machine, for example machine='gc200'.")
    if report is not None and stop_after is not None:
        raise OptionError(f"stop_after={stop_after!r} ends the compilation before the tile machine, so there is no report; leave one of them out.")
    compiled = _compile(model, chosen, training, inputs, stop_after)
    if chosen.machine is None or stop_after is not None:
        return compiled
    from . import simulate
    return simulate.compile_tiles(compiled, chosen, model=_model_name(model), folder=report, allow_out_of_memory=allow_out_of_memory)


def tune_available_memory(model: Modelish, options: Options | None = None, *, training: bool = False, inputs: Sequence[Any] | None = None,
                          report: str | os.PathLike[str] | None = None, evaluations: int = 96,
                          progress: Callable[[int, int, str], None] | None = None, **changes: Any) -> TuneResult:
    """Search for the available-memory proportions, one for all and then one per operator, that make the model fastest on a chip.

        found = tileflow.tune_available_memory("model.onnx", machine="gc200")
        found.save("tuned.toml")                         # tileflow compile model.onnx --options tuned.toml

    Args:
        options: `machine` is gc200 unless set; proportions by name pattern are kept, the others are searched.
        inputs: as for `compile`.
        report: folder for the report of the fastest program, with the frontier of cycles against memory.
        evaluations: programs to analyse after the sweep, at most.
        progress: called with programs analysed, how many at most, and the best setting so far.

    Raises:
        OutOfTileMemoryError: no setting fits the chip; the report is written first.
    """
    chosen = _options(options, changes)
    if chosen.machine is None:
        chosen = chosen.clone(machine=DEFAULT_MACHINE)
    from . import simulate
    simulate.machine(chosen)
    compiled = _compile(model, chosen, training, inputs, None)
    return simulate.tune(compiled, chosen, model=_model_name(model), folder=report, evaluations=evaluations, progress=progress)


def _compile(model: Modelish, chosen: Options, training: bool, inputs: Sequence[Any] | None, stop_after: str | None) -> compiler.Compilation:
    graph = _graph(model, chosen, training, inputs)
    batching = Batching(chosen.micro_batch_size, chosen.gradient_accumulation, chosen.device_iterations)
    if not training:
        return compiler.inference(graph, batching, stop_after, chosen.serial_splits)
    return compiler.training(graph, find(_given_loss(chosen)), from_options(chosen), batching, reduction=chosen.accumulation_reduction,
                             loss_scaling=chosen.loss_scaling, stop_after=stop_after, serialised=chosen.serial_splits)


def _graph(model: Modelish, chosen: Options, training: bool, inputs: Sequence[Any] | None) -> Graph:
    """The forward graph for one micro-batch."""
    if not isinstance(model, Module):
        source = OnnxSource(model if isinstance(model, OnnxModel) else load_model(model), chosen)
        return source.graph_for_batch(chosen.micro_batch_size, training).graph
    if inputs is None:
        raise DataError("A network of layers does not say what it takes; give inputs, for example inputs=[(16, 784)].")
    net = NetSource(model, chosen)
    types = []
    for i, given in enumerate(inputs):
        if isinstance(given, tuple):
            types.append(TensorType(chosen.precision, given))
        else:
            array = np.asarray(given)
            types.append(type_of(as_array(array, net.input_dtype(i, array), f"Input {i}")))
    return net.graph(types, training)[0]


def _model_name(model: Modelish) -> str:
    if isinstance(model, Module):
        return type(model).__name__
    return model.proto.graph.name if isinstance(model, OnnxModel) else Path(model).name


@dataclass
class TrainResult:
    """What `train` returns. `history` has one array per figure, one element per epoch (NaN where there is none)."""

    epochs: list[Epoch]
    folder: Path
    _trainer: Trainer
    _model: OnnxModel | None

    @property
    def history(self) -> dict[str, np.ndarray]:
        """epoch, loss, accuracy, test_loss, test_accuracy, samples_per_second as float64 arrays."""
        names = ("epoch", "loss", "accuracy", "test_loss", "test_accuracy", "samples_per_second")
        return {n: np.array([np.nan if getattr(e, n) is None else getattr(e, n) for e in self.epochs], np.float64) for n in names}

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the trained parameters and buffers by name."""
        session = self._trainer.session
        return {n: session[n].copy() for n in session.names("parameter", "buffer")}

    @property
    def model(self) -> TrainingModel:
        return self._trainer.model

    def save_onnx(self, path: str | os.PathLike[str]) -> Path:
        """Write the original ONNX model with the trained weights, atomically.

        Raises:
            ModelError: the model did not come from an ONNX file.
        """
        if self._model is None:
            raise ModelError("This network was built from layers and has no ONNX file to write back; use state_dict().")
        export_model(self._model, self.weights, path)
        return Path(path)

    def evaluate(self, data: Any = None) -> dict[str, float | None]:
        """Mean loss and accuracy of the trained weights on data (anything `train` takes; by default the run's test part)."""
        dataset = self._trainer.test if data is None else _adapted(_measured(open_data(data, self._trainer.options)), self._trainer)
        if dataset is None:
            raise DataError("The run has no test data; give some to evaluate on.")
        loss, accuracy = self._trainer.evaluate(dataset)
        return {"loss": loss, "accuracy": accuracy}

    def __repr__(self) -> str:
        if not self.epochs:
            return f"TrainResult(no epochs, {self.folder})"
        last = self.epochs[-1]
        shown = last.test_accuracy if last.test_accuracy is not None else last.accuracy
        accuracy = "" if shown is None else f", accuracy {100 * shown:.2f} %"
        return f"TrainResult({len(self.epochs)} epochs, loss {last.loss:.4f}{accuracy}, {self.folder})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        def cell(x: float | None, form: str) -> str:
            return "" if x is None or np.isnan(x) else format(x, form)
        rows = "".join(f"<tr><td>{e.epoch}</td><td>{cell(e.loss, '.4f')}</td><td>{cell(e.accuracy, '.2%')}</td><td>{cell(e.test_loss, '.4f')}</td>"
                       f"<td>{cell(e.test_accuracy, '.2%')}</td><td>{e.samples_per_second:,.0f}</td></tr>" for e in self.epochs)
        return ("<table><thead><tr><th>epoch</th><th>loss</th><th>accuracy</th><th>test loss</th><th>test accuracy</th><th>samples/s</th></tr>"
                f"</thead><tbody>{rows}</tbody></table><p>{html.escape(str(self.folder))}</p>")


def train(model: Modelish, options: Options | None = None, *, data: Any = None, optimizer: Optimizer | None = None,
          reporter: Reporter | None = None, **changes: Any) -> TrainResult:
    """Train a model on data and write trained ONNX file, metrics and checkpoint into a run folder.

        result = tileflow.train("model.onnx", data=(x, y), epochs=3, micro_batch_size=32)
        result.save_onnx("trained.onnx")

    Args:
        model: an ONNX file, a loaded one, or a network of layers.
        data: overrides `options.data`: arrays (x, y), a dict, a path, or "digits".
        optimizer: overrides the optimizer that the options describe.
        reporter: gets progress; None: silent.
        changes: single options by keyword.

    Raises:
        TileflowError: in one of its kinds, with a sentence that says how to mend it.
        Interrupted: Ctrl-C; the state is saved and `resume=True` goes on bit for bit.
    """
    chosen = _options(options, {k: v for k, v in changes.items()})
    reporter = reporter or Silent()
    source = _source(model, chosen)
    given = data if data is not None else chosen.data
    if given is None:
        raise DataError("There is no data to train on; give data=(x, y), a path, or the name digits.")
    opened = open_data(given, chosen)
    test = _measured(open_data(chosen.test_data, chosen)) if chosen.test_data else opened.test
    _check_remainder(chosen, len(opened.train))
    wanted = _input_types(source, chosen, opened.train)
    loss = _loss_name(chosen, opened.train)
    label = _label_type(source, wanted, loss)
    train_set = opened.train.adapt_to(wanted, label, chosen)
    test_set = None if test is None else test.adapt_to(wanted, label, chosen)
    for note in train_set.notes:
        reporter.say(note)
    if isinstance(source, OnnxSource) and source.imported is not None:
        for warning in source.imported.warnings:
            reporter.say(warning)
    loop_options = chosen.clone()
    loop_options.output_mode = "all"
    folder = _run_folder(chosen)
    training = TrainingModel(source, loop_options, optimizer, loss, reporter.compiling)
    trainer = Trainer(training, train_set, test_set, loop_options, folder, reporter)
    training.compile(*_example(trainer))
    training.compile_seconds = 0.0
    for part in (train_set, test_set):
        if part is not None and loss in CLASS_LOSSES:
            _check_labels(part, training.program.micro.outputs[0].shape[1])
    if chosen.resume:
        trainer.resume(Path(chosen.resume) if isinstance(chosen.resume, (str, os.PathLike)) else folder / CHECKPOINT)
    trainer.run()
    result = TrainResult(trainer.history, folder, trainer, source.model if isinstance(source, OnnxSource) else None)
    if result._model is not None:
        result.save_onnx(folder / "model.onnx")
    return result


def _measured(data: Data) -> Dataset:
    """The part of a source that is for measuring: its test part where it has one."""
    return data.train if data.test is None else data.test


def _check_remainder(options: Options, rows: int) -> None:
    """Refuse a shorter last batch: the engine's calls have one size."""
    size = options.micro_batch_size * options.gradient_accumulation * options.device_iterations
    if not options.drop_last and rows % size:
        raise OptionError(f"The {rows:,} training rows do not divide into calls of {size:,} (micro_batch_size * gradient_accumulation * "
                          f"device_iterations), and drop_last is off; set drop_last, or choose sizes that divide {rows:,}.")


def _check_labels(dataset: Dataset, classes: int) -> None:
    """Refuse labels that are no class of the model before anything is trained."""
    labels = dataset.labels
    if labels is None:
        return
    rows = labels.reshape(len(labels), -1)
    wrong = (rows < 0) | (rows >= classes)
    if wrong.any():
        at = int(np.flatnonzero(wrong.any(axis=1))[0])
        raise DataError(f"Data {dataset.name}: the label {rows[at][wrong[at]][0]} of row {at} is outside of the model's classes 0..{classes - 1}; "
                        "check the label column or the number of classes of the model.")


def _example(trainer: Trainer) -> tuple[np.ndarray, ...]:
    """Arrays of a whole call, to compile for before anything is read."""
    rows = np.zeros(trainer.loader.combined_batch_size, np.int64)
    return trainer.train.gather(rows)


def _adapted(dataset: Dataset, trainer: Trainer) -> Dataset:
    """Data of a later evaluation, made to fit like the training data."""
    program: Program = trainer.model.program
    types = {v.name: v.type for v in program.inputs}
    label = types.pop(LABELS, None)
    return dataset.adapt_to(types, label, trainer.options)


def _input_types(source: Source, options: Options, dataset: Dataset) -> dict[str, TensorType]:
    """The model's inputs for a micro-batch: an ONNX file declares them, a network takes the data's shapes in its precision."""
    if isinstance(source, OnnxSource):
        return source.graph_for_batch(options.micro_batch_size, True).binding.types
    assert isinstance(source, NetSource)
    wanted = {}
    for name, field in zip(source.input_names, dataset.fields.values(), strict=False):
        dtype = options.precision if kind_of(field.array.dtype) in "fu" else field.array.dtype.name
        wanted[name] = TensorType(dtype, (options.micro_batch_size, *field.sample))
    return wanted


def _given_loss(options: Options) -> str:
    """The option loss without data to look at."""
    return "cross_entropy" if options.loss == "auto" else options.loss


def _loss_name(options: Options, dataset: Dataset) -> str:
    """`auto` by the labels: classes for whole numbers, squared error otherwise."""
    if options.loss != "auto":
        return options.loss
    if dataset.label is None:
        raise DataError("The data have no labels: name them with the option label, or set loss='identity' for a model that computes its loss.")
    values = dataset.label.array
    if values.dtype.kind in "iub":
        return "cross_entropy"
    one = values.ndim == 1 and values.size and bool(np.all(np.mod(values[:65536], 1) == 0)) and float(np.min(values)) >= 0
    return "cross_entropy" if one else "mse"


def _label_type(source: Source, wanted: Mapping[str, TensorType], loss: str) -> TensorType | None:
    """The element type and shape that the loss takes; None where the model computes its loss itself."""
    if loss == "identity":
        return None
    graph, _ = source.graph(list(wanted.values()), True)
    return label_type(loss, graph.outputs[0].type)


def _run_folder(options: Options) -> Path:
    """The run's folder, made if need be.

    Raises:
        CheckpointError: it cannot be made or written to, or holds an earlier run that is not to be resumed.
    """
    folder = Path(options.out) if options.out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    if not options.resume and (folder / CHECKPOINT).exists():
        raise CheckpointError(f"The folder {folder} already holds a run; go on from it with resume, or choose another one with out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise CheckpointError(f"Cannot write to the folder {folder} ({error.strerror}); choose another one with out.") from None
    return folder


def infer(model: Modelish, options: Options | None = None, *, data: Any = None, progress: Progress | None = None,
          **changes: Any) -> dict[str, np.ndarray]:
    """Run a model over all rows of data (labels, if any, are not used).

    Returns:
        the model's outputs by name, [rows, ...] each.
    """
    chosen = _options(options, changes)
    source = _source(model, chosen)
    given = data if data is not None else chosen.data
    if given is None:
        raise DataError("There is no data to run on; give data=x, a path, or the name digits.")
    opened = open_data(given, chosen)
    dataset = _measured(opened)
    if isinstance(source, OnnxSource):
        wanted = source.graph_for_batch(chosen.micro_batch_size, False).binding.types
    else:
        wanted = _input_types(source, chosen, dataset)
    dataset = dataset.adapt_to(wanted, None, chosen)
    run_options = chosen.clone()
    run_options.gradient_accumulation, run_options.output_mode = 1, "all"
    model_ = InferenceModel(source, run_options, progress)
    loader = DataLoader(model_.options, dataset, shuffle=False, pad_last=True)
    parts: list[list[np.ndarray]] = []
    for batch in loader:
        outputs = model_(*batch[:len(dataset.fields)])
        parts.append(list(outputs) if isinstance(outputs, tuple) else [outputs])
    names = [v.name for v in model_.program.micro.outputs]
    return {name: np.concatenate([p[i] for p in parts])[:len(dataset)] for i, name in enumerate(names)}
