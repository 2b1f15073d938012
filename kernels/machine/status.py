"""What a checked leaf returns, and where one that looks for numbers that are not finite says what it found."""

OK = 0
NOT_FINITE = 1
"""A value that must be finite (the loss, a gradient) is NaN or infinite."""
LABEL_OUT_OF_RANGE = 2
"""A class label is neither in 0..classes nor the ignored index."""
INDEX_OUT_OF_RANGE = 3
"""An index of a gather lies outside of its axis."""
RAISED = 4
"""What Python would have raised for: a fault of the kernel, since bodies never raise."""
INFINITE, NAN = 0, 1
"""The words of what was found that is not finite."""
