"""Programs without running them: compile, and tune for the tile machine."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import compiler
from ..compiler import CompileOptions
from ..graph import Graph, TensorType, type_of
from ..importers.onnx import OnnxModel, fixed_batch
from ..loss import find, without_labels
from ..nn import Module
from ..optim import from_options
from ..options.options import Options
from ..program.batching import Batching
from ..runtime.arrays import as_array
from ..runtime.net_source import NetSource
from ..runtime.onnx_source import OnnxSource
from ..strategy.mark import Marking
from ..system.errors import DataError, OptionError
from .models import Modelish, chosen_options, load, model_name

if TYPE_CHECKING:
    from ..exploration.simulate import TuneResult

DEFAULT_MACHINE = "gc200"


def compile(model: Modelish, options: Options | None = None, *, training: bool = False, inputs: Sequence[Any] | None = None,
            stop_after: str | None = None, report: str | os.PathLike[str] | None = None, allow_out_of_memory: bool = False,
            levers: bool = False, **changes: Any) -> compiler.Compilation:
    """Compile a model to a Program without running it: `print(tileflow.compile("model.onnx").to_text())`.

    With `machine` set the tile machine partitions the program and counts its bytes and cycles; the result is a TileCompilation,
    whose text is the report:

        print(tileflow.compile("model.onnx", machine="gc200", available_memory_proportion=0.3, report="out").to_text())

    Args:
        inputs: for a network of layers: its inputs for one micro-batch, as arrays, or as shapes of arrays of `precision`.
        report: folder for report.json, page.html and trace.json.
        allow_out_of_memory: return a program that does not fit the chip instead of raising; nothing is tried to make it
            fit.
        levers: try changes of options that make a program that fits faster or smaller, and one that does not fit; they
            are in the report, and `tiled.levers()`.

    Raises:
        OutOfTileMemoryError: the program does not fit; the report is written first.
    """
    chosen = chosen_options("compile", options, changes, training)
    if report is not None and chosen.machine is None:
        raise OptionError("A report is made by the tile machine; name a machine, for example machine='gc200'.")
    if allow_out_of_memory and chosen.machine is None:
        raise OptionError("allow_out_of_memory is about the tile machine; name one, for example machine='gc200', or leave it out.")
    if levers and (chosen.machine is None or stop_after is not None):
        raise OptionError("levers are changes of a program on the tile machine; name a machine, and compile it to the end, or leave it out.")
    if chosen.given("machine", files=False) and chosen.machine is not None and stop_after is not None:
        raise OptionError(f"stop_after={stop_after!r} ends the compilation before the tile machine, so machine has no effect; leave one of them out.")
    if report is not None and stop_after is not None:
        raise OptionError(f"stop_after={stop_after!r} ends the compilation before the tile machine, so there is no report; leave one of them out.")
    found = compiled(model, chosen, training, inputs, stop_after)
    if chosen.machine is None or stop_after is not None:
        return found
    from ..exploration import simulate
    return simulate.compile_tiles(found, chosen, model=model_name(model), folder=report, allow_out_of_memory=allow_out_of_memory,
                                  made=_maker(model, found, training, inputs), levers=levers)


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
    chosen = chosen_options("tune", options, changes, training)
    if chosen.machine is None:
        chosen = chosen.clone(machine=DEFAULT_MACHINE)
    from ..exploration import planning, simulate
    planning.machine(chosen)
    given = chosen.available_memory_proportion
    if chosen.given("available_memory_proportion", files=False) and (not isinstance(given, Mapping) or "*" in given):
        raise OptionError("tune searches for the available_memory_proportion of all operators, so it cannot be given; "
                          "operators named by a pattern, as in conv*=0.1, keep theirs.")
    found = compiled(model, chosen, training, inputs, None)
    return simulate.tune(found, chosen, model=model_name(model), folder=report, evaluations=evaluations, progress=progress,
                         made=_maker(model, found, training, inputs))


def compiled(model: Modelish, chosen: Options, training: bool, inputs: Sequence[Any] | None, stop_after: str | None) -> compiler.Compilation:
    """A model as a Program, by options that are checked."""
    rows, given = chosen.micro_batch_size, chosen.given("micro_batch_size")
    notes: list[str] = []
    if isinstance(model, Module):
        graph = _recorded(model, chosen, training, inputs)
        shape = graph.inputs[0].type.shape if graph.inputs and not given else ()
        rows = shape[0] if shape else rows
    else:
        if inputs is not None:
            raise OptionError("inputs are for a network of layers; an ONNX file declares its own: give micro_batch_size, and dims for open sizes.")
        source = OnnxSource(model if isinstance(model, OnnxModel) else load(model), chosen)
        graph = source.graph(list(source.input_types().values()), training)[0]
        if not given and (declared := fixed_batch(source.model)) is not None:
            rows = declared
            notes.append(f"The micro-batch is {rows}, which the file declares; micro_batch_size (--micro-batch-size) takes its place.")
    batching = Batching(rows, chosen.gradient_accumulation, chosen.device_iterations)
    found = _compiled(graph, chosen, training, batching, stop_after)
    found.notes += notes
    return found


def _compiled(graph: Graph, chosen: Options, training: bool, batching: Batching, stop_after: str | None) -> compiler.Compilation:
    """The graph of one micro-batch as a Program."""
    bound, free = None, False
    if chosen.machine is not None:
        from ..exploration.planning import any_number, bytes_per_ipu
        bound, free = bytes_per_ipu(chosen), any_number(chosen)
    marking = Marking.of(chosen, bound, free)
    # It is one replica's program: what is between replicas, and computed again, is the tile machine's to plan.
    wanted = replace(CompileOptions.of(chosen), marking=marking, grouping={}, broadcast_buffers=True, checkpoints=(),
                     stop_after=stop_after)
    if not training:
        return compiler.inference(graph, batching, wanted)
    loss = without_labels(graph.outputs[0]) if chosen.loss == "auto" else chosen.loss
    return compiler.training(graph, find(loss, chosen).within(graph), from_options(chosen), batching, wanted)


def _maker(model: Modelish, found: compiler.Compilation, training: bool, inputs: Sequence[Any] | None) -> Callable[[Options], compiler.Compilation]:
    """Compiles the same model with other options; a network of layers with inputs of as many rows as its micro-batch then has."""
    def made(wanted: Options) -> compiler.Compilation:
        rows, before = wanted.micro_batch_size, found.program.batching.micro_batch
        changed = wanted.given("micro_batch_size") and rows != before
        return compiled(model, wanted, training, inputs if inputs is None or not changed else [_rows(given, before, rows) for given in inputs], None)
    return made


def _rows(given: Any, before: int, rows: int) -> Any:
    """An input of fewer rows; OptionError where its first size is not that of the micro-batch."""
    shape = given if isinstance(given, tuple) else np.shape(given)
    if not shape or shape[0] != before or rows > before:
        raise OptionError(f"An input of the shape {shape} has no {rows} rows of a micro-batch of {before}.")
    return (rows, *shape[1:]) if isinstance(given, tuple) else np.asarray(given)[:rows]


def _recorded(model: Module, chosen: Options, training: bool, inputs: Sequence[Any] | None) -> Graph:
    """The forward graph of a network of layers for one micro-batch."""
    if inputs is None:
        raise DataError("A network of layers does not say what it takes; give inputs, for example inputs=[(16, 784)].")
    net = NetSource(model, chosen)
    types = []
    for i, given in enumerate(inputs):
        if isinstance(given, tuple):
            if not all(isinstance(size, int) and size >= 0 for size in given):
                raise DataError(f"Input {i} is {given!r}; give a shape, a tuple of whole numbers from 0 on, or an array of the type that it has.")
            types.append(TensorType(net.dtype, given))
        else:
            array = np.asarray(given)
            types.append(type_of(as_array(array, net.input_dtype(i, array), f"Input {i}")))
    return net.graph(types, training)[0]
