"""Convolution over planes (NCHW): images unfolded along their width, depthwise and 1x1 kernels."""
from . import depthwise, pointwise

__all__ = ["depthwise", "pointwise"]
