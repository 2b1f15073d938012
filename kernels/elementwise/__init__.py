"""Scalar expressions and what runs them over whole arrays: as leaves, on a product's finished blocks, under guard."""
