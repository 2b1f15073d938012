"""An exported module computed here beside PyTorch itself, on two inputs: exporters drop and freeze things without a
word."""
from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .. import compiler
from ..executable.engine import Engine
from ..graph import Graph, Value
from ..graph.copy import copied
from ..importers.onnx import Imported
from ..importers.onnx.domains.marks import DOMAIN, MARK, PRINT
from ..program.batching import Batching
from ..runtime.executable import make_engine
from ..runtime.host import Host
from ..state import Session
from ..system.errors import UnsupportedError, see
from ..system.nested import Form
from ..system.text import one_line
from .amend import amend, draw_nothing
from .calls import array_of
from .export import Exported
from .homes import own_arrays
from .observed import Observed, observe
from .tracing import WithoutDraws, put_back, quietly

CLOSE = 64
"""Spacings of numbers of the largest element's size within which nothing is asked further."""
FAR = 16
"""So many times PyTorch's own distance from its float64 an element may be away."""
LONGEST = 160
"""Characters of a node's name."""
ALIKE = 0.01
"""Whole numbers of an output that may differ, as an argmax of numbers that are almost equal does."""
BUFFER = "the buffer"
FLOAT32 = 2.0 ** -23
Arrays = list[np.ndarray]


def check(
    module: torch.nn.Module,
    form: Form,
    tensors: Sequence[torch.Tensor],
    seen: Observed,
    made: Exported,
    imported: Imported,
    host: Host,
) -> None:
    """Compare outputs, losses and written buffers with PyTorch's, with nothing drawn on either side, and on a copy of
    the weights. The second call goes on from the buffers that the first has written.

    Args:
        tensors: inputs of one micro-batch. seen: what the module made of them. imported: the exported model in the
            module's own types.

    Raises:
        UnsupportedError: one departs by more than rounding; the sentence has both numbers and the first node that does.
    """
    graph = copied(imported.graph)
    names = _outputs(graph, made)
    for node in graph.walk():  # types are the module's own: what is cast was asked for, and departs by that
        node.origin = replace(node.origin, hints=replace(node.origin.hints, casting=None, partials=None))
    if draw_nothing(graph):
        return                                              # nothing can be said of what draws otherwise
    weights = {**imported.weights, **own_arrays(module, made.names, {s.name for s in graph.states})}
    engine = _engine(graph, weights, host)
    for given, known in ((tensors, seen), (_varied(tensors), None)):
        theirs = known or observe(module, form, given, made.trains, seen)
        expected = [array_of(t) for t in theirs.returned] + [
            array_of(theirs.written[path]) for path in _paths(made, theirs)
        ]
        found = [a[0] for a in engine.call([np.ascontiguousarray(array_of(t)).reshape(t.shape) for t in given])]
        wide: Arrays | None = None
        for i, (name, ours, want) in enumerate(zip(names, found, expected, strict=False)):
            if _near(ours, want, CLOSE * _spacing(want)):
                continue
            wide = _in_float64(module, form, given, made, None if known else seen) if wide is None else wide
            error = (
                np.max(np.abs(want.astype(np.float64) - wide[i]), initial=0.0)
                if wide and wide[i].shape == want.shape
                else 1e-3 * _largest(want)
            )
            if not _near(ours, want, CLOSE * _spacing(want) + FAR * error):
                raise UnsupportedError(
                    _sentence(module, given, made, imported, weights, host, name, ours, want, None if known else seen)
                )


def _outputs(graph: Graph, made: Exported) -> list[str]:
    """Let a graph give the module's results, then what it writes into buffers; returns what messages call them."""
    amend(graph, made)
    names = [f"output {i}" + (" (the loss)" if i in made.losses else "") for i in range(len(graph.outputs))]
    for name in made.written:
        value = graph.state(name).output
        assert value is not None
        graph.outputs.append(value)
        names.append(f"{BUFFER} {name}")
    graph.losses = []
    return names


def _paths(made: Exported, seen: Observed) -> list[str]:
    """The module's paths of the buffers that are written, in the order of the graph's outputs."""
    by_name = {made.names[path]: path for path in seen.written}
    return [by_name[name] for name in made.written if name in by_name]


def _engine(graph: Graph, weights: Mapping[str, np.ndarray], host: Host) -> Engine:
    program = compiler.inference(graph, Batching(1)).program
    return make_engine(program, Session(), weights, host, kept=False)


