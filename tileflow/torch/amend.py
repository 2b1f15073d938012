"""An imported graph as the module means it: what it asks of operators, what it writes, running variances as PyTorch has
them, nothing drawn."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction

import numpy as np

from ..graph import WRITTEN, Graph, Node, State, Value
from ..importers.onnx.domains.marks import PRINT
from ..ops.loss import IdentityLoss
from ..ops.shape import Detach
from ..system.errors import UnsupportedError
from .annotations import Asked
from .export import Exported

NORM, DROPOUT = "BatchNormalization", "Dropout"
DIGITS, DENOMINATOR = 7, 64
"""A number of more digits, the zero before the point among them, is a fraction with at most this denominator where
there is one."""


def amend(graph: Graph, made: Exported) -> None:
    """Let a graph that was imported from `made.model`, and is the caller's own, be what the module is."""
    _ask(graph, made)
    _let_statistics_follow(graph)
    if any(v.dtype == "float64" for v in (*graph.inputs, *(s.input for s in graph.states))):
        _take_attributes_as_written(graph)
    values = {v.name: v for v in graph.outputs}
    graph.losses = [graph.outputs[i] for i in made.losses]
    written = set(made.written.values())
    graph.outputs = [v for v in graph.outputs if v.name not in written or v in graph.outputs[:made.own]]
    for name, output in made.written.items():
        _write(graph, name, values[output], name in made.statistics)
    _mark(graph, made.marks)


def _ask(graph: Graph, made: Exported) -> None:
    """What scopes ask of nodes."""
    if not made.hints:
        return
    for node in graph.nodes:
        for source in node.origin.sources:
            if source in made.hints:
                node.ask(made.hints[source])


def _write(graph: Graph, name: str, new: Value, statistic: bool) -> None:
    """The value replaces the state after every micro-batch; a state that nobody reads is there all the same."""
    state = next((s for s in graph.states if s.name == name), None)
    if state is None:
        state = State(name, "buffer", Value(name, new.type))
        graph.states.append(state)
    if state.input.type != new.type:
        raise UnsupportedError(
            f"forward() writes {new.type} into the buffer {name!r}, which is {state.input.type}; let it keep its type "
            "and shape."
        )
    state.kind, state.output, state.when = "buffer", new, "micro"
    if not statistic:
        state.role = WRITTEN


def _let_statistics_follow(graph: Graph) -> None:
    """running * (1 - m) + batch * m with the unbiased variance, which PyTorch keeps and ONNX does not, and with m as it
    was written."""
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for v in node.operands:
            readers.setdefault(v, []).append(node)
    for node in graph.nodes:
        if node.op.name != NORM or len(node.outputs) < 4:
            continue
        x = node.inputs[0]
        assert x is not None
        count = math.prod(x.shape) // max(1, x.shape[1])
        momentum = 1 - _decimal(getattr(node.op, "momentum"))                       # noqa: B009
        for batch, factor in ((node.outputs[1], 1.0), (node.outputs[2], count / max(1, count - 1))):
            for share in (n for n in _after_casts(batch, readers) if n.op.name == "Mul"):
                _let_scale(graph, share, momentum * factor)
                for total in readers.get(share.outputs[0], ()):
                    kept = next((v.producer for v in total.operands if v is not share.outputs[0]), None)
                    if total.op.name == "Add" and kept is not None and kept.op.name == "Mul":
                        _let_scale(graph, kept, 1 - momentum)


def _after_casts(value: Value, readers: Mapping[Value, list[Node]]) -> list[Node]:
    found = []
    for node in readers.get(value, ()):
        found += _after_casts(node.outputs[0], readers) if node.op.name == "Cast" else [node]
    return found


def _let_scale(graph: Graph, node: Node, number: float) -> None:
    """A product by a constant number, by this one."""
    for i, v in enumerate(node.inputs):
        if v is not None and v in graph.constants and v.type.size == 1:
            value = Value(f"{node.outputs[0].name}.factor", v.type)
            graph.constants[value] = np.array(number, v.type.numpy)
            node.inputs[i] = value
            node.set_inferred()
            return


def _decimal(number: float) -> float:
    """The shortest decimal number that is the same in float32, or a fraction such as 1/6 where that is long: what was
    written before a file made it float32."""
    short = str(np.float32(number))
    fraction = float(Fraction(number).limit_denominator(DENOMINATOR))
    return (
        fraction
        if sum(map(str.isdigit, short)) > DIGITS and np.float32(fraction) == np.float32(number)
        else float(short)
    )


def _take_attributes_as_written(graph: Graph) -> None:
    """Files hold float32 attributes; in float64 an epsilon of 1e-5 is the user's, not the nearest float32 number to
    it."""
    for node in graph.walk():
        if not is_dataclass(node.op):
            continue
        found = {
            f.name: x for f in fields(node.op) if isinstance(x := getattr(node.op, f.name), float) and math.isfinite(x)
        }
        changes = {name: _decimal(x) for name, x in found.items() if float(np.float32(x)) == x and _decimal(x) != x}
        if changes:
            node.op = replace(node.op, **changes)                                   # type: ignore[type-var]
            node.set_inferred()


def _mark(graph: Graph, marks: Mapping[str, Asked]) -> None:
    """What is asked of single tensors: of the copy that the mark is, or of the operator behind it."""
    copies = {
        v.name: node for node in graph.nodes for v in node.outputs if node.op.name == "Identity" and v.name in marks
    }
    for name, asked in marks.items():
        copy = copies.get(name)
        if copy is None:
            continue                                        # nobody needs it
        maker = copy.operands[0].producer
        while maker is not None and maker.op.name in ("Identity", "Detach", "IdentityLoss"):
            maker = maker.operands[0].producer
        if asked.detached:
            copy.op = Detach()
        elif asked.loss:
            copy.op = IdentityLoss(reduction="none")
        elif (
            asked.serialized is not None
            and maker is not None
            and (serial := getattr(maker.op, "serialized", None)) is not None
        ):
            maker.op = serial(*asked.serialized) or maker.op
            maker.set_inferred()
        elif maker is not None:
            maker.ask(asked.hints)
        copy.set_inferred()


def draw_nothing(graph: Graph) -> list[str]:
    """Let dropout keep all, normal numbers be their mean and uniform ones the middle, and nothing be printed; returns
    what draws otherwise, and still does."""
    others: list[str] = []
    instead: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op.name == PRINT:
            instead[node.outputs[0]] = node.operands[0]
        if not node.op.random:
            continue
        known = {f.name: getattr(node.op, f.name) for f in fields(node.op)}  # type: ignore[arg-type]
        middle = (
            known["mean"]
            if "mean" in known
            else (known["low"] + known["high"]) / 2
            if {"low", "high"} <= known.keys()
            else None
        )
        if node.op.name == DROPOUT:
            node.op = replace(node.op, ratio=0.0)                                   # type: ignore[type-var]
            node.set_inferred()
        elif middle is not None and len(node.outputs) == 1:
            old = node.outputs[0]
            new = instead[old] = Value(f"{old.name}.middle", old.type)
            graph.constants[new] = np.full(old.shape, middle, old.type.numpy)
        else:
            others.append(str(node.origin))
    graph.replace(instead)
    graph.prune()
    return others
