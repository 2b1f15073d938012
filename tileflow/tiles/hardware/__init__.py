"""What a chip is and what it takes: cycles of vertices and of the exchange, tiles set aside for I/O."""
