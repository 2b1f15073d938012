"""Benchmarks: every figure is a ratio against a peer in the same run. `python -m bench --help` lists the cases."""
from pathlib import Path

ROOT = str(Path(__file__).parent.parent)
"""The repository."""
