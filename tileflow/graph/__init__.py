"""The graph: types, values, nodes, states, the operator declaration, the builder."""
from . import composite as _composite  # noqa: F401  (what an operator leaves out is found in its parts)
from .builder import Builder
from .graph import Graph, Node, Origin, State, Value
from .hints import Hints, MultiConv
from .index import Index
from .op import DATA, MOVED, OPS, STATISTIC, TRAINED, Op, op
from .printer import to_text
from .types import CODES, FLOATS, HALVES, HIGHEST_RANK, TensorType, broadcast_shapes, kind_of, type_of
from .verify import verify

__all__ = ["CODES", "DATA", "FLOATS", "HALVES", "HIGHEST_RANK", "MOVED", "OPS", "STATISTIC", "TRAINED", "Builder", "Graph", "Hints", "Index",
           "MultiConv", "Node", "Op", "Origin", "State", "TensorType", "Value", "broadcast_shapes", "kind_of", "op", "to_text",
           "type_of", "verify"]
