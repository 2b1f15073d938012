"""Channels-last 3x3 convolution of stride 1 by Winograd's F(2x2, 3x3): products over transformed tiles, and the transforms."""
from .products import calls, cost, panels, serves

__all__ = ["calls", "cost", "panels", "serves"]
