"""Convolution over planes (NCHW): images unfolded along their width, depthwise and 1x1 kernels; others are turned to channels last."""
from . import correlate, depthwise, framed, pointwise, product, transpose, turned

__all__ = ["correlate", "depthwise", "framed", "pointwise", "product", "transpose", "turned"]
