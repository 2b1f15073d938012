"""What a file's stored tensors are: parameters, buffers or constants, which of them are one, what they are called, and why."""
from .messages import notes
from .patterns import matches
from .resolve import ResolvedModel, resolved
from .rules import Verdict, verdicts
from .stored import quantized_weights
from .ties import Ties, listed
from .views import TensorView

__all__ = ["ResolvedModel", "TensorView", "Ties", "Verdict", "listed", "matches", "notes", "quantized_weights",
           "resolved", "verdicts"]
