"""A graph as an ONNX file: networks of layers, in the form for inference, with their parameters by name.

The graph has static shapes. So that the file takes any batch, the network is recorded twice, with two batch sizes: where the two graphs differ is
where the batch comes in.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, defs, helper

from tileflow.graph import Graph, Node, Value
from tileflow.graph.composite import declares, expanded
from tileflow.graph.copy import copied
from tileflow.system.errors import OptionError, UnsupportedError
from tileflow.system.text import one_line
from tileflow.system.version import VERSION

from .checker import find_schema
from .emit import NUMBERS, NodeWriter, Said, say
from .parameters.told import told_as
from .site import ONNX_NAMES

PREFERRED, OLDEST = 18, 13
"""The opset of files, where newer operators need no newer one; the oldest that can be asked for."""
WHOLE = np.iinfo(np.int64).max
"""An end that is that of the axis, whatever its size."""
LIKE = {f"Random{which}": f"Random{which}Like" for which in ("Uniform", "Normal")}
"""Operators that draw for a constant shape, and those that draw for that of an array."""


@dataclass(frozen=True)
class FileForm:
    """How a network becomes a file.

    opset: None: 18, or the oldest later one that has all operators. batch: what the first dimension is called; None: it keeps its size.
    input_names, output_names: in order; by default the arguments of `forward`, and "output", or "output_0" and so on.
    """

    opset: int | None = None
    batch: str | None = "batch"
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> FileForm:
        """From keywords (OptionError for an unknown one)."""
        unknown = next((name for name in given if name not in cls.__dataclass_fields__), None)
        if unknown is not None:
            raise OptionError(f"save_onnx has no option {one_line(unknown, 60)!r}; there are {', '.join(cls.__dataclass_fields__)}.")
        return cls(**given)

    @property
    def inputs(self) -> Sequence[str] | None:
        """The names of the inputs that were asked for."""
        return [self.input_names] if isinstance(self.input_names, str) else self.input_names

    def __post_init__(self) -> None:
        newest = defs.onnx_opset_version()
        if self.opset is not None and (isinstance(self.opset, bool) or not isinstance(self.opset, int) or not OLDEST <= self.opset <= newest):
            raise OptionError(f"opset must be a whole number from {OLDEST} to {newest}, not {one_line(self.opset, 60)}.")
        if self.batch is not None and (not isinstance(self.batch, str) or not self.batch.isidentifier()):
            raise OptionError(f"batch is the name of a dimension, such as 'batch', or None for a fixed size, not {one_line(self.batch, 60)}.")


def graph_model(graph: Graph, form: FileForm, other: Graph | None = None) -> ModelProto:
    """The model of a graph; initializers have names, types and sizes, and their elements are still to be filled in.

    Args:
        other: the same network recorded with another batch size, for a symbolic one.

    Raises:
        UnsupportedError: ONNX lacks an operator, or the batch enters where ONNX wants a constant; every such layer is named.
        OptionError: names that do not fit the inputs and outputs.
    """
    graph, other = copied(graph), None if other is None else copied(other)
    opset = form.opset or _opset(graph)
    graph = _in_parts(graph, opset)
    if other is not None:
        other = _in_parts(other, opset)
        if [n.op.name for n in graph.nodes] != [n.op.name for n in other.nodes] or len(graph.constants) != len(other.constants):
            raise UnsupportedError("the network records other operators for another batch size, so the file cannot have a symbolic batch; "
                                   "give batch=None for a file of this size.")
    return _File(graph, other, form, opset).model()


def _opset(graph: Graph) -> int:
    """The oldest preferred opset that says all operators of the graph, as far as any does."""
    newest, best = defs.onnx_opset_version(), PREFERRED
    for node in graph.nodes:
        for opset in range(best, newest + 1) if node.op.onnx else ():
            if _refusal(node, opset) is None:
                best = opset
                break
    return best


def _refusal(node: Node, opset: int) -> str | None:
    """Why ONNX cannot say a node in `opset`; None where it can."""
    try:
        said = say(node.op, [None if v is None else v.type for v in node.inputs], opset)
    except UnsupportedError as error:
        return str(error)
    if said.domain:
        return None
    schema: Any = find_schema(said.op_type, opset)
    given = [(place, schema.inputs, node.inputs[i]) for place, i in enumerate(said.inputs) if isinstance(i, int)]
    for place, formals, value in [*given, *((k, schema.outputs, v) for k, v in enumerate(node.outputs[:said.outputs]))]:
        formal = formals[min(place, len(formals) - 1)]
        if value is not None and f"tensor({ONNX_NAMES.get(value.dtype, value.dtype)})" not in formal.types:
            return f"ONNX's {said.op_type} has no {formal.name} of type {value.dtype} in opset {opset}"
    return None


def _in_parts(graph: Graph, opset: int) -> Graph:
    """The graph with operators that ONNX lacks in this opset as what they are made of; the rest is refused, all of it at once."""
    graph = expanded(graph, lambda node: declares(node.op, "expand") and _refusal(node, opset) is not None)
    graph.prune()
    refused = [f"{node.op.name} ({node.origin}): {why}" for node in graph.nodes if (why := _refusal(node, opset)) is not None]
    if refused:
        raise UnsupportedError(f"The network cannot be written as ONNX of opset {opset}: {'; '.join(dict.fromkeys(refused))}.")
    return graph


class _File:
    """One writing of a graph."""

    def __init__(self, graph: Graph, other: Graph | None, form: FileForm, opset: int) -> None:
        self.graph, self.form, self.opset = graph, form, opset
        self.other = other or graph
        self.names = dict(zip(graph.inputs, self._names("input_names", form.input_names, [v.name for v in graph.inputs]), strict=True))
        stems = ["output"] if len(graph.outputs) == 1 else [f"output_{i}" for i in range(len(graph.outputs))]
        outputs = self._names("output_names", form.output_names, stems)
        clash = [n for n in (*self.names.values(), *outputs) if n in {s.name for s in graph.states}]
        if clash or len({*self.names.values(), *outputs}) != len(self.names) + len(outputs):
            raise OptionError(f"Inputs, outputs and parameters have one name each; {one_line(clash[0] if clash else outputs, 100)} is there twice.")
        self.names |= {s.input: s.name for s in graph.states}
        self.names |= dict(zip(graph.outputs, outputs, strict=True))
        self.out = NodeWriter(opset, self.names)
        self.rows = next(((p, q, v) for v, w in zip(graph.inputs, self.other.inputs, strict=True)
                          for p, q in zip(v.shape[:1], w.shape[:1], strict=True) if p != q), None)
        """The batch of either graph, and an input that has it."""

    def _names(self, option: str, given: Sequence[str] | None, default: list[str]) -> list[str]:
        if given is None:
            return default
        names = [given] if isinstance(given, str) else list(given)
        if len(names) != len(default) or not all(isinstance(n, str) and n for n in names):
            raise OptionError(f"{option} must be {len(default)} names, one for each, not {one_line(names, 100)}.")
        return names

    def model(self) -> ModelProto:
        read = {v for node in self.graph.nodes for v in node.operands} | set(self.graph.outputs)
        for (value, array), there in zip(self.graph.constants.items(), self.other.constants.values(), strict=True):
            if value in read:
                if array.shape != there.shape or array.tobytes() != there.tobytes():
                    raise self._open(f"the constant {one_line(value.name, 60)} depends on it")
                self.names[value] = self.out.constant(array, value.name)
        refused: list[str] = []
        for node, twin in zip(self.graph.nodes, self.other.nodes, strict=True):
            try:
                if node.op.name in LIKE and node.op != twin.op:
                    self._drawn_like(node, twin)
                else:
                    self.out.node(node, read, self._open_operands(node, twin))
            except UnsupportedError as error:
                refused.append(str(error))
                for value in node.outputs:                  # others read it
                    self.out.name(value)
        if refused:
            raise UnsupportedError(" ".join(dict.fromkeys(refused)))
        proto = GraphProto(name=self.graph.name)
        proto.node.extend(self.out.nodes)
        proto.input.extend(self._port(v, w) for v, w in zip(self.graph.inputs, self.other.inputs, strict=True))
        proto.output.extend(self._port(v, w) for v, w in zip(self.graph.outputs, self.other.outputs, strict=True))
        states = [s for s in self.graph.states if s.input in read]
        proto.initializer.extend(TensorProto(name=s.name, data_type=NUMBERS[s.input.dtype], dims=s.input.shape) for s in states)
        domains = dict.fromkeys(node.domain for node in self.out.nodes if node.domain)
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        model: ModelProto = helper.make_model(proto, opset_imports=opsets, producer_name="tileflow", producer_version=VERSION,
                                              ir_version=helper.find_min_ir_version_for(opsets[:1]))
        helper.set_model_props(model, told_as(states))
        return model

    # ---- the batch

    def _open(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"The file cannot have a symbolic batch, as {why}; give batch=None for a file of this size.")

    def _port(self, value: Value, there: Value) -> ValueInfoProto:
        dims: list[Any] = [n if n == m else self._size(n, m) for n, m in zip(value.shape, there.shape, strict=True)]
        return helper.make_tensor_value_info(self.names[value], NUMBERS[value.dtype], dims)

    def _size(self, n: int, m: int) -> str | None:
        """What a size is called that is n with one batch and m with the other."""
        assert self.rows is not None
        return self.form.batch if (n, m) == self.rows[:2] else None

    def _open_operands(self, node: Node, twin: Node) -> dict[int, str]:
        """Names of computed values in place of the static operands of a node that depend on the batch.

        Raises UnsupportedError for an attribute that does.
        """
        if node.op == twin.op:
            return {}
        here, there = (say(n.op, [None if v is None else v.type for v in n.inputs], self.opset) for n in (node, twin))
        where = f"{here.op_type} ({node.origin})"
        for name in {*here.attributes, *there.attributes}:
            if here.attributes.get(name) != there.attributes.get(name):
                raise self._open(f"the attribute {name} of {where} depends on it")
        found = {}
        for i, (a, b) in enumerate(zip(here.inputs, there.inputs, strict=True)):
            if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and not np.array_equal(a, b):
                if a.shape != b.shape or a.ndim != 1 or a.dtype != np.int64:
                    raise self._open(f"operand {i} of {where} depends on it")
                found[i] = self._computed(a, b, here, node, twin, where)
        return found

    def _drawn_like(self, node: Node, twin: Node) -> None:
        """Random numbers for every row: ONNX's shape of them is an attribute, so they are drawn for an array that has it."""
        said, there = (say(n.op, [], self.opset) for n in (node, twin))
        a, b = (np.array(s.attributes.pop("shape"), np.int64) for s in (said, there))
        like = self.out.fresh("zeros")
        self.out.append("ConstantOfShape", [self._computed(a, b, said, node, twin, f"{said.op_type} ({node.origin})")], [like], "")
        op_type = LIKE[said.op_type]
        self.out.append(op_type, [like], [self.out.name(node.outputs[0])], self.out.title(f"{node.origin}/{op_type}"), **said.attributes)

    def _computed(self, a: np.ndarray, b: np.ndarray, said: Said, node: Node, twin: Node, where: str) -> str:
        """Whole numbers that are `a` with one batch and `b` with the other, as a constant where ONNX can leave them open."""
        differ = np.flatnonzero(a != b)
        if said.op_type == "Reshape" and len(differ) == 1 and 0 not in a and -1 not in a:
            return self.out.constant(np.where(a != b, -1, a))
        if said.op_type == "Slice":
            x, y = (n.inputs[0] for n in (node, twin))
            assert x is not None
            assert y is not None
            axes = said.inputs[3] if len(said.inputs) > 3 else np.arange(len(a))
            if isinstance(axes, np.ndarray) and all(a[k] == x.shape[axes[k]] and b[k] == y.shape[axes[k]] for k in differ):
                return self.out.constant(np.where(a != b, WHOLE, a))
        assert self.rows is not None, where
        p, q, value = self.rows
        for k in differ:
            if a[k] % p or b[k] % q or a[k] // p != b[k] // q:
                raise self._open(f"{where} reads {a[k]} where the batch is {p} and {b[k]} where it is {q}")
        return self._of_batch([int(n) // p if i in differ else None for i, n in enumerate(a)], a, self.names[value])

    def _of_batch(self, factors: Sequence[int | None], a: np.ndarray, read: str) -> str:
        """The numbers `a`, those with a factor being that times the batch, which is the first size of the value `read`."""
        shape, rows, joined = (self.out.fresh(stem) for stem in ("shape", "rows", "sizes"))
        self.out.append("Shape", [read], [shape], "")
        self.out.append("Gather", [shape, self.out.constant(np.zeros(1, np.int64))], [rows], "", axis=0)
        parts = []
        for factor, n in zip(factors, a, strict=True):
            part = rows if factor == 1 else self.out.constant(np.array([n if factor is None else factor], np.int64))
            if factor not in (None, 1):
                scaled = self.out.fresh("rows")
                self.out.append("Mul", [rows, part], [scaled], "")
                part = scaled
            parts.append(part)
        self.out.append("Concat", parts, [joined], "", axis=0)
        return joined

