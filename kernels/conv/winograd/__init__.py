"""Channels-last 3x3 convolution of stride 1 by Winograd's F(2x2, 3x3): products over transformed tiles, and the transforms."""
from .products import cost, forward, forward_panels, gradient_panels, input_gradient, pays

__all__ = ["cost", "forward", "forward_panels", "gradient_panels", "input_gradient", "pays"]
