"""What the CPU offers and how it is spoken to: capabilities, explicit vector code, mathematics in vectors, 16-bit floats, tiles."""
