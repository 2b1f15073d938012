"""Nodes of a graph as nodes of an ONNX file: what an operator's declaration says, read the other way round than by `Site.declared`."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, NodeProto, defs, helper, numpy_helper

from tileflow.graph import Node, Op, TensorType, Value
from tileflow.system.errors import UnsupportedError
from tileflow.system.text import one_line

from .checker import find_schema
from .declared import ONNX_NAMES
from .site import field_types
from .tensors import DTYPES

NUMBERS: dict[str, int] = {name: number for number, name in DTYPES.items()}
"""The engine's names of element types to ONNX's numbers."""
OURS = {"stream", "whole", "start"}
"""Attributes that say where random numbers come from, or of what a node is a part: nothing that a file could hold."""
OPTIONAL = defs.OpSchema.FormalParameterOption.Optional


@dataclass
class Said:
    """An operator in the words of one opset, before its operands have names.

    inputs: by place: a number is the operand of that number, an array is a constant, None is absent.
    outputs: how many of the operator's outputs ONNX has.
    domain: of an operator of a user's own.
    """

    op_type: str
    inputs: list[int | np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int | None = None
    domain: str = ""


class Asked(NamedTuple):
    """What a form is asked: an operator, the types of its operands, the opset."""

    op: Any
    types: Sequence[TensorType | None]
    opset: int


Form = Callable[[Asked], Said | None]
FORMS: dict[str, Form] = {}


def said_as(*names: str) -> Callable[[Form], Form]:
    """Register how the operators `names` are said where their declaration does not suffice; a form that returns None leaves it to that."""
    def register(form: Form) -> Form:
        for name in names:
            FORMS[name] = form
        return form
    return register


def say(op: Op, types: Sequence[TensorType | None], opset: int) -> Said:
    """An operator as ONNX has it in `opset`.

    Raises:
        UnsupportedError: ONNX has none, or not with these attributes; the sentence says since when.
    """
    asked = Asked(op, types, opset)
    domain, _, called = op.name.rpartition("::")
    if domain:
        return Said(called, [None if t is None else i for i, t in enumerate(types)],
                    {k: list(v) if isinstance(v, tuple) else v for k, v in op.attributes().items()}, domain=domain)
    form = FORMS.get(op.name)
    said = (form(asked) if form is not None else None) or plain(asked)
    _check_types(said, asked)
    return said


def _check_types(said: Said, asked: Asked) -> None:
    """Raise UnsupportedError where ONNX does not have the operator for these element types."""
    schema = find_schema(said.op_type, asked.opset)
    if schema is None:
        raise UnsupportedError(_since(said.op_type))
    given = [i.dtype.name if isinstance(i, np.ndarray) else None if i is None else _dtype(asked.types[i]) for i in said.inputs]
    made = [t.dtype for t in asked.op.infer(*asked.types)][:said.outputs]
    for dtypes, formals in ((given, schema.inputs), (made, schema.outputs)):
        for k, dtype in enumerate(dtypes):
            formal = formals[min(k, len(formals) - 1)]
            if dtype is not None and f"tensor({ONNX_NAMES.get(dtype, dtype)})" not in formal.types:
                raise UnsupportedError(f"ONNX's {said.op_type} has no {dtype} for {formal.name} in opset {asked.opset}")


def _dtype(t: TensorType | None) -> str | None:
    return None if t is None else t.dtype


def plain(asked: Asked, **overrides: Any) -> Said:
    """By the declaration: attributes with ONNX's names, static operands as constants. `overrides` take the place of attributes."""
    op, types, opset = asked
    schema = find_schema(op.name, opset) if op.onnx else None
    if schema is None:
        raise UnsupportedError(_since(op.name) if op.onnx else f"ONNX has no operator for {op}")
    values = {**op.attributes(), **overrides}
    said = Said(op.name, [], {}, outputs=schema.max_output)
    operands = list(range(len(types)))
    formals = list(schema.inputs)
    variadic = bool(formals) and formals[-1].option == defs.OpSchema.FormalParameterOption.Variadic
    own = field_types(op.name)
    for formal in formals if not variadic else ():
        if formal.name in own:
            value = values.pop(formal.name, None)
            said.inputs.append(None if value is None else static(value, formal, types))
        else:
            said.inputs.append(operands.pop(0) if operands else None)
    said.inputs += operands
    said.inputs = [i if isinstance(i, np.ndarray) or i is None or types[i] is not None else None for i in said.inputs]
    while said.inputs and said.inputs[-1] is None:
        said.inputs.pop()
    _attributes(said, op, values, schema, opset)
    return said


