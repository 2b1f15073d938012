"""Operators of other domains than ONNX's own, a folder for each: com.microsoft, whose fused operators optimised files contain, and ai.onnx.ml."""
from . import microsoft, ml

__all__ = ["microsoft", "ml"]
