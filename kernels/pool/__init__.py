"""Pooling: over planes, over channels-last images, and of a product's finished planes."""
