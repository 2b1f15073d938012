"""How the host computes operators: the forms among which its lowering chooses, a file per family. Importing this package fills `form`'s
questions with their answers."""
from . import channels_last, conv, norm, pool, products, stem

__all__ = ["channels_last", "conv", "norm", "pool", "products", "stem"]
