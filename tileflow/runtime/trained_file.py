"""ONNX files of models: the original one with new weights, or that of a network of layers; written, read again as it stands, and kept if it computes
what the engine does."""
from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .. import compiler
from ..compiler import CompileOptions
from ..executable.engine import Engine
from ..graph import Graph, TensorType, needed_for, type_of
from ..graph.digest import digest
from ..graph.region import draws, evaluated
from ..importers.onnx import FileForm, OnnxModel, UnsupportedNodesError, graph_model, load_model
from ..importers.onnx.export import export_model, raw_bytes, rehearse_export, set_metadata, write_model
from ..importers.onnx.hosted import is_plain
from ..options.options import Options
from ..program.batching import Batching
from ..state import Session, build
from ..system.errors import ModelError, UnsupportedError
from ..system.text import one_line
from .arrays import as_array
from .executable import make_engine
from .host import Host, Progress
from .net_source import NetSource
from .onnx_source import OnnxSource
from .source import Source
from .training_cut import is_cut

TOLERANCE = 1e-3
"""Largest difference of an output over its largest element. In float32 there is none at all where both files fold the same constants;
weights trained in float64 are rounded to the types of the file."""
SHOWN = 300
"""Characters of names in a sentence."""
HALF_TOLERANCE = 3e-2
"""The same for outputs of 16-bit floats."""
FLIPPED = 0.01
"""Share of whole-number outputs (the place of a maximum, say) that rounding may change."""


def write_trained(source: Source, weights: Mapping[str, np.ndarray], path: Path, options: Options, inputs: Sequence[np.ndarray],
                  metadata: Mapping[str, str | None] | None = None, progress: Progress | None = None,
                  form: FileForm | None = None) -> bool:
    """Write the model of `source` with `weights` and `metadata` to `path`, in the form that `options.keep_training_mode` asks for, and check it.

    The new file is read again, and its outputs for `inputs` (a micro-batch) are compared with the engine's before it takes the place of an
    older one. In the form for inference it is imported as it stands: what is left in training mode would show.

    Args:
        form: of a network of layers: how it becomes a file.

    Returns:
        whether the file, read again, is the very graph that the source is, so that with other weights it would be as
        right.

    Raises:
        ModelError: what was asked is for other models, there is no file or network, or the new file computes something
            else; nothing is written.
        UnsupportedError: ONNX has no words for a layer of the network.
        CheckpointError: the file cannot be written.
    """
    if isinstance(source, NetSource):
        if options.keep_training_mode:
            raise ModelError(f"The network {type(source.net).__name__} is written in the form for inference only; leave keep_training_mode out.")
        write_network(source, weights, path, options, inputs, form or FileForm(), metadata, progress)
        return False
    if not isinstance(source, OnnxSource):
        raise ModelError("The model has no ONNX file to write its weights into: it is a program out of an executable, "
                         "or a module of PyTorch's. Write the file where the model is, or save() another executable; "
                         "an executable of an ONNX file has that file in it.")
    if form is not None:
        raise ModelError(f"{source.model.where} is an ONNX file, which keeps its opset, its names and its sizes; leave out what would change them.")
    run = _plain(options)
    expected = _outputs(source, run, inputs, progress)
    alike = False

    def check(new: Path) -> None:
        nonlocal alike
        written = _read_again(load_model(new), source, run, not options.keep_training_mode)
        for name, found in _outputs(written, run, inputs, progress).items():
            _compare(name, expected[name], found, path)
        with contextlib.suppress(UnsupportedError):               # sizes in it follow from data
            alike = _are_alike(source, written, _given(source, inputs))
    export_model(source.model, weights, path, keep_training_mode=options.keep_training_mode, metadata=metadata, check=check)
    return alike


