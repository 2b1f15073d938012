"""compare: errors beside float64, the first node that departs, and a file that shows it."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model_of, node, port
from peers import needs
from tileflow.errors import DataError, OptionError, TileflowError

import tileflow
from tileflow import cli
from tileflow.api import comparing, peers
from tileflow.kernels.isa.features import features

DRAW = np.random.default_rng(0)
WEIGHTS = {"w": DRAW.standard_normal((4, 3)).astype(np.float32), "large": np.array(1e8, np.float32)}


def cancels(folder: Path, name: str = "m.onnx") -> Path:
    """A model that loses all digits on its way: float32 has none left of (x w + 1e8) - 1e8."""
    nodes = [node("MatMul", ["x", "w"], ["a"], "product"), node("Add", ["a", "large"], ["b"], "adds"),
             node("Sub", ["b", "large"], ["c"], "takes away"), node("Relu", ["c"], ["y"], "last")]
    onnx.save(model_of(nodes, [port("x", ["N", 4])], [port("y", ["N", 3])], WEIGHTS), folder / name)
    return folder / name


def test_what_is_computed_well(tmp_path: Path) -> None:
    found = tileflow.compare("digits_cnn.onnx", peers="onnx", data="digits")
    assert list(found.errors) == ["tileflow", "onnx"]
    assert all(0 < e < 1e-5 for errors in found.errors.values() for e in errors.values())
    assert not found.departures
    assert found.inputs["image"].shape == (8, 1, 8, 8)
    assert found.inputs["image"].max() == 1.0                             # scaled as the file says


def test_where_two_runtimes_part_from_float64(tmp_path: Path) -> None:
    """The difference shows where the digits are taken away, but not by that node alone: what it is fed has lost them
    before."""
    found = tileflow.compare(cancels(tmp_path), peers=["onnx"], rows=5)
    assert set(found.departures) == {"tileflow", "onnx"}
    for name, departure in found.departures.items():
        assert departure.node == "Sub node 'takes away'"
        assert (departure.value, departure.nodes) == ("c", 2)
        assert departure.error > 0.1
        assert departure.before < 1e-6
        path = departure.save(tmp_path / "parts", name)
        part = onnx.load(path)
        assert [n.op_type for n in part.graph.node] == ["Add", "Sub"]
        with np.load(path.with_suffix(".npz")) as arrays:
            again = tileflow.compare(path, peers="onnx", data=dict(arrays))
        assert again.errors[name]["c"] > 0.1


def test_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", str(cancels(tmp_path)), "--with", "onnx", "--rows", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "m.onnx on x [3, 4], random numbers; errors beside float64, as shares of the largest magnitude:"
    assert lines[1].split() == ["output", "tileflow", "onnx"]
    assert lines[3].startswith("tileflow departs at Sub node 'takes away', in c: by ")
    assert lines[3].endswith("compare/tileflow.onnx shows it, with 2 nodes and the inputs in tileflow.npz.")
    assert {p.name for p in (tmp_path / "compare").iterdir()} == {"tileflow.onnx", "tileflow.npz", "onnx.onnx",
                                                                  "onnx.npz"}
    assert cli.main(["compare", "m.onnx", "--with", "onnx", "--tolerance", "2"]) == 0
    assert "departs" not in capsys.readouterr().out
    for words, says in ((["--with", "torch"], "A model is compared with onnxruntime, openvino, onnx, not 'torch'."),
                        (["--tolerance", "x"], "must be a number"),
                        (["--rows", "0"], "must be a whole number, at least 1"), (["--data", "none.npz"], "none.npz")):
        assert cli.main(["compare", "m.onnx", *words]) == 2
        assert says in capsys.readouterr().err


def test_a_runtime_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose Relu lets through what is below zero: it is that node, alone."""
    def wrong(model: onnx.ModelProto, arrays: Any) -> dict[str, np.ndarray]:
        other = onnx.ModelProto()
        other.CopyFrom(model)
        for n in other.graph.node:
            if n.op_type == "Relu":
                n.op_type = "Identity"
        return peers.PEERS["onnx"](other, arrays)
    monkeypatch.setitem(peers.PEERS, "wrong", wrong)
    nodes = [node("MatMul", ["x", "w"], ["a"], "product"), node("Relu", ["a"], ["b"], "first"),
             node("Neg", ["b"], ["c"], "turn"),
             node("Relu", ["c"], ["d"], "second"), node("Add", ["d", "b"], ["y"], "sum")]
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, [port("x", ["N", 4])], [port("y", ["N", 3])], {"w": WEIGHTS["w"]}), path)
    found = tileflow.compare(path, peers=["wrong"])
    assert set(found.departures) == {"wrong"}
    assert (found.departures["wrong"].node, found.departures["wrong"].nodes) == ("Relu node 'first'", 1)


