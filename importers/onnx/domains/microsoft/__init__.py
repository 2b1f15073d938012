"""com.microsoft: what ONNX Runtime's optimisers write, taken apart into operators of ONNX, so that it has gradients and the host's rules find its
own fused forms."""
from . import activations, attention, norms, padding, products, quantized, shapes

__all__ = ["activations", "attention", "norms", "padding", "products", "quantized", "shapes"]
