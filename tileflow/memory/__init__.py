"""Memory: where buffers lie in it, how tensors are aligned, and how much of it there is to be had."""
