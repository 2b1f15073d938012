"""Every operator, one family a file. Importing this package fills the registry `tileflow.graph.OPS`."""
from . import activation, arithmetic, cast, conv, dropout, elementwise, index, logic, loss, matmul, norm, pool, reduce, serialised, shape, softmax

__all__ = [
    "activation",
    "arithmetic",
    "cast",
    "conv",
    "dropout",
    "elementwise",
    "index",
    "logic",
    "loss",
    "matmul",
    "norm",
    "pool",
    "reduce",
    "serialised",
    "shape",
    "softmax",
]
