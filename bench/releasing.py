"""What would be released, tried: each file of a folder is installed in an environment of its own and trains a model
from there.

    python -m bench.releasing dist
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

FORMS = ("-py3-none-any.whl", "-py3-none-manylinux_2_28_x86_64.whl", ".tar.gz")
"""How the names of the files end, one each."""
TRY = """
import os, sys
from tileflow.kernels.machine import cache, pack
made = []
cache.on_compile.append(made.append)
from tileflow.cli import main
status = main(["train", "digits_cnn.onnx", "--data", "digits", "--epochs", "1", "--micro-batch-size", "16",
               "--out", sys.argv[1]])
print(f"compiled {len(made)}, {len(pack.names() or [])} in the package", file=sys.stderr)
sys.exit(status)
"""


def version(folder: Path) -> str:
    """The one version that all files have.

    Raises:
        SystemExit: a file is missing or has another.
    """
    found = {}
    for form in FORMS:
        files = [path.name for path in folder.iterdir() if path.name.endswith(form)]
        if len(files) != 1:
            raise SystemExit(f"{folder} has {len(files)} files *{form} and should have one.")
        found[form] = files[0].removesuffix(form).partition("-")[2]
    if len(set(found.values())) != 1:
        raise SystemExit(f"The files of {folder} have several versions: {found}.")
    return next(iter(found.values()))


def tried(file: Path, at: Path) -> tuple[int, int]:
    """Install a file in an environment at `at` and train there: the kernels that were compiled, and those that came
    along."""
    venv.create(at, with_pip=True)
    python = at / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", file.resolve()], check=True)
    environment = {**os.environ, "TILEFLOW_CACHE_DIR": str(at / "cache")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([python, "-c", TRY, str(at / "run")], cwd=at, env=environment, capture_output=True, text=True,
                          check=False)
    counted = re.search(r"compiled (\d+), (\d+) in the package", done.stderr)
    if done.returncode or counted is None or not list((at / "run").glob("*.onnx")):
        raise SystemExit(f"{file.name}: training failed.\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return int(counted[1]), int(counted[2])


def main(arguments: list[str]) -> None:
    [folder] = map(Path, arguments)
    print(f"version {version(folder)}")
    for form in FORMS:
        [file] = [path for path in folder.iterdir() if path.name.endswith(form)]
        with tempfile.TemporaryDirectory() as scratch:
            compiled, carried = tried(file, Path(scratch) / "environment")
        print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB, {carried} kernels inside; a first training compiled "
              f"{compiled}")
        if bool(carried) != ("manylinux" in form) or (carried and compiled):
            raise SystemExit("The wheel for Linux should carry all kernels of a first training, the others none.")


if __name__ == "__main__":
    main(sys.argv[1:])
