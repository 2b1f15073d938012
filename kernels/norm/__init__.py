"""Normalisation: batch and layer statistics over planes, over channels-last rows, root mean squares."""
