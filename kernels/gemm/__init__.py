"""Matrix products: which way and in which blocks, micro-kernels, and the ways: float32 and float64, 16-bit, tiles."""
