"""Schemas of operators that onnx does not have (those of com.microsoft): declared here in one line each, so that a node of theirs is checked as
any other is. What a line does not name, an attribute above all, is refused by name."""
from __future__ import annotations

import re
import types
import typing
from typing import Any

from onnx import GraphProto, helper
from onnx.defs import OpSchema

from tileflow.graph import CODES, FLOATS

ONNX_NAMES = {"float32": "float", "float64": "double", "float8_e8m0fnu": "float8e8m0", "float4_e2m1fn": "float4e2m1",
              **{f"float8_{kind}": f"float8{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}}
"""The schemas' names of element types, where they differ from NumPy's."""
KINDS = {"T": FLOATS, "U": FLOATS, "I": ("int32", "int64"), "M": ("int32",), "L": ("int64",), "B": ("bool",),
         "N": (*FLOATS, "int16", "int32", "int64"), "V": tuple(CODES),
         "F": ("float32",), "X": ("uint8",), **dict.fromkeys("QPR", ("int8", "uint8"))}
"""Letters of operand types: operands of one letter have one element type, which is one of these."""
OPERAND = re.compile(r"(\w+)([?*]?):(\w)(?: (\w+))?")
SINGLE, OPTIONAL, VARIADIC = (getattr(OpSchema.FormalParameterOption, n) for n in ("Single", "Optional", "Variadic"))
ATTRIBUTES: dict[Any, str] = {int: "INT", float: "FLOAT", str: "STRING", list[int]: "INTS", list[float]: "FLOATS",
                              GraphProto: "GRAPH"}

DECLARED: dict[tuple[str, str], OpSchema] = {}
"""By domain and operator."""
ROLES: dict[tuple[str, str], tuple[str, ...]] = {}
"""What the operands are for (`Op.roles`)."""


def declare(domain: str, name: str, signature: str, **attributes: Any) -> None:
    """Declare an operator.

    Args:
        signature: `"A:T, B:T weight, C?:T bias -> Y:T"`: names, `?` where it may be absent, `*` for any number, a letter of `KINDS`, and a role.
        attributes: defaults; a type (`int`) where the attribute must be given, a union with None (`int | None`) where it need not be and has no
            default.
    """
    inputs, outputs = ([OPERAND.fullmatch(text.strip()) for text in side.split(",")] for side in signature.split("->"))
    letters = {m[3] for m in (*inputs, *outputs) if m is not None}
    constraints = [(letter, [f"tensor({ONNX_NAMES.get(t, t)})" for t in KINDS[letter]], "") for letter in sorted(letters)]
    DECLARED[domain, name] = OpSchema(name, domain, 1, inputs=[_formal(m) for m in inputs], outputs=[_formal(m) for m in outputs],
                                      type_constraints=constraints, attributes=[_attribute(n, v) for n, v in attributes.items()])
    ROLES[domain, name] = tuple(m[4] or "data" for m in inputs if m is not None)


def _formal(match: re.Match[str] | None) -> OpSchema.FormalParameter:
    assert match is not None, "an operand that is not written as `name:T`"
    option = {"?": OPTIONAL, "*": VARIADIC}.get(match[2], SINGLE)
    return OpSchema.FormalParameter(match[1], match[3], param_option=option, is_homogeneous=match[3] != "V", min_arity=0 if match[2] else 1)


def _attribute(name: str, value: Any) -> OpSchema.Attribute:
    if isinstance(value, type | types.UnionType | types.GenericAlias):
        union = isinstance(value, types.UnionType)
        kind: Any = next(t for t in typing.get_args(value) if t is not types.NoneType) if union else value
        return OpSchema.Attribute(name, getattr(OpSchema.AttrType, ATTRIBUTES[kind]), required=not union)
    return OpSchema.Attribute(name, helper.make_attribute(name, value))
