"""The graph: types, values, nodes, states, the operator declaration, the builder."""
from ..memory.types import CODES, FLOATS, HALVES, HIGHEST_RANK, NARROW, TensorType, broadcast_shapes, type_of, widest
from . import composite as _composite  # noqa: F401  (what an operator leaves out is found in its parts)
from .builder import Builder
from .graph import PARTIAL, WRITTEN, Graph, Node, Origin, State, Value, needed_for
from .hints import NOTHING, Annotation, Casting, Hints, MultiConv
from .index import Index
from .kept import checkpoints
from .op import DATA, MOVED, OPS, START, STATISTIC, TRAINED, Op, op
from .patterns import first_fitting, on_named, selected
from .printer import to_text
from .region import Branches, Region, Regional, Turns, inside, with_inside
from .verify import verify

__all__ = ["CODES", "DATA", "FLOATS", "HALVES", "HIGHEST_RANK", "MOVED", "NARROW", "NOTHING", "OPS", "PARTIAL", "START",
           "STATISTIC", "TRAINED", "WRITTEN", "Annotation", "Branches", "Builder", "Casting", "Graph", "Hints",
           "Index", "MultiConv", "Node", "Op", "Origin", "Region", "Regional", "State", "TensorType", "Turns",
           "Value", "broadcast_shapes", "checkpoints", "first_fitting", "inside",
           "needed_for", "on_named", "op", "selected", "to_text", "type_of", "verify", "widest", "with_inside"]
