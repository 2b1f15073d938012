"""Products and convolutions of 8-bit integers, exact in 32 bits: by the CPU's products of bytes, in tiles or vectors, or by pairs of 16-bit words."""
