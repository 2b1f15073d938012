"""Attention without a quadratic array, forward and backward: float32, and 16-bit memory."""
