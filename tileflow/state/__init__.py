"""What outlives a call: weights, running statistics and optimizer states by name, and whose turn it is to use them."""
from .session import Part, Session, StateDeclaration, declared
from .turns import Turn, build
from .weights import fitting

__all__ = ["Part", "Session", "StateDeclaration", "Turn", "build", "declared", "fitting"]