def test_graphs_within_and_whole_numbers(tmp_path: Path) -> None:
    """What a branch reads of the graph around belongs to the part; values that are no floats are compared as they
    are."""
    then = helper.make_graph([node("Add", ["b", "large"], ["t"], "t")], "then", [],
                             [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)])
    other = helper.make_graph([node("Neg", ["b"], ["e"], "e")], "else", [],
                              [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)])
    nodes = [node("MatMul", ["x", "w"], ["b"], "product"), node("ArgMax", ["b"], ["n"], "largest", axis=1),
             helper.make_node("If", ["yes"], ["c"], "choice", then_branch=then, else_branch=other),
             node("Sub", ["c", "large"], ["y"], "takes away")]
    proto = model_of(nodes, [port("x", [6, 4])], [port("y", [6, 3]), port("n", [6, 1], "int64")],
                     WEIGHTS | {"yes": np.array(True)})
    onnx.save(proto, tmp_path / "m.onnx")
    found = tileflow.compare(tmp_path / "m.onnx", peers="onnx")
    assert found.errors["onnx"]["n"] == 0.0
    assert found.departures["onnx"].node == "Sub node 'takes away'"
    assert found.departures["onnx"].nodes == 2


@pytest.mark.parametrize(("found", "wanted", "error"), [
    ([1.0, 2.0], [1.0, 2.5], 0.2), ([1.0], [1.0, 2.0], np.inf), ([np.nan, 1.0], [np.nan, 1.0], 0.0),
    ([np.nan], [1.0], np.inf),
    ([np.inf, 1.0], [np.inf, 2.0], 0.5), ([np.inf], [-np.inf], np.inf), ([0.0], [0.0], 0.0), ([1e-3], [0.0], np.inf),
    ([], [], 0.0)])
def test_errors(found: list[float], wanted: list[float], error: float) -> None:
    assert comparing.error_of(np.array(found, np.float32), np.array(wanted)) == pytest.approx(error)


def test_what_cannot_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"^A model is compared with onnxruntime, openvino, onnx, not 'tvm'\.$"):
        tileflow.compare("digits_cnn.onnx", peers="tvm")
    with pytest.raises(OptionError, match=r"^tolerance must be above 0, not 0"):
        tileflow.compare("digits_cnn.onnx", tolerance=0)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(OptionError, match=r"^A comparison with openvino needs its package: pip install openvino\.$"):
        tileflow.compare("digits_cnn.onnx", peers="openvino")
    with pytest.raises(DataError):
        tileflow.compare("digits_cnn.onnx", peers="onnx", data=np.zeros((3, 7), np.float32))
    monkeypatch.setitem(peers.PEERS, "fails", lambda model, arrays: 1 // 0)
    with pytest.raises(TileflowError, match="fails cannot run the model: integer division"):
        tileflow.compare("digits_cnn.onnx", peers="fails")


def test_data_beside_the_file(tmp_path: Path) -> None:
    """A part of a model with external data has its numbers in it."""
    proto = onnx.load(cancels(tmp_path))
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(WEIGHTS["w"], "w"))
    onnx.save_model(proto, tmp_path / "e.onnx", save_as_external_data=True, location="e.data", size_threshold=0)
    found = tileflow.compare(tmp_path / "e.onnx", peers="onnx")
    assert found.departures["onnx"].nodes == 2


@pytest.mark.parametrize("peer", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.exhaustive)])
def test_others_software(peer: str, tmp_path: Path) -> None:
    needs(peer)
    found = tileflow.compare("digits_cnn.onnx", peers=peer, data="digits")
    # it then computes in bfloat16
    rounds = peer == "openvino" and not {"avx512bf16", "amx-bf16"}.isdisjoint(features())
    assert all(e < (0.05 if rounds else 1e-5) for e in found.errors[peer].values())
    assert tileflow.compare(cancels(tmp_path), peers=peer).errors["tileflow"]["y"] > 0.1
