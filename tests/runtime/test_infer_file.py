"""The file that `tileflow infer` writes: outputs may have any name, and no member of the archive leaves the folder in which it is unpacked."""
from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx
import pytest
from effort import at_most
from onnx_models import model_of, node, port

from tileflow import cli
from tileflow.cli.infer import LONGEST, member_names

PLAIN = ("output", "dense_1", "a.b-c+d", "layer/head", "Identity:0", "größe", "x y", "1", "..x", "a..b", "x" * LONGEST)
UNFIT = ("../../x", "/etc/passwd", "..", ".", "a//b", "a/../b", "a/./b", "a/", "C:x", "c:\\x", "..\\x", "\\\\host\\share",
         "a\0b", "a\nb", "\u202eexe", "",
         "x" * (LONGEST + 1), "/fc/Gemm_output_0")


@pytest.mark.parametrize("name", PLAIN)
def test_plain_names_stay(name: str) -> None:
    assert member_names([name]) == {name: name}


@pytest.mark.parametrize("name", UNFIT)
def test_others_become_plain(name: str) -> None:
    member = member_names([name])[name]
    assert member != name
    assert member_names([member]) == {member: member}
    assert not {"..", ".", ""}.intersection(PurePosixPath(member).parts)
    for path in (PurePosixPath(member), PureWindowsPath(member)):
        assert not path.anchor
        assert len(path.parts) == 1


def test_no_two_are_alike() -> None:
    names = ["a:b/..", "a:b\\..", "/x", "\\x", "_x", "_x-2"]
    members = member_names(names)
    assert len(set(members.values())) == len(names)
    assert (members["_x"], members["_x-2"]) == ("_x", "_x-2")
    with at_most(4_000_000):
        assert len(set(member_names([f"/{'x' * LONGEST}{i}" for i in range(20_000)]).values())) == 20_000


@pytest.mark.parametrize("name", ["../../x", "/fc/Gemm_output_0", "scores"])
def test_the_command_says_so(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "within").mkdir()
    monkeypatch.chdir(tmp_path / "within")
    onnx.save(model_of([node("MatMul", ["a", "w"], [name])], [port("a", ["N", 3])], [port(name, ["N", 2])], {"w": np.ones((3, 2), np.float32)}),
              "model.onnx")
    np.savez("data.npz", a=np.ones((4, 3), np.float32))
    assert cli.main(["infer", "model.onnx", "--data", "data.npz"]) == 0
    shown, member = capsys.readouterr().out, member_names([name])[name]
    assert (f"{name}: float32[4, 2] (in predictions.npz called {member}, as its own name is no plain file name)" in shown) == (name != "scores")
    with zipfile.ZipFile("predictions.npz") as archive:
        assert archive.namelist() == [f"{member}.npy"]
    with np.load("predictions.npz") as found:
        np.testing.assert_array_equal(found[member], np.full((4, 2), 3, np.float32))
