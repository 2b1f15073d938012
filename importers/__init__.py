"""Importers: foreign model files into graphs, and trained weights back into them."""
