"""The bridge from PyTorch: an `nn.Module` is exported, compared with PyTorch, and trained or run here on its own
weights."""
try:
    import onnxscript as _onnxscript  # noqa: F401  (PyTorch's exporter needs it)
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"tileflow.torch needs PyTorch and onnxscript, and there is no {error.name}: "
        "pip install 'tileflow-engine[torch]'"
    ) from error

from .annotations import ask, begin, exporting, identity_loss, scope, serialized_matmul
from .custom import HostModule, custom_op, print_tensor
from .executor import Executor, inference_model, load_executable, training_model
from .function import Function

__all__ = [
    "Executor",
    "Function",
    "HostModule",
    "ask",
    "begin",
    "custom_op",
    "exporting",
    "identity_loss",
    "inference_model",
    "load_executable",
    "print_tensor",
    "scope",
    "serialized_matmul",
    "training_model",
]
