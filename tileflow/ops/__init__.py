"""Every operator, one family a file. Importing this package fills the registry `tileflow.graph.OPS`."""
from . import cast, conv, dropout, elementwise, loss, matmul, norm, pool, reduce, serialised, shape, softmax

__all__ = ["cast", "conv", "dropout", "elementwise", "loss", "matmul", "norm", "pool", "reduce", "serialised", "shape", "softmax"]
