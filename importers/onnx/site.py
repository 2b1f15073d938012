"""One ONNX node while it is imported: attributes with the opset's defaults, operands as values or as known arrays, and the
default path into the graph."""
from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto
from onnx.defs import OpSchema

from tileflow.graph import FLOATS, HIGHEST_RANK, OPS, Builder, Op, TensorType, Value
from tileflow.graph.op import plain_domain
from tileflow.system.errors import ModelError, OptionError, TypeMismatchError, UnsupportedError
from tileflow.system.text import one_line

from .checker import schema_of
from .declared import ONNX_NAMES
from .model import title
from .scope import Scope
from .tensors import DTYPES, SHOWN, dtype_name


class DynamicOperandError(UnsupportedError):
    """An operand must be known at import and is computed; `names` are such operands, or of a whole model the graph inputs they depend on."""

    def __init__(self, message: str, names: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.names = names


def python_value(attribute: AttributeProto) -> Any:
    """An attribute as a Python value: text decoded, tensors and graphs as protos."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]
    return value


@functools.cache
def field_types(name: str) -> Mapping[str, Any]:
    """The attributes that the engine's operator `name` declares, with their types."""
    op: Any = OPS[name]
    hints = typing.get_type_hints(op)
    return {f.name: hints[f.name] for f in dataclasses.fields(op)}


def coerce(value: Any, hint: Any) -> Any:
    """An ONNX value (number, list, text, array) as the declared type of an operator's attribute."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    kinds = {typing.get_origin(t) or t for t in (typing.get_args(hint) if is_union else (hint,))}
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1).tolist()
        if len(flat) != 1 and tuple not in kinds:
            raise ValueError(f"{len(flat)} elements where one is wanted")
        value = flat[0] if len(flat) == 1 and (tuple not in kinds or value.ndim == 0) else flat
    if isinstance(value, list | tuple):
        return tuple(value)
    if bool in kinds and isinstance(value, int):
        return bool(value)
    if float in kinds and int not in kinds and isinstance(value, int):
        return float(value)
    if tuple in kinds and isinstance(value, int | float):
        return (value,)
    return value


class Site:
    """What a version function or a folder sees of a node.

    attrs: the attributes by name, the schema's defaults included.
    outputs: names; '' where the output is not wanted.
    """

    def __init__(self, scope: Scope, node: NodeProto, opset: Mapping[str, int]) -> None:
        self.scope, self.node, self.opsets = scope, node, opset
        self.op_type = node.op_type
        self.domain = plain_domain(node.domain)
        self.opset = opset.get(self.domain, 0)
        self.schema = schema_of(node, self.opset)
        self.given = {a.name: python_value(a) for a in node.attribute}
        declared = self.schema.attributes if self.schema else {}
        defaults = {name: python_value(a.default_value) for name, a in declared.items() if a.default_value.name}
        self.attrs: dict[str, Any] = {**defaults, **self.given}
        self.inputs, self.outputs = list(node.input), list(node.output)

    @property
    def title(self) -> str:
        return title(self.node)

    @property
    def builder(self) -> Builder:
        return self.scope.builder

    def unsupported(self, why: str) -> UnsupportedError:
        return UnsupportedError(why)

    # Operands

    def has(self, i: int) -> bool:
        """Input `i` is given."""
        return i < len(self.inputs) and self.inputs[i] != ""

    def wants(self, i: int) -> bool:
        """Output `i` is named."""
        return i < len(self.outputs) and self.outputs[i] != ""

    def value(self, i: int) -> Value:
        """Input `i` as a value of the graph."""
        return self.scope.value(self.inputs[i])

    def optional(self, i: int) -> Value | None:
        return self.value(i) if self.has(i) else None

    def known(self, i: int) -> np.ndarray | None:
        """Input `i` if its elements are known and it is no weight."""
        return self.scope.known(self.inputs[i]) if self.has(i) else None

    def static(self, i: int) -> np.ndarray:
        """Input `i`, which must be known now: a constant, an initializer, or computed from shapes."""
        name = self.inputs[i]
        array = self.scope.static(name)
        if array is None:
            formal = self.schema.inputs[i].name if self.schema and i < len(self.schema.inputs) else f"input {i}"
            raise DynamicOperandError(f"its operand {formal} ('{name}') is computed while the model runs; it must be a constant", frozenset({name}))
        return array

    def check_length(self, i: int) -> None:
        """Raise ModelError where input `i` is no list of sizes or axes of any tensor, as it is longer: before its elements are known, let alone
        computed for it."""
        size, most = self.scope.type(self.inputs[i]).size, max(2 * HIGHEST_RANK, len(self.outputs))
        if size > most:
            raise ModelError(f"{self.title}: its input {i} ('{one_line(self.inputs[i], SHOWN)}') has {size:,} elements, and no tensor has sizes or "
                             f"axes for more than {most}; export the model again")

    def listed(self, i: int) -> np.ndarray:
        """Input `i`, known now, as a list of sizes or axes: one dimension."""
        self.check_length(i)
        return self.static(i).reshape(-1)

    def static_list(self, i: int, attribute: str) -> list[int] | None:
        """Integers that old opsets give as an attribute and new ones as input `i`; None where absent."""
        if self.has(i):
            return [int(n) for n in self.listed(i)]
        given = self.attrs.get(attribute)
        return None if given is None else [int(n) for n in given]

    def axes(self, arrays: Sequence[np.ndarray | None]) -> list[int] | None:
        """The `axes` of a folded node: attribute, or second array."""
        if len(arrays) > 1 and arrays[1] is not None:
            return [int(n) for n in self.listed(1)]
        given = self.attrs.get("axes")
        return None if given is None else list(given)

    def dtype(self, number: int) -> str:
        """The engine's name of an ONNX element type (floats as `float_dtype` has them)."""
        if number not in DTYPES:
            raise self.unsupported(f"the element type {dtype_name(number)}")
        return self.float_dtype(DTYPES[number])

    def float_dtype(self, name: str) -> str:
        return self.scope.float_name(name)

    def tensor(self, tensor: TensorProto) -> np.ndarray:
        """A tensor attribute's elements."""
        return self.scope.tensor(tensor)

    def check(self) -> None:
        """Compare the operands with the operator's schema: required ones are given, element types are allowed and alike where they must be.

        Raises ModelError or TypeMismatchError.
        """
        if self.schema is None:
            return
        for attribute in self.node.attribute:
            declared: Any = self.schema.attributes.get(attribute.name)
            if declared is None and self.domain != "":
                raise self.unsupported(f"the attribute {attribute.name}, which is not known here"[:120])
            if declared is not None and attribute.type != declared.type.value:
                raise ModelError(f"{self.title}: its attribute '{attribute.name}' must be {declared.type.name} and is "
                                 f"{AttributeProto.AttributeType.Name(attribute.type)}; export the model again")
        for name, wanted in self.schema.attributes.items():
            if wanted.required and self.domain != "" and name not in self.given:
                raise ModelError(f"{self.title} lacks its attribute {name}; export the model again")
        alike: dict[str, tuple[str, str]] = {}
        for i in range(max(len(self.inputs), self.schema.min_input)):
            formal = self.schema.inputs[min(i, len(self.schema.inputs) - 1)] if self.schema.inputs else None
            if formal is None or (i >= len(self.schema.inputs) and formal.option != OpSchema.FormalParameterOption.Variadic):
                raise ModelError(f"{self.title} has {len(self.inputs)} inputs, more than its operator takes; export the model again")
            if not self.has(i):
                if formal.option != OpSchema.FormalParameterOption.Optional:
                    raise ModelError(f"{self.title} lacks its input {formal.name}; export the model again")
                continue
            if self.inputs[i] in self.scope.sequences:
                continue
            dtype = self.scope.type(self.inputs[i]).dtype
            if f"tensor({ONNX_NAMES.get(dtype, dtype)})" not in formal.types and not self._changed_float(dtype, formal):
                raise TypeMismatchError(f"{self.title}: its input {formal.name} ('{self.inputs[i]}') is {dtype}, which the operator does not take "
                                        f"in opset {self.opset}; cast it")
            name, other = alike.setdefault(formal.type_str, (self.inputs[i], dtype))
            if dtype != other and formal.is_homogeneous:
                raise TypeMismatchError(f"{self.title}: '{name}' is {other} and '{self.inputs[i]}' is {dtype}, but they must have "
                                        f"one element type; cast one of them")

    def _changed_float(self, dtype: str, formal: OpSchema.FormalParameter) -> bool:
        """The type is `float_dtype`, in place of a floating one that the operator takes; or bfloat16, which exporters write before an operator's
        version has it."""
        free = dtype == "bfloat16" or (self.scope.changes_floats and dtype in FLOATS)
        return free and any(f"tensor({ONNX_NAMES.get(t, t)})" in formal.types for t in FLOATS)

    # Shapes that were written for another batch

    def declared_shape(self, i: int) -> tuple[int, ...] | None:
        """The shape of input 0 with the batch that the file declares, if another was chosen, that shape differs, and input `i` is
        a constant that says the same with either."""
        first = self.scope.first
        if first is None:
            return None
        before, then, now = first.type(self.inputs[0]).shape, first.static(self.inputs[i]), self.scope.static(self.inputs[i])
        same = then is not None and now is not None and np.array_equal(then, now)
        return before if same and before != self.scope.type(self.inputs[0]).shape else None

    def restated(self, target: Sequence[int], now: tuple[int, ...]) -> tuple[int, ...]:
        """Warn that a constant shape is taken as another one, and return that."""
        self.scope.warnings.append(f"{self.title} has the constant shape {list(target)}; "
                                   f"with batch {self.scope.binding.batch} it is taken as {list(now)}.")
        return now

    # Into the graph

    def emit(self, op: str, *inputs: Value | None, **attributes: Any) -> Value:
        """An intermediate node; its value is named after the node's first output."""
        declared = OPS.get(op)
        if declared is None:
            raise self.unsupported(f"it needs the operator {op}, which tileflow does not have")
        name = f"{self.outputs[0]}.{op.lower()}" if self.outputs else op.lower()
        return self.builder.emit(declared(**attributes), *inputs, names=(name,))[0]

    def finish(self, op: str, *inputs: Value | None, names: Sequence[str] | None = None, **attributes: Any) -> tuple[Value, ...]:
        """The node that makes the outputs; its values have the names of the outputs, or `names`."""
        declared = OPS.get(op)
        if declared is None:
            raise self.unsupported(f"it needs the operator {op}, which tileflow does not have")
        return self.builder.emit(declared(**attributes), *inputs, names=tuple(self.outputs if names is None else names))

    def _attribute(self, name: str, value: Any, hint: Any) -> Any:
        try:
            return coerce(value, hint)
        except ValueError as error:
            raise ModelError(f"{self.title}: its {name} has {error}; export the model again") from None

    def scalar(self, i: int) -> Any:
        """Input `i`, known now, as a Python number."""
        given = self.scope.type(self.inputs[i])
        if given.size != 1:
            raise ModelError(f"{self.title}: its input {i} must be one number and has shape {list(given.shape)}; export the model again")
        return self.static(i).reshape(-1)[0].item()

    def generic(self, **overrides: Any) -> tuple[Value, ...]:
        """The default path: the operator as the engine declares it, over values of the graph."""
        op, operands = self.declared(**overrides)
        return self.builder.emit(op, *[None if i is None else self.value(i) for i in operands], names=tuple(self.outputs))

    def applied(self, declared: Any) -> tuple[Value, ...]:
        """An operator that a user has declared, with the node's attributes."""
        names = {f.name for f in dataclasses.fields(declared)}
        for name in self.given.keys() - names:
            raise self.unsupported(f"the attribute {name}={self.given[name]!r}, which its declaration lacks"[:160])
        try:
            op = declared(**self.given)
        except TypeError as error:
            raise self.unsupported(f"its attributes do not suffice ({error})") from None
        except OptionError as error:
            raise ModelError(f"{self.title}: {error}") from None
        operands = [self.optional(i) for i in range(len(self.inputs))]
        while operands and operands[-1] is None:
            operands.pop()
        return self.builder.emit(op, *operands, names=tuple(self.outputs))

    def declared(self, **overrides: Any) -> tuple[Op, list[int | None]]:
        """The engine's operator for this node, and which inputs are its operands: ONNX's attributes and the inputs named like attributes become
        the operator's attributes; an attribute named like an optional output says whether that is wanted."""
        declared = OPS.get(self.op_type)
        if declared is None or not declared.onnx or self.domain != "":
            raise self.unsupported("tileflow has no such operator")
        hints = field_types(self.op_type)
        operands: list[int | None] = []
        attributes: dict[str, Any] = dict(overrides)
        for i in range(len(self.inputs)):
            formal = self._formal(i)
            if formal not in hints:
                operands.append(i if self.has(i) else None)
            elif self.has(i) and formal not in attributes:
                self.check_length(i)
                attributes[formal] = self._attribute(formal, self.static(i), hints[formal])
        while operands and operands[-1] is None:
            operands.pop()
        for i, formal_output in enumerate(self.schema.outputs if self.schema else ()):
            if formal_output.name in hints:
                attributes.setdefault(formal_output.name, int(self.wants(i)))
        for name, value in self.attrs.items():
            if name in hints:
                attributes.setdefault(name, self._attribute(name, value, hints[name]))
            elif name in self.given and not self._is_default(name, value):
                raise self.unsupported(f"the attribute {name}={value!r}"[:120])
        try:
            return declared(**attributes), operands
        except TypeError as error:
            raise self.unsupported(f"its attributes do not suffice ({error})") from None

    def _formal(self, i: int) -> str:
        formals = self.schema.inputs if self.schema else []
        return formals[min(i, len(formals) - 1)].name if formals else ""

    def _is_default(self, name: str, value: Any) -> bool:
        if self.schema is None or name not in self.schema.attributes:
            return False
        default = self.schema.attributes[name].default_value
        return bool(default.name) and python_value(default) == value

    def type(self, i: int) -> TensorType:
        return self.value(i).type
