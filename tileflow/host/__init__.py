"""How the host computes operators: the forms among which its lowering chooses and the rules that put one operator in place of several, a file
per family. Importing this package fills `form`'s questions with their answers, and `rewrite`'s rules."""
from . import (
    attention,
    channels_last,
    coarse,
    conv,
    cuts,
    dequantized,
    integer,
    moves,
    norm,
    pool,
    products,
    recurrent,
    squares,
)

__all__ = ["attention", "channels_last", "coarse", "conv", "cuts", "dequantized", "integer", "moves", "norm", "pool",
           "products", "recurrent", "squares"]
