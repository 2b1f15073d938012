"""Operators of other domains than ONNX's own, a folder for each: com.microsoft, whose fused operators optimised files
contain, ai.onnx.ml, and the marks of the bridge from PyTorch."""
from . import marks, microsoft, ml

__all__ = ["marks", "microsoft", "ml"]
