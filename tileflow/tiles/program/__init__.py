"""A program in the order the tiles run it, and what recomputation adds."""
