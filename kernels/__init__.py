"""Compiled kernels, which know no graph and no options: a folder for each family, what the CPU offers, how compiled code is made and run."""
