"""PopTorch's names over tileflow: `import tileflow.poptorch as poptorch` in a script for the reference system."""