def _varied(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Other inputs of the same kind: rows in another order, floats smaller by a tenth, with the other sign where there
    are both."""
    found = []
    for t in tensors:
        rolled = t.roll(1, 0) if t.dim() and t.shape[0] > 1 else t.flip(-1) if t.dim() > 1 else t
        signed = t.is_floating_point() and bool((t < 0).any()) and bool((t > 0).any())
        found.append((rolled * (-0.9 if signed else 0.9)).to(t.dtype) if t.is_floating_point() else rolled.clone())
    return found


def _largest(array: np.ndarray) -> float:
    finite = np.abs(array.astype(np.float64))
    return float(np.max(finite, initial=0.0, where=np.isfinite(finite)))


def _spacing(array: np.ndarray) -> float:
    """Of numbers as large as the largest; exporters write numbers of forward() in float32, so that float64 is no
    finer."""
    if array.dtype.kind not in "fV" or array.dtype.kind in "iub":
        return 0.0
    precision = 2.0 ** -8 if array.dtype.name == "bfloat16" else max(float(np.finfo(array.dtype).eps), FLOAT32)
    return precision * max(_largest(array), precision)


def _near(ours: np.ndarray, want: np.ndarray, allowed: float) -> bool:
    """Elements differ by no more than allowed; what is not finite is alike."""
    if ours.shape != want.shape:
        return ours.size == want.size == 1 and _near(ours.reshape(()), want.reshape(()), allowed)
    if want.dtype.kind in "iub":
        return bool(np.mean(ours != want) <= ALIKE) if want.size else True
    a, b = ours.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    return bool(np.all(np.abs(a - b)[finite] <= allowed)) and bool(
        np.array_equal(a[~finite], b[~finite], equal_nan=True)
    )


def _in_float64(
    module: torch.nn.Module, form: Form, tensors: Sequence[torch.Tensor], made: Exported, after: Observed | None
) -> Arrays:
    """The same by PyTorch in float64; nothing where the module cannot be had so."""
    try:
        wide = copy.deepcopy(module).double()
        given = [t.double() if t.is_floating_point() else t for t in tensors]
        found = observe(wide, form, given, made.trains, after)
        return [
            array_of(t).astype(np.float64)
            for t in (*found.returned, *(found.written[path] for path in _paths(made, found)))
        ]
    except Exception:  # whatever a module of the user's does with what it did not expect
        return []


def _sentence(
    module: torch.nn.Module,
    tensors: Sequence[torch.Tensor],
    made: Exported,
    imported: Imported,
    weights: Mapping[str, np.ndarray],
    host: Host,
    name: str,
    ours: np.ndarray,
    want: np.ndarray,
    first: Observed | None,
) -> str:
    """What departs, by how much, and where it begins.

    Args:
        first: of the second call: what the first one did.
    """
    far: tuple[Any, ...] = ()
    if ours.shape == want.shape:
        distance = np.nan_to_num(np.abs(ours.astype(np.float64) - want.astype(np.float64)), nan=np.inf)
        far = np.unravel_index(int(np.argmax(distance)), want.shape)
    where = f" at {[int(i) for i in far]}" if len(far) else ""
    begins = _begins(module, tensors, made, imported, weights, host)
    if begins:
        begins = f" It begins at the node {one_line(begins, LONGEST)}, which the exporter wrote otherwise."
    elif first is not None and name.startswith(BUFFER):
        begins = " In the call before it was the same: the exporter lost how forward() writes it from what it was."
    elif first is not None and first.values:
        begins = (
            " In the call before it was the same: forward() changes "
            f"{one_line(', '.join(sorted({n for _, n in first.values})), LONGEST)}, no tensors, and they were "
            "compiled in as they were; keep them in buffers."
        )
    elif first is not None:
        begins = (
            " On the inputs of the call it is the same: a buffer that forward() writes, or what Python computed from a "
            "tensor, was compiled in as a constant."
        )
    number = (f"{ours[far]:.7g} where PyTorch has {want[far]:.7g}" if ours.shape == want.shape
              else f"of shape {list(ours.shape)} where PyTorch has {list(want.shape)}")
    return (
        f"{type(module).__name__}, exported by {made.by}, computes something else than the module: {name}{where} is "
        f"{number}.{begins} Nothing was compiled; write that part of forward() with other "
        f"functions.{see('pytorch#what-exporters-lose')}"
    )


def _begins(
    module: torch.nn.Module,
    tensors: Sequence[torch.Tensor],
    made: Exported,
    imported: Imported,
    weights: Mapping[str, np.ndarray],
    host: Host,
) -> str:
    """The first node whose result is not that of PyTorch's same node; "" where there is none, or none can be told."""
    if made.program is None:
        return ""
    theirs = _results(module, made.program, tensors)
    graph = copied(imported.graph)
    amend(graph, made)
    draw_nothing(graph)
    graph.write_nothing()
    graph.losses = []
    values: list[Value] = []
    for node in graph.nodes:
        values += [
            v
            for v in node.outputs
            if v.name in theirs and theirs[v.name].shape == v.shape and v.type.is_float and v not in values
        ]
    graph.outputs = values
    if not values:
        return ""
    names = [v.name for v in values]
    sources = {v.name: v.producer.op.name for v in values if v.producer is not None}
    engine = _engine(graph, weights, host)
    found = engine.call([np.ascontiguousarray(array_of(t)).reshape(t.shape) for t in tensors])
    for name, ours in zip(names, found, strict=True):
        want = theirs[name]
        if not _near(ours[0], want, CLOSE * FAR * _spacing(want)):
            return f"{name} ({sources.get(name, '')})"
    return ""


class _Interpreter(torch.fx.Interpreter):
    """Keeps every result."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.results: dict[str, np.ndarray] = {}

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if "onnx_symbolic" not in str(target):
            return super().call_function(target, args, kwargs)
        if args[1] not in (f"{DOMAIN}::{MARK}", f"{DOMAIN}::{PRINT}"):
            raise UnsupportedError(f"{args[1]} is no function of PyTorch's")
        return args[0][0].clone()

    def run_node(self, n: torch.fx.Node) -> object:
        result = super().run_node(n)
        if n.op == "call_function" and isinstance(result, torch.Tensor):
            self.results[n.name] = np.array(array_of(result))
        return result


def _results(
    module: torch.nn.Module, program: torch.export.ExportedProgram, tensors: Sequence[torch.Tensor]
) -> dict[str, np.ndarray]:
    """What PyTorch computes at each node of an exported program."""
    with put_back(module), quietly(), torch.no_grad(), WithoutDraws():
        interpreter = _Interpreter(program.module(check_guards=False))
        try:
            interpreter.run(*(t.clone() for t in tensors))
        except Exception:                                   # what comes before it is enough
            return interpreter.results
    return interpreter.results
