"""Convolution and its gradients (cross-correlation), as leaf calls: over planes (NCHW) and over channels-last images.

A problem (problem.py) is a convolution or an input gradient; algorithms.py has a record for each way to do it, and chooses.

Channels-last images [n, *spatial, c] of up to three axes are read where they lie: see indirection.py, brgemm.py, direct.py, weights.py, depthwise.py;
winograd/ where a 3x3 kernel of stride 1 meets channels enough.
Those of 16-bit floats are widened a part at a time: half.py. Where the CPU has tiles, pixels are gathered: tiles.py, tiles_weights.py.
Planar images with few channels may become channels-last ones on the way (stem.py).
Other planar images (one or two axes, few channels above all) are unfolded along their width (planar/).

Unfolding copies, for each tap of a kernel row, the input columns that tap meets: `U[c, kx, r, q, ox] = x[c, q * sy + phase(r) - top,
ox * sx + kx * dx - left]`, zero outside of the image; r counts the remainders of the input rows modulo the stride. The taps along the
height then are plain shifts by whole rows: row (c, ky, kx) of the im2col matrix is one contiguous run of U, and U is smaller than that
matrix by the height of the kernel over the stride:

- forward (planar/product.py): `y[o, p] = bias[o] + sum_k w[o, k] * U[offset[k] + p]` (register blocks of channels x pixel vectors);
- weight gradient (planar/correlate.py): `dw[o, k] = sum_p dy[o, p] * U[offset[k] + p]` (dot products along the pixels, over several images);
- input gradient (planar/transpose.py): `U'[offset[k] + p] += sum_o w[o, k] * dy[o, p]`, then U' is folded back onto the image; or, where that
  wastes little, the forward kernel with flipped weights over dy.

A convolution that needs no unfolding (one tap per row, stride 1, no padding: 1x1 above all) reads the image where it lies; one of a
single tap is a matrix product (planar/pointwise.py).
Depthwise convolutions need no unfolding either: planar/depthwise.py has vectors along the width.
One-dimensional convolutions run along the height, with width 1. Every output element is summed in an order that depends on the shapes
and the CPU path alone.
"""
from . import algorithms, tiles, tiles_weights, winograd
from .algorithms import CHANNELS_LAST, PLANAR, PLANAR_WEIGHTS, STEM, Algorithm, WeightGradient, choose, choose_weights
from .panels import WeightPanels
from .planar.product import pools
from .problem import ConvAxis, ConvProblem

__all__ = ["CHANNELS_LAST", "PLANAR", "PLANAR_WEIGHTS", "STEM", "Algorithm", "ConvAxis", "ConvProblem",
           "WeightGradient", "WeightPanels", "algorithms", "choose", "choose_weights", "pools", "tiles",
           "tiles_weights", "winograd"]
