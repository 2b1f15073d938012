"""What outlives a call: weights, running statistics and optimizer states by name, and whose turn it is to use them."""
from .session import Declaration, Session, declared
from .turns import Turn, build
from .weights import fitting

__all__ = ["Declaration", "Session", "Turn", "build", "declared", "fitting"]
