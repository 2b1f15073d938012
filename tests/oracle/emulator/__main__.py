"""`python tests/oracle/emulator PATH tests/test_x.py [-k …]`: pytest with every leaf compiled for PATH (one of
`emulator.TARGETS`) and emulated."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import places

places.add_to_path()
import emulator  # noqa: E402

if len(sys.argv) < 3 or sys.argv[1] not in emulator.TARGETS:
    sys.exit(f"{__doc__}\nPaths: {', '.join(emulator.TARGETS)}.")
if not emulator.available():
    sys.exit("The emulator needs Linux on x86-64, the package bochscpu-python and a C compiler.")
environment = {**os.environ, **emulator.environment(sys.argv[1]), "PYTHONPATH": places.PATH}
command = [sys.executable, "-m", "pytest", "-p", "emulator.plugin", "--exhaustive", *sys.argv[2:]]
sys.exit(subprocess.run(command, env=environment, check=False).returncode)
