"""Checkpoints: safetensors written by our own code, all or nothing; damaged files are refused with a sentence."""
from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from peers import needs
from places import ROOT

import tileflow
from tileflow import nn
from tileflow.runtime import checkpoint
from tileflow.runtime.checkpoint import DTYPES, load_checkpoint, load_tensors, save_tensors
from tileflow.runtime.history import Epoch, Running
from tileflow.runtime.run_folder import CHECKPOINT, RunPosition, load_run, save_run
from tileflow.system import files
from tileflow.system.errors import CheckpointError
from tileflow.system.files import atomic_write_bytes, remove_stale, temporary_prefix


def some_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tensors = {f"t{code}": rng.integers(0, 2, (3, 5)).astype(letters) for code, letters in DTYPES.items()}
    tensors |= {
        "scalar": np.array(3.5, np.float32), "empty": np.zeros((0, 4), np.float64), "bytes": np.arange(7, dtype=np.uint8),
        "transposed": np.arange(6.0).reshape(2, 3).T, "strided": np.arange(10, dtype=np.int32)[::3],
        "big-endian": np.arange(3, dtype=">i4"), "naïve/名前": np.ones(1, np.float16),
        "special": np.array([np.nan, np.inf, -np.inf, -0.0], np.float32),
    }
    return tensors


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype.newbyteorder("=") and a.tobytes() == b.astype(a.dtype).tobytes()


def test_round_trip(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors, metadata = some_tensors(), {"format": "tileflow", "note": "a \"quoted\" ü"}
    save_tensors(path, tensors, metadata)
    loaded, said = load_tensors(path)
    assert said == metadata
    assert loaded.keys() == tensors.keys()
    assert all(same(loaded[name], tensors[name]) for name in tensors)
    loaded["scalar"][...] = 1          # writable
    save_tensors(path, {})
    assert load_tensors(path) == ({}, {})


def test_the_reference_implementation_agrees(tmp_path):
    reference = needs("safetensors.numpy")
    tensors = {name: array for name, array in some_tensors().items() if name != "big-endian"}
    save_tensors(tmp_path / "ours", tensors, {"a": "b"})
    theirs = reference.load_file(tmp_path / "ours")
    assert all(same(theirs[name], tensors[name]) for name in tensors)
    reference.save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, tmp_path / "theirs", {"c": "d"})
    loaded, metadata = load_tensors(tmp_path / "theirs")
    assert metadata == {"c": "d"}
    assert all(same(loaded[name], tensors[name]) or tensors[name].ndim == 0 for name in tensors)


def test_unknown_element_types():
    with pytest.raises(CheckpointError, match="Tensor z has element type complex128"):
        save_tensors("never", {"z": np.zeros(2, complex)})
    with pytest.raises(CheckpointError, match="object"):
        save_tensors("never", {"z": np.array([object()])})
    assert not os.path.exists("never")


