"""Only regular files are opened: a fifo under a file's name was waited for, for ever."""
from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from tileflow import report
from tileflow.exploration import planning
from tileflow.options.options import read_options_file
from tileflow.runtime.checkpoint import load_tensors
from tileflow.runtime.data import open_data
from tileflow.system.errors import TileflowError
from tileflow.system.reading import open_regular, read_text
from tileflow.tiles.hardware.chip import Chip

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes: a POSIX system makes it run")


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """What waits is interrupted."""
    def late(number: int, frame: Any) -> None:
        raise AssertionError("it waits for a fifo")
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 20)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a table": ("d.csv", open_data), "an archive": ("d.npz", open_data), "an array": ("d.npy", open_data),
    "IDX": ("train-images.idx3-ubyte", open_data), "packed IDX": ("train-images.idx3-ubyte.gz", open_data),
    "a checkpoint": ("checkpoint.safetensors", load_tensors), "options": ("run.toml", read_options_file), "a chip": ("chip.toml", Chip.load),
    "plans": ("plans.json", planning.read_plans), "a report": ("report.json", report.load),
    "a model": ("m.onnx", tileflow.load),
}


@pytest.mark.parametrize("what", READERS)
def test_a_fifo_is_refused(tmp_path: Path, what: str):
    name, read = READERS[what]
    os.mkfifo(tmp_path / name)
    with pytest.raises(TileflowError, match="not a regular file"):
        read(tmp_path / name)


def test_a_fifo_beside_the_data_is_refused(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    os.mkfifo(tmp_path / "y.npy")
    with pytest.raises(TileflowError, match=r"y.npy cannot be read: it is a fifo \(a named pipe\), not a regular file; copy its content into one"):
        open_data(tmp_path / "x.npy")


def test_other_kinds_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(OSError, match="it is a device, not a regular file"):
        open_regular("/dev/zero")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)                     # names of sockets are short
        listening.bind("s")
        with pytest.raises(OSError):                    # the system refuses to open it
            open_regular(tmp_path / "s")
    (tmp_path / "file").write_text("grüße\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "link") == "grüße\n"
    with open_regular(tmp_path / "link") as file:
        assert file.read() == "grüße\n".encode()
