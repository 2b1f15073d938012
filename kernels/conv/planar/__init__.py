"""Convolution over planes (NCHW): images unfolded along their width, depthwise and 1x1 kernels; others are turned to channels last."""
from . import blocks, correlate, depthwise, framed, pointwise, product, transpose, turned

__all__ = ["blocks", "correlate", "depthwise", "framed", "pointwise", "product", "transpose", "turned"]
