"""Numba kernels. This package knows no graph and no options: leaves, the elementwise generator, the driver."""