def rehearse(source: OnnxSource, path: Path, options: Options, inputs: Sequence[np.ndarray],
             metadata: Mapping[str, str | None] | None = None) -> int:
    """Raise what `write_trained` would raise for `path`, as far as that can be known before the weights are trained. Nothing is written or compiled.

    The file is made in memory and read again. Where both readings are one graph there is nothing to compare; else the operators' references compute
    both, for one row where the file takes any number of them.

    Args:
        inputs: a micro-batch.

    Returns:
        the bytes of the file's tensors.

    Raises:
        ModelError: what would be written is not valid, or computes something else.
        CheckpointError: it could not be written to `path`.
    """
    run = _plain(options)
    model = rehearse_export(source.model, path, keep_training_mode=options.keep_training_mode, metadata=metadata)
    written = _read_again(model, source, run, not options.keep_training_mode)
    arrays = _given(source, inputs)
    try:
        if _are_alike(source, written, arrays):
            return raw_bytes(model.proto)
        if all(port.dims and not isinstance(port.dims[0], int) for port in source.model.inputs):
            arrays = [a[:1] for a in arrays]
        graphs = [_stateless(s, arrays, with_weights=True) for s in (source, written)]
    except UnsupportedNodesError as error:
        if not is_cut(error):
            raise
        return raw_bytes(model.proto)  # sizes in it follow from data: only a run of its pieces shows what it computes
    expected, found = (evaluated(graph, arrays) for graph in graphs)
    for value, a, b in zip(graphs[0].outputs, expected, found, strict=True):
        _compare(value.name, a, b, path)
    return raw_bytes(model.proto)


def _are_alike(source: OnnxSource, written: OnnxSource, inputs: Sequence[np.ndarray]) -> bool:
    """Both compute the same of these inputs, whatever the weights are."""
    return len({digest(_stateless(s, inputs)) for s in (source, written)}) == 1


def _stateless(source: OnnxSource, inputs: Sequence[np.ndarray], with_weights: bool = False) -> Graph:
    """What a source computes for these inputs, whatever of it is trained; its weights as constants, or as nothing but inputs."""
    graph, weights = _drawn(source, inputs)
    for state in graph.states:
        state.kind, state.trainable = "parameter", False
    if with_weights:
        graph.constants.update({s.input: weights[s.name] for s in graph.states})
    return graph


def _read_again(model: OnnxModel, source: OnnxSource | NetSource, options: Options, as_written: bool) -> OnnxSource:
    """A written file as a source, which draws the random numbers that its own source would draw now."""
    session = Session()
    session.micro_batches = source.session.micro_batches
    return OnnxSource(model, options, session, as_written)


def _drawn(source: OnnxSource | NetSource, inputs: Sequence[np.ndarray]) -> tuple[Graph, Mapping[str, np.ndarray]]:
    """The graph for these inputs, with its random streams numbered in their order, as those of a file are: it says seeds and no streams."""
    graph, initial = source.graph([type_of(a) for a in inputs], False)
    numbers: dict[int, int] = {}
    for node in graph.nodes:
        given = node.op.attributes()
        if draws(node.op) and "stream" in given and given.get("seed") is None:
            number = numbers.setdefault(given["stream"], len(numbers))
            node.op = dataclasses.replace(node.op, stream=number)                     # type: ignore[type-var]
    return graph, initial


def write_network(source: NetSource, weights: Mapping[str, np.ndarray], path: Path, options: Options,
                  inputs: Sequence[np.ndarray], form: FileForm,
                  metadata: Mapping[str, str | None] | None = None, progress: Progress | None = None) -> None:
    """Write a network of layers as it is for inference, with `weights`; see `write_trained`.

    Casts that a mixed precision adds are a way of computing and no part of the file; what layers store in 16 bits is stored so. A file has no memory
    from one run to the next: what `forward` writes into buffers is no part of it either, which a warning says where outputs depend on it.
    """
    run = _plain(options)
    arrays = _given(source, inputs)
    types = [type_of(a) for a in arrays]
    try:
        graph = source.graph(types, False)[0]
        other = source.graph(_longer(types), False)[0] if form.batch is not None else None
        forgotten = _read_and_written(graph)
        for recorded in (graph, other):
            if recorded is not None:
                recorded.write_nothing()
        proto = graph_model(graph, form, other)
    except UnsupportedError as error:
        raise UnsupportedError(f"{type(source.net).__name__}: {error}") from None
    if forgotten:
        names = one_line(", ".join(forgotten), SHOWN)
        warnings.warn(f"{type(source.net).__name__} writes buffers in forward() that its outputs depend on ({names}). An ONNX file has no "
                      f"memory from one run to the next: each run of {path} begins with what they are now.", stacklevel=2)
    set_metadata(proto, metadata or {})
    stored = {s.name: np.asarray(weights[s.name]).astype(s.input.type.numpy) for s in graph.states}
    given = dict(zip((v.name for v in proto.graph.input), arrays, strict=True))
    expected = list(_outputs(source, run, arrays, progress).values())

    def check(new: Path) -> None:
        written = _read_again(load_model(new), source, run, True)
        check_parameters(written, list(given.values()), {s.name for s in graph.parameters} & {t.name for t in proto.graph.initializer})
        for (name, found), wanted in zip(_outputs(written, run, list(given.values()), progress).items(), expected, strict=True):
            _compare(name, wanted, found, path)
    write_model(proto, stored, path, check=check)


def _read_and_written(graph: Graph) -> list[str]:
    """States that the graph writes and whose value before that its outputs depend on."""
    _, read = needed_for(graph.outputs, graph.nodes)
    return [s.name for s in graph.states if s.output is not None and s.input in read]


def check_parameters(written: OnnxSource, inputs: Sequence[np.ndarray], wanted: set[str]) -> None:
    """Raise ModelError where a file, read again, has other parameters to train."""
    found = {s.name for s in written.graph([type_of(a) for a in inputs], False)[0].parameters}
    if found != wanted:
        raise ModelError(f"The file was not written: read again, {', '.join(sorted(found ^ wanted))} would be parameters on one side only; "
                         "please report this with the network.")


def _longer(types: Sequence[TensorType]) -> list[TensorType]:
    """The types with one row more: of every input that has as many rows as the first one."""
    rows = next((t.shape[0] for t in types if t.rank), None)
    if rows is None:
        raise UnsupportedError("no input has a first dimension that could be symbolic; give batch=None.")
    return [t.with_shape((rows + 1, *t.shape[1:])) if t.rank and t.shape[0] == rows else t for t in types]


def _plain(options: Options) -> Options:
    """The options of a single run that only computes."""
    return options.clone(gradient_accumulation=1, device_iterations=1, strategy="none", replication_factor=1, input_group_size=1, replica_grouping={},
                         output_mode="all", frozen=(), trainable=(), tie=(), untie=())


def _given(source: OnnxSource | NetSource, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Inputs as the source takes them."""
    return [as_array(a, source.input_dtype(i, np.asarray(a)), f"input {i}") for i, a in enumerate(inputs)]


def _outputs(source: OnnxSource | NetSource, options: Options, inputs: Sequence[np.ndarray], progress: Progress | None) -> dict[str, np.ndarray]:
    """What the engine computes for one micro-batch, with the session's weights, in the order of the outputs."""
    arrays = _given(source, inputs)

    def made() -> Engine:
        graph, initial = _drawn(source, arrays)
        chosen = CompileOptions(serialized=options.serial_splits, writes=False)
        program = compiler.inference(graph, Batching(1), chosen).program
        return make_engine(program, source.session, initial, Host.of(options), progress=progress)

    def run() -> dict[str, np.ndarray]:
        try:
            engine = build(made)
        except UnsupportedNodesError as error:
            if isinstance(source, NetSource) or not is_cut(error):
                raise
            pieces = source.pieces(Host.of(options), progress)                          # sizes in it follow from data
            found = pieces.run({port.name: a for port, a in zip(source.model.inputs, arrays, strict=True)})
            return {name: a for name, a in zip(pieces.outputs, found, strict=True) if is_plain(a)}
        return {v.name: a[0] for v, a in zip(engine.outputs, engine.call(arrays), strict=True)}
    return source.session.turn.call(run)


def _compare(name: str, expected: np.ndarray, found: np.ndarray, path: Path) -> None:
    """Raise ModelError where the outputs differ by more than rounding."""
    if found.dtype.kind in "biu":
        far = float(np.mean(found != expected)) if found.size else 0.0
        if far > FLIPPED:
            raise _mismatch(name, f"{far:.0%} of its elements differ", path)
        return
    a, b = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    scale = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
    largest = float(np.max(difference, initial=0.0))
    if not largest <= (HALF_TOLERANCE if found.dtype.itemsize == 2 else TOLERANCE) * scale:
        raise _mismatch(name, f"it differs by {largest:.3g}, and its largest element is {scale:.3g}", path)


def _mismatch(name: str, how: str, path: Path) -> ModelError:
    return ModelError(f"The file {path} was not written: read again, it does not compute what the engine does for the output '{name}' "
                      f"({how}). The weights are as they were; please report this with the model.")
