"""What a model file is, in words and numbers, before anything is compiled."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tileflow.graph import CODES, FLOATS, Graph
from tileflow.graph.op import qualified
from tileflow.system.errors import OptionError, TileflowError
from tileflow.system.text import one_line

from .bind import OpenSizesError
from .importer import import_graph
from .inspect_training import TrainingReport, training_report
from .model import OTHER_TYPES, OnnxModel, title
from .refused import UnsupportedNodesError, unsupported
from .tensors import DTYPES

DEFAULT_DOMAIN = "ai.onnx"


@dataclass(frozen=True)
class Report:
    """The summary of a model.

    parameters, parameter_bytes: elements and bytes of the floating initializers, and of Constant nodes that hold more than a number.
    operators: how many nodes of each.
    unsupported: (node, why) of everything tileflow cannot take. notes: what else the import says: open sizes, an overridden batch.
    graph: the imported graph if all sizes were known and everything is supported; open_sizes: they were not.
    in_pieces: inference runs it as several programs, and Python between them.
    training: what training would do, where that was asked.
    """

    file: str
    producer: str
    ir_version: int
    opset: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    operators: Mapping[str, int]
    unsupported: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    graph: Graph | None
    open_sizes: bool = False
    in_pieces: bool = False
    training: TrainingReport | None = None

    @property
    def runs(self) -> str:
        """Whether and how inference runs the model."""
        if self.in_pieces:
            return "in pieces, because sizes, turns or types in it follow from data"
        if self.unsupported:
            return f"no, {len(self.unsupported)} of its nodes and inputs are unsupported"
        if self.graph is not None:
            return "whole, as one program"
        return "by the names of its operators; whether whole is known once its sizes are given" if self.open_sizes else "not as it was asked for"

    def text(self, verbose: bool = False) -> str:
        """The summary as lines; `verbose` adds the nodes with their types."""
        lines = [one_line(self.file), f"  producer    {one_line(self.producer)}", f"  IR version  {self.ir_version}",
                 f"  opset       {', '.join(f'{one_line(domain) or DEFAULT_DOMAIN} {version}' for domain, version in self.opset.items())}"]
        lines += [f"  input       {one_line(text)}" for text in self.inputs] + [f"  output      {one_line(text)}" for text in self.outputs]
        lines.append(f"  parameters  {self.parameters:,} ({self.parameter_bytes:,} bytes)")
        operators = [(one_line(name), count) for name, count in self.operators.items()]
        width = max((len(name) for name, _ in operators), default=0)
        lines += ["", f"Operators ({sum(self.operators.values())} nodes)"]
        lines += [f"  {name:{width}}  {count:6}" for name, count in operators]
        if self.unsupported:
            lines += ["", f"Unsupported ({len(self.unsupported)})"] + [f"  {one_line(f'{node}: {why}')}" for node, why in self.unsupported]
        else:
            lines += ["", "Every operator is supported."]
        lines.append(f"Runs: {self.runs}.")
        if self.training is not None:
            lines += self.training.lines(verbose)
        lines += [f"Note: {one_line(note)}" for note in self.notes]
        if verbose and self.graph is not None:
            lines += ["", "Nodes as imported"] + [f"  {node!r}    # {node.origin}" for node in self.graph.nodes]
        return "\n".join(lines)


def inspect_model(model: OnnxModel, dims: Mapping[str, int] | None = None, batch: int | None = None, training: bool = False, *,
                  freeze: Sequence[str] = (), trainable: Sequence[str] = (), tie: Sequence[str] = (), untie: Sequence[str] = ()) -> Report:
    """Summarise a model and name everything unsupported in it.

    With all sizes known (`dims` and `batch`, or batch 1 where the file leaves it open) the whole import is tried; else operators are
    judged by name. Inputs and outputs are shown as the file declares them, or where `dims` or `batch` is given as they then are.

    Args:
        training: import it for training, and say what training will do with it.
        freeze, trainable, tie, untie: name patterns as for `import_graph`.
    """
    proto = model.proto
    imported, notes, refused, open_sizes, in_pieces = None, [], unsupported_nodes(model), False, False
    try:
        imported = import_graph(model, dims=dims, batch=_batch(model, batch), training=training, freeze=freeze, trainable=trainable, tie=tie,
                                untie=untie)
        notes = imported.warnings
    except UnsupportedNodesError as error:
        refused = [r for r in error.refused if training or r not in error.waiting]
        in_pieces = set(error.refused) == set(error.waiting)
        cut = [f"{name}: {why}" for name, why in error.waiting]
        notes = [f"Inference runs it in pieces, because sizes or turns in it follow from data ({'; '.join(cut[:3])}"
                 + (f"; and {len(cut) - 3} more)." if len(cut) > 3 else ").")] if cut else []
        if training and in_pieces:
            notes.append("tileflow.training_model trains it call by call where those sizes depend on no weight that is trained (docs/dynamic.md).")
    except OptionError:
        raise
    except TileflowError as error:
        notes, open_sizes = [str(error)], isinstance(error, OpenSizesError)
    graph = imported.graph if imported is not None else None
    told = training_report(model, imported, freeze=freeze, trainable=trainable, tie=tie, untie=untie) if training else None
    if told is not None:
        notes = [note for note in notes if note not in (*told.ties, *told.doubts)]
    known = {v.name: v.type for v in (*graph.inputs, *graph.outputs)} if graph is not None and (dims or batch is not None) else {}
    ports = [tuple(f"{p.name}: {known[p.name]}" if p.name in known else str(p) for p in side) for side in (model.inputs, model.outputs)]
    floats = [t for name, t in model.tensors.items() if DTYPES.get(t.data_type) in FLOATS and (name in model.initializers or math.prod(t.dims) > 1)]
    return Report(
        file=model.where, producer=" ".join(filter(None, (proto.producer_name, proto.producer_version))) or "unknown",
        ir_version=proto.ir_version, opset=model.opset, inputs=ports[0], outputs=ports[1],
        parameters=sum(math.prod(t.dims) for t in floats),
        parameter_bytes=sum(math.prod(t.dims) * np.dtype(DTYPES[t.data_type]).itemsize for t in floats),
        operators=dict(Counter(qualified(n.domain, n.op_type) for n in proto.graph.node).most_common()),
        unsupported=tuple(refused), notes=tuple(notes), graph=graph, open_sizes=open_sizes, in_pieces=in_pieces,
        training=told)


def _batch(model: OnnxModel, batch: int | None) -> int | None:
    """Batch 1 where the file leaves the first dimension of an input open and none was chosen."""
    open_batch = any(p.dims and not isinstance(p.dims[0], int) for p in model.inputs)
    return 1 if batch is None and open_batch else batch


def unsupported_nodes(model: OnnxModel) -> list[tuple[str, str]]:
    """(node or input, why) of what tileflow does not have: operators, judged by name, and types of inputs."""
    functions = {(f.domain, f.name): f for f in model.proto.functions}
    found = ((title(node), unsupported(node, model.opset, functions, hosted=True)) for node in model.proto.graph.node)
    inputs = [(f"input '{p.name}'", f"it is {p.dtype}") for p in model.inputs if p.dtype not in CODES and p.dtype not in OTHER_TYPES]
    return inputs + [(name, why) for name, why in found if why is not None]
