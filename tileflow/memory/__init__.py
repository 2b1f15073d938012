"""Memory: element types and tensors, where buffers lie, how tensors are aligned, and how much memory there is to be
had."""