def file_of(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


F4 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(("content", "says"), [
    (b"", "too few for a header"),
    (b"\x01\x00", "too few for a header"),
    (file_of({}, length=2**63), "header claims"),
    (file_of({}, length=3), "header claims"),
    (file_of(b"{"), "not valid JSON"),
    (file_of(b"\xff\xff"), "not valid JSON"),
    (file_of(b"[" * 100_000), "not valid JSON"),
    (file_of([]), "not a table"),
    (file_of(b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "a": {}}'), "'a' stands twice"),
    (file_of({"__metadata__": {"a": 1}}), "not a table of texts"),
    (file_of({"a": 3}), "not described"),
    (file_of({"a": {"dtype": "F32"}}), "not described"),
    (file_of({"a": {**F4, "dtype": "F8_E5M2"}}, bytes(8)), "element type F8_E5M2"),
    (file_of({"a": {**F4, "dtype": ["F32"]}}, bytes(8)), "element type"),
    (file_of({"a": {**F4, "shape": [-2]}}, bytes(8)), "shape"),
    (file_of({"a": {**F4, "shape": [2.0]}}, bytes(8)), "shape"),
    (file_of({"a": {**F4, "shape": [True, 2]}}, bytes(8)), "shape"),
    (file_of({"a": {**F4, "shape": [3]}}, bytes(8)), "has 8 bytes"),
    (file_of({"a": {**F4, "shape": [0] * 65, "data_offsets": [0, 0]}}), "shape"),
    (file_of({"a": {**F4, "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}), "shape"),
    (file_of({"a": {**F4, "shape": [2**61], "data_offsets": [0, 2**63 - 1]}}), "bytes"),
    (file_of({"a": {**F4, "data_offsets": [8, 16]}}, bytes(16)), "begins at byte 8"),
    (file_of({"a": F4, "b": F4}, bytes(8)), "begins at byte 0 of the data instead of 8"),
    (file_of({"a": F4}, bytes(7)), "need 8 bytes of data, the file has 7"),
    (file_of({"a": F4}, bytes(9)), "need 8 bytes of data, the file has 9"),
    (file_of({"a": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\x02"), "BOOL"),
])
def test_damaged_files(tmp_path, content, says):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"bad\.safetensors") as error:
        load_tensors(path)
    assert says in str(error.value)


def test_any_flipped_or_missing_byte_gives_tensors_or_a_sentence(tmp_path):
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": np.arange(4.0), "b": np.array([True])}, {"k": "v"})
    good = path.read_bytes()
    draw = random.Random(0)
    for trial in range(400):
        bad = bytearray(good)
        if trial % 4 == 0:
            del bad[draw.randrange(len(bad)):]
        else:
            bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        path.write_bytes(bad)
        try:
            load_tensors(path)
        except CheckpointError:
            continue


def a_run(path: Path) -> None:
    """A small checkpoint of a training run."""
    save_run(path, {"w": np.arange(3, dtype=np.float32), "b": np.zeros(1)},
             RunPosition(3, 6, 1, 1, Running(0.5, 6), [Epoch(1, 0.25, None)]),
             {"seed": 1})


def test_a_flipped_bit_in_every_byte_of_a_run_is_found(tmp_path):
    """In each byte one bit, in those of the data all of them; and the file cut off anywhere."""
    path = tmp_path / CHECKPOINT
    a_run(path)
    good = path.read_bytes()
    assert load_run(path)[1].history == [Epoch(1, 0.25, None)]
    data = 8 + int.from_bytes(good[:8], "little")
    for at in range(len(good)):
        for bit in range(8) if at >= data or at < 8 else [at % 8]:
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1:])
            with pytest.raises(CheckpointError):
                load_run(path)
    for end in range(0, len(good), 5):
        path.write_bytes(good[:end])
        with pytest.raises(CheckpointError):
            load_run(path)


def test_a_flipped_bit_of_the_data_is_said_to_be_one(tmp_path):
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": np.ones(4)})
    whole = bytearray(path.read_bytes())
    whole[-3] ^= 16
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged.*it differs from its digest; restore it from a copy"):
        load_tensors(path)


def test_files_of_other_tools_have_no_digest(tmp_path):
    path = tmp_path / "theirs.safetensors"
    path.write_bytes(file_of({"__metadata__": {"k": "v"}, "a": F4}, bytes(8)))
    assert not load_checkpoint(path).proven
    save_tensors(path, load_tensors(path)[0])
    assert load_checkpoint(path).proven
    path.write_bytes(file_of({"__metadata__": {"tileflow.sha256": "\ud800"}, "a": F4}, bytes(8)))
    with pytest.raises(CheckpointError, match="differs from its digest"):
        load_tensors(path)


@pytest.mark.parametrize(("change", "says"), [
    ({"format": 3}, r"was written by a newer tileflow \(format 3; this one reads 2\); update tileflow\."),
    ({"format": 1}, "has no digest of its contents"),
    ({"format": "two"}, "is no checkpoint of a training run"),
    ({"updates": -1}, "does not say how far its run has come"),
    ({"epoch": 2**70}, "does not say how far"),
    ({"running": {"loss": "x"}}, "does not say how far"),
    ({"running": {"lost": 1}}, "does not say how far"),
    ({"history": [{"epoch": 1, "loss": None, "accuracy": None}]}, "does not say how far"),
    ({"history": 5}, "does not say how far"),
    ({"history": [5]}, "does not say how far"),
    ({"history": {"a": 1}}, "does not say how far"),
    ({"history": []}, "does not say how far"),
    ({"history": [{"epoch": 2, "loss": 1.0, "accuracy": None}]}, "does not say how far"),
    ({"history": [{"epoch": 1, "loss": 10**400, "accuracy": None}]}, "does not say how far"),
    ({"history": [{"epoch": 1, "loss": 1.0, "accuracy": True}]}, "does not say how far"),
    ({"epoch": 10**12}, "does not say how far"),
    ({"running": [1]}, "does not say how far"),
    ({"run": 5}, "does not say how far"),
])
def test_the_version_and_crafted_states(tmp_path, change, says):
    a_run(tmp_path / CHECKPOINT)
    tensors, metadata = load_tensors(tmp_path / CHECKPOINT)
    save_tensors(tmp_path / CHECKPOINT, tensors, {"tileflow": json.dumps(json.loads(metadata["tileflow"]) | change)})
    with pytest.raises(CheckpointError, match=says):
        load_run(tmp_path / CHECKPOINT)


def test_a_run_without_its_digest_is_refused(tmp_path):
    path = tmp_path / CHECKPOINT
    a_run(path)
    path.write_bytes(path.read_bytes().replace(b"tileflow.sha256", b"tileflow.sha255"))
    with pytest.raises(CheckpointError, match="has no digest of its contents, so that it cannot be told from a damaged one"):
        load_run(path)


def test_what_cannot_be_read_back_takes_no_place(tmp_path, monkeypatch):
    """The disk damages what is written; the checkpoint there before stays."""
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": np.ones(3)})
    prove = checkpoint.proven

    def after_damage(new: Path) -> bool:
        whole = bytearray(new.read_bytes())
        whole[-1] ^= 1
        new.write_bytes(whole)
        return prove(new)
    monkeypatch.setattr(checkpoint, "proven", after_damage)
    with pytest.raises(CheckpointError, match=r"what is read back differs from what was written.*unchanged"):
        save_tensors(path, {"a": np.zeros(3)})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert np.array_equal(load_tensors(path)[0]["a"], np.ones(3))


def test_temporary_files_of_killed_processes_go(tmp_path):
    """A process is killed while it writes; what a living one writes, and what only looks alike, stays."""
    script = ("import os, signal, sys\nfrom tileflow.system.files import atomic_write, temporary_prefix\nfrom pathlib "
              "import Path\nfolder = Path(sys.argv[1])\n"
              "(folder / (temporary_prefix(folder / 'model.onnx') + 'abc.tmp')).mkdir()\n"
              "atomic_write(folder / 'a', (os.kill(os.getpid(), signal.SIGKILL) for _ in range(1)))\n")
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, cwd=ROOT)
    left = sorted(p.name for p in tmp_path.iterdir())
    assert len(left) == 2, left
    other_host = left[0].split("-")[0][:-8] + f"{int(left[0].split('-')[0][-8:], 16) ^ 1:08x}-1-00.tmp"
    mine = temporary_prefix(tmp_path / "b") + "00.tmp"
    stay = [other_host, mine, ".a.tmp", "a.tmp", left[0].removesuffix(".tmp"), left[0][1:]]
    for name in stay:
        (tmp_path / name).write_bytes(b"")
    remove_stale(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(stay)
    os.utime(tmp_path / other_host, (0, 0))
    remove_stale(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(stay[1:])


def test_unreadable_paths(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        load_tensors(tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        load_tensors(tmp_path)


def test_unwritable_places(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    for path, says in [(tmp_path / "none" / "a", "create the folder"), (tmp_path / "file" / "a", "must be a folder"),
                       (tmp_path, "name a file, not a folder"), (tmp_path / ("n" * 300), "choose a shorter name")]:
        with pytest.raises(CheckpointError, match=says):
            save_tensors(path, {"a": np.ones(2)})
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("call", "code", "says"), [
    ("fsync", errno.ENOSPC, "No space left on device; free some space"),
    ("fsync", errno.EIO, "choose another folder"),
    ("replace", errno.EROFS, "not read-only"),
    ("replace", errno.EACCES, "choose a folder you may write to"),
])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call, code, says):
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": np.ones(3)})

    def fail(*_args: object) -> None:
        raise OSError(code, os.strerror(code))
    monkeypatch.setattr(checkpoint.os, call, fail)
    with pytest.raises(CheckpointError, match=says):
        save_tensors(path, {"a": np.zeros(1000)})
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert np.array_equal(load_tensors(path)[0]["a"], np.ones(3))


def test_a_checkpoint_that_will_not_fit_is_said_before_anything_is_trained(tmp_path, monkeypatch):
    usage = type(shutil.disk_usage(tmp_path))
    x, y = np.ones((32, 20), np.float32), np.arange(32) % 3
    for free, total in ((200, 10_000), (0, 0)):                   # a file system of no bytes does not say
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _folder, free=free, total=total: usage(total, total - free, free))
        net = nn.Linear(20, 3)
        before = net.weight.data.copy()
        if total:
            with pytest.raises(CheckpointError, match=r"^A checkpoint of this run takes [67]\d\d bytes, and the disk of .* has 200 left; free some"):
                tileflow.train(net, data=(x, y), out=tmp_path / "run", progress=False)
            assert np.array_equal(net.weight.data, before)
        else:
            tileflow.train(net, data=(x, y), out=tmp_path / "run", progress=False)


def test_a_really_full_disk(tmp_path):
    """A file-size limit stops the write halfway, as a full disk does."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": np.ones(3)})
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(CheckpointError, match="File too large"):
            save_tensors(path, {"a": np.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert np.array_equal(load_tensors(path)[0]["a"], np.ones(3))


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(_handle: int) -> None:
        raise KeyboardInterrupt
    monkeypatch.setattr(checkpoint.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic_write_bytes(tmp_path / "a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_atomic_bytes_links_and_modes(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a", tmp_path / "link"
    atomic_write_bytes(target, b"one")
    link.symlink_to(target)
    atomic_write_bytes(link, memoryview(b"two"))
    assert link.is_symlink()
    assert target.read_bytes() == b"two"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask
