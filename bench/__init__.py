"""Benchmarks: every figure is a ratio against a peer in the same run. `python -m bench --help` lists the cases."""
