"""Target-neutral rewrites of a graph, one a file. Each leaves what `verify` accepts and names no operator."""
