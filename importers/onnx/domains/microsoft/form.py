"""Declaring a form of com.microsoft together with its schema, which onnx does not have."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx import GraphProto, helper

from ...declared import declare
from ...site import Site
from ...versions import Form, form

DOMAIN = "com.microsoft"


def fused(name: str, signature: str, **attributes: Any) -> Callable[[Form], Form]:
    """Register a form for the operator `name`, of this signature and with these attributes (`declared.declare`)."""
    declare(DOMAIN, name, signature, **attributes)
    return form(name, domain=DOMAIN)


def alike(site: Site, op: str, inputs: Sequence[str] | None = None, **attributes: Any) -> GraphProto:
    """A node of ONNX's own domain in a node's place."""
    names = [f"{name}/{op}" if name else "" for name in site.outputs]
    given = site.inputs if inputs is None else inputs
    return helper.make_graph([helper.make_node(op, given, names, **attributes)], op, [], [helper.make_empty_tensor_value_info(n) for n in names])