def static(value: Any, formal: defs.OpSchema.FormalParameter, types: Sequence[TensorType | None]) -> np.ndarray:
    """A static operand as a constant: in the type of the operand beside which ONNX wants one type, whole numbers as int64, floats as float32."""
    first = types[0]
    if first is not None and formal.type_str == "T":
        return np.asarray(value, first.numpy)
    array = np.asarray(value)
    return array.astype(bool if array.dtype == bool else np.int64 if array.dtype.kind in "iu" or not array.size else np.float32)


def _attributes(said: Said, op: Op, values: dict[str, Any], schema: defs.OpSchema, opset: int) -> None:
    """The attributes that differ from the opset's defaults; UnsupportedError where one says what the opset cannot."""
    outputs = {o.name.lower() for o in schema.outputs}
    defaults = type(op)
    for name, value in values.items():
        declared: Any = schema.attributes.get(name)
        if declared is None:
            if value != getattr(defaults, name, None) and name not in OURS and name.lower() not in outputs:
                raise UnsupportedError(f"{op.name} has no {name}={one_line(value, 60)} in opset {opset} of ONNX")
            continue
        if value is None or (value == () and not declared.required):
            continue
        if isinstance(value, bool):
            value = int(value)
        if isinstance(value, str) and declared.type == defs.OpSchema.AttrType.INT:          # an element type, or none
            value = NUMBERS[value] if value else 0
        if not declared.required and _default(declared) == value:
            continue
        said.attributes[name] = list(value) if isinstance(value, tuple) else value


def _default(declared: Any) -> Any:
    """An attribute's default in the schema; None where it has none."""
    if declared.default_value.type == AttributeProto.UNDEFINED:
        return None
    value = helper.get_attribute_value(declared.default_value)
    return value.decode() if isinstance(value, bytes) else value


def _since(name: str) -> str:
    """Since when ONNX has an operator."""
    versions = [s.since_version for s in defs.get_all_schemas_with_history() if s.name == name and s.domain == ""]
    return f"ONNX has {name} from opset {min(versions)} on" if versions else f"this version of onnx has no {name}"


# ---- operators that ONNX says otherwise

@said_as("Reshape")
def reshape(asked: Asked) -> Said | None:
    """A zero stays one by `allowzero`, which opset 14 brought; without zeros nothing needs be said."""
    if 0 in asked.op.shape and asked.op.allowzero:
        return None
    return plain(asked._replace(op=replace(asked.op, allowzero=0)))


@said_as("Split")
def split(asked: Asked) -> Said:
    sizes = list(asked.op.sizes)
    if asked.opset < 13:
        return Said("Split", [0], {"axis": asked.op.axis, "split": sizes})
    return Said("Split", [0, np.array(sizes, np.int64)], {"axis": asked.op.axis})


@said_as("Pad")
def pad(asked: Asked) -> Said:
    x = asked.types[0]
    assert x is not None
    if asked.op.mode == "wrap" and asked.opset < 19:
        raise UnsupportedError("ONNX has Pad with mode=wrap from opset 19 on")
    value = [np.array(asked.op.value, x.numpy)] if asked.op.mode == "constant" and asked.op.value else []
    return Said("Pad", [0, np.array(asked.op.pads, np.int64), *value], {"mode": asked.op.mode})


@said_as("STFT")
def frames(asked: Asked) -> Said:
    """ONNX's shape inference takes an absent onesided for 0, against its own default."""
    said = plain(asked)
    return replace(said, attributes={**said.attributes, "onesided": asked.op.onesided})


@said_as("TopK")
def top_k(asked: Asked) -> Said:
    """K has an axis."""
    op = asked.op
    return Said("TopK", [0, np.array([op.K], np.int64)], {"axis": op.axis, "largest": op.largest, "sorted": op.sorted})


@said_as("RandomUniform", "RandomNormal", "Bernoulli", "Multinomial")
def random(asked: Asked) -> Said:
    """Seeds are floats there; where none is given, whoever runs the file has one."""
    values = {name: value for name, value in asked.op.attributes().items() if name not in (*OURS, "seed", "dtype")}
    if asked.op.dtype:
        values["dtype"] = NUMBERS[asked.op.dtype]
    if asked.op.seed is not None:
        values["seed"] = float(asked.op.seed)
    return Said(asked.op.name, list(range(len(asked.types))), {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()})


