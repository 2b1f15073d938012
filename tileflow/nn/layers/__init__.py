"""Layers with PyTorch's names, arguments, shapes and initial weights."""
