"""Damaged and hostile files: whatever they hold, a sentence comes out, in bounded time. `hostile.py` makes them, and goes on for longer by itself."""
from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import at_most
from hostile import cases, judge, model_of, npy_with, ones, use_data, use_model, use_pieces
from onnx import AttributeProto, ModelProto, StringStringEntryProto, TensorProto, helper
from places import TESTS

from tileflow import cli
from tileflow.graph import TensorType
from tileflow.importers.onnx import fold, import_graph, load_model
from tileflow.memory.types import broadcast_shapes
from tileflow.ops.index import Slice
from tileflow.ops.moving import move
from tileflow.runtime.checkpoint import load_tensors, save_tensors
from tileflow.system.errors import CheckpointError, DataError, ModelError, ShapeError, TileflowError

SEEDS = {"structured": 90, "pieces": 120, "bytes": 60, "arrays": 60, "settings": 30, "checkpoint": 60}
node, whole = helper.make_node, TensorProto.INT64


@pytest.mark.parametrize("kind", SEEDS)
def test_damaged_files_end_in_sentences(kind: str, tmp_path: Path):
    save_tensors(tmp_path / "c", {"w": np.ones((2, 3), np.float32), "step": np.ones((), np.float64)}, {"tileflow": '{"updates": 3}', "epoch": "1"})
    make = cases(tmp_path, (tmp_path / "c").read_bytes())[kind]
    with at_most(40_000_000):
        wrong = {seed: said for seed in range(SEEDS[kind]) if (said := judge(make(random.Random(f"{kind}{seed}")))) is not None}
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: a POSIX system makes it run")
@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_mutated_models_end_in_a_sentence_or_the_right_answer(count: int):
    """Each within a CPU second and 300 MB, interpreter included."""
    script = TESTS / "oracle" / "hostile_models.py"
    done = subprocess.run([sys.executable, str(script), str(count)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
    assert f"{count} models: " in done.stdout


@pytest.mark.parametrize("place", [[], [0, 1]])
@pytest.mark.parametrize("split", [True, False])
def test_places_in_sequences_are_one_number(place: list[int], split: bool, tmp_path: Path):
    """Of sequences known at import, and of others."""
    known, other = node("SplitToSequence", ["x"], ["s"]), [node("SequenceConstruct", ["x", "x"], ["t"]), node("SequenceInsert", ["t", "x"], ["s"])]
    made = [known] if split else other
    model = model_of([*made, node("SequenceAt", ["s", "at"], ["y"])], [2, 3], [helper.make_tensor("at", whole, [len(place)], place)])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ShapeError, match=f"holds {len(place)}"):
        use_pieces(tmp_path / "m.onnx")


def refused(model: ModelProto, tmp_path: Path, error: type[TileflowError], says: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with at_most(4_000_000), pytest.raises(error) as caught:
        use_model(path)
    text = str(caught.value)
    assert says in text
    assert "\n" not in text
    assert len(text) < 2100


def relu(shape: list[Any], name: str = "relu") -> ModelProto:
    return model_of([node("Relu", ["x"], ["y"], name=name)], shape, [])


def with_tensor(change: Callable[[TensorProto], object]) -> ModelProto:
    tensor = ones("w", 2)
    change(tensor)
    return model_of([node("Add", ["x", "w"], ["y"])], [2], [tensor])


def elsewhere(location: str) -> Callable[[TensorProto], object]:
    def change(tensor: TensorProto) -> None:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.append(StringStringEntryProto(key="location", value=location))
    return change


def referring() -> ModelProto:
    model = model_of([node("LeakyRelu", ["x"], ["y"])], [2], [])
    attribute = model.graph.node[0].attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = "alpha", "slope", AttributeProto.FLOAT
    return model


def without_outputs() -> ModelProto:
    model = relu([2])
    del model.graph.output[:]
    return model


def folding_endlessly() -> ModelProto:
    """A thousand constants of 1.6 MB out of a few bytes."""
    nodes = [node("ConstantOfShape", ["n"], ["c0"]), *(node("Neg", [f"c{i}"], [f"c{i + 1}"]) for i in range(1000)),
             node("ReduceSum", ["c1000"], ["s"]), node("Add", ["x", "s"], ["y"])]
    return model_of(nodes, [1], [helper.make_tensor("n", whole, [1], [400_000])])


def damaged_function() -> ModelProto:
    body = helper.make_function("mine", "F", ["a"], ["b"], [node("LeakyRelu", ["a"], ["b"], alpha="word")], [helper.make_opsetid("", 17)])
    model = model_of([node("F", ["x"], ["y"], domain="mine")], [2], [])
    model.functions.append(body)
    return model


@pytest.mark.parametrize(("model", "says"), [
    (relu([1] * 40), "it has 40 dimensions and tileflow's tensors have up to 32"),
    (relu([2**40, 2**40]), "its sizes come to 4.84e+24 bytes"),
    (with_tensor(lambda t: t.dims.extend([1] * 69)), "it has 70 dimensions and tileflow's tensors have up to 32"),
    (with_tensor(lambda t: t.CopyFrom(TensorProto(name="w", data_type=1, dims=[0, 2**62, 2**62], raw_data=b""))), "its sizes come to 8.51e+37 bytes"),
    (with_tensor(lambda t: t.segment.SetInParent()), "the tensor 'w' is a segment of a larger one"),
    (with_tensor(elsewhere("a" * 100_000)), "which is no name of a file"),
    (with_tensor(elsewhere("a" * 1000)), "which is not in "),
    (with_tensor(elsewhere("a\0b")), "points to the external file 'a b', which is no name of a file"),
    (referring(), "takes its attribute 'alpha' from the caller's 'slope', but it is in no function"),
    (without_outputs(), "has no outputs, so there is nothing to compute"),
    (model_of([node("Reshape", ["x", "s"], ["y"])], [4], [helper.make_tensor("s", whole, [71], [4] + [1] * 70)]),
     "has 71 elements, and no tensor has sizes or axes for more than 64"),
    (model_of([node("Expand", ["x", "s"], ["y"])], [1], [helper.make_tensor("s", whole, [3], [2**62, 2**62, 0])]),
     "its sizes come to 8.51e+37 bytes"),
    (relu([2, "d" * 100_000]), "the sizes of 'ddd"),
    (folding_endlessly(), "constants that are evaluated at import may take 64 MiB in all"),
    (damaged_function(), "Mismatched attribute type"),
], ids=lambda x: x[:30] if isinstance(x, str) else "")
def test_models_that_cannot_be(model: ModelProto, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert fold.LIMIT == 1024 << 20
    monkeypatch.setattr(fold, "LIMIT", 64 << 20)                # a gibibyte takes seconds
    refused(model, tmp_path, ModelError, says)


def test_outputs_listed_twice(tmp_path: Path):
    """A weight, and a value that a node makes."""
    model = model_of([node("Relu", ["x"], ["y"])], [2], [ones("w", 2)], outputs=("w", "y", "w", "y"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert [v.name for v in import_graph(load_model(tmp_path / "m.onnx")).graph.outputs] == ["w", "y", "w", "y"]


def test_text_that_is_none(tmp_path: Path):
    path = tmp_path / "m.onnx"
    path.write_bytes(relu([2], name="QQQQ").SerializeToString().replace(b"QQQQ", b"\xff\xfe\x80Q"))
    with pytest.raises(ModelError, match="which is no text; the file is damaged"):
        load_model(path)


def test_tensors_elsewhere_and_outputs_of_unknown_shape(tmp_path: Path):
    """An ordinary file: the checker reads it from disk, and wants a shape that ONNX does not."""
    (tmp_path / "m.data").write_bytes(np.arange(2, dtype=np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(with_tensor(elsewhere("m.data")).SerializeToString())
    model = load_model(tmp_path / "m.onnx")
    np.testing.assert_array_equal(model.array("w"), [0, 1])
    assert import_graph(model, trainable=["w"]).weights["w"].tolist() == [0, 1]


@pytest.mark.parametrize(("x", "w", "cut"), [([2, 2, 5, 5], [0, 2, 3, 3], 5), ([2, 2, 5, 5], [4, 2, 3, 3], 0), ([2, 0, 5, 5], [4, 0, 3, 3], 5)])
def test_empty_convolutions(x: list[int], w: list[int], cut: int, tmp_path: Path):
    """No output channels, no rows (cut off in the graph), no input channels: they compile, for inference and for training, or are refused."""
    bounds = [helper.make_tensor(name, whole, [1], [value]) for name, value in (("from", 0), ("to", 2 if cut else 0), ("axis", 0))]
    channels = [helper.make_tensor(name, whole, [1], [value]) for name, value in (("c0", 0), ("c1", x[1]), ("caxis", 1))]
    nodes = [node("Slice", ["x", "from", "to", "axis"], ["a"]), node("Slice", ["a", "c0", "c1", "caxis"], ["b"]),
             node("Conv", ["b", "w"], ["y"], pads=[1] * 4)]
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(nodes, [x[0], max(x[1], 1), *x[2:]], [*bounds, *channels, ones("w", *w)]).SerializeToString())
    assert judge(lambda: use_model(path)) is None


EXTREMES = (-2**63, -2**63 + 1, -6, -1, 0, 1, 4, 2**31, 2**63 - 1)


def test_extreme_slices():
    """Starts, ends and steps up to the limits of int64 mean what Python's own slices mean, but that going backwards begins inside."""
    wanted = list(range(5))
    for start, end, step in itertools.product(EXTREMES, EXTREMES, (1, 2, -1, 2**63 - 1, -2**63 + 1, -2**63)):
        op = Slice(starts=(start,), ends=(end,), axes=(0,), steps=(step,))
        first, stop = (max(start, -5), None if end < -5 else end) if step < 0 else (start, end)
        assert op.infer(TensorType("float32", (5,)))[0].shape == (len(wanted[first:stop:step]),)
        assert op.reference(np.arange(5, dtype=np.float32))[0].tolist() == wanted[first:stop:step]


def test_broadcasting_of_any_rank_and_size():
    assert broadcast_shapes((2**62, 1), (2**62,)) == (2**62, 2**62)
    assert broadcast_shapes((1,) * 40, (3,)) == (1,) * 39 + (3,)
    assert broadcast_shapes((0, 1), (1, 5)) == (0, 5)
    assert broadcast_shapes((2, 3), (3, 2)) is None
    assert broadcast_shapes((2, 1), (-1,)) is None
    assert broadcast_shapes() == ()


def test_moves_along_many_axes():
    """A transposition of twelve axes is several calls of the kernel; endless calls are refused."""
    from tileflow import inference_model
    from tileflow.importers.onnx import wrap_model
    perm = [11, 9, 7, 5, 3, 1, 0, 2, 4, 6, 8, 10]
    model = wrap_model(model_of([node("Transpose", ["x"], ["y"], perm=perm)], [2] * 12, []))
    x = np.arange(2**12, dtype=np.float32).reshape([2] * 12)
    np.testing.assert_array_equal(inference_model(model)(x), x.transpose(perm))
    from tileflow.kernels.machine.call import In, Out
    from tileflow.kernels.move import MoveAxis
    axes = [MoveAxis(3, 3**(2 * i % 19), 3**i) for i in reversed(range(19))]
    with pytest.raises(ShapeError, match="It moves elements along 19 axes that do not lie together"):
        move(In(0, (3**19,)), Out(0, (3**19,)), axes, 4)


@pytest.mark.parametrize(("header", "says"), [
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 99999999999999999999), }", "which no array can have"),
    (f"{{'descr': '<f4', 'fortran_order': False, 'shape': {(1,) * 40}, }}", "has 40 dimensions; tileflow's tensors have up to 32"),
    ("{'descr': '|V0', 'fortran_order': False, 'shape': (4,), }", "holds elements of no size"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 3), }", "which no array can have"),
    ("{1: 2, 'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), }", "cannot be read"),
    ("(" * 5000, "cannot be read"),
])
def test_odd_headers_of_arrays(header: str, says: str, tmp_path: Path):
    (tmp_path / "x.npy").write_bytes(npy_with(header))
    with pytest.raises(DataError, match=says):
        use_data(tmp_path / "x.npy")


def test_ranks_of_idx_files(tmp_path: Path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(bytes([0, 0, 8, 255]) + (1).to_bytes(4, "big") * 255 + b"\0")
    with pytest.raises(DataError, match="has 255 dimensions; tileflow's tensors have up to 32"):
        use_data(path)
    path.write_bytes(bytes([0, 0, 8, 3]) + b"\0" * 4 + b"\xff" * 8)
    with pytest.raises(DataError):
        use_data(path)


@pytest.mark.parametrize("words", [
    ("inspect", "{}.onnx"), ("train", "digits_cnn.onnx", "--data", "{}.npz"), ("train", "digits_cnn.onnx", "--data", "digits", "--out", "{}"),
    ("infer", "digits_cnn.onnx", "--data", "digits", "--out", "{}.npz"), ("report", "{}"), ("train", "digits_cnn.onnx", "--options", "{}.toml"),
    ("train", "digits_cnn.onnx", "--data", "digits", "--out", "{}", "--resume"),
], ids=" ".join)
def test_names_that_no_file_can_have(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    assert cli.main([word.format("a" * 5000) for word in words]) == cli.USER_ERROR
    assert "aaa" in capsys.readouterr().err


@pytest.mark.parametrize("shape", ["[NaN]", "[1e308]", "[true]", "[-1]", "[99999999999999999999999]", "{}", "[[1]]", "null"])
def test_crafted_checkpoints(shape: str, tmp_path: Path):
    text = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).replace("[1]", shape).encode()
    (tmp_path / "c").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "c")
