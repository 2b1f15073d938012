"""The bridge from PyTorch: an `nn.Module` is exported, checked against PyTorch, and trained or run here on its own weights."""
from .annotations import ask, begin, exporting, identity_loss, scope, serialized_matmul

__all__ = ["ask", "begin", "exporting", "identity_loss", "scope", "serialized_matmul"]