@said_as("Dropout")
def dropout(asked: Asked) -> Said:
    """Where nothing is dropped it is the identity."""
    if asked.op.active:
        raise UnsupportedError("a Dropout that drops is part of training, and the file is the form for inference")
    return Said("Dropout", [0]) if asked.op.mask else Said("Identity", [0])


@said_as("BatchNormalization")
def batch_normalization(asked: Asked) -> Said | None:
    if asked.op.training_mode:
        raise UnsupportedError("a BatchNormalization by the batch's own statistics is part of training, and the file is the form for inference")
    return None


@said_as("GroupNormalization")
def group_normalization(asked: Asked) -> Said | None:
    if asked.opset < 21:
        raise UnsupportedError("ONNX has GroupNormalization with a scale for each channel from opset 21 on")
    return None


@said_as("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
def reduction(asked: Asked) -> Said | None:
    """No axes are all of them, or none at all, which some opsets cannot say."""
    if asked.op.axes:
        return None
    if asked.op.noop_with_empty_axes:
        return Said("Identity", [0])
    return plain(asked._replace(op=replace(asked.op, axes=None)))


@said_as("Detach")
def detach(asked: Asked) -> Said:
    """Whoever runs a file asks for no gradient."""
    return Said("Identity", [0])


# ---- into a file

class NodeWriter:
    """Writes nodes of a graph into lists of ONNX's.

    names: what values are called in the file.
    """

    def __init__(self, opset: int, names: dict[Value, str]) -> None:
        self.opset, self.names = opset, names
        self.nodes: list[NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._taken = set(names.values())
        self._titles: set[str] = set()

    def node(self, node: Node, read: Iterable[Value], static_operands: dict[int, str] | None = None) -> None:
        """Append a node. `read`: the values that somebody reads; optional outputs that nobody does are left out.

        static_operands: names in place of constants, by their place among the inputs.
        """
        said = say(node.op, [None if v is None else v.type for v in node.inputs], self.opset)
        inputs = [(static_operands or {}).get(i) or self._operand(x, node) for i, x in enumerate(said.inputs)]
        wanted, schema = set(read), find_schema(said.op_type, self.opset)
        assert schema is not None or said.domain, said
        outputs = []
        for i, value in enumerate(node.outputs[:said.outputs]):
            optional = schema is not None and schema.outputs[min(i, len(schema.outputs) - 1)].option == OPTIONAL
            outputs.append("" if optional and value not in wanted else self.name(value))
        while outputs and not outputs[-1]:
            outputs.pop()
        if any(v in wanted for v in node.outputs[len(outputs):]):
            raise UnsupportedError(f"ONNX has no output {len(outputs)} of {said.op_type}")
        title = self.title(f"{node.origin}/{said.op_type}")
        self.append(said.op_type, inputs, outputs, title, said.domain, **said.attributes)

    def append(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], title: str, of: str = "",
               **attributes: Any) -> None:
        """Append a node of the domain `of`."""
        given = {name: value for name, value in attributes.items() if value != []}
        made = helper.make_node(op_type, list(inputs), list(outputs), title, domain=of or None, **given)
        self.nodes.append(made)

    def _operand(self, x: int | np.ndarray | None, node: Node) -> str:
        if x is None:
            return ""
        if isinstance(x, np.ndarray):
            return self.constant(x)
        value = node.inputs[x]
        return "" if value is None else self.names[value]

    def name(self, value: Value) -> str:
        """What a value that a node makes is called."""
        if value not in self.names:
            self.names[value] = self.fresh(value.name)
        return self.names[value]

    def constant(self, array: np.ndarray, stem: str = "constant") -> str:
        """The name of a constant, one for all with the same elements. A node, not an initializer: nobody takes it for a weight."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = self.fresh(stem)
            self.append("Constant", [], [name], "", value=numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return self._constants[key]

    def fresh(self, stem: str) -> str:
        """A name that nothing in the file has yet."""
        return _unique(stem, self._taken)

    def title(self, stem: str) -> str:
        """A name for a node."""
        return _unique(stem, self._titles)


def _unique(stem: str, taken: set[str]) -> str:
    name, k = stem, 0
    while name in taken:
        k += 1
        name = f"{stem}.{k}"
    taken.add(name)
    return name
