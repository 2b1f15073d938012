"""The executable: an Image of a program for this computer's memory and kernels, and the Engine that runs it without a
graph."""
